"""What a killed command left in the system's temporary directory goes with the next one, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metaquorum import platforms
from metaquorum.cli.log.input.source import temporary_directory
from tests.conftest import REPOSITORY

WAITS = """
import sys
from metaquorum.cli.log.input.source import temporary_directory
with temporary_directory("live") as directory:
    open(directory + "/copy", "w").close()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_only_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        killed, alive = (
            Path(each.stdout.readline().strip()).parent for each in running if each.stdout is not None
        )
        running[0].kill()
        running[0].wait()
        assert (killed / "files" / "copy").exists()
        with temporary_directory("archive"):
            assert killed.exists(), "another purpose"
        with temporary_directory("live") as own:
            assert {*tmp_path.iterdir()} == {alive, Path(own).parent}
            assert (alive / "files" / "copy").exists()
            assert Path(own).stat().st_mode & 0o777 == 0o700
        assert [*tmp_path.iterdir()] == [alive]
        running[1].communicate("")
        assert [*tmp_path.iterdir()] == []
    finally:
        for each in running:
            each.kill()
            each.communicate()


def test_what_is_no_directory_of_ours_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "files").mkdir(parents=True)
    (target / ".lock").touch()
    (tmp_path / "metaquorum-live-file").touch()
    (tmp_path / "metaquorum-live-new").mkdir()
    try:
        (tmp_path / "metaquorum-live-link").symlink_to(target)
    except OSError:
        pytest.skip("this user may not make links here")
    before = {*tmp_path.rglob("*")}
    with temporary_directory("live"):
        pass
    assert {*tmp_path.rglob("*")} == before


def test_a_directory_that_is_taken_for_a_left_one_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between the making of its lock file and the lock."""
    lock_file, taken = platforms.lock_file, [True, True]

    def lock(descriptor: int) -> bool:
        if not taken:
            return lock_file(descriptor)
        if len(taken) == 2:
            taken.pop()
            return False
        taken.pop()
        for path in tmp_path.glob("metaquorum-live-*/.lock"):
            path.unlink()
        return lock_file(descriptor)

    monkeypatch.setattr(platforms, "lock_file", lock)
    with temporary_directory("live") as directory:
        assert (Path(directory).parent / ".lock").exists() and not taken
    assert [*tmp_path.iterdir()] == []


def test_without_locks_nothing_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lock(descriptor: int) -> bool:
        raise OSError("no locks")

    monkeypatch.setattr(platforms, "lock_file", lock)
    with temporary_directory("live") as first, temporary_directory("live") as second:
        assert Path(first).exists() and Path(second).exists()
    assert [*tmp_path.iterdir()] == []
