"""The tables `coverage` and `quorum_epochs`: what is known of the history, and the quorum's leader epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.coverage import MISSING, NOT_IN_LOG, STATE_UNKNOWN
from metaquorum.metadata.inspect.log.quorum import QuorumView, changes_text, voter_set_texts
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    QuorumRecord,
    VotersRecord,
)
from metaquorum.pipeline.intervals.moments import Intervals, Moment, Row
from metaquorum.pipeline.tables import KNOWN, OFF, UNOBSERVED

# The table `coverage`: how much is known of each section of the history.

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
            self._closed.append(_coverage_row(self._now, offset, time_ms))

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self, end_offset: int) -> list[Row]:
        rows = (
            [_coverage_row(self._now, end_offset, self._last_ms)]
            if end_offset > self._now.from_offset
            else []
        )
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


def _coverage_row(covered: _Covered, to_offset: int, to_ms: int | None) -> Row:
    place = (covered.from_offset, covered.from_ms, to_offset, to_ms)
    return (covered.state, *place, covered.records, covered.left_out, covered.reason)


class _Epoch(msgspec.Struct):
    epoch: int
    from_offset: int
    from_ms: int | None
    from_known: bool = msgspec.field(name="known")
    """Stored as `known` by earlier runs."""
    skipped: int | None
    leader: int | None = None
    voters: list[int] = []
    granting: list[int] = []
    last_voters: list[int] = []
    kraft_version: int | None = None
    records: int = 0


class QuorumEpochs:
    """Rows of `quorum_epochs`."""

    def __init__(self) -> None:
        self._now: _Epoch | None = None
        self._lost: _Epoch | None = None
        """The epoch at which the records break off, until the next existing record."""
        self._closed: list[Row] = []

    def learn(self, epoch: int, quorum: QuorumView, moment: Moment) -> None:
        """Takes a snapshot: the last record before `moment` is of `epoch`. Its control records, if it has
        any, give kraft.version and the voters."""
        now = self._now or self._begin(epoch, moment, from_known=False)
        if now.kraft_version is None:
            now.kraft_version = quorum.kraft_version
        if quorum.voter_set:
            now.last_voters = list(quorum.voters)

    def lose(self, moment: Moment) -> None:
        """Ends the epoch's row at `moment`: the records after it are missing."""
        if self._now is not None:
            self._closed.append(_row(self._now, moment.offset, moment.time_ms, to_known=False))
            self._lost, self._now = self._now, None

    def _begin(self, epoch: int, moment: Moment, *, from_known: bool) -> _Epoch:
        lost, skipped = self._lost, None if moment.offset and self._now is None else 0
        now = _Epoch(epoch, moment.offset, moment.time_ms, from_known, skipped)
        if lost is not None and lost.epoch == epoch:  # an epoch has one leader
            now.leader, now.voters, now.granting = lost.leader, lost.voters, lost.granting
        if self._now is not None:
            now.kraft_version, now.last_voters = self._now.kraft_version, self._now.last_voters
        elif not moment.offset:
            now.kraft_version = 0
        self._now, self._lost = now, None
        return now

    def batch(self, epoch: int, records: int, moment: Moment, *, elects: bool) -> None:
        """A batch of `epoch` with `records` records. `elects`: it has the epoch's LEADER_CHANGE."""
        now = self._now
        if now is None:
            now = self._begin(epoch, moment, from_known=elects or not moment.offset)
        elif epoch > now.epoch:
            self._closed.append(_row(now, moment.offset, moment.time_ms))
            skipped = epoch - now.epoch - 1
            now = self._begin(epoch, moment, from_known=True)
            now.skipped = skipped
        if epoch == now.epoch:
            now.records += records

    @property
    def epoch(self) -> int | None:
        """The epoch of the last batch, if it is known."""
        return None if self._now is None else self._now.epoch

    def control(self, record: object) -> None:
        """A control record of the last batch."""
        now = self._now
        if now is None:
            return
        match record:
            case LeaderChangeMessage(leader_id=leader):
                now.leader = leader
                now.voters = [voter.voter_id for voter in record.voters]
                now.granting = [voter.voter_id for voter in record.granting_voters]
                now.last_voters = now.voters
            case KRaftVersionRecord(kraft_version=version):
                now.kraft_version = version
            case VotersRecord(voters=voters):
                now.last_voters = sorted(voter.voter_id for voter in voters)

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self) -> list[Row]:
        return [] if self._now is None else [_row(self._now, None, None)]

    def learn_election(self, record: LeaderChangeMessage) -> None:
        """The epoch of the snapshot began with this record."""
        if self._now is not None:
            known = self._now.last_voters
            self.control(record)
            self._now.last_voters = known or self._now.last_voters

    def context(self) -> Any:
        """What later rows depend on, except the epoch's start and counts."""
        now = self._now
        if now is None or self._lost is not None:
            return None
        return [now.epoch, now.leader, now.voters, now.granting, now.last_voters, now.kraft_version]

    def counted(self) -> int:
        """Records of the epoch so far."""
        return self._now.records if self._now is not None else 0

    def adopt(self, left: QuorumEpochs, below: int, counted: int) -> None:
        """An epoch that began below an offset gets its start from `left`. It had
        `counted` records here until then."""
        now, was = self._now, left._now
        if now is not None and was is not None and now.from_offset < below:
            now.from_offset, now.from_ms = was.from_offset, was.from_ms
            now.from_known, now.skipped = was.from_known, was.skipped
            now.records += was.records - counted

    def save(self) -> Any:
        return self._now

    def load(self, saved: Any) -> None:
        self._now = None if saved is None else msgspec.convert(saved, _Epoch)


