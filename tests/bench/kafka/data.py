"""Messages in and out: MB/s, single messages, a steady rate, reading back."""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import confluent_kafka

from metaquorum.storage.batches.format import walk_batches
from metaquorum.wire import codec
from metaquorum.wire.messages import FetchRequest
from tests.bench.figures import Figure, percentile
from tests.bench.kafka.site import MB, WAIT_S, Site, Wire, disk_mb_s, request_frame, using

PARTITIONS = 6
RATE = 1_000
STALL_MS = 50.0
BLOCK = 1_000
_FETCH = 13
_FETCH_KEY = 1

KAFKA = {1024: "38 MB/s", 100: "16.8 MB/s"}
TARGETS = {(1024, True): 100.0, (1024, False): 120.0, (100, True): 40.0, (100, False): 50.0}
"""MB/s by bytes per message, and whether the brokers sync before the ack."""


def produced(site: Site, options: argparse.Namespace, *, size: int, batch: int, synced: bool) -> list[Figure]:
    """MB/s of values until the last one is acknowledged."""
    topic = f"size-{size}"
    site.create(topic, PARTITIONS)
    count = options.megabytes * MB // size // BLOCK
    block = [{"value": random.Random(7).randbytes(size)} for _ in range(BLOCK)]
    failed: list[object] = []
    producer = site.producer(
        **{
            "linger.ms": 10,
            "batch.size": batch,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 128 * 1024,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failed.append(error),
        }
    )
    room = 64 * MB // size

    def work() -> None:
        for _ in range(count):
            while len(producer) > room:
                producer.poll(0.005)
            assert producer.produce_batch(topic, block) == BLOCK
        assert producer.flush(10 * WAIT_S) == 0

    disk = disk_mb_s() if synced else 0.0
    used = using(site, work)
    assert not failed, failed[:3]
    megabytes = count * BLOCK * size / MB
    target = TARGETS[size, synced]
    if synced:
        target = min(target, 0.9 * disk / 3)
    how = "synced" if synced else "not synced"
    name = f"{size} B in {batch // 1024} KiB batches, {how}"
    rate = megabytes / used.took_s
    return [
        Figure(name=name, value=rate, unit="MB/s", at_least=target, kafka=None if synced else KAFKA[size]),
        Figure(name="  CPU of the three brokers", value=used.brokers_s * 1000 / megabytes, unit="ms/MB"),
        Figure(name="  CPU of the producer", value=used.client_s * 1000 / megabytes, unit="ms/MB"),
    ]


def single(site: Site, options: argparse.Namespace, *, synced: bool) -> list[Figure]:
    """One message after another, each acknowledged before the next."""
    site.create("single", 1)
    producer = site.producer(**{"linger.ms": 0})
    waits: list[float] = []
    outcomes: list[object] = []

    def one() -> None:
        begun = time.perf_counter()
        producer.produce("single", b"v" * 100, on_delivery=lambda error, _: outcomes.append(error))
        while not outcomes:
            producer.poll(1)
        assert outcomes.pop() is None
        waits.append((time.perf_counter() - begun) * 1000)

    def work() -> None:
        for _ in range(options.singles):
            one()

    for _ in range(50):
        one()
    waits.clear()
    used = using(site, work)
    how = "synced" if synced else "not synced"
    return [
        Figure(name=f"single messages, {how}, p50", value=statistics.median(waits), unit="ms", at_most=2),
        Figure(name=f"single messages, {how}, p99", value=percentile(waits, 0.99), unit="ms", at_most=8),
        Figure(
            name="  CPU of the three brokers", value=used.brokers_s * 1000 / len(waits), unit="ms/message"
        ),
    ]


