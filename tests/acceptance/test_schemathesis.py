"""The description against the service: whatever is sent, each answer is documented and none is a 5xx."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.stack import Board, Stack, headers_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
URI_TOO_LONG = 414
REQUEST_LINE_BYTES = 4000
SETTINGS = settings(
    max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def service(stack) -> Stack:
    """A service that refuses nobody for being fast."""
    return stack(agent_rate=100_000, agent_burst=100_000)


@pytest.fixture
def description(service: Stack, board: Board):
    """The service's own description; an endless stream is no call that ends."""
    service.database.rows("UPDATE members SET role = 'steward' WHERE agent_id = %s", board.members[0].id)
    found = schemathesis.openapi.from_url(f"{service.url}/v0/openapi.json")
    return found.exclude(path_regex="/events/stream$")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_answer_is_documented(description, service: Stack, board: Board, mode: GenerationMode) -> None:
    callers = ({}, headers_of(board.members[0]))
    exercised = 0
    for result in description.get_all_operations():
        operation = result.ok()

        @settings(SETTINGS)
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: schemathesis.Case) -> None:
            if "slug" in case.path_parameters:
                case.path_parameters["slug"] = board.slug
            for headers in callers:
                answer = case.call(base_url=service.url, headers=headers, timeout=20)
                if answer.status_code == URI_TOO_LONG:
                    # Said by the server before it knows of any route.
                    assert len(answer.request.url) > REQUEST_LINE_BYTES
                    continue
                case.validate_response(answer, checks=CHECKS)

        try:
            check()
        except Unsatisfiable:
            # A route that takes nothing cannot be sent anything wrong.
            assert mode is GenerationMode.NEGATIVE
            continue
        exercised += 1
    assert exercised > 30
