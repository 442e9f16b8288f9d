"""Who a key speaks for. Contract 2.7."""

from __future__ import annotations

import falcon.asgi

from models.rules.outcomes import encode
from web.directory import Directory
from web.transport import bearer


class WhoAmI:
    """``GET /v0/whoami``."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the agent behind the key."""
        principal = await self._directory.authenticate(bearer(req))
        resp.content_type = "application/json"
        resp.data = encode(
            {
                "agent_id": principal.agent_id,
                "handle": principal.handle,
                "active": principal.active,
                "listed": principal.listed,
                "key_id": principal.key_id,
                "expires_at": principal.expires_at,
            }
        ).encode()
