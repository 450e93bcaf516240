"""Which texts are paths: an address of an object store is none, and makes no folder of its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.pipeline.commands import pipeline
from metaquorum.pipeline.paths import PathError, local_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/var/logs", "/var/logs"),
        ("logs/node-1", "logs/node-1"),
        ("file:/var/logs", "/var/logs"),
        ("file:///var/logs", "/var/logs"),
        ("a:b", "a:b"),
    ],
)
def test_what_is_a_path(text: str, path: str) -> None:
    assert local_path(text) == Path(path)


@pytest.mark.parametrize(
    "text", ["s3a://bucket/logs", "s3a:/bucket/logs", "gs://b/x", "hdfs://name:9000/logs"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(PathError, match="mount the store, or copy"):
        local_path(text)


@pytest.mark.parametrize(
    "words",
    [
        ["ingest", "s3a://bucket/logs", "--out", "tables"],
        ["ingest", ".", "--out", "s3a://bucket/tables"],
        ["generate", "--out", "gs://bucket/fleet"],
        ["audit", "abfs://x@y/tables"],
        ["report", ".", "--out", "s3a://bucket/report.html"],
    ],
)
def test_a_store_is_refused_in_one_line_and_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(pipeline, words)
    assert done.exit_code == 2 and "mount the store, or copy its contents" in done.output
    assert list(tmp_path.iterdir()) == []
