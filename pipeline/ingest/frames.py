"""Computes a table of one cluster from its history, in memory, for `make_table`.

Runs on executors.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from metaquorum.pipeline.arrow.schemas import record_batches
from metaquorum.pipeline.ingest.layout import WrittenFile
from metaquorum.pipeline.ingest.replay import replay_into
from metaquorum.pipeline.ingest.tasks import by_day
from metaquorum.pipeline.ingest.work import ReplayTask
from metaquorum.pipeline.ingest.writer import ClusterWriter
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.merged import MergedHistory
from metaquorum.pipeline.logs.selection import Selection
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, arrow_schema

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
            yield from _records(merged) if name == "records" else _replayed(merged, name)


def _records(merged: MergedHistory) -> Iterator[pa.RecordBatch]:
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