def steady(site: Site, options: argparse.Namespace, *, synced: bool, topic: str = "steady") -> list[Figure]:
    """A message of 100 bytes every millisecond, timed from when it was due."""
    site.create(topic, PARTITIONS)
    canary = subprocess.Popen([sys.executable, "-c", _CANARY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    waits: list[float] = []

    def work() -> None:
        waits.extend(waits_at_rate(site, topic, options.seconds))

    used = using(site, work)
    late_ms = float(canary.communicate(b"\n")[0])
    how = "synced" if synced else "not synced"
    name, kafka = f"{RATE} messages/s, {how}", None if synced else "17 and 51 ms"
    return [
        Figure(name=f"{name}, p50", value=percentile(waits, 0.5), unit="ms"),
        Figure(name=f"{name}, p99", value=percentile(waits, 0.99), unit="ms", at_most=15, kafka=kafka),
        Figure(name=f"{name}, worst", value=max(waits), unit="ms"),
        Figure(name=f"{name}, stalls above 50 ms", value=stalls(waits), unit="", at_most=0),
        Figure(name="  latest start of a process that sleeps 1 ms", value=late_ms, unit="ms"),
        Figure(name="  CPU of the three brokers", value=used.brokers_s / used.took_s, unit="cores"),
    ]


def waits_at_rate(site: Site, topic: str, seconds: float) -> list[float]:
    """ms from when each message was due to its acknowledgement: a producer that is blocked does not make the
    figure look better."""
    producer = site.producer(**{"linger.ms": 0})
    count = int(seconds * RATE)
    waits = [0.0] * count
    failed: list[object] = []
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            producer.poll(0.05)

    def delivered(number: int, due: float) -> Callable[[object, object], None]:
        def told(error: object, _: object) -> None:
            waits[number] = (time.perf_counter() - due) * 1000
            if error:
                failed.append(error)

        return told

    producer.list_topics(topic, WAIT_S)
    server = threading.Thread(target=serve)
    server.start()
    began = time.perf_counter() + 0.2
    for number in range(count):
        due = began + number / RATE
        delay = due - time.perf_counter()
        if delay > 0:
            time.sleep(delay)
        producer.produce(topic, b"v" * 100, on_delivery=delivered(number, due))
    assert producer.flush(WAIT_S) == 0
    ended.set()
    server.join()
    assert not failed, failed[:3]
    return waits


def stalls(waits: Sequence[float]) -> int:
    """How many times messages began to take more than 50 ms: messages that follow one belong to it."""
    found, calm_since = 0, RATE
    for wait in waits:
        if wait > STALL_MS:
            found += calm_since >= STALL_MS
            calm_since = 0
        else:
            calm_since += 1
    return found


_CANARY = """
import select, sys, time
worst = 0.0
while not select.select([sys.stdin], [], [], 0)[0]:
    begun = time.perf_counter()
    time.sleep(0.001)
    worst = max(worst, time.perf_counter() - begun - 0.001)
print(worst * 1000)
"""


def fetched(site: Site, options: argparse.Namespace) -> list[Figure]:
    """What was just produced, from the page cache: by a client that only receives bytes, and by
    librdkafka."""
    topic = "read-back"
    topic_id = site.create(topic, PARTITIONS)
    _fill(site, topic, options.megabytes)
    leaders = site.leaders(topic)
    parts = {broker: [part for part, at in leaders.items() if at == broker] for broker in site.ports}
    totals: list[int] = []

    def work() -> None:
        readers = [
            threading.Thread(
                target=lambda at=at: totals.append(_read_all(site.ports[at], topic_id, parts[at]))
            )
            for at in site.ports
        ]
        for each in readers:
            each.start()
        for each in readers:
            each.join()

    used = using(site, work)
    megabytes = sum(totals) / MB
    assert megabytes > options.megabytes, totals
    rate, cpu = megabytes / used.took_s, megabytes / used.brokers_s
    figures = [
        Figure(name="fetch, bytes alone", value=rate, unit="MB/s", at_least=800, kafka="183 MB/s"),
        Figure(name="  MB by second of a broker's processor", value=cpu, unit="MB/s"),
    ]
    used = using(site, lambda: _consume(site, topic, options.megabytes * MB))
    rate, cpu = options.megabytes / used.took_s, options.megabytes / used.brokers_s
    return [
        *figures,
        Figure(name="fetch, a librdkafka consumer of 1 KiB messages", value=rate, unit="MB/s"),
        Figure(name="  MB by second of a broker's processor", value=cpu, unit="MB/s"),
        Figure(name="  CPU of the consumer", value=used.client_s * 1000 / options.megabytes, unit="ms/MB"),
    ]


def _fill(site: Site, topic: str, megabytes: int) -> None:
    producer = site.producer(**{"linger.ms": 10, "batch.size": 256 * 1024})
    block = [{"value": random.Random(7).randbytes(1000)} for _ in range(BLOCK)]
    for _ in range(megabytes):
        while len(producer) > 50_000:
            producer.poll(0.005)
        assert producer.produce_batch(topic, block) == BLOCK
    assert producer.flush(10 * WAIT_S) == 0


def _read_all(port: int, topic_id: bytes, partitions: list[int]) -> int:
    """Bytes of batches in the partitions that this broker leads, each from beginning to end."""
    offsets, total = dict.fromkeys(partitions, 0), 0
    with Wire(port) as wire:
        while offsets:
            wire.send(_fetch_frame(topic_id, offsets))
            answer = codec.decode_response(_FETCH_KEY, _FETCH, wire.read()).body
            for part in answer.responses[0].partitions:
                assert part.error_code == 0, part
                records = part.records or b""
                total += len(records)
                offset = offsets[part.partition_index]
                hops = walk_batches(records, expected_offset=offset, min_epoch=0, verify_crc=False).hops
                if hops:
                    offsets[part.partition_index] = hops[-1][2]
                else:
                    del offsets[part.partition_index]
    return total


def _fetch_frame(topic_id: bytes, offsets: dict[int, int]) -> bytes:
    parts = tuple(
        FetchRequest.FetchPartition(
            partition=part, fetch_offset=offset, partition_max_bytes=8 * MB, current_leader_epoch=-1
        )
        for part, offset in offsets.items()
    )
    return request_frame(
        "Fetch",
        _FETCH,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=16 * MB,
        session_epoch=-1,
        topics=(FetchRequest.FetchTopic(topic_id=topic_id, partitions=parts),),
    )


def _consume(site: Site, topic: str, size: int) -> None:
    consumer = site.consumer(**{"group.id": "none", "fetch.message.max.bytes": 8 * MB, "check.crcs": False})
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, part, start) for part in range(PARTITIONS)])
    until, got = time.monotonic() + WAIT_S, 0
    while got < size:
        assert time.monotonic() < until, f"read {got} of {size} bytes"
        got += sum(len(message) for message in consumer.consume(1_000, timeout=1.0) if not message.error())
    consumer.close()
