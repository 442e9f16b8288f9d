"""The way every write of the exchange takes through the door. Seed 004; Contract 3 and 6.

A key is required. What is kept under it is asked for before the body's schema, so that what was prevented is answered
so whatever else is wrong with the request; the window asks again under its locks, and its answer is what counts.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, Final

import falcon.asgi
import msgspec

from models.ids import uuid7
from models.rules import ids
from models.rules.canonical import canonical_json, keyed_digest
from models.rules.codes import STATUS, Code
from models.rules.intents import (
    Proposal,
    ResolveWork,
    SlotDigest,
    Submission,
    WorkIntent,
    actor_partition,
    is_refused_in_drain,
    work_partition,
)
from models.rules.market import Reference
from models.rules.outcomes import Answer, encode
from models.rules.spaces import Mode
from models.settings import Settings
from models.store import work_reads
from models.store.reads import Connection, Principal
from web.directory import Directory
from web.intake import Intake
from web.problems import Problem, Refusal, write
from web.sql import Sql
from web.transport import bearer, read_body
from web.work_answers import Receipts
from web.work_inputs import KEY, ORIGINAL, resolution, syntax
from web.work_problems import work_document

SLOT: Final = "exchange/idempotency-slot"
REQUEST: Final = "exchange/idempotency-request"
_RESOLUTION: Final = "concresca.work_resolution.v1"


class _Told(msgspec.Struct, frozen=True):
    """What a stored refusal says beside its code."""

    pointer: str | None = None
    selectedProposalId: str | None = None  # noqa: N815 - the wire's name


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A request of which an intent is to be made: its body as bytes and as plain JSON, its actor, its opportunity."""

    body: bytes
    plain: Any
    actor: str
    work_id: str | None


