"""The types of the program and of its examples. Checked here, because mypy computes while the other
end-to-end tests wait for processes: before all tests, a second processor would be idle meanwhile.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.types import OPTIONS, REPOSITORY, TOOLS_SYSTEM, command, tools

pytestmark = pytest.mark.e2e


def checked(*command: str) -> None:
    done = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("system", OPTIONS)
def test_types_are_right(system: str) -> None:
    checked(*command(system))
    if system == TOOLS_SYSTEM:  # after the program, whose types are then in the cache
        checked(*command(system, *tools()))


def test_the_tools_of_tests_are_checked() -> None:
    assert {f"tests/{name}" for name in ("attacks", "bench", "ways", "console_pictures.py")} <= {*tools()}


@pytest.mark.parametrize(
    ("system", "call"),
    [("darwin", "fdatasync(1)"), ("darwin", "eventfd(0)"), ("win32", "fork()"), ("win32", "pread(1, 1, 1)")],
)
def test_a_call_that_a_system_lacks_is_an_error(system: str, call: str, tmp_path: Path) -> None:
    """With the options of the check, on one file."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(f"import os\n\nos.{call}\n")
    options = [f"--cache-dir={tmp_path}", "--config-file="]
    done = subprocess.run(
        command(system, *options, str(wrong)), check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1 and "has no attribute" in done.stdout, done.stdout + done.stderr
