"""The Kafka listener: a controller and three brokers as processes, librdkafka as the client.

Topics have replication factor 3, producers acks=all. Rows are measured with `log.flush.before.ack` true (a
replica counts when its disk has the record), those named "not synced" with false (as in Kafka).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tests.bench.figures import Figure
from tests.bench.kafka import cleaning, connections, data, groups, start
from tests.bench.kafka.site import Site, disk_mb_s, running_site

Row = Callable[[Site, argparse.Namespace], list[Figure]]

SYNCED: Mapping[str, Row] = {
    "idle": connections.idle_memory,
    "single": partial(data.single, synced=True),
    "steady": partial(data.steady, synced=True),
    "commit": groups.commits,
    "transactions": groups.transactions,
    "rebalance": groups.rebalance,
    "connections": connections.idle_connections,
    "produce-1k": partial(data.produced, size=1024, batch=256 * 1024, synced=True),
    "produce-100": partial(data.produced, size=100, batch=64 * 1024, synced=True),
    "fetch": data.fetched,
    "cleaner": cleaning.steady_while_cleaning,
    "metadata": connections.metadata,
}
NOT_SYNCED: Mapping[str, Row] = {
    "single-not-synced": partial(data.single, synced=False),
    "steady-not-synced": partial(data.steady, synced=False),
    "produce-1k-not-synced": partial(data.produced, size=1024, batch=256 * 1024, synced=False),
    "produce-100-not-synced": partial(data.produced, size=100, batch=64 * 1024, synced=False),
}
FIRST_PRODUCE = "up"
NAMES = (FIRST_PRODUCE, *SYNCED, *NOT_SYNCED)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=NAMES, help="a row; may be repeated")
    parser.add_argument("--short", action="store_true", help="a tenth of the work")


def run(options: argparse.Namespace) -> Iterator[Figure]:
    """Yields each figure as it is measured, so that an interrupted run has results too."""
    options.megabytes = 40 if options.short else 400
    options.seconds = 6.0 if options.short else 60.0
    options.singles = 200 if options.short else 2_000
    options.idle_seconds = 3.0 if options.short else 20.0
    chosen = options.only or NAMES
    yield Figure(name="the disk: 256 KiB writes, each synced", value=disk_mb_s(), unit="MB/s")
    if FIRST_PRODUCE in chosen:
        yield from start.first_produce(options)
    for rows, flush in ((SYNCED, "true"), (NOT_SYNCED, "false")):
        wanted = [name for name in rows if name in chosen]
        if not wanted:
            continue
        with running_site({"log.flush.before.ack": flush, "log.cleaner.backoff.ms": "500"}) as site:
            for name in wanted:
                print(f"{name} ...", file=sys.stderr, flush=True)
                yield from rows[name](site, options)
