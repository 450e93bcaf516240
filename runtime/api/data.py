"""Requests for partition data and their answers, between values and protobuf, both directions.

Owns the mapping only; what a value means is the replica core's business. Requests that come in may name a
topic by its name: `TopicIds` says which topic has it, and partitions of a topic that nobody knows are handed
back beside the request. Record bytes are taken as they are. An id that is not 16 bytes raises `ApiError`
INVALID_REQUEST. An answer that is a refusal as a whole is an `ApiError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from metaquorum.broker.replica import messages as api
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto import metadata_pb2 as common
from metaquorum.runtime.api.api import Hints, error_from_pb, error_to_pb
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import UUID_BYTES

TopicIds = Callable[[str], bytes | None]
"""The id of the topic of a name; None: there is none."""

R = TypeVar("R")
E = TypeVar("E")
_NO_HINTS = Hints(())
_NONE = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTopic:
    """A partition of a request whose topic's name nobody has; `position` among the request's partitions."""

    position: int
    name: str
    partition: int

    @property
    def message(self) -> str:
        return f"there is no topic {self.name!r}: create it, or correct the name"


@dataclass(frozen=True, slots=True)
class Asked(Generic[R]):
    """A request as it came in, without the partitions in `unknown`."""

    request: R
    unknown: tuple[UnknownTopic, ...] = ()


def _key(each: Any, position: int, topics: TopicIds, unknown: list[UnknownTopic]) -> api.PartitionKey | None:
    """The partition of one entry, or None, and a note in `unknown`. Raises ApiError INVALID_REQUEST."""
    topic_id: bytes | None = each.topic.topic_id
    if topic_id:
        return uuid_field(topic_id, "a topic id"), each.partition
    name = each.topic.name
    topic_id = topics(name)
    if topic_id is None:
        unknown.append(UnknownTopic(position=position, name=name, partition=each.partition))
        return None
    return topic_id, each.partition


def uuid_field(value: bytes, what: str) -> bytes:
    """The 16 bytes of an id. Raises ApiError INVALID_REQUEST."""
    if len(value) != UUID_BYTES:
        text = f"{what} has {len(value)} bytes: give the {UUID_BYTES} of a uuid"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return value


def _ref(topic_id: bytes) -> pb.TopicRef:
    return pb.TopicRef(topic_id=topic_id)


def error_field(code: ErrorCode, message: str | None) -> common.Error | None:
    """What stands in a result's `error`; nothing for a success."""
    if code is _NONE:
        return None
    return error_to_pb(ApiError(code, message or code.name), _NO_HINTS)


def refusal_of(each: Any) -> tuple[ErrorCode, str | None]:
    """A result's code and text; NONE and None for a success."""
    if not each.HasField("error"):
        return _NONE, None
    decoded = error_from_pb(each.error)
    return decoded.code, decoded.message


def _in_places(found: Sequence[E], unknown: Sequence[UnknownTopic]) -> Sequence[E | UnknownTopic]:
    """Results as the request had their partitions, with what is unknown among them."""
    if not unknown:
        return found
    ordered: list[E | UnknownTopic] = list(found)
    for each in unknown:
        ordered.insert(each.position, each)
    return ordered


def refused(error: ApiError) -> common.Error:
    """A refusal of a whole request, as every answer carries it."""
    return error_to_pb(error, _NO_HINTS)


# ---- produce -------------------------------------------------------------------------------------


def produce_to_pb(request: api.ProduceRequest) -> pb.ProduceRequest:
    message = pb.ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
    for each in request.partitions:  # in place, so that records are copied once
        message.partitions.add(topic=_ref(each.key[0]), partition=each.key[1], records=each.records)
    return message


def produce_from_pb(request: pb.ProduceRequest, topics: TopicIds) -> Asked[api.ProduceRequest]:
    """Raises ApiError INVALID_REQUEST."""
    unknown: list[UnknownTopic] = []
    partitions = []
    for position, each in enumerate(request.partitions):
        key = _key(each, position, topics, unknown)
        if key is not None:
            partitions.append(api.ProducePartition(key=key, records=each.records))
    found = api.ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms, partitions=tuple(partitions))
    return Asked(found, tuple(unknown))


