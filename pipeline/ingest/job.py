"""The run that writes the tables: plans on the driver, tasks on executors, and one publish at the end.

Spark moves tasks and results as bytes; rows go from a task to its Parquet files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.pipeline.ingest.layout import (
    RETAINED_SUFFIX,
    STATE,
    STATE_SUFFIX,
    ClusterEntry,
    IngestRun,
    Manifest,
    WrittenFile,
    abandon,
    begin,
    load_manifest,
    publish,
)
from metaquorum.pipeline.ingest.plan import (
    IngestReport,
    Plan,
    Ranges,
    final_below,
    next_entry,
    plan_clusters,
    without,
)
from metaquorum.pipeline.ingest.retained import retained_places
from metaquorum.pipeline.ingest.spark import Watch, run_tasks, unwatched
from metaquorum.pipeline.ingest.tasks import run_task
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
from metaquorum.pipeline.ingest.writer import ClusterWriter, day_of
from metaquorum.pipeline.intervals.cluster import RESUME_EVERY
from metaquorum.pipeline.logs.clusters import Facts, merge_histories
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.merged import SHARED_ID, UNREADABLE, MergedHistory
from metaquorum.pipeline.logs.pieces import SPAN_RECORDS, spans_of
from metaquorum.pipeline.logs.places import LogPlace, can_read, find_logs, unseen
from metaquorum.pipeline.logs.survey import SPLIT_BYTES, LogSurvey, nothing_of
from metaquorum.pipeline.stores.address import address
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ATTEMPTS = 3
"""How often a log is read that changes while it is read."""
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

    def found(given: list[LogPlace]) -> list[MergedHistory]:
        surveys = _survey(run_all, disk, given, split_bytes, report)
        return merge_histories(surveys, lambda logs: _facts(run_all, logs))

    def plan_again(failed: list[Plan]) -> list[Plan]:
        names, ids = {plan.merged.cluster for plan in failed}, {plan.shared_id for plan in failed}
        report.forget(names)
        again = [at for at in found([at for at in places if at.cluster in ids]) if at.cluster in names]
        return plan_clusters(again, shared_ids, manifest, report, lambda line: None)

    histories = found(places)
    plans = plan_clusters(histories, shared_ids, manifest, report, say)
    report.left_out = left_out(histories, {name: at.covered for name, at in manifest.clusters.items()})
    if not plans and manifest.version:
        report.rows = _row_counts(manifest)
        return report
    run = begin(folder, manifest)
    try:

        def perform(plans: list[Plan], done: _Done) -> dict[str, TaskResult]:
            replays = _replays(plans, folder, run, span_records)
            return _run_tasks(run_all, replays, _records_tasks(plans, folder, run), folder, done)

        done = _perform(perform, plans, plan_again)
        made = _next(manifest, done, run)
        _note_failures(made, done, folder, run, report)
        publish(folder, run, made)
    except BaseException:
        abandon(folder, run)
        raise
    if done.failed:
        abandon(folder, run)  # what tasks that failed had written
    report.version = run.version
    report.records = sum(result.records for result in done.read)
    report.rows = _row_counts(made)
    return report


class _Done:
    """What the tasks of a run have done."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.replayed: list[TaskResult] = []
        self.read: list[TaskResult] = []
        self.left: list[Plan] = []
        """Of clusters that could not be read."""
        self.failed: dict[str, TaskResult] = {}
        """The last task that failed, by cluster; also of those that were read at a later attempt."""


def _perform(
    perform: Callable[[list[Plan], _Done], dict[str, TaskResult]],
    plans: list[Plan],
    plan_again: Callable[[list[Plan]], list[Plan]],
) -> _Done:
    """Performs plans. A log that changed while it was read is read once more, as it is then."""
    done = _Done()
    for attempt in range(1, ATTEMPTS + 1):
        failed = perform(plans, done)
        done.failed |= failed
        done.plans += [plan for plan in plans if plan.merged.cluster not in failed]
        done.left = [plan for plan in plans if plan.merged.cluster in failed]
        if not done.left or attempt == ATTEMPTS:
            break
        plans = plan_again(done.left)
        for plan in plans:
            plan.attempt = attempt + 1
    _require_one(done)
    return done


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


