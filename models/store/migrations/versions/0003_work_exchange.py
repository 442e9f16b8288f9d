"""The work exchange: opportunities, proposals, their events, keys that are kept for ever, and quotas."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the exchange's tables and partitions."""
    _work_opportunities()
    _work_proposals()
    _work_events()
    _work_slots()
    _work_resolutions()
    _work_actors()
    # Opportunities are ordered by their id's hash; the number of partitions never changes.
    op.execute(
        "INSERT INTO partitions (name, last_at) "
        "SELECT 'x:' || lpad(n::text, 2, '0'), to_timestamp(0) FROM generate_series(0, 15) AS n"
    )


def _work_opportunities() -> None:
    op.create_table(
        "work_opportunities",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("requester", sa.Text(), nullable=False),
        sa.Column("terms", postgresql.JSON(), nullable=True, comment="null once withdrawn or purged"),
        sa.Column("terms_sha256", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("own_state", sa.Text(), nullable=False),
        sa.Column("proposal_count", sa.Integer(), nullable=False),
        sa.Column("selected_proposal", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retention_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("own_state in ('open', 'assigned', 'withdrawn')", name="work_opportunities_own_state_ck"),
        sa.CheckConstraint("own_state <> 'open' or selected_proposal is null", name="work_opportunities_selection_ck"),
        sa.ForeignKeyConstraint(["requester"], ["agents.id"], name="work_opportunities_requester_fk"),
        sa.PrimaryKeyConstraint("id", name="work_opportunities_pk"),
    )
    op.create_index(
        "work_opportunities_retention_ix",
        "work_opportunities",
        ["retention_until"],
        postgresql_where=sa.text("terms is not null"),
    )


def _work_proposals() -> None:
    op.create_table(
        "work_proposals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("work_id", sa.Text(), nullable=False),
        sa.Column("opportunity_revision", sa.Integer(), nullable=False),
        sa.Column("opportunity_terms_sha256", sa.Text(), nullable=False),
        sa.Column("requester", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("proposed_by", sa.Text(), nullable=False),
        sa.Column("terms", postgresql.JSON(), nullable=True, comment="null once withdrawn or purged"),
        sa.Column("terms_sha256", sa.Text(), nullable=False),
        sa.Column("delivery", postgresql.JSON(), nullable=True),
        sa.Column("delivery_sha256", sa.Text(), nullable=True),
        sa.Column("decision", postgresql.JSON(), nullable=True),
        sa.Column("decision_sha256", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("own_state", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retention_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("proposed_by in (requester, provider)", name="work_proposals_author_ck"),
        sa.CheckConstraint(
            "own_state in ('proposed', 'accepted', 'delivered', 'disputed', 'completed', "
            "'refused', 'cancelled', 'withdrawn')",
            name="work_proposals_own_state_ck",
        ),
        sa.CheckConstraint("requester <> provider", name="work_proposals_parties_ck"),
        sa.ForeignKeyConstraint(["provider"], ["agents.id"], name="work_proposals_provider_fk"),
        sa.ForeignKeyConstraint(["work_id"], ["work_opportunities.id"], name="work_proposals_work_fk"),
        sa.PrimaryKeyConstraint("id", name="work_proposals_pk"),
    )
    op.create_index(
        "work_proposals_retention_ix",
        "work_proposals",
        ["retention_until"],
        postgresql_where=sa.text("terms is not null or delivery is not null or decision is not null"),
    )
    op.create_index("work_proposals_work_ix", "work_proposals", ["work_id"])


def _work_events() -> None:
    op.create_table(
        "work_events",
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("receipt_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("revision between 1 and 136", name="work_events_limit_ck"),
        sa.PrimaryKeyConstraint("object_id", "revision", name="work_events_pk"),
    )


def _work_slots() -> None:
    op.create_table(
        "work_slots",
        sa.Column("slot", sa.LargeBinary(), nullable=False),
        sa.Column("secret_id", sa.Text(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=True, comment="null: from before bodies were bound to keys"),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column(
            "operation", sa.Text(), nullable=True, comment="null: a fence, which prevents the operation for ever"
        ),
        sa.Column("kind", sa.Text(), nullable=True),
        sa.Column("object_id", sa.Text(), nullable=True),
        sa.Column("operation_revision", sa.Integer(), nullable=True),
        sa.Column("receipt_id", sa.Text(), nullable=True),
        sa.Column("status", sa.SmallInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "num_nulls(operation, kind, object_id, operation_revision, receipt_id, status) in (0, 6)",
            name="work_slots_reference_ck",
        ),
        sa.PrimaryKeyConstraint("slot", name="work_slots_pk"),
        comment="never purged: keys, receipts and fences of the exchange",
    )


def _work_resolutions() -> None:
    op.create_table(
        "work_resolutions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("original_path", sa.Text(), nullable=False),
        sa.Column("original_intent_digest", sa.Text(), nullable=False),
        sa.Column("original_slot", sa.LargeBinary(), nullable=False),
        sa.Column("original_status", sa.SmallInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["original_slot"], ["work_slots.slot"], name="work_resolutions_slot_fk"),
        sa.PrimaryKeyConstraint("id", name="work_resolutions_pk"),
    )


def _work_actors() -> None:
    op.create_table(
        "work_actors",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("opportunities", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("proposals", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("fences", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("resolutions", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "opportunities between 0 and 256 and proposals between 0 and 1024 and fences between 0 "
            "and 64 and resolutions between 0 and 256",
            name="work_actors_quota_ck",
        ),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name="work_actors_agent_fk"),
        sa.PrimaryKeyConstraint("agent_id", name="work_actors_pk"),
    )
