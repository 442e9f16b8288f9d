"""``dibs mode`` and ``dibs fleet``: drain, go active again, and know when it is so. Contract 4 and 8."""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from sqlalchemy.exc import OperationalError

from deploy.cli_base import (
    DEFAULT_STATE,
    AsJson,
    State,
    print_json,
    print_line,
    print_table,
    service_transaction,
)
from deploy.folders import DeployError
from models.rules.spaces import Mode
from models.store import fleet
from models.store.fleet import Drained
from models.store.mode import ModeChange, mode_history, read_mode, set_mode

STILL_DRAINING: Final = 3
CANNOT_TELL: Final = 4
POLL_SECONDS: Final = 0.25
HISTORY: Final = 50

mode_commands = typer.Typer(no_args_is_help=True, help="Drain the service, and go active again.")
fleet_commands = typer.Typer(invoke_without_command=True, help="The processes that serve.")

Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever reads the history.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who changes it; without it the user of this shell.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when every process knows, or the time is over.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long --wait waits.")]


class ReasonError(DeployError):
    """A change without a reason."""


class ProcessUnknownError(DeployError):
    """No registration of that id."""


def register(app: typer.Typer) -> None:
    """Add the two groups."""
    app.add_typer(mode_commands, name="mode")
    app.add_typer(fleet_commands, name="fleet")


@mode_commands.command("show")
def show(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show the mode and its last change."""
    with service_transaction(state) as connection:
        found = read_mode(connection)
    _print_change(found, as_json=as_json)


@mode_commands.command("history")
def history(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List the changes of the mode, the latest first."""
    with service_transaction(state) as connection:
        rows = [msgspec.structs.asdict(one) for one in mode_history(connection, HISTORY)]
    if as_json:
        print_json(rows)
    else:
        print_table(("epoch", "mode", "at", "actor", "reason"), rows)


@mode_commands.command("drain")
def drain(
    reason: Reason,
    wait: Wait = False,
    timeout: Timeout = 60,
    actor: Actor = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Refuse what is fresh; what ends or tidies goes on. When this returns, nothing fresh commits any more."""
    _change(Mode.DRAIN, reason=reason, actor=actor, state=state)
    if wait:
        _await(state, timeout, as_json=as_json, done=lambda found: found.drained)
    else:
        status(state=state, as_json=as_json)


@mode_commands.command("active")
def active(
    reason: Reason,
    timeout: Timeout = 60,
    actor: Actor = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Admit everything again; returns when every live process knows."""
    _change(Mode.ACTIVE, reason=reason, actor=actor, state=state)
    _await(state, timeout, as_json=as_json, done=lambda found: not found.waiting_for)


@mode_commands.command("status")
def status(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Say whether the service is drained: exit 0 drained or active, 3 still draining, 4 cannot tell."""
    found = _status(state)
    _print_status(found, as_json=as_json)
    if found.mode is Mode.DRAIN and not found.drained:
        raise typer.Exit(STILL_DRAINING)


@fleet_commands.callback()
def show_fleet(context: typer.Context, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List the processes, with the epoch of the mode that each has seen."""
    if context.invoked_subcommand is not None:
        return
    with service_transaction(state) as connection:
        rows = [msgspec.structs.asdict(one) for one in fleet.processes(connection)]
    if as_json:
        print_json(rows)
    else:
        columns = ("id", "kind", "host", "pid", "version", "floor", "epoch", "windows", "heartbeat_age_ms", "expired")
        print_table(columns, rows)


@fleet_commands.command("forget")
def forget(
    process: Annotated[str, typer.Argument(metavar="ID", help="A process that is surely gone.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Acknowledge that a process is gone for good, though its database sessions may still be open."""
    with service_transaction(state) as connection:
        if not fleet.leave(connection, process):
            raise ProcessUnknownError(f"there is no process {process!r}")
    if as_json:
        print_json({"forgotten": process})
    else:
        print_line(f"process {process} is forgotten")


def _change(mode: Mode, *, reason: str, actor: str | None, state: Path) -> None:
    if not reason.strip():
        raise ReasonError("give a reason: it stands in the history")
    with service_transaction(state) as connection:
        set_mode(connection, mode, reason=reason.strip(), actor=actor or getpass.getuser())


def _status(state: Path) -> Drained:
    """Return the status; nothing is claimed where the database does not answer."""
    try:
        with service_transaction(state) as connection:
            return fleet.drained(connection)
    except OperationalError:
        sys.stderr.write("dibs: the database does not answer: nobody can tell whether the service is drained\n")
        raise typer.Exit(CANNOT_TELL) from None


def _await(state: Path, timeout: float, *, as_json: bool, done: Callable[[Drained], bool]) -> None:
    ends = time.monotonic() + timeout
    console = Console(stderr=True)
    with console.status("waiting for the fleet") as line:
        while not done(found := _status(state)) and time.monotonic() < ends:
            line.update(f"waiting for {len(found.waiting_for)} processes: {'; '.join(found.waiting_for)}")
            time.sleep(POLL_SECONDS)
    _print_status(found, as_json=as_json)
    if not done(found):
        raise typer.Exit(STILL_DRAINING)


def _print_change(found: ModeChange, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif found.at is None:
        print_line(f"mode {found.mode}, epoch {found.epoch}, never changed")
    else:
        print_line(f"mode {found.mode}, epoch {found.epoch}, since {found.at:%Y-%m-%d %H:%M:%S}Z: {found.reason}")


def _print_status(found: Drained, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for line in found.waiting_for:
        print_line(line)
    if found.mode is Mode.ACTIVE:
        print_line(f"active, epoch {found.epoch}")
    elif found.drained:
        print_line(f"drained, epoch {found.epoch}")
    else:
        print_line(f"draining: {len(found.waiting_for)} processes still active")
