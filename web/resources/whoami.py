"""Who a key speaks for. Contract 2.7."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import falcon.asgi
import msgspec

from web.answers import answer
from web.directory import Directory
from web.operations import Operation
from web.transport import bearer


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that a key speaks for, and the key's public part."""

    agent_id: str
    handle: str
    active: bool
    listed: bool
    key_id: str
    expires_at: datetime | None


class WhoAmI:
    """``GET /v0/whoami``."""

    operations: ClassVar = {
        "on_get": Operation(id="whoAmI", summary="The agent behind the key", answers={200: Identity})
    }

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the agent behind the key."""
        principal = await self._directory.authenticate(bearer(req))
        answer(
            resp,
            Identity(
                agent_id=principal.agent_id,
                handle=principal.handle,
                active=principal.active,
                listed=principal.listed,
                key_id=principal.key_id,
                expires_at=principal.expires_at,
            ),
        )
