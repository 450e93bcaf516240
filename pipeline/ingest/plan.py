"""Decides for each cluster whether a run continues, reads it again, or leaves its tables as they are.

What was read stays, unless logs that hold all of it contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import msgspec

from metaquorum.pipeline.ingest.layout import ClusterEntry, HistoryLook, LogLook, Manifest
from metaquorum.pipeline.intervals.cluster import RESUME_EVERY
from metaquorum.pipeline.logs.merged import SHARED_ID, MergedHistory, merge_logs
from metaquorum.pipeline.logs.survey import LogSurvey

Say = Callable[[str], None]
Ranges = list[tuple[int, int]]


class IngestReport(msgspec.Struct, kw_only=True):
    """The result of a run. `unchanged` clusters had nothing new. `kept` clusters had nothing that can
    follow what was read before. `rebuilt` clusters have logs with another past. `rows`: of the
    published version, by table."""

    version: int
    records: int = 0
    ingested: list[str] = []
    unchanged: list[str] = []
    kept: list[str] = []
    rebuilt: list[str] = []
    unreadable: list[str] = []
    left_out: list[str] = []
    """What of the logs is not in the tables, and why: one line per reason."""
    rows: dict[str, int] = {}

    def forget(self, clusters: Container[str]) -> None:
        """These clusters were not read after all."""
        self.ingested = [name for name in self.ingested if name not in clusters]
        self.rebuilt = [name for name in self.rebuilt if name not in clusters]


class Plan(msgspec.Struct, kw_only=True):
    """The work for one cluster."""

    merged: MergedHistory
    entry: ClusterEntry
    rebuild: bool
    shared_id: str
    attempt: int = 1
    absorbed: list[str] = []
    """Clusters of the tables that are this one, as a log shows that has something of both."""

    @property
    def store_below(self) -> int:
        """Records from here on are copied: earlier runs have copied those before. 0: all of them."""
        entry = self.entry
        if self.rebuild or entry.stored is None or len(entry.stored) >= MAX_STORED:
            return 0
        return min(entry.resume_offset, entry.records_offset)


def plan_clusters(
    histories: Iterable[MergedHistory],
    shared_ids: dict[str, str],
    manifest: Manifest,
    report: IngestReport,
    say: Say,
) -> list[Plan]:
    """A plan for every cluster with something new. `shared_ids`: the cluster id of each log, by path."""
    plans = []
    for merged in histories:
        given = _given(merged)
        if not given:
            continue
        earlier = manifest.clusters.get(merged.cluster)
        choice = merged, ClusterEntry(), False
        absorbed = _absorbed(merged, manifest)
        if absorbed:
            choice = merged, _united([manifest.clusters[name] for name in (merged.cluster, *absorbed)]), True
        elif earlier is not None and earlier.logs == looks(given) and not earlier.failure:
            report.unchanged.append(merged.cluster)
            continue
        elif earlier is not None:
            chosen = _continued(merged, given, earlier)
            if isinstance(chosen, str):
                report.kept.append(merged.cluster)
                say(f"cluster {merged.cluster}: {chosen}; its tables are not changed")
                continue
            choice = chosen
        new_merged, entry, rebuild = choice
        if rebuild:
            report.rebuilt.append(merged.cluster)
            say(
                f"cluster {merged.cluster}: its logs have more or other records than those read before: "
                "reading them again"
            )
        shared_id = shared_ids[given[0].location.path]
        plans.append(
            Plan(merged=new_merged, entry=entry, rebuild=rebuild, shared_id=shared_id, absorbed=absorbed)
        )
        report.ingested.append(merged.cluster)
    return plans


def _continued(
    merged: MergedHistory, given: list[LogSurvey], earlier: ClusterEntry
) -> tuple[MergedHistory, ClusterEntry, bool] | str:
    """The history to read, where to start, and whether to read everything again; or
    the reason to read nothing."""
    of_given = merge_logs(merged.cluster, given)
    is_older = (of_given.last_epoch, of_given.end_offset) < (earlier.last_epoch, earlier.end_offset)
    extends = not earlier.runs or _extends(history_looks(merged), earlier)
    if is_older and extends and _within(covered(of_given), earlier.covered):
        return (
            f"these logs end at offset {of_given.end_offset}, but an earlier run read up to "
            f"{earlier.end_offset}"
        )
    holds_all = _within(earlier.covered, covered(of_given))
    continues = _continues(merged, earlier)
    if not (continues and extends) and _within(_clipped(earlier), covered(merged)):
        return merged, _united([earlier]), True
    if not continues:
        if holds_all or of_given.start_offset == 0:
            return _of_given_alone(merged, of_given), ClusterEntry(), True
        return "these are not the logs of an earlier run, and they lack records that it read"
    below = earlier.resume_offset
    more = _size(covered(of_given), below) > _size(earlier.covered, below)
    if holds_all and more:
        return _of_given_alone(merged, of_given), ClusterEntry(), True
    return merged, earlier, False


MAX_STORED = 16
"""Folders of copies, of which each run makes one. The next run makes one of them."""


def history_looks(merged: MergedHistory) -> list[HistoryLook]:
    """What of a history decides the rows before its end."""
    return [
        (run.start, run.end, run.snapshots[0][1] if run.start and run.snapshots else -1)
        for run in merged.runs()
    ]


def _extends(new: list[HistoryLook], before: ClusterEntry) -> bool:
    """Whether a history is the known one, up to its last records. Otherwise a hole was filled, or more is
    known of a beginning: then the rows after it can be others, and all are computed again."""
    last = len(before.runs) - 1
    if len(new) <= last or new[:last] != before.runs[:last]:
        return False
    (start, end, first), (was_start, was_end, was_first) = new[last], before.runs[last]
    same_start = (start, first) == (was_start, was_first)
    return same_start and (end == was_end or (start < was_end and (last == len(new) - 1 or end > was_end)))


def _clipped(entry: ClusterEntry) -> Ranges:
    """The offsets whose rows are final: those after them may be replaced by other records."""
    below = entry.resume_offset
    return [(start, min(end, below)) for start, end in entry.covered if start < below]


def _united(entries: list[ClusterEntry]) -> ClusterEntry:
    """What stays of entries whose histories are read again as one."""
    return ClusterEntry(
        files=[line for one in entries for line in one.files],
        damage=[row for one in entries for row in one.damage],
        learned=sorted({offset for one in entries for offset in one.learned}),
    )


def _absorbed(merged: MergedHistory, manifest: Manifest) -> list[str]:
    names = {
        log.location.name_in_tables for log in merged.logs if log.location.name_in_tables
    } & manifest.clusters.keys()
    return sorted(names - {merged.cluster}) if merged.cluster in names else []


def _of_given_alone(merged: MergedHistory, of_given: MergedHistory) -> MergedHistory:
    shared = [at for at in merged.conflicts if at not in of_given.conflicts and at.kind == SHARED_ID]
    return msgspec.structs.replace(of_given, conflicts=[*shared, *of_given.conflicts])


def _given(merged: MergedHistory) -> list[LogSurvey]:
    """The logs that exist now."""
    return [log for log in merged.logs if not log.location.is_retained]


def _continues(merged: MergedHistory, earlier: ClusterEntry) -> bool:
    """Whether the history before the resume points is the one that was read (Raft's log matching)."""
    for offset, epoch in (
        (earlier.resume_offset, earlier.resume_epoch),
        (earlier.records_offset, earlier.records_epoch),
    ):
        found = merged.epoch_at(offset - 1) if offset > merged.start_offset else None
        if merged.end_offset < offset or (found is not None and found != epoch):
            return False
    return True


def looks(logs: Iterable[LogSurvey]) -> dict[str, LogLook]:
    """A few values of each log, by path, that show whether it changed."""
    looks_by_path: dict[str, LogLook] = {}
    for log in logs:
        end, size_bytes, _ = looks_by_path.get(log.location.path, (0, 0, 0))
        newest = max((offset for offset, _ in log.snapshots), default=0)
        looks_by_path[log.location.path] = (max(end, log.end_offset), size_bytes + log.size_bytes, newest)
    return looks_by_path


def covered(merged: MergedHistory) -> Ranges:
    """Offsets (first, after the last) of existing records."""
    return [(run.start, run.end) for run in merged.runs() if run.start < run.end]


def _within(inner: Ranges, outer: Ranges) -> bool:
    return all(any(low <= start and end <= high for low, high in outer) for start, end in inner)


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """The parts of ranges that are in none of the others."""
    left = list(ranges)
    for low, high in others:
        left = [
            (start, end)
            for first, last in left
            for start, end in ((first, min(last, low)), (max(first, high), last))
            if start < end
        ]
    return left


def _size(ranges: Ranges, below: int) -> int:
    return sum(max(0, min(end, below) - start) for start, end in ranges)


def final_below(merged: MergedHistory) -> int:
    """Records below this offset are final: it is the last place where a later run can continue."""
    return merged.records_end // RESUME_EVERY * RESUME_EVERY


def next_entry(plan: Plan, resumed: bool) -> ClusterEntry:
    """What is known of a cluster after its plan was performed, without the results of the replay."""
    merged, entry = plan.merged, plan.entry
    below = max(final_below(merged), entry.records_offset)
    made = ClusterEntry(
        records_offset=below,
        records_epoch=_epoch_before(merged, below, entry),
        end_offset=merged.end_offset,
        last_epoch=merged.last_epoch,
        logs=looks(_given(merged)),
        shared_id=plan.shared_id,
        covered=_together([*_clipped(entry), *covered(merged)]),
        stored=[] if plan.store_below == 0 else [*(entry.stored or ()), *filter(None, [entry.retained])],
        runs=history_looks(merged),
        learned=entry.learned,
    )
    if resumed:
        made.resume_offset, made.resume_epoch = entry.resume_offset, entry.resume_epoch
        made.state = entry.state
    return made


def _epoch_before(merged: MergedHistory, offset: int, entry: ClusterEntry) -> int:
    if offset == entry.records_offset:
        return entry.records_epoch
    found = merged.epoch_at(offset - 1) if offset else None
    return -1 if found is None else found


def _together(ranges: Ranges) -> Ranges:
    """The same offsets in as few ranges as possible."""
    united: Ranges = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united
