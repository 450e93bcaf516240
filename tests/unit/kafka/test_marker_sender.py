"""Markers are sent until every partition has one, wherever its leader is by then; then the coordinator hears.

Time is the simulator's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.broker.coordinator.transaction import MarkersWritten
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.broker.server.kafka.transactions.markers import MarkerSender
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage, PartitionInfo
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.batch import EndMarker, read_marker
from metaquorum.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
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
        self.requests: list[core.ProduceRequest] = []
        self.told: list[MarkersWritten] = []
        self.reports: list[core.CoordinatorRequest] = []
        self.replies: list[ErrorCode | ApiError] = []
        self.seconds: list[float] = []
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
            self.reports.append(request)
            self.seconds.append(self.engine.now_ms / 1_000)
            reply = self.replies.pop(0) if self.replies else ErrorCode.NONE
            future.set_result(reply if isinstance(reply, ApiError) else core.CoordinatorResponse(body=reply))
            return future
        self.seconds.append(self.engine.now_ms / 1_000)
        self.requests.append(request)
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


# ---- partitions that other brokers lead


class Others:
    """Other brokers: keeps what they are asked; `codes` by partition, NONE by default; `error` instead."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.codes: dict[int, ErrorCode] = {}
        self.error: Exception | None = None

    async def ask(self, broker_id: int, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.asked.append((broker_id, body))
        if self.error is not None:
            raise self.error
        message = WriteTxnMarkersResponse
        return message(
            markers=tuple(
                message.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=tuple(
                        message.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=tuple(
                                message.WritableTxnMarkerPartitionResult(
                                    partition_index=at, error_code=self.codes.get(at, ErrorCode.NONE)
                                )
                                for at in topic.partition_indexes
                            ),
                        )
                        for topic in marker.topics
                    ),
                )
                for marker in body.markers
            )
        )


def with_others(*leaders: int) -> tuple[Shell, Others]:
    shell, others = Shell(*leaders), Others()
    shell.sender._brokers = others  # type: ignore[assignment]
    return shell, others


def effect_of(*places: tuple[str, int], committed: bool = True) -> SendTxnMarkers:
    """No two of its values are alike."""
    return SendTxnMarkers(
        partition=0,
        transactional_id="x",
        producer_id=7,
        producer_epoch=3,
        committed=committed,
        partitions=places,
    )


@pytest.mark.parametrize("committed", [False, True])
def test_every_leader_gets_the_same_marker(committed: bool) -> None:
    shell, others = with_others(ME, 2, 3, 2)
    shell.image = image_of({STATE: (ME,), TOPIC: (ME, 2, 3, 2), "other": (3, ME)})
    places = [(TOPIC, at) for at in range(4)] + [("other", 0), ("other", 1)]
    shell.loop.call_soon(shell.sender.send, effect_of(*places, committed=committed))
    shell.run(100)
    kind = WriteTxnMarkersRequest

    def request(*topics: tuple[str, tuple[int, ...]]) -> WriteTxnMarkersRequest:
        marker = kind.WritableTxnMarker(
            producer_id=7,
            producer_epoch=3,
            transaction_result=committed,
            topics=tuple(kind.WritableTxnMarkerTopic(name=name, partition_indexes=at) for name, at in topics),
            coordinator_epoch=4,
        )
        return kind(markers=(marker,))

    assert sorted(others.asked, key=lambda each: each[0]) == [
        (2, request((TOPIC, (1, 3)))),
        (3, request(("other", (0,)), (TOPIC, (2,)))),
    ]
    (own,) = shell.requests
    assert [part.key for part in own.partitions] == [("other"[:2].encode() * 8, 1), (b"t" * 8, 0)]
    assert (own.acks, own.timeout_ms, own.by_coordinator) == (core.ACKS_ALL, 1_000, True)
    for part in own.partitions:
        header = part.batch.headers[0]
        assert (header.producer_id, header.producer_epoch, header.base_timestamp_ms) == (7, 3, 1_000)
        assert read_marker(header, part.batch.data) == EndMarker(committed=committed, coordinator_epoch=4)
    (report,) = shell.reports
    assert (report.topic, report.partition) == (STATE, 0)
    assert report.body == MarkersWritten(transactional_id="x", producer_id=7, producer_epoch=3)


