"""The table `voter_sets`: the voters of the quorum over time (KIP-853), one row per period without a change.

Owns the comparison of one set with the next. Knows elections only as far as they name static
voters; epochs are in `quorum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.log.voters import changes_text, voter_set_texts
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import KRaftVersionRecord, QuorumRecord, VotersRecord
from metaquorum.pipeline.intervals.moments import Moment, Row
from metaquorum.pipeline.intervals.rows import Intervals

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
            (text, epoch, now.leader_id if now.epoch == epoch else None), moment.at(offset), known=True
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
            self._start((None, None, None), moment, known=False)

    def _start(self, cause: Row, moment: Moment, *, known: bool) -> None:
        view = self._view
        version = view.kraft_version if self._knows_version else None
        texts = tuple(voter_set_texts(view.voter_set)) if version else None
        self._rows.end(_SET, moment)
        self._rows.start(_SET, (view.voters, texts, version, *cause), moment, known=known)

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
            self._start((None, None, None), moment, known=False)

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
