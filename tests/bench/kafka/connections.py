"""The cost of idle connections and idle processes, and of Metadata of many partitions."""

from __future__ import annotations

import argparse
import statistics
import time

from metaquorum.metadata.requests.common import NewTopic
from metaquorum.wire.messages import MetadataRequest
from tests.bench.figures import Figure
from tests.bench.kafka.site import MIB, Site, Wire, request_frame

CONNECTIONS = 1_000
SIZES = ((1_000, 1.0), (10_000, 8.0))
"""Partitions in one Metadata response, and its target in ms."""

_METADATA = 12


def idle_memory(site: Site, options: argparse.Namespace) -> list[Figure]:
    """Resident memory of brokers that have just started; `own`: not shared with any other process."""
    found = [process.memory_full_info() for process in site.processes()]
    worst = max(each.rss for each in found) / MIB
    own = max(each.uss for each in found) / MIB
    return [
        Figure(name="an idle broker, resident", value=worst, unit="MiB", at_most=90),
        Figure(name="  of it own memory", value=own, unit="MiB"),
    ]


def idle_connections(site: Site, options: argparse.Namespace) -> list[Figure]:
    """1,000 connections to each broker that sent ApiVersions and Metadata, and then nothing."""
    before = [process.memory_info().rss for process in site.processes()]
    alone = _idle_share(site, options.idle_seconds)
    wires = [Wire(port) for port in site.ports.values() for _ in range(CONNECTIONS)]
    for wire in wires:
        wire.ask("ApiVersions", 3, client_software_name="bench", client_software_version="1")
        wire.ask("Metadata", _METADATA, topics=())
    share = _idle_share(site, options.idle_seconds)
    after = [process.memory_info().rss for process in site.processes()]
    grown = max(new - old for new, old in zip(after, before, strict=True)) / MIB
    for wire in wires:
        wire.__exit__()
    name = f"{CONNECTIONS:,} idle connections to each broker"
    return [
        Figure(name=f"{name}, memory of a broker", value=grown, unit="MiB", at_most=60),
        Figure(name=f"{name}, CPU of a broker", value=share * 100, unit="% of a core", at_most=3),
        Figure(name="  CPU of an idle broker before", value=alone * 100, unit="% of a core"),
    ]


def _idle_share(site: Site, seconds: float) -> float:
    """The busiest broker's share of a core meanwhile."""
    before = [sum(process.cpu_times()[:2]) for process in site.processes()]
    time.sleep(seconds)
    after = [sum(process.cpu_times()[:2]) for process in site.processes()]
    return max(float(new - old) for new, old in zip(after, before, strict=True)) / seconds


def metadata(site: Site, options: argparse.Namespace) -> list[Figure]:
    """All topics' Metadata, from request to response, once it is in the cache. The topics have one
    replica."""
    figures, there = [], 0
    for size, target in SIZES[: 1 if options.short else None]:
        topics = [
            NewTopic(name=f"meta-{number}", partitions=100, replication_factor=1)
            for number in range(there, size // 100)
        ]
        for first in range(0, len(topics), 10):
            _make(site, topics[first : first + 10])
        there = size // 100
        names = [f"meta-{number}" for number in range(there)]
        figures.append(_asked(site, names, size, target))
    return figures


def _make(site: Site, topics: list[NewTopic]) -> None:
    results = site.cluster.create_topics(*topics)
    assert not any(each.error for each in results), results


def _asked(site: Site, names: list[str], partitions: int, target: float) -> Figure:
    with Wire(site.ports[0]) as wire:
        topics = tuple(MetadataRequest.MetadataRequestTopic(name=name) for name in names)

        def count() -> int:
            answer = wire.ask("Metadata", _METADATA, topics=topics)
            return sum(len(topic.partitions) for topic in answer.topics)

        site.cluster.wait(lambda: count() == partitions or None, f"Metadata of {partitions} partitions", 120)
        time.sleep(2)  # until the replicas are created
        frame, waits = request_frame("Metadata", _METADATA, topics=topics), []
        for _ in range(200):
            begun = time.perf_counter()
            wire.send(frame)
            wire.read()
            waits.append((time.perf_counter() - begun) * 1000)
    name = f"Metadata of {partitions:,} partitions, p50"
    return Figure(name=name, value=statistics.median(waits), unit="ms", at_most=target)
