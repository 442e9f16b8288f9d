"""``dibs queue`` and ``dibs doctor``: what waits, and whether the set-up is sound. Contract 8."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import typer
from redis import Redis, RedisError
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from deploy.cli_base import DEFAULT_STATE, AsJson, State, print_json, print_line, print_table, service_transaction
from deploy.cli_web import process_environment
from deploy.folders import DeployError
from models import settings
from models.store import fleet
from models.store.migrate import HEAD
from models.window import view
from models.window.back import connect

TIMEOUT_MS: Final = 3_000
SKEW_MS: Final = 1_000
"""Difference between two clocks from which one of them is wrong: leases and reservations are told by them."""

_POSTGRES_MIN: Final = 150_000


class UnsoundError(DeployError):
    """A set-up with a fault."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One look: ``remedy`` is None where all is well."""

    name: str
    found: str
    remedy: str | None = None


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("queue")(queue)
    app.command("doctor")(doctor)


def queue(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show the windows that wait: open intents, the oldest one's age, and whether a worker has the partition."""
    found = view.queue(_redis(state))
    if as_json:
        print_json(found)
        return
    print_line(f"{found.intents} intents wait in {len(found.partitions)} partitions, {found.jobs} jobs are queued")
    if found.partitions:
        columns = ("partition", "open", "window", "taken", "oldest_age_ms")
        print_table(columns, [msgspec.structs.asdict(one) for one in found.partitions])


def doctor(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Look at everything the service needs: each line is ok, or says what to do; exit 1 if any does."""
    findings = [*_database(state), *_broker(state)]
    if as_json:
        print_json(findings)
    else:
        for one in findings:
            told = f"{one.name}: {one.found}"
            print_line(f"ok  {told}" if one.remedy is None else f"!!  {told}: {one.remedy}")
    faults = sum(one.remedy is not None for one in findings)
    if faults:
        raise UnsoundError(f"{faults} of {len(findings)} looks found a fault")


def _redis(state: Path) -> Redis:
    return connect(settings.load(process_environment(state)).redis_url, timeout_ms=TIMEOUT_MS)


def _database(state: Path) -> Iterator[Finding]:
    try:
        with service_transaction(state) as connection:
            yield from _looked(connection)
    except DBAPIError as error:
        yield Finding(
            name="database",
            found=f"does not answer ({type(error.orig).__name__})",
            remedy="check DIBS_DATABASE_URL: host, port, password and TLS",
        )


def _looked(connection: Connection) -> Iterator[Finding]:
    number = int(connection.execute(text("SHOW server_version_num")).scalar_one())
    old = number < _POSTGRES_MIN
    yield Finding(
        name="database version",
        found=f"PostgreSQL {number // 10_000}",
        remedy="use PostgreSQL 15 or newer" if old else None,
    )
    there = connection.execute(text("SELECT to_regclass('alembic_version') IS NOT NULL")).scalar_one()
    schema = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() if there else None
    yield Finding(
        name="schema",
        found=f"{schema or 'none'}, this version needs {HEAD}",
        remedy=None if schema == HEAD else "run dibs migrate with the dibs that serves",
    )
    if schema != HEAD:
        return
    may = connection.execute(
        text("SELECT has_table_privilege('leftover_close_events', 'UPDATE, DELETE, TRUNCATE')")
    ).scalar_one()
    yield Finding(
        name="audit",
        found="the service's role may change it" if may else "append-only for the service's role",
        remedy="migrate as another role, with DIBS_SERVICE_ROLE naming this one" if may else None,
    )
    ahead = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
    yield _clock("database clock", int(float(ahead) * 1000))
    drained = fleet.drained(connection)
    yield Finding(name="mode", found=f"{drained.mode}, epoch {drained.epoch}")
    known = fleet.processes(connection)
    alive = [one for one in known if not one.expired]
    kinds = {kind: sum(one.kind == kind for one in alive) for kind in ("web", "worker")}
    yield Finding(
        name="fleet",
        found=f"{kinds['web']} web and {kinds['worker']} worker processes, {len(known) - len(alive)} not heard of",
        remedy=None if all(kinds.values()) else "start dibs web and dibs worker",
    )


def _broker(state: Path) -> Iterator[Finding]:
    try:
        client = _redis(state)
        found = view.describe(client)
        waiting = view.queue(client)
    except RedisError as error:
        yield Finding(
            name="redis",
            found=f"does not answer ({type(error).__name__})",
            remedy="check DIBS_REDIS_URL: host, port, password and TLS",
        )
        return
    old = int(found.version.partition(".")[0]) < 7  # noqa: PLR2004 - Redis 7, and every Valkey
    yield Finding(
        name="redis version",
        found=f"{found.server} {found.version}",
        remedy="use Redis 7 or any Valkey" if old else None,
    )
    evicts = found.policy != "noeviction"
    yield Finding(
        name="eviction",
        found=f"maxmemory-policy {found.policy}",
        remedy="set maxmemory-policy noeviction: else waiting intents are thrown away" if evicts else None,
    )
    yield Finding(
        name="persistence",
        found="kept on disk" if found.persistent else "in memory only: a restart asks waiting clients to send again",
    )
    yield _clock("redis clock", found.time_ms)
    oldest = max((one.oldest_age_ms for one in waiting.partitions), default=0)
    stuck = oldest > 10 * SKEW_MS
    yield Finding(
        name="queue",
        found=f"{waiting.intents} intents wait, the oldest for {oldest} ms",
        remedy="start more workers, or see dibs fleet and their logs" if stuck else None,
    )


def _clock(name: str, there_ms: int) -> Finding:
    skew = there_ms - int(time.time() * 1000)
    wrong = abs(skew) > SKEW_MS
    return Finding(name=name, found=f"{skew:+d} ms from this host's", remedy="set both hosts by NTP" if wrong else None)
