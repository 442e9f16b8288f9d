"""The work exchange's tables: nothing in them is ever deleted, payloads are cleared. Seed 004; Contract 3."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from models.store.tables import metadata, moment

work_opportunities = Table(
    "work_opportunities",
    metadata,
    Column("id", Text, nullable=False),
    Column("requester", Text, nullable=False),
    Column("terms", JSON, comment="null once withdrawn or purged"),
    Column("terms_sha256", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("own_state", Text, nullable=False),
    Column("proposal_count", Integer, nullable=False),
    Column("selected_proposal", Text),
    moment("expires_at"),
    moment("retention_until"),
    moment("created_at"),
    moment("updated_at"),
    PrimaryKeyConstraint("id", name="work_opportunities_pk"),
    ForeignKeyConstraint(["requester"], ["agents.id"], name="work_opportunities_requester_fk"),
    CheckConstraint("own_state in ('open', 'assigned', 'withdrawn')", name="work_opportunities_own_state_ck"),
    CheckConstraint("own_state <> 'open' or selected_proposal is null", name="work_opportunities_selection_ck"),
    Index("work_opportunities_retention_ix", "retention_until", postgresql_where=text("terms is not null")),
)

work_proposals = Table(
    "work_proposals",
    metadata,
    Column("id", Text, nullable=False),
    Column("work_id", Text, nullable=False),
    Column("opportunity_revision", Integer, nullable=False),
    Column("opportunity_terms_sha256", Text, nullable=False),
    Column("requester", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("proposed_by", Text, nullable=False),
    Column("terms", JSON, comment="null once withdrawn or purged"),
    Column("terms_sha256", Text, nullable=False),
    Column("delivery", JSON),
    Column("delivery_sha256", Text),
    Column("decision", JSON),
    Column("decision_sha256", Text),
    Column("revision", Integer, nullable=False),
    Column("own_state", Text, nullable=False),
    moment("expires_at"),
    moment("retention_until"),
    moment("created_at"),
    moment("updated_at"),
    PrimaryKeyConstraint("id", name="work_proposals_pk"),
    ForeignKeyConstraint(["work_id"], ["work_opportunities.id"], name="work_proposals_work_fk"),
    ForeignKeyConstraint(["provider"], ["agents.id"], name="work_proposals_provider_fk"),
    CheckConstraint(
        "own_state in ('proposed', 'accepted', 'delivered', 'disputed', 'completed', 'refused', 'cancelled', "
        "'withdrawn')",
        name="work_proposals_own_state_ck",
    ),
    CheckConstraint("proposed_by in (requester, provider)", name="work_proposals_author_ck"),
    CheckConstraint("requester <> provider", name="work_proposals_parties_ck"),
    Index("work_proposals_work_ix", "work_id"),
    Index(
        "work_proposals_retention_ix",
        "retention_until",
        postgresql_where=text("terms is not null or delivery is not null or decision is not null"),
    ),
)

work_events = Table(
    "work_events",
    metadata,
    Column("object_id", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("operation", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("receipt_id", Text, nullable=False),
    moment("at"),
    PrimaryKeyConstraint("object_id", "revision", name="work_events_pk"),
    CheckConstraint("revision between 1 and 136", name="work_events_limit_ck"),
)

work_slots = Table(
    "work_slots",
    metadata,
    Column("slot", LargeBinary, nullable=False),
    Column("secret_id", Text, nullable=False),
    Column("request", LargeBinary, comment="null: from before bodies were bound to keys"),
    Column("actor", Text, nullable=False),
    Column("operation", Text, comment="null: a fence, which prevents the operation for ever"),
    Column("kind", Text),
    Column("object_id", Text),
    Column("operation_revision", Integer),
    Column("receipt_id", Text),
    Column("status", SmallInteger),
    moment("created_at"),
    PrimaryKeyConstraint("slot", name="work_slots_pk"),
    CheckConstraint(
        "num_nulls(operation, kind, object_id, operation_revision, receipt_id, status) in (0, 6)",
        name="work_slots_reference_ck",
    ),
    comment="never purged: keys, receipts and fences of the exchange",
)

work_resolutions = Table(
    "work_resolutions",
    metadata,
    Column("id", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("applied", Boolean, nullable=False),
    Column("original_path", Text, nullable=False),
    Column("original_intent_digest", Text, nullable=False),
    Column("original_slot", LargeBinary, nullable=False),
    Column("original_status", SmallInteger, nullable=False),
    moment("at"),
    PrimaryKeyConstraint("id", name="work_resolutions_pk"),
    ForeignKeyConstraint(["original_slot"], ["work_slots.slot"], name="work_resolutions_slot_fk"),
)

work_actors = Table(
    "work_actors",
    metadata,
    Column("agent_id", Text, nullable=False),
    Column("opportunities", Integer, nullable=False, server_default=text("0")),
    Column("proposals", Integer, nullable=False, server_default=text("0")),
    Column("fences", Integer, nullable=False, server_default=text("0")),
    Column("resolutions", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("agent_id", name="work_actors_pk"),
    ForeignKeyConstraint(["agent_id"], ["agents.id"], name="work_actors_agent_fk"),
    CheckConstraint(
        "opportunities between 0 and 256 and proposals between 0 and 1024 and fences between 0 and 64 "
        "and resolutions between 0 and 256",
        name="work_actors_quota_ck",
    ),
)
