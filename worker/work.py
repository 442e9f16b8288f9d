"""One window in a worker's hands, from its closing to the replies."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from models.rules.charter import CompiledCharter
from models.rules.governance import NewCatalog
from models.rules.intents import Sequenced
from models.rules.outcomes import Answer, Outcome
from models.rules.window import Bindings, bind_window, leaders
from models.window.back import Closed, Reservation
from models.window.codec import Reply


class Work:
    """One window: what stays the same for all its parts, and how its proposals are bound."""

    def __init__(self, partition: str, closed: Closed) -> None:
        self.partition = partition
        self.window_id = closed.id
        self.entries = closed.entries
        self.held: frozenset[tuple[UUID, int]] = frozenset()
        self.charter: CompiledCharter | None = None
        self.bindings: Bindings = {}

    def bind(self, charter: CompiledCharter | None) -> None:
        """Bind every proposal: the long part of a window, done outside of any transaction."""
        self.charter = charter
        catalogs = {place: bound for place, bound in self.bindings.items() if isinstance(bound, NewCatalog)}
        self.bindings = {**bind_window(self.entries, charter), **catalogs}

    def reservations(self) -> dict[Reservation, tuple[UUID, int]]:
        """Return a reservation for the first proposal of each key, as far as they are bound."""
        by_id = {entry.submission.id: entry.submission for entry in self.entries}
        return {
            Reservation.of(self.partition, key, self.window_id, by_id[append].proposal_id(position)): (append, position)
            for key, (append, position) in leaders(self.entries, self.bindings).items()
        }


def replies(entries: Sequence[Sequenced], decided: Sequence[Outcome]) -> dict[str, list[Reply]]:
    """Return one list of replies for each web process that waits for any of them."""
    answers: dict[UUID, dict[int, Answer]] = {}
    for outcome in decided:
        answers.setdefault(outcome.append_id, {})[outcome.position] = outcome.answer
    messages: dict[str, list[Reply]] = {}
    for entry in entries:
        submission = entry.submission
        found = answers.get(submission.id)
        if found is not None and submission.reply_to:
            ordered = tuple(found[position] for position in sorted(found))
            messages.setdefault(submission.reply_to, []).append(Reply(submission.id, ordered))
    return messages
