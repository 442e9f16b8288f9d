"""An app behind the edge, and a way to call it as a server would, byte for byte."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import falcon
import falcon.asgi

from web import problems, transport
from web.operations import Operation, Query

LIMIT = 50
NOTHING = (b"host", b"example.test")

Header = tuple[bytes, bytes]


class Echo:
    operations: ClassVar = {
        "on_get": Operation(
            id="echo",
            summary="Echo",
            answers={200: None},
            query={name: Query({"type": "string"}, "Echoed.") for name in ("cursor", "q")},
        )
    }

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.media = {
            "query": req.context.query,
            "bearer": transport.bearer(req),
            "key": transport.idempotency_key(req),
            "async": transport.prefer_async(req),
        }

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.media = {"body": (await transport.read_body(req, LIMIT)).decode()}

    async def on_get_of(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, name: str) -> None:
        resp.media = {"name": name, "query": req.context.query}
        resp.set_header("Cache-Control", "max-age=60")

    async def on_delete_of(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response, **_: str) -> None:
        resp.status = falcon.HTTP_204


def make_app() -> transport.EdgeApp:
    app = transport.EdgeApp()
    echo = Echo()
    app.add_route("/echo", echo)
    app.add_route("/echo/{name}", echo, suffix="of")
    app.add_route("/", echo)
    problems.install(app)
    transport.install(app)
    return app


APP = make_app()


class Answer:
    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        body = b"".join(event.get("body", b"") for event in sent[1:])
        self.json: Any = json.loads(body) if body else None

    @property
    def refused(self) -> tuple[int, str | None]:
        return self.status, None if self.json is None else self.json.get("code")


def ask(
    method: str = "GET",
    path: str = "/echo",
    *,
    headers: Sequence[Header] = (NOTHING,),
    query: bytes = b"",
    events: Sequence[dict[str, Any]] = ({"type": "http.request"},),
    http_version: str = "1.1",
) -> Answer:
    """Call the app as a server would, with exactly these headers and body events.

    A receive beyond the events fails the test: the app then waits for something a real client never sends.
    """
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": http_version,
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    before = json.dumps(scope, default=repr)
    rest = list(events)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        assert rest, "the app waited for more of the body than was announced"
        return rest.pop(0)

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    asyncio.run(APP(scope, receive, send))
    assert json.dumps(scope, default=repr) == before
    return Answer(sent)


def chunk(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def post(*headers: Header, events: Sequence[dict[str, Any]] = (chunk(b"{}"),)) -> Answer:
    return ask("POST", headers=[NOTHING, *headers], events=events)


def content(media_type: bytes = b"application/json", length: bytes = b"2") -> list[Header]:
    return [(b"content-type", media_type), (b"content-length", length)]
