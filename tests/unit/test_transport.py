import asyncio
import time
from typing import Any

import falcon
import pytest
from falcon import testing

from models.rules.codes import Code
from tests.unit.edge import APP, LIMIT, NOTHING, Header, ask, chunk, content, post
from web import transport
from web.problems import Refusal

# Body


def test_a_whole_body_is_read() -> None:
    assert post(*content()).json == {"body": "{}"}
    parts = [chunk(b"{", more=True), chunk(b"", more=True), chunk(b"}")]
    assert post(*content(), events=parts).json == {"body": "{}"}
    full = post(*content(length=b"50"), events=[chunk(b"x" * 50)])
    assert full.json == {"body": "x" * 50}
    assert post(*content(length=b"0"), events=[chunk(b"")]).json == {"body": ""}
    assert post(*content(length=b"0"), events=[]).json == {"body": ""}


@pytest.mark.parametrize(
    "events",
    [
        [chunk(b'{"title')],
        [chunk(b'{"title', more=True), {"type": "http.disconnect"}],
        [chunk(b"", more=True), chunk(b'{"title')],
        [{"type": "http.request"}],
        [{"type": "http.disconnect"}],
    ],
)
def test_a_body_cut_short_is_not_processed(events: list[dict[str, Any]]) -> None:
    answer = post(*content(length=b"20"), events=events)
    assert answer.refused == (400, "body_incomplete")
    assert answer.json["write_occurred"] is False
    assert answer.json["retryable"] is True


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/nowhere", content(), 404),
        ("PUT", "/echo", content(), 405),
        ("POST", "/echo", [(b"content-type", b"application/json")], 411),
        ("POST", "/echo", content(length=b"51"), 413),
        ("POST", "/echo", content(b"text/plain"), 415),
        ("POST", "/echo", [*content(), *content()], 400),
        ("GET", "/echo", content(), 200),
    ],
)
def test_the_head_is_answered_without_waiting_for_the_body(
    method: str, path: str, headers: list[Header], status: int
) -> None:
    assert ask(method, path, headers=[NOTHING, *headers], events=[]).status == status


@pytest.mark.parametrize("length", [b"51", b"65536", b"9" * 18, b"9" * 30, b"9" * 5000])
def test_a_body_over_the_limit_is_refused_before_it_is_read(length: bytes) -> None:
    answer = post(*content(length=length), events=[])
    assert answer.refused == (413, "request_too_large")
    assert str(LIMIT) in answer.json["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"chunked"), (b"content-length", b"2")],
        [(b"transfer-encoding", b"identity"), (b"content-length", b"2")],
    ],
)
def test_a_body_without_its_length_is_refused(headers: list[Header]) -> None:
    assert post((b"content-type", b"application/json"), *headers).refused == (411, "length_required")


@pytest.mark.parametrize("length", [b"", b"-1", b"+2", b"2.0", b"0x2", b"1_0", b" 2", b"2,2", b"\xb2", b"two"])
def test_a_length_that_is_no_number_is_refused(length: bytes) -> None:
    assert post(*content(length=length)).refused == (400, "header_invalid")


@pytest.mark.parametrize(
    "media_type",
    [
        b"application/json",
        b"Application/JSON",
        b"application/json; charset=utf-8",
        b"application/json;charset=UTF-8",
        b'application/json ; charset="utf-8"',
    ],
)
def test_json_is_taken(media_type: bytes) -> None:
    assert post(*content(media_type)).status == 200


@pytest.mark.parametrize(
    "media_type",
    [
        b"",
        b"text/plain",
        b"application/json5",
        b"application/jsonx",
        b"xapplication/json",
        b"application/problem+json",
        b"application/json; charset=latin-1",
        b"application/json; charset=utf-8; charset=utf-8",
        b"application/json; version=1",
        b"application/json, text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/json\n",
    ],
)
def test_other_media_types_are_refused(media_type: bytes) -> None:
    assert post(*content(media_type)).refused == (415, "media_type_unsupported")


