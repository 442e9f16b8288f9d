"""The words of a space and of the service's mode that several layers share. Contract 2.7, 4 and 5."""

from __future__ import annotations

from enum import StrEnum


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
