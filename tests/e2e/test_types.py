"""The types of the program and of its examples. Checked here, because mypy computes while the other
end-to-end tests wait for processes: before all tests, a second processor would be idle meanwhile.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.processes import REPOSITORY

pytestmark = pytest.mark.e2e


def test_types_are_right() -> None:
    command = [sys.executable, "-m", "mypy"]
    done = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
