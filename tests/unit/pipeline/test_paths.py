"""Which texts are places: paths, and addresses of stores that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.pipeline.commands import pipeline
from metaquorum.pipeline.stores.address import PathError, address, is_remote, local_path


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/var/logs", "/var/logs"),
        ("file:/var/logs", "/var/logs"),
        ("file:///var/logs/", "/var/logs"),
        ("s3a://bucket/logs/", "s3://bucket/logs"),
        ("s3://bucket", "s3://bucket"),
        ("gcs://b/x", "gs://b/x"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
        ("hdfs://name:9000/logs", "hdfs://name:9000/logs"),
        ("hdfs:///logs", "hdfs://default/logs"),
    ],
)
def test_what_is_a_place(text: str, place: str) -> None:
    assert address(text) == place
    assert is_remote(place) == ("://" in place)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert address("logs/node-1") == str(tmp_path / "logs/node-1")
    assert address("a:b") == str(tmp_path / "a:b")
    assert local_path("file:///var/logs") == Path("/var/logs")


@pytest.mark.parametrize(
    ("text", "said"),
    [("ftp://b/x", "ftp is not a store"), ("s3://", "names no bucket"), ("s3://b?region=x/y", "environment")],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(PathError, match=said):
        address(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ingest", "ftp://bucket/logs", "--out", "tables"], "ftp is not a store"),
        (["ingest", ".", "--out", "ftp://bucket/tables"], "ftp is not a store"),
        (["generate", "--out", "gs://bucket/fleet"], "must be a path of a file system"),
        (["audit", "ftp://x@y/tables"], "ftp is not a store"),
        (["report", ".", "--out", "s3a://bucket/report.html"], "must be a path of a file system"),
    ],
)
def test_a_wrong_place_is_refused_in_one_line_and_leaves_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(pipeline, words)
    assert done.exit_code == 2 and said in done.output
    assert list(tmp_path.iterdir()) == []
