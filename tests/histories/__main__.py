"""`python -m tests.histories [--seconds N] [--seed N]`: transactions of real clients under kill -9, judged.

Exit code 0: a serial order explains all that was read and stored.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.closed_pipe import end
from tests.e2e.test_list_append import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        try:
            print(run(Path(folder), arguments.seconds, arguments.seed))
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    end(main)
