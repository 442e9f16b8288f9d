"""Notes on tasks. Seed 000, section 2.2; Contract 2.3."""

from __future__ import annotations

from typing import ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import PostNote, WithdrawNote
from models.rules.notes import Note as NoteView
from models.store import lists
from models.store.reads import Connection
from web.action_inputs import NoteInput, Nothing, post_note
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import PAGE_QUERY, PROTOCOL, Page, Pages, number
from web.paths import note_id_of, task_id_of
from web.problems import Refusal
from web.sql import Sql
from web.strict_json import parse
from web.transport import BODY_LIMIT_BYTES, bearer, read_body, read_optional_body
from web.writes import Writes

_decoder: Final = msgspec.json.Decoder(NoteInput)


class NoteList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a task's notes, the latest first, withdrawn ones too."""

    notes: tuple[NoteView, ...]
    page: Page
    protocol: str


class Notes:
    """``/v0/spaces/{slug}/tasks/{task_id}/notes``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listTaskNotes",
            summary="The notes of a task, the latest first, posted and withdrawn",
            answers={200: NoteList},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.TASK_NOT_FOUND, Code.CURSOR_INVALID}),
            query=PAGE_QUERY,
        ),
        "on_post": Operation(
            id="postTaskNote",
            summary="Post a review note; the same words on the same criterion are posted once",
            answers={201: NoteView},
            codes=frozenset(
                {
                    Code.TASK_NOT_FOUND,
                    Code.TASK_SUPERSEDED,
                    Code.CONFLICT_KEY_OCCUPIED,
                    Code.CONFLICT_KEY_RESERVED,
                    Code.NOTE_KIND_UNKNOWN,
                    Code.BODY_INVALID,
                }
            ),
            body=NoteInput,
            intent=PostNote,
        ),
    }

    def __init__(self, directory: Directory, pages: Pages, writes: Writes) -> None:
        self._directory = directory
        self._pages = pages
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str) -> None:
        """Answer a page of the task's notes."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        task = task_id_of(task_id)

        async def rows(connection: Connection, before: str | None, limit: int) -> list[NoteView]:
            found = await lists.notes(connection, space.id, task, before=number(before), limit=limit)
            if found is None:
                raise Refusal(Code.TASK_NOT_FOUND)
            return found

        notes, page = await self._pages.read(
            req.context.query, "notes", str(space.id), str(task), rows=rows, position=lambda note: str(note.id)
        )
        answer(resp, NoteList(notes=notes, page=page, protocol=PROTOCOL))

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str) -> None:
        """Propose a note: 201 and the note, or 409 and the one that says it already."""
        body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = post_note(task_id_of(task_id), parse(body, _decoder))
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])


class Note:
    """``GET /v0/spaces/{slug}/tasks/{task_id}/notes/{note_id}``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getTaskNote",
            summary="One note of a task",
            answers={200: NoteView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.TASK_NOT_FOUND, Code.NOTE_NOT_FOUND}),
        )
    }

    def __init__(self, directory: Directory, sql: Sql) -> None:
        self._directory = directory
        self._sql = sql

    async def on_get(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, task_id: str, note_id: str
    ) -> None:
        """Answer the note as it stands."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        task, number = task_id_of(task_id), note_id_of(note_id)
        async with self._sql.connection() as connection:
            found = await lists.note(connection, space.id, task, number)
        if found is None:
            raise Refusal(Code.NOTE_NOT_FOUND)
        answer(resp, found)


class NoteWithdrawal:
    """``POST …/tasks/{task_id}/notes/{note_id}/withdraw``, and the same without its task."""

    operations: ClassVar = {
        "on_post": Operation(
            id="withdrawTaskNote",
            summary="Take a note back, as its author or a steward; its words may be posted again",
            answers={200: NoteView},
            codes=frozenset({Code.TASK_NOT_FOUND, Code.NOTE_NOT_FOUND, Code.AUTHOR_REQUIRED, Code.NOTE_STATE_CONFLICT}),
            body=Nothing,
            body_optional=True,
            intent=WithdrawNote,
        ),
        "on_post_alone": Operation(
            id="withdrawNote",
            summary="Take a note back, as its author or a steward, by the note's id alone",
            answers={200: NoteView},
            codes=frozenset({Code.NOTE_NOT_FOUND, Code.AUTHOR_REQUIRED, Code.NOTE_STATE_CONFLICT}),
            body=Nothing,
            body_optional=True,
            intent=WithdrawNote,
        ),
    }

    def __init__(self, directory: Directory, writes: Writes) -> None:
        self._directory = directory
        self._writes = writes

    async def on_post(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, note_id: str, task_id: str
    ) -> None:
        """Propose the withdrawal of a task's note."""
        await self._withdraw(req, resp, slug, note_id, task_id)

    async def on_post_alone(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, note_id: str
    ) -> None:
        """Propose the withdrawal of a note."""
        await self._withdraw(req, resp, slug, note_id, None)

    async def _withdraw(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, note_id: str, task_id: str | None
    ) -> None:
        body = await read_optional_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        task = None if task_id is None else task_id_of(task_id)
        parse(body, _nothing)
        intent = WithdrawNote(note_id=note_id_of(note_id), task_id=task)
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])


_nothing: Final = msgspec.json.Decoder(Nothing)
