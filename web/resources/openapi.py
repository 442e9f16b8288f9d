"""The API's description. Contract 2.7."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from typing import Any, ClassVar

import falcon.asgi

from web import openapi
from web.operations import Auth, Operation


class OpenApi:
    """``GET /v0/openapi.json``: made once, when it is first asked for and all routes are there."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getOpenApi",
            summary="This description",
            answers={200: dict[str, Any]},
            auth=Auth.NONE,
            etag=True,
        )
    }

    def __init__(self, operations: openapi.Operations) -> None:
        self._operations = operations
        self._document: bytes | None = None

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the description."""
        if self._document is None:
            self._document = openapi.document(self._operations, version=version("dibs"))
        resp.content_type = "application/json"
        resp.set_header("Cache-Control", "no-cache")
        resp.etag = sha256(self._document).hexdigest()[:32]
        resp.data = self._document
