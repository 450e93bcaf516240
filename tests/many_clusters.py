"""Clusters in one process, one after another: what each leaves behind.

    python -m tests.many_clusters [COUNT]    (make clusters COUNT=200)

Each has a topic with an acknowledged message. Exits with 1 if there is growth beyond the first ten.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import psutil
from confluent_kafka import Producer

from metaquorum.testing import Cluster

FIRST = 10
"""Clusters until caches are warm and allocators have what they keep."""
LAST = 5
"""What the least of the last ones has must be what one of the first had: threads end a moment later."""
KEPT_BYTES = 64 * 1024
"""Memory that a cluster may leave on average: allocators reuse what is free, and not all of it."""


class Held(NamedTuple):
    """What this process has. `objects`: those that the collector tracks."""

    threads: int
    descriptors: int
    ports: int
    objects: int
    bytes: int


def held() -> Iterator[Held]:
    """What there is after each cluster, without end."""
    me = psutil.Process()
    while True:
        with Cluster() as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
            producer.produce(cluster.create_topic("orders"), "a")
            assert producer.flush(60) == 0
            del producer
        gc.collect()
        descriptors = me.num_fds() if hasattr(me, "num_fds") else me.num_handles()
        ports = len(me.net_connections())
        size = me.memory_full_info().uss
        yield Held(threading.active_count(), descriptors, ports, len(gc.get_objects()), size)


def growth(count: int) -> list[str]:
    """What grew beyond the first clusters, a line each."""
    seen = [each for each, _ in zip(held(), range(count), strict=False)]
    first, last = seen[LAST:FIRST], seen[-LAST:]
    lines = []
    for name in Held._fields:
        most = max(getattr(each, name) for each in first)
        least = min(getattr(each, name) for each in last)
        if least > most + (KEPT_BYTES * (count - FIRST) if name == "bytes" else 0):
            lines.append(f"{name}: {most} after {FIRST} clusters, {least} after {count}")
    return lines


def main() -> None:
    """Prints what grew."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    lines = growth(count)
    print("\n".join(lines) or f"nothing grew from {FIRST} to {count} clusters")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
