"""Alembic's entry point: runs on the connection it is given, within that connection's transaction."""

from __future__ import annotations

from alembic import context

import models.store.work_tables  # noqa: F401 - its tables join the metadata
from models.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
