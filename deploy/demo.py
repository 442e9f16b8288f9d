"""The demo board and its agents: something to race on in the first minute."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy import Connection, Engine, text

from deploy.folders import write_private
from models.rules.board import decode_board
from models.rules.spaces import Role
from models.store.agents import ensure_agents, issue_keys
from models.store.boards import import_board
from models.store.spaces import set_members

SPACE: Final = "multi-agent-research"
AGENTS: Final = ("agent-1", "agent-2", "agent-3")
STEWARD: Final = "steward"


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to try: keys by handle, and a title that no task of the space has yet."""

    space: str
    keys: dict[str, str]
    winner: str
    loser: str
    title: str


def board_file() -> bytes:
    """Return the demo board in the board file's format."""
    return (files("deploy") / "boards" / f"{SPACE}.json").read_bytes()


def load_demo(engine: Engine, kept: Path) -> Demo:
    """Import the board and add its agents where they are missing; ``kept`` is where their keys are kept (0600)."""
    with engine.begin() as connection:
        space = _space(connection)
        if space is None:
            import_board(connection, decode_board(board_file()))
            space = _space(connection)
            assert space is not None
            agents = ensure_agents(connection, (*AGENTS, STEWARD))
            roles = {agents[handle].id: Role.MEMBER for handle in AGENTS} | {agents[STEWARD].id: Role.STEWARD}
            set_members(connection, space[0], roles)
        keys = _known(connection, kept)
        fresh = keys is None
        if keys is None:
            ensure_agents(connection, (*AGENTS, STEWARD))
            keys = {handle: issued.key for handle, issued in issue_keys(connection, (*AGENTS, STEWARD)).items()}
    if fresh:
        # After the commit: a key that is shown is a key that works. A crash in between leaves keys nobody has.
        write_private(kept, msgspec.json.format(msgspec.json.encode(keys)).decode() + "\n")
    return Demo(
        space=SPACE,
        keys=keys,
        winner=AGENTS[0],
        loser=AGENTS[1],
        title=f"Summarise the findings, round {space[1]}",
    )


def _space(connection: Connection) -> tuple[int, int] | None:
    """Return the space's id and the number of its next task."""
    row = connection.execute(text("SELECT id, next_task FROM spaces WHERE slug = :slug"), {"slug": SPACE}).one_or_none()
    return None if row is None else (row.id, row.next_task)


def _known(connection: Connection, kept: Path) -> dict[str, str] | None:
    """Return the keys of an earlier run if this database still takes them all."""
    try:
        keys = msgspec.json.decode(kept.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    public = [key.split("_")[1] for key in keys.values()]
    alive = connection.execute(
        text("SELECT count(*) FROM keys WHERE id = ANY(:ids) AND revoked_at IS NULL"), {"ids": public}
    ).scalar_one()
    return keys if alive == len(keys) == len(AGENTS) + 1 else None
