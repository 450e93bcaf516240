"""Requests for data and their answers survive protobuf whole, absent and zero told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.runtime.api import data as codec
from metaquorum.storage.types import LogPosition

IDS = st.binary(min_size=16, max_size=16)
INDEX = st.integers(0, 2**31 - 1)
KEYS = st.tuples(IDS, INDEX)
OFFSET = st.integers(-1, 2**63 - 1)
EPOCH = st.integers(-1, 2**31 - 1)
SMALL = st.integers(0, 2**31 - 1)
RECORDS = st.binary(max_size=300)
LEADER = st.none() | st.integers(0, 2**31 - 1)
ERRORS = st.sampled_from([code for code in ErrorCode if code is not ErrorCode.NONE])
TEXT = st.text(min_size=1, max_size=20)
REFUSAL = st.builds(ApiError, ERRORS, TEXT)


def outcomes(make: Callable[..., Any], **fields: Any) -> st.SearchStrategy[Any]:
    """Results of one partition, with and without an error."""
    good = st.builds(make, **fields)
    return good | st.builds(make, error=ERRORS, message=TEXT, **fields)


def answers(response: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return response | REFUSAL


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=4).map(tuple)


PRODUCE = st.builds(
    api.ProduceRequest,
    acks=st.sampled_from([0, 1, -1]),
    timeout_ms=SMALL,
    partitions=tuples(st.builds(api.ProducePartition, key=KEYS, records=RECORDS)),
)
PRODUCED = st.builds(
    api.ProduceResponse,
    results=tuples(
        outcomes(
            api.ProduceResult,
            key=KEYS,
            base_offset=OFFSET,
            log_append_time_ms=OFFSET,
            log_start_offset=OFFSET,
            leader=LEADER,
            leader_epoch=EPOCH,
        )
    ),
)
FETCH = st.builds(
    api.FetchRequest,
    replica_id=EPOCH,
    replica_epoch=OFFSET,
    max_wait_ms=SMALL,
    min_bytes=SMALL,
    max_bytes=SMALL,
    session_id=SMALL,
    session_epoch=EPOCH,
    partitions=tuples(
        st.builds(
            api.FetchPartition,
            key=KEYS,
            fetch_offset=OFFSET,
            max_bytes=SMALL,
            current_leader_epoch=EPOCH,
            last_fetched_epoch=EPOCH,
            log_start_offset=OFFSET,
        )
    ),
    forgotten=tuples(KEYS),
)
FETCHED = st.builds(
    api.FetchResponse,
    session_id=SMALL,
    partitions=tuples(
        outcomes(
            api.FetchedPartition,
            key=KEYS,
            high_watermark=OFFSET,
            log_start_offset=OFFSET,
            diverging=st.none() | st.builds(LogPosition, epoch=SMALL, offset=st.integers(0, 2**62)),
            leader=LEADER,
            leader_epoch=EPOCH,
            records=RECORDS,
        )
    ),
)
LIST = st.builds(
    api.ListOffsetsRequest,
    partitions=tuples(
        st.builds(
            api.ListOffsetsPartition,
            key=KEYS,
            timestamp_ms=st.integers(-2, 2**62),
            current_leader_epoch=EPOCH,
        )
    ),
)
LISTED = st.builds(
    api.ListOffsetsResponse,
    results=tuples(
        outcomes(
            api.ListedOffset,
            key=KEYS,
            offset=OFFSET,
            timestamp_ms=OFFSET,
            leader_epoch=EPOCH,
            leader=LEADER,
        )
    ),
)
INIT = st.builds(api.InitProducerIdRequest, producer_id=OFFSET, producer_epoch=st.integers(-1, 2**15 - 1))
PRODUCER = st.builds(
    api.InitProducerIdResponse, producer_id=st.integers(0, 2**63 - 1), producer_epoch=st.integers(0, 2**15)
)
DESCRIBE = st.builds(
    api.DescribeLogDirsRequest, topic_ids=st.none() | st.lists(IDS, min_size=1, max_size=3).map(tuple)
)
SIZE = st.integers(0, 2**62)
REPLICA = st.builds(
    api.ReplicaDescription,
    key=KEYS,
    topic=TEXT,
    size_bytes=SIZE,
    start_offset=SIZE,
    end_offset=SIZE,
    high_watermark=SIZE,
    lag=SIZE,
    leads=st.booleans(),
)
DIRECTORY: dict[str, Any] = {
    "path": TEXT,
    "directory_id": st.none() | IDS,
    "total_bytes": OFFSET,
    "usable_bytes": OFFSET,
    "replicas": tuples(REPLICA),
}
DESCRIBED = st.builds(
    api.DescribeLogDirsResponse,
    directories=tuples(
        st.builds(api.LogDirDescription, error=st.just(ErrorCode.NONE), message=st.none(), **DIRECTORY)
        | st.builds(api.LogDirDescription, error=ERRORS, message=TEXT, **DIRECTORY)
    ),
)
MARK = st.builds(api.MarkLogDirOfflineRequest, path=TEXT) | st.builds(
    api.MarkLogDirOfflineRequest, directory_id=IDS
)
MARKED = st.builds(api.MarkLogDirOfflineResponse, directory_id=st.none() | IDS, was_offline=st.booleans())


def no_topics(name: str) -> bytes | None:
    raise AssertionError(f"a topic with an id was looked up by name: {name!r}")


def through(message: Any) -> Any:
    """The message as the other side reads it."""
    return type(message).FromString(message.SerializeToString())


@given(PRODUCE, FETCH, LIST)
def test_requests_survive(produce: Any, fetch: Any, listing: Any) -> None:
    cases: list[tuple[Any, Any]] = [
        (codec.PRODUCE, produce),
        (codec.FETCH, fetch),
        (codec.LIST_OFFSETS, listing),
    ]
    for one, request in cases:
        assert codec.request_from_pb(one, through(one.to_pb(request)), no_topics) == codec.Asked(request)


@given(answers(PRODUCED), answers(FETCHED), answers(LISTED))
def test_answers_survive(produced: Any, fetched: Any, listed: Any) -> None:
    cases: list[tuple[Any, Any]] = [
        (codec.PRODUCED, produced),
        (codec.FETCHED, fetched),
        (codec.LISTED_OFFSETS, listed),
    ]
    for one, answer in cases:
        assert one.answer_from_pb(through(codec.results_to_pb(one, answer))) == answer


@given(INIT, answers(PRODUCER))
def test_producer_ids_survive(request: Any, answer: Any) -> None:
    assert codec.INIT_PRODUCER_ID.from_pb(through(codec.INIT_PRODUCER_ID.to_pb(request))) == request
    assert codec.PRODUCER_ID.answer_from_pb(through(codec.PRODUCER_ID.answer_to_pb(answer))) == answer


@given(DESCRIBE, answers(DESCRIBED), MARK, answers(MARKED))
def test_log_directories_survive(describe: Any, described: Any, mark: Any, marked: Any) -> None:
    assert codec.DESCRIBE_LOG_DIRS.from_pb(through(codec.DESCRIBE_LOG_DIRS.to_pb(describe))) == describe
    assert codec.LOG_DIRS.answer_from_pb(through(codec.LOG_DIRS.answer_to_pb(described))) == described
    assert codec.MARK_LOG_DIR_OFFLINE.from_pb(through(codec.MARK_LOG_DIR_OFFLINE.to_pb(mark))) == mark
    assert codec.MARKED_LOG_DIR.answer_from_pb(through(codec.MARKED_LOG_DIR.answer_to_pb(marked))) == marked


def named(name: str, partition: int, records: bytes) -> pb.ProducePartition:
    return pb.ProducePartition(topic=pb.TopicRef(name=name), partition=partition, records=records)


def test_names_are_looked_up_and_unknown_ones_answered_in_their_places() -> None:
    known = {"orders": b"o" * 16}
    request = pb.ProduceRequest(
        acks=-1,
        timeout_ms=5,
        partitions=[named("nobody", 3, b"x"), named("orders", 1, b"y"), named("none", 0, b"z")],
    )
    asked = codec.request_from_pb(codec.PRODUCE, through(request), known.get)
    assert [(each.key, each.records) for each in asked.request.partitions] == [((b"o" * 16, 1), b"y")]
    answer = api.ProduceResponse(results=(api.ProduceResult(key=(b"o" * 16, 1), base_offset=7),))
    sent = codec.results_to_pb(codec.PRODUCED, answer, asked.unknown)
    assert [each.partition for each in sent.results] == [3, 1, 0]
    assert [each.error.name for each in sent.results] == [
        "UNKNOWN_TOPIC_OR_PARTITION",
        "",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    assert "'nobody'" in sent.results[0].error.message
    assert sent.results[1].base_offset == 7


@pytest.mark.parametrize("kind", ["fetch", "list"])
def test_unknown_names_of_reads_are_answered_in_their_places(kind: str) -> None:
    ref = pb.TopicRef(name="nobody")
    key = (b"k" * 16, 4)
    if kind == "fetch":
        asked_fetch = codec.request_from_pb(
            codec.FETCH,
            pb.FetchRequest(
                partitions=[
                    pb.FetchPartition(topic=pb.TopicRef(topic_id=key[0]), partition=4),
                    pb.FetchPartition(topic=ref, partition=9),
                ]
            ),
            {}.get,
        )
        sent: Any = codec.results_to_pb(
            codec.FETCHED,
            api.FetchResponse(session_id=0, partitions=(api.FetchedPartition(key=key, records=b"r"),)),
            asked_fetch.unknown,
        ).partitions
    else:
        asked_list = codec.request_from_pb(
            codec.LIST_OFFSETS,
            pb.ListOffsetsRequest(
                partitions=[
                    pb.ListOffsetsPartition(topic=pb.TopicRef(topic_id=key[0]), partition=4),
                    pb.ListOffsetsPartition(topic=ref, partition=9),
                ]
            ),
            {}.get,
        )
        sent = codec.results_to_pb(
            codec.LISTED_OFFSETS,
            api.ListOffsetsResponse(results=(api.ListedOffset(key=key, offset=3),)),
            asked_list.unknown,
        ).results
    assert [each.partition for each in sent] == [4, 9]
    assert not sent[0].HasField("error")
    assert sent[1].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "broken",
    [
        lambda: codec.request_from_pb(
            codec.PRODUCE,
            pb.ProduceRequest(partitions=[pb.ProducePartition(topic=pb.TopicRef(topic_id=b"short"))]),
            {}.get,
        ),
        lambda: codec.request_from_pb(
            codec.FETCH, pb.FetchRequest(forgotten=[pb.ForgottenPartition(topic_id=b"")]), {}.get
        ),
        lambda: codec.DESCRIBE_LOG_DIRS.from_pb(pb.DescribeLogDirsRequest(topic_ids=[b"12345"])),
        lambda: codec.MARK_LOG_DIR_OFFLINE.from_pb(pb.MarkLogDirOfflineRequest(directory_id=b"12345")),
        lambda: codec.MARK_LOG_DIR_OFFLINE.from_pb(pb.MarkLogDirOfflineRequest()),
        lambda: codec.MARK_LOG_DIR_OFFLINE.from_pb(
            pb.MarkLogDirOfflineRequest(path="/a", directory_id=b"1" * 16)
        ),
    ],
)
def test_malformed_ids_are_refused(broken: Callable[[], object]) -> None:
    with pytest.raises(ApiError) as caught:
        broken()
    assert caught.value.code is ErrorCode.INVALID_REQUEST
