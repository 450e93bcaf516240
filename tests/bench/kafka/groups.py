"""Offset commits, transactions, and a group of 50 members that one more joins."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import confluent_kafka

from metaquorum.clients.kafka.connection import NodeConnection, connect
from metaquorum.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from tests.bench.figures import Figure, percentile
from tests.bench.kafka.site import MIB, WAIT_S, Site, using
from tests.e2e.cluster import HOST, client_loop

MEMBERS = 50
PARTITIONS = 3
PER_TRANSACTION = 10
_MEMBER_ID_REQUIRED, _REBALANCE_IN_PROGRESS = 79, 27
_JOIN, _SYNC, _HEARTBEAT = 5, 3, 3
_HEARTBEAT_S = 0.2


def commits(site: Site, options: argparse.Namespace) -> list[Figure]:
    """One commit of one offset after another."""
    site.create("committed", 1)
    consumer = site.consumer(**{"group.id": "committing"})
    waits = []

    def work() -> None:
        for offset in range(options.singles):
            begun = time.perf_counter()
            place = confluent_kafka.TopicPartition("committed", 0, offset)
            consumer.commit(offsets=[place], asynchronous=False)
            waits.append((time.perf_counter() - begun) * 1000)

    consumer.commit(offsets=[confluent_kafka.TopicPartition("committed", 0, 0)], asynchronous=False)
    used = using(site, work)
    consumer.close()
    return [
        Figure(name="commit of an offset, p50", value=statistics.median(waits), unit="ms", at_most=3),
        Figure(name="commit of an offset, p99", value=percentile(waits, 0.99), unit="ms"),
        Figure(name="  CPU of the three brokers", value=used.brokers_s * 1000 / len(waits), unit="ms/commit"),
    ]


def transactions(site: Site, options: argparse.Namespace) -> list[Figure]:
    """One producer: 10 messages to 3 partitions and the commit, one transaction after another."""
    site.create("transacted", PARTITIONS)
    producer = site.producer(**{"transactional.id": "bench", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    count = max(20, options.singles // 2)

    def one() -> None:
        producer.begin_transaction()
        for number in range(PER_TRANSACTION):
            producer.produce("transacted", b"v" * 100, partition=number % PARTITIONS)
        producer.commit_transaction(WAIT_S)

    def work() -> None:
        for _ in range(count):
            one()

    one()
    used = using(site, work)
    name = f"transactions of {PER_TRANSACTION} messages over {PARTITIONS} partitions"
    return [
        Figure(name=name, value=count / used.took_s, unit="per second", at_least=300),
        Figure(name="  CPU of the three brokers", value=used.brokers_s * 1000 / count, unit="ms each"),
    ]


def rebalance(site: Site, options: argparse.Namespace) -> list[Figure]:
    """49 members are stable and one more joins: from the last JoinGroup of the 50 to the last assignment."""
    site.create("shared", MEMBERS)
    for _ in range(2):  # the second request finds a coordinator that has loaded
        coordinator = site.wire(0, "FindCoordinator", 4, key_type=0, coordinator_keys=("crowd",))
        time.sleep(2 if coordinator.coordinators[0].error_code else 0)
    port = coordinator.coordinators[0].port
    figures = client_loop().call(_Crowd(port).measure(), 4 * WAIT_S)
    return [
        Figure(name=f"{MEMBERS} members, last join to last assignment", value=figures, unit="s", at_most=1)
    ]


class _Crowd:
    """Members of one group, each on its own connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._last_join_s = 0.0
        self._wanted = MEMBERS - 1
        self._complete = asyncio.Event()

    async def measure(self) -> float:
        tasks = [asyncio.create_task(self._live()) for _ in range(MEMBERS - 1)]
        try:
            await asyncio.wait_for(self._complete.wait(), WAIT_S)
            self._complete.clear()
            self._wanted = MEMBERS
            tasks.append(asyncio.create_task(self._live()))
            waiting = asyncio.create_task(self._complete.wait())
            await asyncio.wait([waiting, *tasks], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done(), [each.exception() for each in tasks if each.done()]
            return self._done_s - self._last_join_s
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self) -> None:
        wire = await connect(HOST, self._port, client_id="crowd", answer_max_bytes=MIB, timeout_s=WAIT_S)
        member_id = ""
        try:
            while True:
                joined = await self._join(wire, member_id)
                member_id = joined.member_id
                if await self._sync(wire, joined):
                    await self._beat(wire, joined)
        finally:
            wire.close()

    async def _join(self, wire: NodeConnection, member_id: str) -> Any:
        while True:
            request = JoinGroupRequest(
                group_id="crowd",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=(JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b""),),
            )
            self._last_join_s = time.perf_counter()
            answer = (await wire.ask(request, version=_JOIN, timeout_s=WAIT_S)).body
            if not answer.error_code:
                return answer
            member_id = answer.member_id if answer.error_code == _MEMBER_ID_REQUIRED else ""
            await asyncio.sleep(0 if member_id else 0.2)

    async def _sync(self, wire: NodeConnection, joined: Any) -> bool:
        """Whether the member has its assignment."""
        request = SyncGroupRequest(
            group_id="crowd",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=tuple(
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"part")
                for each in joined.members
            ),
        )
        answer = (await wire.ask(request, version=_SYNC, timeout_s=WAIT_S)).body
        return not answer.error_code

    async def _beat(self, wire: NodeConnection, joined: Any) -> None:
        """Until the group rebalances."""
        self._assigned(joined)
        request = HeartbeatRequest(
            group_id="crowd", generation_id=joined.generation_id, member_id=joined.member_id
        )
        code = 0
        while not code:
            await asyncio.sleep(_HEARTBEAT_S)
            code = (await wire.ask(request, version=_HEARTBEAT, timeout_s=WAIT_S)).body.error_code

    def _assigned(self, joined: Any) -> None:
        if joined.generation_id != self._generation:
            self._generation, self._there = joined.generation_id, 0
        self._there += 1
        self._done_s = time.perf_counter()
        if self._there == self._wanted:
            self._complete.set()

    _generation, _there, _done_s = -1, 0, 0.0
