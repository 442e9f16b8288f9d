"""``dibs space`` and ``dibs charter``: boards in, out and their catalogs. Contract 8."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from deploy.cli_base import (
    DEFAULT_STATE,
    AsJson,
    File,
    Slug,
    State,
    print_bytes,
    print_json,
    print_line,
    print_table,
    service_transaction,
)
from deploy.folders import DeployError
from models.rules.board import BoardError, decode_board, decode_catalog
from models.rules.spaces import CLAIM_TTL_SECONDS_MAX, Visibility
from models.store import boards, spaces, verify
from models.store.mode import refuse_in_drain

space_commands = typer.Typer(no_args_is_help=True, help="Spaces and their boards.")
charter_commands = typer.Typer(no_args_is_help=True, help="The catalog of work that a space's titles are bound to.")


class FileRefusedError(DeployError):
    """A file that cannot be taken."""


class DifferentError(DeployError):
    """A feed that does not rebuild its board."""


def register(app: typer.Typer) -> None:
    """Add the two groups."""
    app.add_typer(space_commands, name="space")
    app.add_typer(charter_commands, name="charter")


@space_commands.command("create")
def create_space(
    slug: Slug,
    visibility: Annotated[Visibility, typer.Option(help="Who may read it.")] = Visibility.PUBLIC,
    claim_ttl: Annotated[
        int | None,
        typer.Option(min=1, max=CLAIM_TTL_SECONDS_MAX, metavar="SECONDS", help="End claims that are older."),
    ] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Create an empty space; give it a steward with `dibs member set`."""
    with service_transaction(state) as connection:
        refuse_in_drain(connection)
        spaces.create_space(connection, slug, visibility=visibility, catalog=(), claim_ttl_seconds=claim_ttl)
    if as_json:
        print_json({"space": slug, "visibility": visibility, "claim_ttl_seconds": claim_ttl})
    else:
        print_line(f"space {slug} is there, readable for {visibility}")


@space_commands.command("import")
def import_space(file: File, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Make a space of a board file, all of it or nothing.

    Agents it names are added where they are missing; tasks without created_by count as the agent import's.
    """
    try:
        board = decode_board(file.read())
        with service_transaction(state) as connection:
            refuse_in_drain(connection)
            imported = boards.import_board(connection, board)
    except BoardError as error:
        raise FileRefusedError(f"{file.name}: {error}") from None
    if as_json:
        print_json(imported)
    else:
        print_line(
            f"space {imported.space} is there: tasks {imported.tasks}, notes {imported.notes},"
            f" members {imported.members}, next task {imported.next_task}"
        )


@space_commands.command("export")
def export_space(slug: Slug, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Print a space as a board file."""
    del as_json  # it is JSON in any case
    with service_transaction(state) as connection:
        document = boards.export_board(connection, slug)
    print_bytes(document)


@space_commands.command("verify")
def verify_space(slug: Slug, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Rebuild a space from its events alone and compare it with its tables; exit 1 where they differ."""
    with service_transaction(state) as connection:
        verified = verify.verify_space(connection, slug)
    if as_json:
        print_json(verified)
    else:
        for line in verified.differences:
            print_line(line)
    if verified.differences:
        raise DifferentError(f"space {slug}: feed and tables differ in {len(verified.differences)} places")
    if not as_json:
        print_line(f"space {slug}: {verified.events} events rebuild its {verified.tasks} tasks, {verified.notes} notes")


@space_commands.command("audit")
def audit_space(slug: Slug, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List who closed which leftover, and who was denied, oldest first."""
    with service_transaction(state) as connection:
        rows = [msgspec.structs.asdict(row) for row in verify.audit(connection, slug)]
    if as_json:
        print_json(rows)
    else:
        print_table(("at", "event", "actor", "leftover_task", "surviving_task", "reason", "code"), rows)


@charter_commands.command("show")
def show_charter(slug: Slug, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Show the catalog in force."""
    with service_transaction(state) as connection:
        charter = spaces.read_charter(connection, slug)
    if as_json:
        print_json({"space": slug, "revision": charter.revision, "catalog": charter.rows})
        return
    print_line(f"charter of {slug}, revision {charter.revision}")
    rows = [{**msgspec.structs.asdict(row), "aliases": "; ".join(row.aliases) or None} for row in charter.rows]
    print_table(("work_item_id", "canonical_title", "aliases"), rows)


@charter_commands.command("set")
def set_charter(slug: Slug, file: File, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Put a catalog, a JSON list of rows, in force as a new revision; tasks that exist keep their keys."""
    try:
        rows = decode_catalog(file.read())
    except BoardError as error:
        raise FileRefusedError(f"{file.name}: {error}") from None
    with service_transaction(state) as connection:
        revision = spaces.set_charter(connection, slug, rows)
    if as_json:
        print_json({"space": slug, "revision": revision, "rows": len(rows)})
    else:
        print_line(f"charter of {slug}: revision {revision}, rows {len(rows)}")
