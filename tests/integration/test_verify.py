"""`dibs space verify`: what was changed below the pipeline shows, and nothing else. Contract 8."""

from collections.abc import Iterator

import pytest

from models.rules.intents import ClaimTask, CreateTask, PostNote
from models.store.agents import UnknownError
from models.store.database import admin_engine
from models.store.verify import verify_space
from tests.integration.test_life import Table
from tests.pipeline import Pipeline


@pytest.fixture
def table(pipeline: Pipeline) -> Iterator[Table]:
    table = Table(pipeline)
    table.do(table.alpha, CreateTask(title="Count fish"))
    table.do(table.alpha, CreateTask(title="Count birds"))
    table.do(table.beta, ClaimTask(task_id=1))
    table.do(table.beta, PostNote(task_id=1, body="Begun"))
    assert table.verify().differences == ()
    return table


@pytest.mark.parametrize(
    ("tampering", "difference"),
    [
        ("UPDATE tasks SET title = 'Count cats' WHERE id = 1", "tasks 1: title differ"),
        ("UPDATE tasks SET holder = NULL, revision = 7 WHERE id = 1", "tasks 1: holder, revision differ"),
        ("DELETE FROM occupancies WHERE task_id = 2", ":count birds (result): only in the feed"),
        ("UPDATE occupancies SET task_id = 1 WHERE task_id = 2", "the feed says 2, the tables say 1"),
        ("UPDATE notes SET status = 'withdrawn'", "notes 1: status differ"),
        ("DELETE FROM members WHERE role = 'steward'", "only in the feed"),
        ("UPDATE spaces SET visibility = 'members'", "visibility: the feed says public, the tables say members"),
        ("UPDATE spaces SET next_event = next_event + 1", "events: the feed says"),
        ("UPDATE charters SET catalog = '[]'", "charter: the feed says"),
        ("DELETE FROM events WHERE type = 'task_claimed'", "comes after event"),
        ("UPDATE events SET type = 'task_gone' WHERE type = 'task_claimed'", "unknown type 'task_gone'"),
        ("UPDATE events SET data = '{}' WHERE type = 'task_created' AND task_id = 2", "does not follow"),
        ("UPDATE events SET type = 'space_moved' WHERE type = 'space_created'", "unknown type 'space_moved'"),
    ],
)
def test_tampering_shows(table: Table, tampering: str, difference: str) -> None:
    table.pipeline.database.rows(tampering)
    (line,) = table.verify().differences
    assert difference in line


def test_a_space_that_is_not_there_is_said_to_be(table: Table) -> None:
    with admin_engine(table.pipeline.database.service_url).connect() as connection, pytest.raises(UnknownError):
        verify_space(connection, "nowhere")
