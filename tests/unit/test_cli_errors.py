import psycopg
import pytest
import redis
from psycopg import errors
from sqlalchemy.exc import OperationalError, ProgrammingError

from deploy.cli_errors import Explained, explain, one_line
from deploy.folders import DeployError
from deploy.logs import redact
from deploy.state import StateError
from models.settings import SettingsError
from models.store.agents import TakenError, UnknownError
from models.store.spaces import LastStewardError

KEY = "dibs_abcd2345_" + "Ab-_" * 11


@pytest.mark.parametrize("kind", [DeployError, StateError, TakenError, UnknownError, LastStewardError])
def test_a_refusal_speaks_for_itself(kind):
    assert explain(kind("there is no such thing")) == Explained("there is no such thing", 1)


def test_a_wrong_setting_is_wrong_usage():
    assert explain(SettingsError("DIBS_LEASE_MS must be whole")) == Explained("DIBS_LEASE_MS must be whole", 2)


@pytest.mark.parametrize(
    ("cause", "start"),
    [
        (psycopg.OperationalError("connection failed: refused\nIs it running?"), "the database is out of reach: "),
        (psycopg.InterfaceError("the connection is closed"), "the database is out of reach: "),
        (errors.QueryCanceled("canceling statement"), "the database did not answer in time"),
        (errors.LockNotAvailable("canceling statement"), "the database did not answer in time"),
        (errors.UndefinedTable('relation "agents" does not exist'), "the database has not the schema"),
        (errors.InsufficientPrivilege("permission denied for table keys"), "the database role may not do this: "),
        (errors.UniqueViolation("duplicate key\nDETAIL: Key (id)=(secret)"), "the database refused: duplicate key"),
    ],
)
def test_the_database_is_told_in_one_line_without_values(cause, start):
    found = explain(cause)
    assert found == explain(OperationalError("SELECT secret", {"name": "secret"}, cause))
    assert found == explain(ProgrammingError("SELECT secret", {"name": "secret"}, cause))
    assert found is not None
    assert found.line.startswith(start)
    assert found.status == 1
    assert "secret" not in found.line
    assert "\n" not in found.line


def test_redis_and_the_system_are_told_too():
    assert explain(redis.ConnectionError("refused\nmore")) == Explained("Redis is out of reach or refuses: refused")
    assert explain(PermissionError(13, "Permission denied", "x")) == Explained("[Errno 13] Permission denied: 'x'")
    assert explain(OSError()) == Explained("OSError")


@pytest.mark.parametrize("bug", [ValueError("x"), KeyError("x"), TypeError("x"), AssertionError()])
def test_a_bug_keeps_its_traceback(bug):
    assert explain(bug) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\n  lines\t", "two lines"),
        ("\x1b[31mred\u202e\x00", "\\x1b[31mred\\u202e\\x00"),
        ("Grüße 🐠", "Grüße 🐠"),
        ("x" * 600, "x" * 600),
        ("x" * 601, "x" * 600 + "..."),
    ],
)
def test_a_line_is_one_and_moves_no_cursor(text, line):
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"Bearer {KEY}, again {KEY}", "Bearer dibs_abcd2345_***, again dibs_abcd2345_***"),
        ('"postgresql://dibs:hunter2@db:5432/dibs"', '"postgresql://dibs:***@db:5432/dibs"'),
        ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
        ("unix://:hunter2@/run/valkey.sock", "unix://:***@/run/valkey.sock"),
        ("host=db password=hunter2 user=dibs", "host=db password=*** user=dibs"),
        ("http://127.0.0.1:8080/v0 and dibs_service, key_id abcd2345", None),
        ("https://host:8080/path@home", None),
    ],
)
def test_no_log_line_holds_a_key_or_a_password(line, shown):
    assert redact(line) == (line if shown is None else shown)
