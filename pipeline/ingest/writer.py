"""Writes rows of one cluster to Parquet files by table and day, on any machine."""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from metaquorum.metadata.image.chunk import (
    FLAGS,
    INDEX,
    LEADER,
    LEADER_EPOCH,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PARTITION_EPOCH,
    RECOVERING_FLAG,
)
from metaquorum.metadata.image.columns import NO_RARE_FIELDS
from metaquorum.pipeline.arrow import CHUNK_ROWS, TIME_TYPE, padded_lists, same, times
from metaquorum.pipeline.ingest.layout import DATA, WrittenFile, escape
from metaquorum.pipeline.intervals.moments import DAY_MS, MAX_TIME_MS, Row
from metaquorum.pipeline.intervals.tables.partitions import (
    ACTOR,
    CHANGED,
    KNOWN,
    OFFSET,
    STATE_FLAGS,
    TIME_MS,
    UNCLEAN,
    StateColumns,
    StateRows,
    topic_text,
)
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.stores.remote import in_one_line
from metaquorum.pipeline.tables import PARTITION_COLUMNS, TABLES, Table, arrow_schema, file_comments
from metaquorum.storage.uuids import uuid_to_text

MAX_OPEN_FILES = 48
_EPOCH_DAY = datetime.date(1970, 1, 1)


@cache
def file_schema(name: str) -> pa.Schema:
    """The columns in a file. The partition columns are in its folder's name."""
    schema = arrow_schema(TABLES[name])
    return pa.schema([field for field in schema if field.name not in PARTITION_COLUMNS])


@cache
def _comments(name: str) -> dict[str, str]:
    return file_comments(TABLES[name])


@cache
def _day_column(name: str) -> int | None:
    """The position in a row of the column that gives its day; None if the caller gives it."""
    names = [column.name for column in TABLES[name].columns if column.name not in PARTITION_COLUMNS]
    return next((names.index(at) for at in ("from_time", "time", "timestamp") if at in names), None)


def day_of(time_ms: int | None) -> int:
    """Days since 1970; 0 for None."""
    return time_ms // DAY_MS if time_ms is not None and 0 <= time_ms <= MAX_TIME_MS else 0


def date_text(day: int) -> str:
    return (_EPOCH_DAY + datetime.timedelta(days=day)).isoformat()


class ClusterWriter:
    """Writes files of one cluster below the folder `root`, for a run. `close` returns them all. `final`:
    whether the rows stay in later versions."""

    def __init__(self, root: str, cluster: str, run: str) -> None:
        self._root = Folder(root)
        self._cluster = cluster
        self._attempt = f"{run}-{uuid.uuid4().hex[:16]}"
        self._open: dict[tuple[str, int, bool], tuple[pq.ParquetWriter, Any, str]] = {}
        self._rows: dict[str, list[Any]] = {}
        self._number = 0

    def rows(self, table: str, rows: Iterable[Row], *, final: bool, day: int | None = None) -> None:
        """Rows in the order of the table's columns, without cluster and date.
        `day`: the day of all of them."""
        by_day: dict[int, list[Row]] = {}
        column = _day_column(table)
        for row in rows:
            at = day if day is not None or column is None else day_of(row[column])
            by_day.setdefault(at or 0, []).append(row)
        for at, some in by_day.items():
            self.arrow(table, at, as_arrow(TABLES[table], some), final=final)

    def states(self, table: str, rows: StateRows, *, final: bool) -> None:
        """Rows of `partition_states`, as tuples and in columns."""
        for part in rows.parts:
            if isinstance(part, list):
                self.rows(table, part, final=final)
        columns = [part for part in rows.parts if isinstance(part, StateColumns)]
        for day, data in state_batches(columns, file_schema(table)):
            self.arrow(table, day, data, final=final)

    def arrow(self, table: str, day: int, data: pa.RecordBatch, *, final: bool) -> None:
        """Rows of one day, as Arrow."""
        key = (table, day, final)
        open_file = self._open.get(key)
        if open_file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            open_file = self._open[key] = self._begin(table, day)
        writer, _, path = open_file
        with in_one_line("write", self._root.place(path)):
            writer.write_batch(data)
        entry = self._rows.setdefault(path, [table, day, final, 0])
        entry[3] += data.num_rows

    def _begin(self, table: str, day: int) -> tuple[pq.ParquetWriter, Any, str]:
        self._number += 1
        folder = f"{DATA}/{table}/cluster={escape(self._cluster)}/date={date_text(day)}"
        path = f"{folder}/part-{self._attempt}-{self._number:04d}.parquet"
        sink = self._root.sink(path)
        writer = pq.ParquetWriter(sink, file_schema(table), compression="zstd", coerce_timestamps="us")
        return writer, sink, path

    def _close(self, key: tuple[str, int, bool]) -> None:
        writer, sink, path = self._open.pop(key)
        with in_one_line("write", self._root.place(path)):
            writer.add_key_value_metadata(_comments(key[0]))
            writer.close()
            sink.close()

    def close(self) -> list[WrittenFile]:
        """Closes all files and returns them."""
        for key in list(self._open):
            self._close(key)
        return [
            WrittenFile(
                table=table, cluster=self._cluster, date=date_text(day), path=path, rows=rows, final=final
            )
            for path, (table, day, final, rows) in self._rows.items()
        ]


