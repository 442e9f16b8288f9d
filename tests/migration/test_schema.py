"""The migrations against the tables: a new database, one that is there already, and what the service may do in it."""

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import models.store.work_tables  # noqa: F401 - its tables join the metadata
from deploy.postgres import SERVICE
from models.store import migrate
from models.store.database import admin_engine
from models.store.tables import metadata
from tests.stack import ROOT, Database


def test_migrating_gives_exactly_the_tables(database: Database) -> None:
    with admin_engine(database.owner_url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_head_is_the_last_migration(database: Database) -> None:
    scripts = ScriptDirectory(str(ROOT / "models/store/migrations"))
    assert scripts.get_current_head() == migrate.HEAD
    assert database.value("SELECT version_num FROM alembic_version") == migrate.HEAD


def test_migrating_again_changes_nothing(database: Database) -> None:
    database.rows("UPDATE work_mode SET epoch = 7")
    with admin_engine(database.owner_url).begin() as connection:
        migrate.upgrade(connection, service_role=SERVICE)
    assert database.value("SELECT epoch FROM work_mode") == 7


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE tasks",
        "ALTER TABLE occupancies DROP CONSTRAINT occupancies_pk",
        "CREATE TABLE extra (id integer)",
        "UPDATE alembic_version SET version_num = 'x'",
        "CREATE OR REPLACE FUNCTION dibs_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
    ],
)
def test_the_service_cannot_change_the_schema(database: Database, statement: str) -> None:
    with (
        psycopg.connect(database.service_url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)
