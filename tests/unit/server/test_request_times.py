"""What metrics count of a request for partition data: its name, its errors, what it carried, how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.server.data.requests import count_traffic, errors_of, request_name, timed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.observability.metrics.statistics import NodeStatistics, TrafficStatistics
from metaquorum.storage.batches.batch import Batches
from tests.broker_calls import batch

FULL = ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "full")
KEYS = [(b"t" * 16, at) for at in range(3)]
ONE, TWO, THREE = batch([b"one"]), batch([b"two", b"three"]), batch([b"three", b"two", b"one"])


def fetch(partitions: int = 2, replica_id: int = core.CONSUMER) -> core.FetchRequest:
    parts = tuple(core.FetchPartition(key=key, fetch_offset=0, max_bytes=1) for key in KEYS[:partitions])
    return core.FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1, partitions=parts)


def produce() -> core.ProduceRequest:
    batches = zip(KEYS, map(Batches.arrived, (ONE, TWO, THREE)), strict=True)
    parts = tuple(core.ProducePartition(key=key, batch=each) for key, each in batches)
    return core.ProduceRequest(acks=-1, timeout_ms=1, partitions=parts)


def fetched(*parts: bytes | ErrorCode) -> core.FetchResponse:
    found = [
        core.FetchedPartition(key=key, error=part)
        if isinstance(part, ErrorCode)
        else core.FetchedPartition(key=key, records=part)
        for key, part in zip(KEYS, parts, strict=False)
    ]
    return core.FetchResponse(session_id=0, partitions=tuple(found))


def produced(*codes: ErrorCode) -> core.ProduceResponse:
    results = [core.ProduceResult(key=key, error=code) for key, code in zip(KEYS, codes, strict=False)]
    return core.ProduceResponse(results=tuple(results))


NONE, MOVED, BAD = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CORRUPT_MESSAGE


def test_requests_have_kafkas_names() -> None:
    assert request_name(fetch()) == "FetchConsumer"
    assert [request_name(fetch(replica_id=each)) for each in (0, 7)] == ["FetchFollower"] * 2
    assert request_name(produce()) == "Produce"
    assert request_name(core.InitProducerIdRequest()) == "InitProducerId"


@pytest.mark.parametrize(
    ("request_", "response", "counts"),
    [
        (produce(), produced(NONE, NONE), {"bytes_in": len(ONE + TWO), "records_in": 3}),
        (
            produce(),
            produced(NONE, MOVED, NONE),
            {"bytes_in": len(ONE + THREE), "records_in": 4, "failed_produces": 1},
        ),
        (produce(), produced(BAD, MOVED, BAD), {"failed_produces": 3}),
        (produce(), FULL, {"failed_produces": 3}),
        (fetch(), fetched(ONE, TWO), {"bytes_out": len(ONE + TWO)}),
        (fetch(), fetched(ONE, MOVED), {"bytes_out": len(ONE), "failed_fetches": 1}),
        (
            fetch(replica_id=0),
            fetched(ONE, TWO, BAD),
            {"replication_bytes_out": len(ONE + TWO), "failed_fetches": 1},
        ),
        (fetch(), FULL, {"failed_fetches": 2}),
        (fetch(partitions=0), FULL, {"failed_fetches": 1}),
        (core.InitProducerIdRequest(), FULL, {}),
    ],
)
def test_traffic_is_what_was_taken_and_given(request_: Any, response: Any, counts: dict[str, int]) -> None:
    """On top of what was counted before."""
    before = {name: 100 * at for at, name in enumerate(TrafficStatistics.__slots__)}
    traffic = TrafficStatistics(**before)
    count_traffic(traffic, request_, response)
    after = {name: getattr(traffic, name) for name in before}
    assert {name: after[name] - before[name] for name in before if after[name] != before[name]} == counts


@pytest.mark.parametrize(
    ("response", "names"),
    [
        (FULL, {"THROTTLING_QUOTA_EXCEEDED"}),
        (produced(NONE, NONE), set()),
        (produced(MOVED, MOVED, BAD), {"NOT_LEADER_OR_FOLLOWER", "CORRUPT_MESSAGE"}),
        (fetched(ONE, MOVED, MOVED), {"NOT_LEADER_OR_FOLLOWER"}),
        (
            core.ListOffsetsResponse(
                results=(core.ListedOffset(key=KEYS[0]), core.ListedOffset(key=KEYS[1], error=BAD))
            ),
            {"CORRUPT_MESSAGE"},
        ),
        (core.InitProducerIdResponse(producer_id=1, producer_epoch=2), set()),
    ],
)
def test_each_code_of_an_answer_counts_once(response: Any, names: set[str]) -> None:
    assert errors_of(response) == names
    statistics = NodeStatistics(0)
    ended = timed(statistics, fetch())
    ended(response)
    assert statistics.requests.errors == {("FetchConsumer", name): 1 for name in names}
    assert statistics.requests.abandoned == {}


def test_a_request_is_timed_from_its_arrival_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: clock[0])
    statistics = NodeStatistics(0)
    first, second, gone = timed(statistics, fetch()), timed(statistics, produce()), timed(statistics, fetch())
    clock[0] += 1_500_000
    first(fetched(ONE))
    clock[0] += 40_000_000
    second(FULL)
    gone(None)
    times = {name: (each.count, each.total) for name, each in statistics.requests.times_ms.items()}
    assert times == {"FetchConsumer": (1, 1.5), "Produce": (1, 41.5)}
    assert statistics.requests.abandoned == {"FetchConsumer": 1}
    assert statistics.traffic.bytes_out == len(ONE) and statistics.traffic.failed_produces == 3
