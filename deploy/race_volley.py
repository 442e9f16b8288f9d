"""Many HTTP requests at one instant, each on a connection of its own that is open before the first byte is sent.

The client of a race must cost less than the server it measures, so this is HTTP/1.1 on bare transports: a request
is bytes that were made beforehand, and no task or pool stands between the start and the socket.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
"""Longest wait for an answer: well above the 10 s after which the server itself says that it does not know."""

_OPENING_AT_ONCE: Final = 32
_ANSWER_BYTES_MAX: Final = 1 << 20
_INTERIM: Final = range(100, 200)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server answers; ``prefix`` is what its paths begin with, without a slash at the end."""

    url: str
    host: str
    port: int
    netloc: str
    prefix: str
    secure: bool


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or why there is none (``fault``; ``status`` is None then).

    ``latency_ms`` is from the request's first byte to the answer's last, 0 without an answer.
    """

    status: int | None = None
    body: bytes = b""
    latency_ms: float = 0.0
    fault: str | None = None


class Volley(msgspec.Struct, frozen=True):
    """The answers in the order of the requests; ``seconds`` is from the first byte sent to the last answer."""

    heard: tuple[Heard, ...]
    seconds: float


class NotHttpError(ValueError):
    """Bytes that are no HTTP/1.1 answer."""


def parse_url(text: str) -> Place:
    """Return the place a URL names.

    Raises:
        ValueError: it is not ``http://HOST[:PORT][/PREFIX]`` or the same with https.
    """
    parts = urlsplit(text)
    ports = {"http": 80, "https": 443}
    if (
        parts.scheme not in ports
        or not parts.hostname
        or "@" in parts.netloc
        or parts.query
        or parts.fragment
        or not text.isascii()
        or not text.isprintable()
        or " " in text
    ):
        raise ValueError(f"{text!r} is not of the form http://HOST:PORT")
    return Place(
        url=text.rstrip("/"),
        host=parts.hostname,
        port=parts.port or ports[parts.scheme],
        netloc=parts.netloc,
        prefix=parts.path.rstrip("/"),
        secure=parts.scheme == "https",
    )


def request(place: Place, method: str, path: str, *, key: str | None = None, body: bytes | None = None) -> bytes:
    """Return a request as it goes over the wire; ``body`` is JSON."""
    lines = [
        f"{method} {place.prefix}{path} HTTP/1.1",
        f"Host: {place.netloc}",
        "User-Agent: dibs-race",
        "Accept: application/json, application/problem+json",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode("ascii") + (body or b"")


async def volley(place: Place, requests: Sequence[bytes]) -> Volley:
    """Open a connection for each request, then send all of them at once and hear their answers. Nothing is retried."""
    gate = asyncio.Semaphore(_OPENING_AT_ONCE)
    context = ssl.create_default_context() if place.secure else None
    lines = await asyncio.gather(*(_open(place, context, gate) for _ in requests))
    try:
        started = time.perf_counter()
        waiting = [line.send(content) for line, content in zip(lines, requests, strict=True) if isinstance(line, _Line)]
        if waiting:
            await asyncio.wait(waiting, timeout=ANSWER_SECONDS)
        seconds = time.perf_counter() - started
        heard = tuple(line.heard() if isinstance(line, _Line) else Heard(fault=line) for line in lines)
    finally:
        for line in lines:
            if isinstance(line, _Line):
                line.close()
    return Volley(heard, seconds)


async def _open(place: Place, context: ssl.SSLContext | None, gate: asyncio.Semaphore) -> _Line | str:
    """Return an open connection, or why there is none."""
    try:
        async with gate, asyncio.timeout(CONNECT_SECONDS):
            _, line = await asyncio.get_running_loop().create_connection(_Line, place.host, place.port, ssl=context)
    except TimeoutError:
        return f"no connection within {CONNECT_SECONDS:.0f} s"
    except ConnectionError as error:
        # Its own words differ by event loop.
        return f"no connection: {os.strerror(error.errno) if error.errno else error}"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return line


class _Line(asyncio.Protocol):
    """A connection that carries one request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = bytearray()
        self._heard: Heard | None = None
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports have the methods of this class and do not inherit from it.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, content: bytes) -> asyncio.Future[None]:
        """Send the request; the future is done when the answer or the connection's end is here."""
        self._sent_at = time.perf_counter()
        if self._heard is None and self._transport is not None:
            self._transport.write(content)
        return self._answered

    def heard(self) -> Heard:
        return self._heard or Heard(fault=f"no answer within {ANSWER_SECONDS:.0f} s")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._read(ended=False)

    def eof_received(self) -> None:
        self._read(ended=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(Heard(fault=f"connection lost: {exc}" if exc else "connection closed without an answer"))

    def _read(self, *, ended: bool) -> None:
        latency_ms = (time.perf_counter() - self._sent_at) * 1000
        try:
            answer = read_answer(bytes(self._received), ended=ended)
        except NotHttpError as error:
            self._end(Heard(fault=str(error)))
            return
        if answer is not None:
            self._end(Heard(status=answer[0], body=answer[1], latency_ms=latency_ms))

    def _end(self, heard: Heard) -> None:
        if self._heard is None:
            self._heard = heard
            if not self._answered.done():
                self._answered.set_result(None)


def read_answer(received: bytes, *, ended: bool) -> tuple[int, bytes] | None:
    """Return the status and body of an HTTP/1.1 answer, None while it is incomplete.

    ``ended`` says that no more comes, which is how an answer without a length ends. Interim answers are skipped.

    Raises:
        NotHttpError: this is no answer, is longer than 1 MiB, or ended before its end.
    """
    if len(received) > _ANSWER_BYTES_MAX:
        raise NotHttpError("the answer is longer than 1 MiB")
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        if not b"HTTP/1.".startswith(head[:7]):
            raise NotHttpError("the answer is not HTTP/1.1")
        if ended:
            raise NotHttpError("the answer was cut short" if head else "connection closed without an answer")
        return None
    status_line, *field_lines = head.split(b"\r\n")
    words = status_line.split(b" ", 2)
    if not words[0].startswith(b"HTTP/1.") or len(words) == 1 or not words[1].isdigit():
        raise NotHttpError("the answer is not HTTP/1.1")
    status = int(words[1])
    if status in _INTERIM:
        return read_answer(rest, ended=ended)
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in field_lines)}
    body = _body(fields, rest, ended=ended)
    if body is None and ended:
        raise NotHttpError("the answer was cut short")
    return None if body is None else (status, body)


def _body(fields: dict[bytes, bytes], rest: bytes, *, ended: bool) -> bytes | None:
    """Return the whole body, None while some of it is missing."""
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _chunked(rest)
    length = fields.get(b"content-length")
    if length is None:
        return rest if ended else None
    if not length.isdigit():
        raise NotHttpError("the answer has a malformed Content-Length")
    return rest[: int(length)] if len(rest) >= int(length) else None


def _chunked(rest: bytes) -> bytes | None:
    body = b""
    while True:
        line, found, rest = rest.partition(b"\r\n")
        if not found:
            return None
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise NotHttpError("the answer has a malformed chunk") from None
        if size == 0:
            return body
        if len(rest) < size + 2:
            return None
        body += rest[:size]
        rest = rest[size + 2 :]
