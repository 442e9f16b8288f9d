"""Charters, members and new spaces: the rules by which everything else in a space is decided. Contract 2.1, 2.7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from models.rules import outcomes
from models.rules.canonical import canonical_json, sha256_hex
from models.rules.charter import FIRST_REVISION, CatalogRow, Charter, bind, compile_charter
from models.rules.codes import Code
from models.rules.conflict import task_key
from models.rules.desk import Desk
from models.rules.intents import CreateSpace, RemoveMember, SetCharter, SetMember
from models.rules.outcomes import Answer
from models.rules.plan import MemberRow, NewSpace
from models.rules.ruling import Caller, not_matched, not_steward
from models.rules.snapshot import LiveTask
from models.rules.spaces import CharterChange, MemberView, Rebind, Role, SpaceView


class Creation(msgspec.Struct, frozen=True):
    """The answer to a space's creation, and the space if there is one."""

    answer: Answer
    space: NewSpace | None = None


class NewCatalog:
    """A catalog on its way into force. It remembers what it has bound, so most of that can be done beforehand.

    Binding a board's titles takes as long as the board is large: the worker does it before its transaction begins,
    and inside only those titles are left that came in between.
    """

    def __init__(self, catalog: tuple[CatalogRow, ...]) -> None:
        self._charter = compile_charter(Charter(revision=FIRST_REVISION, rows=catalog))
        self._slots: dict[str, str | None] = {}

    def slot(self, title: str) -> str | None:
        """Return the slot of a title that asked for none."""
        if title not in self._slots:
            self._slots[title] = bind(title, None, self._charter).slot
        return self._slots[title]

    def rebinds(self, tasks: Iterable[LiveTask], slug: str) -> tuple[Rebind, ...]:
        """Return the tasks that would have another ConflictKey under this catalog."""
        found = []
        for task in tasks:
            slot = self.slot(task.title) if task.requested is None else task.requested
            key = task_key(slug, task.title, slot, task.conflict_key.delivery_mode)
            if key != task.conflict_key:
                found.append(Rebind(task=task.id, old=task.conflict_key, new=key))
        return tuple(found)


def set_charter(desk: Desk, intent: SetCharter, catalog: NewCatalog, caller: Caller) -> Answer:
    """Put a catalog in force; tasks that exist keep the keys and the revisions they were bound with."""
    refusal = not_steward(caller) or not_matched(desk.space.charter.revision, caller)
    if refusal is not None:
        return refusal
    revision = desk.space.charter.revision + 1
    desk.catalog = intent.catalog
    told = outcomes.encode(charter_event(revision, intent.catalog))
    desk.tell("charter_changed", actor=caller.actor, task_id=None, data=told)
    rebinds = catalog.rebinds(desk.board.live, desk.space.slug)
    return outcomes.done(CharterChange(space=desk.space.slug, revision=revision, dry_run=False, rebinds=rebinds))


def set_member(desk: Desk, intent: SetMember, caller: Caller) -> Answer:
    """Give an agent a role; the last steward stays one."""
    refusal = not_steward(caller)
    if refusal is not None:
        return refusal
    return _member(desk, intent.agent, intent.role, caller)


def remove_member(desk: Desk, intent: RemoveMember, caller: Caller) -> Answer:
    """Take an agent's role: a steward may, and everyone may leave."""
    refusal = None if intent.agent == caller.actor else not_steward(caller)
    if refusal is not None:
        return refusal
    return _member(desk, intent.agent, None, caller)


def _member(desk: Desk, agent: str, role: Role | None, caller: Caller) -> Answer:
    found = desk.board.agents.get(agent)
    if found is None:
        return caller.refused(Code.AGENT_NOT_FOUND)
    if found.role is None and role is None:
        return caller.refused(Code.MEMBER_NOT_FOUND)
    if found.role is Role.STEWARD and role is not Role.STEWARD and desk.board.stewards == {agent}:
        return caller.refused(Code.LAST_STEWARD)
    if role is not found.role:
        desk.members.append(MemberRow(agent=agent, role=role))
        event = "member_removed" if role is None else "member_set"
        desk.tell(event, actor=caller.actor, task_id=None, data=outcomes.encode(member_event(agent, role)))
    return outcomes.done(MemberView(agent_id=agent, handle=found.handle, role=role, since=found.since or desk.now))


def member_event(agent: str, role: Role | None) -> dict[str, str]:
    """Return what an event tells of an agent's role."""
    return {"agent": agent} if role is None else {"agent": agent, "role": role.value}


def charter_event(revision: int, catalog: Sequence[CatalogRow]) -> dict[str, object]:
    """Return what an event tells of a catalog: enough to know it again, not the whole of it."""
    digest = sha256_hex(canonical_json([msgspec.to_builtins(row) for row in catalog]))
    return {"revision": revision, "rows": len(catalog), "catalog_sha256": digest}


def new_space(intent: CreateSpace, slug: str, *, steward: str | None) -> NewSpace:
    """Return a space as it begins, with what its first event tells of it."""
    told = {
        "slug": slug,
        "visibility": intent.visibility,
        "claim_ttl_seconds": intent.claim_ttl_seconds,
        "steward": steward,
        "charter": charter_event(FIRST_REVISION, intent.catalog),
    }
    return NewSpace(
        slug=slug,
        visibility=intent.visibility,
        claim_ttl_seconds=intent.claim_ttl_seconds,
        catalog=intent.catalog,
        steward=steward,
        event=outcomes.encode(told),
    )


def create_space(intent: CreateSpace, slug: str, *, taken: bool, now: datetime, caller: Caller) -> Creation:
    """Make a space whose steward is the caller, unless the slug is taken."""
    if taken:
        return Creation(caller.refused(Code.SLUG_TAKEN, pointer="/slug"))
    view = SpaceView(
        slug=slug,
        visibility=intent.visibility,
        claim_ttl_seconds=intent.claim_ttl_seconds,
        charter_revision=FIRST_REVISION,
        created_at=now,
    )
    return Creation(Answer(status=201, body=outcomes.encode(view)), new_space(intent, slug, steward=caller.actor))
