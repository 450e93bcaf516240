"""A broker with thousands of replicas: its start, its restart after kill -9, idling, and a dead directory.

A controller and two brokers with two directories each as processes; every partition has a replica on both,
and broker 0 leads all of them. The directory is made to fail by the broker's own test hook: every call to it
returns EIO.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from metaquorum.clients.admin.cluster import elect_leaders
from metaquorum.clients.admin.topics import look_up_topics
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.requests.partitions import ElectionResult
from tests.bench.figures import Figure
from tests.bench.quorum import cpu_seconds
from tests.e2e.broken_disks import FaultFile
from tests.e2e.cluster import HOST, Cluster, Node, client_loop

TOPIC = "many"
CALL_S = 300.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=2_000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)


def run(options: argparse.Namespace) -> list[Figure]:
    count = options.replicas
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        Cluster(Path(directory), controllers=1, brokers=2, log_dirs=2) as cluster,
    ):
        faults = FaultFile(Path(directory) / "faults.json")
        victim = cluster.brokers[0]
        for node in cluster.nodes:
            node.start(environment=faults.environment if node is victim else None)
        cluster.start()
        lists = tuple((0, 1) for _ in range(count))
        cluster.create_topic(TOPIC, assignments=lists)
        began = time.perf_counter()
        touch_all(cluster, count)
        made_s = time.perf_counter() - began
        figures.append(Figure(name=f"{count:,} partitions made and written once", value=made_s, unit="s"))
        restarted(cluster, victim, faults, kill=False)
        clean_s = restarted(cluster, victim, faults, kill=False)
        figures.append(Figure(name="start after a clean shutdown", value=clean_s, unit="s", at_most=5))
        touch_all(cluster, count)
        killed_s = restarted(cluster, victim, faults, kill=True)
        figures.append(Figure(name="restart after kill -9", value=killed_s, unit="s", at_most=8))
        used, start = cpu_seconds(victim.pid), time.monotonic()
        time.sleep(options.idle_seconds)
        share = (cpu_seconds(victim.pid) - used) / (time.monotonic() - start)
        figures.append(Figure(name="CPU while idle", value=share, unit="cores", at_most=0.15))
        figures += dead_directory(cluster, victim, faults, count)
    return figures


def producer_of(cluster: Cluster) -> Producer:
    """With acks=all. Metadata of a partition that has no leader yet is requested again soon."""
    servers = ",".join(f"{HOST}:{broker.kafka_port}" for broker in cluster.brokers)
    quick = {"topic.metadata.refresh.fast.interval.ms": 50, "retry.backoff.max.ms": 200}
    return Producer({"bootstrap.servers": servers, **quick})


def touch_all(cluster: Cluster, count: int) -> None:
    """A message in every partition, acknowledged by all in-sync replicas."""
    producer, failed = producer_of(cluster), []
    for partition in range(count):
        producer.produce(
            TOPIC, b"here", partition=partition, on_delivery=lambda error, _: error and failed.append(error)
        )
        producer.poll(0)
    if producer.flush(CALL_S) or failed:
        raise RuntimeError(f"messages were not acknowledged: {failed[:1]}")


def restarted(cluster: Cluster, victim: Node, faults: FaultFile, *, kill: bool) -> float:
    """Seconds from its start until it is unfenced; then everything is in sync and led by it again."""
    if kill:
        victim.kill()
        cluster.wait_brokers({victim.node_id: "fenced"})
    else:
        victim.stop()
    began = time.perf_counter()
    victim.start(environment=faults.environment)
    cluster.wait_brokers({victim.node_id: "running"})
    took_s = time.perf_counter() - began
    cluster.wait(lambda: all(len(each.isr) == 2 for each in partitions(cluster)), "full ISRs", 120)
    preferred(cluster)
    cluster.wait(lambda: not led_elsewhere(cluster, victim), f"{victim.name} to lead everything", 60)
    return took_s


def preferred(cluster: Cluster) -> tuple[ElectionResult, ...]:
    return cluster.kafka(lambda client: elect_leaders(client, unclean=False, partitions=None))


def partitions(cluster: Cluster) -> Sequence[PartitionInfo]:
    return cluster.partitions(TOPIC)


def led_elsewhere(cluster: Cluster, victim: Node) -> int:
    return sum(each.leader != victim.node_id for each in partitions(cluster))


def dead_directory(cluster: Cluster, victim: Node, faults: FaultFile, count: int) -> list[Figure]:
    """From the first failed write until every partition of the directory has another leader."""
    lost = victim.log_dirs[0]
    (registration,) = [each for id_, each in cluster.registrations().items() if id_ == victim.node_id]
    held: dict[bytes | None, list[int]] = {each: [] for each in registration.directories}
    for partition in partitions(cluster):
        held[partition.directory_of(victim.node_id)].append(partition.index)
    here = next(iter(lost.glob(f"{TOPIC}-*"))).name.rpartition("-")[2]
    hurt = next(each for each in held.values() if int(here) in each)
    took_s = client_loop().call(_until_led(cluster, victim, faults, lost, hurt), CALL_S)
    return [
        Figure(name="leaders in the directory that dies", value=len(hurt), unit=""),
        Figure(name="failed write to all led elsewhere", value=took_s, unit="s", at_most=1.0),
    ]


async def _until_led(cluster: Cluster, victim: Node, faults: FaultFile, lost: Path, hurt: list[int]) -> float:
    wanted, producer = set(hurt), producer_of(cluster)
    producer.produce(TOPIC, b"before", partition=hurt[0])
    if producer.flush(CALL_S):
        raise RuntimeError("no message was acknowledged")
    survivor = next(node for node in cluster.brokers if node is not victim)
    async with KafkaClient(f"{HOST}:{survivor.kafka_port}") as client:
        faults.add(lost, "eio")
        began = time.perf_counter()
        producer.produce(TOPIC, b"after", partition=hurt[0])
        producer.poll(0)
        while True:
            (topic,) = await look_up_topics(client, [TOPIC])
            leaders = [each.leader for each in topic.partitions if each.index in wanted]
            if all(leader not in (-1, victim.node_id) for leader in leaders):
                return time.perf_counter() - began
            await asyncio.sleep(0.02)
