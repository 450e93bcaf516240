"""Broken invariants over a log, found without judging every image whole.

Owns when what is judged. Errors that a record can make (`errors`) are judged at every batch, for what it
touched: each is told from the batch that broke the rule to the one that mended it. Warnings are states that a
correct cluster passes through between two batches, so only those are told that last: the whole image is
judged at the first batch boundary at or after every CHECK_EVERY offsets, and at the end. Where the answers at
two boundaries differ, the batches between are replayed again from the image of the first, halving, until the
batch that made each difference is found. The rules between two images are judged at every batch with a
record that could break them. All rules are those of `metadata.invariants`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from metadata.errors import ReplayError
from metadata.image import MetadataImage
from metadata.invariants import ERROR, Violation, check_image, check_step
from metadata.replay import Replayer, ReplayState
from storage.batch import RecordBatch

from .errors import MAX_OPEN, Question, is_judged_by_batch
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
        self.broken: dict[str, set[str]] = {}
        """Path: rules, of the errors that are judged at every batch and have not been mended."""
        self._broken_count = 0
        self._since: list[tuple[RecordBatch, Moment]] = []
        self.next_check = (state.end_offset // CHECK_EVERY + 1) * CHECK_EVERY

    def start_from_snapshot(self, state: ReplayState, moment: Moment) -> None:
        self._anchor = _Place(state, _judge(state))
        for violation in check_image(state.image, limit=MAX_VIOLATIONS):
            key = (violation.rule, violation.where)
            if key not in self._rows.open:
                self._rows.start(key, _value(violation), moment, known=False)
                if is_judged_by_batch(violation):
                    self._note(violation.where, violation.rule)

    def _note(self, where: str, rule: str) -> None:
        self.broken.setdefault(where, set()).add(rule)
        self._broken_count += 1

    def judge(self, question: Question, image: MetadataImage, moment: Moment) -> None:
        """Judges what a batch touched: `image` is what it left."""
        found = {(one.rule, one.where): one for one in question.found(image)}
        for path in sorted({*question.paths(image, set(self.broken))} & self.broken.keys()):
            for rule in sorted(self.broken[path]):
                if (rule, path) not in found:
                    self._rows.end((rule, path), moment)
                    self.broken[path].discard(rule)
                    self._broken_count -= 1
            if not self.broken[path]:
                del self.broken[path]
        for key, violation in found.items():
            if self._broken_count < MAX_OPEN and key[0] not in self.broken.get(key[1], ()):
                self._rows.start(key, _value(violation), moment)
                self._note(key[1], key[0])

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
        for rule, where in self._rows.open:
            violation = Violation(rule, self._rows.open[rule, where].value[1], where, "")
            if is_judged_by_batch(violation):
                self._note(where, rule)
        self._anchor = _Place(state, _judge(state))
        self.next_check = (state.end_offset // CHECK_EVERY + 1) * CHECK_EVERY


def _judge(state: ReplayState) -> Found:
    """What is judged at boundaries only."""
    return {
        (violation.rule, violation.where): violation
        for violation in check_image(state.image, limit=MAX_VIOLATIONS)
        if not is_judged_by_batch(violation)
    }


def _value(violation: Violation) -> Row:
    return (violation.rule, violation.severity, violation.where, violation.found)