def as_arrow(table: Table, rows: list[Row]) -> pa.RecordBatch:
    """Rows (tuples in column order) as Arrow. Times come as Unix ms or None."""
    schema = file_schema(table.name)
    columns = []
    for field, values in zip(schema, zip(*rows, strict=True), strict=True):
        if field.type == TIME_TYPE:
            if None in values:
                columns.append(times(np.array([-1 if at is None else at for at in values], dtype=np.int64)))
            else:
                columns.append(times(values))
        else:
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_LISTS = pa.list_(pa.int32())


def state_batches(parts: Sequence[StateColumns], schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(day since 1970, rows): the rows of each part in order, those of one day together."""
    for _, alike in itertools.groupby(parts, _layout):
        whole = _together(list(alike))
        ms = whole.began[TIME_MS]
        days = np.where(ms < 0, 0, ms) // DAY_MS
        for day in np.unique(days).tolist():
            found = pa.RecordBatch.from_arrays(_columns(whole.where(days == day)), schema=schema)
            for low in range(0, found.num_rows, CHUNK_ROWS):
                yield day, found.slice(low, CHUNK_ROWS)


def _layout(part: StateColumns) -> tuple[int, int, int, int]:
    return id(part.words), id(part.directories), part.replica_width, len(part.states)


def _together(parts: list[StateColumns]) -> StateColumns:
    """Parts with the same layout as one part."""
    ends = np.cumsum([part.size for part in parts]).tolist()
    starts = [0, *ends]
    return parts[0]._replace(
        states=np.concatenate([part.states for part in parts], axis=1),
        rare={
            start + at: rare
            for start, part in zip(starts, parts, strict=False)
            for at, rare in part.rare.items()
        },
        topics=np.concatenate([part.topics for part in parts]),
        began=np.concatenate([part.began for part in parts], axis=1),
        to_offsets=np.concatenate([part.to_offsets for part in parts]),
        to_ms=np.concatenate([part.to_ms for part in parts]),
    )


def _columns(rows: StateColumns) -> list[pa.Array]:
    states, began, words, count = rows.states, rows.began, rows.words, rows.size
    middle = LISTS + rows.replica_width
    start = middle + rows.replica_width
    names, ids = zip(*words.topics.values, strict=True)
    directories = padded_lists(states[middle:start].T, states[N_REPLICAS])
    flags = began[STATE_FLAGS]
    return [
        *(_texts(names, rows.topics), _texts([topic_text(at) for at in ids], rows.topics)),
        *(pa.array(states[at]) for at in (INDEX, LEADER, LEADER_EPOCH, PARTITION_EPOCH)),
        padded_lists(states[LISTS:middle].T, states[N_REPLICAS]),
        padded_lists(states[start:].T, states[N_ISR]),
        pa.ListArray.from_arrays(directories.offsets, _directories(rows, directories.values)),
        *(_rare(rows, name) for name in ("adding", "removing")),
        pa.array(states[FLAGS] & RECOVERING_FLAG != 0),
        pa.array(flags & UNCLEAN != 0),
        _texts(words.changed.values, began[CHANGED]),
        same(False, count, pa.bool_()),
        *(pa.array(began[OFFSET]), times(began[TIME_MS]), pa.array(rows.to_offsets), times(rows.to_ms)),
        *(pa.array(flags & KNOWN != 0), same(True, count, pa.bool_())),
        _texts(words.actors.values, began[ACTOR]),
    ]


def _texts(texts: Sequence[str | None], places: Any) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(places))


def _directories(rows: StateColumns, codes: pa.Array) -> pa.Array:
    distinct, places = np.unique(codes.to_numpy(), return_inverse=True)
    return _texts([uuid_to_text(at) for at in rows.directories.ids(distinct.tolist())], places)


def _rare(rows: StateColumns, name: str) -> pa.Array:
    if not rows.rare:
        return pa.ListArray.from_arrays(pa.array(np.zeros(rows.size + 1, np.int32)), pa.array([], pa.int32()))
    lists = [getattr(rows.rare.get(at, NO_RARE_FIELDS), name) for at in range(rows.size)]
    return pa.array(lists, _LISTS)
