"""What a mutation of the exchange is answered: the object as it reads now, the first receipt, and its MAC. Seed 004."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from models.rules.canonical import keyed_digest
from models.rules.market import Reference, Resolution
from models.rules.work import ObjectKind, OpportunityView, ProposalView
from models.settings import Settings
from models.store import work_reads

PURPOSE: Final = "exchange/receipt"


class Receipt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Proof that this service carried out an operation: who did what to which object."""

    receipt_id: str
    operation: str
    kind: ObjectKind
    object_id: str
    actor_agent_id: str
    mac: str


class _Mutation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    schema_version: Literal["concresca.work_mutation.v1"] = "concresca.work_mutation.v1"
    operation_revision: int
    receipt: Receipt
    idempotent_replay: bool
    idempotency_key_exposed: Literal[False] = False


class OpportunityMutation(_Mutation, frozen=True, kw_only=True, rename="camel"):
    """What an operation made of an opportunity."""

    opportunity: OpportunityView


class ProposalMutation(_Mutation, frozen=True, kw_only=True, rename="camel"):
    """What an operation made of a proposal."""

    proposal: ProposalView


class ResolutionView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether an original request was applied, or is prevented for ever; exactly these fields."""

    resolution_id: str
    outcome: Literal["applied", "prevented"]
    actor_agent_id: str
    workspace_id: str
    project_id: str
    original_method: Literal["POST"] = "POST"
    original_path: str
    original_intent_digest: str
    original_status: int
    original_result: msgspec.Raw | None


class ResolutionMutation(_Mutation, frozen=True, kw_only=True, rename="camel"):
    """What a resolution found or did."""

    resolution: ResolutionView


Mutation = OpportunityMutation | ProposalMutation | ResolutionMutation


class Receipts:
    """Makes and verifies the MAC of receipts, and the envelopes that bear them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def receipt(self, reference: Reference) -> Receipt:
        """Return the receipt of an operation, signed by the first secret."""
        unsigned = Receipt(
            receipt_id=reference.receipt_id,
            operation=reference.operation,
            kind=reference.kind,
            object_id=reference.object_id,
            actor_agent_id=reference.actor,
            mac="",
        )
        return msgspec.structs.replace(unsigned, mac=self._macs(unsigned)[0])

    def verify(self, receipt: Receipt) -> bool:
        """Tell whether one of the secrets has signed a receipt."""
        return receipt.mac in self._macs(receipt)

    def _macs(self, receipt: Receipt) -> list[str]:
        settings = self._settings
        parts = (
            settings.canonical_origin,
            settings.workspace_id,
            settings.project_id,
            receipt.receipt_id,
            receipt.operation,
            receipt.kind.value,
            receipt.object_id,
            receipt.actor_agent_id,
        )
        return [keyed_digest(secret.secret, PURPOSE, *parts).hex() for secret in settings.secret_keys]

    async def envelope(self, connection: AsyncConnection[TupleRow], reference: Reference) -> Mutation:
        """Return an operation's envelope: the object as it reads now, whatever came after the operation."""
        common: dict[str, Any] = {
            "operation_revision": reference.operation_revision,
            "receipt": self.receipt(reference),
            "idempotent_replay": reference.replay,
        }
        match reference.kind:
            case ObjectKind.OPPORTUNITY:
                opportunity = await work_reads.opportunity(connection, reference.object_id)
                assert opportunity is not None
                return OpportunityMutation(opportunity=opportunity, **common)
            case ObjectKind.PROPOSAL:
                proposal = await work_reads.proposal(connection, reference.object_id)
                assert proposal is not None
                return ProposalMutation(proposal=proposal, **common)
            case ObjectKind.RESOLUTION:
                kept = await work_reads.resolution(connection, reference.object_id)
                assert kept is not None
                return ResolutionMutation(resolution=await self._resolved(connection, kept), **common)

    async def _resolved(self, connection: AsyncConnection[TupleRow], kept: Resolution) -> ResolutionView:
        original: msgspec.Raw | None = None
        if kept.applied:
            slot = (await work_reads.slots(connection, [kept.original_slot]))[kept.original_slot]
            assert slot.reference is not None
            original = msgspec.Raw(msgspec.json.encode(await self.envelope(connection, slot.reference)))
        return ResolutionView(
            resolution_id=kept.id,
            outcome="applied" if kept.applied else "prevented",
            actor_agent_id=kept.actor,
            workspace_id=self._settings.workspace_id,
            project_id=self._settings.project_id,
            original_path=kept.original_path,
            original_intent_digest=kept.original_intent_digest,
            original_status=kept.original_status,
            original_result=original,
        )
