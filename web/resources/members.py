"""Who belongs to a space, and as what. Contract 2.7 and 5."""

from __future__ import annotations

from typing import ClassVar, Final

import falcon.asgi
import msgspec

from models.rules.codes import Code
from models.rules.intents import RemoveMember, SetMember
from models.rules.spaces import MemberView
from models.store import space_reads
from web.answers import answer
from web.directory import Directory
from web.operations import Auth, Operation
from web.paging import PAGE_QUERY, PROTOCOL, Page, Pages
from web.problems import Refusal
from web.space_inputs import AGENT_CHARACTERS_MAX, MemberInput, set_member
from web.sql import Sql
from web.strict_json import parse
from web.transport import BODY_LIMIT_BYTES, bearer, read_body
from web.writes import Writes

_decoder: Final = msgspec.json.Decoder(MemberInput)


class MemberList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of members, by agent id from the last."""

    members: tuple[MemberView, ...]
    page: Page
    protocol: str


class Members:
    """``GET /v0/spaces/{slug}/members``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="listSpaceMembers",
            summary="The members of a space",
            answers={200: MemberList},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.CURSOR_INVALID}),
            query=PAGE_QUERY,
        )
    }

    def __init__(self, directory: Directory, pages: Pages) -> None:
        self._directory = directory
        self._pages = pages

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str) -> None:
        """Answer a page of members."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        members, page = await self._pages.read(
            req.context.query,
            "members",
            str(space.id),
            rows=lambda connection, before, limit: space_reads.members(
                connection, space.id, before=before, limit=limit
            ),
            position=lambda member: member.agent_id,
        )
        answer(resp, MemberList(members=members, page=page, protocol=PROTOCOL))


class Member:
    """``/v0/spaces/{slug}/members/{agent}``."""

    operations: ClassVar = {
        "on_get": Operation(
            id="getSpaceMember",
            summary="One member",
            answers={200: MemberView},
            auth=Auth.OPTIONAL,
            codes=frozenset({Code.MEMBER_NOT_FOUND}),
        ),
        "on_put": Operation(
            id="setSpaceMember",
            summary="Give an agent a role, as a steward",
            answers={200: MemberView},
            codes=frozenset({Code.STEWARD_REQUIRED, Code.AGENT_NOT_FOUND, Code.LAST_STEWARD, Code.ROLE_UNKNOWN}),
            body=MemberInput,
            intent=SetMember,
        ),
        "on_delete": Operation(
            id="removeSpaceMember",
            summary="Take an agent's role, as a steward; everyone may leave by themselves",
            answers={200: MemberView},
            codes=frozenset({Code.STEWARD_REQUIRED, Code.AGENT_NOT_FOUND, Code.MEMBER_NOT_FOUND, Code.LAST_STEWARD}),
            intent=RemoveMember,
        ),
    }

    def __init__(self, directory: Directory, sql: Sql, writes: Writes) -> None:
        self._directory = directory
        self._sql = sql
        self._writes = writes

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, agent: str) -> None:
        """Answer the member."""
        principal = await self._directory.authenticate_optional(bearer(req))
        space = await self._directory.space(slug, principal)
        async with self._sql.connection() as connection:
            found = await space_reads.member(connection, space.id, agent)
        if found is None:
            raise Refusal(Code.MEMBER_NOT_FOUND)
        answer(resp, found)

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, agent: str) -> None:
        """Propose a role."""
        body = await read_body(req, BODY_LIMIT_BYTES)
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = set_member(_agent(agent), parse(body, _decoder))
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])

    async def on_delete(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, slug: str, agent: str) -> None:
        """Propose that an agent is no member any more."""
        principal = await self._directory.authenticate(bearer(req))
        space = await self._directory.space(slug, principal)
        intent = RemoveMember(agent=_agent(agent))
        await self._writes.answer(req, resp, principal=principal, slug=space.slug, intents=[intent])


def _agent(text: str) -> str:
    if len(text) > AGENT_CHARACTERS_MAX:
        raise Refusal(Code.AGENT_NOT_FOUND)
    return text
