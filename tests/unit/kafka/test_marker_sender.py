"""Markers are sent until every partition has one, wherever its leader is by then; then the coordinator hears.

Time is the simulator's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.coordinator.transactions.requests import MarkersWritten
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.broker.server.kafka.transactions.markers import MarkerSender
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage, PartitionInfo
from metaquorum.metadata.requests import data as core
from tests.sim.engine import Engine
from tests.sim.kafka.loop import SimulatedLoop

STATE, TOPIC = "__transaction_state", "t"
ME = 1


def image_of(leaders: dict[str, tuple[int, ...]]) -> MetadataImage:
    """Topics by name, with the leader of each partition; -1: none."""
    builder = ImageBuilder(MetadataImage())
    for name, by_index in leaders.items():
        topic_id = name[:2].encode() * 8
        builder.topics.add_topic(topic_id, name)
        for index, leader in enumerate(by_index):
            entry = builder.topics.by_id.get(topic_id)
            assert entry is not None
            info = PartitionInfo(
                topic_id=topic_id,
                index=index,
                replicas=(ME, 2),
                isr=(ME, 2),
                leader=leader,
                leader_epoch=4,
                partition_epoch=0,
                leader_recovery_state=0,
                directories=(bytes(16), bytes(16)),
            )
            builder.topics.put_partition(entry, info)
    builder.offset += 1
    return builder.freeze()


class Shell:
    """A broker that leads everything, whose replicas answer as `codes` say, one after the other."""

    def __init__(self, *leaders: int) -> None:
        self.engine = Engine(1)
        self.loop = SimulatedLoop(self.engine)
        self.image = image_of({STATE: (ME,), TOPIC: leaders})
        self.codes: list[ErrorCode] = []
        self.written: list[tuple[int, ...]] = []
        self.told: list[MarkersWritten] = []
        self.sender = MarkerSender(
            self,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            lambda: self.image,
            lambda: 1_000,
            topic=STATE,
            broker_id=ME,
            timeout_ms=1_000,
        )

    def begin(self, request: Any) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        if isinstance(request, core.CoordinatorRequest):
            self.told.append(request.body)
            future.set_result(core.CoordinatorResponse(body=ErrorCode.NONE))
            return future
        self.written.append(tuple(part.key[1] for part in request.partitions))
        results = [
            core.ProduceResult(key=part.key, error=self.codes.pop(0) if self.codes else ErrorCode.NONE)
            for part in request.partitions
        ]
        future.set_result(core.ProduceResponse(results=tuple(results)))
        return future

    def send(self, *indexes: int, ms: float = 2_000) -> None:
        effect = SendTxnMarkers(
            partition=0,
            transactional_id="x",
            producer_id=7,
            producer_epoch=0,
            committed=True,
            partitions=tuple((TOPIC, index) for index in indexes),
        )
        self.loop.call_soon(self.sender.send, effect)
        self.run(ms)

    def run(self, ms: float) -> None:
        self.engine.run_for(ms, lambda: None)


def test_one_request_for_all_and_then_the_coordinator_hears() -> None:
    shell = Shell(ME, ME)
    shell.send(0, 1)
    assert shell.written == [(0, 1)]
    assert [each.producer_id for each in shell.told] == [7]


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_partition_that_has_none_is_asked_again(code: ErrorCode) -> None:
    shell = Shell(ME, ME)
    shell.codes = [ErrorCode.NONE, code, code]
    shell.send(0, 1)
    assert shell.written == [(0, 1), (1,), (1,)]
    assert len(shell.told) == 1


def test_a_partition_without_a_leader_is_waited_for() -> None:
    shell = Shell(ME, -1)
    shell.sender._brokers = _Nobody()  # type: ignore[assignment]
    shell.send(0, 1, ms=5_000)
    assert shell.written == [(0,)]
    assert shell.told == []
    shell.image = image_of({STATE: (ME,), TOPIC: (ME, ME)})
    shell.run(2_000)
    assert shell.written == [(0,), (1,)]
    assert len(shell.told) == 1


class _Nobody:
    async def ask(self, broker_id: int, body: Any, *, version: int | None = None) -> Any:
        raise TimeoutError


def test_a_deleted_topic_needs_no_marker() -> None:
    shell = Shell(ME)
    shell.send(0, 5)
    assert shell.written == [(0,)]
    assert len(shell.told) == 1


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_coordinator_that_was_replaced_stops(code: ErrorCode) -> None:
    shell = Shell(ME)
    shell.codes = [code]
    shell.send(0)
    shell.run(5_000)
    assert shell.written == [(0,)]
    assert shell.told == []