def _produce_result_to_pb(each: api.ProduceResult) -> pb.ProduceResult:
    return pb.ProduceResult(
        topic_id=each.key[0],
        partition=each.key[1],
        error=error_field(each.error, each.message),
        base_offset=each.base_offset,
        log_append_time_ms=each.log_append_time_ms,
        log_start_offset=each.log_start_offset,
        leader=each.leader,
        leader_epoch=each.leader_epoch,
    )


def produced_to_pb(
    response: api.ProduceResponse | ApiError, unknown: Sequence[UnknownTopic] = ()
) -> pb.ProduceResponse:
    """The answer, with those to `unknown` put where the request had them."""
    if isinstance(response, ApiError):
        return pb.ProduceResponse(error=refused(response))
    results = [_produce_result_to_pb(each) for each in response.results]
    for each in unknown:
        refusal = error_field(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, each.message)
        absent = pb.ProduceResult(
            partition=each.partition,
            error=refusal,
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            leader_epoch=-1,
        )
        results.insert(each.position, absent)
    return pb.ProduceResponse(results=results)


def produced_from_pb(response: pb.ProduceResponse) -> api.ProduceResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    results = []
    for each in response.results:
        code, message = refusal_of(each)
        results.append(
            api.ProduceResult(
                key=(each.topic_id, each.partition),
                error=code,
                message=message,
                base_offset=each.base_offset,
                log_append_time_ms=each.log_append_time_ms,
                log_start_offset=each.log_start_offset,
                leader=each.leader if each.HasField("leader") else None,
                leader_epoch=each.leader_epoch,
            )
        )
    return api.ProduceResponse(results=tuple(results))


# ---- fetch ---------------------------------------------------------------------------------------


def fetch_to_pb(request: api.FetchRequest) -> pb.FetchRequest:
    return pb.FetchRequest(
        replica_id=None if request.replica_id == api.CONSUMER else request.replica_id,
        replica_epoch=None if request.replica_epoch == -1 else request.replica_epoch,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        partitions=[
            pb.FetchPartition(
                topic=_ref(each.key[0]),
                partition=each.key[1],
                fetch_offset=each.fetch_offset,
                max_bytes=each.max_bytes,
                current_leader_epoch=_present(each.current_leader_epoch),
                last_fetched_epoch=_present(each.last_fetched_epoch),
                log_start_offset=_present(each.log_start_offset),
            )
            for each in request.partitions
        ],
        forgotten=[
            pb.ForgottenPartition(topic_id=topic_id, partition=index) for topic_id, index in request.forgotten
        ],
    )


def _present(value: int) -> int | None:
    return None if value == -1 else value


def fetch_from_pb(request: pb.FetchRequest, topics: TopicIds) -> Asked[api.FetchRequest]:
    """Raises ApiError INVALID_REQUEST."""
    unknown: list[UnknownTopic] = []
    partitions = []
    for position, each in enumerate(request.partitions):
        key = _key(each, position, topics, unknown)
        if key is None:
            continue
        has = each.HasField
        partitions.append(
            api.FetchPartition(
                key=key,
                fetch_offset=each.fetch_offset,
                max_bytes=each.max_bytes,
                current_leader_epoch=each.current_leader_epoch if has("current_leader_epoch") else -1,
                last_fetched_epoch=each.last_fetched_epoch if has("last_fetched_epoch") else -1,
                log_start_offset=each.log_start_offset if has("log_start_offset") else -1,
            )
        )
    found = api.FetchRequest(
        replica_id=request.replica_id if request.HasField("replica_id") else api.CONSUMER,
        replica_epoch=request.replica_epoch if request.HasField("replica_epoch") else -1,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch if request.HasField("session_epoch") else -1,
        partitions=tuple(partitions),
        forgotten=tuple(
            (uuid_field(each.topic_id, "a topic id"), each.partition) for each in request.forgotten
        ),
    )
    return Asked(found, tuple(unknown))


