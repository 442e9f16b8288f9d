"""Everything a window's decision depends on, loaded under its locks in a fixed number of statements.

The order is the commit protocol's (Contract 1.1): advisory locks, partition row, then the snapshot in new
statements, so that each of them sees what was committed before the locks were granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from models.rules.charter import CatalogRow, Charter, CompiledCharter, compile_charter
from models.rules.codes import Code
from models.rules.conflict import ConflictKey
from models.rules.idempotency import Remembered
from models.rules.intents import Sequenced
from models.rules.outcomes import Answer, Outcome
from models.rules.snapshot import Authority, SpaceState
from models.rules.spaces import Mode, Role, Visibility


class FenceLostError(Exception):
    """Another worker has taken the partition since this one took its fence; nothing was written."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The partition's row, held FOR UPDATE, and the mode that no one can change until this transaction ends."""

    last_seq: int
    last_at: datetime
    epoch: int
    mode: Mode


_HEAD = text(
    "SELECT p.fence, p.last_seq, p.last_at, p.epoch, m.mode FROM partitions p CROSS JOIN work_mode m "
    "WHERE p.name = :partition FOR UPDATE OF p"
)


def lock_partition(connection: Connection, partition: str, fence: int) -> Head:
    """Lock the partition's row and check that the fence is still ours.

    Raises:
        FenceLostError: the fence is another's, or the partition is gone.
    """
    row = connection.execute(_HEAD, {"partition": partition}).one_or_none()
    if row is None or row.fence != fence:
        raise FenceLostError(partition)
    return Head(last_seq=row.last_seq, last_at=row.last_at, epoch=row.epoch, mode=Mode(row.mode))


class _SpaceRow(msgspec.Struct, frozen=True):
    id: int
    slug: str
    visibility: Visibility
    next_task: int
    next_event: int
    next_note: int
    claim_ttl_seconds: int | None
    charter_revision: int
    catalog: tuple[CatalogRow, ...] | None


class _AuthorityRow(msgspec.Struct, frozen=True):
    key: str
    agent: str
    agent_active: bool
    revoked: bool
    expires_at: datetime | None
    role: Role | None


_ABSENT = msgspec.Raw()
_NO_PAYLOAD = frozenset({b"", b"null"})


class _OutcomeRow(msgspec.Struct, frozen=True):
    append_id: UUID
    position: int
    batch: bool
    place: int
    received_seq: int
    kind: str
    actor: str
    status: int
    code: Code | None
    body: str
    replay_of: UUID | None
    task_id: int | None
    key: ConflictKey | None
    payload: msgspec.Raw = _ABSENT

    def outcome(self) -> Outcome:
        return Outcome(
            append_id=self.append_id,
            position=self.position,
            batch=self.batch,
            place=self.place,
            received_seq=self.received_seq,
            kind=self.kind,
            actor=self.actor,
            answer=self.answer(),
            key=self.key,
            payload=None if bytes(self.payload) in _NO_PAYLOAD else bytes(self.payload).decode(),
        )

    def answer(self) -> Answer:
        return Answer(
            status=self.status, body=self.body, code=self.code, task_id=self.task_id, replay_of=self.replay_of
        )


class _SlotRow(msgspec.Struct, frozen=True):
    slot: str
    secret_id: str
    request: str
    append_id: UUID
    answers: tuple[_OutcomeRow, ...]


_space_row = msgspec.json.Decoder(_SpaceRow)
_authority_rows = msgspec.json.Decoder(tuple[_AuthorityRow, ...])
_outcome_rows = msgspec.json.Decoder(tuple[_OutcomeRow, ...])
_slot_rows = msgspec.json.Decoder(tuple[_SlotRow, ...])

_OUTCOME_MEMBERS = (
    "'append_id', o.append_id, 'position', o.position, 'batch', o.batch, 'place', o.place, "
    "'received_seq', o.received_seq, 'kind', o.kind, 'actor', o.actor, 'status', o.status, 'code', o.code, "
    "'body', o.body, 'replay_of', o.replay_of, 'task_id', o.task_id, 'key', o.key"
)
OUTCOME_JSON = f"json_build_object({_OUTCOME_MEMBERS})"
OUTCOME_WITH_PAYLOAD_JSON = f"json_build_object({_OUTCOME_MEMBERS}, 'payload', o.payload)"

