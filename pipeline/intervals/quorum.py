"""Leader epochs of the quorum, from batch headers and LEADER_CHANGE records."""

from __future__ import annotations

from typing import Any

import msgspec

from metadata.control_records import LeaderChangeMessage

from .moments import Moment, Row


class _Epoch(msgspec.Struct):
    epoch: int
    from_offset: int
    from_ms: int | None
    known: bool
    skipped: int
    leader: int | None = None
    voters: list[int] = []
    granting: list[int] = []
    records: int = 0


class QuorumEpochs:
    """Rows of `quorum_epochs`."""

    def __init__(self) -> None:
        self._now: _Epoch | None = None
        self._last = -1
        self._closed: list[Row] = []

    def start_from_snapshot(self, epoch: int, moment: Moment) -> None:
        """The log begins after a snapshot whose last record is of `epoch`."""
        self._now = _Epoch(epoch, moment.offset, moment.time_ms, False, 0)

    def batch(self, epoch: int, records: int, moment: Moment) -> None:
        """A batch of `epoch` with so many records."""
        now = self._now
        if now is None or epoch > now.epoch:
            skipped = epoch - now.epoch - 1 if now is not None else 0
            if now is not None:
                self._closed.append(_row(now, moment.offset, moment.time_ms))
            now = self._now = _Epoch(epoch, moment.offset, moment.time_ms, True, skipped)
        if epoch == now.epoch:
            now.records += records

    def elected(self, record: LeaderChangeMessage) -> None:
        """The LEADER_CHANGE of the epoch whose batch was just given."""
        if self._now is not None:
            self._now.leader = record.leader_id
            self._now.voters = [voter.voter_id for voter in record.voters]
            self._now.granting = [voter.voter_id for voter in record.granting_voters]

    def take(self) -> list[Row]:
        taken, self._closed = self._closed, []
        return taken

    def open_rows(self) -> list[Row]:
        return [] if self._now is None else [_row(self._now, None, None)]

    def save(self) -> Any:
        return self._now

    def load(self, saved: Any) -> None:
        self._now = None if saved is None else msgspec.convert(saved, _Epoch)


def _row(at: _Epoch, to_offset: int | None, to_ms: int | None) -> Row:
    return (
        *(at.epoch, at.leader, at.voters, at.granting, at.records, at.skipped),
        *(at.from_offset, at.from_ms, to_offset, to_ms, at.known),
    )
