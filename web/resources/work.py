"""The work exchange's resources. Seed 004; Contract 3."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Literal, TypeVar

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import (
    ActOnProposal,
    CorrectWork,
    ProposeWork,
    PublishWork,
    ResolveWork,
    WithdrawWork,
    WorkIntent,
)
from models.rules.work import OpportunityView, ProposalView
from models.settings import Settings
from models.store import work_reads
from models.store.reads import Connection
from web import work_inputs as inputs
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation, Query
from web.paging import Cursors, integer_of
from web.problems import Refusal
from web.sql import Sql
from web.transport import bearer
from web.work_answers import OpportunityMutation, ProposalMutation, ResolutionMutation
from web.work_inputs import PROPOSAL_ID, WORK_ID
from web.work_writes import WorkWrites

View = TypeVar("View", OpportunityView, ProposalView)

LIMIT_MAX: Final = 50
_PAGE_QUERY: Final[Mapping[str, Query]] = MappingProxyType(
    {
        "limit": Query(
            {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_MAX}, "Items of a page."
        ),
        "after": Query(
            {"type": "string", "maxLength": 2048}, "nextCursor of the page before, exactly as it was given."
        ),
    }
)
_AUTHORITY: Final = frozenset(
    {Code.AGENT_BEARER_REQUIRED, Code.ACTOR_NOT_ACTIVE, Code.IDEMPOTENCY_CONFLICT, Code.WORK_OPERATION_PREVENTED}
)
_SCHEMA: Final = frozenset({Code.SCHEMA_VERSION_UNKNOWN, Code.WORK_PAYLOAD_INVALID})
_TERMS: Final = _SCHEMA | {Code.WORK_TERMS_INVALID, Code.PUBLICATION_CONSENT_REQUIRED}
_OBJECT: Final = frozenset({Code.PARTICIPANT_REQUIRED, Code.WORK_REVISION_STALE, Code.WORK_STATE_CONFLICT})


class OpportunityPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of opportunities by id; it is no snapshot and no change feed."""

    schema_version: Literal["concresca.work_page.v1"] = "concresca.work_page.v1"
    kind: Literal["work_opportunity"] = "work_opportunity"
    items: tuple[OpportunityView, ...]
    count: int
    has_more: bool
    next_cursor: str | None
    order: Literal["id_ascending"] = "id_ascending"
    cursor_purpose: Literal["continuation_only"] = "continuation_only"


class ProposalPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A page of proposals by id; it is no snapshot and no change feed."""

    schema_version: Literal["concresca.work_page.v1"] = "concresca.work_page.v1"
    kind: Literal["work_proposal"] = "work_proposal"
    items: tuple[ProposalView, ...]
    count: int
    has_more: bool
    next_cursor: str | None
    order: Literal["id_ascending"] = "id_ascending"
    cursor_purpose: Literal["continuation_only"] = "continuation_only"


def _write(
    kind: type[WorkIntent], name: str, summary: str, body: object, result: object, codes: frozenset[Code]
) -> Operation:
    status = 201 if kind in (PublishWork, ProposeWork) else 200
    return Operation(
        id=name, summary=summary, answers={status: result}, codes=codes | _AUTHORITY, body=body, intent=kind
    )


class WorkReads:
    """What every read of the exchange does first: who asks, and what is due to be purged."""

    def __init__(self, directory: Directory, sql: Sql, cursors: Cursors, settings: Settings) -> None:
        self._directory = directory
        self._sql = sql
        self._cursors = cursors
        self._settings = settings

    async def read(self, req: falcon.asgi.Request, of: Callable[[Connection], Awaitable[View | None]]) -> View | None:
        """Return one object as it reads now. A key that was sent must be good, though none is needed."""
        await self._directory.authenticate_optional(bearer(req))
        async with self._sql.connection() as connection:
            await work_reads.purge(connection)
            return await of(connection)

    async def page(
        self,
        req: falcon.asgi.Request,
        kind: str,
        rows: Callable[[Connection, str | None, int], Awaitable[list[View]]],
        position: Callable[[View], str],
    ) -> tuple[tuple[View, ...], str | None]:
        """Return the items of a page and the cursor of the next one."""
        await self._directory.authenticate_optional(bearer(req))
        query = req.context.query
        limit = integer_of(query, "limit", 1, LIMIT_MAX, LIMIT_MAX)
        settings = self._settings
        scope = (kind, settings.canonical_origin, settings.workspace_id, settings.project_id)
        after = self._cursors.read(query["after"], *scope) if "after" in query else None
        async with self._sql.connection() as connection:
            await work_reads.purge(connection)
            found = await rows(connection, after, limit + 1)
        items = tuple(found[:limit])
        return items, self._cursors.write(position(items[-1]), *scope) if len(found) > limit else None


class Work:
    """``/api/matm/commons/work``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listWork",
            summary="Opportunities by id",
            answers={200: OpportunityPage},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=_PAGE_QUERY,
        ),
        "on_post": _write(
            PublishWork,
            "publishWork",
            "Publish an opportunity",
            inputs.Publication,
            OpportunityMutation,
            _TERMS | {Code.ACTOR_NOT_LISTED, Code.WORK_QUOTA_REACHED},
        ),
    }

    def __init__(self, reads: WorkReads, writes: WorkWrites) -> None:
        self._reads = reads
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer a page of opportunities."""
        items, following = await self._reads.page(req, "work", work_reads.opportunities, lambda one: one.work_id)
        page = OpportunityPage(items=items, count=len(items), has_more=following is not None, next_cursor=following)
        answer(resp, page)

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Propose a publication."""
        await self._writes.answer(req, resp, lambda given: inputs.publish(given.body))


