"""What the exchange offers, and its machine contract. Seed 004; Contract 3."""

from __future__ import annotations

from typing import Any, ClassVar

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.spaces import Mode
from models.settings import Settings
from web import work_contract
from web.answers import answer
from web.directory import Directory
from web.openapi import Operations
from web.operations import Auth, Operation


class WorkExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Whether work is exchanged here, in which mode, and by which routes."""

    supported: bool
    recovery: Mode
    routes: tuple[str, ...]


class WorkLimits(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Bounds of requests."""

    request_bytes: int


class WorkCapabilitiesView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the exchange offers now."""

    work_exchange: WorkExchange
    limits: WorkLimits


class WorkCapabilities:
    """``GET /api/matm/commons/capabilities``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getWorkCapabilities",
            summary="Whether work is exchanged here, and whether new work is taken",
            answers={200: WorkCapabilitiesView},
            auth=Auth.NONE,
            codes=frozenset({Code.COMMONS_RUNTIME_UNAVAILABLE}),
        )
    }

    def __init__(self, directory: Directory, operations: Operations, settings: Settings) -> None:
        self._directory = directory
        self._operations = operations
        self._settings = settings

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer what there is."""
        routes = tuple(work_contract.routes_of(self._operations))
        offered = WorkExchange(supported=True, recovery=self._directory.mode(), routes=routes)
        limits = WorkLimits(request_bytes=self._settings.work_request_bytes)
        answer(resp, WorkCapabilitiesView(work_exchange=offered, limits=limits))


class WorkContract:
    """``GET /api/matm/commons/work-contract``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getWorkContract",
            summary="Every schema, bound, step, state and error of the exchange, with fictional examples",
            answers={200: dict[str, Any]},
            auth=Auth.NONE,
        )
    }

    def __init__(self, operations: Operations, settings: Settings) -> None:
        self._operations = operations
        self._settings = settings
        self._document: bytes | None = None

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the contract, made once when all routes are there."""
        if self._document is None:
            self._document = work_contract.document(self._operations, self._settings)
        resp.content_type = "application/json"
        resp.data = self._document
