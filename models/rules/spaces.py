"""The words of a space and of the service's mode that several layers share. Contract 2.7, 4 and 5."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from models.rules.charter import CatalogRow
from models.rules.conflict import ConflictKey


class Mode(StrEnum):
    """Whether fresh effects are admitted."""

    ACTIVE = "active"
    DRAIN = "drain"


class Role(StrEnum):
    """What a member may do in a space."""

    MEMBER = "member"
    STEWARD = "steward"


class Visibility(StrEnum):
    """Who may read a space."""

    PUBLIC = "public"
    MEMBERS = "members"


CLAIM_TTL_SECONDS_MAX: Final = 30 * 24 * 3600
"""Longest life of a claim that a space may ask for."""


class SpaceView(msgspec.Struct, frozen=True, kw_only=True):
    """A space as it is answered."""

    slug: str
    visibility: Visibility
    claim_ttl_seconds: int | None
    charter_revision: int
    created_at: datetime


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A member as it is answered; ``role`` is None for one that was removed just now."""

    agent_id: str
    handle: str
    role: Role | None
    since: datetime


class Rebind(msgspec.Struct, frozen=True, kw_only=True):
    """A live task whose ConflictKey another catalog would change; it keeps its own."""

    task: int
    old: ConflictKey
    new: ConflictKey


class CharterView(msgspec.Struct, frozen=True, kw_only=True):
    """A charter's revision as it is answered."""

    space: str
    revision: int
    catalog: tuple[CatalogRow, ...]
    created_at: datetime


class CharterChange(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a charter that was put in force, or, with ``dry_run``, to one that could be."""

    space: str
    revision: int
    dry_run: bool
    rebinds: tuple[Rebind, ...]
