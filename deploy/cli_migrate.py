"""``dibs migrate``: brings a database to this version's schema. Contract 8."""

from __future__ import annotations

import typer
from alembic.util import CommandError
from sqlalchemy import Connection, text

from deploy.cli_base import DEFAULT_STATE, AsJson, State, owner_access, print_json, print_line, transaction
from deploy.folders import DeployError
from models.store.migrate import HEAD, upgrade


class NewerSchemaError(DeployError):
    """A database that another version of dibs has migrated further."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(migrate)


def migrate(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Bring the database to this version's schema.

    Its owner's address is DIBS_MIGRATE_DATABASE_URL, by default DIBS_DATABASE_URL; DIBS_SERVICE_ROLE names the role
    that web and worker use, if it is another than the owner.
    """
    access = owner_access(state)
    try:
        with transaction(access.url) as connection:
            before = _schema(connection)
            upgrade(connection, service_role=access.service_role)
    except CommandError:
        raise NewerSchemaError("the database's schema is not known here: use the dibs that migrated it") from None
    if as_json:
        print_json({"before": before, "schema": HEAD})
    elif before == HEAD:
        print_line(f"the schema is {HEAD} already")
    else:
        print_line(f"the schema is now {HEAD}, it was {before or 'absent'}")


def _schema(connection: Connection) -> str | None:
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar_one() is None:
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if found is None else str(found)
