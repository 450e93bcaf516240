"""`python -m tests.planted [NAME...]`: plants one bug at a time in a copy, and checks that the suite catches
it.

Exit codes: 0 every bug was caught, 1 one was not, or an entry or a command is invalid, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.closed_pipe import end
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS
from tests.planted.document import DOCUMENT, render
from tests.planted.workshop import Result, Verdict, Workshop

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs to plant; without names all")
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the bugs, with the law that each breaks, its source, and what catches it",
    )
    parser.add_argument("--document", action="store_true", help=f"write {DOCUMENT}")
    arguments = parser.parse_args()
    if arguments.document:
        (REPOSITORY / DOCUMENT).write_text(render())
        return 0
    known = {bug.name: bug for bug in BUGS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"no bug is named {unknown[0]}; --list shows the names")
    chosen = [known[name] for name in arguments.names] or list(BUGS)
    if arguments.list:
        for bug in chosen:
            print(f"{bug.name}: {bug.breaks} ({bug.source}). Caught by: {', '.join(bug.caught_by)}")
        return 0
    return _run(chosen)


def _run(chosen: Sequence[Bug]) -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-bugs-") as directory:
        workshop = Workshop(Path(directory), REPOSITORY)
        workshop.check_imports()
        if not _sound_copy_passes(workshop, chosen):
            return 1
        missed = [bug.name for bug in chosen if not _caught(workshop, bug)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} bugs caught in {time.monotonic() - started:.0f} s")
    if missed:
        print(f"not caught: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _sound_copy_passes(workshop: Workshop, chosen: Sequence[Bug]) -> bool:
    """A command that fails without a bug catches nothing."""
    for command in sorted({command for bug in chosen for command in bug.caught_by}):
        result = workshop.judge(command)
        _print("no bug", result)
        if result.verdict is not Verdict.PASSED:
            print(f"{command} fails without a bug: make it pass first\n  {result.detail}", file=sys.stderr)
            return False
    return True


def _caught(workshop: Workshop, bug: Bug) -> bool:
    try:
        with workshop.planted(bug):
            results = [workshop.judge(command) for command in bug.caught_by]
    except ValueError as error:
        print(error, file=sys.stderr)
        return False
    for result in results:
        _print(bug.name, result)
    return all(result.verdict is Verdict.CAUGHT for result in results)


def _print(name: str, result: Result) -> None:
    verdict = "passed" if name == "no bug" and result.verdict is Verdict.PASSED else result.verdict.value
    print(f"{name}: {verdict} by {result.command} in {result.seconds:.1f} s: {result.detail}", flush=True)


if __name__ == "__main__":
    end(main)
