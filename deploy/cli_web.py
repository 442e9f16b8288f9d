"""``dibs web``: this process becomes gunicorn. Contract 8."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from deploy.cli_base import DATABASE_URL, DEFAULT_STATE, State, running_stack
from models import settings

_CONFIG: Final = Path(__file__).with_name("gunicorn.conf.py")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("web")(web)


def web(
    port: Annotated[int, typer.Option(envvar="DIBS_PORT", min=0, max=65535, help="Port to serve on.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    processes: Annotated[int, typer.Option(envvar="DIBS_WEB", min=1, max=64, help="Web processes.")] = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Serve HTTP until a stop signal; SIGHUP starts the processes afresh without losing a request."""
    env = process_environment(state)
    # Read here for one clear line; the processes read it again.
    settings.load(env)
    env["DIBS_WEB"] = str(processes)
    bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    argv = [sys.executable, "-m", "gunicorn", "--config", str(_CONFIG), "--bind", bind]
    sys.stdout.flush()
    os.execve(sys.executable, argv, env)  # noqa: S606 - no shell; the process keeps its pid and its parent's signals


def process_environment(state: Path) -> dict[str, str]:
    """Return the environment of a web or worker process: this one's, or with the running stack's addresses in it.

    Raises:
        DeployError: DIBS_DATABASE_URL is not set and no stack runs on the state folder.
    """
    env = dict(os.environ)
    return env if env.get(DATABASE_URL) else env | running_stack(state).environment()
