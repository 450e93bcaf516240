"""Broken invariants over a log, each from the batch that broke the rule to the one that mended it.

Owns the rows. What a batch touched is judged after it (`questions`), errors and warnings alike and by the
functions of `log check`, so both tell of the same; the rules between two images are judged at every batch
with a record that could break them. The whole image is judged once more at the end, for what no record can
break: the counts of our own indexes.
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.invariants import ERROR, Violation, check_image, check_step
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.questions import Question
from metaquorum.pipeline.intervals.rows import Intervals

MAX_OPEN = 100_000
"""The number of broken rules that are known at once; more say nothing new, and are left out."""
MAX_VIOLATIONS = 1_000
"""The number of violations of one step that are distinguished; more say nothing new."""
REPLAY_RULE = "replay"


class Violations:
    """Rows of `violations`."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self._events: list[Row] = []
        self.broken: dict[str, set[str]] = {}
        """Path: rules, of what is broken and has not been mended."""

    def learn(self, image: MetadataImage, moment: Moment) -> None:
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment, known=False)

    def lose(self, moment: Moment) -> None:
        """No one saw what came after `moment`."""
        self._rows.lose(moment)
        self.broken = {}

    def _start(self, violation: Violation, moment: Moment, *, known: bool = True) -> None:
        key = (violation.rule, violation.where)
        if key not in self._rows.open and len(self._rows.open) < MAX_OPEN:
            self._rows.start(key, _value(violation), moment, known=known)
            self.broken.setdefault(violation.where, set()).add(violation.rule)

    def judge(self, question: Question, image: MetadataImage, moment: Moment) -> None:
        """Judges what a batch touched: `image` is what it left."""
        question.ask_again(image, self.broken)
        found = list(question.found(image))
        still = {(one.rule, one.where) for one in found}
        for path in sorted({*question.paths(image, self.broken)} & self.broken.keys()):
            for rule in sorted(self.broken[path]):
                if (rule, path) not in still:
                    self._rows.end((rule, path), moment)
                    self.broken[path].discard(rule)
            if not self.broken[path]:
                del self.broken[path]
        for violation in found:
            self._start(violation, moment)

    def refused(self, error: ReplayError, moment: Moment) -> None:
        """The replay did not accept a record."""
        value = (REPLAY_RULE, ERROR, f"offset/{error.offset}", str(error))
        self._events.append((*value, *_at_once(moment.at(error.offset))))

    def step(self, before: MetadataImage, after: MetadataImage, moment: Moment) -> None:
        """Judges one batch that may have made something smaller that only grows."""
        for violation in check_step(before, after, limit=MAX_VIOLATIONS):
            self._events.append((*_value(violation), *_at_once(moment)))

    def finish(self, image: MetadataImage, moment: Moment) -> None:
        """The log ends: what is wrong there and no batch told of is of the last one."""
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment)

    def take(self) -> list[Row]:
        events, self._events = self._events, []
        return [*self._rows.take(), *events]

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def context(self) -> Any:
        """What later rows depend on, but for how those that last began."""
        return sorted(self._rows.open)

    def adopt(self, left: Violations, below: int) -> None:
        """What began below an offset is as `left` has it."""
        self._rows.adopt(left._rows, below)

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any) -> None:
        self._rows.load(saved)
        for rule, where in self._rows.open:
            self.broken.setdefault(where, set()).add(rule)


def _at_once(moment: Moment) -> Row:
    """The interval of what began and ended with one record."""
    return (moment.offset, moment.time_ms, moment.offset + 1, moment.time_ms, True, True, moment.actor)


def _value(violation: Violation) -> Row:
    return (violation.rule, violation.severity, violation.where, violation.found)
