"""The run that writes the tables: plans on the driver, tasks on the executors, one publish at the end.

Owns what is new since the last run, which of the files of earlier runs stay, and progress. Spark moves tasks
and their results, both as bytes; rows go from a task to its Parquet files.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from metaquorum.pipeline.ingest.layout import (
    ClusterEntry,
    LayoutError,
    Manifest,
    WrittenFile,
    abandon,
    begin,
    load_manifest,
    publish,
)
from metaquorum.pipeline.ingest.left_out import left_out
from metaquorum.pipeline.ingest.plan import IngestReport, Plan, final_below, next_entry, plan_clusters
from metaquorum.pipeline.ingest.replay import NOTES_SUFFIX, RETAINED_SUFFIX
from metaquorum.pipeline.ingest.retained import link_tree, retained_places
from metaquorum.pipeline.ingest.spark import Watch, run_tasks, unwatched
from metaquorum.pipeline.ingest.work import (
    ExecutorError,
    FactsTask,
    RecordsTask,
    ReplayTask,
    SurveyTask,
    Task,
    TaskResult,
)
from metaquorum.pipeline.logs.clusters import histories
from metaquorum.pipeline.logs.cut import stretch_pieces
from metaquorum.pipeline.logs.executors import unseen
from metaquorum.pipeline.logs.identity import Facts
from metaquorum.pipeline.logs.places import LogPlace, find_logs
from metaquorum.pipeline.logs.spine import Spine
from metaquorum.pipeline.logs.survey import SPLIT_BYTES, LogSurvey
from metaquorum.pipeline.paths import local_path
from metaquorum.storage.disk.posix import PosixDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
Show = Callable[[str, int, int], None]
"""Told what is being done, how many tasks are done, and how many there are."""


def ingest(
    session: SparkSession,
    paths: list[str],
    out: Path,
    *,
    cluster: str | None = None,
    split_bytes: int = SPLIT_BYTES,
    show: Show = lambda what, done, of: None,
    watch: Watch = unwatched,
    say: Say = lambda line: None,
) -> IngestReport:
    """Brings the tables below `out` up to what the logs below `paths` hold. `cluster` names the cluster of
    all of them. Raises NoLogsError, LayoutError, PathError, ExecutorError; a run that fails changes nothing
    that can be read."""
    places = find_logs(PosixDisk(), [os.path.abspath(local_path(path)) for path in paths], cluster)
    out = local_path(str(out)).absolute()
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        manifest = load_manifest(out)
        report = IngestReport(version=manifest.version)
        shared_ids = {place.path: place.cluster for place in places}
        places += retained_places((out / "current").resolve(), manifest.clusters, shared_ids.values())
        run = _Runner(session, show, watch)
        surveys = _survey(run, places, split_bytes, report)
        spines = histories(surveys, lambda logs: _facts(run, logs))
        report.left_out = left_out(spines)
        plans = plan_clusters(spines, shared_ids, manifest, report, say)
        if not plans and manifest.version:
            report.rows = _row_counts(manifest)
            return report
        version = manifest.version + 1
        staging = begin(out, version)
        try:
            tasks = _tasks(plans, out, staging)
            results = run("reading and replaying", tasks)
            _require_done(results, staging)
            made, kept = _next(manifest, version, plans, results, out, staging)
            publish(out, staging, made, kept)
        except BaseException:
            abandon(staging)
            raise
        report.version = version
        report.records = sum(
            r.records for t, r in zip(tasks, results, strict=True) if isinstance(t, RecordsTask)
        )
        report.rows = _row_counts(made)
        return report


class _Runner:
    """Runs tasks in a session, and shows under a name how far they are."""

    def __init__(self, session: SparkSession, show: Show, watch: Watch) -> None:
        self._session, self._show, self._watch = session, show, watch

    def __call__(self, what: str, tasks: list[Task]) -> list[TaskResult]:
        return run_tasks(self._session, tasks, lambda done, of: self._show(what, done, of), self._watch)


def _require_done(results: list[TaskResult], staging: Path) -> None:
    """Raises ExecutorError where a task failed, or wrote to a place that the driver does not see."""
    for result in results:
        if result.problem is not None:
            raise ExecutorError(f"{result.where} failed on cluster {result.cluster}: {result.problem}")
        for file in result.files:
            if not (staging / file.path).exists():
                path = staging / file.path
                raise ExecutorError(
                    f"{result.where} wrote {path}, which the driver cannot see: the tables must be on a "
                    "file system that the driver and all executors share"
                )


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """One run at a time. The lock is the file `versions/.lock`, and goes with the process."""
    (out / "versions").mkdir(exist_ok=True)
    with (out / "versions" / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LayoutError(f"another run is writing to {out}; wait until it ends") from error
        yield


def _survey(run: _Runner, places: list[LogPlace], split_bytes: int, report: IngestReport) -> list[LogSurvey]:
    tasks: list[Task] = [SurveyTask(place=place, split_bytes=split_bytes) for place in places]
    results = run("inspecting logs", tasks)
    found = []
    for place, result in zip(places, results, strict=True):
        found += result.surveys
        if result.problem is None:
            continue
        path = result.path or place.path
        if os.access(path, os.R_OK):
            raise ExecutorError(unseen(result.where, path, result.problem))
        report.unreadable.append(result.problem)
        nothing = LogSurvey(
            place=place, start_offset=0, end_offset=0, epochs=[], segments=[], sums={}, snapshots=[]
        )
        found.append(msgspec.structs.replace(nothing, problem=result.problem))
    return found


def _facts(run: _Runner, logs: list[LogSurvey]) -> list[Facts]:
    tasks: list[Task] = [FactsTask(log=log) for log in logs]
    return [at.facts or Facts() for at in run("telling clusters apart", tasks)]


def _tasks(plans: list[Plan], out: Path, staging: Path) -> list[Task]:
    """Replays first, the longest first, so that no long one is left for the end."""
    replays: list[Task] = []
    records: list[Task] = []
    current = (out / "current").resolve()
    for plan in sorted(plans, key=lambda plan: plan.entry.resume_offset - plan.spine.end_offset):
        spine, entry = plan.spine, plan.entry
        replays.append(
            ReplayTask(
                spine=_light(spine),
                resume_offset=entry.resume_offset,
                state_file=str(current / "_state" / entry.state) if entry.state is not None else None,
                staging=str(staging),
                state_target=_state_name(spine.cluster, staging),
                final_below=max(final_below(spine), entry.records_offset),
                known_files=entry.files,
                known_damage=entry.damage,
            )
        )
        for stretch in spine.stretches:
            low = max(stretch.start, entry.records_offset)
            if low < stretch.end:
                records += [
                    RecordsTask(piece=piece, final_below=final_below(spine), staging=str(staging))
                    for piece in stretch_pieces(stretch.log, low, stretch.end)
                ]
    return [*replays, *records]


def _light(spine: Spine) -> Spine:
    """The spine without what logs are compared by: the replay needs none of it."""
    replace = msgspec.structs.replace

    def bare(log: LogSurvey) -> LogSurvey:
        return replace(log, sums={}, marks={})

    return replace(
        spine,
        stretches=[replace(at, log=bare(at.log)) for at in spine.stretches],
        conflicts=[replace(at, log=bare(at.log)) for at in spine.conflicts],
        logs=[bare(log) for log in spine.logs],
    )


def _state_name(cluster: str, staging: Path) -> str:
    number = staging.name.rpartition("-")[2]
    return f"{hashlib.sha256(cluster.encode()).hexdigest()[:32]}-{number}.state"


def _next(
    manifest: Manifest,
    version: int,
    plans: list[Plan],
    results: list[TaskResult],
    out: Path,
    staging: Path,
) -> tuple[Manifest, list[WrittenFile]]:
    """The next version, and the files of the current one that it keeps."""
    replayed = {result.cluster: result for result in results[: len(plans)]}
    rebuilt = {plan.spine.cluster for plan in plans if plan.rebuild}
    kept = [file for file in manifest.files if _stays(file, replayed.get(file.cluster), rebuilt)]
    clusters = dict(manifest.clusters)
    for plan in plans:
        result = replayed[plan.spine.cluster]
        made = next_entry(plan, resumed=not result.anew)
        if result.has_state:
            made.resume_offset, made.resume_epoch = result.resume_offset, result.resume_epoch
            made.state = _state_name(plan.spine.cluster, staging)
        made.retained = Path(_state_name(plan.spine.cluster, staging)).with_suffix(RETAINED_SUFFIX).name
        made.files, made.damage = result.told_files, result.told_damage
        clusters[plan.spine.cluster] = made
    _keep_states(clusters, out, staging)
    files = [*kept, *(file for result in results for file in result.files)]
    return Manifest(version=version, files=files, clusters=clusters), kept


def _stays(file: WrittenFile, replayed: TaskResult | None, rebuilt: set[str]) -> bool:
    """Whether a file of the current version is one of the next version too."""
    if replayed is None:
        return True  # nothing new in its cluster
    if not file.final or file.cluster in rebuilt:
        return False
    return file.table == "records" or not replayed.anew


def _keep_states(clusters: dict[str, ClusterEntry], out: Path, staging: Path) -> None:
    """States that were not recreated, and what was retained, come along."""
    before = (out / "current").resolve() / "_state"
    for entry in clusters.values():
        if entry.retained is not None and not (staging / "_state" / entry.retained).exists():
            link_tree(before / entry.retained, staging / "_state" / entry.retained)
        for name in (entry.state, f"{entry.state}{NOTES_SUFFIX}") if entry.state is not None else ():
            if not (staging / "_state" / name).exists():
                (staging / "_state" / name).hardlink_to(before / name)


def _row_counts(manifest: Manifest) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in manifest.files:
        counts[file.table] = counts.get(file.table, 0) + file.rows
    return counts
