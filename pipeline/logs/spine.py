"""One history from the logs of a cluster's nodes: which of them is read where.

Owns the choice (Raft: two logs that agree on the epoch of an offset agree on everything before it), and what
is said about logs that differ. Knows surveys, not files.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .survey import LogSurvey


class Stretch(msgspec.Struct, frozen=True):
    """Offsets `start` to below `end` are read from `log`."""

    log: LogSurvey
    start: int
    end: int


class Conflict(msgspec.Struct, frozen=True):
    """A log that does not say what the others say: `kind` is superseded or mismatch, as in damage."""

    log: LogSurvey
    offset: int
    kind: str
    reason: str


class Spine(msgspec.Struct, frozen=True):
    """The history of one cluster, in order and without overlap."""

    cluster: str
    stretches: list[Stretch]
    conflicts: list[Conflict]
    logs: list[LogSurvey]

    @property
    def start_offset(self) -> int:
        return self.stretches[0].start

    @property
    def end_offset(self) -> int:
        return self.stretches[-1].end

    def epoch_at(self, offset: int) -> int | None:
        """Epoch of the record at `offset`; None outside."""
        for stretch in self.stretches:
            if stretch.start <= offset < stretch.end:
                return stretch.log.epoch_at(offset)
        return None


def choose_spine(cluster: str, logs: Iterable[LogSurvey]) -> Spine:
    """The log that is most up to date (Raft paper 5.4.1: last epoch, then end) is read where it reaches; what
    it no longer holds comes from the log that reaches back farthest and agrees with it."""
    ordered = sorted(
        logs, key=lambda log: (-log.last_epoch, -log.end_offset, log.start_offset, log.place.path)
    )
    best = ordered[0]
    stretches = [Stretch(best, best.start_offset, best.end_offset)]
    while True:
        first = stretches[0]
        older = [log for log in ordered if _continues(log, first)]
        if not older:
            break
        longest = min(older, key=lambda log: log.start_offset)
        stretches.insert(0, Stretch(longest, longest.start_offset, first.start))
    conflicts = [found for log in ordered[1:] for found in _conflicts(best, log)]
    return Spine(cluster, stretches, conflicts, ordered)


def _continues(log: LogSurvey, first: Stretch) -> bool:
    """Whether `log` holds what comes before `first` and says the same where both reach."""
    if not log.start_offset < first.start <= log.end_offset:
        return False
    mine, theirs = log.epoch_at(first.start), first.log.epoch_at(first.start)
    return mine is None or theirs is None or mine == theirs


def _conflicts(best: LogSurvey, log: LogSurvey) -> list[Conflict]:
    low = max(best.start_offset, log.start_offset)
    high = min(best.end_offset, log.end_offset)
    if low >= high:
        return []
    if best.start_offset == log.start_offset and best.head != log.head:
        reason = (
            f"expected to begin as {best.place.path} does, found another first batch: two clusters share an "
            "id; it was left out, ingest it by itself with another name (--cluster)"
        )
        return [Conflict(log, low, "mismatch", reason)]
    places = sorted({low, *(start for _, start in [*best.epochs, *log.epochs] if low <= start < high)})
    for offset in places:
        ours, theirs = best.epoch_at(offset), log.epoch_at(offset)
        if ours != theirs:
            reason = (
                f"expected leader epoch {ours} at offset {offset}, as {best.place.path} has, found {theirs}; "
                "its records from there on were left out"
            )
            return [Conflict(log, offset, "superseded", reason)]
    for window in sorted(best.sums.keys() & log.sums.keys()):
        mine, other = best.sums[window], log.sums[window]
        if mine[:2] == other[:2] and mine[2] != other[2]:
            reason = (
                f"expected the bytes of {best.place.path} from offset {mine[0]} to {mine[1]}, found others "
                "of the same epochs; compare the logs with `metaquorum log check`"
            )
            return [Conflict(log, mine[0], "mismatch", reason)]
    return []
