"""The folder of tables: what readers see before, during and after a publish, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.pipeline.ingest.layout import (
    LayoutError,
    Manifest,
    WrittenFile,
    begin,
    escape,
    load_manifest,
    publish,
)


def put(staging: Path, number: int, *, final: bool = True) -> WrittenFile:
    path = f"topics/cluster=c/date=2026-01-01/{number}.parquet"
    (staging / path).parent.mkdir(parents=True, exist_ok=True)
    (staging / path).write_text(f"rows {number}")
    return WrittenFile(table="topics", cluster="c", date="2026-01-01", path=path, rows=1, final=final)


def version(out: Path, number: int, kept: list[WrittenFile]) -> list[WrittenFile]:
    staging = begin(out, number)
    files = [*kept, put(staging, number)]
    publish(out, staging, Manifest(version=number, files=files), kept)
    return files


def seen(out: Path) -> list[str]:
    return sorted(path.read_text() for path in (out / "topics").rglob("*.parquet"))


def test_a_version_shares_what_it_keeps_and_replaces_the_rest(tmp_path: Path) -> None:
    first = version(tmp_path, 1, [])
    assert seen(tmp_path) == ["rows 1"]
    second = version(tmp_path, 2, first)
    assert seen(tmp_path) == ["rows 1", "rows 2"]
    version(tmp_path, 3, second[1:])
    assert seen(tmp_path) == ["rows 2", "rows 3"]
    assert load_manifest(tmp_path).version == 3
    assert sorted(at.name for at in (tmp_path / "versions").iterdir()) == ["2", "3"]


def test_a_reader_that_opened_a_version_can_finish(tmp_path: Path) -> None:
    first = version(tmp_path, 1, [])
    opened = (tmp_path / "topics").resolve()
    version(tmp_path, 2, first)
    assert [path.read_text() for path in opened.rglob("*.parquet")] == ["rows 1"]


def test_a_killed_run_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    first = version(tmp_path, 1, [])
    staging = begin(tmp_path, 2)
    put(staging, 2)
    assert seen(tmp_path) == ["rows 1"]
    assert load_manifest(tmp_path).version == 1
    version(tmp_path, 2, first)
    assert seen(tmp_path) == ["rows 1", "rows 2"]
    assert not list((tmp_path / "versions").glob(".staging-*"))


def test_a_run_killed_right_before_the_link_is_replaced(tmp_path: Path) -> None:
    first = version(tmp_path, 1, [])
    staging = begin(tmp_path, 2)
    put(staging, 2)
    staging.rename(tmp_path / "versions" / "2")
    assert load_manifest(tmp_path).version == 1
    version(tmp_path, 2, first)
    assert load_manifest(tmp_path).version == 2
    assert seen(tmp_path) == ["rows 1", "rows 2"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(LayoutError, match="holds photos"):
        load_manifest(tmp_path)
    version(tmp_path / "out", 1, [])
    (tmp_path / "out" / "current" / "_state" / "manifest.json").write_text("{")
    with pytest.raises(LayoutError, match="cannot be read"):
        load_manifest(tmp_path / "out")


def test_names_of_partitions_are_written_as_spark_does() -> None:
    assert escape("file:/a b=c") == "file%3A%2Fa b%3Dc"
    assert escape("ycvx3IyUTJ2ANvCy7N_YyA") == "ycvx3IyUTJ2ANvCy7N_YyA"
