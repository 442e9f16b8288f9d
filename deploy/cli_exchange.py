"""``dibs exchange``: purge what retention has ended, and verify receipts. Contract 8; Seed 004."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from deploy.cli_base import DEFAULT_STATE, AsJson, File, State, print_json, print_line, service_transaction
from deploy.cli_web import process_environment
from deploy.folders import DeployError
from models import settings
from models.store.purge import BATCH, REQUEST_BATCH, due_payloads, purge_payloads
from web.work_answers import Receipt, Receipts

exchange_commands = typer.Typer(no_args_is_help=True, help="The work exchange: retention and receipts.")


class ReceiptError(DeployError):
    """A receipt that proves nothing."""


class _Envelope(msgspec.Struct, frozen=True):
    receipt: Receipt


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(exchange_commands, name="exchange")


@exchange_commands.command("purge")
def purge(
    everything: Annotated[
        bool, typer.Option("--all", help="All that is due, in batches; else one request's share.")
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Clear payloads whose retention is over; ids, digests, events, receipts and fences stay for ever."""
    with service_transaction(state) as connection:
        due = due_payloads(connection)
    cleared = 0
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        bar = progress.add_task("purging", total=due)
        while True:
            # A transaction for each batch: no object is locked for longer than that.
            with service_transaction(state) as connection:
                found = purge_payloads(connection, BATCH if everything else REQUEST_BATCH)
            cleared += found
            progress.update(bar, completed=cleared)
            if not everything or not found:
                break
    if as_json:
        print_json({"due": due, "cleared": cleared})
    else:
        print_line(f"{due} objects were due, {cleared} are cleared")


@exchange_commands.command("verify-receipt")
def verify_receipt(file: File, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Tell whether this service has signed a receipt: one alone, or in the envelope it came in; exit 1 if not."""
    document = file.read()
    try:
        receipt = msgspec.json.decode(document, type=_Envelope).receipt
    except msgspec.ValidationError:
        try:
            receipt = msgspec.json.decode(document, type=Receipt)
        except msgspec.ValidationError as error:
            raise ReceiptError(f"{file.name}: this is no receipt ({error})") from None
    except msgspec.DecodeError:
        raise ReceiptError(f"{file.name}: this is no JSON") from None
    genuine = Receipts(settings.load(process_environment(state))).verify(receipt)
    if as_json:
        print_json({"receiptId": receipt.receipt_id, "genuine": genuine})
    if not genuine:
        raise ReceiptError(f"receipt {receipt.receipt_id}: none of this service's secrets has signed it as it is")
    if not as_json:
        print_line(
            f"receipt {receipt.receipt_id}: {receipt.operation} of {receipt.object_id} by {receipt.actor_agent_id}"
        )
