"""Notes, the audit of closed leftovers, claims that end, and the indexes of a task's life."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LIVE = sa.text("status in ('open', 'claimed', 'assigned', 'in_review')")


def upgrade() -> None:
    """Add what a task's life needs."""
    op.add_column("spaces", sa.Column("next_note", sa.BigInteger(), server_default=sa.text("1"), nullable=False))
    op.add_column(
        "spaces",
        sa.Column(
            "claim_ttl_seconds",
            sa.Integer(),
            nullable=True,
            comment="a claim without submit ends after so long; null: never",
        ),
    )
    op.create_check_constraint("spaces_claim_ttl_ck", "spaces", "claim_ttl_seconds > 0")
    op.add_column(
        "tasks",
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when it became terminal: a leftover is older than that",
        ),
    )
    op.execute("UPDATE tasks SET ended_at = updated_at WHERE status in ('done', 'rejected', 'withdrawn', 'superseded')")
    op.create_index("tasks_live_ix", "tasks", ["space_id", "id"], postgresql_where=_LIVE)
    op.create_index("tasks_line_ix", "tasks", ["space_id", "target", "created_at", "id"], postgresql_where=_LIVE)
    op.create_index("tasks_held_ix", "tasks", ["space_id", "target", "id"], postgresql_where=sa.text("held"))
    op.create_index(
        "tasks_claimed_ix", "tasks", ["space_id", "claimed_at"], postgresql_where=sa.text("status = 'claimed'")
    )
    _notes()
    op.add_column(
        "occupancies",
        sa.Column("note_id", sa.BigInteger(), nullable=True, comment="the note that occupies a note's key"),
    )
    _leftover_close_events()
    # Creations of spaces are ordered by their actor's hash; the number of partitions never changes.
    op.execute(
        "INSERT INTO partitions (name, last_at) "
        "SELECT 'a:' || lpad(n::text, 2, '0'), to_timestamp(0) FROM generate_series(0, 15) AS n"
    )


def _notes() -> None:
    op.create_table(
        "notes",
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), nullable=False, comment="per space, from 1"),
        sa.Column("task_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("criterion_index", sa.SmallInteger(), nullable=True),
        sa.Column("delivery_mode", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("received_seq", sa.BigInteger(), nullable=True),
        sa.Column("window_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("space_id", "id", name="notes_pk"),
        sa.ForeignKeyConstraint(["space_id", "task_id"], ["tasks.space_id", "tasks.id"], name="notes_task_fk"),
        sa.ForeignKeyConstraint(["created_by"], ["agents.id"], name="notes_created_by_fk"),
        sa.CheckConstraint("status in ('posted', 'withdrawn')", name="notes_status_ck"),
        sa.CheckConstraint("kind = 'post_review_note'", name="notes_kind_ck"),
        sa.CheckConstraint("char_length(body) between 1 and 8000", name="notes_body_ck"),
        sa.CheckConstraint("criterion_index between 0 and 999", name="notes_criterion_ck"),
    )
    op.create_index("notes_task_ix", "notes", ["space_id", "task_id", "id"])


def _leftover_close_events() -> None:
    op.create_table(
        "leftover_close_events",
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("space_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("leftover_task", sa.BigInteger(), nullable=False, comment="as it was asked for: it need not exist"),
        sa.Column("surviving_task", sa.BigInteger(), nullable=False, comment="as it was asked for: it need not exist"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True, comment="why it was denied"),
        sa.Column("proposal_id", sa.Uuid(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="leftover_close_events_pk"),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"], name="leftover_close_events_space_fk"),
        sa.ForeignKeyConstraint(["actor"], ["agents.id"], name="leftover_close_events_actor_fk"),
        sa.CheckConstraint(
            "(event = 'task_superseded' and code is null) or (event = 'task_supersede_denied' and code is not null)",
            name="leftover_close_events_event_ck",
        ),
        comment="append-only: privileges and a trigger refuse UPDATE, DELETE and TRUNCATE",
    )
    op.create_index("leftover_close_events_space_ix", "leftover_close_events", ["space_id", "number"])
    op.execute(
        "CREATE FUNCTION leftover_close_events_stay() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'leftover_close_events is append-only' USING ERRCODE = 'restrict_violation'; END $$"
    )
    op.execute(
        "CREATE TRIGGER leftover_close_events_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON leftover_close_events "
        "FOR EACH STATEMENT EXECUTE FUNCTION leftover_close_events_stay()"
    )
