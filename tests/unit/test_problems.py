import re
from collections.abc import Awaitable, Callable
from typing import Any

import falcon
import falcon.asgi
import msgspec
import pytest
from falcon import testing
from structlog.testing import capture_logs

from models.rules import codes
from models.rules.codes import Code
from web import problems
from web.problems import Problem, Refusal
from web.strict_json import JsonRefused

CANARY = "canary-51d0"

Act = Callable[[falcon.asgi.Request, falcon.asgi.Response], Awaitable[None]]


class Scene:
    """A resource of which every handler does the same."""

    def __init__(self, act: Act) -> None:
        self._act = act

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        await self._act(req, resp)

    on_post = on_get


def client_of(act: Act, **options: Any) -> testing.TestClient:
    app = falcon.asgi.App()
    app.add_route("/scene", Scene(act))
    app.add_route("/other/scene", Scene(act))
    problems.install(app, **options)
    return testing.TestClient(app)


def answer_to(error: Exception, method: str = "GET") -> testing.Result:
    async def act(_req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.media = {"half": "done"}
        resp.status = falcon.HTTP_201
        raise error

    with capture_logs():
        return client_of(act).simulate_request(method, "/scene")


# Codes


@pytest.mark.parametrize("code", Code)
def test_every_code_has_all_its_meaning(code: Code) -> None:
    assert 400 <= codes.STATUS[code] < 600
    assert re.fullmatch(r"[A-Z][^.]{8,60}", codes.TITLE[code])
    assert re.fullmatch(r"[A-Z][^\n]{10,140}\.", codes.ADVICE[code])
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code.value)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", codes.error_class(code))
    if codes.STATUS[code] in {429, 503}:
        assert code in codes.RETRYABLE
        assert codes.RETRY_AFTER_S[code] >= 1


@pytest.mark.parametrize("table", [codes.STATUS, codes.TITLE, codes.ADVICE])
def test_no_table_knows_a_code_that_is_none(table: dict[Code, object]) -> None:
    assert set(table) == set(Code)
    with pytest.raises(TypeError):
        table[Code.WINDOW_FULL] = 1


def test_titles_tell_codes_apart() -> None:
    assert len(set(codes.TITLE.values())) == len(Code)


@pytest.mark.parametrize(
    ("status", "values"),
    [
        (
            400,
            """malformed_json duplicate_json_key nesting_too_deep body_incomplete header_repeated
            header_invalid query_invalid cursor_invalid""",
        ),
        (401, "authentication_required credential_invalid"),
        (403, "actor_not_active not_a_member"),
        (404, "route_unknown space_not_found task_not_found proposal_unknown"),
        (405, "method_not_allowed"),
        (409, "conflict_key_occupied conflict_key_reserved"),
        (411, "length_required"),
        (413, "request_too_large"),
        (415, "media_type_unsupported content_encoding_unsupported"),
        (
            422,
            """title_empty title_invalid body_invalid work_item_id_invalid delivery_mode_unknown
            validation_policy_unknown idempotency_key_invalid idempotency_key_reused field_unknown
            field_missing field_invalid""",
        ),
        (429, "rate_limited"),
        (500, "intent_failed internal_error"),
        (503, "work_drain_active allocation_pending window_full commons_runtime_unavailable"),
    ],
)
def test_codes_have_the_contracts_status(status: int, values: str) -> None:
    assert {codes.STATUS[Code(value)] for value in values.split()} == {status}


def test_only_the_two_conflicts_are_allocation_conflicts() -> None:
    conflicts = {code for code in Code if codes.error_class(code) == "allocation_conflict"}
    assert conflicts == {Code.CONFLICT_KEY_OCCUPIED, Code.CONFLICT_KEY_RESERVED}
    assert codes.error_class(Code.NOT_A_MEMBER) == "not_authorized"


# Documents


