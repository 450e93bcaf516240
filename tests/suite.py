"""`make test`: every test beside six others, and what failed there once more, alone.

A few tests start processes and wait for them; on a busy machine, one may miss its time. A test that fails
alone as well has failed. One that passes alone is named, so that nobody overlooks that it is unsure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BESIDE_OTHERS = ("-n", "7", "--dist", "loadfile")
"""Seven at once on any machine: six with end-to-end tests, which wait most of their time for elections and
for sessions to end, and one that computes meanwhile (lanes.py)."""
MOST_AGAIN = 12
"""If more fail, the cause is no busy machine, and they are not run again."""
SOME_FAILED = 1
"""What pytest exits with if tests failed; everything else is another mistake."""

Run = Callable[[Sequence[str]], int]


def _run(command: Sequence[str]) -> int:
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


def failed_in(cache: Path) -> list[str]:
    """The ids of the tests that failed last, as pytest has noted them in its cache."""
    try:
        noted = json.loads((cache / "v" / "cache" / "lastfailed").read_text("utf-8"))
    except (OSError, ValueError):
        return []
    return sorted(noted)


def run(python: str, options: Sequence[str], cache: Path, run: Run = _run) -> int:
    """Exit code of pytest with these options, or of its second run of what failed."""
    pytest = [python, "-m", "pytest", "-o", f"cache_dir={cache}"]
    (cache / "v" / "cache" / "lastfailed").unlink(missing_ok=True)
    code = run([*pytest, *options])
    failed = failed_in(cache)
    if code != SOME_FAILED or not 0 < len(failed) <= MOST_AGAIN:
        return code
    print(f"\n{len(failed)} failed. Once more, alone:", *failed, sep="\n  ", flush=True)
    code = run([*pytest, "-n", "0", *failed])
    if code == 0:
        print("Passed alone, failed beside others:", *failed, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.executable, [*BESIDE_OTHERS, *sys.argv[1:]], REPOSITORY / ".pytest_cache"))
