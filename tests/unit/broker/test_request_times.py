"""What is counted of requests for partition data: names, times, traffic, errors, and who gave up."""

from __future__ import annotations

from metaquorum.broker.server.data.requests import count_traffic, errors_of, request_name, timed
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.observability.metrics.statistics import NodeStatistics, TrafficStatistics
from metaquorum.storage.batches.batch import Batches, encode_batch

KEY, OTHER = (bytes(15) + b"\x01", 0), (bytes(15) + b"\x01", 1)


def batch(*values: bytes) -> bytes:
    return encode_batch(base_offset=0, leader_epoch=-1, timestamp_ms=1_000, values=list(values))


def produce(*records: bytes) -> api.ProduceRequest:
    batches = zip((KEY, OTHER), map(Batches.arrived, records), strict=False)
    parts = tuple(api.ProducePartition(key=key, batch=each) for key, each in batches)
    return api.ProduceRequest(acks=-1, timeout_ms=100, partitions=parts)


def fetch(replica_id: int = api.CONSUMER) -> api.FetchRequest:
    part = api.FetchPartition(key=KEY, fetch_offset=0, max_bytes=100)
    return api.FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=1, max_bytes=100, partitions=(part,)
    )


def fetched(*records: bytes, error: ErrorCode = ErrorCode.NONE) -> api.FetchResponse:
    parts = tuple(api.FetchedPartition(key=KEY, records=each, error=error) for each in records)
    return api.FetchResponse(session_id=0, partitions=parts)


def test_names_tell_consumers_from_followers() -> None:
    assert request_name(produce()) == "Produce"
    assert request_name(fetch()) == "FetchConsumer"
    assert request_name(fetch(replica_id=3)) == "FetchFollower"
    assert request_name(api.ListOffsetsRequest(partitions=())) == "ListOffsets"


def test_only_partitions_that_took_their_records_count_as_traffic() -> None:
    traffic = TrafficStatistics()
    taken, refused = batch(b"a", b"b", b"c"), batch(b"d")
    answer = api.ProduceResponse(
        results=(
            api.ProduceResult(key=KEY, base_offset=7),
            api.ProduceResult(key=OTHER, error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        )
    )
    count_traffic(traffic, produce(taken, refused), answer)
    assert (traffic.bytes_in, traffic.records_in, traffic.failed_produces) == (len(taken), 3, 1)
    count_traffic(traffic, produce(taken, refused), ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced"))
    assert (traffic.bytes_in, traffic.records_in, traffic.failed_produces) == (len(taken), 3, 3)


def test_what_consumers_and_followers_get_is_counted_apart() -> None:
    traffic = TrafficStatistics()
    count_traffic(traffic, fetch(), fetched(b"12345", b"67"))
    count_traffic(traffic, fetch(replica_id=2), fetched(b"123"))
    count_traffic(traffic, fetch(), fetched(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE))
    count_traffic(traffic, fetch(), ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced"))
    assert (traffic.bytes_out, traffic.replication_bytes_out, traffic.failed_fetches) == (7, 3, 2)


def test_one_code_counts_once_an_answer() -> None:
    failed = fetched(b"", b"", error=ErrorCode.KAFKA_STORAGE_ERROR)
    assert errors_of(failed) == {"KAFKA_STORAGE_ERROR"}
    assert errors_of(fetched(b"x")) == set()
    assert errors_of(ApiError(ErrorCode.INVALID_REQUEST, "no")) == {"INVALID_REQUEST"}


def test_an_answer_and_a_caller_that_gave_up() -> None:
    stats = NodeStatistics(0)
    answered, given_up = timed(stats, fetch()), timed(stats, fetch(replica_id=2))
    answered(fetched(b"", error=ErrorCode.OFFSET_OUT_OF_RANGE))
    given_up(None)
    assert stats.requests.times_ms["FetchConsumer"].count == 1
    assert stats.requests.errors == {("FetchConsumer", "OFFSET_OUT_OF_RANGE"): 1}
    assert stats.requests.abandoned == {"FetchFollower": 1}
    assert stats.traffic.failed_fetches == 1
