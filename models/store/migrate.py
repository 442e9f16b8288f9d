"""Brings a database to this version's schema. Contract 8, ``dibs migrate``."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

HEAD: Final = "0004"
"""The schema this version reads and writes."""

_LOCK: Final = 0x6469_6273_6D69_6772
"""Advisory lock of migrations: two hosts that start at once migrate one after the other."""


def upgrade(connection: Connection, *, service_role: str | None = None) -> None:
    """Migrate to ``HEAD`` within the caller's transaction; a database that is there already is left alone.

    ``service_role`` may then read and write the tables, but not change or own them.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = Config()
    config.set_main_option("script_location", str(files("models.store") / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if service_role is not None:
        quoted = connection.dialect.identifier_preparer.quote(service_role)
        connection.execute(text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {quoted}"))
        connection.execute(text(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {quoted}"))
        connection.execute(text(f"REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM {quoted}"))
        # What was done and what was denied stays on record, whatever the service is made to do (Contract 2.5).
        connection.execute(text(f"REVOKE UPDATE, DELETE ON leftover_close_events FROM {quoted}"))
