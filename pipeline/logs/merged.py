"""One history from the logs of a cluster's nodes: which log is read where.

Raft: two logs that agree on the epoch of an offset agree on everything before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from metaquorum.pipeline.logs.survey import LogSurvey, SegmentSurvey

SUPERSEDED, MISMATCH, SHARED_ID, UNREADABLE = "superseded", "mismatch", "shared-id", "unreadable"


class HistorySection(msgspec.Struct, frozen=True):
    """Offsets `start` to below `end` are read from `log`. An empty range: only a snapshot
    gives the state at `end`."""

    log: LogSurvey
    start: int
    end: int


class Conflict(msgspec.Struct, frozen=True):
    """What is wrong with a log as one of this cluster. `kind`: as in the table `damage`."""

    log: LogSurvey
    offset: int
    kind: str
    reason: str


class HistoryRun(msgspec.Struct, frozen=True):
    """Adjacent sections, and the snapshots with the state in them: (log, end offset, epoch), oldest first;
    empty if the run begins at offset 0."""

    sections: list[HistorySection]
    snapshots: list[tuple[LogSurvey, int, int]]

    @property
    def start(self) -> int:
        return self.sections[0].start

    @property
    def end(self) -> int:
        return self.sections[-1].end


class MergedHistory(msgspec.Struct, frozen=True):
    """The history of one cluster, in order and without overlap."""

    cluster: str
    sections: list[HistorySection]
    conflicts: list[Conflict]
    logs: list[LogSurvey]

    @property
    def start_offset(self) -> int:
        return self.sections[0].start

    @property
    def end_offset(self) -> int:
        return self.sections[-1].end

    @property
    def last_epoch(self) -> int:
        return self.sections[-1].log.last_epoch

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record at `offset`; None outside the history and in a hole."""
        for section in self.sections:
            if section.start <= offset < section.end:
                return section.log.epoch_at(offset)
        return None

    @property
    def records_end(self) -> int:
        """The offset after the last existing record."""
        return next((at.end for at in reversed(self.sections) if at.start < at.end), self.end_offset)

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Offsets between existing records that no log has."""
        return [(a.end, b.start) for a, b in pairwise(self.sections) if a.end < b.start]

    def runs(self) -> Iterator[HistoryRun]:
        """The history between its holes."""
        joined: list[HistorySection] = []
        for section in self.sections:
            if joined and joined[-1].end < section.start:
                yield self._run(joined)
                joined = []
            joined.append(section)
        yield self._run(joined)

    def _run(self, sections: list[HistorySection]) -> HistoryRun:
        start, end = sections[0].start, sections[-1].end
        return HistoryRun(sections, self.snapshots(start, end) if start or not end else [])

    def snapshots(self, start: int, end: int) -> list[tuple[LogSurvey, int, int]]:
        """(log, end offset, epoch) of this history's snapshots in a run of it, oldest first."""
        snapshots: dict[tuple[int, int, str], tuple[LogSurvey, int, int]] = {}
        for log in self.logs:
            for offset, epoch in log.snapshots:
                if start <= offset <= end and self._fits(offset, epoch, start, end):
                    snapshots[offset, epoch, log.location.path] = (log, offset, epoch)
        return [snapshots[key] for key in sorted(snapshots)]

    def _fits(self, offset: int, epoch: int, start: int, end: int) -> bool:
        """Whether a snapshot is of this history: the record before its end has its epoch."""
        if start == end:
            return True
        if offset > start:
            return self.epoch_at(offset - 1) == epoch
        first = self.epoch_at(start)
        return first is None or epoch <= first

    def why_unused(self, log: LogSurvey, segment: SegmentSurvey) -> str | None:
        """Why none of a segment's records was used; None if some were."""
        low, high = segment.start_offset, segment.end_offset
        if low >= high:
            return "it holds no record"
        for section in self.sections:
            if section.log.key == log.key and section.start < high and section.end > low:
                return None
        for conflict in self.conflicts:
            if conflict.log.key == log.key and conflict.kind != SHARED_ID and conflict.offset < high:
                return f"{conflict.kind}: {conflict.reason}"
        for section in self.sections:
            if section.start <= low < section.end:
                if section.log.location.is_retained:
                    return "an earlier run read its records from another log"
                node = section.log.location.node_id
                who = f"node {node}, " if node is not None else ""
                return f"its records were read from {who}{section.log.location.path}"
        return "its records belong to no part of the history"


