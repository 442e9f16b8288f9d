import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from deploy import race, race_volley
from deploy.race_store import RaceError, Runner
from deploy.race_volley import NotHttpError, Place, parse_url, read_answer, request, volley

Answerer = Callable[[bytes], Awaitable[bytes]]
READY = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nokay"


def test_a_url_becomes_a_place() -> None:
    place = parse_url("https://[::1]/boards/")
    assert (place.host, place.port, place.netloc, place.prefix, place.secure) == ("::1", 443, "[::1]", "/boards", True)
    assert parse_url("http://127.0.0.1:8080/").url == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        "http://user:word@host",
        "http://host/?q=1",
        "http://host/#x",
        "http://h\u00f6st",
        "http://ho st",
        "http://host\r\nX: y",
        "http://host:99999",
        "http://host:word",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form|[Pp]ort"):
        parse_url(text)


def test_a_request_is_complete() -> None:
    place = parse_url("http://host:81/boards")
    assert request(place, "POST", "/v0/x", key="word", body=b"{}") == (
        b"POST /boards/v0/x HTTP/1.1\r\nHost: host:81\r\nUser-Agent: dibs-race\r\n"
        b"Accept: application/json, application/problem+json\r\nAuthorization: Bearer word\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert b"Authorization" not in request(place, "GET", "/readyz")


@pytest.mark.parametrize(
    "whole",
    [
        READY,
        b"HTTP/1.1 200\r\ncontent-LENGTH:  4 \r\n\r\nokay",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + READY,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n2;x=y\r\nay\r\n0\r\n\r\n",
    ],
    ids=["length", "case", "interim", "chunked"],
)
def test_an_answer_is_read_once_it_is_whole(whole: bytes) -> None:
    assert read_answer(whole, ended=False) == (200, b"okay")
    ends = [end for end in range(len(whole)) if read_answer(whole[:end], ended=False) is not None]
    # The last chunk is known by its size line; the empty line behind it adds nothing.
    assert ends == ([len(whole) - 2, len(whole) - 1] if whole.endswith(b"0\r\n\r\n") else [])


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    whole = b"HTTP/1.0 200 OK\r\n\r\nokay"
    assert read_answer(whole, ended=False) is None
    assert read_answer(whole, ended=True) == (200, b"okay")


@pytest.mark.parametrize(
    ("received", "ended", "fault"),
    [
        (b"SSH-2.0-OpenSSH", False, "not HTTP/1.1"),
        (b"SSH-2.0\r\n\r\n", False, "not HTTP/1.1"),
        (b"HTTP/1.1 abc\r\n\r\n", False, "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", False, "malformed Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", False, "malformed chunk"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok", True, "cut short"),
        (b"HTTP/1.1 200", True, "cut short"),
        (b"", True, "closed without an answer"),
        (b"x" * (1 << 20) + b"x", False, "longer than 1 MiB"),
    ],
)
def test_what_is_no_answer_is_said_to_be_none(received: bytes, ended: bool, fault: str) -> None:
    with pytest.raises(NotHttpError, match=fault):
        read_answer(received, ended=ended)


@asynccontextmanager
async def serving(answer: Answerer) -> AsyncIterator[Place]:
    """Serve on a port of this machine; an empty answer closes the connection without one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await answer(await reader.readuntil(b"\r\n\r\n")))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield parse_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await server.wait_closed()


def test_all_requests_are_under_way_before_one_is_answered() -> None:
    async def run() -> None:
        count = 120
        everyone = asyncio.Barrier(count)

        async def answer(received: bytes) -> bytes:
            async with asyncio.timeout(20):
                await everyone.wait()
            path = received.split(b" ", 2)[1]
            return b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path)

        async with serving(answer) as place:
            fired = await volley(place, [request(place, "POST", f"/{number}") for number in range(count)])
        assert [heard.status for heard in fired.heard] == [201] * count
        assert [heard.body for heard in fired.heard] == [b"/%d" % number for number in range(count)]
        assert all(0 < heard.latency_ms <= fired.seconds * 1000 for heard in fired.heard)

    asyncio.run(run())


def test_one_that_fails_leaves_its_neighbours_their_answers() -> None:
    async def run() -> None:
        async def answer(received: bytes) -> bytes:
            return b"" if b"/closed" in received else READY

        async with serving(answer) as place:
            fired = await volley(place, [request(place, "GET", path) for path in ("/1", "/closed", "/2")])
        assert [heard.status for heard in fired.heard] == [200, None, 200]
        assert fired.heard[1].fault == "connection closed without an answer"

    asyncio.run(run())


def test_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_volley, "ANSWER_SECONDS", 0.05)

    async def run() -> None:
        over = asyncio.Event()

        async def answer(received: bytes) -> bytes:
            if b"/silent" in received:
                await over.wait()
            return READY

        async with serving(answer) as place:
            fired = await volley(place, [request(place, "GET", path) for path in ("/1", "/silent")])
            over.set()
        assert [heard.status for heard in fired.heard] == [200, None]
        assert str(fired.heard[1].fault).startswith("no answer within")

    asyncio.run(run())


def test_a_closed_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = parse_url(f"http://127.0.0.1:{taken.getsockname()[1]}")
        fired = asyncio.run(volley(place, [request(place, "GET", "/readyz")] * 2))
        assert [heard.fault for heard in fired.heard] == ["no connection: Connection refused"] * 2
        with pytest.raises(RaceError, match="no server at http"):
            asyncio.run(race._check_server(place))


@pytest.mark.parametrize("status", [401, 503])
def test_a_server_that_cannot_be_raced_on_is_named(status: int) -> None:
    async def answer(_: bytes) -> bytes:
        return b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status

    async def run() -> None:
        async with serving(answer) as place:
            with pytest.raises(RaceError, match=f"not ready .*{status}"):
                await race._check_server(place)
            with pytest.raises(RaceError, match=f"answers {status}.*must belong together"):
                await race._check_key(place, Runner(handle="race-001", agent_id="agt_1", key="word"))

    asyncio.run(run())
