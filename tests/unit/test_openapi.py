"""The description and the application say the same, both ways."""

import json
import re
from typing import Any, ClassVar

import jsonschema_rs
import pytest

from models.rules import intents
from models.rules.codes import STATUS, Code
from models.settings import SecretKey, Settings
from web import openapi
from web.app import Parts, create_app
from web.operations import Auth, Operation, codes_of

NOT_ANSWERED = {
    # Said before a route is found.
    Code.METHOD_NOT_ALLOWED,
    # An agent cannot cause it: the actor is the key's.
    Code.ATTRIBUTION_REQUIRED,
}
"""Codes that no operation answers."""


@pytest.fixture(scope="module")
def app():
    secrets = (SecretKey("k1", b"s" * 40),)
    return create_app(Parts(Settings(database_url="postgresql:///none", redis_url="redis://none", secret_keys=secrets)))


@pytest.fixture(scope="module")
def document(app) -> dict[str, Any]:
    return json.loads(openapi.document(app.operations, version="1.2.3"))


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method.upper()): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    }


def test_every_route_is_described_and_nothing_else(app, document: dict[str, Any]) -> None:
    assert operations(document).keys() == app.operations.keys()


def test_every_declared_handler_is_a_route() -> None:
    """A handler that is declared and not routed, or routed and not declared, is a slip of the pen."""

    class Slip:
        operations: ClassVar = {"on_get": Operation(id="x", summary="x", answers={200: None})}

        async def on_post(self, req, resp) -> None: ...

    app = create_app_with(Slip())
    assert app.operations["/slip", "POST"] is None
    with pytest.raises(ValueError, match="POST /slip"):
        openapi.document(app.operations, version="1")


def create_app_with(resource: object):
    from web.transport import EdgeApp  # noqa: PLC0415 - only here

    app = EdgeApp()
    app.add_route("/slip", resource)
    return app


def test_operation_ids_are_names_of_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]*)*", name) for name in names)
    assert {"listSpaceTasks", "supersedeSpaceTask", "closeSpaceTask"} <= set(names)


def test_every_code_is_answered_somewhere_with_its_status(app, document: dict[str, Any]) -> None:
    answered: set[str] = set()
    for operation in operations(document).values():
        for status, response in operation["responses"].items():
            problem = response["content"].get("application/problem+json")
            members = problem["schema"]["allOf"][1]["properties"] if problem else {}
            named = members["error"]["properties"] if "error" in members else members
            for code in named["code"]["enum"] if named else ():
                two = code == "work_retention_increase" and operation["operationId"] == "correctWork"
                assert (409 if two else STATUS[Code(code)]) == int(status)
                answered.add(code)
    assert answered | {code.value for code in NOT_ANSWERED} == set(Code)
    assert not answered & {code.value for code in NOT_ANSWERED}


def test_every_kind_of_write_has_an_operation(app) -> None:
    kinds = {operation.intent for operation in app.operations.values()} - {None}
    assert kinds == set(intents.Intent.__args__)


def test_references_resolve_and_path_fields_are_described(document: dict[str, Any]) -> None:
    names = re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', json.dumps(document, separators=(",", ":")))
    assert set(names) <= document["components"]["schemas"].keys()
    for path, item in document["paths"].items():
        described = {one["name"] for one in item.get("parameters", ())}
        assert described == set(re.findall(r"{(\w+)}", path))


def test_the_schemas_are_schemas(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_a_task_shows_what_seed_003_asks_for(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "superseded" in schemas["Status"]["enum"]
    assert "superseded_by" in schemas["Task"]["properties"]
    paths = document["paths"]
    assert {"supersede", "close"} <= {path.rpartition("/")[2] for path in paths if "/tasks/{task_id}/" in path}
    query = {one["name"] for one in paths["/v0/spaces/{slug}/tasks"]["get"]["parameters"]}
    assert query == {"limit", "cursor", "status", "include_superseded", "stale"}


def test_no_sentence_names_a_document_that_readers_do_not_have(document: dict[str, Any]) -> None:
    assert not re.search(r"Contract \d|Seed \d|section \d", json.dumps(document))


def test_codes_follow_from_what_an_operation_takes() -> None:
    def codes(path: str = "/x", **members: Any) -> frozenset[Code]:
        return codes_of(path, Operation(id="x", summary="x", answers={}, **members))

    assert Code.CREDENTIAL_INVALID not in codes(auth=Auth.NONE)
    assert codes(auth=Auth.OPTIONAL) - codes(auth=Auth.NONE) == {
        Code.AUTHENTICATION_REQUIRED,
        Code.CREDENTIAL_INVALID,
        Code.COMMONS_RUNTIME_UNAVAILABLE,
    }
    assert Code.SPACE_NOT_FOUND in codes("/{slug}")
    assert Code.FIELD_MISSING in codes(body=dict)
    for kind in intents.Intent.__args__:
        assert (Code.WORK_DRAIN_ACTIVE in codes(intent=kind)) is (kind in intents.REFUSED_IN_DRAIN)
