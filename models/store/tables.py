"""The tables, with every constraint named, so that a migration and an error can speak of it.

The occupancy table is the arbiter of a race; everything Redis says is a courtesy. Contract, sections 1 and 2.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB

metadata = MetaData()

_AT = DateTime(timezone=True)


def moment(name: str, *, nullable: bool = False) -> Column[object]:
    """Return a column for a time, in UTC."""
    return Column(name, _AT, nullable=nullable)


agents = Table(
    "agents",
    metadata,
    Column("id", Text, nullable=False),
    Column("handle", Text, nullable=False),
    Column("active", Boolean, nullable=False, server_default=text("true")),
    Column("listed", Boolean, nullable=False, server_default=text("true")),
    moment("created_at"),
    PrimaryKeyConstraint("id", name="agents_pk"),
    UniqueConstraint("handle", name="agents_handle_uq"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", Text, nullable=False, comment="the public part"),
    Column("agent_id", Text, nullable=False),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("operator", Boolean, nullable=False, server_default=text("false")),
    moment("created_at"),
    moment("expires_at", nullable=True),
    moment("revoked_at", nullable=True),
    PrimaryKeyConstraint("id", name="keys_pk"),
    ForeignKeyConstraint(["agent_id"], ["agents.id"], name="keys_agent_fk"),
    Index("keys_agent_ix", "agent_id"),
)

authority = Table(
    "authority",
    metadata,
    Column("one", Boolean, nullable=False, server_default=text("true")),
    Column("epoch", BigInteger, nullable=False, comment="raised when anyone loses authority"),
    PrimaryKeyConstraint("one", name="authority_pk"),
    CheckConstraint("one", name="authority_one_ck"),
)

work_mode = Table(
    "work_mode",
    metadata,
    Column("one", Boolean, nullable=False, server_default=text("true")),
    Column("mode", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, comment="raised by every change, also to the same mode"),
    PrimaryKeyConstraint("one", name="work_mode_pk"),
    CheckConstraint("one", name="work_mode_one_ck"),
    CheckConstraint("mode in ('active', 'drain')", name="work_mode_mode_ck"),
)

work_mode_changes = Table(
    "work_mode_changes",
    metadata,
    Column("epoch", BigInteger, nullable=False),
    Column("mode", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    moment("at"),
    PrimaryKeyConstraint("epoch", name="work_mode_changes_pk"),
    CheckConstraint("mode in ('active', 'drain')", name="work_mode_changes_mode_ck"),
)

fleet = Table(
    "fleet",
    metadata,
    Column("id", Text, nullable=False, comment="the end of its backends' application_name"),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("floor", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, comment="of the mode, as the process has seen it"),
    Column("windows", Integer, nullable=False, comment="in flight"),
    moment("started_at"),
    moment("heartbeat_at"),
    PrimaryKeyConstraint("id", name="fleet_pk"),
    CheckConstraint("kind in ('web', 'worker')", name="fleet_kind_ck"),
)

partitions = Table(
    "partitions",
    metadata,
    Column("name", Text, nullable=False),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("epoch", BigInteger, nullable=False, server_default=text("0"), comment="raised when Redis went back"),
    Column("last_seq", BigInteger, nullable=False, server_default=text("0")),
    moment("last_at"),
    PrimaryKeyConstraint("name", name="partitions_pk"),
)

spaces = Table(
    "spaces",
    metadata,
    Column("id", BigInteger, nullable=False, autoincrement=True),
    Column("slug", Text, nullable=False),
    Column("visibility", Text, nullable=False),
    Column("charter_revision", Integer, nullable=False),
    Column("next_task", BigInteger, nullable=False, server_default=text("1")),
    Column("next_event", BigInteger, nullable=False, server_default=text("1")),
    Column("next_note", BigInteger, nullable=False, server_default=text("1")),
    Column("claim_ttl_seconds", Integer, comment="a claim without submit ends after so long; null: never"),
    moment("created_at"),
    PrimaryKeyConstraint("id", name="spaces_pk"),
    UniqueConstraint("slug", name="spaces_slug_uq"),
    CheckConstraint("visibility in ('public', 'members')", name="spaces_visibility_ck"),
    CheckConstraint("claim_ttl_seconds > 0", name="spaces_claim_ttl_ck"),
)

charters = Table(
    "charters",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("catalog", JSON, nullable=False),
    moment("created_at"),
    PrimaryKeyConstraint("space_id", "revision", name="charters_pk"),
    ForeignKeyConstraint(["space_id"], ["spaces.id"], name="charters_space_fk"),
)

members = Table(
    "members",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("role", Text, nullable=False),
    moment("since"),
    PrimaryKeyConstraint("space_id", "agent_id", name="members_pk"),
    ForeignKeyConstraint(["space_id"], ["spaces.id"], name="members_space_fk"),
    ForeignKeyConstraint(["agent_id"], ["agents.id"], name="members_agent_fk"),
    CheckConstraint("role in ('member', 'steward')", name="members_role_ck"),
    Index("members_agent_ix", "agent_id"),
)

LIVE_SQL = "status in ('open', 'claimed', 'assigned', 'in_review')"
"""The condition of the partial indexes; a query that wants one says it in these words."""

tasks = Table(
    "tasks",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("id", BigInteger, nullable=False, comment="per space, from 1"),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("work_item_id", Text),
    Column("bind", JSONB, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("delivery_mode", Text, nullable=False),
    Column("validation_policy", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("holder", Text),
    Column("assigned_to", Text),
    moment("claimed_at", nullable=True),
    Column("superseded_by", BigInteger),
    Column("held", Boolean, nullable=False, server_default=text("false")),
    Column("revision", Integer, nullable=False),
    Column("received_seq", BigInteger),
    Column("window_id", Uuid),
    moment("created_at"),
    moment("updated_at"),
    Column("ended_at", _AT, nullable=True, comment="when it became terminal: a leftover is older than that"),
    PrimaryKeyConstraint("space_id", "id", name="tasks_pk"),
    ForeignKeyConstraint(["space_id"], ["spaces.id"], name="tasks_space_fk"),
    ForeignKeyConstraint(["created_by"], ["agents.id"], name="tasks_created_by_fk"),
    CheckConstraint(
        "status in ('open','claimed','assigned','in_review','done','rejected','withdrawn','superseded')",
        name="tasks_status_ck",
    ),
    CheckConstraint("char_length(title) between 1 and 300", name="tasks_title_ck"),
    CheckConstraint("char_length(body) <= 8000", name="tasks_body_ck"),
    CheckConstraint("delivery_mode in ('result', 'repository_change')", name="tasks_delivery_mode_ck"),
    # The board, and whoever is next in line on a key.
    Index("tasks_live_ix", "space_id", "id", postgresql_where=text(LIVE_SQL)),
    Index("tasks_line_ix", "space_id", "target", "created_at", "id", postgresql_where=text(LIVE_SQL)),
    Index("tasks_held_ix", "space_id", "target", "id", postgresql_where=text("held")),
    Index("tasks_claimed_ix", "space_id", "claimed_at", postgresql_where=text("status = 'claimed'")),
)

notes = Table(
    "notes",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("id", BigInteger, nullable=False, comment="per space, from 1"),
    Column("task_id", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("criterion_index", SmallInteger),
    Column("delivery_mode", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("received_seq", BigInteger),
    Column("window_id", Uuid),
    moment("created_at"),
    moment("updated_at"),
    PrimaryKeyConstraint("space_id", "id", name="notes_pk"),
    ForeignKeyConstraint(["space_id", "task_id"], ["tasks.space_id", "tasks.id"], name="notes_task_fk"),
    ForeignKeyConstraint(["created_by"], ["agents.id"], name="notes_created_by_fk"),
    CheckConstraint("status in ('posted', 'withdrawn')", name="notes_status_ck"),
    CheckConstraint("kind = 'post_review_note'", name="notes_kind_ck"),
    CheckConstraint("char_length(body) between 1 and 8000", name="notes_body_ck"),
    CheckConstraint("criterion_index between 0 and 999", name="notes_criterion_ck"),
    Index("notes_task_ix", "space_id", "task_id", "id"),
)

occupancies = Table(
    "occupancies",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("delivery_mode", Text, nullable=False),
    Column("task_id", BigInteger, nullable=False),
    Column("note_id", BigInteger, comment="the note that occupies a note's key"),
    PrimaryKeyConstraint("space_id", "kind", "target", "delivery_mode", name="occupancies_pk"),
    ForeignKeyConstraint(["space_id", "task_id"], ["tasks.space_id", "tasks.id"], name="occupancies_task_fk"),
    Index("occupancies_task_ix", "space_id", "task_id"),
)

events = Table(
    "events",
    metadata,
    Column("space_id", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False, comment="per space, from 1, without gaps"),
    Column("type", Text, nullable=False),
    moment("at"),
    Column("actor", Text, nullable=False),
    Column("task_id", BigInteger),
    Column("data", JSON, nullable=False),
    PrimaryKeyConstraint("space_id", "number", name="events_pk"),
    ForeignKeyConstraint(["space_id"], ["spaces.id"], name="events_space_fk"),
)

windows = Table(
    "windows",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("partition", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("intents", Integer, nullable=False),
    moment("committed_at"),
    PrimaryKeyConstraint("id", name="windows_pk"),
    Index("windows_partition_ix", "partition", "last_seq"),
    Index("windows_age_ix", "committed_at"),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("append_id", Uuid, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("batch", Boolean, nullable=False),
    Column("window_id", Uuid, nullable=False),
    Column("partition", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("received_seq", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("code", Text),
    Column("body", Text, nullable=False),
    Column("replay_of", Uuid),
    Column("task_id", BigInteger),
    Column("key", JSON),
    Column("reservation", Text, nullable=False),
    Column("payload", JSON),
    moment("decided_at"),
    PrimaryKeyConstraint("append_id", "position", name="outcomes_pk"),
    CheckConstraint("reservation in ('own', 'none')", name="outcomes_reservation_ck"),
    Index("outcomes_window_ix", "window_id"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("slot", LargeBinary, nullable=False),
    Column("secret_id", Text, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("append_id", Uuid, nullable=False),
    moment("created_at"),
    PrimaryKeyConstraint("slot", name="idempotency_pk"),
    Index("idempotency_append_ix", "append_id"),
)

leftover_close_events = Table(
    "leftover_close_events",
    metadata,
    Column("number", BigInteger, Identity(always=True), nullable=False),
    Column("space_id", BigInteger, nullable=False),
    moment("at"),
    Column("event", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("leftover_task", BigInteger, nullable=False, comment="as it was asked for: it need not exist"),
    Column("surviving_task", BigInteger, nullable=False, comment="as it was asked for: it need not exist"),
    Column("reason", Text, nullable=False),
    Column("code", Text, comment="why it was denied"),
    Column("proposal_id", Uuid, nullable=False),
    PrimaryKeyConstraint("number", name="leftover_close_events_pk"),
    ForeignKeyConstraint(["space_id"], ["spaces.id"], name="leftover_close_events_space_fk"),
    ForeignKeyConstraint(["actor"], ["agents.id"], name="leftover_close_events_actor_fk"),
    CheckConstraint(
        "(event = 'task_superseded' and code is null) or (event = 'task_supersede_denied' and code is not null)",
        name="leftover_close_events_event_ck",
    ),
    Index("leftover_close_events_space_ix", "space_id", "number"),
    comment="append-only: privileges and a trigger refuse UPDATE, DELETE and TRUNCATE",
)
