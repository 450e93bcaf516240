"""The table `violations`: broken invariants, each from the batch that broke the
rule to the one that ended it.

Owns the rows. Does not decide what is broken: the functions of `log check` do, for errors and warnings, so
both report the same. After a batch, what it touched is judged (`questions`); rules about two images are
judged at every batch with a record that could break them. The whole image is judged once more at the end, for
what no record can break: the counts of our own indexes.
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
"""Limit of broken rules at one time. More are not useful and are left out."""
MAX_VIOLATIONS = 1_000
"""Limit of distinguished violations of one step. More are not useful."""
REPLAY_RULE = "replay"


class Violations:
    """Rows of `violations`."""

    def __init__(self) -> None:
        self._rows: Intervals[tuple[str, str]] = Intervals()
        self._events: list[Row] = []
        self.broken: dict[str, set[str]] = {}
        """The broken rules by path, until they hold again."""

    def learn(self, image: MetadataImage, moment: Moment) -> None:
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment, known=False)

    def lose(self, moment: Moment) -> None:
        """Ends all rows at `moment`: the records after it are missing."""
        self._rows.lose(moment)
        self.broken = {}

    def _start(self, violation: Violation, moment: Moment, *, known: bool = True) -> None:
        key = (violation.rule, violation.where)
        if key not in self._rows.open and len(self._rows.open) < MAX_OPEN:
            self._rows.start(key, _value(violation), moment, known=known)
            self.broken.setdefault(violation.where, set()).add(violation.rule)

    def judge(self, question: Question, image: MetadataImage, moment: Moment) -> None:
        """Judges what a batch touched. `image`: after the batch."""
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
        """The replay refused a record."""
        value = (REPLAY_RULE, ERROR, f"offset/{error.offset}", str(error))
        self._events.append((*value, *_at_once(moment.at(error.offset))))

    def step(self, before: MetadataImage, after: MetadataImage, moment: Moment) -> None:
        """Judges a batch that may have decreased a value that must only grow."""
        for violation in check_step(before, after, limit=MAX_VIOLATIONS):
            self._events.append((*_value(violation), *_at_once(moment)))

    def finish(self, image: MetadataImage, moment: Moment) -> None:
        """The log ends. Violations there that no batch reported belong to the last batch."""
        for violation in check_image(image, limit=MAX_OPEN):
            self._start(violation, moment)

    def take(self) -> list[Row]:
        events, self._events = self._events, []
        return [*self._rows.take(), *events]

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def context(self) -> Any:
        """What later rows depend on, except the starts of open rows."""
        return sorted(self._rows.open)

    def adopt(self, left: Violations, below: int) -> None:
        """Open rows that began below an offset get their starts from `left`."""
        self._rows.adopt(left._rows, below)

    def save(self) -> Any:
        return self._rows.save()

    def load(self, saved: Any) -> None:
        self._rows.load(saved)
        for rule, where in self._rows.open:
            self.broken.setdefault(where, set()).add(rule)


def _at_once(moment: Moment) -> Row:
    """The interval of a violation that begins and ends with one record."""
    return (moment.offset, moment.time_ms, moment.offset + 1, moment.time_ms, True, True, moment.actor)


def _value(violation: Violation) -> Row:
    return (violation.rule, violation.severity, violation.where, violation.found)