def document(**about: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(problems.spaces_document(Problem(**about)))
    return found


def test_the_document_bears_the_members_of_the_seed_and_of_the_rfc() -> None:
    assert document(code=Code.FIELD_INVALID, pointer="/title") == {
        "type": "urn:dibs:problem:field_invalid",
        "title": codes.TITLE[Code.FIELD_INVALID],
        "status": 422,
        "detail": codes.ADVICE[Code.FIELD_INVALID],
        "error": "invalid",
        "code": "field_invalid",
        "retryable": False,
        "pointer": "/title",
        "write_occurred": False,
    }


def test_what_is_known_better_than_the_code_knows_it_is_said() -> None:
    found = document(code=Code.WINDOW_FULL, detail="Do this.", members={"proposal_id": "prp_1", "nothing": None})
    assert (found["detail"], found["proposal_id"], found["retryable"]) == ("Do this.", "prp_1", True)
    assert "nothing" not in found
    assert "pointer" not in found


def test_the_pointer_to_the_whole_document_is_kept() -> None:
    assert document(code=Code.FIELD_UNKNOWN, pointer="")["pointer"] == ""


@pytest.mark.parametrize("code", Code)
def test_an_unknown_outcome_is_null_and_never_true(code: Code) -> None:
    unknown = {Code.ALLOCATION_PENDING, Code.COMMONS_RUNTIME_UNAVAILABLE, Code.INTERNAL_ERROR}
    assert document(code=code)["write_occurred"] is (None if code in unknown else False)
    assert document(code=code, write_occurred=False)["write_occurred"] is False
    assert document(code=code, write_occurred=None)["write_occurred"] is None


# Answers


@pytest.mark.parametrize("code", Code)
def test_every_refusal_is_answered_as_a_problem(code: Code) -> None:
    answer = answer_to(Refusal(code))
    assert answer.status_code == codes.STATUS[code]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == document(code=code)
    wait = answer.headers.get("retry-after")
    assert wait == (str(codes.RETRY_AFTER_S[code]) if code in codes.RETRY_AFTER_S else None)
    assert ("www-authenticate" in answer.headers) is (answer.status_code == 401)


@pytest.mark.parametrize(("seconds", "header"), [(-5, "1"), (0, "1"), (1, "1"), (7, "7")])
def test_retry_after_is_an_integer_of_at_least_one(seconds: int, header: str) -> None:
    assert answer_to(Refusal(Code.RATE_LIMITED, retry_after_s=seconds)).headers["retry-after"] == header
    assert answer_to(Refusal(Code.FIELD_INVALID, retry_after_s=seconds)).headers["retry-after"] == header


def test_a_refusal_says_all_it_was_given() -> None:
    answer = answer_to(
        Refusal(
            Code.ALLOCATION_PENDING,
            "Read the proposal.",
            pointer="/a",
            write_occurred=False,
            members={"proposal_id": "prp_2"},
        )
    )
    said = {name: answer.json[name] for name in ("detail", "pointer", "write_occurred", "proposal_id")}
    assert said == {
        "detail": "Read the proposal.",
        "pointer": "/a",
        "write_occurred": False,
        "proposal_id": "prp_2",
    }


def test_a_refused_body_is_answered_with_its_pointer() -> None:
    answer = answer_to(JsonRefused(Code.FIELD_MISSING, "/title", "Add it."), "POST")
    assert (answer.status_code, answer.json["code"]) == (422, "field_missing")
    assert (answer.json["pointer"], answer.json["detail"]) == ("/title", "Add it.")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (falcon.HTTPRouteNotFound(), 404, "route_unknown"),
        (falcon.HTTPNotFound(description=CANARY), 404, "route_unknown"),
        (falcon.HTTPBadRequest(title=CANARY, description=CANARY), 400, "header_invalid"),
        (falcon.HTTPInvalidHeader(CANARY, CANARY), 400, "header_invalid"),
        (falcon.HTTPUriTooLong(description=CANARY), 400, "header_invalid"),
        (falcon.HTTPLengthRequired(), 411, "length_required"),
        (falcon.HTTPContentTooLarge(), 413, "request_too_large"),
        (falcon.HTTPUnsupportedMediaType(description=CANARY), 415, "media_type_unsupported"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_falcon_finds_has_the_same_shape(error: Exception, status: int, code: str) -> None:
    answer = answer_to(error)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json == document(code=Code(code))
    assert CANARY not in answer.text


@pytest.mark.parametrize("headers", [{"Allow": "GET"}, [("Allow", "GET")]])
def test_a_wrong_method_is_told_the_right_ones(headers: Any) -> None:
    answer = answer_to(falcon.HTTPError(405, headers=headers))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json["code"] == "method_not_allowed"


def test_routes_and_methods_that_do_not_exist_have_the_same_shape() -> None:
    async def act(_req: falcon.asgi.Request, _resp: falcon.asgi.Response) -> None:
        raise AssertionError

    client = client_of(act)
    missing = client.simulate_get("/nowhere")
    assert (missing.status_code, missing.json) == (404, document(code=Code.ROUTE_UNKNOWN))
    wrong = client.simulate_put("/scene")
    assert (wrong.status_code, wrong.json) == (405, document(code=Code.METHOD_NOT_ALLOWED))
    assert wrong.headers["allow"] == "GET, POST, OPTIONS"


# Bugs


def broken() -> None:
    try:
        int(CANARY)
    except ValueError as error:
        raise RuntimeError(CANARY) from error


def failing(method: str) -> tuple[testing.Result, list[Any]]:
    async def act(_req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.text = CANARY
        broken()

    with capture_logs() as logs:
        answer = client_of(act).simulate_request(method, "/scene")
    return answer, logs


def test_a_bug_is_answered_with_an_id_that_finds_its_trace() -> None:
    answer, logs = failing("POST")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    error_id = answer.json["error_id"]
    assert answer.json == document(code=Code.INTERNAL_ERROR, members={"error_id": error_id})
    assert re.fullmatch(r"err_[0-9a-f]{16}", error_id)
    (entry,) = logs
    assert entry["error_id"] == error_id
    assert (entry["log_level"], entry["method"], entry["route"]) == ("error", "POST", "/scene")
    assert [line for line in entry["trace"] if not line.startswith(" ")] == [
        "builtins.RuntimeError",
        "builtins.ValueError",
    ]
    assert any(line.endswith("in broken") and __file__ in line for line in entry["trace"])


def test_neither_the_answer_to_a_bug_nor_its_log_quotes_anything() -> None:
    answer, logs = failing("GET")
    assert CANARY not in answer.text
    assert CANARY not in repr(logs)


def test_a_read_that_fails_wrote_nothing() -> None:
    assert failing("GET")[0].json["write_occurred"] is False
    assert failing("POST")[0].json["write_occurred"] is None


def test_no_two_failures_share_an_id() -> None:
    assert failing("GET")[0].json["error_id"] != failing("GET")[0].json["error_id"]


@pytest.mark.parametrize(
    "error", [falcon.HTTPInternalServerError(), falcon.HTTPServiceUnavailable(), falcon.HTTPError(599)]
)
def test_a_server_error_of_falcons_kind_is_a_bug_too(error: Exception) -> None:
    assert answer_to(error).json["code"] == "internal_error"


def test_media_that_cannot_be_written_is_a_bug() -> None:
    async def act(_req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        resp.media = {"no": object()}

    with capture_logs() as logs:
        answer = client_of(act).simulate_get("/scene")
    # Falcon does not render twice, so the body stays empty; handlers here encode for themselves and raise earlier.
    assert (answer.status_code, answer.content) == (500, b"")
    assert logs[0]["trace"][0] == "builtins.TypeError"


def types_in(error: BaseException) -> list[str]:
    return [line for line in problems.trace_of(error) if not line.startswith(" ")]


def test_a_trace_follows_causes_contexts_and_groups() -> None:
    inner, outer = KeyError(CANARY), OSError(CANARY)
    outer.__context__ = inner
    assert types_in(outer) == ["builtins.OSError", "builtins.KeyError"]
    outer.__suppress_context__ = True
    assert types_in(outer) == ["builtins.OSError"]
    outer.__cause__ = TypeError()
    assert types_in(outer) == ["builtins.OSError", "builtins.TypeError"]
    group = ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [TypeError()])])
    assert sorted(types_in(group)) == [
        "builtins.ExceptionGroup",
        "builtins.ExceptionGroup",
        "builtins.TypeError",
        "builtins.ValueError",
    ]


def test_a_trace_of_errors_that_caused_each_other_ends() -> None:
    one, two = ValueError(), TypeError()
    one.__cause__, two.__cause__ = two, one
    assert types_in(one) == ["builtins.ValueError", "builtins.TypeError"]


# Choice of shape and of handler


def test_the_path_can_choose_the_shape() -> None:
    async def act(_req: falcon.asgi.Request, _resp: falcon.asgi.Response) -> None:
        raise Refusal(Code.WINDOW_FULL)

    def renderer_of(path: str) -> problems.Renderer:
        return (lambda found: found.code.encode()) if path.startswith("/other/") else problems.spaces_document

    client = client_of(act, renderer_of=renderer_of)
    other = client.simulate_get("/other/scene")
    assert (other.status_code, other.text, other.headers["retry-after"]) == (503, "window_full", "1")
    assert client.simulate_get("/scene").json["code"] == "window_full"


def test_a_handler_of_an_exceptions_own_class_goes_first() -> None:
    async def outage(
        _req: falcon.asgi.Request, _resp: falcon.asgi.Response, _error: Exception, _params: dict[str, Any]
    ) -> None:
        raise falcon.HTTPStatus(299)

    async def act(_req: falcon.asgi.Request, _resp: falcon.asgi.Response) -> None:
        raise ConnectionRefusedError

    app = falcon.asgi.App()
    app.add_route("/scene", Scene(act))
    app.add_error_handler(OSError, outage)
    problems.install(app)
    assert testing.TestClient(app).simulate_get("/scene").status_code == 299
