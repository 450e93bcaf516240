"""Rows to files: every row is in the file of its day, once, and the files say how many they hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from metaquorum.pipeline.ingest import parts
from metaquorum.pipeline.ingest import writer as module
from metaquorum.pipeline.ingest.layout import WrittenFile
from metaquorum.pipeline.ingest.writer import ClusterWriter, as_arrow, date_text, day_of
from metaquorum.pipeline.intervals.moments import DAY_MS, MAX_TIME_MS
from metaquorum.pipeline.intervals.tables.partitions import StateRows
from metaquorum.pipeline.tables import TABLES

EPOCHS = "quorum_epochs"
NAMES = [column.name for column in TABLES[EPOCHS].columns if column.name not in ("cluster", "date")]


def epoch(number: int, time_ms: int | None) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "epoch": number,
        "from_offset": number,
        "from_time": time_ms,
        "from_known": True,
    }
    return tuple(values.get(name) for name in NAMES)


def written(root: Path, rows: list[list[tuple[Any, ...]]], **how: Any) -> list[WrittenFile]:
    made = ClusterWriter(str(root), "a/b", "run")
    for some in rows:
        made.rows(EPOCHS, some, **{"final": True, **how})
    return made.close()


def content(root: Path, file: WrittenFile) -> list[int]:
    return pq.ParquetFile(root / file.path).read().column("epoch").to_pylist()


@pytest.mark.parametrize("batches", [1, 3])
def test_every_row_is_in_the_file_of_its_day(tmp_path: Path, batches: int) -> None:
    days = [0, 0, 3, 1, 3, 3, 0]
    rows = [epoch(at, day * DAY_MS + at) for at, day in enumerate(days)]
    files = written(tmp_path, [rows[at::batches] for at in range(batches)])
    assert {(file.table, file.cluster, file.final) for file in files} == {(EPOCHS, "a/b", True)}
    found = {file.date: sorted(content(tmp_path, file)) for file in files}
    assert found == {
        date_text(day): [at for at, each in enumerate(days) if each == day] for day in sorted(set(days))
    }
    assert {file.date: file.rows for file in files} == {
        date_text(day): count for day, count in Counter(days).items()
    }


def test_rows_that_will_change_have_files_of_their_own(tmp_path: Path) -> None:
    made = ClusterWriter(str(tmp_path), "c", "run")
    for at, final in enumerate((True, False, True)):
        made.rows(EPOCHS, [epoch(at, 5)], final=final)
    found = {file.final: content(tmp_path, file) for file in made.close()}
    assert found == {True: [0, 2], False: [1]}


def test_more_days_than_files_may_be_open_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_FILES", 2)
    days = [0, 1, 2, 0, 1, 2]
    files = written(tmp_path, [[epoch(at, day * DAY_MS)] for at, day in enumerate(days)])
    assert sorted(at for file in files for at in content(tmp_path, file)) == [0, 1, 2, 3, 4, 5]
    assert sum(file.rows for file in files) == 6
    assert len({file.path for file in files}) == len(files) > 3


@pytest.mark.parametrize(
    ("time_ms", "day"),
    [
        *[(None, 0), (-1, 0), (0, 0), (DAY_MS - 1, 0), (DAY_MS, 1), (2 * DAY_MS - 1, 1)],
        *[(MAX_TIME_MS, MAX_TIME_MS // DAY_MS), (MAX_TIME_MS + 1, 0)],
    ],
)
def test_the_day_of_a_time(time_ms: int | None, day: int) -> None:
    assert day_of(time_ms) == day


def test_a_caller_may_say_the_day(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [[epoch(1, 9 * DAY_MS), epoch(2, None)]], day=2)
    assert (file.date, content(tmp_path, file)) == ("1970-01-03", [1, 2])


def test_times_are_milliseconds_of_utc_or_none() -> None:
    data = as_arrow(TABLES[EPOCHS], [epoch(1, 1_500), epoch(2, None), epoch(3, 0)])
    times = [None if at is None else at.timestamp() for at in data.column("from_time").to_pylist()]
    assert times == [1.5, None, 0.0]
    assert data.column("epoch").to_pylist() == [1, 2, 3]


STATES = [
    column.name for column in TABLES["partition_states"].columns if column.name not in ("cluster", "date")
]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_rows_of_all_tables_are_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    monkeypatch.setattr(parts, "FLUSH_ROWS", 2)
    states = StateRows()
    states.parts.append([tuple(0 if name == "from_time" else None for name in STATES)])
    tables: list[Any] = [
        ("partition_states", states),
        (EPOCHS, [epoch(at, 5) for at in range(5)]),
        ("damage", []),
    ]
    made = ClusterWriter(str(tmp_path), "c", "run")
    parts.write_rows(made, [tables[at] for at in order], final=True)
    files = {file.table: file for file in made.close()}
    assert {name: file.rows for name, file in files.items()} == {"partition_states": 1, EPOCHS: 5}
    assert content(tmp_path, files[EPOCHS]) == [0, 1, 2, 3, 4]
