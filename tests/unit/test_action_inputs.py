"""What the bodies of actions and notes may say, and what they become. Contract 2.2, 2.3, 2.5."""

import json
from collections.abc import Sequence
from typing import Any

import falcon.asgi
import pytest
from falcon import testing

from models.rules.codes import STATUS, Code
from models.rules.intents import (
    REFUSED_IN_DRAIN,
    AssignTask,
    ClaimTask,
    Decision,
    HoldTask,
    Intent,
    PostNote,
    ReleaseTask,
    ReopenTask,
    ReviewTask,
    SubmitTask,
    SupersedeTask,
    UnholdTask,
    WithdrawNote,
    WithdrawTask,
)
from models.rules.spaces import Role, Visibility
from models.rules.tasks import Status
from models.store.reads import Space
from tests.builders import (
    ALPHA,
    BETA,
    EPSILON,
    Board,
    authority,
    create,
    propose,
    task_key_of,
    window,
)
from web import problems, transport
from web.operations import Operation, codes_of
from web.resources.actions import ACTIONS, TaskAction
from web.resources.notes import Notes, NoteWithdrawal
from web.resources.tasks import Tasks

LARGEST = 2**53 - 1
PROOF = "https://example.test/proof"
LAB = Space(id=7, slug="lab", visibility=Visibility.PUBLIC)
REASONED = {"withdraw": WithdrawTask, "hold": HoldTask, "unhold": UnholdTask}
BODILESS = {"claim": ClaimTask, "release": ReleaseTask, "reopen": ReopenTask, "submit": SubmitTask}


class Directory:
    async def authenticate(self, _key: str | None) -> object:
        return self

    async def space(self, _slug: str, _principal: object) -> Space:
        return LAB


class Writes:
    """Remembers what would go through a window."""

    def __init__(self) -> None:
        self.sent: list[tuple[Intent, bool]] = []

    async def answer(
        self,
        _req: object,
        resp: falcon.asgi.Response,
        *,
        principal: object,
        slug: str,
        intents: Sequence[Intent],
        preconditioned: bool = False,
    ) -> None:
        (intent,) = intents
        assert (type(principal), slug) == (Directory, "lab")
        self.sent.append((intent, preconditioned))
        resp.media = {}


class Door:
    """The actions and notes behind the edge, without anything behind them."""

    def __init__(self) -> None:
        self.writes = Writes()
        parts: Any = (Directory(), self.writes)
        app = transport.EdgeApp()
        for name in ACTIONS:
            app.add_route(f"/tasks/{{task_id}}/{name}", _Here(TaskAction(name, *parts)))
        app.add_route("/tasks/{task_id}/notes", _Here(Notes(parts[0], None, parts[1])))  # type: ignore[arg-type]
        withdrawal = NoteWithdrawal(*parts)
        app.add_route("/tasks/{task_id}/notes/{note_id}/withdraw", _Here(withdrawal))
        app.add_route("/notes/{note_id}/withdraw", _Here(withdrawal), suffix="alone")
        problems.install(app)
        transport.install(app)
        self._client = testing.TestClient(app)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """Return the intent, or (code, pointer) of the refusal."""
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            options = {"body": text, "headers": {"Content-Type": "application/json"}} | options
        answer = self._client.simulate_post(path, **options)
        if answer.status_code == 200:
            (intent, self.preconditioned) = self.writes.sent.pop()
            return intent
        assert not self.writes.sent
        assert answer.status_code == STATUS[Code(answer.json["code"])]
        assert answer.json["write_occurred"] is False
        return answer.json["code"], answer.json.get("pointer")

    def do(self, name: str, body: Any = None, **options: Any) -> Any:
        return self.post(f"/tasks/3/{name}", body, **options)


