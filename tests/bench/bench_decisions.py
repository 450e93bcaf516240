"""The controller's decisions without disk and network: select, decide, encode, replay.

The clusters have 300 brokers with two directories each, 100 partitions per topic and replication factor 3, as
the requirement says. Every figure is processor time of the active controller's thread.
"""

from __future__ import annotations

import argparse
import gc
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from metaquorum.controller.brokers.broker_ids import missing_ids
from metaquorum.controller.brokers.brokers import fence_record
from metaquorum.controller.ledger import encode_records_batch
from metaquorum.controller.partitions.partitions import Scan, election_slice, naming, removal_slice
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.partitions.topics import Allowance, decide_create_topics
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    BrokerRecord,
    FeatureLevelRecord,
    PartitionRecord,
    Record,
    TopicRecord,
    UnfenceBrokerRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState, replay
from metaquorum.metadata.requests.common import CreateTopicsRequest, NewTopic, TopicsResponse
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from tests.bench.figures import Figure

BROKERS = 300
PARTITIONS_A_TOPIC = 100
DIRECTORIES = [[random.Random(f"dir{b}{d}").randbytes(16) for d in range(2)] for b in range(BROKERS)]
clock = time.thread_time
"""CPU time of the one thread that works, which on an idle machine equals wall-clock time."""

SLICE = ControllerConfig(cluster_id="", node_id=0).records_per_slice_max


def cluster(partitions: int, brokers: int = BROKERS, common: int | None = None) -> ReplayState:
    """An image of this many partitions with random replicas; `common` is a replica of every one."""
    engine = Replayer()
    offset = 0
    pending: list[bytes] = []
    for value in values(partitions, brokers, common):
        pending.append(value)
        if len(pending) == 5050:
            offset = apply(engine, pending, offset)
            pending = []
    apply(engine, pending, offset)
    return engine.state()


def apply(engine: Replayer, values: list[bytes], offset: int) -> int:
    if values:
        data = encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=1000, values=values)
        engine.apply_batch(next(iter_batches(data)))
    return offset + len(values)


