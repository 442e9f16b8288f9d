"""One frozen class for each kind of write, and the submission that carries it through a window.

Everything here is data that a web process has validated; it travels through Redis as MessagePack and is decided
upon as it is. Contract, section 1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from models.rules import ids
from models.rules.canonical import payload_sha256, sha256_hex
from models.rules.charter import CatalogRow
from models.rules.conflict import DeliveryMode
from models.rules.delivery import Delivery, WorkDecision
from models.rules.proposals import FRESH
from models.rules.spaces import Role, Visibility
from models.rules.terms import Terms
from models.rules.work import WorkAction


class ValidationPolicy(StrEnum):
    """What a submitted task must show before it can be reviewed."""

    EVIDENCE = "evidence"
    NONE = "none"


class Decision(StrEnum):
    """What a review says of submitted work."""

    ACCEPT = "accept"
    CHANGES_REQUESTED = "changes_requested"
    REJECT = "reject"


class CloseReason(StrEnum):
    """Why a leftover is closed. Seed 003, "Reasons"."""

    ALLOCATION_DUPLICATE = "allocation_duplicate"
    CANONICAL_POINTER = "canonical_pointer"
    STEWARD_CLOSE = "steward_close"


class SlotDigest(msgspec.Struct, frozen=True):
    """Keyed digests of an Idempotency-Key's scope and of the request's body under one secret (32 bytes each).

    The key itself never leaves the web process.
    """

    secret_id: str
    slot: bytes
    request: bytes


class _Intent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class CreateTask(_Intent, frozen=True, tag="create_task"):
    """A new task. ``title`` is cleaned and ``work_item_id`` normalised; neither is bound to a slot yet."""

    title: str
    body: str = ""
    work_item_id: str | None = None
    delivery_mode: DeliveryMode = DeliveryMode.RESULT
    validation_policy: ValidationPolicy = ValidationPolicy.EVIDENCE


class _TaskIntent(_Intent, frozen=True):
    task_id: int


class ClaimTask(_TaskIntent, frozen=True, tag="claim_task"):
    """Take an open task, or the one that was assigned to the actor."""


class AssignTask(_TaskIntent, frozen=True, tag="assign_task"):
    """Give a task to a member, by agent id."""

    assignee: str


class ReleaseTask(_TaskIntent, frozen=True, tag="release_task"):
    """Give a task back."""


class SubmitTask(_TaskIntent, frozen=True, tag="submit_task"):
    """Hand work in: up to 16 https references and a note."""

    evidence: tuple[str, ...] = ()
    note: str = ""


class ReviewTask(_TaskIntent, frozen=True, tag="review_task"):
    """Judge work that another member handed in."""

    decision: Decision
    note: str = ""


class WithdrawTask(_TaskIntent, frozen=True, tag="withdraw_task"):
    """Take a task off the board before it is done."""

    reason: str


class ReopenTask(_TaskIntent, frozen=True, tag="reopen_task"):
    """Put an ended task back on the board: a new occupancy of its ConflictKey."""


class HoldTask(_TaskIntent, frozen=True, tag="hold_task"):
    """Let no new task take the ConflictKey of this one."""

    reason: str


class UnholdTask(_TaskIntent, frozen=True, tag="unhold_task"):
    """End a hold."""

    reason: str


class SupersedeTask(_TaskIntent, frozen=True, tag="supersede_task"):
    """Close a leftover in favour of a surviving task. Seed 003.

    ``reason`` is as it was sent: what it means is decided in the window, so that a denial is on record too.
    """

    surviving_task: int
    reason: str


class PostNote(_TaskIntent, frozen=True, tag="post_review_note"):
    """Post a review note, on one criterion or on the whole."""

    body: str
    criterion_index: int | None = None


class WithdrawNote(_Intent, frozen=True, tag="withdraw_note"):
    """Take a note back. ``task_id`` is the task it was asked for under, None where the path names none."""

    note_id: int
    task_id: int | None = None


class SetCharter(_Intent, frozen=True, tag="set_charter"):
    """Put a valid catalog in force as the next revision."""

    catalog: tuple[CatalogRow, ...]


class SetMember(_Intent, frozen=True, tag="set_member"):
    """Give an agent, by id, a role."""

    agent: str
    role: Role


class RemoveMember(_Intent, frozen=True, tag="remove_member"):
    """Take an agent's role."""

    agent: str


class CreateSpace(_Intent, frozen=True, tag="create_space"):
    """A new space whose creator is its steward; the submission's ``space`` is its slug."""

    visibility: Visibility = Visibility.PUBLIC
    claim_ttl_seconds: int | None = None
    catalog: tuple[CatalogRow, ...] = ()


class PublishWork(_Intent, frozen=True, tag="work_create"):
    """Publish an opportunity. Seed 004."""

    terms: Terms


class CorrectWork(_Intent, frozen=True, tag="work_correct"):
    """Replace an opportunity's terms."""

    work_id: str
    terms: Terms
    expected_revision: int


class WithdrawWork(_Intent, frozen=True, tag="work_withdraw"):
    """Withdraw an opportunity and its terms."""

    work_id: str
    expected_revision: int


class ProposeWork(_Intent, frozen=True, tag="work_propose"):
    """Propose complete terms for an opportunity."""

    work_id: str
    terms: Terms
    expected_opportunity_revision: int


