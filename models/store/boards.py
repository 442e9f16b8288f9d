"""Board files in and out of SQL, a fixed number of statements whatever their size. Contract 8 and 2.2."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from sqlalchemy import Connection, text

from models.rules.board import Board, BoardMember, BoardNote, BoardTask, encode_board
from models.rules.board_plan import import_plan
from models.rules.board_tasks import handles_of, tasks_of, with_agents
from models.rules.charter import CatalogRow
from models.rules.spaces import Visibility
from models.store.agents import UnknownError, ensure_agents
from models.store.apply import import_rows
from models.store.spaces import create_space, set_members


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an import made."""

    space: str
    members: int
    tasks: int
    notes: int
    next_task: int


_COUNT: Final = text(
    "UPDATE spaces SET next_task = :next_task, next_note = :next_note, next_event = :next_event WHERE id = :space"
)

# One statement, so all of it is of one moment, whatever is written meanwhile. Sorted by code point in every database.
_EXPORT: Final = text("""
SELECT s.visibility, s.claim_ttl_seconds, c.catalog::text AS catalog,
  (SELECT coalesce(json_agg(json_build_object('handle', a.handle, 'role', m.role) ORDER BY a.handle COLLATE "C"), '[]')
   FROM members m JOIN agents a ON a.id = m.agent_id WHERE m.space_id = s.id)::text AS members,
  (SELECT coalesce(json_agg(json_build_object(
     'id', t.id, 'space', s.slug, 'title', t.title, 'body', t.body, 'work_item_id', t.work_item_id, 'bind', t.bind,
     'delivery_mode', t.delivery_mode, 'validation_policy', t.validation_policy, 'status', t.status, 'conflict_key',
     json_build_object('kind', t.kind, 'target', t.target, 'delivery_mode', t.delivery_mode),
     'created_by', creator.handle, 'holder', holder.handle, 'assigned_to', assignee.handle,
     'claimed_at', t.claimed_at, 'superseded_by', t.superseded_by, 'held', t.held, 'revision', t.revision,
     'received_seq', t.received_seq, 'window_id', t.window_id, 'created_at', t.created_at,
     'updated_at', t.updated_at) ORDER BY t.id), '[]')
   FROM tasks t JOIN agents creator ON creator.id = t.created_by LEFT JOIN agents holder ON holder.id = t.holder
   LEFT JOIN agents assignee ON assignee.id = t.assigned_to WHERE t.space_id = s.id)::text AS tasks,
  (SELECT coalesce(json_agg(json_build_object(
     'id', n.id, 'task_id', n.task_id, 'kind', n.kind, 'body', n.body, 'criterion_index', n.criterion_index,
     'status', n.status, 'created_by', author.handle, 'received_seq', n.received_seq, 'window_id', n.window_id,
     'created_at', n.created_at, 'updated_at', n.updated_at) ORDER BY n.id), '[]')
   FROM notes n JOIN agents author ON author.id = n.created_by WHERE n.space_id = s.id)::text AS notes
FROM spaces s JOIN charters c ON c.space_id = s.id AND c.revision = s.charter_revision WHERE s.slug = :slug
""")


def import_board(connection: Connection, board: Board) -> Imported:
    """Make a space of a board, with the agents it names where they are missing (active and listed).

    All of it is written in the caller's transaction. Nobody else can write to the space meanwhile: its partition's
    row is this transaction's own until it commits.

    Raises:
        BoardError: the board's first fault; nothing was written.
        TakenError: there is a space of that name.
    """
    now: datetime = connection.execute(text("SELECT dibs_now()")).scalar_one()
    tasks = tasks_of(board, now=now)
    space_id = create_space(
        connection,
        board.space,
        visibility=board.visibility,
        catalog=board.catalog,
        claim_ttl_seconds=None if board.claim_ttl_seconds is msgspec.UNSET else board.claim_ttl_seconds,
    )
    agents = ensure_agents(connection, handles_of(board))
    ids = {handle: agent.id for handle, agent in agents.items()}
    set_members(connection, space_id, {ids[member.handle]: member.role for member in board.members})
    known = with_agents(tasks, ids)
    # The space's own event and one for each member were told already.
    plan = import_plan(board, known, ids, now=now, first_event=2 + len(board.members))
    import_rows(connection, plan, space_id=space_id, now=now)
    next_task = max((task.id for task in known), default=0) + 1
    connection.execute(
        _COUNT,
        {
            "space": space_id,
            "next_task": next_task,
            "next_note": max((row.note.id for row in plan.notes), default=0) + 1,
            "next_event": 2 + len(board.members) + len(plan.events),
        },
    )
    return Imported(
        space=board.space, members=len(board.members), tasks=len(known), notes=len(plan.notes), next_task=next_task
    )


def export_board(connection: Connection, slug: str) -> bytes:
    """Return a space as a board file; importing it and exporting again gives the same bytes.

    The connection's time zone is UTC, as :mod:`models.store.database` sets it.

    Raises:
        UnknownError: there is no such space.
    """
    row = connection.execute(_EXPORT, {"slug": slug}).one_or_none()
    if row is None:
        raise UnknownError(f"there is no space {slug!r}")
    return encode_board(
        Board(
            space=slug,
            visibility=Visibility(row.visibility),
            claim_ttl_seconds=msgspec.UNSET if row.claim_ttl_seconds is None else row.claim_ttl_seconds,
            catalog=msgspec.json.decode(row.catalog, type=tuple[CatalogRow, ...]),
            members=msgspec.json.decode(row.members, type=tuple[BoardMember, ...]),
            tasks=msgspec.json.decode(row.tasks, type=tuple[BoardTask, ...]),
            notes=msgspec.json.decode(row.notes, type=tuple[BoardNote, ...]),
        )
    )
