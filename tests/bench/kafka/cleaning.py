"""Single messages at a steady rate while the brokers' cleaners work."""

from __future__ import annotations

import argparse
import random
import threading
from pathlib import Path

from tests.bench.figures import Figure, percentile
from tests.bench.kafka import data
from tests.bench.kafka.site import MB, WAIT_S, Site

KEYS = 5_000
VALUE_BYTES = 200
SEGMENT_BYTES = MB // 2
LOGS = 2


def steady_while_cleaning(site: Site, options: argparse.Namespace) -> list[Figure]:
    """A compacted topic gets the same keys again and again besides the 1,000 messages per second; its logs
    are smaller in the end than what was written, or the benchmark fails."""
    site.create(
        "compacted",
        LOGS,
        cleanup_policy="compact",
        segment_bytes=str(SEGMENT_BYTES),
        min_cleanable_dirty_ratio="0.01",
    )
    site.create("beside", data.PARTITIONS)
    written: list[int] = []
    ended = threading.Event()
    writer = threading.Thread(target=lambda: written.append(_write(site, ended)))
    writer.start()
    waits = data.waits_at_rate(site, "beside", options.seconds)
    ended.set()
    writer.join()
    site.cluster.wait(lambda: _kept(site) < 3 * written[0] or None, "the cleaners to clean", WAIT_S)
    name = f"{data.RATE} messages/s while 2 MB/s are compacted"
    return [
        Figure(name=f"{name}, p50", value=percentile(waits, 0.5), unit="ms"),
        Figure(name=f"{name}, p99", value=percentile(waits, 0.99), unit="ms", at_most=20),
        Figure(name="  left of what was written", value=_kept(site) / 3 / written[0] * 100, unit="%"),
    ]


def _write(site: Site, ended: threading.Event) -> int:
    """2 MB per second; returns the bytes of keys and values."""
    rng, total = random.Random(7), 0
    producer = site.producer(**{"linger.ms": 50})
    while True:
        for _ in range(1_000):
            producer.produce("compacted", rng.randbytes(VALUE_BYTES), b"%08d" % rng.randrange(KEYS))
        producer.poll(0)
        total += 1_000 * (VALUE_BYTES + 8)
        if ended.wait(0.1):
            assert producer.flush(WAIT_S) == 0
            return total


def _kept(site: Site) -> int:
    """Bytes in the segments of the compacted topic, of all brokers."""
    places = [place for node in site.cluster.brokers for place in node.log_dirs]
    return sum(_size(file) for place in places for file in place.glob("compacted-*/*.log"))


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
