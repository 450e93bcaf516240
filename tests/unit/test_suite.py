"""`make test` runs once more what failed beside others, and only that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import suite

TWO_TESTS = """
from pathlib import Path
HERE = Path(__file__).parent

def test_first_time_only():
    seen = HERE / "seen"
    before = seen.exists()
    seen.touch()
    assert before

def test_each_time():
    assert (HERE / "mended").exists()

def test_never():
    with (HERE / "runs").open("a") as runs:
        runs.write("x")
"""


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_two.py").write_text(TWO_TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def options(folder: Path) -> list[str]:
    return ["-q", "-p", "no:xdist", "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), str(folder)]


def without_workers(command: Sequence[str]) -> list[str]:
    """The command for a pytest without xdist, which these small runs do not load."""
    line = list(command)
    if "-n" in line:
        number = line.index("-n")
        del line[number : number + 2]
    return line


def run(folder: Path) -> int:
    def start(command: Sequence[str]) -> int:
        extra = ["-c", str(folder / "pytest.ini"), "--rootdir", str(folder)]
        return subprocess.run([*without_workers(command), *extra], cwd=folder, check=False).returncode

    return suite.run(sys.executable, options(folder), folder / "cache", start)


def test_what_passes_alone_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "mended").touch()
    assert run(folder) == 0
    shown = capfd.readouterr().out
    assert "Passed alone, failed beside others:\n  test_two.py::test_first_time_only" in shown
    assert "test_two.py::test_each_time" not in shown
    assert (folder / "runs").read_text() == "x", "what passed runs once"


def test_what_fails_alone_has_failed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == suite.SOME_FAILED
    assert "Passed alone" not in capfd.readouterr().out


def test_what_passes_is_not_run_again(folder: Path) -> None:
    (folder / "mended").touch()
    (folder / "seen").touch()
    assert run(folder) == 0
    assert (folder / "runs").read_text() == "x"


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_a_mistake_that_is_no_failed_test_stays(tmp_path: Path, code: int) -> None:
    noted = tmp_path / "v" / "cache" / "lastfailed"
    calls = []

    def start(command: Sequence[str]) -> int:
        calls.append(command)
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text('{"tests/test_a.py::test_b": true}')
        return code

    assert suite.run("python", [], tmp_path, start) == code
    assert len(calls) == 1


def test_many_failures_are_no_busy_machine(tmp_path: Path) -> None:
    noted = tmp_path / "v" / "cache" / "lastfailed"
    calls = []

    def start(command: Sequence[str]) -> int:
        calls.append(command)
        noted.parent.mkdir(parents=True, exist_ok=True)
        names = [f'"tests/test_a.py::test_{number}": true' for number in range(suite.MOST_AGAIN + 1)]
        noted.write_text("{" + ",".join(names) + "}")
        return suite.SOME_FAILED

    assert suite.run("python", [], tmp_path, start) == suite.SOME_FAILED
    assert len(calls) == 1