def test_a_body_without_a_media_type_is_refused() -> None:
    assert post((b"content-length", b"2")).refused == (415, "media_type_unsupported")


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity", b"", b"gzip, gzip"])
def test_encoded_bodies_are_refused(encoding: bytes) -> None:
    answer = post(*content(), (b"content-encoding", encoding))
    assert answer.refused == (415, "content_encoding_unsupported")


# Headers


@pytest.mark.parametrize("name", sorted(transport.SINGLE_HEADERS))
def test_a_repeated_header_is_refused(name: bytes) -> None:
    pair = (name, b"same")
    headers = [pair, (b"accept", b"*/*"), pair] if name == b"host" else [NOTHING, pair, (b"accept", b"*/*"), pair]
    assert ask(headers=headers).refused == (400, "header_repeated")


def test_the_headers_of_the_contract_are_among_those() -> None:
    assert {b"authorization", b"idempotency-key", b"content-length", b"content-type"} <= transport.SINGLE_HEADERS


def test_other_headers_may_be_repeated() -> None:
    assert (
        ask(headers=[NOTHING, (b"accept", b"a/b"), (b"accept", b"c/d"), (b"cookie", b"1"), (b"cookie", b"2")]).status
        == 200
    )


def test_http_1_1_needs_a_host() -> None:
    assert ask(headers=[]).refused == (400, "header_invalid")
    assert ask(headers=[(b"x-host", b"h")]).refused == (400, "header_invalid")
    assert ask(headers=[(b"host", b"")]).status == 200
    assert ask(headers=[], http_version="1.0").status == 200


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer dibs_ab12_Secret-_~+/.x", "dibs_ab12_Secret-_~+/.x"),
        (b"bearer k", "k"),
        (b"BEARER   k", "k"),
        (b" Bearer k== \t", "k=="),
        (b"Bearer " + b"k" * 512, "k" * 512),
    ],
)
def test_a_bearer_key_is_read(value: bytes, key: str) -> None:
    assert ask(headers=[NOTHING, (b"authorization", value)]).json["bearer"] == key


def test_no_authorization_is_no_key() -> None:
    assert ask().json["bearer"] is None


@pytest.mark.parametrize(
    "value", [b"", b"Basic dXNlcjpwYXNz", b"dibs_ab12_secret", b"Token k", b"Bearer\tk", b"Bearerk", b"Bearer,k x"]
)
def test_another_scheme_asks_for_authentication(value: bytes) -> None:
    answer = ask(headers=[NOTHING, (b"authorization", value)])
    assert answer.refused == (401, "authentication_required")
    assert answer.headers["www-authenticate"] == 'Bearer realm="dibs"'


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer a b",
        b"Bearer a,b",
        b"Bearer a,Bearer b",
        b'Bearer "k"',
        b"Bearer k=x",
        b"Bearer =",
        b"Bearer k\xe9",
        b"Bearer k\x00",
        b"Bearer k\n",
        b"Bearer " + b"k" * 513,
    ],
)
def test_a_key_that_is_no_key_is_invalid(value: bytes) -> None:
    answer = ask(headers=[NOTHING, (b"authorization", value)])
    assert answer.refused == (401, "credential_invalid")
    assert answer.headers["www-authenticate"] == 'Bearer realm="dibs", error="invalid_token"'


@pytest.mark.parametrize("value", [b"k", b"!~", b"a,b;c=d", b"0" * 200])
def test_an_idempotency_key_is_read(value: bytes) -> None:
    assert ask(headers=[NOTHING, (b"idempotency-key", value)]).json["key"] == value.decode()


@pytest.mark.parametrize("value", [b"", b" ", b"a b", b"a\tb", b"0" * 201, b"\xe9", b"a\x7f", b"a\x00", b"a\n", b" a"])
def test_an_idempotency_key_is_visible_ascii(value: bytes) -> None:
    assert ask(headers=[NOTHING, (b"idempotency-key", value)]).refused == (422, "idempotency_key_invalid")


