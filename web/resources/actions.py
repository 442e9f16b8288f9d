"""Steps in a task's life: one resource for each, all of one kind. Contract 2.2 and 2.5; Seed 003."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import (
    AssignTask,
    ClaimTask,
    HoldTask,
    Intent,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    SupersedeTask,
    UnholdTask,
    WithdrawTask,
)
from models.rules.leftovers import Closed
from models.rules.tasks import Task
from web import action_inputs as inputs
from web.directory import Directory
from web.operations import Operation
from web.paths import task_id_of
from web.strict_json import parse
from web.transport import BODY_LIMIT_BYTES, bearer, read_body, read_optional_body
from web.writes import Writes


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one action from another: its body and the intent it becomes, and what the window may say."""

    id: str
    summary: str
    body: type[Any]
    kind: type[Intent]
    intent: Callable[[int, Any], Intent]
    codes: frozenset[Code]
    body_optional: bool = False
    answer: type[Any] = Task


_COMMON: Final = frozenset({Code.TASK_NOT_FOUND, Code.REVISION_MISMATCH})
_MOVES: Final = _COMMON | {Code.TASK_STATE_CONFLICT, Code.TASK_SUPERSEDED}
_REASONED: Final = frozenset({Code.REASON_EMPTY})

_CLOSE: Final = Action(
    id="supersedeSpaceTask",
    summary="Close a leftover in favour of the task that goes on with the work; nothing is deleted",
    kind=SupersedeTask,
    body=inputs.Closing,
    intent=inputs.supersede,
    codes=_MOVES
    | {
        Code.REASON_EMPTY,
        Code.REASON_UNKNOWN,
        Code.STEWARD_ONLY_REASON,
        Code.SURVIVING_TASK_INVALID,
        Code.SURVIVING_TASK_NOT_FOUND,
        Code.SURVIVING_TASK_SUPERSEDED,
        Code.SURVIVING_TASK_TERMINAL,
        Code.NOT_OCCUPANCY_DUPLICATE,
    },
    answer=Closed,
)

ACTIONS: Final[Mapping[str, Action]] = MappingProxyType(
    {
        "claim": Action(
            id="claimSpaceTask",
            summary="Take an open task, or the one that is assigned to you; of several claims one wins",
            kind=ClaimTask,
            body=inputs.Nothing,
            intent=lambda task_id, _: ClaimTask(task_id=task_id),
            codes=_MOVES | {Code.TASK_ALREADY_CLAIMED, Code.TASK_ASSIGNED},
            body_optional=True,
        ),
        "assign": Action(
            id="assignSpaceTask",
            summary="Give a task to a member, as a steward",
            kind=AssignTask,
            body=inputs.Assignment,
            intent=inputs.assign,
            codes=_MOVES | {Code.STEWARD_REQUIRED, Code.ASSIGNEE_NOT_A_MEMBER},
        ),
        "release": Action(
            id="releaseSpaceTask",
            summary="Give a task back",
            kind=ReleaseTask,
            body=inputs.Nothing,
            intent=lambda task_id, _: ReleaseTask(task_id=task_id),
            codes=_MOVES | {Code.HOLDER_REQUIRED},
            body_optional=True,
        ),
        "submit": Action(
            id="submitSpaceTask",
            summary="Hand in the work, with evidence where the task's policy asks for it",
            kind=SubmitTask,
            body=inputs.Submitted,
            intent=inputs.submit,
            codes=_MOVES | {Code.HOLDER_REQUIRED, Code.EVIDENCE_REQUIRED, Code.EVIDENCE_INVALID, Code.BODY_INVALID},
            body_optional=True,
        ),
        "review": Action(
            id="reviewSpaceTask",
            summary="Judge work that another member handed in",
            kind=ReviewTask,
            body=inputs.Review,
            intent=inputs.review,
            codes=_MOVES | {Code.INDEPENDENT_REVIEW_REQUIRED, Code.DECISION_UNKNOWN, Code.BODY_INVALID},
        ),
        "withdraw": Action(
            id="withdrawSpaceTask",
            summary="Take a task off the board before it is done",
            kind=WithdrawTask,
            body=inputs.Reason,
            intent=inputs.withdraw,
            codes=_MOVES | _REASONED | {Code.CREATOR_REQUIRED},
        ),
        "reopen": Action(
            id="reopenSpaceTask",
            summary="Put an ended task back on the board, as a steward, if its ConflictKey is free",
            kind=ReopenTask,
            body=inputs.Nothing,
            intent=lambda task_id, _: ReopenTask(task_id=task_id),
            codes=_MOVES | {Code.STEWARD_REQUIRED, Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED},
            body_optional=True,
        ),
        "hold": Action(
            id="holdSpaceTask",
            summary="Let no new task take this one's ConflictKey, as a steward",
            kind=HoldTask,
            body=inputs.Reason,
            intent=inputs.hold,
            codes=_COMMON | _REASONED | {Code.STEWARD_REQUIRED, Code.TASK_STATE_CONFLICT},
        ),
        "unhold": Action(
            id="unholdSpaceTask",
            summary="End a hold, as a steward",
            kind=UnholdTask,
            body=inputs.Reason,
            intent=inputs.unhold,
            codes=_COMMON | _REASONED | {Code.STEWARD_REQUIRED, Code.TASK_STATE_CONFLICT},
        ),
        "supersede": _CLOSE,
        "close": msgspec.structs.replace(_CLOSE, id="closeSpaceTask"),
    }
)
"""The actions by the last part of their path; ``close`` is another name of ``supersede``."""


class TaskAction:
    """``POST /v0/spaces/{slug}/tasks/{task_id}/<action>``."""

    def __init__(self, name: str, directory: Directory, writes: Writes) -> None:
        self._action = ACTIONS[name]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._action.body)
        self._directory = directory
        self._writes = writes
        self.operations = {
            "on_post": Operation(
                id=self._action.id,
                summary=self._action.summary,
                answers={200: self._action.answer},
                codes=self._action.codes,
                body=self._action.body,
                body_optional=self._action.body_optional,
                intent=self._action.kind,
                if_match=True,
                etag=self._action.answer is Task,
            )
        }

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str) -> None:
        """Propose the step: 200 and the task as it is then, or why not."""
        if self._action.body_optional:
            body = await read_optional_body(req, BODY_LIMIT_BYTES)
        else:
            body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = self._action.intent(task_id_of(task_id), parse(body, self._decoder))
        await self._writes.answer(
            req, resp, principal=principal, slug=space.slug, intents=[intent], preconditioned=True
        )
