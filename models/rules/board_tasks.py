"""From a board file to the tasks of a new space, checked. Contract 8 and 2.2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from models.rules.board import (
    CATALOG_REASONS,
    HANDLE_RULE,
    IMPORTER,
    SLUG_RULE,
    TITLE_REASONS,
    Board,
    BoardError,
    BoardMember,
    BoardTask,
    check_catalog,
    is_handle,
    is_slug,
)
from models.rules.charter import (
    FIRST_REVISION,
    Charter,
    CharterFaultCode,
    CompiledCharter,
    Provenance,
    bind,
    compile_charter,
    normalize_work_item_id,
)
from models.rules.conflict import ConflictKey, task_key
from models.rules.tasks import BODY_CHARACTERS_MAX, LIVE, BindView, Status, Task, is_body
from models.rules.text import TitleFault, clean_title


def tasks_of(board: Board, *, now: datetime) -> tuple[Task, ...]:
    """Check a whole board and return its tasks in the order of their ids, agents still by handle.

    A task without ``work_item_id`` and ``bind`` is bound with the board's catalog; one with a ``work_item_id``
    alone counts as bound by request. Missing times are ``now``.

    Raises:
        BoardError: the first fault.
    """
    if not is_slug(board.space):
        raise BoardError("/space", f"a slug is {SLUG_RULE}")
    check_catalog(board.catalog, at="/catalog")
    _check_members(board.members)
    for index, note in enumerate(board.notes):
        _check_handle(note.created_by, f"/notes/{index}/created_by")
    charter = compile_charter(Charter(FIRST_REVISION, board.catalog))
    tasks: dict[int, Task] = {}
    for index, given in enumerate(board.tasks):
        task = _task(given, board.space, charter, now=now, at=f"/tasks/{index}")
        if task.id in tasks:
            raise BoardError(f"/tasks/{index}/id", f"{task.id} is an earlier task's id as well")
        tasks[task.id] = task
    _check_successions(board.tasks)
    return tuple(tasks[number] for number in sorted(tasks))


def handles_of(board: Board) -> tuple[str, ...]:
    """Return every handle that a board names, each once, in order."""
    named = [member.handle for member in board.members]
    for task in board.tasks:
        named += [task.created_by or IMPORTER, *filter(None, (task.holder, task.assigned_to))]
    named += [note.created_by or IMPORTER for note in board.notes]
    return tuple(sorted(set(named)))


def with_agents(tasks: Iterable[Task], ids: Mapping[str, str]) -> list[Task]:
    """Return the tasks with agents by id; ``ids`` has one for each of the board's handles."""
    return [
        msgspec.structs.replace(
            task,
            created_by=ids[task.created_by],
            holder=None if task.holder is None else ids[task.holder],
            assigned_to=None if task.assigned_to is None else ids[task.assigned_to],
        )
        for task in tasks
    ]


def occupants(tasks: Iterable[Task]) -> frozenset[int]:
    """Return the ids of the tasks that hold their ConflictKey: of each key's live ones the oldest, then the lowest."""
    oldest: dict[ConflictKey, Task] = {}
    for task in tasks:
        if task.status in LIVE:
            known = oldest.setdefault(task.conflict_key, task)
            if (task.created_at, task.id) < (known.created_at, known.id):
                oldest[task.conflict_key] = task
    return frozenset(task.id for task in oldest.values())


def _check_members(members: Sequence[BoardMember]) -> None:
    seen: set[str] = set()
    for index, member in enumerate(members):
        pointer = f"/members/{index}/handle"
        _check_handle(member.handle, pointer)
        if member.handle in seen:
            raise BoardError(pointer, "is an earlier member's handle as well")
        seen.add(member.handle)


def _check_handle(handle: str | None, pointer: str) -> None:
    if handle is not None and not is_handle(handle):
        raise BoardError(pointer, f"a handle is {HANDLE_RULE}")


