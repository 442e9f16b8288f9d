"""``dibs window``: why who won, and who lost to whom. Contract 8."""

from __future__ import annotations

from typing import Annotated

import typer

from deploy.cli_base import DEFAULT_STATE, AsJson, State, print_json, print_line, print_table, service_transaction
from models.rules.windows import DecidedIntent, LostTo
from models.store.window_reads import explained

window_commands = typer.Typer(no_args_is_help=True, help="Windows: what was decided together, and in which order.")


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(window_commands, name="window")


@window_commands.callback()
def _group() -> None:
    pass


@window_commands.command("show")
def show_window(
    window: Annotated[str, typer.Argument(metavar="ID", help="A window's id, as tasks and proposals bear it.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Show the intents of a window in the order in which they were decided."""
    with service_transaction(state) as connection:
        found = explained(connection, window)
    if as_json:
        print_json(found)
        return
    where = "creations of spaces" if found.space is None else f"space {found.space}"
    print_line(f"window {found.id}: {where}, numbers {found.first_seq} to {found.last_seq}")
    print_table(
        ("place", "received_seq", "proposal", "kind", "actor", "conflict_key", "reserved", "answer", "task", "lost_to"),
        [_row(one) for one in found.intents],
    )


def _row(one: DecidedIntent) -> dict[str, object]:
    key = one.conflict_key
    return {
        "place": one.place,
        "received_seq": one.received_seq,
        "proposal": one.proposal_id,
        "kind": one.kind,
        "actor": one.actor,
        "conflict_key": None if key is None else f"{key.target} ({key.delivery_mode})",
        "reserved": one.reservation == "own",
        "answer": f"{one.status} {one.code or ''}".strip(),
        "task": one.task_id,
        "lost_to": None if one.lost_to is None else _winner(one.lost_to),
    }


def _winner(lost_to: LostTo) -> str:
    if lost_to.place is not None:
        return f"place {lost_to.place}"
    if lost_to.note_id is not None:
        return f"note {lost_to.note_id}"
    return f"task {lost_to.task_id}"
