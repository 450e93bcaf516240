"""The table `coverage`: how much is known of each section of the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from metaquorum.metadata.inspect.log.coverage import MISSING, NOT_IN_LOG, STATE_UNKNOWN
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.tables import KNOWN, OFF, UNOBSERVED

_OFF_REASON = "the last broker had shut down cleanly, and none had returned"


class _Covered(msgspec.Struct):
    state: str
    from_offset: int
    from_ms: int | None
    records: int = 0
    left_out: int = 0
    reason: str | None = None


class CoverageRows:
    """Rows of `coverage`. `is_known`: whether the state is known now."""

    def __init__(self) -> None:
        self._now = _Covered(KNOWN, 0, None)
        self._last_ms: int | None = None
        self._off: tuple[int, int | None] | None = None
        self._closed: list[Row] = []

    @property
    def is_known(self) -> bool:
        return self._now.state == KNOWN

    @property
    def last_ms(self) -> int | None:
        """The time of the last batch with a valid one."""
        return self._last_ms

    def begins(self, offset: int, time_ms: int | None) -> None:
        """The history begins at `offset`, or continues there after records that are in no log. The
        state there is unknown so far."""
        now = self._now
        self._last_ms = self._last_ms if time_ms is None else time_ms
        if offset > now.from_offset:
            is_first = now.from_offset == 0 and now.records == 0
            now.state = NOT_IN_LOG if is_first else MISSING
            now.reason = (
                f"the oldest record in any log is at offset {offset}"
                if is_first
                else "none of the logs holds these records"
            )
            self._next(STATE_UNKNOWN, offset)
        now = self._now
        now.state = STATE_UNKNOWN
        now.reason = "no snapshot has the state; the other tables have what these records alone show"

    def breaks_off(self, moment: Moment) -> None:
        """The records end before `moment`, and the history continues later."""
        self._end(moment.offset, self._last_ms)
        self.returns(moment._replace(time_ms=self._last_ms))
        self._now = _Covered(MISSING, moment.offset, self._last_ms)

    def learn(self, moment: Moment) -> None:
        """A snapshot gives the state at `moment`."""
        if not self.is_known:
            self._next(KNOWN, moment.offset)

    def _next(self, state: str, offset: int) -> None:
        self._end(offset, self._last_ms)
        self._now = _Covered(state, offset, self._last_ms)

    def batch(self, records: int, time_ms: int | None) -> None:
        """Counts the records of one more batch."""
        self._now.records += records
        if self._now.from_ms is None:
            self._now.from_ms = time_ms
        if time_ms is not None:
            self._last_ms = time_ms

    def left_out(self) -> None:
        """Counts a record that changes an unknown entity."""
        self._now.left_out += 1

    def unobserved(self, moment: Moment) -> None:
        """Nothing was written between the last batch and `moment`, although an idle quorum writes."""
        reason = (
            "nothing was written, although an idle quorum writes: it was down, and the state of the "
            "cluster is unknown"
        )
        at = moment.offset
        self._closed.append((UNOBSERVED, at, self._last_ms, at, moment.time_ms, 0, 0, reason))

    def goes_off(self, moment: Moment) -> None:
        """The last broker has shut down cleanly."""
        self._off = self._off or (moment.offset, moment.time_ms)

    def returns(self, moment: Moment) -> None:
        """A broker runs again, or the state is unknown."""
        if self._off is not None:
            self._closed.append((OFF, *self._off, moment.offset, moment.time_ms, 0, 0, _OFF_REASON))
            self._off = None

    def _end(self, offset: int, time_ms: int | None) -> None:
        if offset > self._now.from_offset:
            self._closed.append(_row(self._now, offset, time_ms))

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, end_offset: int) -> list[Row]:
        rows = [_row(self._now, end_offset, self._last_ms)] if end_offset > self._now.from_offset else []
        if self._off is not None:
            rows.append((OFF, *self._off, end_offset, self._last_ms, 0, 0, _OFF_REASON))
        return rows

    def context(self) -> Any:
        """What later rows depend on, except the start and the counts of the present section."""
        return [self._now.state, self._last_ms, self._off]

    def adopt(self, left: CoverageRows, counted: Sequence[int]) -> None:
        """The present section gets its start from `left`. `counted`: the records and omissions
        of this replay until then."""
        now, was = self._now, left._now
        now.from_offset, now.from_ms, now.reason = was.from_offset, was.from_ms, was.reason
        now.records += was.records - counted[0]
        now.left_out += was.left_out - counted[1]

    def counted(self) -> tuple[int, int]:
        """Records of the section so far, and those that were left out."""
        return self._now.records, self._now.left_out

    def save(self) -> Any:
        return [self._now, self._last_ms, self._off]

    def load(self, saved: Any) -> None:
        self._now, self._last_ms = msgspec.convert(saved[0], _Covered), saved[1]
        self._off = None if saved[2] is None else (saved[2][0], saved[2][1])


def _row(covered: _Covered, to_offset: int, to_ms: int | None) -> Row:
    place = (covered.from_offset, covered.from_ms, to_offset, to_ms)
    return (covered.state, *place, covered.records, covered.left_out, covered.reason)
