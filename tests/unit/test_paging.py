"""Cursors that only their own list takes, and queries that mean one thing. Contract 2.6."""

import base64
from contextlib import asynccontextmanager
from typing import Any

import pytest
from falcon import testing
from hypothesis import given
from hypothesis import strategies as st

from models.rules.codes import Code
from models.rules.spaces import Visibility
from models.rules.tasks import LIVE, Status
from models.settings import SecretKey
from models.store.reads import Space
from web import problems, transport
from web.paging import LIMIT_DEFAULT, LIMIT_MAX, Cursors, Page, Pages, integer_of, limit_of
from web.problems import Refusal
from web.resources.notes import Notes
from web.resources.tasks import Tasks

OLD = SecretKey("k1", b"o" * 40)
NEW = SecretKey("k2", b"n" * 40)
OTHER = SecretKey("k1", b"x" * 40)
SCOPE = ("tasks", "7", "claimed,open", "None")
LAB = Space(id=7, slug="lab", visibility=Visibility.PUBLIC)
REEF = Space(id=8, slug="reef", visibility=Visibility.PUBLIC)


def reads(cursor: str, *scope: str, secrets: tuple[SecretKey, ...] = (OLD,)) -> str | None:
    """Return the place behind a cursor, None for one that is refused."""
    try:
        return Cursors(secrets).read(cursor, *scope)
    except Refusal as refusal:
        return {Code.CURSOR_INVALID: None}[refusal.problem.code]


@given(position=st.text(st.characters(exclude_categories=["Cs"])), scope=st.lists(st.text("ab,:", max_size=3)))
def test_a_cursor_leads_back_to_its_place(position: str, scope: list[str]) -> None:
    cursor = Cursors([OLD]).write(position, *scope)
    assert cursor.isascii()
    assert reads(cursor, *scope) == position


@pytest.mark.parametrize(
    "scope",
    [
        ("notes", *SCOPE[1:]),
        ("tasks", "70", *SCOPE[2:]),
        ("tasks", "7", "claimed", "None"),
        ("tasks", "7", "claimed,open,superseded", "None"),
        ("tasks", "7", "claimed,open", "0"),
        ("tasks", "7", "claimed,open"),
        (*SCOPE, ""),
        ("tasks", "7claimed,open", "", "None"),
        ("tasks7", "claimed,open", "None"),
    ],
    ids=["route", "space", "fewer states", "more states", "stale", "shorter", "longer", "moved", "joined"],
)
def test_a_cursor_is_of_one_list(scope: tuple[str, ...]) -> None:
    assert reads(Cursors([OLD]).write("40", *SCOPE), *scope) is None


def test_a_place_is_no_part_of_the_scope() -> None:
    assert reads(Cursors([OLD]).write("40", "7", "x"), "0", "x") is None
    raw = base64.urlsafe_b64decode(Cursors([OLD]).write("40", "7") + "==")
    moved = base64.urlsafe_b64encode(raw[:-1]).rstrip(b"=").decode()
    assert reads(moved, "07") is None


@pytest.mark.parametrize("position", ["1", "40", "123", "9007199254740991"])
def test_every_bit_of_a_cursor_counts(position: str) -> None:
    cursor = Cursors([OLD]).write(position, *SCOPE)
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert reads(base64.urlsafe_b64encode(flipped).rstrip(b"=").decode(), *SCOPE) is None
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for at, present in enumerate(cursor):
        # The last character has bits that stand for nothing: not even they make a second spelling.
        assert [one for one in alphabet if reads(cursor[:at] + one + cursor[at + 1 :], *SCOPE)] == [present]


@pytest.mark.parametrize("position", ["1", "40", "123"])
def test_a_cursor_counts_whole_and_alone(position: str) -> None:
    cursor = Cursors([OLD]).write(position, *SCOPE)
    assert all(reads(cursor[:end], *SCOPE) is None for end in range(len(cursor)))
    assert all(reads(cursor[start:], *SCOPE) is None for start in range(1, len(cursor)))
    for more in ("A", "=", "==", "\n", " ", cursor):
        assert reads(cursor + more, *SCOPE) is None
    for before in ("A", "=", "\n", " "):
        assert reads(before + cursor, *SCOPE) is None


@pytest.mark.parametrize("text", ["", "=", "A", "é", "\ud800", "40", "!", "QQ==", "A" * 512, "-_-_" * 8, "+/+/" * 8])
def test_a_forged_cursor_is_refused(text: str) -> None:
    assert reads(text, *SCOPE) is None


def test_a_mac_over_nothing_is_no_cursor() -> None:
    """Whoever knows how cursors are made still lacks the secret, and an empty place is a place like any other."""
    for secrets, position in (((OTHER,), "40"), ((NEW,), "40"), ((OTHER,), "")):
        assert reads(Cursors(secrets).write(position, *SCOPE), *SCOPE) is None
    assert reads(base64.urlsafe_b64encode(b"\0" * 16 + b"40").decode(), *SCOPE) is None


