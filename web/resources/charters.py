"""A space's charter, and what a title would be bound to by it. Seed 000, section 2.1; Contract 2.1 and 2.7."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.charter import CompiledCharter, bind, compile_charter, score
from models.rules.charter_cache import CharterCache
from models.rules.codes import Code
from models.rules.conflict import ConflictKey, task_key
from models.rules.governance import NewCatalog
from models.rules.intents import SetCharter
from models.rules.spaces import CharterChange, CharterView, Role
from models.rules.tasks import BindView
from models.rules.text import tokens
from models.store import space_reads
from models.store.reads import Space
from web.answers import answer
from web.directory import Directory
from web.inputs import TaskInput, create_task
from web.operations import Auth, Operation, Query
from web.paging import integer_of
from web.problems import Refusal
from web.space_inputs import CharterInput, PreviewInput, set_charter
from web.sql import Sql
from web.strict_json import parse
from web.transport import BATCH_LIMIT_BYTES, BODY_LIMIT_BYTES, bearer, read_body
from web.writes import Writes

_REVISION_MAX: Final = 2**31 - 1
_charter: Final = msgspec.json.Decoder(CharterInput)
_preview: Final = msgspec.json.Decoder(PreviewInput)
_BOOLEANS: Final = MappingProxyType({"true": True, "false": False})


class Charter:
    """``/v0/spaces/{slug}/charter``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getSpaceCharter",
            summary="The catalog that titles are bound to, in force or an earlier revision",
            answers={200: CharterView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CHARTER_NOT_FOUND}),
            query=MappingProxyType(
                {"revision": Query({"type": "integer", "minimum": 1, "maximum": _REVISION_MAX}, "An earlier revision.")}
            ),
            etag=True,
        ),
        "on_put": Operation(
            id="setSpaceCharter",
            summary="Put a catalog in force as the next revision, as a steward; tasks that exist keep their keys",
            answers={200: CharterChange},
            codes=frozenset({Code.STEWARD_REQUIRED, Code.CATALOG_INVALID, Code.REVISION_MISMATCH}),
            body=CharterInput,
            query=MappingProxyType(
                {"dry_run": Query({"type": "boolean", "default": False}, "Only answer what it would rebind.")}
            ),
            intent=SetCharter,
            if_match=True,
            etag=True,
        ),
    }

    def __init__(self, directory: Directory, sql: Sql, writes: Writes) -> None:
        self._directory = directory
        self._sql = sql
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer the charter."""
        query = req.context.query
        revision = integer_of(query, "revision", 1, _REVISION_MAX, 1) if "revision" in query else None
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        async with self._sql.connection() as connection:
            found = await space_reads.charter(connection, space.id, revision)
        if found is None:
            raise Refusal(Code.CHARTER_NOT_FOUND)
        answer(resp, found, revision=found.revision)

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Propose a charter, or answer what it would change."""
        dry_run = _BOOLEANS.get(req.context.query.get("dry_run", "false"))
        if dry_run is None:
            raise Refusal(Code.QUERY_INVALID)
        body = await read_body(req, BATCH_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        # A catalog costs a tenth of a second to read and seconds to try on a board: not for whoever may not set it.
        # The window looks again, so that a role taken meanwhile counts.
        if not principal.active:
            raise Refusal(Code.ACTOR_NOT_ACTIVE)
        role = await self._directory.role_now(space, principal)
        if role is not Role.STEWARD:
            raise Refusal(Code.NOT_A_MEMBER if role is None else Code.STEWARD_REQUIRED)
        intent = set_charter(parse(body, _charter))
        if not dry_run:
            await self._writes.answer(
                req, resp, principal=principal, slug=space.slug, intents=[intent], preconditioned=True
            )
            return
        async with self._sql.connection() as connection:
            revision = await space_reads.charter_revision(connection, space.id)
            tasks = await space_reads.live_tasks(connection, space.id)
        # A board's titles take their time: the loop goes on meanwhile.
        rebinds = await asyncio.to_thread(lambda: NewCatalog(intent.catalog).rebinds(tasks, space.slug))
        answer(resp, CharterChange(space=space.slug, revision=revision + 1, dry_run=True, rebinds=rebinds))


class RowScore(msgspec.Struct, frozen=True, kw_only=True):
    """How near a title is to a row of the charter: shared tokens of all, and their ratio for reading only."""

    work_item_id: str
    shared: int
    union: int
    score: float


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a task would be bound to, and how it came to that: every row, the nearest first."""

    conflict_key: ConflictKey
    bind: BindView
    scores: tuple[RowScore, ...]


class BindPreview:
    """``POST /v0/spaces/{slug}/bind-preview``: writes nothing."""

    operations: ClassVar = {
        "on_post": Operation(
            id="previewBind",
            summary="What a title would be bound to, and how near it is to each row; nothing is written",
            answers={200: Preview},
            auth=Auth.OPTIONAL,
            codes=frozenset(
                {Code.TITLE_EMPTY, Code.TITLE_INVALID, Code.WORK_ITEM_ID_INVALID, Code.DELIVERY_MODE_UNKNOWN}
            ),
            body=PreviewInput,
        )
    }

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql
        self._compiled: CharterCache[tuple[int, int]] = CharterCache()

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer key, binding and scores."""
        body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        given = parse(body, _preview)
        intent = create_task(
            TaskInput(title=given.title, work_item_id=given.work_item_id, delivery_mode=given.delivery_mode)
        )
        charter = await self._charter(space)
        bound = bind(intent.title, intent.work_item_id, charter)
        preview = Preview(
            conflict_key=task_key(space.slug, intent.title, bound.slot, intent.delivery_mode),
            bind=BindView.of(bound),
            scores=tuple(
                RowScore(
                    work_item_id=row.work_item_id,
                    shared=row.shared,
                    union=row.union,
                    score=round(float(row.jaccard), 4),
                )
                for row in score(tokens(intent.title), charter)
            ),
        )
        answer(resp, preview)

    async def _charter(self, space: Space) -> CompiledCharter:
        async with self._sql.connection() as connection:
            revision = await space_reads.charter_revision(connection, space.id)
            known = self._compiled.get((space.id, revision))
            if known is not None:
                return known
            view = await space_reads.charter(connection, space.id, revision)
        assert view is not None
        compiled = await asyncio.to_thread(compile_charter, space_reads.charter_of(view))
        self._compiled.put((space.id, revision), compiled)
        return compiled
