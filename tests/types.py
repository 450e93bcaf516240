"""Checks the types of the program and of its examples for each system: `python -m tests.types`.

A call that a system lacks is an error there. Each system has a cache of its own, so that a repeated run takes
seconds. The tools of tests/, which no test runs whole, are checked for wrong calls and names, on one system.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GENERATED = r"proto/.*_pb2.*"
FORKS = r"cli/local/forks\.py"
"""Not promised on Windows: nodes do not run there."""
TOOLS_SYSTEM = "linux"
OPTIONS = {
    "linux": [],
    "darwin": [],
    "win32": ["--follow-imports=silent", f"--exclude={GENERATED}|{FORKS}"],
}

ONLY_TESTS = {"conformance", "e2e", "properties", "unit"}
"""pytest runs what they call."""


def command(system: str, *more: str) -> list[str]:
    """mypy for one system. `more`: further options and paths."""
    own = ["--platform", system, f"--cache-dir=.mypy_cache/{system}"]
    return [sys.executable, "-m", "mypy", *own, *OPTIONS[system], *more]


def tools() -> list[str]:
    """Every folder of tests/ and every module in it, but for those that hold nothing but tests."""
    found = [*REPOSITORY.glob("tests/*/__init__.py"), *REPOSITORY.glob("tests/*.py")]
    names = {path.relative_to(REPOSITORY / "tests").parts[0] for path in found} - ONLY_TESTS
    return [f"tests/{name}" for name in sorted(names)]


def main() -> int:
    """Returns 1 if a system has errors."""
    failed = 0
    for system in OPTIONS:
        print(f"mypy for {system}:", flush=True)
        failed |= subprocess.run(command(system), check=False, cwd=REPOSITORY).returncode
    print("mypy for the tools of tests/:", flush=True)
    failed |= subprocess.run(command(TOOLS_SYSTEM, *tools()), check=False, cwd=REPOSITORY).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