def test_a_cursor_outlives_the_change_of_secrets_while_the_old_one_is_kept() -> None:
    before, after = Cursors([OLD]).write("40", *SCOPE), Cursors([NEW, OLD]).write("40", *SCOPE)
    assert before != after == Cursors([NEW]).write("40", *SCOPE)
    for cursor in (before, after):
        assert reads(cursor, *SCOPE, secrets=(NEW, OLD)) == "40"
        assert reads(cursor, *SCOPE, secrets=(OLD, NEW)) == "40"
    assert reads(before, *SCOPE, secrets=(NEW,)) is None
    assert reads(after, *SCOPE, secrets=(OLD,)) is None


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4])
def test_a_page_names_its_last_row_if_there_is_more(rows: int) -> None:
    cursors = Cursors([OLD])
    page = cursors.page(3, [str(number) for number in range(90, 90 - rows, -1)], *SCOPE)
    if rows == 4:
        assert (page.limit, page.has_more) == (3, True)
        assert page.next_cursor is not None
        assert reads(page.next_cursor, *SCOPE) == "88"
    else:
        assert page == Page(limit=3, has_more=False, next_cursor=None)


@pytest.mark.parametrize("text", ["1", "9", "10", "50", "99", "100"])
def test_a_limit_is_a_decimal(text: str) -> None:
    assert limit_of({"limit": text}) == int(text)


def test_a_limit_may_be_left_out() -> None:
    assert (limit_of({}), LIMIT_DEFAULT, LIMIT_MAX) == (50, 50, 100)


