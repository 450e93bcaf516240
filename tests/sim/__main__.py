"""`python -m tests.sim SEED` replays one seed with a readable trace; `--seeds A..B` runs a range.

Seeds from 1000 on add a load of topics, elections, moving replicas, failing directories and broker ids. Seeds
from 2000 on run brokers that hold data, with producers and consumers. Seeds from 3000 on replace directories
of controllers with older copies of themselves. Seeds from 4000 on add and remove voters. Seeds from 5000 on
run groups, transactions and compaction. Seeds from 6000 on run combined nodes, which are controller and
broker at once. Seeds from 7000 on add brokers of Apache Kafka, as models, and seeds from 8000 on make some of
the voters Apache Kafka's, which from 9000 on are added and removed; from 9500 on ours also ask by themselves.

Exit codes: 0 success, 1 a law was broken, 2 the cluster did not recover after healing, 3 the simulator or the
program crashed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.closed_pipe import end
from tests.sim.combined import COMBINED_FROM
from tests.sim.data_load import DATA_FROM
from tests.sim.errors import LivenessError, SafetyError
from tests.sim.foreign.changes import CHANGES_FROM, JOINS_FROM
from tests.sim.foreign.quorum import MIXED_FROM
from tests.sim.foreign.world import FOREIGN_FROM
from tests.sim.kafka.plan import KAFKA_FROM
from tests.sim.load import LOADED_FROM
from tests.sim.older_copies import COPIES_FROM
from tests.sim.voters.plan import VOTERS_FROM
from tests.sim.world import run

EXIT_SAFETY, EXIT_LIVENESS, EXIT_CRASH = 1, 2, 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this seed and print its trace")
    parser.add_argument("--seeds", help="run the seeds A..B (B exclusive), one line each")
    parser.add_argument("--quiet", action="store_true", help="print no trace")
    arguments = parser.parse_args()
    if arguments.seeds:
        first, _, end = arguments.seeds.partition("..")
        return _swarm(int(first), int(end))
    if arguments.seed is None:
        return max(
            _swarm(0, 200),
            _swarm(LOADED_FROM, LOADED_FROM + 100),
            _swarm(DATA_FROM, DATA_FROM + 100),
            _swarm(COPIES_FROM, COPIES_FROM + 100),
            _swarm(VOTERS_FROM, VOTERS_FROM + 200),
            _swarm(KAFKA_FROM, KAFKA_FROM + 100),
            _swarm(COMBINED_FROM, COMBINED_FROM + 50),
            _swarm(FOREIGN_FROM, FOREIGN_FROM + 50),
            _swarm(MIXED_FROM, MIXED_FROM + 150),
            _swarm(CHANGES_FROM, CHANGES_FROM + 150),
            _swarm(JOINS_FROM, JOINS_FROM + 50),
        )
    return _one(arguments.seed, quiet=arguments.quiet)


def _one(seed: int, *, quiet: bool) -> int:
    try:
        outcome = run(seed, None if quiet else print)
    except Exception as error:
        return _report(seed, error)
    print(outcome)
    return 0


def _swarm(first: int, end: int) -> int:
    marks: Counter[str] = Counter()
    worst = 0
    started = time.perf_counter()
    for seed in range(first, end):
        try:
            outcome = run(seed)
        except Exception as error:
            worst = max(worst, _report(seed, error))
            continue
        marks.update(outcome.marks)
        print(
            f"seed {seed}: {outcome.events} events, {outcome.simulated_ms} ms,"
            f" {outcome.operations} operations, well {outcome.healed_after_ms} ms after healing"
        )
    print(f"{end - first} seeds in {time.perf_counter() - started:.1f} s")
    for mark, count in sorted(marks.items()):
        print(f"  {count:7d}  {mark}")
    return worst


def _report(seed: int, error: Exception) -> int:
    traceback.print_exception(error)
    kind = {SafetyError: "SAFETY", LivenessError: "LIVENESS"}.get(type(error), "CRASH")
    print(f"seed {seed}: {kind}: {error}\n  replay it: make sim SEED={seed}", file=sys.stderr)
    return {"SAFETY": EXIT_SAFETY, "LIVENESS": EXIT_LIVENESS}.get(kind, EXIT_CRASH)


if __name__ == "__main__":
    end(main)
