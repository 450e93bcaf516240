"""`make test`: every test beside others, and what failed there once more, alone.

A few tests start processes and wait for them; on a busy machine, one may miss its time. A test that fails
alone as well has failed. One that passes alone is named, so that nobody overlooks that it is unsure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
WAITING = ("tests/e2e", "tests/attacks", "tests/ways")
"""End-to-end tests wait most of their time, for elections and for sessions to end; all others compute."""
PARTS = (
    ("-n", "4", "--dist", "loadfile", *(f"--ignore={folder}" for folder in WAITING)),
    ("-n", "6", "--dist", "loadfile", *WAITING),
)
"""One pytest each, side by side: a worker of pytest-xdist collects every test that its pytest was given, so
those that compute are few. They leave the processors to those that have to be in time (`NICE`)."""
NICE = 5
MOST_AGAIN = 12
"""If more fail, the cause is no busy machine, and they are not run again."""
SOME_FAILED = 1
"""What pytest exits with if tests failed; everything else is another mistake."""

PART = "METAQUORUM_TESTSPART"

Run = Callable[[Sequence[Sequence[str]]], list[int]]


def part() -> int:
    """The number of the part that this process belongs to."""
    return int(os.environ.get(PART, "0"))


def run_side_by_side(commands: Sequence[Sequence[str]]) -> list[int]:
    """Exit codes of commands that run side by side. The first is nice if others run beside it; what these
    print follows when all have ended."""
    kept = [tempfile.TemporaryFile() for _ in commands[1:]]
    running = [
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, PART: str(number)},
            stdout=output,
            stderr=output,
        )
        for number, (command, output) in enumerate(zip(commands, [None, *kept], strict=True))
    ]
    if kept:
        os.setpriority(os.PRIO_PROCESS, running[0].pid, os.nice(0) + NICE)
    codes = [process.wait() for process in running]
    for output in kept:
        output.seek(0)
        sys.stdout.write(output.read().decode("utf-8", "replace"))
        output.close()
    sys.stdout.flush()
    return codes


def failed_in(cache: Path) -> list[str]:
    """The ids of the tests that failed last, as pytest has noted them in its cache."""
    try:
        noted = json.loads((cache / "v" / "cache" / "lastfailed").read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return sorted(noted)


def run(python: str, parts: Sequence[Sequence[str]], cache: Path, run: Run = run_side_by_side) -> int:
    """Exit code of pytest with the options of each part, or of its second run of what failed."""
    caches = [cache / str(number) for number in range(len(parts))]
    for each in caches:
        (each / "v" / "cache" / "lastfailed").unlink(missing_ok=True)
    pytest = [python, "-m", "pytest"]
    codes = run([[*pytest, "-o", f"cache_dir={own}", *part] for own, part in zip(caches, parts, strict=True)])
    failed = [test for each in caches for test in failed_in(each)]
    mistakes = [code for code in codes if code not in (0, SOME_FAILED)]
    if mistakes or not 0 < len(failed) <= MOST_AGAIN:
        return (mistakes or [max(codes)])[0]
    print(f"\n{len(failed)} failed. Once more, alone:", *failed, sep="\n  ", flush=True)
    (code,) = run([[*pytest, "-o", f"cache_dir={cache}", "-n", "0", *failed]])
    if code == 0:
        print("Passed alone, failed beside others:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.executable, PARTS, REPOSITORY / ".pytest_cache"))