class _Here:
    """A resource whose routes leave the space out."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource
        self.operations = resource.operations

    async def on_post(self, req: Any, resp: Any, **path: str) -> None:
        await self._resource.on_post(req, resp, slug="lab", **path)

    async def on_post_alone(self, req: Any, resp: Any, **path: str) -> None:
        await self._resource.on_post_alone(req, resp, slug="lab", **path)


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("claim", {}, ClaimTask(task_id=3)),
        ("release", {}, ReleaseTask(task_id=3)),
        ("reopen", {}, ReopenTask(task_id=3)),
        ("assign", {"assignee": "agt_beta"}, AssignTask(task_id=3, assignee="agt_beta")),
        ("submit", {}, SubmitTask(task_id=3)),
        ("submit", {"evidence": [PROOF], "note": " So\n"}, SubmitTask(task_id=3, evidence=(PROOF,), note=" So\n")),
        ("review", {"decision": "accept"}, ReviewTask(task_id=3, decision=Decision.ACCEPT)),
        (
            "review",
            {"decision": "changes_requested", "note": "More"},
            ReviewTask(task_id=3, decision=Decision.CHANGES_REQUESTED, note="More"),
        ),
        ("review", {"decision": "reject", "note": ""}, ReviewTask(task_id=3, decision=Decision.REJECT)),
        ("withdraw", {"reason": " Not\r\n\tneeded "}, WithdrawTask(task_id=3, reason="Not needed")),
        ("hold", {"reason": "Wait"}, HoldTask(task_id=3, reason="Wait")),
        ("unhold", {"reason": "Go on"}, UnholdTask(task_id=3, reason="Go on")),
        (
            "supersede",
            {"surviving_task": 94, "reason": "allocation_duplicate"},
            SupersedeTask(task_id=3, surviving_task=94, reason="allocation_duplicate"),
        ),
        ("close", {"surviving_task": 3, "reason": ""}, SupersedeTask(task_id=3, surviving_task=3, reason="")),
    ],
)
def test_an_action_becomes_its_intent(door: Door, name: str, body: Any, expected: Intent) -> None:
    assert door.do(name, body) == expected
    assert door.preconditioned


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_declares_what_it_does(name: str) -> None:
    action = ACTIONS[name]
    operation = TaskAction(name, None, None).operations["on_post"]  # type: ignore[arg-type]
    codes = codes_of(f"/v0/spaces/{{slug}}/tasks/{{task_id}}/{name}", operation)
    assert {Code.TASK_NOT_FOUND, Code.NOT_A_MEMBER, Code.REVISION_MISMATCH, Code.FIELD_UNKNOWN} <= codes
    assert (Code.WORK_DRAIN_ACTIVE in codes) is (action.kind in REFUSED_IN_DRAIN)
    assert (operation.if_match, operation.intent) == (True, action.kind)
    assert operation.body_optional is (name in BODILESS)


@pytest.mark.parametrize("name", BODILESS)
def test_an_action_that_needs_nothing_takes_no_body(door: Door, name: str) -> None:
    expected = BODILESS[name](task_id=3)
    for headers in ({}, {"Content-Length": "0"}, {"Content-Length": "0", "Content-Type": "text/plain"}):
        assert door.do(name, headers=headers) == expected
    assert door.do(name, headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"}) == (
        "length_required",
        None,
    )
    assert door.do(name, "{}", headers={"Content-Type": "text/plain"})[0] == "media_type_unsupported"
    assert door.do(name, " ")[0] == "malformed_json"
    for text in ("null", "[]", '""', "0"):
        assert door.do(name, text) == ("field_invalid", "")


@pytest.mark.parametrize("name", sorted(ACTIONS.keys() - BODILESS.keys()))
def test_an_action_that_needs_a_field_needs_a_body(door: Door, name: str) -> None:
    assert door.do(name)[0] == "media_type_unsupported"
    assert door.do(name, headers={"Content-Type": "application/json"})[0] in {"length_required", "malformed_json"}
    code, pointer = door.do(name, {})
    assert (code, pointer) == ("field_missing", f"/{next(iter(ACTIONS[name].body.__struct_fields__))}")


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_takes_no_other_field(door: Door, name: str) -> None:
    for field in ("actor", "status", "task_id", "revision"):
        assert door.do(name, {field: "x"}) == ("field_unknown", "")


BAD_IDS = ["0", "01", "-1", "+1", "1.0", "1e3", "x", "0x1", "1_0", str(LARGEST + 1), "9" * 17, "9" * 5000]


@pytest.mark.parametrize("text", [*BAD_IDS, "%31%20", "%D9%A1", "%C2%B2"])
def test_what_is_no_decimal_names_no_task_and_no_note(door: Door, text: str) -> None:
    assert door.post(f"/tasks/{text}/claim") == ("task_not_found", None)
    assert door.post(f"/tasks/{text}/supersede", {"surviving_task": 1, "reason": ""}) == ("task_not_found", None)
    assert door.post(f"/tasks/{text}/notes", {"kind": "post_review_note", "body": "x"}) == ("task_not_found", None)
    assert door.post(f"/tasks/{text}/notes/1/withdraw") == ("task_not_found", None)
    assert door.post(f"/tasks/1/notes/{text}/withdraw") == ("note_not_found", None)
    assert door.post(f"/notes/{text}/withdraw") == ("note_not_found", None)


def test_ids_go_as_far_as_json_keeps_them(door: Door) -> None:
    assert door.post(f"/tasks/{LARGEST}/claim") == ClaimTask(task_id=LARGEST)
    assert door.post(f"/notes/{LARGEST}/withdraw") == WithdrawNote(note_id=LARGEST)


WRONG_TYPES = {"text": [1, None, True, [], {}], "integer": ["1", None, True, 1.0, 1.5, [], {}, -1, 2**64]}


@pytest.mark.parametrize(
    ("name", "field", "kind", "others"),
    [
        ("assign", "assignee", "text", {}),
        ("submit", "note", "text", {}),
        ("review", "decision", "text", {}),
        ("review", "note", "text", {"decision": "accept"}),
        ("withdraw", "reason", "text", {}),
        ("hold", "reason", "text", {}),
        ("unhold", "reason", "text", {}),
        ("supersede", "reason", "text", {"surviving_task": 1}),
        ("supersede", "surviving_task", "integer", {"reason": "x"}),
        ("close", "surviving_task", "integer", {"reason": "x"}),
        ("notes", "kind", "text", {"body": "x"}),
        ("notes", "body", "text", {"kind": "post_review_note"}),
        ("notes", "criterion_index", "integer", {"kind": "post_review_note", "body": "x"}),
    ],
)
def test_a_field_is_of_its_type_and_null_is_no_absence(
    door: Door, name: str, field: str, kind: str, others: dict[str, Any]
) -> None:
    for value in WRONG_TYPES[kind]:
        assert door.do(name, {**others, field: value}) == ("field_invalid", f"/{field}"), value


@pytest.mark.parametrize("text", ["a", "agt_alpha", "x" * 100, " ", "\U0001f600" * 100])
def test_an_assignee_is_a_text(door: Door, text: str) -> None:
    assert door.do("assign", {"assignee": text}) == AssignTask(task_id=3, assignee=text)


@pytest.mark.parametrize("text", ["", "x" * 101, "\0", "agt\0"])
def test_an_assignee_that_nobody_can_be_is_refused(door: Door, text: str) -> None:
    assert door.do("assign", {"assignee": text}) == ("field_invalid", "/assignee")


@pytest.mark.parametrize("name", REASONED)
def test_a_reason_is_shortened_to_its_words(door: Door, name: str) -> None:
    for given_text, kept in ((" a\u3000\t b\r\n", "a b"), ("x" * 1000, "x" * 1000), (" " * 2000 + "x", "x")):
        assert door.do(name, {"reason": given_text}) == REASONED[name](task_id=3, reason=kept)


@pytest.mark.parametrize("name", REASONED)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "reason_empty"),
        (" \t\r\n\u2003\u3000", "reason_empty"),
        ("x" * 1001, "field_invalid"),
        ("\0", "field_invalid"),
        ("so\0", "field_invalid"),
    ],
    ids=["empty", "blank", "long", "nul", "nul within"],
)
def test_a_reason_says_something_that_can_be_kept(door: Door, name: str, text: str, code: str) -> None:
    assert door.do(name, {"reason": text}) == (code, "/reason")


@pytest.mark.parametrize("name", ["supersede", "close"])
def test_a_close_reason_is_for_the_window_to_judge(door: Door, name: str) -> None:
    for reason in ("", " ", " allocation_duplicate\n", "because", "x" * 200):
        closed = door.do(name, {"surviving_task": 94, "reason": reason})
        assert closed == SupersedeTask(task_id=3, surviving_task=94, reason=reason)
    for reason in ("x" * 201, "\0", "steward_close\0"):
        assert door.do(name, {"surviving_task": 94, "reason": reason}) == ("field_invalid", "/reason")
    for survivor in (1, 3, LARGEST):
        assert door.do(name, {"surviving_task": survivor, "reason": "x"}).surviving_task == survivor
    for survivor in (0, -1, LARGEST + 1):
        assert door.do(name, {"surviving_task": survivor, "reason": "x"}) == ("field_invalid", "/surviving_task")
    assert door.do(name, {"surviving_task": 94}) == ("field_missing", "/reason")
    assert door.do(name, {"reason": "x"}) == ("field_missing", "/surviving_task")


@pytest.mark.parametrize(("name", "others"), [("submit", {}), ("review", {"decision": "accept"})])
def test_notes_beside_an_action_are_bounded(door: Door, name: str, others: dict[str, Any]) -> None:
    text = "\U0001f600" * 8000
    assert door.do(name, json.dumps({**others, "note": text}, ensure_ascii=False)).note == text
    for text in ("x" * 8001, "\0", "x\0"):
        assert door.do(name, {**others, "note": text}) == ("body_invalid", "/note")


@pytest.mark.parametrize("text", ["", "Accept", " accept", "accept\n", "approve", "changes requested"])
def test_a_decision_is_one_of_three(door: Door, text: str) -> None:
    assert door.do("review", {"decision": text}) == ("decision_unknown", "/decision")


def test_evidence_is_up_to_sixteen_different_references(door: Door) -> None:
    several = [f"{PROOF}/{number}" for number in range(17)]
    assert door.do("submit", {"evidence": several[:16]}).evidence == tuple(several[:16])
    assert door.do("submit", {"evidence": []}).evidence == ()
    assert door.do("submit", {"evidence": several}) == ("evidence_invalid", "/evidence")
    assert door.do("submit", {"evidence": [PROOF, f"{PROOF}/2", PROOF]}) == ("evidence_invalid", "/evidence/2")
    assert door.do("submit", {"evidence": [PROOF, "", "no"]}) == ("evidence_invalid", "/evidence/1")
    assert door.do("submit", {"evidence": [PROOF, 1]}) == ("field_invalid", "/evidence/1")
    for value in (PROOF, None, {}, 1):
        assert door.do("submit", {"evidence": value}) == ("field_invalid", "/evidence")


def test_a_note_becomes_its_intent(door: Door) -> None:
    assert door.do("notes", {"kind": "post_review_note", "body": "So"}) == PostNote(task_id=3, body="So")
    for criterion in (0, 1, 999):
        note = {"kind": "post_review_note", "body": " So\r\n it is ", "criterion_index": criterion}
        # As it was sent: what makes two notes one is the ConflictKey's business.
        assert door.do("notes", note) == PostNote(task_id=3, body=" So\r\n it is ", criterion_index=criterion)
    for criterion in (1000, -1):
        note = {"kind": "post_review_note", "body": "So", "criterion_index": criterion}
        assert door.do("notes", note) == ("field_invalid", "/criterion_index")
    assert door.do("notes")[0] == "media_type_unsupported"
    assert door.do("notes", {"kind": "post_review_note", "body": "x", "delivery_mode": "result"})[0] == "field_unknown"


@pytest.mark.parametrize("text", ["", "note", "Post_review_note", "create_task", " post_review_note"])
def test_a_note_is_of_one_kind(door: Door, text: str) -> None:
    assert door.do("notes", {"kind": text, "body": ""}) == ("note_kind_unknown", "/kind")


@pytest.mark.parametrize("text", ["", " ", "\r\n\t\u3000", "x" * 8001, " " * 8000 + "x", "\0", "so\0"])
def test_a_note_says_something_that_can_be_kept(door: Door, text: str) -> None:
    assert door.do("notes", {"kind": "post_review_note", "body": text}) == ("body_invalid", "/body")


def test_a_note_may_be_of_eight_thousand_characters(door: Door) -> None:
    for text in ("x", "x" * 8000, " " * 7999 + "x", "\U0001f600" * 8000):
        body = json.dumps({"kind": "post_review_note", "body": text}, ensure_ascii=False)
        assert door.do("notes", body) == PostNote(task_id=3, body=text)


def test_a_note_is_withdrawn_with_its_task_or_alone(door: Door) -> None:
    for body in (None, {}):
        assert door.post("/tasks/3/notes/5/withdraw", body) == WithdrawNote(note_id=5, task_id=3)
        assert door.post("/notes/5/withdraw", body) == WithdrawNote(note_id=5)
    for path in ("/tasks/3/notes/5/withdraw", "/notes/5/withdraw"):
        assert door.post(path, {"reason": "x"}) == ("field_unknown", "")
        assert door.post(path, "[]") == ("field_invalid", "")


STEWARD, OUTSIDER = "agt_steward", "agt_outsider"
KEY = task_key_of(name="reef")


def declared(intent: Intent) -> frozenset[Code]:
    """Return what the description says of this kind of write."""
    several: list[Operation] = [
        *(TaskAction(name, None, None).operations["on_post"] for name in ACTIONS),  # type: ignore[arg-type]
        *(resource.operations[name] for resource in (Notes, Tasks) for name in ("on_post",)),
        NoteWithdrawal.operations["on_post" if getattr(intent, "task_id", None) else "on_post_alone"],
    ]
    operations = [one for one in several if one.intent is type(intent)]
    assert operations
    return frozenset.intersection(*(codes_of("/v0/spaces/{slug}", one) for one in operations))


def crowded(status: Status, *, held: bool) -> Board:
    """A board with a task in this state, its survivors of all kinds, others on its key, and notes in both states."""
    board = Board(authorities=[authority(agent=STEWARD, role=Role.STEWARD), authority(agent=OUTSIDER, role=None)])
    holder = BETA if status in {Status.CLAIMED, Status.ASSIGNED, Status.IN_REVIEW, Status.DONE} else None
    board.put(
        id=1,
        key=KEY,
        status=status,
        holder=holder,
        assigned_to=BETA if status is Status.ASSIGNED else None,
        superseded_by=2 if status is Status.SUPERSEDED else None,
        held=held,
    )
    for number, other in enumerate(Status, start=2):
        key = KEY if number % 2 else task_key_of(name=f"other {number}")
        board.put(id=number, key=key, status=other, superseded_by=2 if other is Status.SUPERSEDED else None)
    if status is not Status.SUPERSEDED:
        notes = [PostNote(task_id=1, body=text) for text in ("Kept", "Gone")]
        board.run(*window(*(propose(note, number=number) for number, note in enumerate(notes, start=900))))
        board.run(*window(propose(WithdrawNote(note_id=2), number=902), first_seq=3))
    return board


WRITES: list[Intent] = [
    *(kind(task_id=number) for kind in BODILESS.values() for number in (1, 99)),
    *(kind(task_id=number, reason="so") for kind in REASONED.values() for number in (1, 99)),
    SubmitTask(task_id=1, evidence=(PROOF,)),
    *(ReviewTask(task_id=number, decision=decision) for decision in Decision for number in (1, 99)),
    *(AssignTask(task_id=1, assignee=agent) for agent in (EPSILON, OUTSIDER, "agt_nobody")),
    *(
        SupersedeTask(task_id=task, surviving_task=survivor, reason=reason)
        for task in (1, 99)
        for survivor in (*range(1, 10), 98)
        for reason in ("allocation_duplicate", "canonical_pointer", "", "because")
    ),
    *(PostNote(task_id=number, body=text) for number in (1, 99) for text in ("Kept", "Gone", "New")),
    *(WithdrawNote(note_id=note, task_id=task) for note in (1, 2, 99) for task in (None, 1, 2)),
    create(title="reef").intent,
    create(title="new").intent,
]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("status", Status)
def test_whatever_the_window_says_is_declared(status: Status, held: bool) -> None:
    """Everyone tries everything twice in one window, with and without the revision: no code comes as a surprise."""
    said: dict[type[Intent], set[Code]] = {}
    for intent in WRITES:
        for agent in (ALPHA, BETA, EPSILON, STEWARD, OUTSIDER):
            for if_match in (None, (7,)):
                several = [propose(intent, actor=agent, number=number, if_match=if_match) for number in (1, 2)]
                plan = crowded(status, held=held).run(*window(*several, first_seq=10))
                codes = {outcome.answer.code for outcome in plan.fresh} - {None}
                said.setdefault(type(intent), set()).update(map(Code, codes))
                assert codes <= declared(intent), intent
    assert all(said.values())