def _row(epoch: _Epoch, to_offset: int | None, to_ms: int | None, *, to_known: bool = True) -> Row:
    return (
        *(epoch.epoch, epoch.leader, epoch.voters, epoch.granting, epoch.last_voters, epoch.kraft_version),
        *(epoch.records, epoch.skipped),
        *(epoch.from_offset, epoch.from_ms, to_offset, to_ms, epoch.from_known, to_known),
    )


_SET = "set"
"""The key of the only value."""


class VoterPeriods:
    """Rows of `voter_sets`."""

    def __init__(self) -> None:
        self._rows: Intervals[str] = Intervals(has_actors=False)
        self._view = QuorumView()
        self._knows_version: bool | None = None
        """Whether kraft.version is known: not after missing records, until a record or a snapshot gives it.
        None: there were no records yet."""

    def control(self, epoch: int, records: Sequence[DecodedRecord], moment: Moment) -> None:
        """Takes the records of a control batch, which a leader of `epoch` wrote."""
        if self._knows_version is None:
            self._knows_version = not moment.offset
        before, knew = self._view, self._knows_version
        self._view = now = before.after(epoch, records)
        self._knows_version |= any(isinstance(at.record, KRaftVersionRecord | VotersRecord) for at in records)
        if _is_same(before, now) and knew == self._knows_version:
            return
        offset = max(at.offset for at in records if isinstance(at.record, QuorumRecord))
        changed = [changes_text(before.voter_set, now.voter_set)] if before.voter_set else []
        if knew and before.voter_set and before.kraft_version != now.kraft_version:
            changed.append(f"kraft.version {before.kraft_version} -> {now.kraft_version}")
        text = "; ".join(filter(None, changed)) or None
        self._start(
            (text, epoch, now.leader_id if now.epoch == epoch else None), moment.at(offset), from_known=True
        )

    def learn(self, quorum: QuorumView, moment: Moment) -> None:
        """Takes a snapshot that ends at `moment`: its voters from kraft.version 1 on, otherwise nothing."""
        self._knows_version = True
        if not quorum.voter_set:
            was = self._rows.open.get(_SET)
            if was is not None:
                self._rows.refine(_SET, (*was.value[:2], 0, *was.value[3:]))
        elif not _is_same(self._view, quorum):
            self._view = quorum
            self._start((None, None, None), moment, from_known=False)

    def _start(self, cause: Row, moment: Moment, *, from_known: bool) -> None:
        view = self._view
        version = view.kraft_version if self._knows_version else None
        texts = tuple(voter_set_texts(view.voter_set)) if version else None
        self._rows.end(_SET, moment)
        self._rows.start(_SET, (view.voters, texts, version, *cause), moment, from_known=from_known)

    def lose(self, moment: Moment) -> None:
        """Ends the row at `moment`: the records after it are missing."""
        self._rows.lose(moment)
        self._view, self._knows_version = QuorumView(), False

    def take(self) -> list[Row]:
        return self._rows.take()

    def open_rows(self) -> list[Row]:
        return self._rows.open_rows()

    def learn_election(self, view: QuorumView, moment: Moment) -> None:
        """After `learn`: the leader at `moment`. `view`: the quorum after its election."""
        if self._view.voter_set:
            self._view = replace(self._view, leader_id=view.leader_id, epoch=view.epoch)
        elif view.voter_set:
            self._view = view
            self._start((None, None, None), moment, from_known=False)

    def context(self) -> Any:
        """What later rows depend on, except the period's start."""
        view = self._view
        quorum = (view.leader_id, view.epoch, view.kraft_version, view.voter_set)
        return [quorum, self._knows_version, len(self._rows.open)]

    def adopt(self, left: VoterPeriods, below: int) -> None:
        """A period that began below an offset gets its start from `left`."""
        self._rows.adopt(left._rows, below)

    def save(self) -> Any:
        return [self._rows.save(), self._view, self._knows_version]

    def load(self, saved: Any) -> None:
        self._rows.load(saved[0])
        self._view = msgspec.convert(saved[1], QuorumView)
        self._knows_version = saved[2]


def _is_same(before: QuorumView, now: QuorumView) -> bool:
    return (before.kraft_version, before.voter_set) == (now.kraft_version, now.voter_set)
