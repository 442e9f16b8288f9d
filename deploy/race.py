"""``dibs race``: many agents at once for the slots of an empty board, over HTTP, and whether each got one winner.

A round opens a fresh space, lets every agent propose one title at the same instant, follows every pointer a loser
was given, and then compares with SQL. Seed 000, section 6; Contract 8.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sqlalchemy import Engine
from sqlalchemy.exc import ArgumentError

from deploy.cli_base import DATABASE_URL, DEFAULT_STATE, AsJson, State, print_json, print_line, running_stack
from deploy.race_plot import check_plot, write_plot
from deploy.race_rules import Attempt, Fate, Pointed, Report, Round, Spread, Tally, judge, look, pointers, report
from deploy.race_store import Ground, RaceError, Runner, fresh_space, ground, runners, stored
from deploy.race_volley import Heard, Place, parse_url, request, volley
from deploy.state import StateFolder
from models.store.database import admin_engine

DEFAULT_URL: Final = "http://127.0.0.1:8080"
AGENTS_MAX: Final = 5_000
_SPARE_FILES: Final = 64
_FAULTS_SHOWN: Final = 10
_OK: Final = 200
_INTERRUPTED: Final = 130
_DICE: Final = random.SystemRandom()


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A race to be run: ``agents`` propose one of the ground's titles each, ``rounds`` times."""

    place: Place
    ground: Ground
    agents: int
    rounds: int


def run_race(course: Course, *, database_url: str, on_round: Callable[[], None] | None = None) -> tuple[Round, ...]:
    """Run a race and return its rounds; ``on_round`` is called after each one.

    Makes the agents ``race-001`` onwards where they are missing, and a space ``race-<random>-<round>`` a round,
    which stays. The agents' keys are revoked at the end, however it ends. A round in which no agent was answered is
    the last one.

    Raises:
        RaceError: the server cannot be raced on, or is not this database's.
        DBAPIError: the database is out of reach or refuses.
    """
    raise_file_limit(course.agents + _SPARE_FILES)
    played: list[Round] = []
    name = f"race-{secrets.token_hex(4)}"
    try:
        engine = admin_engine(database_url)
    except (ArgumentError, ValueError):
        raise RaceError(f"{DATABASE_URL} is not of the form postgresql://user:password@host:port/name") from None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(_check_server(course.place))
        with runners(engine, course.agents) as running:
            loop.run(_check_key(course.place, running[0]))
            for number in range(1, course.rounds + 1):
                played.append(_play(loop, engine, course, running, number=number, slug=f"{name}-{number}"))
                if on_round is not None:
                    on_round()
                if all(attempt.status is None for attempt in played[-1].attempts):
                    break
    return tuple(played)


