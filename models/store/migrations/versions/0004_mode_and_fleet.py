"""Changes of the mode on record, and the processes that serve."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both tables."""
    op.alter_column("work_mode", "epoch", comment="raised by every change, also to the same mode")
    op.create_table(
        "work_mode_changes",
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name="work_mode_changes_pk"),
        sa.CheckConstraint("mode in ('active', 'drain')", name="work_mode_changes_mode_ck"),
    )
    op.create_table(
        "fleet",
        sa.Column("id", sa.Text(), nullable=False, comment="the end of its backends' application_name"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("floor", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False, comment="of the mode, as the process has seen it"),
        sa.Column("windows", sa.Integer(), nullable=False, comment="in flight"),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="fleet_pk"),
        sa.CheckConstraint("kind in ('web', 'worker')", name="fleet_kind_ck"),
    )
