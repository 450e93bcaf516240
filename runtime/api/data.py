"""Requests to the data service and their answers, between values and protobuf.

Owns the mapping only; what a value means is the replica core's business. Requests that come in may name a
topic by its name: `TopicIds` says which topic has it, and partitions of a topic that no one knows are handed
back beside the request. Record bytes are taken as they are. An id that is not 16 bytes raises `ApiError`
INVALID_REQUEST. An answer that is a refusal as a whole is an `ApiError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.proto import data_pb2 as pb
from metaquorum.runtime.api.codec import MessageCodec
from metaquorum.runtime.api.errors import uuid_check
from metaquorum.runtime.api.shapes import FieldRule

TopicIds = Callable[[str], bytes | None]
"""The id of the topic of a name; None: there is none."""

R = TypeVar("R")
Pb = TypeVar("Pb", bound=Message)


class _NamedTopicError(Exception):
    """A partition of a request names its topic, instead of giving the id."""


_topic_id = uuid_check("a topic id")


def _id_or_name(value: bytes) -> bytes:
    if not value:
        raise _NamedTopicError
    return _topic_id(value)


_BY_ID = FieldRule(nested={"key": FieldRule(spread=("topic_id", "partition"))})
_ASKED = FieldRule(nested={"key": FieldRule(spread=("topic.topic_id", "partition"), check=_id_or_name)})
_LOCAL = FieldRule(local=True)


def _one_name(request: pb.MarkLogDirOfflineRequest) -> str | None:
    if bool(request.path) == bool(request.directory_id):
        text = "name the log directory by its path or by its id, one of them"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    return request.path or None


PRODUCE = MessageCodec(
    api.ProduceRequest,
    pb.ProduceRequest,
    partitions=FieldRule(nested={**_ASKED.nested, "guard": _LOCAL}),
    by_coordinator=_LOCAL,
)
PRODUCED = MessageCodec(
    api.ProduceResponse,
    pb.ProduceResponse,
    results=FieldRule(nested={**_BY_ID.nested, "refused_records": _LOCAL}),
)
FETCH = MessageCodec(
    api.FetchRequest,
    pb.FetchRequest,
    session_epoch=FieldRule(always=True),
    partitions=_ASKED,
    forgotten=FieldRule(check=_topic_id),
    read_committed=_LOCAL,
)
FETCHED = MessageCodec(
    api.FetchResponse,
    pb.FetchResponse,
    partitions=FieldRule(
        nested={
            **_BY_ID.nested,
            "diverging": FieldRule(nested={"offset": "end_offset"}),
            "last_stable_offset": _LOCAL,
            "aborted": _LOCAL,
        }
    ),
)
LIST_OFFSETS = MessageCodec(
    api.ListOffsetsRequest, pb.ListOffsetsRequest, partitions=_ASKED, read_committed=_LOCAL, replica_id=_LOCAL
)
LISTED_OFFSETS = MessageCodec(api.ListOffsetsResponse, pb.ListOffsetsResponse, results=_BY_ID)
INIT_PRODUCER_ID = MessageCodec(api.InitProducerIdRequest, pb.InitProducerIdRequest)
PRODUCER_ID = MessageCodec(api.InitProducerIdResponse, pb.InitProducerIdResponse)
DESCRIBE_LOG_DIRS = MessageCodec(
    api.DescribeLogDirsRequest, pb.DescribeLogDirsRequest, topic_ids=FieldRule(check=_topic_id)
)
"""An empty choice of topics cannot be told from all of them: ask for one at least."""
LOG_DIRS = MessageCodec(
    api.DescribeLogDirsResponse,
    pb.DescribeLogDirsResponse,
    directories=FieldRule(nested={"replicas": _BY_ID}),
)
MARK_LOG_DIR_OFFLINE = MessageCodec(
    api.MarkLogDirOfflineRequest,
    pb.MarkLogDirOfflineRequest,
    path=FieldRule(decode=_one_name),
    directory_id=FieldRule(check=uuid_check("a directory id")),
)
MARKED_LOG_DIR = MessageCodec(api.MarkLogDirOfflineResponse, pb.MarkLogDirOfflineResponse)


# ---- topics by name


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTopic:
    """A partition of a request whose topic's name no one has; `position` among the request's partitions."""

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


def request_from_pb(codec: MessageCodec[R, Any], request: Any, topics: TopicIds) -> Asked[R]:
    """A request whose partitions may name their topics. Raises ApiError INVALID_REQUEST."""
    try:
        return Asked(codec.from_pb(request))
    except _NamedTopicError:  # followers and clients that know the cluster name topics by their ids
        unknown = _look_up(request.partitions, topics)
        return Asked(codec.from_pb(request), unknown)


def _look_up(partitions: Any, topics: TopicIds) -> tuple[UnknownTopic, ...]:
    """Puts ids beside the names; takes out and returns the partitions of topics that no one knows."""
    unknown = []
    for position, each in enumerate(partitions):
        if each.topic.topic_id:
            continue
        topic_id = topics(each.topic.name)
        if topic_id is None:
            name = each.topic.name
            unknown.append(UnknownTopic(position=position, name=name, partition=each.partition))
        else:
            each.topic.topic_id = topic_id
    for one in reversed(unknown):
        del partitions[one.position]
    return tuple(unknown)


_RESULTS: dict[type, tuple[str, Any]] = {
    api.ProduceResponse: ("results", api.ProduceResult),
    api.FetchResponse: ("partitions", api.FetchedPartition),
    api.ListOffsetsResponse: ("results", api.ListedOffset),
}


def results_to_pb(
    codec: MessageCodec[R, Pb], response: R | ApiError, unknown: Sequence[UnknownTopic] = ()
) -> Pb:
    """The answer, with those to `unknown` put where the request had them."""
    if unknown and not isinstance(response, ApiError):
        field, make = _RESULTS[codec.value]
        results = list(getattr(response, field))
        for each in unknown:
            refusal = make(
                key=(b"", each.partition),
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                message=each.message,
            )
            results.insert(each.position, refusal)
        changed: Any = response
        response = replace(changed, **{field: tuple(results)})
    return codec.answer_to_pb(response)