class WorkWrites:
    """Turns requests to the exchange into answers."""

    def __init__(self, intake: Intake, directory: Directory, sql: Sql, settings: Settings, receipts: Receipts) -> None:
        self._intake = intake
        self._directory = directory
        self._sql = sql
        self._settings = settings
        self._receipts = receipts

    async def answer(
        self,
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        intent_of: Callable[[Given], WorkIntent],
        *,
        work_id: str | None = None,
        proposal_id: str | None = None,
    ) -> None:
        """Carry a request through a window; ``intent_of`` makes its intent of what was sent.

        Raises:
            Refusal: the request was refused at the door, or its outcome is not known in time.
            JsonRefused: the body is no strict JSON, or not of the schema.
        """
        body = await read_body(req, self._settings.work_request_bytes)
        principal = await self._actor(req)
        given = syntax(body)
        key = self._key(req)
        slots = self._digests(principal.agent_id, req.path, key, given)
        async with self._sql.connection() as connection:
            await work_reads.purge(connection)
            if await self._recalled(connection, resp, slots):
                return
            if proposal_id is not None:
                work_id = await work_reads.work_id_of(connection, proposal_id)
        intent = intent_of(Given(body=body, plain=given, actor=principal.agent_id, work_id=work_id))
        if isinstance(intent, ResolveWork):
            work_id = await self._original_work(intent.original_path)
        if not slots:
            # Its schema has no such value, so the intent above has refused it; a digest could not be made.
            raise Refusal(Code.WORK_PAYLOAD_INVALID)
        if self._directory.mode() is Mode.DRAIN and is_refused_in_drain(intent):
            raise Refusal(Code.WORK_DRAIN_ACTIVE)
        partition = actor_partition(principal.agent_id) if work_id is None else work_partition(work_id)
        submission = Submission(
            id=ids.append_id(uuid7()),
            partition=partition,
            space="",
            actor=principal.agent_id,
            key_id=principal.key_id,
            proposals=(Proposal.of(intent),),
            slots=slots,
            reply_to=self._intake.web_id,
        )
        resp.set_header("Dibs-Proposal", ids.format_proposal(submission.id))
        (decided,) = await self._intake.submit(submission)
        await self._write(resp, decided)

    def resolution(self, sent: Given) -> ResolveWork:
        """Return the intent that resolves a request: digests alone, as its sender's own request makes them.

        Raises:
            JsonRefused: 400 or 422.
            Refusal: ``work_resolution_invalid``, also for a body that no request can have had.
        """
        given = resolution(sent.body)
        principal = sent.actor
        body = sent.plain["originalBody"]
        slots = self._digests(principal, given.original_path, given.original_idempotency_key, body)
        if not slots:
            raise Refusal(Code.WORK_RESOLUTION_INVALID, pointer="/originalBody")
        settings = self._settings
        parts = [
            _RESOLUTION,
            settings.canonical_origin,
            settings.workspace_id,
            settings.project_id,
            principal,
            "POST",
            given.original_path,
            body,
        ]
        digest = hmac.new(given.original_idempotency_key.encode(), canonical_json(parts), "sha256").hexdigest()
        return ResolveWork(original_path=given.original_path, original=slots, original_intent_digest=digest)

    async def _actor(self, req: falcon.asgi.Request) -> Principal:
        principal = await self._directory.authenticate(bearer(req))
        if principal.operator:
            raise Refusal(Code.AGENT_BEARER_REQUIRED)
        if not principal.active:
            raise Refusal(Code.ACTOR_NOT_ACTIVE)
        return principal

    @staticmethod
    def _key(req: falcon.asgi.Request) -> str:
        key = req.get_header("Idempotency-Key") or ""
        if not KEY.match(key):
            raise Refusal(
                Code.IDEMPOTENCY_KEY_INVALID, "Send an Idempotency-Key of 32 to 200 visible ASCII characters."
            )
        return key

    def _digests(self, actor: str, path: str, key: str, body: Any) -> tuple[SlotDigest, ...]:  # noqa: ANN401 - JSON
        """Return the digests of a key's scope and of a parsed body, none for a body with numbers that are no integers.

        Member order makes no other body, array order does.
        """
        try:
            canonical = canonical_json(body)
        except (TypeError, ValueError):
            return ()
        settings = self._settings
        scope = (settings.canonical_origin, settings.workspace_id, settings.project_id, actor, "POST", path, key)
        return tuple(
            SlotDigest(
                secret_id=secret.id,
                slot=keyed_digest(secret.secret, SLOT, *scope),
                request=keyed_digest(secret.secret, REQUEST, canonical),
            )
            for secret in settings.secret_keys
        )

    async def _recalled(
        self, connection: Connection, resp: falcon.asgi.Response, slots: tuple[SlotDigest, ...]
    ) -> bool:
        """Answer a key that was used before; the window decides it the same way."""
        kept = await work_reads.slots(connection, [digest.slot for digest in slots]) if slots else {}
        for digest in slots:
            found = kept.get(digest.slot)
            if found is None:
                continue
            if found.request is not None and found.request != digest.request:
                raise Refusal(Code.IDEMPOTENCY_CONFLICT)
            if found.reference is None:
                raise Refusal(Code.WORK_OPERATION_PREVENTED)
            await self._succeed(connection, resp, msgspec.structs.replace(found.reference, replay=True))
            return True
        return False

    async def _original_work(self, path: str) -> str | None:
        """Return the opportunity that an original path names, None for a creation or an unknown proposal."""
        match = ORIGINAL.match(path)
        assert match is not None
        if match["proposal"] is None:
            return match["work"]
        async with self._sql.connection() as connection:
            return await work_reads.work_id_of(connection, match["proposal"])

    async def _write(self, resp: falcon.asgi.Response, decided: Answer) -> None:
        if decided.code is None:
            async with self._sql.connection() as connection:
                await self._succeed(connection, resp, msgspec.json.decode(decided.body, type=Reference))
            return
        told = msgspec.json.decode(decided.body, type=_Told)
        members: dict[str, Any] = {}
        if told.selectedProposalId is not None:
            members["selectedProposalId"] = told.selectedProposalId
        if decided.status != STATUS[decided.code]:
            members["status"] = decided.status
        write(resp, Problem(code=decided.code, pointer=told.pointer, members=members), work_document)
        resp.status = decided.status

    async def _succeed(self, connection: Connection, resp: falcon.asgi.Response, reference: Reference) -> None:
        envelope = await self._receipts.envelope(connection, reference)
        resp.status = reference.status
        resp.content_type = "application/json"
        if reference.replay:
            resp.set_header("Idempotent-Replayed", "true")
        resp.data = encode(envelope).encode()