@pytest.mark.parametrize("error", [ConnectionFailed("gone"), TimeoutError()])
def test_a_broker_that_does_not_answer_is_asked_again_ever_more_rarely(error: Exception) -> None:
    shell, others = with_others(2)
    others.error = error
    seconds: list[float] = []
    ask = others.ask

    async def noting(broker_id: int, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        seconds.append(shell.engine.now_ms / 1_000)
        return await ask(broker_id, body)

    others.ask = noting  # type: ignore[method-assign]
    shell.send(0, ms=4_500)
    pauses = [round(after - before, 3) for before, after in pairwise(seconds)]
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    assert shell.told == []
    others.error = None
    shell.run(1_000)
    assert len(shell.told) == 1
    asked = len(others.asked)
    shell.run(5_000)
    assert len(others.asked) == asked


def test_of_another_brokers_partitions_only_those_without_a_marker_are_asked_for_again() -> None:
    shell, others = with_others(2, 2, 2)
    others.codes = {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    shell.send(0, 1, 2, ms=10)
    shell.image = image_of({STATE: (ME,), TOPIC: (2, 3, 2)})
    others.codes = {}
    shell.run(100)
    found = [(leader, body.markers[0].topics[0].partition_indexes) for leader, body in others.asked]
    assert found == [(2, (0, 1, 2)), (3, (1,))]
    assert len(shell.told) == 1


# ---- the report, and the end


@pytest.mark.parametrize(
    ("reply", "asked_again"),
    [
        (ErrorCode.NONE, False),
        (ErrorCode.NOT_COORDINATOR, False),
        (ErrorCode.PRODUCER_FENCED, False),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True),
        (ApiError(ErrorCode.NOT_COORDINATOR, "moved"), False),
        (ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "busy"), True),
    ],
)
def test_the_coordinator_hears_until_it_knows_or_was_replaced(
    reply: ErrorCode | ApiError, asked_again: bool
) -> None:
    shell = Shell(ME)
    shell.replies = [reply, reply]
    shell.send(0, ms=5_000)
    assert shell.written == [(0,)]
    assert shell.seconds[1:] == pytest.approx([0, 1, 2] if asked_again else [0], abs=0.01)


def deposed(shell: Shell) -> None:
    shell.image = image_of({STATE: (2,), TOPIC: (ME,)})


def without_coordinators(shell: Shell) -> None:
    shell.image = image_of({TOPIC: (ME,)})


def closed(shell: Shell) -> None:
    shell.sender.close()


@pytest.mark.parametrize("ends", [deposed, without_coordinators, closed])
@pytest.mark.parametrize("reporting", [False, True])
def test_a_broker_that_no_longer_coordinates_stops(ends: Callable[[Shell], None], reporting: bool) -> None:
    """While it writes markers, and while it reports them."""
    shell = Shell(ME)
    busy = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if reporting:
        shell.replies = [busy] * 9
    else:
        shell.codes = [ErrorCode.NOT_ENOUGH_REPLICAS] * 99
    shell.send(0, ms=15)
    before = len(shell.seconds)
    assert before == 1 + reporting
    ends(shell)
    shell.run(1_100)
    # It may have been asleep before the end: the image is looked at before each attempt to write.
    assert len(shell.seconds) - before <= (reporting and ends is not closed)
    before = len(shell.seconds)
    shell.run(5_000)
    assert len(shell.seconds) == before


def test_a_later_decision_ends_the_earlier_one() -> None:
    shell = Shell(ME)
    shell.codes = [ErrorCode.NOT_ENOUGH_REPLICAS]
    shell.send(0, ms=5)
    shell.loop.call_soon(shell.sender.send, effect_of((TOPIC, 0), committed=False))
    shell.run(2_000)
    assert shell.written == [(0,), (0,)]
    assert [each.producer_epoch for each in shell.told] == [3]
    assert shell.sender._under_way == {}


def test_partitions_that_do_not_exist_need_no_request() -> None:
    shell = Shell(ME)
    shell.loop.call_soon(shell.sender.send, effect_of(("gone", 0)))
    shell.run(100)
    assert shell.written == [] and len(shell.told) == 1


async def test_a_bug_in_a_send_reaches_the_loop() -> None:
    """The caller has an answer to bring, and does not hear it."""
    shell = Shell(ME)
    shell.sender._image = SimpleNamespace  # type: ignore[assignment,return-value]
    raised: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context.get("exception")))
    shell.sender.send(effect_of((TOPIC, 0)))
    await asyncio.sleep(0)
    assert [type(each) for each in raised] == [AttributeError]
