"""Logs that a newer release wrote: each command reads what it knows, and says in one line that there is
more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.errors import EXIT_UNKNOWN_RECORDS
from metaquorum.cli.main import main
from metaquorum.metadata import features
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from tests.unit.metadata.test_inspect_states import FUTURE, Maker, feature

TOPIC = bytes(range(16))
NEWER = max(features._LATER_NAMES) + 1
"""A metadata.version that this release does not know."""
RECORDS = {
    "a type": FUTURE,
    "a version": encode(r.NoOpRecord(), 0)[:2] + bytes([9, 0]),
    "a metadata.version": encode(feature(NEWER), 0),
}
COMMANDS = (
    ("summary",),
    ("timeline",),
    ("check",),
    ("dump",),
    ("state",),
    ("history", "topic/orders"),
    ("why", "topic/orders"),
    ("diff", "2", "end"),
    ("bisect", "--check", "min-isr"),
)
FINDS = {"summary": 15, "diff": 10}
"""Exit codes that say more."""


def node(home: Path, *written: bytes) -> Path:
    directory = home / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    maker = Maker(directory)
    maker.leader(1, 1)
    maker.batch(feature(20))
    for value in written:
        maker.batch(raw=[value])
    maker.batch(r.TopicRecord(name="orders", topic_id=TOPIC))
    return home


class Copied:
    """Stands for the copy of a running quorum's log, of which `home` is a node."""

    home: Path

    def __init__(self, live: object, directory: str) -> None:
        name = "__cluster_metadata-0"
        shutil.copytree(self.home / name, Path(directory) / name)

    def refresh(self) -> str:
        return "read all"

    def voters(self) -> tuple[str, ...]:
        return ()

    close = refresh


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("kinds", "is_live"),
    [*(((each,), False) for each in RECORDS), (tuple(RECORDS), False), (tuple(RECORDS), True)],
)
def test_what_is_known_is_read_and_the_rest_is_named_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    kinds: tuple[str, ...],
    is_live: bool,
) -> None:
    Copied.home = home = node(tmp_path / "n", *(RECORDS[each] for each in kinds))
    monkeypatch.setattr("metaquorum.cli.log.input.live.LiveCopy", Copied)
    read = ["--bootstrap", "127.0.0.1:9"] if is_live else [str(home)]
    result = CliRunner().invoke(main, ["log", command[0], *read, *command[1:]])
    assert result.exit_code in (EXIT_UNKNOWN_RECORDS, FINDS.get(command[0])), result.output
    (line,) = [each for each in result.stderr.splitlines() if "read all" not in each]
    count = "1 record" if len(kinds) == 1 else f"{len(kinds)} records"
    assert line.startswith(f"metaquorum: {count} of a newer release ("), line
    shown = {"summary": "1 topic created", "check": "0 errors", "bisect": "never turns false"}
    assert shown.get(command[0], "orders") in result.stdout
    if command[0] in {"timeline", "summary"} and "a metadata.version" in kinds:
        assert f"metadata.version is at level {NEWER} (newer than this release knows)" in result.stdout


@pytest.mark.parametrize("asked", ["at end", "diff end", "why topic/orders", "timeline"])
def test_the_shell_says_so_where_it_reads_them(tmp_path: Path, asked: str) -> None:
    home = node(tmp_path / "n", *RECORDS.values())
    words = ["log", "shell", str(home), "--at", "2" if asked == "diff end" else "end", "-c", asked]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0 and result.stdout.count("3 records of a newer release (") == 1


@pytest.mark.parametrize("level", sorted({*features.METADATA_VERSION_NAMES, *features._LATER_NAMES}))
def test_a_level_with_a_name_is_known(tmp_path: Path, level: int) -> None:
    home = node(tmp_path / "n", encode(feature(level), 0))
    result = CliRunner().invoke(main, ["log", "state", str(home)])
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_level_that_was_left_again_is_told_where_it_was_in_force(tmp_path: Path) -> None:
    home = node(tmp_path / "n", encode(feature(NEWER), 0), encode(feature(20), 0))
    asked = ["log", "state", str(home)]
    assert CliRunner().invoke(main, asked).exit_code == EXIT_UNKNOWN_RECORDS
    assert CliRunner().invoke(main, [*asked, "--at", "1"]).exit_code == 0
