"""The run that writes the tables: plans on the driver, tasks on executors, and one publish at the end.

Owns the order of these steps, which files of earlier runs stay, and progress. Spark moves tasks and results
as bytes; rows go from a task to its Parquet files. Does not compute rows (`tasks` does), decide about a
cluster (`plan`) or know how to publish (`layout`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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
from metaquorum.pipeline.ingest.left_out import left_out
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
from metaquorum.pipeline.logs.clusters import histories
from metaquorum.pipeline.logs.cut import stretch_pieces
from metaquorum.pipeline.logs.executors import can_read, unseen
from metaquorum.pipeline.logs.identity import Facts
from metaquorum.pipeline.logs.places import LogPlace, find_logs
from metaquorum.pipeline.logs.spans import SPAN_RECORDS, spans_of
from metaquorum.pipeline.logs.spine import Spine
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
    spines = histories(surveys, lambda logs: _facts(run_all, logs))
    report.left_out = left_out(spines)
    plans = plan_clusters(spines, shared_ids, manifest, report, say)
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


def survey_fleet(session: SparkSession, paths: list[str], cluster: str | None = None) -> list[Spine]:
    """The history of each cluster of the logs below `paths`. Raises as `ingest` does."""
    disk = StoreDisk()
    places = find_logs(disk, [address(path) for path in paths], cluster)
    run_all = _Runner(session=session, show=lambda what, done, of: None, watch=unwatched)
    surveys = _survey(run_all, disk, places, SPLIT_BYTES, IngestReport(version=0))
    return [_light(spine) for spine in histories(surveys, lambda logs: _facts(run_all, logs))]


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
        msgspec.structs.replace(at, parts=left[at.spine.cluster]) for at in replays if at.spans
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
    for plan in sorted(plans, key=lambda plan: plan.entry.resume_offset - plan.spine.end_offset):
        spine, entry = _light(plan.spine), plan.entry
        high = spine.end_offset // RESUME_EVERY * RESUME_EVERY - RESUME_EVERY
        replays.append(
            ReplayTask(
                spine=spine,
                spans=spans_of(spine, entry.resume_offset, high, span_records),
                resume_offset=entry.resume_offset,
                state_file=f"{STATE}/{entry.state}" if entry.state is not None else None,
                out=folder.root,
                run=run.id,
                state_target=_state_name(spine.cluster, run),
                final_below=max(final_below(spine), entry.records_offset),
                known_files=entry.files,
                known_damage=entry.damage,
            )
        )
    return replays


def _records_tasks(plans: list[Plan], folder: Folder, run: IngestRun) -> list[RecordsTask]:
    records: list[RecordsTask] = []
    for plan in plans:
        spine, entry = plan.spine, plan.entry
        for stretch in spine.stretches:
            low = max(stretch.start, entry.records_offset)
            if low < stretch.end:
                pieces = stretch_pieces(stretch.log, low, stretch.end)
                about = (stretch.end - low) // max(len(pieces), 1)
                records += [
                    RecordsTask(
                        piece=piece,
                        records=about,
                        final_below=final_below(spine),
                        out=folder.root,
                        run=run.id,
                    )
                    for piece in pieces
                ]
    return records


def _light(spine: Spine) -> Spine:
    """The spine without the values for comparing logs, which the replay does not need."""
    replace = msgspec.structs.replace

    def bare(log: LogSurvey) -> LogSurvey:
        return replace(log, sums={}, marks={})

    return replace(
        spine,
        stretches=[replace(at, log=bare(at.log)) for at in spine.stretches],
        conflicts=[replace(at, log=bare(at.log)) for at in spine.conflicts],
        logs=[bare(log) for log in spine.logs],
    )


def _state_name(cluster: str, run: IngestRun) -> str:
    return f"{hashlib.sha256(cluster.encode()).hexdigest()[:32]}-{run.id}"


def _next(
    manifest: Manifest, plans: list[Plan], replays: list[TaskResult], read: list[TaskResult], run: IngestRun
) -> Manifest:
    """The next version: the files of this run, and those of the current version that it keeps."""
    replayed = {result.cluster: result for result in replays}
    rebuilt = {plan.spine.cluster for plan in plans if plan.rebuild}
    kept = [file for file in manifest.files if _stays(file, replayed.get(file.cluster), rebuilt)]
    clusters = dict(manifest.clusters)
    for plan in plans:
        result = replayed[plan.spine.cluster]
        made = next_entry(plan, resumed=not result.anew)
        if result.has_state:
            made.resume_offset, made.resume_epoch = result.resume_offset, result.resume_epoch
            made.state = _state_name(plan.spine.cluster, run) + STATE_SUFFIX
        made.retained = _state_name(plan.spine.cluster, run) + RETAINED_SUFFIX
        made.files, made.damage = result.told_files, result.told_damage
        clusters[plan.spine.cluster] = made
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
