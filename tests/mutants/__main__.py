"""`python -m tests.mutants`: makes small mistakes in the code, and checks that the tests notice each of them.

Exit codes: 0 the layers reach their targets, 1 one does not, 2 wrong usage. Nothing is written into the
sources: mistakes exist only in forked processes. The same seed draws the same sample of the same sources.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
DEFAULT_COUNT = 40


def main() -> int:
    if sys.argv[1:2] == ["--alone"]:
        return _alone(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6:])
    from tests.mutants.layers import LAYERS

    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--layer", choices=[*LAYERS, "all"], default="all")
    parser.add_argument("--count", default=str(DEFAULT_COUNT), help="mutants of each layer, or all")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--files", default="", help="only files whose path contains this")
    parser.add_argument("--keys", nargs="*", default=[], help="only these mutants, including equivalent ones")
    parser.add_argument("--tests", nargs="*", default=[], help="run these tests instead of the layer's")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no more mutants after this time")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of tests for one mutant")
    arguments = parser.parse_args()
    if arguments.count != "all" and not arguments.count.isdecimal():
        parser.error(f"--count is a number or all, not {arguments.count}")
    if arguments.layer != "all":
        return _judge_layer(arguments)
    names = ("count", "seed", "files", "minutes", "jobs", "budget")
    command = [sys.executable, "-m", "tests.mutants"]
    command += [f"--{name}={getattr(arguments, name)}" for name in names]
    return max(subprocess.run([*command, f"--layer={name}"], check=False).returncode for name in LAYERS)


def _judge_layer(arguments: argparse.Namespace) -> int:
    from tests.mutants.equivalent import TABLE, parse
    from tests.mutants.judging import Judgement
    from tests.mutants.layers import LAYERS

    layer = LAYERS[arguments.layer]
    # pytest captures what this process prints: the results go to a copy of standard output.
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        judgement = Judgement(
            root=REPOSITORY,
            layer=replace(layer, tests=tuple(arguments.tests) or layer.tests),
            table=parse(TABLE.read_text()),
            say=lambda text: print(text, file=out),
            seed=arguments.seed,
            count=None if arguments.count == "all" else int(arguments.count),
            files=arguments.files,
            keys=arguments.keys,
            minutes=arguments.minutes,
            jobs=arguments.jobs,
            budget_s=arguments.budget,
        )
        judgement.run()
    return 0 if judgement.percent >= judgement.layer.target else 1


def _alone(root: Path, file: str, key: str, begun: int, names: list[str]) -> int:
    """Runs tests with one mutant in place from the start; for code that runs when it is imported. Writes the
    name of each to `begun`."""
    from tests.mutants.marking import MarkingFinder, install
    from tests.mutants.sites import Source
    from tests.mutants.workplace import Begun, run_pytest

    source = Source(root, file)
    (mutant,) = [at for at in source.mutants if at.key == key]
    install(MarkingFinder(root, [file], {file: source.compiled(mutant)}))
    return run_pytest(Begun(begun), root, ["-x", *names])


if __name__ == "__main__":
    from tests.closed_pipe import end

    end(main)
