"""`python -m tests.walk [--document]`: prints which files a request passes, in order."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.closed_pipe import end
from tests.walk.document import AGAIN, AIM, DOCUMENT, REPOSITORY, render
from tests.walk.recorder import Step
from tests.walk.ways import walk

SHOWN = 2
"""How many functions are named per file."""


def called(step: Step) -> list[str]:
    """The functions of a file that were called, by the names to search for in the source."""
    plain = (name.rpartition("<locals>.")[2] for name in step.functions)
    return [name for name in dict.fromkeys(plain) if "<" not in name and "__" not in name]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__)
    parser.add_argument("--document", action="store_true", help=f"write {DOCUMENT}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="walk-") as directory:
        ways = asyncio.run(walk(Path(directory)))
    if arguments.document:
        (REPOSITORY / DOCUMENT).write_text(render(ways), "utf-8")
    for way in ways:
        files = f"{len(way.passed.way)} files on the way (the aim is {AIM})"
        print(f"{way.title}: {files}, {len(way.passed.asked)} more asked")
        for step in way.passed.way:
            again = AGAIN if step.file in way.passed.again else ""
            print(f"  {step.file}{again}: {', '.join(called(step)[:SHOWN])}")
        print(f"  asked: {', '.join(way.passed.asked)}")
    return 0


if __name__ == "__main__":
    end(main)
