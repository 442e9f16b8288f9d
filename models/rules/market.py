"""The work exchange while a window is decided: what is stored, and what the window has made of it so far. Seed 004.

The only mutable state of the exchange's decisions; everything that happens to an object is told by an event in the same
place. Contract 1.1 and 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from models.rules.intents import SlotDigest
from models.rules.work import ObjectKind, Opportunity, Proposal, WorkEvent


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a success: which operation on which object, and its receipt; never a payload.

    ``replay`` marks an answer that an Idempotency-Key brought again.
    """

    operation: str
    kind: ObjectKind
    object_id: str
    operation_revision: int
    receipt_id: str
    actor: str
    status: int
    replay: bool = False


class WorkSlot(msgspec.Struct, frozen=True, kw_only=True):
    """An Idempotency-Key's place for ever: an operation that was applied, or a fence (no reference).

    ``request`` is None in rows from before bodies were bound to them.
    """

    slot: bytes
    secret_id: str
    request: bytes | None
    actor: str
    reference: Reference | None


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor has used up for good."""

    opportunities: int = 0
    proposals: int = 0
    fences: int = 0
    resolutions: int = 0


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an agent may publish, propose or be proposed to now."""

    active: bool
    listed: bool


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """A resolution as it is stored: the original by its slot, never by its body."""

    id: str
    actor: str
    applied: bool
    original_path: str
    original_intent_digest: str
    original_slot: bytes
    original_status: int
    at: datetime


class ExchangePart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the exchange that a window's intents name, locked."""

    opportunities: Mapping[str, Opportunity] = msgspec.field(default_factory=dict)
    proposals: Mapping[str, Proposal] = msgspec.field(default_factory=dict)
    slots: Mapping[bytes, WorkSlot] = msgspec.field(default_factory=dict)
    counters: Mapping[str, Counters] = msgspec.field(default_factory=dict)
    participants: Mapping[str, Participant] = msgspec.field(default_factory=dict)


class ObjectEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event and the object it belongs to."""

    object_id: str
    event: WorkEvent


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a window writes of the exchange: objects in their final state, and what is appended.

    ``before`` has the stored revision of each object that is not new.
    """

    opportunities: tuple[Opportunity, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    before: Mapping[str, int] = msgspec.field(default_factory=dict)
    events: tuple[ObjectEvent, ...] = ()
    slots: tuple[WorkSlot, ...] = ()
    resolutions: tuple[Resolution, ...] = ()
    counters: Mapping[str, Counters] = msgspec.field(default_factory=dict)


class Market:
    """The exchange's state as the next intent finds it."""

    def __init__(self, part: ExchangePart, *, now: datetime) -> None:
        self.now = now
        self._part = part
        self._opportunities = dict(part.opportunities)
        self._proposals = dict(part.proposals)
        self._slots = dict(part.slots)
        self._counters = dict(part.counters)
        self._touched: dict[str, None] = {}
        self._events: list[ObjectEvent] = []
        self._new_slots: list[WorkSlot] = []
        self._resolutions: list[Resolution] = []

    def opportunity(self, work_id: str) -> Opportunity | None:
        """Return an opportunity that the window names."""
        return self._opportunities.get(work_id)

    def proposal(self, proposal_id: str) -> Proposal | None:
        """Return a proposal that the window names."""
        return self._proposals.get(proposal_id)

    def slot(self, digests: tuple[SlotDigest, ...]) -> tuple[WorkSlot, SlotDigest] | None:
        """Return what is kept under a key, with the digest that found it."""
        for digest in digests:
            found = self._slots.get(digest.slot)
            if found is not None:
                return found, digest
        return None

    def counters(self, actor: str) -> Counters:
        """Return what an actor has used up."""
        return self._counters.get(actor, Counters())

    def participant(self, agent: str) -> Participant:
        """Return what an agent may do; one that is not known may do nothing."""
        return self._part.participants.get(agent, Participant(active=False, listed=False))

    def count(self, actor: str, **more: int) -> None:
        """Raise counters of an actor."""
        known = self.counters(actor)
        raised = {name: getattr(known, name) + number for name, number in more.items()}
        self._counters[actor] = msgspec.structs.replace(known, **raised)

    def put(self, one: Opportunity | Proposal, event: WorkEvent | None) -> None:
        """Put an object's next state in place, with the event that tells of it (None: a count alone has changed)."""
        if isinstance(one, Opportunity):
            self._opportunities[one.id] = one
        else:
            self._proposals[one.id] = one
        self._touched[one.id] = None
        if event is not None:
            self._events.append(ObjectEvent(object_id=one.id, event=event))

    def keep(self, slot: WorkSlot) -> None:
        """Take a key's place for ever."""
        self._slots[slot.slot] = slot
        self._new_slots.append(slot)

    def resolve(self, resolution: Resolution) -> None:
        """Keep a resolution."""
        self._resolutions.append(resolution)

    def plan(self) -> WorkPlan:
        """Return what is to be written."""
        stored: dict[str, Opportunity | Proposal] = {**self._part.opportunities, **self._part.proposals}
        return WorkPlan(
            opportunities=tuple(self._opportunities[name] for name in self._touched if name in self._opportunities),
            proposals=tuple(self._proposals[name] for name in self._touched if name in self._proposals),
            before={name: stored[name].revision for name in self._touched if name in stored},
            events=tuple(self._events),
            slots=tuple(self._new_slots),
            resolutions=tuple(self._resolutions),
            counters={
                actor: counters
                for actor, counters in self._counters.items()
                if counters != self._part.counters.get(actor, Counters())
            },
        )
