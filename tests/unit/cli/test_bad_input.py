"""A user's mistake is one line on standard error and a non-zero exit, never a traceback (log and general)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.unit.cli.running import run

DATA = Path(__file__).resolve().parents[2] / "data" / "kafka-3.7-upgrade"
SEGMENT = DATA / "00000000000000000000.log"
CHECKPOINT = DATA / "00000000000000000176-0000000001.checkpoint"


def assert_one_line(result: Result, *parts: str) -> None:
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.output
    for part in parts:
        assert part in result.stderr


def missing(path: Path) -> Path:
    return path / "nothing-here"


def empty_directory(path: Path) -> Path:
    return path


def empty_segment(path: Path) -> Path:
    (path / "00000000000000000000.log").touch()
    return path / "00000000000000000000.log"


def empty_segments(path: Path) -> Path:
    (path / "00000000000000000000.log").touch()
    return path


def empty_checkpoint(path: Path) -> Path:
    (path / CHECKPOINT.name).touch()
    return path / CHECKPOINT.name


def foreign_directory(path: Path) -> Path:
    (path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    return path


def foreign_file(path: Path) -> Path:
    (path / "notes.txt").write_text("hello")
    return path / "notes.txt"


def text_called_log(path: Path) -> Path:
    (path / "00000000000000000000.log").write_text("this is an application's log\n" * 20)
    return path / "00000000000000000000.log"


def old_magic(path: Path) -> Path:
    data = bytearray(SEGMENT.read_bytes())
    data[16] = 1
    (path / "00000000000000000000.log").write_bytes(data[:91])
    return path / "00000000000000000000.log"


def future_magic(path: Path) -> Path:
    data = bytearray(SEGMENT.read_bytes())
    data[16] = 3
    (path / "00000000000000000000.log").write_bytes(data[:91])
    return path / "00000000000000000000.log"


def zeros(path: Path) -> Path:
    (path / "00000000000000000000.log").write_bytes(bytes(500))
    return path / "00000000000000000000.log"


def header_cut(path: Path) -> Path:
    (path / "00000000000000000000.log").write_bytes(SEGMENT.read_bytes()[:40])
    return path / "00000000000000000000.log"


@pytest.mark.parametrize("command", ["dump", "state", "timeline"])
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (missing, ["nothing-here does not exist", "check the path"]),
        (empty_directory, ["holds no metadata log"]),
        (empty_segment, ["00000000000000000000.log", "is empty"]),
        (empty_segments, ["is empty"]),
        (empty_checkpoint, ["checkpoint", "is empty"]),
        (foreign_directory, ["holds no metadata log"]),
        (foreign_file, ["notes.txt", "is neither a segment nor a checkpoint"]),
        (text_called_log, ["at byte 0", "expected magic 2"]),
        (old_magic, ["at byte 0 (offset 0)", "expected magic 2, found 1"]),
        (future_magic, ["at byte 0 (offset 0)", "expected magic 2, found 3"]),
        (zeros, ["at byte 0 (offset 0)", "expected magic 2, found 0"]),
        (header_cut, ["at byte 0 (offset 0)", "expected a batch header of 61 bytes, found 40"]),
    ],
)
def test_what_is_no_log(tmp_path: Path, command: str, make: Callable[[Path], Path], parts: list[str]) -> None:
    path = make(tmp_path)
    before = path.read_bytes() if path.is_file() else None
    assert_one_line(run("log", command, path), *parts)
    if before is not None:
        assert path.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT.name
    path.write_bytes(SEGMENT.read_bytes())
    path.chmod(0)
    assert_one_line(run("log", "dump", path), "permission denied")


def test_an_unreadable_path_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_one_line(run("log", "dump", tmp_path / "file" / "inside.log"), "inside.log")


@pytest.mark.parametrize("command", ["dump", "state", "timeline"])
def test_a_checkpoint_without_its_end(tmp_path: Path, command: str) -> None:
    path = tmp_path / CHECKPOINT.name
    path.write_bytes(CHECKPOINT.read_bytes()[:-75])
    assert_one_line(run("log", command, path), "has no footer: it was truncated")


def test_a_log_that_begins_later_and_has_no_snapshot(tmp_path: Path) -> None:
    from metaquorum.storage.batches.batch import encode_batch

    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(
        encode_batch(base_offset=100, leader_epoch=2, timestamp_ms=5, values=[b"\x01\x14\x00\x00"])
    )
    assert_one_line(
        run("log", "state", path), "begins at offset 100, and no snapshot beside it reaches that offset"
    )
    assert run("log", "dump", path).exit_code == 0


@pytest.mark.parametrize(
    ("at", "part"),
    [
        ("yesterday", "'yesterday' is neither a time"),
        ("99999999", "ends at offset 261, before 99999999"),
        ("-5", "'-5' is neither a time"),
    ],
)
def test_a_place_that_is_not_there(at: str, part: str) -> None:
    assert_one_line(run("log", "state", SEGMENT, f"--at={at}"), part)


def test_a_checkpoint_has_no_history() -> None:
    assert_one_line(run("log", "state", CHECKPOINT, "--at", "5"), "is a single state, not a history")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["nonsense"], "No such command 'nonsense' (see: "),
        (["topic", "list"], "No such command 'topic'; did you mean topics?"),
        (["log", "nonsense"], "No such command 'nonsense'"),
        (["log", "dump"], "Missing argument 'PATH...'"),
        (
            ["log", "dump", "x", "--type", "topik"],
            "there is no record type 'topik'; did you mean TOPIC_RECORD",
        ),
        (
            ["log", "dump", "x", "--entity", "partition/3"],
            "there is no entity 'partition/3'; begin with one of",
        ),
        (["log", "dump", "x", "--entity", "topic/"], "'topic/' ends in a slash"),
        (["log", "dump", "x", "--from-time", "noon"], "'noon' is not a time"),
        (["log", "dump", "x", "--from-offset", "-3"], "-3 is not in the range"),
        (["log", "dump", "x", "y", "--follow"], "--follow takes exactly one PATH"),
        (["log", "dump", "x", "--nonsense"], "No such option"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_a_wrong_command_line(args: list[str], part: str) -> None:
    result = run(*args)
    assert_one_line(result, part, "--help)")
    assert result.exit_code == 2


def test_one_bad_path_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    result = run("log", "dump", "--to-offset", "0", tmp_path / "nope", SEGMENT)
    assert_one_line(result, "nope does not exist")
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_METAQUORUM_COMPLETE" in result.stdout


def test_every_command_has_help() -> None:
    listed = run("--help")
    assert listed.exit_code == 0
    for name in ("storage", "controller", "broker", "local", "quorum", "brokers", "topics", "log", "demo"):
        assert name in listed.stdout
        assert run(name, "--help").exit_code == 0, name
