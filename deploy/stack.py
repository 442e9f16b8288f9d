"""``dibs up``: the whole service on one machine, from one command, until Ctrl-C. Contract, section 8."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from typing import Annotated, Final
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import typer
from rich.console import Console

from deploy.demo import Demo, load_demo
from deploy.folders import DeployError, make_private
from deploy.postgres import SERVICE, EmbeddedPostgres
from deploy.program import Command, Launch, StopStep
from deploy.servers import EmbeddedServer, EmbeddedValkey
from deploy.state import Addresses, Secrets, StateFolder, require_free_port
from deploy.supervisor import Supervisor
from models.settings import SettingsError, parse_secret_keys
from models.store.database import admin_engine
from models.store.migrate import upgrade

READY_SECONDS: Final = 60.0
_SERVERS, _WORKERS, _WEB = 0, 1, 2
"""Stages; the highest stops first, so that what waits is still answered."""


class StackError(DeployError):
    """The stack cannot be started as asked; one line says what to do."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What ``dibs up`` was asked for."""

    host: str
    port: int
    state: Path
    web: int
    workers: int


def register(app: typer.Typer) -> None:
    """Add the command ``up``."""
    app.command("up")(up_command)


def up_command(
    port: Annotated[int, typer.Option(envvar="DIBS_PORT", min=1, max=65535, help="Port to serve on.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to serve on.")] = "127.0.0.1",
    state: Annotated[Path, typer.Option(envvar="DIBS_STATE", help="Folder that keeps everything.")] = Path(".dibs"),
    web: Annotated[int, typer.Option(envvar="DIBS_WEB", min=1, max=64, help="Web processes.")] = 1,
    workers: Annotated[int, typer.Option(envvar="DIBS_WORKERS", min=1, max=64, help="Worker processes.")] = 2,
    *,
    print_env: Annotated[bool, typer.Option(help="Print the running stack's addresses and end.")] = False,
) -> None:
    """Run the service with its own Valkey and PostgreSQL; Ctrl-C ends all of it, the state folder keeps what it knows.

    DIBS_DATABASE_URL and DIBS_REDIS_URL, where set, take the place of the embedded servers.
    """
    if print_env:
        _print_environment(StateFolder(state))
        return
    run(Options(host=host, port=port, state=state, web=web, workers=workers), os.environ)


def run(options: Options, environ: Mapping[str, str]) -> None:
    """Run the stack until a stop signal.

    Raises:
        DeployError: it cannot be started; the message is one line.
    """
    out = Console(stderr=True, highlight=False, soft_wrap=True)
    folder = StateFolder(options.state)
    with folder.hold() as secrets:
        require_free_port(options.host, options.port)
        with Supervisor(report=lambda line: out.print(line, markup=False)) as supervisor:
            addresses = _start_servers(supervisor, folder, secrets, options, environ)
            external = bool(environ.get("DIBS_DATABASE_URL"))
            granted = (environ.get("DIBS_SERVICE_ROLE") or None) if external else SERVICE
            demo = _prepare(addresses, folder, granted=granted)
            _start_processes(supervisor, folder, addresses, options, environ)
            _await_ready(supervisor, addresses.http, folder)
            folder.publish(addresses)
            _greet(addresses.http, demo)
            supervisor.run()
            out.print("stopping", markup=False)
    out.print("stopped; the state stays in", str(folder.path), markup=False)


def _print_environment(folder: StateFolder) -> None:
    found = folder.running()
    if found is None:
        raise StackError(f"no stack runs on {folder.path}: start one with dibs up")
    for name, value in {**found.environment(), "DIBS_MIGRATE_DATABASE_URL": found.database_owner}.items():
        sys.stdout.write(f"export {name}='{value}'\n")


