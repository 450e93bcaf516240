"""Simulated brokers that send heartbeats every 2 s and hold metadata fetches at one active controller.

Each broker has what a real one has: a connection on which it fetches the log as an observer and waits for
news, and one for its heartbeats, which carry the offset that it has applied (here: fetched). Both speak
Kafka's protocol. All brokers are
in this process; the clock of a heartbeat runs in it, so a share of every latency is this process's own. NoOp
records are on, as by default.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from metaquorum.clients.kafka.connection import NodeConnection
from metaquorum.clients.kafka.node_messages import FORMS, answer_of
from metaquorum.clients.kafka.raft_client import KafkaWay
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.features import MAX_METADATA_VERSION
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
)
from metaquorum.raft.messages import FetchRequest, FetchResponse
from metaquorum.rpc.transport import PeerAddress
from metaquorum.storage.batches.batch import hop_headers
from tests.bench.bench_commit import leader_of
from tests.bench.figures import Figure, percentile
from tests.bench.log_reader import LogReader
from tests.bench.quorum import channel_to, cpu_seconds, create_at, one_topic, three_controllers
from tests.e2e.cluster import HOST, Cluster, Node, client_loop

FIRST_BROKER = 10_000
HEARTBEAT_S = 2.0
FETCH_WAIT_MS = 2000
FETCH_BYTES = 8 * 1024 * 1024
SETTLE_S = 6.0
AT_ONCE = 50
ANSWER_S = 30.0
WAY = KafkaWay(client_id="bench")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--writes-per-s", type=float, default=0.0, help="topics created meanwhile; each wakes all fetches"
    )


@dataclass(slots=True)
class Seen:
    """What all brokers together saw while it was switched on."""

    on: bool = False
    latencies_ms: list[float] = field(default_factory=list)
    refused: int = 0
    fetches: int = 0


def run(options: argparse.Namespace) -> list[Figure]:
    with three_controllers(broker=False) as cluster:
        try:
            return client_loop().call(measure(cluster, options), options.seconds + 240)
        except Exception:
            print(cluster.report([]), file=sys.stderr)
            raise


async def measure(cluster: Cluster, options: argparse.Namespace) -> list[Figure]:
    leader, epoch = await leader_of(cluster)
    seen = Seen()
    brokers = [
        SimulatedBroker(FIRST_BROKER + at, leader, epoch, cluster.cluster_id, seen)
        for at in range(options.brokers)
    ]
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(each.join(gate) for each in brokers))
    tasks = [asyncio.create_task(work) for each in brokers for work in (each.fetch(), each.heartbeat())]
    if options.writes_per_s:
        tasks.append(asyncio.create_task(write(leader, 1 / options.writes_per_s)))
    try:
        await asyncio.sleep(SETTLE_S)
        gc.collect()
        gc.freeze()
        pids = {node.node_id: node.pid for node in cluster.controllers}
        before = {node_id: cpu_seconds(pid) for node_id, pid in pids.items()}
        own, start = time.process_time(), time.perf_counter()
        seen.on = True
        await asyncio.sleep(options.seconds)
        seen.on = False
        took_s, own = time.perf_counter() - start, time.process_time() - own
        used = {node_id: (cpu_seconds(pid) - before[node_id]) / took_s for node_id, pid in pids.items()}
        ended = [task for task in tasks if task.done()]
        if ended:
            raise RuntimeError(f"{len(ended)} simulated brokers ended: {ended[0].exception()!r}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in brokers:
            each.close()
    return figures_of(options, seen, used, leader.node_id, took_s, own)


def figures_of(
    options: argparse.Namespace, seen: Seen, used: dict[int, float], leader_id: int, took_s: float, own: float
) -> list[Figure]:
    ms = seen.latencies_ms
    return [
        Figure(name="brokers", value=options.brokers, unit=""),
        Figure(name="heartbeats per second", value=len(ms) / took_s, unit="1/s"),
        Figure(name="fetches answered per second", value=seen.fetches / took_s, unit="1/s"),
        Figure(name="heartbeats refused or answered 'fenced'", value=seen.refused, unit="", at_most=0),
        Figure(name="heartbeat, median", value=statistics.median(ms), unit="ms"),
        Figure(name="heartbeat, p99", value=percentile(ms, 0.99), unit="ms", at_most=50),
        Figure(name="heartbeat, worst", value=max(ms), unit="ms"),
        *(
            Figure(
                name=f"CPU of controller {node_id}" + (" (active)" if node_id == leader_id else ""),
                value=share,
                unit="cores",
                at_most=0.5 if node_id == leader_id else None,
            )
            for node_id, share in sorted(used.items())
        ),
        Figure(name="CPU of the process with all simulated brokers", value=own / took_s, unit="cores"),
    ]


class SimulatedBroker:
    """One broker's two connections and what it sends on them."""

    def __init__(self, broker_id: int, leader: Node, leader_epoch: int, cluster_id: str, seen: Seen) -> None:
        self._id = broker_id
        self._cluster_id = cluster_id
        self._seen = seen
        self._directory_id = os.urandom(16)
        self._leader = PeerAddress(HOST, leader.kafka_port)
        self._lifecycle: NodeConnection
        self._epoch = -1
        self._end_offset = 0
        self._last_epoch = self._leader_epoch = leader_epoch
        self._high_watermark = -1

    async def join(self, gate: asyncio.Semaphore) -> None:
        """Registers, and is unfenced by its first heartbeat. It has the log up to its registration, like a
        broker that returns, and fetches what follows. What others registered in the same turn of the
        controller, it says to have, too."""
        async with gate:
            self._lifecycle = await WAY.open(self._leader, timeout_s=ANSWER_S)
            self._epoch = (await self._ask(self._registration())).broker_epoch
            self._end_offset = self._epoch + 1
            answer = await self._beat(beyond=AT_ONCE)
            if answer.is_fenced:
                raise RuntimeError(f"broker {self._id} was not unfenced: {answer}")

    def _registration(self) -> RegisterBrokerRequest:
        return RegisterBrokerRequest(
            broker_id=self._id,
            cluster_id=self._cluster_id,
            incarnation_id=os.urandom(16),
            endpoints=(BrokerEndpoint(name="PLAINTEXT", host=HOST, port=9, security_protocol=0),),
            features=(
                BrokerFeature(
                    name="metadata.version",
                    min_supported_version=1,
                    max_supported_version=MAX_METADATA_VERSION,
                ),
            ),
            rack=None,
            directories=(self._directory_id,),
        )

    async def _beat(self, beyond: int = 0) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._id, broker_epoch=self._epoch, applied_offset=self._end_offset + beyond
        )
        answer: BrokerHeartbeatResponse = await self._ask(request)
        return answer

    async def _ask(self, request: Any) -> Any:
        form = FORMS[type(request)]
        version = self._lifecycle.version(form.api, form.lowest, form.highest)
        body = form.body(request, version)
        response = await self._lifecycle.ask(body, version=version, timeout_s=ANSWER_S)
        answer = answer_of(form, response.body, session_timeout_ms=0)
        if isinstance(answer, ApiError):
            raise RuntimeError(f"broker {self._id} was refused: {answer.message}")
        return answer

    async def heartbeat(self) -> None:
        """Every 2 s by the clock, not after the response."""
        loop = asyncio.get_running_loop()
        at = loop.time() + random.uniform(0, HEARTBEAT_S)
        while True:
            await asyncio.sleep(max(0.0, at - loop.time()))
            at += HEARTBEAT_S
            start = time.perf_counter()
            answer = await self._beat()
            if self._seen.on:
                self._seen.latencies_ms.append((time.perf_counter() - start) * 1e3)
                self._seen.refused += answer.is_fenced

    async def fetch(self) -> None:
        """Follows the log as an observer; what it fetches is looked at and discarded."""
        await asyncio.sleep(random.uniform(0, HEARTBEAT_S))
        reader = LogReader(await WAY.open(self._leader, timeout_s=ANSWER_S))
        try:
            while True:
                self._take(await reader.fetch(self._fetch_request()))
                self._seen.fetches += self._seen.on
        finally:
            reader.close()

    def _fetch_request(self) -> FetchRequest:
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_id=self._id,
            replica_directory_id=self._directory_id,
            epoch=self._leader_epoch,
            fetch_offset=self._end_offset,
            last_fetched_epoch=self._last_epoch,
            high_watermark=self._high_watermark,
            max_wait_ms=FETCH_WAIT_MS,
            max_bytes=FETCH_BYTES,
            read_round=0,
        )

    def _take(self, response: FetchResponse) -> None:
        if response.error or response.epoch != self._leader_epoch:
            raise RuntimeError(f"broker {self._id}: the leader changed or refuses: {response}")
        self._high_watermark = max(self._high_watermark, response.high_watermark)
        if response.diverging is not None or response.snapshot is not None:
            raise RuntimeError(f"broker {self._id}: the leader sends what was not expected: {response}")
        if response.records:
            _, _, self._end_offset, self._last_epoch = hop_headers(response.records)[-1]

    def close(self) -> None:
        self._lifecycle.close()


async def write(leader: Node, every_s: float) -> None:
    channel = channel_to(leader)
    create = create_at(channel)
    try:
        while True:
            await create(one_topic(), timeout=10)
            await asyncio.sleep(every_s)
    finally:
        await channel.close(None)
