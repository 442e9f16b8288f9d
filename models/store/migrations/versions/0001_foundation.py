"""The foundation: identity, spaces, tasks, occupancy, events, windows, outcomes, idempotency."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("handle", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("listed", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="agents_pk"),
        sa.UniqueConstraint("handle", name="agents_handle_uq"),
    )
    op.create_table(
        "authority",
        sa.Column("one", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="raised when anyone loses authority"),
        sa.CheckConstraint("one", name="authority_one_ck"),
        sa.PrimaryKeyConstraint("one", name="authority_pk"),
    )
    op.create_table(
        "idempotency",
        sa.Column("slot", sa.LargeBinary(), nullable=False),
        sa.Column("secret_id", sa.Text(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("append_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("slot", name="idempotency_pk"),
    )
    op.create_index("idempotency_append_ix", "idempotency", ["append_id"], unique=False)
    op.create_table(
        "outcomes",
        sa.Column("append_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("batch", sa.Boolean(), nullable=False),
        sa.Column("window_id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("received_seq", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("replay_of", sa.Uuid(), nullable=True),
        sa.Column("task_id", sa.BigInteger(), nullable=True),
        sa.Column("key", postgresql.JSON(), nullable=True),
        sa.Column("reservation", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSON(), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("reservation in ('own', 'none')", name="outcomes_reservation_ck"),
        sa.PrimaryKeyConstraint("append_id", "position", name="outcomes_pk"),
    )
    op.create_index("outcomes_window_ix", "outcomes", ["window_id"], unique=False)
    op.create_table(
        "partitions",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False, comment="raised when Redis went back"
        ),
        sa.Column("last_seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="partitions_pk"),
    )
    op.create_table(
        "spaces",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("charter_revision", sa.Integer(), nullable=False),
        sa.Column("next_task", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("next_event", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("visibility in ('public', 'members')", name="spaces_visibility_ck"),
        sa.PrimaryKeyConstraint("id", name="spaces_pk"),
        sa.UniqueConstraint("slug", name="spaces_slug_uq"),
    )
    op.create_table(
        "windows",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("intents", sa.Integer(), nullable=False),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="windows_pk"),
    )
    op.create_index("windows_age_ix", "windows", ["committed_at"], unique=False)
    op.create_index("windows_partition_ix", "windows", ["partition", "last_seq"], unique=False)
    op.create_table(
        "work_mode",
        sa.Column("one", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("mode in ('active', 'drain')", name="work_mode_mode_ck"),
        sa.CheckConstraint("one", name="work_mode_one_ck"),
        sa.PrimaryKeyConstraint("one", name="work_mode_pk"),
    )
    op.create_table(
        "charters",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("catalog", postgresql.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"], name="charters_space_fk"),
        sa.PrimaryKeyConstraint("space_id", "revision", name="charters_pk"),
    )
    op.create_table(
        "events",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False, comment="per space, from 1, without gaps"),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=True),
        sa.Column("data", postgresql.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"], name="events_space_fk"),
        sa.PrimaryKeyConstraint("space_id", "number", name="events_pk"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Text(), nullable=False, comment="the public part"),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("secret_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("operator", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name="keys_agent_fk"),
        sa.PrimaryKeyConstraint("id", name="keys_pk"),
    )
    op.create_index("keys_agent_ix", "keys", ["agent_id"], unique=False)
    op.create_table(
        "members",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role in ('member', 'steward')", name="members_role_ck"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], name="members_agent_fk"),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"], name="members_space_fk"),
        sa.PrimaryKeyConstraint("space_id", "agent_id", name="members_pk"),
    )
    op.create_index("members_agent_ix", "members", ["agent_id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False, comment="per space, from 1"),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("work_item_id", sa.Text(), nullable=True),
        sa.Column("bind", postgresql.JSONB(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("delivery_mode", sa.Text(), nullable=False),
        sa.Column("validation_policy", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("assigned_to", sa.Text(), nullable=True),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("superseded_by", sa.BigInteger(), nullable=True),
        sa.Column("held", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("received_seq", sa.BigInteger(), nullable=True),
        sa.Column("window_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("delivery_mode in ('result', 'repository_change')", name="tasks_delivery_mode_ck"),
        sa.CheckConstraint(
            "status in ('open','claimed','assigned','in_review','done','rejected','withdrawn','superseded')",
            name="tasks_status_ck",
        ),
        sa.CheckConstraint("char_length(body) <= 8000", name="tasks_body_ck"),
        sa.CheckConstraint("char_length(title) between 1 and 300", name="tasks_title_ck"),
        sa.ForeignKeyConstraint(["created_by"], ["agents.id"], name="tasks_created_by_fk"),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"], name="tasks_space_fk"),
        sa.PrimaryKeyConstraint("space_id", "id", name="tasks_pk"),
    )
    op.create_table(
        "occupancies",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("delivery_mode", sa.Text(), nullable=False),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["space_id", "task_id"], ["tasks.space_id", "tasks.id"], name="occupancies_task_fk"),
        sa.PrimaryKeyConstraint("space_id", "kind", "target", "delivery_mode", name="occupancies_pk"),
    )
    op.create_index("occupancies_task_ix", "occupancies", ["space_id", "task_id"], unique=False)
    # Tests replace the clock by replacing this function; nothing else asks the database for the time.
    op.execute("CREATE FUNCTION dibs_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'")
    op.execute("INSERT INTO authority (epoch) VALUES (1)")
    op.execute("INSERT INTO work_mode (mode, epoch) VALUES ('active', 1)")