def values(partitions: int, brokers: int, common: int | None) -> Iterator[bytes]:
    rng = random.Random(7)
    yield encode(FeatureLevelRecord("metadata.version", 19), 0)
    for broker in range(brokers):
        yield encode(
            BrokerRecord(
                broker, bytes([broker % 256]) * 16, broker, fenced=False, log_dirs=tuple(DIRECTORIES[broker])
            ),
            3,
        )
    tails = []
    for number in range(min(5000, partitions)):
        replicas = rng.sample(range(brokers), 3)
        if common is not None and common not in replicas:
            replicas[number % 3] = common
        directories = b"".join(DIRECTORIES[b][rng.randrange(2)] for b in replicas)
        lists = b"\x04" + struct.pack(">3i", *replicas)
        leader = struct.pack(">3i", replicas[0], 0, 0)
        tails.append(lists + lists + b"\x01\x01" + leader + b"\x04" + directories + b"\0")
    head = encode(PartitionRecord(0, bytes(16), (), (), leader=0, leader_epoch=0, partition_epoch=0), 1)[:3]
    for number in range(partitions // PARTITIONS_A_TOPIC):
        uuid = random.Random(number).randbytes(16)
        yield encode(TopicRecord(f"topic-{number:06d}", uuid), 0)
        for index in range(PARTITIONS_A_TOPIC):
            yield head + index.to_bytes(4, "big") + uuid + tails[rng.randrange(len(tails))]


def append(state: ReplayState, records: Sequence[Record]) -> tuple[ReplayState, int]:
    """What the node does with a decision before Raft gets it: bytes, and the image after them."""
    base = state.end_offset
    data = encode_records_batch(records, base_offset=base, epoch=2, timestamp_ms=2000, metadata_version=19)
    return replay(state, next(iter_batches(data))), len(data)


def fence(state: ReplayState, broker_id: int, slice_records: int) -> dict[str, Any]:
    """Takes a broker out of everything, in slices; seconds of each."""
    image = state.newest
    rules = rules_of(image, lambda other: image.brokers.is_active(other) and other != broker_id)
    final = fence_record(broker_id, image.brokers[broker_id].epoch)
    scan = Scan(naming(broker_id))
    slices: list[float] = []
    changes = size = 0
    done = False
    while not done:
        gc.collect()
        start = clock()
        batch = removal_slice(state.newest, broker_id, rules, slice_records, final=final, scan=scan)
        state, written = append(state, batch.records)
        slices.append(clock() - start)
        changes += len(batch.records)
        size += written
        done = batch.done
    return {
        "changes": changes - 1,
        "slices": len(slices),
        "total_ms": round(1000 * sum(slices), 1),
        "longest_slice_ms": round(1000 * max(slices), 1),
        "bytes": size,
        "after": state,
    }


def unfence(state: ReplayState, broker_id: int, slice_records: int) -> dict[str, Any]:
    """Gives a returned broker the partitions of which it is the only in-sync replica."""
    image = state.newest
    epoch = image.brokers[broker_id].epoch
    rules = rules_of(image, lambda other: image.brokers.is_active(other) or other == broker_id)
    slices: list[float] = []
    changes = 0
    done, first = False, UnfenceBrokerRecord(broker_id, epoch)
    while not done:
        gc.collect()
        start = clock()
        batch = election_slice(state.newest, broker_id, rules, slice_records, first=first)
        first = None
        state, _ = append(state, batch.records)
        slices.append(clock() - start)
        changes += len(batch.records)
        done = batch.done
    return {
        "changes": changes - 1,
        "slices": len(slices),
        "total_ms": round(1000 * sum(slices), 1),
        "longest_slice_ms": round(1000 * max(slices), 1),
    }


def create(topics: int, partitions: int) -> dict[str, Any]:
    """One request that creates topics: decide, encode, replay."""
    state = cluster(0)
    image = state.newest
    rng = random.Random(3)
    request = CreateTopicsRequest(
        topics=tuple(
            [NewTopic(name=f"t{n}", partitions=partitions, replication_factor=3) for n in range(topics)]
        )
    )
    config = ControllerConfig(cluster_id="", node_id=0)
    best = None
    for _ in range(5):
        gc.collect()
        start = clock()
        result = decide(image, request, config, rng)
        decided = clock()
        append(state, result.records)
        spent = clock() - start
        assert isinstance(result.response, TopicsResponse) and not result.response.results[0].error
        if best is None or spent < best[0]:
            best = (spent, decided - start)
    assert best is not None
    return {
        "partitions": topics * partitions,
        "total_ms": round(1000 * best[0], 1),
        "decide_ms": round(1000 * best[1], 1),
        "partitions_per_s": round(topics * partitions / best[0]),
    }


def decide(
    image: MetadataImage, request: CreateTopicsRequest, config: ControllerConfig, rng: random.Random
) -> Any:
    return decide_create_topics(
        image,
        request,
        config,
        candidates=[UsableBroker(broker_id, None) for broker_id in image.brokers],
        new_topic_id=partial(rng.randbytes, 16),
        rng=rng,
        allowance=Allowance(),
    )


def best(times: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    found = min((work() for _ in range(times)), key=lambda result: result["total_ms"])
    found.pop("after", None)
    return found


def bench_small(partitions: int, slice_records: int) -> dict[str, Any]:
    """Three brokers: the dead one has a replica of every partition and leads a third of them."""
    state = cluster(partitions, brokers=3)
    return best(5, lambda: fence(state, 1, slice_records))


def bench_large(partitions: int, common: int | None, slice_records: int) -> dict[str, Any]:
    state = cluster(partitions, common=common)
    return best(3, lambda: fence(state, 7, slice_records))


def bench_unfence(partitions: int, slice_records: int) -> dict[str, Any]:
    """Every other replica has left: the last broker lost all its leaderships and gets them back."""
    state = cluster(partitions, brokers=3)
    for broker_id in (0, 1, 2):
        state = fence(state, broker_id, slice_records)["after"]
    return best(3, lambda: unfence(state, 2, slice_records))


def bench_missing_ids(partitions: int) -> dict[str, Any]:
    """Ids that partitions name and no broker has, found in an index."""
    image = cluster(partitions).newest
    spent = []
    for _ in range(20):
        start = clock()
        found = missing_ids(image)
        spent.append(clock() - start)
    return {"partitions": partitions, "missing": len(found), "total_ms": round(1000 * min(spent), 3)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--slice", type=int, default=SLICE, help="changes per batch")


def run(options: argparse.Namespace) -> list[Figure]:
    size, changes = options.partitions, options.slice
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "create 1 x 100": lambda: create(1, 100),
        "create 10 x 100": lambda: create(10, 100),
        "create 100 x 100": lambda: create(100, 100),
        "fence, 10,000 partitions on 3 brokers": lambda: bench_small(10_000, changes),
        "fence, 100,000 partitions on 3 brokers": lambda: bench_small(100_000, changes),
        "unfence, 10,000 leaderless": lambda: bench_unfence(10_000, changes),
        "fence, 1 of 300 brokers": lambda: bench_large(size, None, changes),
        "fence, a replica of every partition": lambda: bench_large(size, 7, changes),
        "missing ids": lambda: bench_missing_ids(size),
    }
    return [
        Figure(name=f"{name}: {what}", value=found, unit=unit, at_most=target)
        for name, case in cases.items()
        if options.only in name
        for what, found, unit, target in shown(name, case())
    ]


def shown(name: str, result: dict[str, Any]) -> Iterator[tuple[str, float, str, float | None]]:
    """(what, value, unit, target) of the results of a case."""
    targets = {"missing ids": 1.0}
    for key, (what, unit) in {
        "total_ms": ("in all", "ms"),
        "longest_slice_ms": ("longest slice", "ms"),
        "slices": ("slices", ""),
        "partitions_per_s": ("partitions a second", "1/s"),
    }.items():
        if key in result:
            yield what, result[key], unit, targets.get(name) if key == "total_ms" else None
