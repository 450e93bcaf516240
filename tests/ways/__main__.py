"""`python -m tests.ways [--first N] [--ways N]`: clusters whose nodes go away in known ways, and what the log
tools say of it.

Exit code 0: every cause is right, or named as one that the log does not show.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.closed_pipe import end
from tests.ways.judge import judge
from tests.ways.paused import go_paused
from tests.ways.ways import WAYS, go, way


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ways", description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--ways", type=int, default=WAYS)
    arguments = parser.parse_args()
    failed = 0
    for number in range(arguments.first, arguments.first + arguments.ways):
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ways-") as folder:
            chosen = way(number)
            try:
                done = go_paused if chosen.is_paused else go
                wrong = judge(*done(chosen, Path(folder)))
            except Exception as error:
                wrong = [f"{type(error).__name__}: {error}"]
        failed += bool(wrong)
        print(
            f"{'WRONG' if wrong else 'right'}  {chosen.text}  ({time.monotonic() - begun_s:.1f} s)",
            flush=True,
        )
        for line in wrong:
            print(f"       {line}", flush=True)
    print(f"{arguments.ways - failed} of {arguments.ways} right")
    return int(failed > 0)


if __name__ == "__main__":
    end(main)
