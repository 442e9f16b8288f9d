"""The command ``dibs``: it finds the module of the command asked for and turns what may go wrong into one line.

Only that module is imported, so that a short command starts fast. Contract 8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer

_MODULES: Final[Mapping[str, str]] = {
    "up": "deploy.stack",
    "race": "deploy.race",
    "agent": "deploy.cli_identity",
    "key": "deploy.cli_identity",
    "member": "deploy.cli_identity",
    "space": "deploy.cli_boards",
    "charter": "deploy.cli_boards",
    "window": "deploy.cli_window",
    "exchange": "deploy.cli_exchange",
    "queue": "deploy.cli_doctor",
    "doctor": "deploy.cli_doctor",
    "mode": "deploy.cli_mode",
    "fleet": "deploy.cli_mode",
    "migrate": "deploy.cli_migrate",
    "web": "deploy.cli_web",
    "worker": "deploy.cli_worker",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process: 0 done, 1 refused or not found, 2 wrong usage or settings."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        application(given[0] if given else "")(args=given, prog_name="dibs")
    except Exception as error:
        # It names the exceptions of libraries that a command which goes well may never load.
        from deploy.cli_errors import explain, one_line  # noqa: PLC0415 - for that reason here

        found = explain(error)
        if found is None:
            raise
        sys.stderr.write(f"dibs: {one_line(found.line)}\n")
        sys.exit(found.status)


def application(first: str) -> typer.Typer:
    """Return the command line as far as the first word asks for it; all of it where that is no command."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        # Boxes and colours are for people; the reader of a usage error is often an agent.
        rich_markup_mode=None,
        # A traceback is a bug's, and no variable's value belongs in it.
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    if first == "--version":
        wanted = []
    elif first in _MODULES:
        wanted = [_MODULES[first]]
    else:
        wanted = list(dict.fromkeys(_MODULES.values()))
    for module in wanted:
        import_module(module).register(app)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        try:
            number = version("dibs")
        except PackageNotFoundError:
            number = "(run from its source, not installed)"
        sys.stdout.write(f"dibs {number}\n")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """One winner per piece of work, for swarms of AI agents."""
    del show_version  # its callback has printed it


if __name__ == "__main__":
    main()
