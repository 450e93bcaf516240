"""Runs a task on any machine: surveys a log, replays a cluster, or reads records.

Input and output are values and files; nothing else is shared with the driver.
"""

from __future__ import annotations

import datetime
import gc
import itertools
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metaquorum.pipeline.arrow import record_batches
from metaquorum.pipeline.ingest.layout import WrittenFile
from metaquorum.pipeline.ingest.parts import run_part
from metaquorum.pipeline.ingest.replay import replay_into, run_first_part, run_replay
from metaquorum.pipeline.ingest.work import (
    FactsTask,
    PartTask,
    RecordsTask,
    ReplayTask,
    SurveyTask,
    Task,
    TaskResult,
)
from metaquorum.pipeline.ingest.writer import ClusterWriter
from metaquorum.pipeline.intervals.moments import DAY_MS
from metaquorum.pipeline.logs.clusters import read_facts
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.merged import MergedHistory
from metaquorum.pipeline.logs.pieces import Selection
from metaquorum.pipeline.logs.places import where
from metaquorum.pipeline.logs.survey import survey
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, arrow_schema
from metaquorum.storage.errors import FileMissingError, StorageError

_GC_THRESHOLD = 200_000
"""A replay makes many objects and no cycles: more frequent collections cost a fifth of the time."""


def run_task(task: Task) -> TaskResult:
    """Runs one task. Problems with its input are in the result."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        result = _run(task)
    except FileMissingError as error:
        said = f"{error.path} was there, and is gone: it was deleted or renamed while it was read"
        result = TaskResult(cluster=_cluster_of(task), problem=said, path=error.path)
    except (StorageError, OSError, ValueError) as error:
        result = TaskResult(cluster=_cluster_of(task), problem=str(error), path=_path_of(error, task))
    result.where = where()
    return result


def run_encoded(task: bytes) -> bytes:
    """Runs one task on an executor."""
    decoded: Task = msgspec.msgpack.decode(task, type=Task)
    return msgspec.msgpack.encode(run_task(decoded))


def installed() -> str | None:
    """The release of this package; None if it runs from a folder or an archive without being installed."""
    try:
        return version("metaquorum")
    except PackageNotFoundError:
        return None


def _run(task: Task) -> TaskResult:
    match task:
        case SurveyTask():
            found = survey(StoreDisk(), task.location, task.split_bytes)
            return TaskResult(
                cluster=task.location.cluster, surveys=found, records=sum(at.records for at in found)
            )
        case FactsTask():
            return TaskResult(cluster=task.log.location.cluster, facts=read_facts(StoreDisk(), task.log))
        case ReplayTask():
            return run_replay(task)
        case PartTask():
            return run_first_part(task) if task.number == 0 else run_part(task)
        case RecordsTask():
            return _records(task)
        case _:
            assert_never(task)


def _cluster_of(task: Task) -> str:
    match task:
        case SurveyTask():
            return task.location.cluster
        case FactsTask():
            return task.log.location.cluster
        case ReplayTask():
            return task.merged.cluster
        case PartTask():
            return task.replay.merged.cluster
        case RecordsTask():
            return task.piece.cluster
        case _:
            assert_never(task)


def _path_of(error: Exception, task: Task) -> str | None:
    for name in ("filename", "path", "directory"):
        found = getattr(error, name, None)
        if isinstance(found, str):
            return found
    return task.location.path if isinstance(task, SurveyTask) else None


def _records(task: RecordsTask) -> TaskResult:
    piece = task.piece
    writer = ClusterWriter(task.out, piece.cluster, task.run)
    written = 0
    for batch in record_batches("all", piece, Selection()):
        for day, is_final, part in by_day(batch, task.final_below):
            writer.arrow("records", day, part, final=is_final)
            written += part.num_rows
    return TaskResult(cluster=piece.cluster, files=writer.close(), records=written)


def by_day(batch: pa.RecordBatch, final_below: int) -> Iterator[tuple[int, bool, pa.RecordBatch]]:
    """The batch without its cluster column, split where the day or `final` changes."""
    batch = batch.drop_columns(["cluster"])
    times = batch.column("timestamp").cast(pa.int64())
    days = pc.fill_null(times, 0).to_numpy(zero_copy_only=False) // (DAY_MS * 1000)
    final = batch.column("offset").to_numpy(zero_copy_only=False) < final_below
    edges = np.flatnonzero((days[1:] != days[:-1]) | (final[1:] != final[:-1])) + 1
    places = [0, *edges.tolist(), batch.num_rows]
    for low, high in itertools.pairwise(places):
        yield int(days[low]), bool(final[low]), batch.slice(low, high - low)


# Computes a table of one cluster from its history, in memory, for `make_table`.

_DAY = datetime.timedelta(days=1)
_EPOCH = datetime.date(1970, 1, 1)


class _Rows(ClusterWriter):
    """Keeps the rows of one table instead of writing files."""

    def __init__(self, cluster: str, table: str) -> None:
        super().__init__("", cluster, "")
        self._table = table
        self.kept: list[pa.RecordBatch] = []

    def arrow(self, table: str, day: int, data: pa.RecordBatch, *, final: bool) -> None:
        if table == self._table:
            self.kept.append(_whole(table, self._cluster, day, data))

    def close(self) -> list[WrittenFile]:
        return []


def _whole(table: str, cluster: str, day: int, data: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their partition columns, which Spark puts last."""
    count = data.num_rows
    schema = arrow_schema(TABLES[table])
    given = {name: data.column(name) for name in data.schema.names}
    given["cluster"] = pa.array([cluster] * count, pa.string())
    given["date"] = pa.array([_EPOCH + day * _DAY] * count, pa.date32())
    names = [name for name in schema.names if name not in PARTITION_COLUMNS]
    names += [name for name in schema.names if name in PARTITION_COLUMNS]
    return pa.RecordBatch.from_arrays([given[name] for name in names], names=names)


def table_batches(batches: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """Rows of the table `name` for every history (column `history`)."""
    for batch in batches:
        for history in batch.column("history").to_pylist():
            merged = msgspec.msgpack.decode(history, type=MergedHistory)
            yield from _all_records(merged) if name == "records" else _replayed(merged, name)


def _all_records(merged: MergedHistory) -> Iterator[pa.RecordBatch]:
    for section in merged.sections:
        for piece in section_pieces(section.log, section.start, section.end):
            for batch in record_batches("all", piece, Selection()):
                for day, _, part in by_day(batch, 0):
                    yield _whole("records", merged.cluster, day, part)


def _replayed(merged: MergedHistory, name: str) -> Iterator[pa.RecordBatch]:
    rows = _Rows(merged.cluster, name)
    task = ReplayTask(
        merged=merged, resume_offset=0, state_file=None, out="", run="", state_target="", final_below=0
    )
    replay_into(task, rows)
    yield from rows.kept