@pytest.mark.parametrize(
    ("values", "prefers"),
    [
        ([], False),
        ([b""], False),
        ([b"respond-async"], True),
        ([b"Respond-Async"], True),
        ([b"respond-async, wait=10"], True),
        ([b"wait=10,respond-async"], True),
        ([b' wait = 10 ; x ; y = "z" ,\t respond-async ; a=b'], True),
        ([b"return=minimal", b"respond-async"], True),
        ([b"respond-async", b"wait=5"], True),
        ([b",, respond-async ,,"], True),
        ([b"respond-async="], True),
        ([b'respond-async=""'], True),
        ([b"respond-async;"], True),
        ([b"respond-async=no"], False),
        ([b"respond-async=no, respond-async"], False),
        ([b"respond-async, respond-async=no"], True),
        ([b"respond-async-not"], False),
        ([b"x; respond-async"], False),
        ([b'x="a, respond-async"'], False),
        ([b'x="a\\", respond-async"'], False),
        ([b'x="a\\\\", respond-async'], True),
        ([b'x="a, respond-async'], False),
        ([b"respond-async wait"], False),
        ([b"respond-async, (comment)"], False),
        ([b"wait=10 respond-async"], False),
        ([b"\xe9, respond-async"], False),
    ],
)
def test_prefer_is_read_as_the_rfc_has_it(values: list[bytes], prefers: bool) -> None:
    assert ask(headers=[NOTHING, *((b"prefer", value) for value in values)]).json["async"] is prefers


@pytest.mark.parametrize("unit", [b" ", b"x ", b"; ", b"x= ", b'="', b'\\"', b"a;", b"a, ", b'"', b'a="b" '])
def test_no_prefer_header_takes_long(unit: bytes) -> None:
    def seconds(length: int) -> float:
        req = testing.create_asgi_req(headers={"Prefer": (b"x" + unit * (length // len(unit))).decode()})
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            transport.prefer_async(req)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(256 * 1024) / max(seconds(16 * 1024), 0.001) < 90


# Query


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        (b"", {}),
        (b"cursor=abc", {"cursor": "abc"}),
        (b"q=", {"q": ""}),
        (b"q=a+b%20c%2B&cursor=x%3D=", {"q": "a b c+", "cursor": "x=="}),
        (b"%71=%C3%A9", {"q": "é"}),
        (b"q=a,b", {"q": "a,b"}),
    ],
)
def test_a_declared_query_is_read(query: bytes, fields: dict[str, str]) -> None:
    assert ask(query=query).json["query"] == fields


@pytest.mark.parametrize(
    "query",
    [
        b"limit=1",
        b"q=1&limit=1",
        b"access_token=k",
        b"key=k",
        b"Q=1",
        b"q=1&q=1",
        b"q=1&q=2",
        b"q=1&%71=2",
        b"q",
        b"=",
        b"=1",
        b"&",
        b"q=1&",
        b"q=1&&cursor=2",
        b"q=%",
        b"q=%2",
        b"q=%zz",
        b"q=%ff",
        b"q=%ed%a0%80",
        b"q=%00",
        b"q=%0a",
        b"q=\x00",
        b"q=\xc3\xa9",
        b"\xff",
        b"q=a;cursor=b%0d",
        b'q="',
        b"q[]=1",
        b"?",
    ],
)
def test_any_other_query_is_refused(query: bytes) -> None:
    assert ask(query=query).refused == (400, "query_invalid")


@pytest.mark.parametrize("query", [b"q=1", b"access_token=k", b"x"])
def test_a_handler_that_declares_no_query_takes_none(query: bytes) -> None:
    assert ask(path="/echo/me", query=query).refused == (400, "query_invalid")
    body = [NOTHING, *content()]
    assert ask("POST", headers=body, query=query, events=[chunk(b"{}")]).refused == (400, "query_invalid")


def test_a_query_can_be_checked_alone() -> None:
    req = testing.create_asgi_req(query_string="a=1&b=2")
    assert transport.refuse_query(req, frozenset({"a", "b", "c"})) == {"a": "1", "b": "2"}
    with pytest.raises(Refusal) as caught:
        transport.refuse_query(req, frozenset({"a"}))
    assert caught.value.problem.code is Code.QUERY_INVALID


# Route and method go first


WRONG_THROUGHOUT = [(b"authorization", b"a"), (b"authorization", b"b")]


@pytest.mark.parametrize("path", ["/nowhere", "/nowhere/", "/echo/a/b", "/echo/a\x00", "/echo/a\nb", "/echo/\x7f"])
def test_an_unknown_route_is_404_whatever_else_is_wrong(path: str) -> None:
    assert ask("BREW", path, headers=WRONG_THROUGHOUT, query=b"\xff").refused == (404, "route_unknown")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/echo", "GET, POST, OPTIONS"),
        ("HEAD", "/echo", "GET, POST, OPTIONS"),
        ("TRACE", "/echo", "GET, POST, OPTIONS"),
        ("CONNECT", "/echo", "GET, POST, OPTIONS"),
        ("QUERY", "/echo", "GET, POST, OPTIONS"),
        ("BREW", "/echo", "GET, POST, OPTIONS"),
        ("get", "/echo", "GET, POST, OPTIONS"),
        ("WEBSOCKET", "/echo", "GET, POST, OPTIONS"),
        ("POST", "/echo/me", "DELETE, GET, OPTIONS"),
        ("BREW", "/echo/me", "DELETE, GET, OPTIONS"),
        ("PUT", "/", "GET, POST, OPTIONS"),
    ],
)
def test_a_wrong_method_is_405_whatever_else_is_wrong(method: str, path: str, allow: str) -> None:
    answer = ask(method, path, headers=WRONG_THROUGHOUT, query=b"\xff")
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    if method != "HEAD":
        assert answer.json["code"] == "method_not_allowed"