def merge_logs(cluster: str, logs: Iterable[LogSurvey]) -> MergedHistory:
    """The log that is most up to date (Raft paper 5.4.1: last epoch, then end) is read over its whole range;
    earlier offsets come from the log that begins earliest and agrees with it. A log that ends before that, in
    no later epoch, is read too, with a hole between. A snapshot that is newer than every record is last."""
    ordered = sorted(
        logs,
        key=lambda log: (
            *(not log.has_records, -log.last_epoch, -log.end_offset),
            *(log.location.is_retained, log.start_offset, log.location.path),
        ),
    )
    best = ordered[0]
    sections = [HistorySection(best, best.start_offset, best.end_offset)]
    while (before := _before(sections[0], [log for log in ordered if log.has_records])) is not None:
        sections.insert(0, before)
    newest = _newest_snapshot(ordered)
    if newest is not None and newest.end > sections[-1].end:
        sections = [*(at for at in sections if at.start < at.end), newest]
    conflicts = [found for log in ordered if (found := _conflict(log, sections)) is not None]
    conflicts += [Conflict(log, 0, UNREADABLE, log.problem) for log in ordered if log.problem is not None]
    return MergedHistory(cluster, sections, conflicts, ordered)


def _before(first: HistorySection, ordered: list[LogSurvey]) -> HistorySection | None:
    """What comes before `first`: a log that continues into it, otherwise the most up to date
    of those that end earlier."""
    joining = [log for log in ordered if _continues(log, first)]
    if joining:
        longest = min(joining, key=lambda log: log.start_offset)
        return HistorySection(longest, longest.start_offset, first.start)
    epoch = first.log.epochs[0][0] if first.log.epochs else first.log.last_epoch
    for log in ordered:  # what was read once stays, even if it can no longer be compared
        reaches = log.start_offset < first.start <= log.end_offset
        if log.location.is_retained and reaches and log.last_epoch <= epoch:
            return HistorySection(log, log.start_offset, first.start)
    earlier = [log for log in ordered if log.end_offset < first.start and log.last_epoch <= epoch]
    return HistorySection(earlier[0], earlier[0].start_offset, earlier[0].end_offset) if earlier else None


def _continues(log: LogSurvey, first: HistorySection) -> bool:
    """Whether `log` has what comes before `first` and agrees with it in their common range."""
    if not log.start_offset < first.start <= log.end_offset:
        return False
    mine, theirs = log.epoch_at(first.start), first.log.epoch_at(first.start)
    if mine is None:
        return theirs is None or log.last_epoch <= theirs
    return theirs is None or mine == theirs


def _newest_snapshot(logs: list[LogSurvey]) -> HistorySection | None:
    """The newest snapshot as the end of the history, if its epoch is not older than the records'."""
    snapshots = [(epoch, offset, log) for log in logs for offset, epoch in log.snapshots]
    if not snapshots:
        return None
    epoch, offset, log = max(
        snapshots, key=lambda at: (at[0], at[1], not at[2].location.is_retained, at[2].location.path)
    )
    if epoch < max(at.last_epoch for at in logs):
        return None
    bare = msgspec.structs.replace(
        log, start_offset=offset, end_offset=offset, epochs=[], segments=[], sums={}, marks={}
    )
    return HistorySection(
        msgspec.structs.replace(bare, snapshots=[(offset, epoch)], records=0), offset, offset
    )


def _conflict(log: LogSurvey, sections: list[HistorySection]) -> Conflict | None:
    """How a log contradicts the history; None if it does not."""
    if not log.has_records or any(at.log.key == log.key for at in sections):
        return None
    overlapping = [at for at in sections if at.start < log.end_offset and at.end > log.start_offset]
    for section in overlapping:
        found = _difference(section.log, log)
        if found is not None:
            return found
    if overlapping:
        return None
    reason = (
        f"offsets {log.start_offset} to {log.end_offset - 1}, epochs {log.epochs[0][0]} to {log.last_epoch}, "
        f"do not belong to a history that ends at offset {sections[-1].end} in epoch "
        f"{sections[-1].log.last_epoch}; they were left out"
    )
    return Conflict(log, log.start_offset, SUPERSEDED, reason)


def _difference(best: LogSurvey, log: LogSurvey) -> Conflict | None:
    low = max(best.start_offset, log.start_offset)
    high = min(best.end_offset, log.end_offset)
    if low >= high:
        return None
    places = sorted({low, *(start for _, start in [*best.epochs, *log.epochs] if low <= start < high)})
    for offset in places:
        ours, theirs = best.epoch_at(offset), log.epoch_at(offset)
        if ours != theirs:
            reason = (
                f"expected leader epoch {ours} at offset {offset}, as {best.location.path} has, found"
                f" {theirs}; its records from there on were left out"
            )
            return Conflict(log, offset, SUPERSEDED, reason)
    for offset in sorted(best.marks.keys() & log.marks.keys()):
        if best.marks[offset] != log.marks[offset]:
            return Conflict(log, offset, MISMATCH, _other_bytes(best, f"offset {offset}"))
    for window in sorted(best.sums.keys() & log.sums.keys()):
        mine, other = best.sums[window], log.sums[window]
        if mine[:2] == other[:2] and mine[2] != other[2]:
            where = f"offset {mine[0]} to {mine[1]}"
            return Conflict(log, mine[0], MISMATCH, _other_bytes(best, where))
    return None


def _other_bytes(best: LogSurvey, where: str) -> str:
    return (
        f"expected the bytes of {best.location.path} at {where}, found others of the same epoch; "
        "compare the logs with `metaquorum log check`"
    )
