"""Runs the tests of listeners, storage and tools with the lowest versions that pyproject.toml allows.

Installs into an environment of its own, of the lowest supported Python: older releases have wheels for no
newer one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging import project
from tests.packaging.project import REPOSITORY, base, extra, pins

EXTRAS = ("clients", "console", "oauth", "patterns", "watch")
TESTS = (
    "tests/conformance",
    "tests/unit/cli",
    "tests/unit/console",
    "tests/unit/kafka",
    "tests/unit/metrics",
    "tests/unit/storage",
    "tests/e2e/test_cli_local.py",
)
OTHERWISE_HERE = (
    "tests/unit/cli/test_recorded_options.py",  # recorded with the newest click, whose options say more
    "tests/unit/cli/test_extras.py::test_what_is_looked_for_has_these_names",  # the extra pipeline is absent
)
_ENVIRONMENT = REPOSITORY / ".venv" / "lowest"
_NEWEST_ONLY = ("grpc", "mypy", "types-", "ruff", "import-linter", "codespell", "flask", "moto", "google")
"""Tools of development that no test listed above needs, and that may demand newer releases."""


def main(arguments: list[str]) -> int:
    """`arguments`: for pytest, instead of the tests above."""
    lowest = project.lowest_python()
    interpreter = sys.executable if sys.version.startswith(f"{lowest}.") else shutil.which(f"python{lowest}")
    if interpreter is None:
        print(f"install python{lowest}: the lowest versions have wheels for no newer one", file=sys.stderr)
        return 2
    python = _ENVIRONMENT / "bin" / "python"
    lines = pins([*base(), *(each for name in EXTRAS for each in extra(name))])
    _install(interpreter, python, lines)
    print("lowest versions:", " ".join(sorted(lines)), flush=True)
    chosen = arguments or [*TESTS, *(f"--deselect={each}" for each in OTHERWISE_HERE)]
    command = [python, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *chosen]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


def _install(interpreter: str, python: Path, lines: list[str]) -> None:
    wanted = "\n".join(lines)
    stamp = _ENVIRONMENT / "installed.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", _ENVIRONMENT], check=True)
    constraints = _ENVIRONMENT / "constraints.txt"
    constraints.write_text(wanted)
    own = {line.partition("==")[0] for line in lines}
    tools = [
        str(each) for each in extra("dev") if each.name not in own and not each.name.startswith(_NEWEST_ONLY)
    ]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    # Releases without a wheel would be compiled: a bound that demands it is too low.
    only = ["--only-binary", ":all:"]
    subprocess.run([*pip, *only, "-c", constraints, *lines, *tools], check=True)
    subprocess.run([*pip, "--no-deps", "-e", REPOSITORY], check=True)
    stamp.write_text(wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
