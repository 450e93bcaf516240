"""A copy of the repository in which one bug at a time is planted, and commands are run on it.

The commands import the copy's packages and no others: the directory comes first on the path, and
`check_imports` verifies it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.planted.bug import Bug, apply, is_simulator, seeds_of

PACKAGES = ("metaquorum.storage", "metaquorum.controller", "metaquorum.broker", "metaquorum.node", "tests")
TIMEOUT_S = 180
SEEDS_AT_ONCE = 10
PYTEST_TESTS_FAILED = 1
SIMULATOR_FAILED = (1, 2, 3)
BROKEN_CODE = ("SyntaxError:", "NameError:", "UnboundLocalError:", "ImportError:", "ModuleNotFoundError:")
"""A bug with such a failure is not caught by the suite: its entry is invalid code."""


class Verdict(Enum):
    CAUGHT = "caught"
    PASSED = "NOT CAUGHT"
    TIMED_OUT = "NOT CAUGHT (timed out)"
    BROKEN = "BROKEN ENTRY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`detail` is the line that says what failed, `seconds` the duration of the command."""

    command: str
    verdict: Verdict
    detail: str
    seconds: float


class Workshop:
    """A copy of the working tree at `root`: the files that git tracks, and new files that it does not
    ignore."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root = root
        for name in _sources(repository):
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, target, follow_symlinks=False)
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "METAQUORUM_SHARED_DATA", "PYTEST_ADDOPTS")
        }
        self._environment["PYTHONPATH"] = str(root)

    def check_imports(self) -> None:
        """Raises RuntimeError unless the commands import the copy's packages."""
        program = "import importlib, sys\nfor p in sys.argv[1:]: print(importlib.import_module(p).__file__)"
        code, output = self._run([sys.executable, "-c", program, *PACKAGES])
        files = [Path(line).resolve() for line in output.splitlines()]
        root = self.root.resolve()
        if code != 0 or len(files) != len(PACKAGES) or not all(file.is_relative_to(root) for file in files):
            raise RuntimeError(f"the copy in {root} does not import its own packages:\n{output}")

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """The copy with the bug in it. Raises ValueError if its old text does not occur exactly once."""
        path = self.root / bug.file
        sound = path.read_text()
        path.write_text(apply(bug, sound))
        _forget_compiled(path)
        try:
            yield
        finally:
            path.write_text(sound)
            _forget_compiled(path)

    def judge(self, command: str) -> Result:
        """Whether a command of the table fails in the copy in its current state."""
        started = time.monotonic()
        if is_simulator(command):
            verdict, detail = self._simulate(command)
        else:
            verdict, detail = self._test(command)
        return Result(command=command, verdict=verdict, detail=detail, seconds=time.monotonic() - started)

    def _test(self, command: str) -> tuple[Verdict, str]:
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        code, output = self._run([sys.executable, "-m", "pytest", *options, *command.split()])
        if code is None:
            return Verdict.TIMED_OUT, f"after {TIMEOUT_S} s"
        if code == 0:
            return Verdict.PASSED, _last_line(output, "")
        return verdict_of(code == PYTEST_TESTS_FAILED, output, "FAILED ")

    def _simulate(self, command: str) -> tuple[Verdict, str]:
        seeds = seeds_of(command)
        for first in range(seeds.start, seeds.stop, SEEDS_AT_ONCE):
            part = f"{first}..{min(first + SEEDS_AT_ONCE, seeds.stop)}"
            code, output = self._run([sys.executable, "-m", "tests.sim", "--seeds", part, "--quiet"])
            if code is None:
                return Verdict.TIMED_OUT, f"seeds {part}, after {TIMEOUT_S} s"
            if code != 0:
                return verdict_of(code in SIMULATOR_FAILED, output, "seed ", ("SAFETY", "LIVENESS", "CRASH"))
        return Verdict.PASSED, f"{len(seeds)} seeds passed"

    def _run(self, command: list[str]) -> tuple[int | None, str]:
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout.decode(errors="replace")


def verdict_of(failed: bool, output: str, start: str, words: tuple[str, ...] = ("",)) -> tuple[Verdict, str]:
    """Caught, with the first line that begins with `start` and contains one of `words`, if there is such a
    line and `failed`: a law was broken. Invalid code, or a command that could not run, makes the entry
    invalid."""
    for line in output.splitlines():
        if any(word in line for word in BROKEN_CODE):
            return Verdict.BROKEN, line.strip()
    lines = [
        line for line in output.splitlines() if line.startswith(start) and any(word in line for word in words)
    ]
    if not failed or not lines:
        return Verdict.BROKEN, _last_line(output, "no output")
    return Verdict.CAUGHT, lines[0]


def _last_line(output: str, default: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else default


def _sources(repository: Path) -> list[Path]:
    """Paths below the repository: files that git tracks or would add; without git, all except hidden
    directories."""
    if not (repository / ".git").exists():
        found = (path.relative_to(repository) for path in repository.rglob("*") if _is_source(path))
        return [path for path in found if not any(part[0] == "." for part in path.parts)]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return [Path(name) for name in listed.split("\0") if name and _is_source(repository / name)]


def _is_source(path: Path) -> bool:
    # The links in metaquorum/ are copied as links, so that the copy imports its own folders.
    return path.is_symlink() or path.is_file()


def _forget_compiled(path: Path) -> None:
    # Python trusts a compiled file if the source has the same size and was changed in the same second.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
