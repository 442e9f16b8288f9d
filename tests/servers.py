"""Real servers and throw-away databases for the suites that need them: one pair of servers a test process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg import sql

from deploy.postgres import OWNER, EmbeddedPostgres
from deploy.servers import EmbeddedValkey
from deploy.state import fresh_secrets


class SharedServers(NamedTuple):
    """A running pair; nothing is flushed to the disk, but what was committed survives a kill."""

    valkey: EmbeddedValkey
    postgres: EmbeddedPostgres


@contextmanager
def shared_servers(root: Path) -> Iterator[SharedServers]:
    """Run Valkey and PostgreSQL below ``root``, a folder of this test process alone (about 0.8 s)."""
    secrets = fresh_secrets()
    with (
        EmbeddedValkey(root / "valkey", password=secrets.valkey, durable=False) as valkey,
        EmbeddedPostgres(root / "postgres", passwords=secrets.postgres, durable=False) as postgres,
    ):
        yield SharedServers(valkey, postgres)


def template_database(postgres: EmbeddedPostgres, name: str, prepare: Callable[[str], None]) -> None:
    """Make a database to clone; ``prepare`` gets its owner's address. Nobody can connect to it afterwards."""
    postgres.create_database(name)
    prepare(postgres.url(role=OWNER, database=name))
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        statement = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false IS_TEMPLATE true")
        connection.execute(statement.format(sql.Identifier(name)))
        # A pool that prepare left open would make every clone fail.
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


def clone_database(postgres: EmbeddedPostgres, name: str, *, template: str) -> None:
    """Make a database as ``template`` was prepared; reach it with ``postgres.url(role=..., database=name)``."""
    postgres.create_database(name, template=template)


def drop_database(postgres: EmbeddedPostgres, name: str) -> None:
    """Drop a database, whoever is still connected to it."""
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