NUMBERS = [
    "",
    "0",
    "101",
    "1000",
    "-1",
    "+1",
    "01",
    "1.0",
    "1e1",
    "0x1",
    " 1",
    "1 ",
    "1_0",
    "ten",
    "\u0665",
    "\u096b",
    "\u00b2",
    "9" * 5000,
]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_limit_is_nothing_else(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        limit_of({"limit": text})
    assert refused.value.problem.code is Code.QUERY_INVALID
    assert "from 1 to 100" in (refused.value.problem.detail or "")


def test_a_number_may_be_nought_where_the_field_allows_it() -> None:
    assert integer_of({"stale": "0"}, "stale", 0, 9, 5) == 0
    for text in ("00", "-0", "+0", ""):
        with pytest.raises(Refusal):
            integer_of({"stale": text}, "stale", 0, 9, 5)


class Statements:
    """SQL that has no rows and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    @asynccontextmanager
    async def connection(self):
        yield self

    async def execute(self, _query: str, values: dict[str, Any]):
        self.asked.append(values)
        return self

    async def fetchall(self) -> list[Any]:
        return []


class Directory:
    """Two public spaces, for everyone."""

    async def authenticate_optional(self, _key: str | None) -> None:
        return None

    async def space(self, slug: str, _principal: None) -> Space:
        return {"lab": LAB, "reef": REEF}[slug]


class Door:
    """The lists behind the edge, without storage."""

    def __init__(self) -> None:
        self.sql = Statements()
        self.cursors = Cursors([OLD])
        pages = Pages(self.sql, self.cursors)  # type: ignore[arg-type]
        app = transport.EdgeApp()
        app.add_route("/{slug}/tasks", Tasks(Directory(), pages, None))  # type: ignore[arg-type]
        app.add_route("/{slug}/tasks/{task_id}/notes", Notes(Directory(), pages, None))  # type: ignore[arg-type]
        problems.install(app)
        transport.install(app)
        self._client = testing.TestClient(app)

    def get(self, query: str, path: str = "/lab/tasks") -> tuple[int, Any]:
        answer = self._client.simulate_get(path, query_string=query)
        return answer.status_code, answer.json.get("code", answer.json)

    def asked(self, query: str) -> dict[str, Any]:
        """Return what one page asks SQL for."""
        status, body = self.get(query)
        limit = 50 if "limit" not in query else body["page"]["limit"]
        page = {"limit": limit, "has_more": False, "next_cursor": None}
        assert (status, body) == (200, {"tasks": [], "page": page, "protocol": "spaces/0.1-draft"})
        return self.sql.asked.pop()

    def states(self, query: str) -> set[Status]:
        found = self.asked(query)["statuses"]
        assert len(set(found)) == len(found)
        return set(map(Status, found))


@pytest.fixture
def door() -> Door:
    return Door()


def test_a_list_asks_for_one_row_more(door: Door) -> None:
    assert door.asked("")["limit"] == 51
    assert door.asked("limit=100")["limit"] == 101
    assert door.asked("")["stale"] is None
    assert len(door.sql.asked) == 0


ENDED = {Status.DONE, Status.REJECTED, Status.WITHDRAWN}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", LIVE),
        ("include_superseded=false", LIVE),
        ("include_superseded=true", LIVE | {Status.SUPERSEDED}),
        ("status=all", set(Status)),
        ("status=all&include_superseded=false", set(Status)),
        ("status=all&include_superseded=true", set(Status)),
        ("status=done", {Status.DONE}),
        ("status=done&include_superseded=true", {Status.DONE, Status.SUPERSEDED}),
        ("status=superseded", {Status.SUPERSEDED}),
        ("status=superseded&include_superseded=false", {Status.SUPERSEDED}),
        ("status=superseded&include_superseded=true", {Status.SUPERSEDED}),
        ("status=withdrawn,done,rejected", ENDED),
        ("status=done%2Copen", {Status.DONE, Status.OPEN}),
        ("status=" + ",".join(Status), set(Status)),
        *((f"status={status}", {status}) for status in Status),
    ],
)
def test_a_list_has_the_states_that_are_asked_for(door: Door, query: str, expected: set[Status]) -> None:
    assert door.states(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        "status=",
        "status=,",
        "status=open,",
        "status=,open",
        "status=open,,done",
        "status=open,open",
        "status=open,all",
        "status=all,all",
        "status=all,",
        "status=Open",
        "status=OPEN",
        "status=live",
        "status=open%20",
        "status=open;done",
        "status=open+done",
        "status=open&status=done",
        "status",
        "include_superseded=",
        "include_superseded=True",
        "include_superseded=1",
        "include_superseded=yes",
        "status=all&include_superseded=maybe",
        "include_superseded=true&include_superseded=true",
        "stale=",
        "stale=-1",
        "stale=01",
        "stale=31536001",
        "stale=1.5",
        "stale=1&stale=1",
        "stale=PT1H",
        "limit=0",
        "limit=101",
        "limit=10&limit=10",
        "offset=1",
        "page=2",
        "Limit=10",
    ],
)
def test_a_query_that_could_be_read_in_two_ways_is_refused(door: Door, query: str) -> None:
    assert door.get(query) == (400, "query_invalid")
    assert door.sql.asked == []


@pytest.mark.parametrize("seconds", [0, 1, 3600, 31_536_000])
def test_a_list_may_be_of_old_claims(door: Door, seconds: int) -> None:
    assert door.asked(f"stale={seconds}")["stale"] == seconds


def cursor_of(door: Door, query: str, path: str = "/lab/tasks") -> str:
    """Return the cursor that a page of this query would bear, place 40."""
    found: list[tuple[str, ...]] = []
    write = door.cursors.page

    def page(limit: int, positions: Any, *scope: str) -> Page:
        found.append(scope)
        return write(limit, positions, *scope)

    door.cursors.page = page  # type: ignore[method-assign]
    assert door.get(query, path)[0] in {200, 404}
    door.sql.asked.clear()
    return door.cursors.write("40", *found[-1])


LISTS = [
    "",
    "include_superseded=true",
    "status=all",
    "status=open",
    "status=done",
    "status=open,done",
    "stale=0",
    "stale=60",
    "stale=60&status=claimed",
]


@pytest.mark.parametrize("query", LISTS)
def test_a_cursor_is_of_its_filters(door: Door, query: str) -> None:
    cursor = cursor_of(door, query)
    answers = {other: door.get(f"{other}&cursor={cursor}".lstrip("&")) for other in LISTS}
    assert {other for other, (status, _) in answers.items() if status == 200} == {query}
    assert [body for status, body in answers.values() if status != 200] == ["cursor_invalid"] * (len(LISTS) - 1)
    assert [asked["before"] for asked in door.sql.asked] == [40]


def test_a_cursor_is_of_its_space_and_route(door: Door) -> None:
    cursor = cursor_of(door, "")
    for path in ("/reef/tasks", "/lab/tasks/7/notes", "/lab/tasks/1/notes"):
        assert door.get(f"cursor={cursor}", path) == (400, "cursor_invalid")
    assert door.sql.asked == []


def test_the_same_filters_in_other_words_and_another_limit_go_on(door: Door) -> None:
    cursor = cursor_of(door, "status=open,superseded&limit=7")
    for query in ("status=superseded,open", "status=open&include_superseded=true", "limit=9&status=open,superseded"):
        assert door.asked(f"{query}&cursor={cursor}")["before"] == 40


def test_a_cursor_too_many_is_no_query(door: Door) -> None:
    cursor = cursor_of(door, "")
    assert door.get(f"cursor={cursor}&cursor={cursor}") == (400, "query_invalid")
    assert door.get("cursor=") == (400, "cursor_invalid")
    assert door.get(f"cursor={cursor}%3D") == (400, "cursor_invalid")