_SNAPSHOT = text(f"""
SELECT greatest(dibs_now(), CAST(:last_at AS timestamptz)) AS now,
  (SELECT json_build_object('id', s.id, 'slug', s.slug, 'visibility', s.visibility, 'next_task', s.next_task,
          'next_event', s.next_event, 'next_note', s.next_note, 'claim_ttl_seconds', s.claim_ttl_seconds,
          'charter_revision', s.charter_revision, 'catalog',
          CASE WHEN s.charter_revision = :known_revision THEN NULL ELSE
            (SELECT c.catalog FROM charters c WHERE c.space_id = s.id AND c.revision = s.charter_revision) END)
   FROM spaces s WHERE s.slug = :slug)::text AS space,
  (SELECT coalesce(json_agg(json_build_object('key', k.id, 'agent', a.id, 'agent_active', a.active,
          'revoked', k.revoked_at IS NOT NULL, 'expires_at', k.expires_at, 'role', m.role)), '[]')
   FROM keys k JOIN agents a ON a.id = k.agent_id
   LEFT JOIN spaces s ON s.slug = :slug
   LEFT JOIN members m ON m.space_id = s.id AND m.agent_id = a.id
   WHERE k.id = ANY(:keys))::text AS authorities,
  (SELECT coalesce(json_agg({OUTCOME_JSON} ORDER BY o.append_id, o.position), '[]')
   FROM outcomes o WHERE o.append_id = ANY(:appends))::text AS decided,
  (SELECT coalesce(json_agg(json_build_object('slot', encode(i.slot, 'hex'), 'secret_id', i.secret_id,
          'request', encode(i.request, 'hex'), 'append_id', i.append_id, 'answers',
          (SELECT coalesce(json_agg({OUTCOME_JSON} ORDER BY o.position), '[]')
           FROM outcomes o WHERE o.append_id = i.append_id))), '[]')
   FROM idempotency i WHERE i.slot = ANY(:slots))::text AS remembered,
  (SELECT coalesce(array_agg(n.slug), '{{}}') FROM spaces n WHERE n.slug = ANY(:new_slugs)) AS slugs
""")  # noqa: S608 - the only interpolation is the constant above


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a snapshot that needs no ConflictKey: with its charter the keys are made."""

    now: datetime
    space: SpaceState | None
    authorities: dict[str, Authority]
    decided: dict[UUID, tuple[Outcome, ...]]
    remembered: dict[bytes, Remembered]
    slugs: frozenset[str]


def load(
    connection: Connection, window: Sequence[Sequenced], head: Head, *, slug: str | None, known: CompiledCharter | None
) -> Loaded:
    """Load clock, space, authorities, earlier outcomes and remembered keys, in one statement.

    In a partition of creations (``slug`` None) also which of the wanted slugs are taken.
    ``known`` is the charter this process compiled last: its catalog is not sent again while its revision stands.
    """
    submissions = [entry.submission for entry in window]
    row = connection.execute(
        _SNAPSHOT,
        {
            "last_at": head.last_at,
            "slug": slug,
            "known_revision": known.revision if known else 0,
            "keys": sorted({submission.key_id for submission in submissions}),
            "appends": [submission.id for submission in submissions],
            "new_slugs": [] if slug is not None else sorted({submission.space for submission in submissions}),
            "slots": sorted({digest.slot for submission in submissions for digest in submission.slots}),
        },
    ).one()
    return Loaded(
        now=row.now,
        space=_space(row.space, known),
        authorities={
            found.key: Authority(
                agent=found.agent,
                agent_active=found.agent_active,
                revoked=found.revoked,
                expires_at=found.expires_at,
                role=found.role,
            )
            for found in _authority_rows.decode(row.authorities)
        },
        decided=grouped(_outcome_rows.decode(row.decided)),
        remembered={
            bytes.fromhex(found.slot): Remembered(
                secret_id=found.secret_id,
                request=bytes.fromhex(found.request),
                append_id=found.append_id,
                answers=tuple(outcome.answer() for outcome in found.answers),
            )
            for found in _slot_rows.decode(row.remembered)
        },
        slugs=frozenset(row.slugs),
    )


def decode_outcomes(text_: str) -> dict[UUID, tuple[Outcome, ...]]:
    """Return outcomes by submission from a JSON array of ``OUTCOME_JSON`` objects."""
    return grouped(_outcome_rows.decode(text_))


def grouped(rows: Iterable[_OutcomeRow]) -> dict[UUID, tuple[Outcome, ...]]:
    """Return outcomes by submission, in the order of the rows."""
    found: dict[UUID, list[Outcome]] = {}
    for row in rows:
        found.setdefault(row.append_id, []).append(row.outcome())
    return {append: tuple(several) for append, several in found.items()}


def _space(text_: str | None, known: CompiledCharter | None) -> SpaceState | None:
    if text_ is None:
        return None
    row = _space_row.decode(text_)
    if row.catalog is None:
        assert known is not None
        charter = known
    else:
        charter = compile_charter(Charter(revision=row.charter_revision, rows=row.catalog))
    return SpaceState(
        id=row.id,
        slug=row.slug,
        visibility=row.visibility,
        next_task=row.next_task,
        next_event=row.next_event,
        next_note=row.next_note,
        claim_ttl=None if row.claim_ttl_seconds is None else timedelta(seconds=row.claim_ttl_seconds),
        charter=charter,
    )
