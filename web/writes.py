"""The way every write of the spaces API takes through the door, in the contract's order.

Route and method, transport, bearer and schema come before; then replay look-up, mode, append, wait. Contract 2.4, 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import falcon.asgi
import msgspec

from models.ids import uuid7
from models.rules import ids, outcomes
from models.rules.canonical import canonical_json, keyed_digest
from models.rules.codes import Code
from models.rules.idempotency import ANOTHER_BODY, Remembered, recall
from models.rules.intents import (
    CreateSpace,
    Intent,
    PostNote,
    Proposal,
    SlotDigest,
    Submission,
    is_refused_in_drain,
    partition_of,
)
from models.rules.outcomes import Answer
from models.rules.spaces import Mode
from models.settings import SecretKey
from models.store import reads
from models.store.reads import Principal
from web.coalesce import Coalescer
from web.directory import Directory
from web.intake import Intake
from web.problems import Refusal, dress
from web.sql import Sql
from web.transport import idempotency_key, if_match, prefer_async

SLOT: Final = "spaces/idempotency-slot"
REQUEST: Final = "spaces/idempotency-request"


class Writes:
    """Turns validated intents into answers."""

    def __init__(self, intake: Intake, directory: Directory, sql: Sql, secrets: Sequence[SecretKey]) -> None:
        self._intake = intake
        self._directory = directory
        self._secrets = secrets
        self._sql = sql
        self._memory = Coalescer(self._remembered)

    async def answer(
        self,
        req: falcon.asgi.Request,
        resp: falcon.asgi.Response,
        *,
        principal: Principal,
        slug: str,
        intents: Sequence[Intent],
        batch: bool = False,
        preconditioned: bool = False,
        partition: str | None = None,
    ) -> None:
        """Carry intents of one kind through a window and write the answer to ``resp``.

        ``partition`` is the space's unless another one is given. If-Match counts where ``preconditioned`` is set.

        Raises:
            Refusal: the request was refused at the door, or its outcome is not known in time.
        """
        key = idempotency_key(req)
        detached = prefer_async(req)
        if detached and key is None:
            raise Refusal(
                Code.IDEMPOTENCY_KEY_INVALID, "Send an Idempotency-Key with Prefer: respond-async, to repeat it safely."
            )
        slots = self._digests(req, principal, key, slug, intents) if key else ()
        submission = Submission(
            id=ids.append_id(uuid7()),
            partition=partition_of(slug) if partition is None else partition,
            space=slug,
            actor=principal.agent_id,
            key_id=principal.key_id,
            batch=batch,
            proposals=tuple(Proposal.of(intent) for intent in intents),
            slots=slots,
            if_match=if_match(req) if preconditioned else None,
            reply_to="" if detached else self._intake.web_id,
        )
        replay = await self._replay(slots)
        if replay:
            _write(resp, submission, replay)
            return
        if self._directory.mode() is Mode.DRAIN and is_refused_in_drain(intents[0]):
            raise Refusal(Code.WORK_DRAIN_ACTIVE)
        resp.set_header("Dibs-Proposal", ids.format_proposal(submission.id))
        if detached:
            await self._intake.append_only(submission)
            _accept(resp, submission)
            return
        _write(resp, submission, await self._intake.submit(submission))

    def _digests(
        self, req: falcon.asgi.Request, principal: Principal, key: str, slug: str, intents: Sequence[Intent]
    ) -> tuple[SlotDigest, ...]:
        """Return the digests of the key's scope and of the validated body, under every secret.

        The slug is part of what was asked for: a new space's stands in no intent.
        """
        body = canonical_json([slug, [msgspec.to_builtins(intent) for intent in intents]])
        return tuple(
            SlotDigest(
                secret_id=secret.id,
                slot=keyed_digest(secret.secret, SLOT, principal.agent_id, req.method, req.path, key),
                request=keyed_digest(secret.secret, REQUEST, body),
            )
            for secret in self._secrets
        )

    async def _remembered(self, wanted: list[tuple[SlotDigest, ...]]) -> list[Mapping[bytes, Remembered]]:
        """Return one memory for all: each asks it for its own digests alone."""
        async with self._sql.connection() as connection:
            found = await reads.remembered(connection, [digest.slot for digests in wanted for digest in digests])
        return [found] * len(wanted)

    async def _replay(self, slots: tuple[SlotDigest, ...]) -> tuple[Answer, ...]:
        """Return the answers of a key used before with this body, none for a key that is new.

        Two requests that are new at once are told apart in the window.
        """
        recalled = recall(slots, await self._memory(slots)) if slots else ()
        if recalled is ANOTHER_BODY:
            raise Refusal(Code.IDEMPOTENCY_KEY_REUSED)
        return recalled


def _accept(resp: falcon.asgi.Response, submission: Submission) -> None:
    proposal_id = ids.format_proposal(submission.id)
    resp.status = 202
    resp.set_header("Location", f"/v0/proposals/{proposal_id}")
    resp.set_header("Preference-Applied", "respond-async")
    resp.content_type = "application/json"
    resp.data = outcomes.encode({"proposal_id": proposal_id, "state": "pending"}).encode()


def _write(resp: falcon.asgi.Response, submission: Submission, answers: tuple[Answer, ...]) -> None:
    """Write the answers of a submission; a replay bears the ids of the submission it repeats."""
    first = answers[0]
    if first.replay_of is not None:
        resp.set_header("Idempotent-Replayed", "true")
    append_id = first.replay_of or submission.id
    resp.set_header("Dibs-Proposal", ids.format_proposal(append_id))
    if submission.batch and first.code not in outcomes.WHOLE:
        resp.status = 200
        resp.content_type = "application/json"
        resp.data = batch_body(append_id, answers)
    elif first.code is not None:
        dress(resp, first.code)
        resp.data = first.body.encode()
    else:
        resp.status = first.status
        resp.content_type = "application/json"
        resp.data = first.body.encode()
        named = _named.decode(first.body)
        if named.revision is not None:
            resp.etag = str(named.revision)
        if first.status == 201:  # noqa: PLR2004 - HTTP Created
            resp.set_header("Location", _location(submission, first, named))


class _Named(msgspec.Struct, frozen=True):
    """What an answer's headers repeat of its body."""

    id: int | None = None
    revision: int | None = None


_named: Final = msgspec.json.Decoder(_Named)


def _location(submission: Submission, answer: Answer, named: _Named) -> str:
    match submission.proposals[0].intent:
        case CreateSpace():
            return f"/v0/spaces/{submission.space}"
        case PostNote():
            return f"/v0/spaces/{submission.space}/tasks/{answer.task_id}/notes/{named.id}"
        case _:
            return f"/v0/spaces/{submission.space}/tasks/{answer.task_id}"


def batch_body(append_id: UUID, answers: Sequence[Answer]) -> bytes:
    """Return ``{"results": [{"status", "proposal_id", "body"}…]}`` in request order, the stored bodies as they are."""
    return msgspec.json.encode(
        {
            "results": [
                {
                    "status": one.status,
                    "proposal_id": ids.format_proposal(ids.item_id(append_id, position, batch=True)),
                    "body": msgspec.Raw(one.body.encode()),
                }
                for position, one in enumerate(answers)
            ]
        }
    )
