"""`make test` runs once more what failed beside others, and only that."""

from __future__ import annotations

import json
import os
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
    def start(commands: Sequence[Sequence[str]]) -> list[int]:
        extra = ["-c", str(folder / "pytest.ini"), "--rootdir", str(folder)]
        lines = [[*without_workers(command), *extra] for command in commands]
        return [subprocess.run(line, cwd=folder, check=False).returncode for line in lines]

    return suite.run(sys.executable, [options(folder)], folder / "cache", start)


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


def test_a_part_fails_and_all_that_failed_runs_again_alone(folder: Path) -> None:
    """Two parts, of which the other one passes: each notes its own."""
    (folder / "mended").touch()
    commands = []

    def start(parts: Sequence[Sequence[str]]) -> list[int]:
        commands.extend(parts)
        if len(parts) == 1:
            return [0]
        note(caches[1], ["tests/e2e/test_a.py::test_b"])
        return [0, suite.SOME_FAILED]

    caches = [folder / "cache" / each for each in "01"]
    assert suite.run("python", suite.PARTS, folder / "cache", start) == 0
    assert all(f"cache_dir={each}" in command for each, command in zip(caches, commands, strict=False))
    assert len(commands) == 3 and commands[2][-1] == "tests/e2e/test_a.py::test_b"


def note(cache: Path, tests: Sequence[str]) -> None:
    """What pytest notes of tests that failed."""
    noted = cache / "v" / "cache" / "lastfailed"
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps(dict.fromkeys(tests, True)))


@pytest.mark.parametrize(
    ("codes", "failed", "expected"),
    [
        *[([code, 0], 1, code) for code in (2, 3, 4, 5)],
        ([suite.SOME_FAILED, 3], 1, 3),
        ([0, suite.SOME_FAILED], suite.MOST_AGAIN + 1, suite.SOME_FAILED),
        ([suite.SOME_FAILED, 0], 0, suite.SOME_FAILED),
    ],
)
def test_what_is_no_busy_machine_is_not_run_again(
    tmp_path: Path, codes: list[int], failed: int, expected: int
) -> None:
    calls = []

    def start(commands: Sequence[Sequence[str]]) -> list[int]:
        calls.append(commands)
        note(tmp_path / "0", [f"tests/test_a.py::test_{number}" for number in range(failed)])
        return codes

    assert suite.run("python", [[], []], tmp_path, start) == expected
    assert len(calls) == 1


def test_every_test_is_in_one_part() -> None:
    """What one leaves out, the other one is given."""
    computing, waiting = suite.PARTS
    assert [f"--ignore={each}" for each in waiting if each.startswith("tests")] == [
        each for each in computing if "ignore" in each
    ]


def test_parts_run_side_by_side_and_the_second_is_printed_afterwards(
    capfd: pytest.CaptureFixture[str],
) -> None:
    say = f"import os; print(os.environ['{suite.PART}'], os.nice(0), flush=True)"
    wait = f"import time; time.sleep(0.5); {say}; raise SystemExit(3)"
    assert suite.run_side_by_side([[sys.executable, "-c", each] for each in (wait, say)]) == [3, 0]
    nice = os.nice(0)
    assert capfd.readouterr().out == f"0 {min(19, nice + suite.NICE)}\n1 {nice}\n"
