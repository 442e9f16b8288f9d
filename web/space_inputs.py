"""From the bodies about spaces, charters and members to validated intents. Contract 2.1, 2.7 and 5."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from models.rules.board import CATALOG_REASONS, is_slug
from models.rules.charter import CatalogRow, validate_catalog
from models.rules.codes import Code
from models.rules.intents import CreateSpace, SetCharter, SetMember
from models.rules.spaces import CLAIM_TTL_SECONDS_MAX, Role, Visibility
from web.problems import Refusal

AGENT_CHARACTERS_MAX: Final = 100


class SpaceInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a space's creation."""

    slug: str
    visibility: str = Visibility.PUBLIC.value
    claim_ttl_seconds: Annotated[int, Meta(ge=1, le=CLAIM_TTL_SECONDS_MAX)] | msgspec.UnsetType = msgspec.UNSET
    catalog: tuple[CatalogRow, ...] = ()


class CharterInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that puts a catalog in force."""

    catalog: tuple[CatalogRow, ...]


class MemberInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that gives a role: member or steward."""

    role: str


class PreviewInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a preview: what a task with this title would be bound to."""

    title: str
    work_item_id: str | msgspec.UnsetType = msgspec.UNSET
    delivery_mode: str = "result"


def create_space(given: SpaceInput) -> CreateSpace:
    """Return the intent of a space's creation.

    Raises:
        Refusal: ``slug_invalid``, ``visibility_unknown``, ``catalog_invalid``.
    """
    if not is_slug(given.slug):
        raise Refusal(Code.SLUG_INVALID, pointer="/slug")
    try:
        visibility = Visibility(given.visibility)
    except ValueError:
        raise Refusal(Code.VISIBILITY_UNKNOWN, pointer="/visibility") from None
    ttl = None if given.claim_ttl_seconds is msgspec.UNSET else given.claim_ttl_seconds
    return CreateSpace(visibility=visibility, claim_ttl_seconds=ttl, catalog=catalog_of(given.catalog))


def set_charter(given: CharterInput) -> SetCharter:
    """Return the intent of a new charter.

    Raises:
        Refusal: ``catalog_invalid``.
    """
    return SetCharter(catalog=catalog_of(given.catalog))


def catalog_of(rows: tuple[CatalogRow, ...]) -> tuple[CatalogRow, ...]:
    """Return rows that a charter may have.

    Raises:
        Refusal: ``catalog_invalid`` with the pointer of the first fault.
    """
    fault = validate_catalog(rows)
    if fault is not None:
        raise Refusal(
            Code.CATALOG_INVALID,
            f"Mend the row that the pointer names: it {CATALOG_REASONS[fault.code]}.",
            pointer=f"/catalog{fault.pointer}",
        )
    return rows


def set_member(agent: str, given: MemberInput) -> SetMember:
    """Return the intent of giving a role.

    Raises:
        Refusal: ``role_unknown``.
    """
    try:
        role = Role(given.role)
    except ValueError:
        raise Refusal(Code.ROLE_UNKNOWN, pointer="/role") from None
    return SetMember(agent=agent, role=role)
