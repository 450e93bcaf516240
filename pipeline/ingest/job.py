"""The run that writes the tables: plans on the driver, tasks on executors, and one publish at the end.

Spark moves tasks and results as bytes; rows go from a task to its Parquet files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.pipeline.ingest.layout import (
    RETAINED_SUFFIX,
    STATE,
    STATE_SUFFIX,
    IngestRun,
    Manifest,
    WrittenFile,
    abandon,
    begin,
    load_manifest,
    publish,
)
from metaquorum.pipeline.ingest.plan import IngestReport, Plan, final_below, next_entry, plan_clusters
from metaquorum.pipeline.ingest.retained import retained_places
from metaquorum.pipeline.ingest.spark import Watch, run_tasks, unwatched
from metaquorum.pipeline.ingest.work import (
    ExecutorError,
    FactsTask,
    PartFile,
    PartTask,
    RecordsTask,
    ReplayTask,
    SurveyTask,
    Task,
    TaskResult,
)
from metaquorum.pipeline.intervals.cluster import RESUME_EVERY
from metaquorum.pipeline.logs.clusters import merge_histories
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.executors import can_read, unseen
from metaquorum.pipeline.logs.identity import Facts
from metaquorum.pipeline.logs.merged import SHARED_ID, MergedHistory
from metaquorum.pipeline.logs.pieces import SPAN_RECORDS, spans_of
from metaquorum.pipeline.logs.places import LogPlace, find_logs
from metaquorum.pipeline.logs.survey import SPLIT_BYTES, LogSurvey
from metaquorum.pipeline.stores.address import address
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.storage.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Say = Callable[[str], None]
Show = Callable[[str, int, int], None]
"""Gets the name of a step, the number of finished tasks, and their total."""


def ingest(
    session: SparkSession,
    paths: list[str],
    out: Path | str,
    *,
    cluster: str | None = None,
    split_bytes: int = SPLIT_BYTES,
    span_records: int = SPAN_RECORDS,
    show: Show = lambda what, done, of: None,
    watch: Watch = unwatched,
    say: Say = lambda line: None,
) -> IngestReport:
    """Updates the tables below `out` from the logs below `paths`. `cluster` names the cluster of all logs. A
    history with at least twice `span_records` to replay is split. Raises NoLogsError, LayoutError, PathError,
    ExecutorError; a failed run changes nothing that readers see."""
    disk = StoreDisk()
    places = find_logs(disk, [address(path) for path in paths], cluster)
    folder = Folder(address(str(out)))
    manifest = load_manifest(folder)
    report = IngestReport(version=manifest.version)
    shared_ids = {place.path: place.cluster for place in places}
    places += retained_places(folder, manifest.clusters, shared_ids.values())
    run_all = _Runner(session=session, show=show, watch=watch)
    surveys = _survey(run_all, disk, places, split_bytes, report)
    histories = merge_histories(surveys, lambda logs: _facts(run_all, logs))
    report.left_out = left_out(histories)
    plans = plan_clusters(histories, shared_ids, manifest, report, say)
    if not plans and manifest.version:
        report.rows = _row_counts(manifest)
        return report
    run = begin(folder, manifest)
    try:
        replays = _replays(plans, folder, run, span_records)
        replayed, read = _run_tasks(run_all, replays, _records_tasks(plans, folder, run), folder)
        made = _next(manifest, plans, replayed, read, run)
        publish(folder, run, made)
    except BaseException:
        abandon(folder, run)
        raise
    report.version = run.version
    report.records = sum(result.records for result in read)
    report.rows = _row_counts(made)
    return report


def survey_fleet(session: SparkSession, paths: list[str], cluster: str | None = None) -> list[MergedHistory]:
    """The history of each cluster of the logs below `paths`. Raises as `ingest` does."""
    disk = StoreDisk()
    places = find_logs(disk, [address(path) for path in paths], cluster)
    run_all = _Runner(session=session, show=lambda what, done, of: None, watch=unwatched)
    surveys = _survey(run_all, disk, places, SPLIT_BYTES, IngestReport(version=0))
    return [_light(merged) for merged in merge_histories(surveys, lambda logs: _facts(run_all, logs))]


class _Runner:
    """Runs tasks in a session, and shows the progress of each step."""

    def __init__(self, *, session: SparkSession, show: Show, watch: Watch) -> None:
        self._session, self._show, self._watch = session, show, watch

    def __call__(self, what: str, tasks: list[Task]) -> list[TaskResult]:
        return run_tasks(self._session, tasks, lambda done, of: self._show(what, done, of), self._watch)


def _require_done(results: list[TaskResult], folder: Folder) -> None:
    """Raises ExecutorError if a task failed, or wrote to a place that the driver does not see."""
    for result in results:
        if result.problem is not None:
            raise ExecutorError(f"{result.where} failed on cluster {result.cluster}: {result.problem}")
        for file in result.files[:1]:
            if not folder.exists(file.path):
                raise ExecutorError(
                    f"{result.where} wrote {folder.place(file.path)}, which the driver cannot read: put "
                    "the tables in a store, or on a file system that the driver and all executors share"
                )


def _survey(
    run: _Runner, disk: StoreDisk, places: list[LogPlace], split_bytes: int, report: IngestReport
) -> list[LogSurvey]:
    """Surveys the logs, which `disk` has listed."""
    tasks: list[Task] = [
        SurveyTask(place=place, size_bytes=_size_bytes(disk, place), split_bytes=split_bytes)
        for place in places
    ]
    results = run("inspecting logs", tasks)
    found = []
    for place, result in zip(places, results, strict=True):
        found += result.surveys
        if result.problem is None:
            continue
        path = result.path or place.path
        if can_read(path):
            raise ExecutorError(unseen(result.where, path, result.problem))
        report.unreadable.append(result.problem)
        nothing = LogSurvey(
            place=place, start_offset=0, end_offset=0, epochs=[], segments=[], sums={}, snapshots=[]
        )
        found.append(msgspec.structs.replace(nothing, problem=result.problem))
    return found


def _size_bytes(disk: StoreDisk, place: LogPlace) -> int:
    """About how many bytes a task reads; 0 for what an earlier run retained, which is little."""
    try:
        return 0 if place.is_retained else MetadataLog(disk, place.path).size_bytes()
    except (OSError, StorageError):
        return 0  # the task reports the problem


def _facts(run: _Runner, logs: list[LogSurvey]) -> list[Facts]:
    tasks: list[Task] = [FactsTask(log=log) for log in logs]
    return [at.facts or Facts() for at in run("identifying clusters", tasks)]


def _run_tasks(
    run_all: _Runner, replays: list[ReplayTask], records: list[RecordsTask], folder: Folder
) -> tuple[list[TaskResult], list[TaskResult]]:
    """Results of the replays, and of reading records. Parts of long histories are replayed in parallel with
    everything else, then joined."""
    parts = [PartTask(replay=at, number=n) for at in replays for n in range(len(at.spans))]
    whole = [at for at in replays if not at.spans]
    first: list[Task] = [*parts, *whole, *records]
    results = run_all("reading and replaying", first)
    _require_done(results, folder)
    left: dict[str, list[PartFile]] = {}
    for result in results[: len(parts)]:
        left.setdefault(result.cluster, []).append(PartFile(result.part or "", result.files))
    joins: list[Task] = [
        msgspec.structs.replace(at, parts=left[at.merged.cluster]) for at in replays if at.spans
    ]
    joined = run_all("joining", joins)
    _require_done(joined, folder)
    kept = {file.path for result in joined for file in result.files}
    for part in (one for listed in left.values() for one in listed):
        folder.remove(part.name)
        for file in part.files:
            if file.path not in kept:
                folder.remove(file.path)
    end = len(parts) + len(whole)
    return [*results[len(parts) : end], *joined], results[end:]


def _replays(plans: list[Plan], folder: Folder, run: IngestRun, span_records: int) -> list[ReplayTask]:
    """The longest first, so that no long one remains for the end."""
    replays: list[ReplayTask] = []
    for plan in sorted(plans, key=lambda plan: plan.entry.resume_offset - plan.merged.end_offset):
        merged, entry = _light(plan.merged), plan.entry
        high = merged.end_offset // RESUME_EVERY * RESUME_EVERY - RESUME_EVERY
        replays.append(
            ReplayTask(
                merged=merged,
                spans=spans_of(merged, entry.resume_offset, high, span_records),
                resume_offset=entry.resume_offset,
                state_file=f"{STATE}/{entry.state}" if entry.state is not None else None,
                out=folder.root,
                run=run.id,
                state_target=_state_name(merged.cluster, run),
                final_below=max(final_below(merged), entry.records_offset),
                known_files=entry.files,
                known_damage=entry.damage,
            )
        )
    return replays


def _records_tasks(plans: list[Plan], folder: Folder, run: IngestRun) -> list[RecordsTask]:
    records: list[RecordsTask] = []
    for plan in plans:
        merged, entry = plan.merged, plan.entry
        for section in merged.sections:
            low = max(section.start, entry.records_offset)
            if low < section.end:
                pieces = section_pieces(section.log, low, section.end)
                about = (section.end - low) // max(len(pieces), 1)
                records += [
                    RecordsTask(
                        piece=piece,
                        records=about,
                        final_below=final_below(merged),
                        out=folder.root,
                        run=run.id,
                    )
                    for piece in pieces
                ]
    return records


def _light(merged: MergedHistory) -> MergedHistory:
    """The merged without the values for comparing logs, which the replay does not need."""
    replace = msgspec.structs.replace

    def bare(log: LogSurvey) -> LogSurvey:
        return replace(log, sums={}, marks={})

    return replace(
        merged,
        sections=[replace(at, log=bare(at.log)) for at in merged.sections],
        conflicts=[replace(at, log=bare(at.log)) for at in merged.conflicts],
        logs=[bare(log) for log in merged.logs],
    )


def _state_name(cluster: str, run: IngestRun) -> str:
    return f"{hashlib.sha256(cluster.encode()).hexdigest()[:32]}-{run.id}"


def _next(
    manifest: Manifest, plans: list[Plan], replays: list[TaskResult], read: list[TaskResult], run: IngestRun
) -> Manifest:
    """The next version: the files of this run, and those of the current version that it keeps."""
    replayed = {result.cluster: result for result in replays}
    rebuilt = {plan.merged.cluster for plan in plans if plan.rebuild}
    kept = [file for file in manifest.files if _stays(file, replayed.get(file.cluster), rebuilt)]
    clusters = dict(manifest.clusters)
    for plan in plans:
        result = replayed[plan.merged.cluster]
        made = next_entry(plan, resumed=not result.anew)
        if result.has_state:
            made.resume_offset, made.resume_epoch = result.resume_offset, result.resume_epoch
            made.state = _state_name(plan.merged.cluster, run) + STATE_SUFFIX
        made.retained = _state_name(plan.merged.cluster, run) + RETAINED_SUFFIX
        made.files, made.damage = result.told_files, result.told_damage
        clusters[plan.merged.cluster] = made
    files = [*kept, *(file for result in [*replays, *read] for file in result.files)]
    return Manifest(files=files, clusters=clusters)


def _stays(file: WrittenFile, replayed: TaskResult | None, rebuilt: set[str]) -> bool:
    """Whether a file of the current version belongs to the next one."""
    if replayed is None:
        return True  # nothing new in its cluster
    if not file.final or file.cluster in rebuilt:
        return False
    return file.table == "records" or not replayed.anew


def _row_counts(manifest: Manifest) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in manifest.files:
        counts[file.table] = counts.get(file.table, 0) + file.rows
    return counts


def left_out(histories: Iterable[MergedHistory]) -> list[str]:
    """One line per reason, the most serious first; empty if everything is in the tables."""
    histories = list(histories)
    copies = conflicts = copied = lost = garbage = 0
    for merged in histories:
        for log in merged.logs:
            for at in log.segments:
                why = merged.why_unused(log, at)
                count = at.end_offset - at.start_offset
                if log.place.is_retained:
                    continue
                garbage += not count and at.size_bytes > 0
                if why is None or not count:
                    continue
                if why.startswith("its records were read from"):
                    copies, copied = copies + 1, copied + count
                else:
                    conflicts, lost = conflicts + 1, lost + count
    lines = []
    if conflicts:
        lines.append(
            f"{_files(conflicts)} with {lost:,} records that contradict the history of their cluster: "
            "see `reason` in the table files, and the table damage"
        )
    holes = [(merged.cluster, *hole) for merged in histories for hole in merged.holes]
    if holes:
        cluster, start, end = holes[0]
        total = sum(high - low for _, low, high in holes)
        which = f"offsets {start} to {end - 1} of cluster {cluster}"
        more = f" and {len(holes) - 1} more" if len(holes) > 1 else ""
        lines.append(
            f"{total:,} records inside the history that no log holds: {which}{more}; see the table coverage"
        )
    shared = [merged.cluster for merged in histories if any(at.kind == SHARED_ID for at in merged.conflicts)]
    if shared:
        lines.append(
            f"{len(shared)} clusters share the cluster id of another and get their own names: "
            f"{', '.join(shared[:5])}{' ...' if len(shared) > 5 else ''}"
        )
    if garbage:
        lines.append(f"{_files(garbage)} without a readable record: see the table damage")
    if copies:
        lines.append(f"{_files(copies)} with {copied:,} records that were read from another node's log")
    return lines


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
