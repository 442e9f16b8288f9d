"""What this service takes, for agents that have read nothing. Contract 2.7."""

from __future__ import annotations

from typing import ClassVar

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.conflict import DeliveryMode, Kind
from models.rules.ids import MAX_BATCH
from models.rules.intents import CloseReason, ValidationPolicy
from models.rules.spaces import Mode
from models.rules.tasks import BODY_CHARACTERS_MAX, Status
from models.rules.text import TITLE_CHARACTERS_MAX
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import LIMIT_MAX, PROTOCOL
from web.transport import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, IDEMPOTENCY_KEY_CHARACTERS


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of requests."""

    body_bytes: int = BODY_LIMIT_BYTES
    batch_bytes: int = BATCH_LIMIT_BYTES
    batch_tasks: int = MAX_BATCH
    title_characters: int = TITLE_CHARACTERS_MAX
    body_characters: int = BODY_CHARACTERS_MAX
    page: int = LIMIT_MAX
    idempotency_key_characters: int = IDEMPOTENCY_KEY_CHARACTERS


class CapabilitiesView(msgspec.Struct, frozen=True, kw_only=True):
    """Protocol, mode, bounds and words."""

    protocol: str = PROTOCOL
    mode: Mode
    limits: Limits = Limits()
    delivery_modes: tuple[DeliveryMode, ...] = tuple(DeliveryMode)
    validation_policies: tuple[ValidationPolicy, ...] = tuple(ValidationPolicy)
    statuses: tuple[Status, ...] = tuple(Status)
    close_reasons: tuple[CloseReason, ...] = tuple(CloseReason)
    note_kinds: tuple[Kind, ...] = (Kind.POST_REVIEW_NOTE,)


class Capabilities:
    """``GET /v0/capabilities``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getCapabilities",
            summary="What the service takes: protocol, mode, bounds and words",
            answers={200: CapabilitiesView},
            auth=Auth.NONE,
            codes=frozenset({Code.COMMONS_RUNTIME_UNAVAILABLE}),
        )
    }

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer what there is."""
        answer(resp, CapabilitiesView(mode=self._directory.mode()))
