"""Resolving an uncertain request: it was applied, or it is prevented for ever; never both, never neither. Seed 004.

The key's place in SQL arbitrates: original and resolution both want it, and whoever commits first has it. A fence holds
no body and is never removed, so what was prevented stays prevented after a restart, a purge and an emptied Redis.
"""

from __future__ import annotations

import msgspec

from models.rules import work
from models.rules.code import Code
from models.rules.exchange import applied, refuse
from models.rules.intents import ResolveWork, SlotDigest
from models.rules.market import Market, Reference, Resolution, WorkSlot
from models.rules.outcomes import Answer
from models.rules.ruling import Caller
from models.rules.work import ObjectKind

OPERATION = "work-intent-resolve"
_PREVENTED = 410


def recall(market: Market, digests: tuple[SlotDigest, ...]) -> Answer | None:
    """Return what a key that was used before is answered now; None for one that is new.

    A fence is asked before anything about the object. A row without a body's digest replays whatever body comes, as it
    always did.
    """
    found = market.slot(digests)
    if found is None:
        return None
    kept, digest = found
    if kept.request is not None and kept.request != digest.request:
        return refuse(Code.IDEMPOTENCY_CONFLICT)
    if kept.reference is None:
        return refuse(Code.WORK_OPERATION_PREVENTED)
    return applied(msgspec.structs.replace(kept.reference, replay=True))


def resolve(market: Market, intent: ResolveWork, caller: Caller) -> Answer:
    """Find the original applied, or take its place with a fence."""
    used = market.counters(caller.actor)
    found = market.slot(intent.original)
    if found is not None and found[0].request is not None and found[0].request != found[1].request:
        return refuse(Code.IDEMPOTENCY_CONFLICT)
    if found is not None and found[0].request is None:
        return refuse(Code.WORK_RESOLUTION_LEGACY_REFERENCE_UNBOUND)
    if used.resolutions >= work.RESOLUTIONS_MAX or (found is None and used.fences >= work.FENCES_MAX):
        return refuse(Code.WORK_RESOLUTION_CAPACITY)
    if found is None:
        signing = intent.original[0]
        kept = WorkSlot(
            slot=signing.slot,
            secret_id=signing.secret_id,
            request=signing.request,
            actor=caller.actor,
            reference=None,
        )
        market.keep(kept)
        market.count(caller.actor, fences=1)
    else:
        kept = found[0]
    made = Resolution(
        id=work.resolution_id(caller.proposal_id),
        actor=caller.actor,
        applied=kept.reference is not None,
        original_path=intent.original_path,
        original_intent_digest=intent.original_intent_digest,
        original_slot=kept.slot,
        original_status=_PREVENTED if kept.reference is None else kept.reference.status,
        at=market.now,
    )
    market.resolve(made)
    market.count(caller.actor, resolutions=1)
    return applied(
        Reference(
            operation=OPERATION,
            kind=ObjectKind.RESOLUTION,
            object_id=made.id,
            operation_revision=1,
            receipt_id=work.receipt_id(caller.proposal_id),
            actor=caller.actor,
            status=200,
        )
    )
