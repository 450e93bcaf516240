"""Broken invariants over a log, found without judging every batch.

Owns when an image is judged: at the first batch boundary at or after every CHECK_EVERY offsets, and at the
end. Where the answers at two boundaries differ, the batches between are replayed again from the image of the
first, halving, until the batch that made each difference is found. A state that comes and goes between two
boundaries is not told. The rules between two images are judged at every batch with a record that could break
them. All rules are those of `metadata.invariants`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from metadata.errors import ReplayError
from metadata.image import MetadataImage
from metadata.invariants import ERROR, Violation, check_image, check_step
from metadata.replay import Replayer, ReplayState
from storage.batch import RecordBatch

from .moments import Moment, Row
from .rows import Intervals

CHECK_EVERY = 2_000
MAX_VIOLATIONS = 1_000
"""So many violations of one image are told apart; more say nothing new."""
REPLAY_RULE = "replay"

Found = dict[tuple[str, str], Violation]


class _Place(NamedTuple):
    """A state between two batches, and what is broken in it."""

    state: ReplayState
    found: Found


class Violations:
    """Rows of `violations`."""

    def __init__(self, state: ReplayState) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self._events: list[Row] = []
        self._anchor = _Place(state, {})
        self._since: list[tuple[RecordBatch, Moment]] = []
        self.next_check = (state.end_offset // CHECK_EVERY + 1) * CHECK_EVERY

    def start_from_snapshot(self, state: ReplayState, moment: Moment) -> None:
        self._anchor = _Place(state, _judge(state))
        for key, violation in self._anchor.found.items():
            self._rows.start(key, _value(violation), moment, known=False)

    def batch(self, batch: RecordBatch, moment: Moment) -> None:
        """A batch that was replayed; `moment` is that of its first record."""
        self._since.append((batch, moment))

    def refused(self, error: ReplayError, moment: Moment) -> None:
        """The replay did not accept a record."""
        value = (REPLAY_RULE, ERROR, f"offset/{error.offset}", str(error))
        self._events.append((*value, error.offset, moment.time_ms, error.offset + 1, moment.time_ms, True))

    def check(self, state: ReplayState) -> None:
        """Judges the state after the last batch."""
        self.next_check = (state.end_offset // CHECK_EVERY + 1) * CHECK_EVERY
        self._anchor = self._compare(self._anchor, self._since, state)
        self._since = []

    def _compare(
        self, before: _Place, batches: list[tuple[RecordBatch, Moment]], state: ReplayState
    ) -> _Place:
        after = _Place(state, _judge(state))
        if before.found.keys() == after.found.keys():
            return after
        if len(batches) <= 1:
            if batches:
                self._tell(before.found, after.found, batches[0][1])
            return after
        half = len(batches) // 2
        engine = Replayer(before.state, on_error=lambda error: None)
        for batch, _ in batches[:half]:
            engine.builder.offset = batch.header.base_offset
            engine.apply_batch(batch)
        middle = self._compare(before, batches[:half], engine.state())
        self._compare(middle, batches[half:], state)
        return after

    def _tell(self, before: Found, after: Found, moment: Moment) -> None:
        for key in before:
            if key not in after:
                self._rows.end(key, moment)
        for key, violation in after.items():
            if key not in before:
                self._rows.start(key, _value(violation), moment)

    def step(self, before: MetadataImage, after: MetadataImage, moment: Moment) -> None:
        """Judges one batch that may have made something smaller that only grows."""
        for violation in check_step(before, after, limit=MAX_VIOLATIONS):
            interval = (moment.offset, moment.time_ms, moment.offset + 1, moment.time_ms, True)
            self._events.append((*_value(violation), *interval))

    def take(self) -> list[Row]:
        events, self._events = self._events, []
        return [*self._rows.take(), *events]

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any, state: ReplayState) -> None:
        """`state` is the one that was saved with this."""
        self._rows.load(saved)
        self._anchor = _Place(state, _judge(state))
        self.next_check = (state.end_offset // CHECK_EVERY + 1) * CHECK_EVERY


def _judge(state: ReplayState) -> Found:
    found = check_image(state.image, limit=MAX_VIOLATIONS)
    return {(violation.rule, violation.where): violation for violation in found}


def _value(violation: Violation) -> Row:
    return (violation.rule, violation.severity, violation.where, violation.found)
