"""The log tools at a running cluster: how long a summary takes, and how soon a record is shown.

Three real controllers begin at a snapshot of the partitions. `log summary --bootstrap` reads it and what
follows; `log dump --follow` prints the NoOp records that the active controller writes twice a second. A
record's time is that of its append, so the time until it is printed includes its commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.figures import Figure, percentile
from tests.bench.seeding import NO_SNAPSHOTS, Shape, seeded, start
from tests.e2e.cluster import Cluster

SUMMARY_S = 5.0
SHOWN_MS = 100.0
SUMMARIES = 3
LEASES = {"broker.session.timeout.ms": str(3_600_000)}
"""No broker runs, and none is fenced."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=500_000)
    parser.add_argument("--records", type=int, default=60, help="records to wait for")


def run(options: argparse.Namespace) -> Iterator[Figure]:
    shape = Shape(partitions=options.partitions)
    yield Figure(name="partitions", value=shape.partitions, unit="")
    with seeded(shape, properties={"controller": {**NO_SNAPSHOTS, **LEASES}}) as cluster:
        start(cluster)
        took_s = sorted(summary_s(cluster) for _ in range(SUMMARIES))
        yield Figure(name="log summary, median", value=statistics.median(took_s), unit="s", at_most=SUMMARY_S)
        yield Figure(name="log summary, worst", value=took_s[-1], unit="s")
        late_ms = shown_after_ms(cluster, options.records)
        yield Figure(name="append to printed, median", value=statistics.median(late_ms), unit="ms")
        yield Figure(
            name="append to printed, p99", value=percentile(late_ms, 0.99), unit="ms", at_most=SHOWN_MS
        )


def command(cluster: Cluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "metaquorum.cli", "log", *words, "--bootstrap", cluster.quorum_servers]


def summary_s(cluster: Cluster) -> float:
    began_s = time.monotonic()
    done = subprocess.run(command(cluster, "summary"), capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return time.monotonic() - began_s


def shown_after_ms(cluster: Cluster, count: int) -> list[float]:
    """Of `count` records that are written while the command follows."""
    began_ms = time.time() * 1000
    following = subprocess.Popen(
        command(cluster, "dump", "--follow", "--json", "--type", "no-op"), stdout=subprocess.PIPE, text=True
    )
    late_ms: list[float] = []
    try:
        assert following.stdout is not None
        for line in following.stdout:
            now_ms, record = time.time() * 1000, json.loads(line)
            # What was there before comes at once; what was written meanwhile, in one go with it.
            if record["createTime"] > began_ms + 3000:
                late_ms.append(now_ms - record["createTime"])
            if len(late_ms) == count:
                break
    finally:
        following.terminate()
        following.wait()
    return late_ms
