"""What a race needs of the database: agents with keys for its time, a fresh space for each round, and the truth after.

Contract 2.2, 5 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from deploy.folders import DeployError
from deploy.race_rules import Stored, StoredTask
from models.rules.charter import CatalogRow, Charter, bind, compile_charter
from models.rules.conflict import ConflictKey, DeliveryMode, Kind, task_key
from models.rules.spaces import Role, Visibility
from models.rules.tasks import Status
from models.rules.text import TitleFault, clean_title
from models.store.agents import Agent, ensure_agents, issue_keys, revoke_keys
from models.store.spaces import create_space, set_members

BOARD: Final = "multi-agent-research"
_KEY_DAYS: Final = 1
_TITLE_FAULTS: Final = {
    TitleFault.EMPTY: "has no visible character",
    TitleFault.INVALID: "is no title (up to 300 characters, no control characters)",
}


class RaceError(DeployError):
    """What keeps a race from being run or finished; the message is one line."""


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and its key for this race."""

    handle: str
    agent_id: str
    key: str

    def __repr__(self) -> str:
        return f"Runner({self.handle!r})"


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What is raced for: the catalog of every round's space, and the titles the agents propose."""

    catalog: tuple[CatalogRow, ...]
    titles: tuple[str, ...]

    def due(self, slug: str) -> dict[str, ConflictKey]:
        """Return the ConflictKey of each title in a space. Seed 000, section 2.1."""
        charter = compile_charter(Charter(revision=1, rows=self.catalog))
        keys: dict[str, ConflictKey] = {}
        for title in self.titles:
            cleaned = clean_title(title)
            assert not isinstance(cleaned, TitleFault)
            keys[title] = task_key(slug, cleaned, bind(cleaned, None, charter).slot, DeliveryMode.RESULT)
        return keys


class _BoardTask(msgspec.Struct, frozen=True):
    title: str


class _Board(msgspec.Struct, frozen=True):
    catalog: tuple[CatalogRow, ...]
    tasks: tuple[_BoardTask, ...]


def ground(titles: Path | None = None) -> Ground:
    """Return the ground of a race: the board's catalog, and its seven titles or those of a file.

    The file is UTF-8 with a title a line; empty lines count for nothing.

    Raises:
        RaceError: the file cannot be read, holds no title, or a line is none.
    """
    board = msgspec.json.decode((files("deploy") / "boards" / f"{BOARD}.json").read_bytes(), type=_Board)
    given = tuple(task.title for task in board.tasks) if titles is None else read_titles(titles)
    return Ground(catalog=board.catalog, titles=given)


def read_titles(path: Path) -> tuple[str, ...]:
    """Return the titles of a file as they stand there; see :func:`ground`."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RaceError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise RaceError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    found = []
    # Only the line feed ends a line: the other separators that splitlines() knows are faults within a title.
    for number, line in enumerate(content.split("\n"), start=1):
        title = line.removesuffix("\r")
        if not title.strip(" \t"):
            continue
        cleaned = clean_title(title)
        if isinstance(cleaned, TitleFault):
            raise RaceError(f"{path}: line {number} {_TITLE_FAULTS[cleaned]}")
        found.append(title)
    if not found:
        raise RaceError(f"{path}: holds no title; write one a line")
    return tuple(found)


@contextmanager
def runners(engine: Engine, count: int) -> Iterator[tuple[Runner, ...]]:
    """Yield that many agents, the same ones in every race, with new keys that are revoked at the end.

    Keys that cannot be revoked, because the process is killed or the database is gone, expire within a day.

    Raises:
        RaceError: one of the agents was deactivated, or the keys could not be revoked.
        SQLAlchemyError: the database does not do it.
    """
    handles = [f"race-{number:03d}" for number in range(1, count + 1)]
    with engine.begin() as connection:
        agents = ensure_agents(connection, handles)
        _refuse_inactive(agents)
        issued = issue_keys(connection, handles, days=_KEY_DAYS)
    try:
        yield tuple(Runner(handle=handle, agent_id=agents[handle].id, key=issued[handle].key) for handle in handles)
    finally:
        try:
            with engine.begin() as connection:
                revoke_keys(connection, (one.key_id for one in issued.values()))
        except SQLAlchemyError:
            raise RaceError("the race's keys could not be revoked; they expire within a day") from None


def _refuse_inactive(agents: Mapping[str, Agent]) -> None:
    inactive = [agent.handle for agent in agents.values() if not agent.active]
    if inactive:
        raise RaceError(f"agent {inactive[0]} is deactivated and cannot race: dibs agent activate {inactive[0]}")


def fresh_space(engine: Engine, slug: str, catalog: tuple[CatalogRow, ...], members: Sequence[Runner]) -> int:
    """Create an empty space for members alone, the first of them its steward, and return its id.

    Only members may read it, so a loser that can read its winner can do so as what it is.
    """
    roles = {member.agent_id: Role.MEMBER for member in members} | {members[0].agent_id: Role.STEWARD}
    with engine.begin() as connection:
        space_id = create_space(connection, slug, visibility=Visibility.MEMBERS, catalog=catalog)
        set_members(connection, space_id, roles)
    return space_id


def stored(engine: Engine, space_id: int) -> Stored:
    """Return what SQL has of a space, as of one moment."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        tasks = connection.execute(
            text("SELECT id, kind, target, delivery_mode, status FROM tasks WHERE space_id = :space ORDER BY id"),
            {"space": space_id},
        ).all()
        occupancies = connection.execute(
            text("SELECT kind, target, delivery_mode, task_id FROM occupancies WHERE space_id = :space"),
            {"space": space_id},
        ).all()
        events = connection.execute(
            text("SELECT number FROM events WHERE space_id = :space ORDER BY number"), {"space": space_id}
        ).all()
    return Stored(
        tasks=tuple(
            StoredTask(id=row.id, key=_key(row.kind, row.target, row.delivery_mode), status=Status(row.status))
            for row in tasks
        ),
        occupancies=tuple((_key(row.kind, row.target, row.delivery_mode), row.task_id) for row in occupancies),
        events=tuple(row.number for row in events),
    )


def _key(kind: str, target: str, delivery_mode: str) -> ConflictKey:
    return ConflictKey(Kind(kind), target, DeliveryMode(delivery_mode))
