"""The table `quorum_epochs`: leader epochs of the quorum, from batch headers and control records.

Owns where an epoch starts and ends, and its leader. Does not compare voter sets (`voters`) and does not know
why a leader changed (`incidents`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.control import KRaftVersionRecord, LeaderChangeMessage, VotersRecord
from metaquorum.pipeline.intervals.moments import Moment, Row


class _Epoch(msgspec.Struct):
    epoch: int
    from_offset: int
    from_ms: int | None
    known: bool
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
        now = self._now or self._begin(epoch, moment, known=False)
        if now.kraft_version is None:
            now.kraft_version = quorum.kraft_version
        if quorum.voter_set:
            now.last_voters = list(quorum.voters)

    def lose(self, moment: Moment) -> None:
        """Ends the epoch's row at `moment`: the records after it are missing."""
        if self._now is not None:
            self._closed.append(_row(self._now, moment.offset, moment.time_ms, to_known=False))
            self._lost, self._now = self._now, None

    def _begin(self, epoch: int, moment: Moment, *, known: bool) -> _Epoch:
        lost, skipped = self._lost, None if moment.offset and self._now is None else 0
        now = _Epoch(epoch, moment.offset, moment.time_ms, known, skipped)
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
            now = self._begin(epoch, moment, known=elects or not moment.offset)
        elif epoch > now.epoch:
            self._closed.append(_row(now, moment.offset, moment.time_ms))
            skipped = epoch - now.epoch - 1
            now = self._begin(epoch, moment, known=True)
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
            now.known, now.skipped = was.known, was.skipped
            now.records += was.records - counted

    def save(self) -> Any:
        return self._now

    def load(self, saved: Any) -> None:
        self._now = None if saved is None else msgspec.convert(saved, _Epoch)


def _row(at: _Epoch, to_offset: int | None, to_ms: int | None, *, to_known: bool = True) -> Row:
    return (
        *(at.epoch, at.leader, at.voters, at.granting, at.last_voters, at.kraft_version),
        *(at.records, at.skipped),
        *(at.from_offset, at.from_ms, to_offset, to_ms, at.known, to_known),
    )