def raise_file_limit(needed: int) -> None:
    """Let this process open that many files, up to its hard limit.

    Raises:
        RaceError: the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RaceError(
            f"a connection for each agent takes {needed} open files and the limit is {hard}: race fewer agents"
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        raise RaceError(f"the limit of open files cannot be raised to {needed} ({error}): race fewer agents") from None


async def _check_server(place: Place) -> None:
    heard = await _get(place, "/readyz")
    if heard.status is None:
        raise RaceError(f"no server at {place.url} ({heard.fault}): start one with dibs up, or name it with --url")
    if heard.status != _OK:
        raise RaceError(f"the server at {place.url} is not ready (/readyz answers {heard.status}): see its log")


async def _check_key(place: Place, runner: Runner) -> None:
    heard = await _get(place, "/v0/whoami", key=runner.key)
    if heard.status != _OK:
        raise RaceError(
            f"the server at {place.url} does not know an agent of this database (/v0/whoami answers {heard.status}):"
            f" --url and {DATABASE_URL} must belong together"
        )


async def _get(place: Place, path: str, *, key: str | None = None) -> Heard:
    return (await volley(place, [request(place, "GET", path, key=key)])).heard[0]


def _play(
    loop: asyncio.Runner, engine: Engine, course: Course, running: Sequence[Runner], *, number: int, slug: str
) -> Round:
    """Run one round. What blocks (SQL) and what is timed (HTTP) take turns, so neither slows the other."""
    space_id = fresh_space(engine, slug, course.ground.catalog, running)
    attempts, seconds = loop.run(_post(course, running, slug))
    pointed = loop.run(_follow(course.place, running, attempts, slug))
    return Round(
        number=number,
        slug=slug,
        seconds=seconds,
        attempts=attempts,
        pointed=pointed,
        stored=stored(engine, space_id),
    )


async def _post(course: Course, running: Sequence[Runner], slug: str) -> tuple[tuple[Attempt, ...], float]:
    titles = course.ground.titles
    due = course.ground.due(slug)
    entries = [(runner, titles[place % len(titles)]) for place, runner in enumerate(running)]
    # Sent one after the other, if only by microseconds: another order each round, so that no title is always ahead.
    _DICE.shuffle(entries)
    shots = [
        request(
            course.place,
            "POST",
            f"/v0/spaces/{slug}/tasks",
            key=runner.key,
            body=msgspec.json.encode({"title": title}),
        )
        for runner, title in entries
    ]
    fired = await volley(course.place, shots)
    attempts = tuple(
        judge(
            runner.handle,
            due[title],
            latency_ms=heard.latency_ms,
            status=heard.status,
            body=heard.body,
            fault=heard.fault,
        )
        for (runner, title), heard in zip(entries, fired.heard, strict=True)
    )
    return attempts, fired.seconds


async def _follow(
    place: Place, running: Sequence[Runner], attempts: Sequence[Attempt], slug: str
) -> dict[str, Pointed]:
    """Read every winner that losers were sent to, once, as one of these losers."""
    keys = {runner.handle: runner.key for runner in running}
    readers = {path: keys[attempt.agent] for attempt in attempts for path in pointers(attempt, slug)}
    fired = await volley(place, [request(place, "GET", path, key=key) for path, key in readers.items()])
    return {path: look(heard.status, heard.body) for path, heard in zip(readers, fired.heard, strict=True)}


def document(course: Course, played: Sequence[Round], result: Report) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "url": course.place.url,
        "agents": course.agents,
        "titles": len(course.ground.titles),
        "spaces": [one.slug for one in played],
        **msgspec.structs.asdict(result),
    }


def table(course: Course, result: Report) -> Table:
    """Return the table people read: answers by kind with their latencies."""
    drawn = Table(
        title=f"{course.agents} agents, {result.rounds} rounds, {len(course.ground.titles)} titles: {course.place.url}",
        caption=f"{result.requests} requests, {result.requests_per_second:,.0f} a second",
        title_justify="left",
        caption_justify="left",
    )
    drawn.add_column("answer")
    for name in ("requests", "p50 ms", "p95 ms", "p99 ms", "max ms"):
        drawn.add_column(name, justify="right")
    rows: Mapping[str, Tally] = {
        "winners: 201": result.winners,
        **{f"losers: {code}": tally for code, tally in result.losers_by_code.items()},
    }
    for name, tally in rows.items():
        drawn.add_row(name, str(tally.count), *_figures(tally.latency_ms))
    drawn.add_row("errors", str(result.errors), *_figures(None))
    for kind, count in result.errors_by_kind.items():
        drawn.add_row(f"  {kind}", str(count), *_figures(None))
    drawn.add_section()
    drawn.add_row("all", str(result.requests), *_figures(result.latency_ms))
    return drawn


def _figures(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("",) * 4
    return tuple(f"{figure:.1f}" for figure in (spread.p50, spread.p95, spread.p99, spread.max))


def race_command(
    *,
    agents: Annotated[int, typer.Option(min=1, max=AGENTS_MAX, help="Agents in each round.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each on a fresh space.")] = 20,
    titles: Annotated[Path | None, typer.Option(metavar="FILE", help="Titles to propose, one a line, UTF-8.")] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help=f"The server; else the running stack's, else {DEFAULT_URL}.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a histogram of the latencies (.png or .svg).")
    ] = None,
    as_json: AsJson = False,
    state: State = DEFAULT_STATE,
) -> None:
    """Let agents race for an empty board; exit 0 if every slot got exactly one winner."""
    try:
        if plot is not None:
            check_plot(plot)
        place, database = _find(url, state)
        course = Course(place=place, ground=ground(titles), agents=agents, rounds=rounds)
        played = _with_progress(course, database)
        result = report(played)
        if as_json:
            print_json(document(course, played, result))
        else:
            _show(course, result)
        if plot is not None:
            _plot(plot, course, played)
    except KeyboardInterrupt:
        sys.stderr.write("dibs: interrupted\n")
        raise typer.Exit(_INTERRUPTED) from None
    if not result.passed:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the command ``race``."""
    app.command("race")(race_command)


def _find(url: str | None, state: Path) -> tuple[Place, str]:
    """Return the server and its database: as named, else those of the stack that runs on the state folder.

    Raises:
        DeployError: the URL is malformed, or no database was named and no stack runs.
    """
    database = os.environ.get(DATABASE_URL)
    stack = StateFolder(state).running() if url is None else None
    try:
        place = parse_url(url or (stack.http if stack else DEFAULT_URL))
    except ValueError as error:
        raise RaceError(f"--url: {error}") from None
    return place, database or (stack or running_stack(state)).database


def _with_progress(course: Course, database: str) -> tuple[Round, ...]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(f"{course.agents} agents racing", total=course.rounds)
        return run_race(course, database_url=database, on_round=lambda: progress.advance(bar))


def _show(course: Course, result: Report) -> None:
    Console(markup=False, highlight=False, emoji=False).print(table(course, result))
    if len(result.faults) > 1:
        for fault in result.faults[:_FAULTS_SHOWN]:
            print_line(f"  {fault}")
    print_line(f"verdict: {result.verdict}")


def _plot(path: Path, course: Course, played: Sequence[Round]) -> None:
    attempts = [attempt for one in played for attempt in one.attempts]
    write_plot(
        path,
        winners_ms=[attempt.latency_ms for attempt in attempts if attempt.fate is Fate.WON],
        losers_ms=[attempt.latency_ms for attempt in attempts if attempt.fate is Fate.LOST],
        title=f"{course.agents} agents at once for {len(course.ground.titles)} titles, {len(played)} rounds",
    )
    sys.stderr.write(f"wrote {path}\n")