class ActOnProposal(_Intent, frozen=True, tag="work_action"):
    """Take an action on a proposal; the payload that goes with the action is the one that is there."""

    proposal_id: str
    work_id: str | None
    action: WorkAction
    expected_revision: int
    expected_terms_sha256: str
    terms: Terms | None = None
    delivery: Delivery | None = None
    decision: WorkDecision | None = None


class ResolveWork(_Intent, frozen=True, tag="work_intent_resolve"):
    """Learn whether an original request was applied, or prevent it for ever.

    Only digests of its key and body are here. ``original`` has one for each secret, the signing one first.
    """

    original_path: str
    original: tuple[SlotDigest, ...]
    original_intent_digest: str


LifeIntent = (
    ClaimTask | AssignTask | ReleaseTask | SubmitTask | ReviewTask | WithdrawTask | ReopenTask | HoldTask | UnholdTask
)
"""Steps in the life of one task, each a row or more of the table in :mod:`models.rules.tasks`."""

Governance = SetCharter | SetMember | RemoveMember
"""Changes of the rules by which a space's other writes are decided: each is decided in a transaction of its own."""

SpaceIntent = CreateTask | LifeIntent | SupersedeTask | PostNote | WithdrawNote | Governance | CreateSpace
"""Writes of the spaces API."""

WorkIntent = PublishWork | CorrectWork | WithdrawWork | ProposeWork | ActOnProposal | ResolveWork
"""Writes of the work exchange."""

Intent = SpaceIntent | WorkIntent
"""Every kind of write."""

REFUSED_IN_DRAIN: Final = frozenset(
    {
        CreateSpace,
        CreateTask,
        PostNote,
        ClaimTask,
        AssignTask,
        SubmitTask,
        ReviewTask,
        ReopenTask,
        PublishWork,
        CorrectWork,
        ProposeWork,
    }
)
"""Kinds that begin something new, which drain refuses; what ends or tidies goes on. Contract 4."""


def is_refused_in_drain(intent: Intent) -> bool:
    """Tell whether drain refuses an intent: by its kind, or by its action on a proposal."""
    return type(intent) in REFUSED_IN_DRAIN or (isinstance(intent, ActOnProposal) and intent.action in FRESH)


_SPACE: Final = "space:"
_ACTOR: Final = "a:"
_WORK: Final = "x:"
WORK_PARTITIONS: Final = 16
"""Partitions in which opportunities and their proposals are ordered, ``x:00`` and on."""
ACTOR_PARTITIONS: Final = 16
"""Partitions in which creations of spaces are ordered, ``a:00`` and on. Their rows are made by a migration."""


def kind_of(intent: Intent) -> str:
    """Return the intent's kind as it stands in ConflictKeys, outcomes and answers."""
    return str(type(intent).__struct_config__.tag)


class Proposal(msgspec.Struct, frozen=True):
    """One intent with the digest that orders it among those of its received_seq (64 hexadecimal digits)."""

    intent: Intent
    payload_sha256: str

    @classmethod
    def of(cls, intent: Intent) -> Proposal:
        """Return the intent with the SHA-256 of its canonical JSON."""
        return cls(intent=intent, payload_sha256=payload_sha256(msgspec.to_builtins(intent)))


def partition_of(slug: str) -> str:
    """Return the partition in which a space's writes are ordered."""
    return _SPACE + slug


def actor_partition(actor: str) -> str:
    """Return the partition in which an actor's creations of spaces are ordered (Contract 1)."""
    return f"{_ACTOR}{int(sha256_hex(actor.encode()), 16) % ACTOR_PARTITIONS:02}"


def work_partition(work_id: str) -> str:
    """Return the partition in which an opportunity and all its proposals are ordered (Contract 1)."""
    return f"{_WORK}{int(sha256_hex(work_id.encode()), 16) % WORK_PARTITIONS:02}"


def slug_of(partition: str) -> str | None:
    """Return the space of a partition, None for one that orders no space's writes."""
    return partition.removeprefix(_SPACE) if partition.startswith(_SPACE) else None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What one request appends to a partition's window: one proposal, or a batch that shares a received_seq.

    The proposals of a batch are of one kind. ``if_match`` holds the revisions that If-Match allows (task, or charter),
    None without that header.
    ``slots`` holds a digest for each configured secret, the signing one first; it is empty without an
    Idempotency-Key. ``reply_to`` names the web process that waits.
    """

    id: UUID
    partition: str
    space: str
    actor: str
    key_id: str
    batch: bool = False
    proposals: tuple[Proposal, ...]
    slots: tuple[SlotDigest, ...] = ()
    if_match: tuple[int, ...] | None = None
    reply_to: str = ""

    def in_order(self) -> list[tuple[int, Proposal]]:
        """Return (position, proposal) pairs as the window takes them: by digest, then by position."""
        return sorted(enumerate(self.proposals), key=lambda pair: (pair[1].payload_sha256, pair[0]))

    def proposal_id(self, position: int) -> UUID:
        """Return the id of the proposal at ``position``."""
        return ids.item_id(self.id, position, batch=self.batch)


class Sequenced(msgspec.Struct, frozen=True):
    """A submission and the number Redis gave it."""

    received_seq: int
    submission: Submission