def _failures(results: list[TaskResult], folder: Folder) -> dict[str, TaskResult]:
    """The first task of each cluster that could not read its logs. Raises ExecutorError if a task could not
    write, or wrote to a place that the driver does not see."""
    failed: dict[str, TaskResult] = {}
    for result in results:
        if result.problem is not None:
            if result.path is not None and result.path.startswith(folder.root):
                raise _executor_error(result)
            failed.setdefault(result.cluster, result)
        for file in result.files[:1]:
            if not folder.exists(file.path):
                raise ExecutorError(
                    f"{result.where} wrote {folder.place(file.path)}, which the driver cannot read: put "
                    "the tables in a store, or on a file system that the driver and all executors share"
                )
    return failed


def _executor_error(result: TaskResult) -> ExecutorError:
    return ExecutorError(f"{result.where} failed on cluster {result.cluster}: {result.problem}")


def _require_one(done: _Done) -> None:
    """Raises ExecutorError if no cluster could be read, though the driver can read the logs: the cause is not
    in the logs."""
    if done.left and not done.plans:
        at = done.failed[done.left[0].merged.cluster]
        if can_read(at.path or done.left[0].merged.logs[0].location.path):
            raise _executor_error(at)


def _note_failures(made: Manifest, done: _Done, folder: Folder, run: IngestRun, report: IngestReport) -> None:
    """Notes the clusters that could not be read, in the tables and in the report."""
    for plan in done.left:
        name = plan.merged.cluster
        _note_failure(made, plan, done.failed[name], folder, run)
        report.unreadable.append(f"cluster {name}: {done.failed[name].problem}")
    report.forget({plan.merged.cluster for plan in done.left})


def _note_failure(made: Manifest, plan: Plan, failed: TaskResult, folder: Folder, run: IngestRun) -> None:
    """A row of damage for a cluster whose logs could not be read. Its other rows stay as they were."""
    name = plan.merged.cluster
    writer = ClusterWriter(folder.root, name, run.id)
    log = next(log for log in plan.merged.logs if not log.location.is_retained)
    reason = f"the cluster was left out of a run, which tried {ATTEMPTS} times: {failed.problem}"
    row = (log.location.node_id, failed.path or log.location.path, 0, 0, UNREADABLE, reason)
    last_ms = max((at.last_ms for one in plan.merged.logs for at in one.segments), default=None)
    writer.rows("damage", [row], final=False, day=day_of(last_ms))
    written = writer.close()
    known = made.clusters.get(name, ClusterEntry(shared_id=plan.shared_id))
    made.files = [*(at for at in made.files if at.path not in known.failure), *written]
    made.clusters[name] = msgspec.structs.replace(known, failure=[at.path for at in written])


def _survey(
    run: _Runner, disk: StoreDisk, places: list[LogPlace], split_bytes: int, report: IngestReport
) -> list[LogSurvey]:
    """Surveys the logs, which `disk` has listed. One that changes meanwhile is read again."""
    tasks: list[Task] = [
        SurveyTask(location=place, size_bytes=_size_bytes(disk, place), split_bytes=split_bytes)
        for place in places
    ]
    results = _again_if_changed(run, "inspecting logs", tasks, [place.path for place in places])
    surveys = []
    for log_place, task, result in zip(places, tasks, results, strict=True):
        surveys += result.surveys
        if result.problem is None:
            continue
        path = result.path or log_place.path
        if can_read(path) and run_task(task).problem is None:
            raise ExecutorError(unseen(result.where, path, result.problem))
        if result.problem not in report.unreadable:
            report.unreadable.append(result.problem)
        surveys.append(nothing_of(log_place, result.problem))
    return surveys


def _again_if_changed(run: _Runner, what: str, tasks: list[Task], paths: list[str]) -> list[TaskResult]:
    """The results of tasks that each read the log at a path. What failed is tried again if the log is there:
    files of a log are deleted, and objects are uploaded again, while others read them."""
    results = run(what, tasks)
    for _ in range(1, ATTEMPTS):
        again = [
            at for at, result in enumerate(results) if result.problem is not None and can_read(paths[at])
        ]
        if not again:
            break
        for number, result in zip(again, run(what, [tasks[at] for at in again]), strict=True):
            results[number] = result
    return results


def _size_bytes(disk: StoreDisk, location: LogPlace) -> int:
    """About how many bytes a task reads; 0 for what an earlier run retained, which is little."""
    try:
        return 0 if location.is_retained else MetadataLog(disk, location.path).size_bytes()
    except (OSError, StorageError):
        return 0  # the task reports the problem


def _facts(run: _Runner, logs: list[LogSurvey]) -> list[Facts]:
    tasks: list[Task] = [FactsTask(log=log) for log in logs]
    results = _again_if_changed(run, "identifying clusters", tasks, [log.location.path for log in logs])
    return [at.facts or Facts(problem=at.problem) for at in results]


