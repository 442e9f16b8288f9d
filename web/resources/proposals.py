"""What became of a proposal. Contract 1.3, 2.7."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

import falcon.asgi
import msgspec

from models.rules import ids
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.intents import slug_of
from models.rules.outcomes import Outcome
from models.rules.spaces import Role
from models.store import reads
from models.store.reads import Principal, StoredProposal
from models.window.front import Front
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.problems import Refusal
from web.sql import Sql
from web.transport import bearer


class PendingProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that waits for its window; ``space`` is null for a space that is to be created."""

    proposal_id: str
    state: Literal["pending"] = "pending"
    space: str | None
    retry_after_ms: int = 1000


class DecidedItem(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one proposal. ``answer`` and ``payload`` are for its author and the stewards."""

    proposal_id: str
    kind: str
    status: int
    code: Code | None
    conflict_key: ConflictKey | None
    task_id: int | None
    replay_of: str | msgspec.UnsetType = msgspec.UNSET
    answer: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class DecidedProposal(DecidedItem, frozen=True, kw_only=True):
    """One proposal, and where and when it was decided."""

    state: Literal["decided"] = "decided"
    space: str | None
    window_id: str
    received_seq: int
    actor: str
    decided_at: datetime


class DecidedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch: every proposal of it, in request order, and where and when it was decided."""

    proposal_id: str
    results: tuple[DecidedItem, ...]
    state: Literal["decided"] = "decided"
    space: str | None
    window_id: str
    received_seq: int
    actor: str
    decided_at: datetime


class Proposal:
    """``GET /v0/proposals/{proposal_id}``: pending, or decided with state, code, key and task.

    Whoever may read the space may read these; the whole answer and a loser's payload are for its author and the
    space's stewards.
    """

    operations: ClassVar = {
        "on_get": Operation(
            id="getProposal",
            summary="What became of a proposal: pending, or decided with state, code, key and task",
            answers={200: (PendingProposal, DecidedProposal, DecidedBatch)},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.PROPOSAL_UNKNOWN}),
        )
    }

    def __init__(self, directory: Directory, sql: Sql, front: Front) -> None:
        self._directory = directory
        self._sql = sql
        self._front = front

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, proposal_id: str) -> None:
        """Answer what is known of the proposal."""
        principal = await self._directory.authenticate_optional(bearer(req))
        try:
            append_id, position = ids.split(ids.parse_proposal(proposal_id))
        except ids.MalformedIdError:
            raise Refusal(Code.PROPOSAL_UNKNOWN) from None
        async with self._sql.connection() as connection:
            stored = await reads.proposal(connection, append_id)
        body = (
            await self._pending(append_id, position, proposal_id, principal)
            if stored is None
            else await self._decided(stored, append_id, position, principal)
        )
        answer(resp, body)

    async def _pending(
        self, append_id: UUID, position: int | None, proposal_id: str, principal: Principal | None
    ) -> PendingProposal | DecidedProposal | DecidedBatch:
        partition = (await self._front.open_partitions([append_id])).get(append_id)
        if partition is None:
            # It may have been decided between the two looks.
            async with self._sql.connection() as connection:
                stored = await reads.proposal(connection, append_id)
            if stored is None:
                raise Refusal(Code.PROPOSAL_UNKNOWN)
            return await self._decided(stored, append_id, position, principal)
        slug = slug_of(partition)
        if slug is not None:
            await self._readable(slug, principal)
        elif principal is None:
            raise Refusal(Code.PROPOSAL_UNKNOWN)
        return PendingProposal(proposal_id=proposal_id, space=slug)

    async def _decided(
        self, stored: StoredProposal, append_id: UUID, position: int | None, principal: Principal | None
    ) -> DecidedProposal | DecidedBatch:
        slug = slug_of(stored.partition)
        role = None if slug is None else await self._readable(slug, principal)
        chosen = [one for one in stored.outcomes if position is None or one.position == position]
        batch = stored.outcomes[0].batch
        if not chosen or (batch is False and position is not None):
            raise Refusal(Code.PROPOSAL_UNKNOWN)
        own = principal is not None and principal.agent_id == chosen[0].actor
        if slug is None and not own:
            # A space's creation: whoever may read the space finds it there.
            raise Refusal(Code.PROPOSAL_UNKNOWN)
        trusted = own or role is Role.STEWARD
        items = tuple(_item(one, append_id, trusted=trusted) for one in chosen)
        common: dict[str, Any] = {
            "space": slug,
            "window_id": str(stored.window_id),
            "received_seq": chosen[0].received_seq,
            "actor": chosen[0].actor,
            "decided_at": stored.decided_at,
        }
        if position is None and batch:
            return DecidedBatch(proposal_id=ids.format_proposal(append_id), results=items, **common)
        return DecidedProposal(**msgspec.structs.asdict(items[0]), **common)

    async def _readable(self, slug: str, principal: Principal | None) -> Role | None:
        """Return the reader's role; a space that is not readable makes its proposals unknown."""
        try:
            space = await self._directory.space(slug, principal)
        except Refusal as refusal:
            if refusal.problem.code is Code.SPACE_NOT_FOUND:
                raise Refusal(Code.PROPOSAL_UNKNOWN) from None
            raise
        return None if principal is None else await self._directory.role(space, principal)


def _item(outcome: Outcome, append_id: UUID, *, trusted: bool) -> DecidedItem:
    answer = outcome.answer
    shown = trusted and outcome.payload is not None
    return DecidedItem(
        proposal_id=ids.format_proposal(ids.item_id(append_id, outcome.position, batch=outcome.batch)),
        kind=outcome.kind,
        status=answer.status,
        code=answer.code,
        conflict_key=outcome.key,
        task_id=answer.task_id,
        replay_of=msgspec.UNSET if answer.replay_of is None else ids.format_proposal(answer.replay_of),
        answer=msgspec.Raw(answer.body.encode()) if trusted else msgspec.UNSET,
        payload=msgspec.Raw((outcome.payload or "").encode()) if shown else msgspec.UNSET,
    )