def fetched_to_pb(
    response: api.FetchResponse | ApiError, unknown: Sequence[UnknownTopic] = ()
) -> pb.FetchResponse:
    """The answer; of a request without a session, those to `unknown` stand where the request had them."""
    if isinstance(response, ApiError):
        return pb.FetchResponse(error=refused(response))
    # Built in place: a message that is put into another one is copied, with all its records.
    answer = pb.FetchResponse(session_id=response.session_id)
    add = answer.partitions.add
    for each in _in_places(response.partitions, unknown):
        if isinstance(each, UnknownTopic):
            add(
                partition=each.partition,
                error=error_field(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, each.message),
                high_watermark=-1,
                log_start_offset=-1,
                leader_epoch=-1,
            )
            continue
        diverging = each.diverging
        add(
            topic_id=each.key[0],
            partition=each.key[1],
            error=error_field(each.error, each.message),
            high_watermark=each.high_watermark,
            log_start_offset=each.log_start_offset,
            diverging=None
            if diverging is None
            else pb.DivergingEpoch(epoch=diverging.epoch, end_offset=diverging.offset),
            leader=each.leader,
            leader_epoch=each.leader_epoch,
            records=each.records,
        )
    return answer


def fetched_from_pb(response: pb.FetchResponse) -> api.FetchResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    return api.FetchResponse(
        session_id=response.session_id,
        partitions=tuple(_fetched_from_pb(each) for each in response.partitions),
    )


def _fetched_from_pb(each: pb.FetchedPartition) -> api.FetchedPartition:
    code, message = refusal_of(each)
    diverging = None
    if each.HasField("diverging"):
        diverging = LogPosition(offset=each.diverging.end_offset, epoch=each.diverging.epoch)
    return api.FetchedPartition(
        key=(each.topic_id, each.partition),
        error=code,
        message=message,
        high_watermark=each.high_watermark,
        log_start_offset=each.log_start_offset,
        diverging=diverging,
        leader=each.leader if each.HasField("leader") else None,
        leader_epoch=each.leader_epoch,
        records=each.records,
    )


# ---- offsets -------------------------------------------------------------------------------------


def list_offsets_to_pb(request: api.ListOffsetsRequest) -> pb.ListOffsetsRequest:
    return pb.ListOffsetsRequest(
        partitions=[
            pb.ListOffsetsPartition(
                topic=_ref(each.key[0]),
                partition=each.key[1],
                timestamp_ms=each.timestamp_ms,
                current_leader_epoch=_present(each.current_leader_epoch),
            )
            for each in request.partitions
        ]
    )


def list_offsets_from_pb(request: pb.ListOffsetsRequest, topics: TopicIds) -> Asked[api.ListOffsetsRequest]:
    """Raises ApiError INVALID_REQUEST."""
    unknown: list[UnknownTopic] = []
    partitions = []
    for position, each in enumerate(request.partitions):
        key = _key(each, position, topics, unknown)
        if key is not None:
            partitions.append(
                api.ListOffsetsPartition(
                    key=key,
                    timestamp_ms=each.timestamp_ms,
                    current_leader_epoch=each.current_leader_epoch
                    if each.HasField("current_leader_epoch")
                    else -1,
                )
            )
    return Asked(api.ListOffsetsRequest(partitions=tuple(partitions)), tuple(unknown))


def listed_to_pb(
    response: api.ListOffsetsResponse | ApiError, unknown: Sequence[UnknownTopic] = ()
) -> pb.ListOffsetsResponse:
    """The answer, with those to `unknown` put where the request had them."""
    if isinstance(response, ApiError):
        return pb.ListOffsetsResponse(error=refused(response))
    results = [
        pb.ListedOffset(
            topic_id=each.key[0],
            partition=each.key[1],
            error=error_field(each.error, each.message),
            offset=each.offset,
            timestamp_ms=each.timestamp_ms,
            leader_epoch=each.leader_epoch,
            leader=each.leader,
        )
        for each in response.results
    ]
    for absent in unknown:
        refusal = error_field(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, absent.message)
        results.insert(
            absent.position,
            pb.ListedOffset(
                partition=absent.partition, error=refusal, offset=-1, timestamp_ms=-1, leader_epoch=-1
            ),
        )
    return pb.ListOffsetsResponse(results=results)


def listed_from_pb(response: pb.ListOffsetsResponse) -> api.ListOffsetsResponse | ApiError:
    if response.HasField("error"):
        return error_from_pb(response.error)
    results = []
    for each in response.results:
        code, message = refusal_of(each)
        results.append(
            api.ListedOffset(
                key=(each.topic_id, each.partition),
                error=code,
                message=message,
                offset=each.offset,
                timestamp_ms=each.timestamp_ms,
                leader_epoch=each.leader_epoch,
                leader=each.leader if each.HasField("leader") else None,
            )
        )
    return api.ListOffsetsResponse(results=tuple(results))
