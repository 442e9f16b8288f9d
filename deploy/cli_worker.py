"""``dibs worker``: this process works on windows. Contract 8."""

from __future__ import annotations

import typer

from deploy import logs
from deploy.cli_base import DEFAULT_STATE, State
from deploy.cli_web import process_environment
from models import settings
from worker import main


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(worker)


def worker(state: State = DEFAULT_STATE) -> None:
    """Work on windows until a stop signal, then finish the one in hand."""
    loaded = settings.load(process_environment(state))
    logs.configure()
    main.run(loaded)
