"""``dibs agent``, ``dibs key`` and ``dibs member``: who there is and what they may do. Contract 5 and 8."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from deploy.cli_base import (
    DEFAULT_STATE,
    AsJson,
    Handle,
    Slug,
    State,
    print_json,
    print_line,
    print_table,
    service_transaction,
)
from models.rules.spaces import Role
from models.store import agents as store
from models.store import spaces
from models.store.agents import Agent

_PUBLIC_PART: Final = re.compile(r"[a-z2-7]{8}\Z")

agent_commands = typer.Typer(no_args_is_help=True, help="Agents.")
key_commands = typer.Typer(no_args_is_help=True, help="Keys of agents.")
member_commands = typer.Typer(no_args_is_help=True, help="Members of spaces.")


def register(app: typer.Typer) -> None:
    """Add the three groups."""
    app.add_typer(agent_commands, name="agent")
    app.add_typer(key_commands, name="key")
    app.add_typer(member_commands, name="member")


@agent_commands.command("add")
def add_agent(
    handle: Handle,
    unlisted: Annotated[bool, typer.Option("--unlisted", help="Keep it out of lists of agents.")] = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Add an active agent."""
    with service_transaction(state) as connection:
        agent = store.add_agent(connection, handle, listed=not unlisted)
    _show_agent(agent, as_json=as_json)


@agent_commands.command("list")
def list_agents(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List all agents, unlisted ones too."""
    with service_transaction(state) as connection:
        found = store.list_agents(connection)
    if as_json:
        print_json(found)
    else:
        print_table(Agent.__struct_fields__, [msgspec.structs.asdict(agent) for agent in found])


@agent_commands.command("deactivate")
def deactivate_agent(handle: Handle, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Let an agent do nothing more; once this returns, none of its waiting requests writes."""
    _set_agent(state, handle, active=False, as_json=as_json)


@agent_commands.command("activate")
def activate_agent(handle: Handle, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Let a deactivated agent work again."""
    _set_agent(state, handle, active=True, as_json=as_json)


@agent_commands.command("unlist")
def unlist_agent(handle: Handle, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Take an agent out of lists of agents."""
    _set_agent(state, handle, listed=False, as_json=as_json)


def _set_agent(
    state: Path, handle: str, *, active: bool | None = None, listed: bool | None = None, as_json: bool
) -> None:
    with service_transaction(state) as connection:
        agent = store.set_agent(connection, handle, active=active, listed=listed)
    _show_agent(agent, as_json=as_json)


def _show_agent(agent: Agent, *, as_json: bool) -> None:
    if as_json:
        print_json(agent)
    else:
        words = ("active" if agent.active else "not active", "listed" if agent.listed else "unlisted")
        print_line(f"{agent.handle} ({agent.id}) is {' and '.join(words)}")


@key_commands.command("issue")
def issue_key(
    handle: Handle,
    operator: Annotated[bool, typer.Option("--operator", help="The key of an operator.")] = False,
    expires: Annotated[int | None, typer.Option(min=1, max=36_500, metavar="DAYS", help="Days it is valid.")] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Issue a further key. It is shown this once: only a digest of it is kept."""
    with service_transaction(state) as connection:
        issued = store.issue_keys(connection, [handle], operator=operator, days=expires)[handle]
    # Printed after the commit: a key that somebody has seen is a key that works.
    if as_json:
        print_json(issued)
    else:
        print_line(f"key {issued.key_id} of {handle}, shown this once:")
        print_line(issued.key)


def _public_part(text: str) -> str:
    # Nothing of it is repeated: who gets here may have given the whole key.
    if not _PUBLIC_PART.match(text):
        raise typer.BadParameter("a KEY_ID is the 8 characters after dibs_ in a key, as key list shows them")
    return text


@key_commands.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(callback=_public_part, metavar="KEY_ID", help="The key's public part.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Revoke a key; once this returns, nothing is written with it."""
    with service_transaction(state) as connection:
        store.revoke_keys(connection, [key_id])
    if as_json:
        print_json({"key_id": key_id, "revoked": True})
    else:
        print_line(f"key {key_id} is revoked")


@key_commands.command("list")
def list_keys(handle: Handle, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List an agent's keys, revoked ones too."""
    with service_transaction(state) as connection:
        found = store.list_keys(connection, handle)
    if as_json:
        print_json(found)
    else:
        print_table(store.KeyRow.__struct_fields__, [msgspec.structs.asdict(key) for key in found])


@member_commands.command("set")
def set_member(
    slug: Slug,
    handle: Handle,
    role: Annotated[Role, typer.Option(help="What the agent may do in the space.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Make an agent a member of a space, or change its role there."""
    with service_transaction(state) as connection:
        spaces.set_member(connection, slug, handle, role)
    if as_json:
        print_json({"space": slug, "handle": handle, "role": role})
    else:
        print_line(f"{handle} is {role} of {slug}")


@member_commands.command("remove")
def remove_member(slug: Slug, handle: Handle, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Take an agent out of a space; its last steward stays."""
    with service_transaction(state) as connection:
        spaces.remove_member(connection, slug, handle)
    if as_json:
        print_json({"space": slug, "handle": handle, "role": None})
    else:
        print_line(f"{handle} is no member of {slug} any more")
