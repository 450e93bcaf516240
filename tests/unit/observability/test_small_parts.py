"""Backoff, log lines, the disk thread, waiting requests and the lines about metadata."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading

import pytest
from msgspec.structs import fields, replace

from metaquorum.controller.events import Answer, RequestArrived
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import FeaturesImage, MetadataImage
from metaquorum.metadata.image.image import BrokersImage
from metaquorum.metadata.image.types import BrokerRegistration, Provenance
from metaquorum.metadata.requests.common import DescribeQuorumRequest, Done, RegisterBrokerRequest
from metaquorum.metadata.requests.status import (
    BrokerControlState,
    BrokerControlStatus,
    Counters,
    NodeStatus,
)
from metaquorum.network.backoff import Backoff, BackoffPolicy
from metaquorum.node.node_runner import DiskThread
from metaquorum.observability.logging import (
    JsonFormatter,
    TextFormatter,
    log_metadata,
    set_log_context,
    set_up_logging,
)
from metaquorum.observability.metadata_log import MetadataLines
from metaquorum.observability.metrics.statistics import LoopStatistics, RequestStatistics
from metaquorum.proto import admin_pb2 as admin
from metaquorum.rpc.messages.tables import NODE, NodeReport
from metaquorum.rpc.requests import WaitingRequests, request_name


def test_backoff_grows_to_its_bound_within_its_jitter_and_starts_over() -> None:
    policy = BackoffPolicy(initial_ms=20, multiplier=2.0, max_ms=200, jitter=0.2)
    for failures, nominal in enumerate([20, 40, 80, 160, 200, 200], start=1):
        delays = {policy.delay_ms(failures, random.Random(seed)) for seed in range(200)}
        assert min(delays) >= nominal * 0.8 - 1 and max(delays) <= nominal * 1.2 + 1
        assert len(delays) > 3
    assert policy.delay_ms(10_000, random.Random(1)) <= 240
    backoff = Backoff(BackoffPolicy(initial_ms=20, jitter=0.0), random.Random(1))
    assert backoff.remaining_ms(0) == 0
    assert [backoff.failed(100), backoff.remaining_ms(100), backoff.remaining_ms(115)] == [20, 20, 5]
    assert backoff.failed(120) == 40
    backoff.succeeded()
    assert (backoff.remaining_ms(121), backoff.failed(121)) == (0, 20)


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("n", logging.WARNING, "f", 1, message, (), None)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_both_formats_of_a_line() -> None:
    line = record("broker 3 is fenced", offset=7, source="replayed")
    assert TextFormatter().format(line) == (
        "2023-11-14T22:13:20.250Z WARNING broker 3 is fenced (offset=7 source=replayed)"
    )
    assert json.loads(JsonFormatter().format(line)) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "message": "broker 3 is fenced",
        "offset": 7,
        "source": "replayed",
    }


async def test_the_disk_thread_keeps_order_and_stops_at_a_failure() -> None:
    done: list[tuple[str, str | None]] = []
    finished = asyncio.Event()
    loop_thread = threading.get_ident()
    ran: list[str] = []
    disk = DiskThread(asyncio.get_running_loop())

    def work(name: str, error: Exception | None = None) -> None:
        def run() -> None:
            assert threading.get_ident() != loop_thread
            ran.append(name)
            if error is not None:
                raise error

        def told(failure: BaseException | None) -> None:
            assert threading.get_ident() == loop_thread
            done.append((name, None if failure is None else str(failure)))
            if name == "last":
                finished.set()

        disk.submit(run, told)

    for number in range(20):
        work(str(number))
    work("bad", OSError("EIO"))
    work("last")
    await asyncio.wait_for(finished.wait(), 60)
    await asyncio.to_thread(disk.close)
    assert ran == [*map(str, range(20)), "bad"]  # nothing is done behind a failure
    assert done == [*((str(number), None) for number in range(20)), ("bad", "EIO"), ("last", "EIO")]


class StandingClock:
    def monotonic_ms(self) -> int:
        return 77

    def wall_ms(self) -> int:
        return 0


async def test_requests_wait_for_their_own_answers() -> None:
    submitted: list[RequestArrived] = []
    counted = RequestStatistics()
    requests = WaitingRequests(lambda event: submitted.append(event) or True, StandingClock(), counted)
    first = asyncio.create_task(requests.ask(DescribeQuorumRequest()))
    second = asyncio.create_task(requests.ask(DescribeQuorumRequest()))
    third = asyncio.create_task(requests.ask(DescribeQuorumRequest()))
    await asyncio.sleep(0)
    assert [event.arrived_ms for event in submitted] == [77] * 3 and len(requests) == 3
    refused = ApiError(ErrorCode.INVALID_REQUEST, "no")
    requests.answer(Answer(key=submitted[1].key, response=refused))
    assert await second == refused
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    requests.answer(Answer(key=submitted[0].key, response=Done()))  # its caller is gone
    stopping = ApiError(ErrorCode.NOT_CONTROLLER, "stopping")
    requests.refuse_all(stopping)
    assert await third == stopping and len(requests) == 0
    assert counted.times_ms["DescribeQuorum"].count == 2
    assert counted.errors == {
        ("DescribeQuorum", "INVALID_REQUEST"): 1,
        ("DescribeQuorum", "NOT_CONTROLLER"): 1,
    }
    assert counted.abandoned == {"DescribeQuorum": 1}


def test_requests_have_kafkas_names() -> None:
    assert request_name(DescribeQuorumRequest()) == "DescribeQuorum"
    register = RegisterBrokerRequest(
        broker_id=1, cluster_id="c", incarnation_id=b"", endpoints=(), features=(), rack=None, directories=()
    )
    assert request_name(register) == "BrokerRegistration"


async def test_a_full_inbox_is_busy() -> None:
    requests = WaitingRequests(lambda event: False, StandingClock())
    answer = await requests.ask(DescribeQuorumRequest())
    assert isinstance(answer, ApiError)
    assert answer.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED and answer.retriable
    assert len(requests) == 0


def image_with(offset: int, *brokers: BrokerRegistration) -> MetadataImage:
    by_id = {broker.broker_id: broker for broker in brokers}
    return MetadataImage(
        provenance=Provenance(offset, 1, 5), brokers=BrokersImage(by_id, dict.fromkeys(by_id, offset))
    )


def test_lines_about_brokers_say_whether_they_are_replayed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broker = BrokerRegistration(broker_id=3, epoch=10, incarnation_id=bytes(16))
    lines = MetadataLines(MetadataImage())
    unfenced = replace_broker(broker, fenced=False)
    lines.moved(image_with(11, broker), 12)
    lines.moved(image_with(12, unfenced), 12)
    lines.moved(image_with(13, replace_broker(unfenced, in_controlled_shutdown=True)), 13)
    lines.moved(image_with(14), 14)
    told = [(entry.message, entry.offset, entry.source) for entry in caplog.records]  # type: ignore[attr-defined]
    assert told == [
        ("broker 3 registered with epoch 10", 11, "replayed"),
        ("broker 3 is unfenced (epoch 10)", 12, "replayed"),
        ("caught up with the log: brokers 1, topics 0, partitions 0", 12, "replayed"),
        ("broker 3 is in controlled shutdown", 13, "live"),
        ("broker 3 was unregistered", 14, "live"),
    ]


def test_a_feature_that_goes_up_and_off_again_is_told_both_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = MetadataLines(MetadataImage())
    on = MetadataImage(features=FeaturesImage(finalized={"eligible.leader.replicas.version": 1}))
    lines.moved(on, 1)
    lines.moved(MetadataImage(), 2)
    told = [entry.message for entry in caplog.records]
    assert told == [f"eligible.leader.replicas.version is at level {level}" for level in (1, 0)]


def replace_broker(broker: BrokerRegistration, **changes: object) -> BrokerRegistration:
    import msgspec

    return msgspec.structs.replace(broker, **changes)


def test_json_lines_say_how_the_node_is_unless_the_line_knows_better(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    now = {"epoch": 3, "offset": 10, "broker_epoch": 7}
    monkeypatch.setattr("metaquorum.observability.logging._context", dict)
    set_up_logging("json", "info", role="broker", node_id=101)
    log = logging.getLogger("test.context")
    log.info("before")
    set_log_context(lambda: now)
    log.info("something")
    now["offset"] = 12
    log_metadata(log, "broker 5 is fenced", offset=11, epoch=2, source="live", broker_id=5, broker_epoch=4)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for line in lines:
        assert (line.pop("role"), line.pop("node_id"), line.pop("level")) == ("broker", 101, "info")
        del line["time"]
    assert lines == [
        {"message": "before"},
        {"message": "something", "epoch": 3, "offset": 10, "broker_epoch": 7},
        {
            "message": "broker 5 is fenced",
            "offset": 11,
            "epoch": 2,
            "source": "live",
            "broker_id": 5,
            "broker_epoch": 4,
        },
    ]


# What a controller says of itself survives protobuf whole, absent and zero told apart.


BROKER = BrokerControlStatus(
    broker_id=1,
    epoch=2**40,
    state=BrokerControlState.CONTROLLED_SHUTDOWN,
    rack="",
    listeners=("PLAINTEXT://a:1", "SSL://a:2"),
    lease_remaining_ms=0,
    applied_offset=-1,
)
UNSEEN = replace(BROKER, broker_id=2, rack=None, lease_remaining_ms=None, applied_offset=None)

# Every number differs from every other, so no two fields can be mixed up unseen.
STATUS = NodeStatus(
    node_id=3000,
    directory_id=bytes(range(16)),
    cluster_id="Xk7gN1qkQ3uWm5dJ3v5c2A",
    kraft_version=31,
    min_kraft_version=32,
    max_kraft_version=33,
    role="leader",
    epoch=5,
    leader_id=0,
    voted_id=3001,
    is_observer=False,
    is_active=True,
    high_watermark=90,
    log_start_offset=10,
    log_end_offset=2**50,
    synced_offset=95,
    committed_offset=89,
    applied_offset=99,
    last_snapshot_offset=11,
    metadata_version=19,
    pending_batches=4,
    answers_waiting=6,
    work=("fence 1", "move 2"),
    topics=7,
    partitions=21,
    sessions=1,
    brokers=(BROKER, UNSEEN),
    counters=Counters(*range(101, 101 + len(fields(Counters)))),
)
LOOP = LoopStatistics(*range(201, 201 + len(fields(LoopStatistics))))


@pytest.mark.parametrize(
    "status",
    [
        STATUS,
        replace(
            STATUS, leader_id=None, voted_id=None, high_watermark=-1, is_active=False, brokers=(), work=()
        ),
        replace(STATUS, role="follower", voted_id=0, is_observer=True),
    ],
    ids=["active", "doubting", "observer"],
)
def test_a_report_comes_back_as_it_was(status: NodeStatus) -> None:
    sent = NODE.to_pb(NodeReport(status=status, loop=LOOP)).SerializeToString()
    assert NODE.from_pb(admin.DescribeNodeResponse.FromString(sent)) == NodeReport(status=status, loop=LOOP)


@pytest.mark.parametrize(
    ("message", "values"), [(admin.NodeCounters, Counters), (admin.LoopStatistics, LoopStatistics)]
)
def test_no_figure_is_left_behind(message: type, values: type) -> None:
    assert [field.name for field in message.DESCRIPTOR.fields] == [each.name for each in fields(values)]  # type: ignore[attr-defined]


def test_a_state_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="hibernating"):
        NODE.from_pb(admin.DescribeNodeResponse(brokers=[admin.BrokerStatus(state="hibernating")]))
