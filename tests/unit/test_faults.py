import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from models.store.apply import ContendedError
from worker.faults import Fault, classify


def wrapped(sqlstate, *, lost=False):
    error = errors.lookup(sqlstate)("boom")
    return DBAPIError.instance("SELECT 1", {}, error, psycopg.Error, connection_invalidated=lost)


@pytest.mark.parametrize(
    ("sqlstate", "fault"),
    [
        ("40001", Fault.RETRY),  # serialization_failure
        ("40P01", Fault.RETRY),  # deadlock_detected
        ("57014", Fault.SPLIT),  # query_canceled: the statement's time was up
        ("22P05", Fault.SPLIT),  # untranslatable_character: a NUL
        ("22001", Fault.SPLIT),  # string_data_right_truncation
        ("22003", Fault.SPLIT),  # numeric_value_out_of_range
        ("23505", Fault.SPLIT),  # unique_violation
        ("23503", Fault.SPLIT),  # foreign_key_violation
        ("23514", Fault.SPLIT),  # check_violation
        ("54000", Fault.SPLIT),  # program_limit_exceeded
        ("P0001", Fault.SPLIT),  # raise_exception
        ("40003", Fault.OUTAGE),  # statement_completion_unknown
        ("55P03", Fault.OUTAGE),  # lock_not_available: another holds it, and may be done soon
        ("25P03", Fault.OUTAGE),  # idle_in_transaction_session_timeout: this process was stopped
        ("25P04", Fault.OUTAGE),  # transaction_timeout
        ("08006", Fault.OUTAGE),  # connection_failure
        ("53100", Fault.OUTAGE),  # disk_full
        ("53200", Fault.OUTAGE),  # out_of_memory
        ("53300", Fault.OUTAGE),  # too_many_connections
        ("57P01", Fault.OUTAGE),  # admin_shutdown
        ("57P03", Fault.OUTAGE),  # cannot_connect_now
        ("25006", Fault.OUTAGE),  # read_only_sql_transaction: a standby
        ("42501", Fault.OUTAGE),  # insufficient_privilege
        ("42P01", Fault.OUTAGE),  # undefined_table: not migrated
        ("42703", Fault.OUTAGE),  # undefined_column
        ("28P01", Fault.OUTAGE),  # invalid_password
        ("58030", Fault.OUTAGE),  # io_error
        ("XX001", Fault.OUTAGE),  # data_corrupted
    ],
)
def test_a_state_says_what_to_do(sqlstate, fault):
    assert classify(wrapped(sqlstate)) is fault


@pytest.mark.parametrize("sqlstate", ["40001", "57014", "23505"])
def test_a_lost_connection_is_an_outage_whatever_it_said_last(sqlstate):
    assert classify(wrapped(sqlstate, lost=True)) is Fault.OUTAGE


def test_a_failure_that_the_server_did_not_name_is_an_outage():
    lost = psycopg.OperationalError("the connection is lost")
    assert lost.sqlstate is None
    assert classify(OperationalError("COMMIT", {}, lost)) is Fault.OUTAGE


def test_a_value_that_cannot_even_be_sent_is_the_windows_fault():
    unsendable = psycopg.DataError("a text with NUL")
    assert unsendable.sqlstate is None
    assert classify(DBAPIError.instance("INSERT", {}, unsendable, psycopg.Error)) is Fault.SPLIT


def test_a_row_taken_below_the_lock_is_decided_again():
    assert classify(ContendedError()) is Fault.RETRY


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), RecursionError(), AssertionError()])
def test_a_bug_is_looked_for_in_the_window(error):
    assert classify(error) is Fault.SPLIT


def test_sqlalchemys_own_classes_change_nothing():
    assert isinstance(wrapped("23505"), IntegrityError)
    assert isinstance(wrapped("40001"), OperationalError)