def _run_tasks(
    run_all: _Runner, replays: list[ReplayTask], records: list[RecordsTask], folder: Folder, done: _Done
) -> dict[str, TaskResult]:
    """Replays, and reads records; what is complete goes to `done`. Parts of long histories are replayed in
    parallel with everything else, then joined. Returns the clusters whose logs could not be read."""
    parts = [PartTask(replay=at, number=n) for at in replays for n in range(len(at.spans))]
    whole = [at for at in replays if not at.spans]
    first: list[Task] = [*parts, *whole, *records]
    results = run_all("reading and replaying", first)
    failed = _failures(results, folder)
    left: dict[str, list[PartFile]] = {}
    for result in results[: len(parts)]:
        if result.cluster not in failed:
            left.setdefault(result.cluster, []).append(PartFile(result.part or "", result.files))
    joins: list[Task] = [
        msgspec.structs.replace(at, parts=left[at.merged.cluster])
        for at in replays
        if at.spans and at.merged.cluster in left
    ]
    joined = run_all("joining", joins)
    failed |= _failures(joined, folder)
    kept = {file.path for result in joined for file in result.files}
    for part in (one for listed in left.values() for one in listed):
        folder.remove(part.name)
        for file in part.files:
            if file.path not in kept:
                folder.remove(file.path)
    end = len(parts) + len(whole)
    done.replayed += [at for at in [*results[len(parts) : end], *joined] if at.cluster not in failed]
    done.read += [at for at in results[end:] if at.cluster not in failed]
    return failed


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
                state_target=_state_name(plan, run),
                final_below=max(final_below(merged), entry.records_offset),
                store_below=plan.store_below,
                learned=entry.learned,
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


def _state_name(plan: Plan, run: IngestRun) -> str:
    cluster = hashlib.sha256(plan.merged.cluster.encode()).hexdigest()[:32]
    return f"{cluster}-{run.id}-{plan.attempt}"


def _next(manifest: Manifest, done: _Done, run: IngestRun) -> Manifest:
    """The next version: the files of this run, and those of the current version that it keeps."""
    plans = done.plans
    replayed = {result.cluster: result for result in done.replayed}
    absorbed = {name for plan in plans for name in plan.absorbed}
    rebuilt = {plan.merged.cluster for plan in plans if plan.rebuild} | absorbed
    kept = [file for file in manifest.files if _stays(file, replayed.get(file.cluster), rebuilt)]
    clusters = {name: entry for name, entry in manifest.clusters.items() if name not in absorbed}
    for plan in plans:
        result = replayed[plan.merged.cluster]
        made = next_entry(plan, resumed=not result.started_over)
        if result.has_state:
            made.resume_offset, made.resume_epoch = result.resume_offset, result.resume_epoch
            made.state = _state_name(plan, run) + STATE_SUFFIX
        made.retained = _state_name(plan, run) + RETAINED_SUFFIX
        made.files, made.damage = result.reported_files, result.reported_damage
        made.learned = sorted({*made.learned, *result.learned})
        clusters[plan.merged.cluster] = made
    files = [*kept, *(file for result in [*done.replayed, *done.read] for file in result.files)]
    return Manifest(files=files, clusters=clusters)


def _stays(file: WrittenFile, replayed: TaskResult | None, rebuilt: set[str]) -> bool:
    """Whether a file of the current version belongs to the next one."""
    if file.cluster in rebuilt:
        return False
    if replayed is None:
        return True  # nothing new in its cluster
    if not file.final:
        return False
    return file.table == "records" or not replayed.started_over


def _row_counts(manifest: Manifest) -> dict[str, int]:
    counts = dict.fromkeys(TABLES, 0)
    for file in manifest.files:
        counts[file.table] = counts.get(file.table, 0) + file.rows
    return counts


def left_out(histories: Iterable[MergedHistory], covered: Mapping[str, Ranges] | None = None) -> list[str]:
    """One line per reason, the most serious first; empty if everything is in the tables. `covered`: the
    offsets that earlier runs read, by cluster."""
    before = covered or {}
    histories = list(histories)
    copies = conflicts = copied = lost = garbage = 0
    for merged in histories:
        for log in merged.logs:
            for segment in log.segments:
                why = merged.why_unused(log, segment)
                count = segment.end_offset - segment.start_offset
                if log.location.is_retained:
                    continue
                garbage += not count and segment.size_bytes > 0
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
    holes = [
        (merged.cluster, *hole)
        for merged in histories
        for hole in without(merged.holes, before.get(merged.cluster, []))
    ]
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