class WorkItem:
    """``/api/matm/commons/work/{work_id}`` and what is posted below it."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getWork",
            summary="One opportunity as it reads now",
            answers={200: OpportunityView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.WORK_NOT_FOUND}),
        ),
        "on_post_corrections": _write(
            CorrectWork,
            "correctWork",
            "Replace an opportunity's terms",
            inputs.Correction,
            OpportunityMutation,
            _TERMS
            | _OBJECT
            | {Code.WORK_NOT_FOUND, Code.WORK_EXPIRED, Code.WORK_EVENT_LIMIT, Code.WORK_RETENTION_INCREASE},
        ),
        "on_post_withdrawal": _write(
            WithdrawWork,
            "withdrawWork",
            "Withdraw an opportunity and its terms",
            inputs.Withdrawal,
            OpportunityMutation,
            _SCHEMA | _OBJECT | {Code.WORK_NOT_FOUND, Code.WORK_EVENT_LIMIT},
        ),
        "on_post_proposals": _write(
            ProposeWork,
            "proposeWork",
            "Propose complete terms for an opportunity",
            inputs.Offer,
            ProposalMutation,
            _TERMS
            | {
                Code.WORK_NOT_FOUND,
                Code.ACTOR_NOT_LISTED,
                Code.OWN_OPPORTUNITY,
                Code.COUNTERPARTY_UNAVAILABLE,
                Code.WORK_STATE_CONFLICT,
                Code.WORK_EXPIRED,
                Code.WORK_SELECTION_CONFLICT,
                Code.WORK_REVISION_STALE,
                Code.WORK_QUOTA_REACHED,
            },
        ),
    }

    def __init__(self, reads: WorkReads, writes: WorkWrites) -> None:
        self._reads = reads
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_id: str) -> None:
        """Answer the opportunity."""
        name = _known(work_id)
        found = await self._reads.read(req, lambda connection: work_reads.opportunity(connection, name))
        if found is None:
            raise Refusal(Code.WORK_NOT_FOUND)
        answer(resp, found)

    async def on_post_corrections(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_id: str) -> None:
        """Propose a correction."""
        name = _known(work_id)
        await self._writes.answer(req, resp, lambda given: inputs.correct(name, given.body), work_id=name)

    async def on_post_withdrawal(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_id: str) -> None:
        """Propose a withdrawal."""
        name = _known(work_id)
        await self._writes.answer(req, resp, lambda given: inputs.withdraw(name, given.body), work_id=name)

    async def on_post_proposals(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_id: str) -> None:
        """Propose terms."""
        name = _known(work_id)
        await self._writes.answer(req, resp, lambda given: inputs.propose(name, given.body), work_id=name)


class WorkProposals:
    """``GET /api/matm/commons/work-proposals``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listWorkProposals",
            summary="Proposals by id",
            answers={200: ProposalPage},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=_PAGE_QUERY,
        )
    }

    def __init__(self, reads: WorkReads) -> None:
        self._reads = reads

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer a page of proposals."""
        items, following = await self._reads.page(
            req, "work-proposals", work_reads.proposals, lambda one: one.proposal_id
        )
        page = ProposalPage(items=items, count=len(items), has_more=following is not None, next_cursor=following)
        answer(resp, page)


class WorkProposal:
    """``/api/matm/commons/work-proposals/{work_proposal_id}`` and its actions."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getWorkProposal",
            summary="One proposal as it reads now",
            answers={200: ProposalView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.WORK_PROPOSAL_NOT_FOUND}),
        ),
        "on_post_actions": _write(
            ActOnProposal,
            "actOnWorkProposal",
            "Counter, accept, refuse, cancel, deliver, decide, or withdraw a contribution",
            tuple(dict.fromkeys(inputs.ACTION_BODIES.values())),
            ProposalMutation,
            _TERMS
            | _OBJECT
            | {
                Code.WORK_PROPOSAL_NOT_FOUND,
                Code.OWN_TERMS,
                Code.WORK_TERMS_DIGEST_STALE,
                Code.WORK_DELIVERY_DIGEST_STALE,
                Code.WORK_EXPIRED,
                Code.WORK_SELECTION_CONFLICT,
                Code.WORK_EVENT_LIMIT,
                Code.WORK_RETENTION_INCREASE,
                Code.WORK_OBSERVATIONS_INVALID,
                Code.WORK_DRAIN_ACTIVE,
            },
        ),
    }

    def __init__(self, reads: WorkReads, writes: WorkWrites) -> None:
        self._reads = reads
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_proposal_id: str) -> None:
        """Answer the proposal."""
        name = _known_proposal(work_proposal_id)
        found = await self._reads.read(req, lambda connection: work_reads.proposal(connection, name))
        if found is None:
            raise Refusal(Code.WORK_PROPOSAL_NOT_FOUND)
        answer(resp, found)

    async def on_post_actions(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, work_proposal_id: str
    ) -> None:
        """Propose an action."""
        name = _known_proposal(work_proposal_id)
        await self._writes.answer(
            req, resp, lambda given: inputs.act(name, given.work_id, given.body), proposal_id=name
        )


class WorkResolution:
    """``POST /api/matm/commons/work-resolution``."""

    operations: ClassVar = {
        "on_post": _write(
            ResolveWork,
            "resolveWork",
            "Learn whether an uncertain request was applied, or prevent it for ever",
            inputs.ResolutionRequest,
            ResolutionMutation,
            _SCHEMA
            | {
                Code.WORK_RESOLUTION_INVALID,
                Code.WORK_RESOLUTION_CAPACITY,
                Code.WORK_RESOLUTION_LEGACY_REFERENCE_UNBOUND,
            },
        )
    }

    def __init__(self, writes: WorkWrites) -> None:
        self._writes = writes

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Propose a resolution."""
        await self._writes.answer(req, resp, self._writes.resolution)


def _known(work_id: str) -> str:
    if not WORK_ID.match(work_id):
        raise Refusal(Code.WORK_NOT_FOUND)
    return work_id


def _known_proposal(proposal_id: str) -> str:
    if not PROPOSAL_ID.match(proposal_id):
        raise Refusal(Code.WORK_PROPOSAL_NOT_FOUND)
    return proposal_id
