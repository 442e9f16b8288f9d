"""One frozen class for each kind of write, and the submission that carries it through a window.

Everything here is data that a web process has validated; it travels through Redis as MessagePack and is decided
upon as it is. Contract, section 1.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec

from models.rules import ids
from models.rules.canonical import payload_sha256
from models.rules.conflict import DeliveryMode


class ValidationPolicy(StrEnum):
    """What a submitted task must show before it can be reviewed."""

    EVIDENCE = "evidence"
    NONE = "none"


class CreateTask(msgspec.Struct, frozen=True, tag_field="kind", tag="create_task"):
    """A new task. ``title`` is cleaned and ``work_item_id`` normalised; neither is bound to a slot yet."""

    title: str
    body: str = ""
    work_item_id: str | None = None
    delivery_mode: DeliveryMode = DeliveryMode.RESULT
    validation_policy: ValidationPolicy = ValidationPolicy.EVIDENCE


_SPACE = "space:"

Intent = CreateTask
"""Every kind of write; becomes a union as kinds are added."""


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


class SlotDigest(msgspec.Struct, frozen=True):
    """Keyed digests of an Idempotency-Key's scope and of the request's body under one secret (32 bytes each).

    The key itself never leaves the web process.
    """

    secret_id: str
    slot: bytes
    request: bytes


def partition_of(slug: str) -> str:
    """Return the partition in which a space's writes are ordered."""
    return _SPACE + slug


def slug_of(partition: str) -> str:
    """Return the space of a partition."""
    return partition.removeprefix(_SPACE)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What one request appends to a partition's window: one proposal, or a batch that shares a received_seq.

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
