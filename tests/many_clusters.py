"""Clusters in one process, one after another: what each leaves behind.

    python -m tests.many_clusters [COUNT]    (make clusters COUNT=200)

Each has a topic with an acknowledged message. Exits with 1 if there is growth beyond the first ten.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import psutil
from confluent_kafka import Producer

from metaquorum.platforms import c_call
from metaquorum.testing import Cluster

FIRST = 10
"""Clusters until caches are warm and allocators have what they keep."""
LAST = 5
"""Of so many of the last ones, or a quarter, the least must be what one of the first had: threads end a
moment later, and the memory of a process has peaks."""
NOISE = {"objects": 500, "bytes": 4 << 20}
"""By how much these differ from cluster to cluster. One that stayed would have ten thousand objects."""
KEPT_BYTES = 32 * 1024
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
    me, give_back = psutil.Process(), c_call("malloc_trim", ctypes.c_size_t)
    while True:
        with Cluster() as cluster:
            producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
            producer.produce(cluster.create_topic("orders"), "a")
            assert producer.flush(60) == 0
            del producer
        gc.collect()
        if give_back is not None:
            give_back(0)  # what is free is not held
        descriptors = me.num_fds() if hasattr(me, "num_fds") else me.num_handles()
        ports = len(me.net_connections())
        size = me.memory_full_info().uss
        yield Held(threading.active_count(), descriptors, ports, len(gc.get_objects()), size)


def growth(count: int) -> list[str]:
    """What grew beyond the first clusters, a line each."""
    # As plain tuples, which the collector does not track: the notes must not count as growth.
    seen = [tuple(each) for each, _ in zip(held(), range(count), strict=False)]
    first, last = seen[LAST:FIRST], seen[-max(LAST, count // 4) :]
    lines = []
    for at, name in enumerate(Held._fields):
        most, least = max(each[at] for each in first), min(each[at] for each in last)
        more = NOISE.get(name, 0) + (KEPT_BYTES * (count - FIRST) if name == "bytes" else 0)
        if least > most + more:
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
