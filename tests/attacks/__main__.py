"""`python -m tests.attacks [NAME ...] [--seeds N | --seed S]`: attacks on a site, each judged, one line each.

Exit code 0: the site passed all of them. NAME may be a part of names, such as `idle`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attacks.catalogue import ATTACKS
from tests.attacks.judge import Judge
from tests.attacks.site import attacked_site
from tests.closed_pipe import end


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1, help="variations of each attack")
    parser.add_argument("--seed", type=int, help="only this one")
    arguments = parser.parse_args()
    chosen = [
        attack
        for name, attack in ATTACKS.items()
        if not arguments.names or name in arguments.names or any(part in name for part in arguments.names)
    ]
    if not chosen:
        parser.error(f"no attack is named so; there are {', '.join(ATTACKS)}")
    seeds = range(arguments.seeds) if arguments.seed is None else [arguments.seed]
    work = [(attack, seed) for seed in seeds for attack in chosen]
    failed = 0
    while work:
        # One site for many attacks, and another after harm: the next one must not be blamed for it.
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder, attacked_site(Path(folder)) as site:
            with Judge(site) as judge:
                while work:
                    verdict = judge.judge(*work.pop(0))
                    print(verdict.text(), flush=True)
                    if verdict.problems:
                        failed += 1
                        break
    if failed:
        print(f"{failed} of {len(chosen) * len(seeds)} attacks did harm", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    end(main)