def test_options_names_the_methods() -> None:
    answer = ask("OPTIONS")
    assert (answer.status, answer.headers["allow"]) == (200, "GET, POST")


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [
        (WRONG_THROUGHOUT, b"x", "header_invalid"),
        ([NOTHING, *WRONG_THROUGHOUT], b"x", "header_repeated"),
        ([NOTHING, (b"authorization", b"a")], b"x", "query_invalid"),
        ([NOTHING, (b"authorization", b"a")], b"", "media_type_unsupported"),
    ],
)
def test_the_faults_of_one_request_are_named_in_one_order(headers: list[Header], query: bytes, code: str) -> None:
    assert ask("POST", headers=headers, query=query).json["code"] == code


# Every answer


@pytest.mark.parametrize(
    ("method", "path", "storing"),
    [
        ("GET", "/echo", "no-store"),
        ("GET", "/nowhere", "no-store"),
        ("PUT", "/echo", "no-store"),
        ("POST", "/echo", "no-store"),
        ("GET", "/echo/me", "max-age=60"),
    ],
)
def test_every_answer_forbids_sniffing_and_storing(method: str, path: str, storing: str) -> None:
    answer = ask(method, path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == storing


def test_a_websocket_handshake_is_closed() -> None:
    async def handshake() -> None:
        async with testing.ASGIConductor(APP) as conductor, conductor.simulate_ws("/echo"):
            pass

    with pytest.raises(falcon.WebSocketDisconnected):
        asyncio.run(handshake())


def test_the_edge_holds_behind_falcons_own_client_too() -> None:
    client = testing.TestClient(APP)
    answer = client.simulate_post("/echo", body="{}", headers={"Content-Type": "application/json"})
    assert answer.json == {"body": "{}"}
    assert client.simulate_get("/echo", query_string="cursor=1").json["query"] == {"cursor": "1"}
    refused = client.simulate_post("/echo", body="x" * 51, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json["code"]) == (413, "request_too_large")
    twice = [("Authorization", "Bearer a"), ("Authorization", "Bearer a")]
    assert client.simulate_get("/echo", headers=twice).json["code"] == "header_repeated"
    assert client.simulate_get("/echo/me").json == {"name": "me", "query": {}}
    assert client.simulate_delete("/echo/me").status_code == 204