def _check_successions(tasks: Sequence[BoardTask]) -> None:
    """Check that every survivor is in the file and that following survivors comes to an end."""
    survivors = {task.id: task.superseded_by for task in tasks}
    ends: set[int] = set()
    for index, task in enumerate(tasks):
        pointer = f"/tasks/{index}/superseded_by"
        path: set[int] = set()
        current: int | None = task.id
        while current is not None and current not in ends:
            if current not in survivors:
                raise BoardError(pointer, f"task {current} is not in this file")
            if current in path:
                raise BoardError(pointer, "leads back to a task that it replaced")
            path.add(current)
            current = survivors[current]
        ends |= path


def _task(given: BoardTask, space: str, charter: CompiledCharter, *, now: datetime, at: str) -> Task:
    title = clean_title(given.title)
    if isinstance(title, TitleFault):
        raise BoardError(f"{at}/title", TITLE_REASONS[title])
    _check_fields(given, space, at=at)
    bound = _bound(given, title, charter, at=at)
    key = task_key(space, title, bound.slot, given.delivery_mode)
    repeated = given.conflict_key
    if repeated is not None and (repeated.kind, repeated.target, repeated.delivery_mode) != (
        key.kind,
        key.target,
        key.delivery_mode,
    ):
        raise BoardError(f"{at}/conflict_key", f"the task's other fields make it {key.target!r} ({key.delivery_mode})")
    return Task(
        id=given.id,
        space=space,
        title=title,
        body=given.body,
        work_item_id=bound.slot,
        bind=bound,
        delivery_mode=given.delivery_mode,
        validation_policy=given.validation_policy,
        status=given.status,
        conflict_key=key,
        created_by=IMPORTER if given.created_by is None else given.created_by,
        holder=given.holder,
        assigned_to=given.assigned_to,
        claimed_at=None if given.claimed_at is None else utc(given.claimed_at, f"{at}/claimed_at"),
        superseded_by=given.superseded_by,
        held=given.held,
        revision=given.revision,
        received_seq=given.received_seq,
        window_id=None if given.window_id is None else str(given.window_id),
        created_at=now if given.created_at is None else utc(given.created_at, f"{at}/created_at"),
        updated_at=now if given.updated_at is None else utc(given.updated_at, f"{at}/updated_at"),
    )


def _check_fields(given: BoardTask, space: str, *, at: str) -> None:
    if given.space is not None and given.space != space:
        raise BoardError(f"{at}/space", "is another than the board's")
    if not is_body(given.body):
        raise BoardError(f"{at}/body", f"has more than {BODY_CHARACTERS_MAX} characters, or holds NUL")
    for name in ("created_by", "holder", "assigned_to"):
        _check_handle(getattr(given, name), f"{at}/{name}")
    if given.superseded_by is not None and given.status is not Status.SUPERSEDED:
        raise BoardError(f"{at}/superseded_by", f"a task that is {given.status} has no survivor")


def _bound(given: BoardTask, title: str, charter: CompiledCharter, *, at: str) -> BindView:
    requested = _slot(given.work_item_id, f"{at}/work_item_id")
    if given.bind is None:
        return BindView.of(bind(title, requested, charter))
    slot = _slot(given.bind.slot, f"{at}/bind/slot")
    if (slot is None) is not (given.bind.provenance is Provenance.TITLE):
        raise BoardError(f"{at}/bind/slot", f"does not go with the provenance {given.bind.provenance}")
    if given.work_item_id is not None and requested != slot:
        raise BoardError(f"{at}/work_item_id", "is another than the slot in bind")
    return BindView(
        provenance=given.bind.provenance.value,
        slot=slot,
        score=given.bind.score,
        runner_up=given.bind.runner_up,
        charter_revision=given.bind.charter_revision,
    )


def _slot(raw: str | None, pointer: str) -> str | None:
    if raw is None:
        return None
    slot = normalize_work_item_id(raw)
    if slot is None:
        raise BoardError(pointer, CATALOG_REASONS[CharterFaultCode.WORK_ITEM_ID_INVALID])
    return slot


def utc(moment: datetime, pointer: str) -> datetime:
    """Return a moment of the file in UTC.

    Raises:
        BoardError: UTC has no such date.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise BoardError(pointer, "lies outside the years 1 to 9999 in UTC") from None