def _start_servers(
    supervisor: Supervisor, folder: StateFolder, secrets: Secrets, options: Options, environ: Mapping[str, str]
) -> Addresses:
    """Start the servers that no address was given for, side by side, and return all addresses."""
    database, redis = environ.get("DIBS_DATABASE_URL") or None, environ.get("DIBS_REDIS_URL") or None
    owner = environ.get("DIBS_MIGRATE_DATABASE_URL") or database
    servers: list[EmbeddedServer] = []
    if database is None or owner is None:
        postgres = EmbeddedPostgres(folder.postgres, passwords=secrets.postgres)
        servers.append(postgres)
        database, owner = postgres.service_url, postgres.owner_url
    if redis is None:
        valkey = EmbeddedValkey(folder.valkey, password=secrets.valkey)
        servers.append(valkey)
        redis = valkey.url
    for server in servers:
        supervisor.start(server, stage=_SERVERS)
    for server in servers:
        server.wait_ready()
    secret_keys = environ.get("DIBS_SECRET_KEYS") or secrets.secret_keys
    try:
        parse_secret_keys(secret_keys)
    except SettingsError as error:
        raise StackError(str(error)) from None
    host = f"[{options.host}]" if ":" in options.host else options.host
    return Addresses(
        http=f"http://{host}:{options.port}",
        redis=redis,
        database=database,
        database_owner=owner,
        secret_keys=secret_keys,
    )


def _prepare(addresses: Addresses, folder: StateFolder, *, granted: str | None) -> Demo:
    """Migrate, and load the demo board where it is missing."""
    engine = admin_engine(addresses.database_owner)
    with engine.begin() as connection:
        upgrade(connection, service_role=granted)
    return load_demo(engine, folder.path / "demo.json")


def _start_processes(
    supervisor: Supervisor, folder: StateFolder, addresses: Addresses, options: Options, environ: Mapping[str, str]
) -> None:
    logs = folder.path / "logs"
    make_private(logs)
    env = {**environ, **addresses.environment(), "DIBS_WEB": str(options.web)}
    command = (sys.executable, "-m", "deploy.cli")
    for number in range(1, options.workers + 1):
        name = f"worker-{number}"
        # Should this process be killed, the servers go with it, and a worker has nothing to finish without them.
        launch = Launch(argv=(*command, "worker"), env=env, log=logs / f"{name}.log", death_signal=Signals.SIGKILL)
        supervisor.start(
            Command(name=name, launch=launch, stop_steps=(StopStep(Signals.SIGTERM, 15.0),)), stage=_WORKERS
        )
    serve = (*command, "web", "--host", options.host, "--port", str(options.port))
    supervisor.start(
        Command(
            name="web",
            launch=Launch(argv=serve, env=env, log=logs / "web.log", death_signal=Signals.SIGQUIT),
            stop_steps=(StopStep(Signals.SIGTERM, 20.0),),
        ),
        stage=_WEB,
    )


def _await_ready(supervisor: Supervisor, url: str, folder: StateFolder) -> None:
    ends = time.monotonic() + READY_SECONDS
    last = "nothing answered"
    while supervisor.step(0.05):
        try:
            with urlopen(f"{url}/readyz", timeout=2):  # noqa: S310 - an http address made here
                return
        except URLError as error:
            last = str(getattr(error, "reason", error))
        except OSError as error:
            last = str(error)
        if time.monotonic() > ends:
            raise StackError(f"not ready after {READY_SECONDS:g} s ({last}): see {folder.path / 'logs'}")


def _greet(url: str, demo: Demo) -> None:
    """Print where the service is and how to race for a piece of work."""
    lines = [
        f"dibs serves {demo.space} and waits for agents. Demo keys (kept in the state folder):",
        *(f"  {handle}  {key}" for handle, key in demo.keys.items()),
        "",
        "This one wins (201):",
        _curl(url, demo, handle=demo.winner, title=demo.title),
        "and this one learns who won (409):",
        _curl(url, demo, handle=demo.loser, title=demo.title.upper()),
        "",
        "Ctrl-C ends everything.",
        f"ready {url}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _curl(url: str, demo: Demo, *, handle: str, title: str) -> str:
    body = json.dumps({"title": title})
    return (
        f"  curl -i {url}/v0/spaces/{demo.space}/tasks -H 'Authorization: Bearer {demo.keys[handle]}' "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
