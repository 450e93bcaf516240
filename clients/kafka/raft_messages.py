"""Raft's messages as bodies of Kafka's protocol, and back: one table of shapes, used by both sides.

Kafka's messages lack some of what this core sends: they carry it in tagged fields, which Kafka's nodes pass
over. From a node of Kafka's the fields are absent, and the values say so. A pre-vote has no older form:
`CannotSay`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.internal_topics import METADATA_TOPIC
from metaquorum.raft import messages as raft
from metaquorum.raft.messages import RaftError, RaftRequest, RaftResponse
from metaquorum.raft.voters import Endpoint, PreferredCandidate, VersionRange, VoterNode
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID
from metaquorum.wire import messages as wire

METADATA_TOPIC_ID = bytes(15) + b"\1"
BY_NAME_TO = 12
"""Up to this version, a fetch names its topic."""
HIGHEST = 2**15 - 1
NOT_NAMED = -1
_FIRST_TAG = 0x6D71
"""The number of the first of our tagged fields: far above those that Kafka uses."""


class CannotSay(ValueError):
    """This version of the API has no form of the request."""


class Misshapen(ValueError):
    """The body is not one about partition 0 of the metadata log, or holds what no node can mean."""


class NotOfRaft(Exception):
    """A response with an error that is not Raft's. `code`: Kafka's."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode.of(code).name)
        self.code = code


# ---- the parts of a shape --------------------------------------------------------------------------


class Carried(NamedTuple):
    """Fields of a value of Raft, and the fields of a body, or of its partition, that carry them in the
    versions `since` to `until`. `absent`: their values in other versions; if they are `needed`, nothing else
    can be said there."""

    names: tuple[str, ...]
    fields: tuple[str, ...]
    to_wire: Callable[..., tuple[Any, ...]]
    to_raft: Callable[..., tuple[Any, ...]]
    since: int = 0
    until: int = HIGHEST
    absent: tuple[Any, ...] | None = None
    needed: bool = False

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until


class OwnTag(NamedTuple):
    """A field of Raft in a tagged field of our own. `to_wire`: what is packed; None: it is left out.
    `absent`: its value, by the other ones, from a node that does not send it."""

    name: str
    number: int
    form: struct.Struct
    to_wire: Callable[[Any], tuple[int, ...] | None]
    to_raft: Callable[..., Any]
    absent: Callable[[dict[str, Any]], Any]


class MessageForm(NamedTuple):
    """A kind of message. `topics`: the body's field of topics; empty: it has none, and `whole` is all.
    `echoed`: fields of a response that repeat its request. `missing`: fields of Raft in a response without a
    partition. `nodes_since`: the first version of a response that names the leader's address. `is_sound`:
    whether a request can be one at all."""

    raft: Any
    wire: Any
    whole: tuple[Carried, ...] = ()
    partition: tuple[Carried, ...] = ()
    tags: tuple[OwnTag, ...] = ()
    topics: str = "topics"
    echoed: tuple[str, ...] = ()
    missing: tuple[tuple[str, Any], ...] = ()
    nodes_since: int = HIGHEST
    is_sound: Callable[[Any], bool] = lambda value: True

    @property
    def api(self) -> str:
        name: str = self.wire.__name__
        return name.removesuffix("Request").removesuffix("Response")


def _as_is(*values: Any) -> tuple[Any, ...]:
    return values


def _same(name: str, field: str = "", **rest: Any) -> Carried:
    return Carried((name,), (field or name,), _as_is, _as_is, **rest)


def _one(
    name: str, field: str, to_wire: Callable[[Any], Any], to_raft: Callable[[Any], Any], **rest: Any
) -> Carried:
    return Carried(
        (name,), (field,), lambda value: (to_wire(value),), lambda entry: (to_raft(entry),), **rest
    )


def _to_uuid(directory_id: bytes) -> bytes:
    return directory_id or ZERO_UUID


def _of_uuid(received: Any) -> bytes:
    """A directory id; empty for the UUID that stands for none."""
    return b"" if received == ZERO_UUID else bytes(received)


def _directory(name: str, field: str = "", since: int = 0) -> Carried:
    return _one(name, field or name, _to_uuid, _of_uuid, since=since, absent=(b"",))


def _to_id(node_id: int | None) -> int:
    return -1 if node_id is None else node_id


def _of_id(received: int) -> int | None:
    return None if received < 0 else received


def _error(code: int) -> RaftError:
    try:
        return RaftError(code)
    except ValueError:
        raise NotOfRaft(code) from None


def _position(name: str, field: str, kind: Any) -> Carried:
    def to_wire(value: LogPosition | None) -> Any:
        return kind(epoch=-1, end_offset=-1) if value is None else _named(kind, value)

    def to_raft(entry: Any) -> LogPosition | None:
        return None if entry.end_offset < 0 else LogPosition(entry.epoch, entry.end_offset)

    return _one(name, field, to_wire, to_raft)


def _named(kind: Any, value: LogPosition) -> Any:
    return kind(epoch=value.epoch, end_offset=value.offset)


def _current_leader(kind: Any) -> Carried:
    return Carried(
        ("epoch", "leader_id"),
        ("current_leader",),
        lambda epoch, leader_id: (kind(leader_id=_to_id(leader_id), leader_epoch=epoch),),
        lambda entry: (max(0, entry.leader_epoch), _of_id(entry.leader_id)),
    )


def _leader_endpoints(kind: Any) -> Carried:
    return _one(
        "leader_endpoints",
        "leader_endpoints",
        lambda value: tuple(kind(name=at.name, host=at.host, port=at.port) for at in value),
        lambda received: tuple(Endpoint(at.name, at.host, at.port) for at in received),
        since=1,
        absent=((),),
    )


def _position_tag(name: str, number: int) -> OwnTag:
    return OwnTag(
        name,
        number,
        struct.Struct(">iq"),
        lambda value: None if value is None else (value.epoch, value.offset),
        LogPosition,
        lambda _: None,
    )


_READ_ROUND = OwnTag(
    "read_round",
    _FIRST_TAG,
    struct.Struct(">q"),
    lambda value: (value,) if value else None,
    lambda value: value,
    lambda _: 0,
)
_KRAFT_VERSION = OwnTag(
    "kraft_version",
    _FIRST_TAG + 1,
    struct.Struct(">h"),
    lambda value: (value,),
    lambda value: value,
    # A candidate of Kafka's knows a voter's directory from a voters record, which kraft.version 1 has.
    lambda values: 1 if values["voter_directory_id"] else 0,
)


def _to_candidates(value: tuple[PreferredCandidate, ...]) -> Any:
    kind = wire.EndQuorumEpochRequest.ReplicaInfo
    return tuple(
        kind(candidate_id=each.node_id, candidate_directory_id=_to_uuid(each.directory_id)) for each in value
    )


def _of_candidates(received: Any) -> tuple[PreferredCandidate, ...]:
    return tuple(
        PreferredCandidate(each.candidate_id, _of_uuid(each.candidate_directory_id)) for each in received
    )


def _to_voter(voter: VoterNode) -> tuple[Any, ...]:
    kinds, versions = wire.UpdateRaftVoterRequest, voter.versions
    return (
        voter.node_id,
        _to_uuid(voter.directory_id or b""),
        tuple(kinds.Listener(name=at.name, host=at.host, port=at.port) for at in voter.endpoints),
        kinds.KRaftVersionFeature(
            min_supported_version=versions.lowest, max_supported_version=versions.highest
        ),
    )


def _of_voter(node_id: int, directory_id: Any, listeners: Any, versions: Any) -> tuple[VoterNode]:
    voter = VoterNode(
        node_id=node_id,
        directory_id=bytes(directory_id),
        endpoints=tuple(Endpoint(at.name, at.host, at.port) for at in listeners),
        versions=VersionRange(versions.min_supported_version, versions.max_supported_version),
    )
    return (voter,)


# ---- the table -------------------------------------------------------------------------------------

_VOTER_ID = _same("voter_id", since=1, absent=(NOT_NAMED,))
_CLUSTER = _one("cluster_id", "cluster_id", lambda value: value or None, lambda received: received)
_ERROR = _one("error", "error_code", int, _error)
_LEADER_ID = _one("leader_id", "leader_id", _to_id, _of_id)
_ANSWER = (_ERROR, _same("epoch", "leader_epoch"), _LEADER_ID)

SHAPES: tuple[MessageForm, ...] = (
    MessageForm(
        raft.VoteRequest,
        wire.VoteRequest,
        whole=(_CLUSTER, _VOTER_ID),
        partition=(
            _same("epoch", "replica_epoch"),
            _same("candidate_id", "replica_id"),
            _directory("candidate_directory_id", "replica_directory_id", since=1),
            _directory("voter_directory_id", since=1),
            Carried(
                ("last_position",),
                ("last_offset_epoch", "last_offset"),
                lambda value: (value.epoch, value.offset),
                lambda epoch, offset: (LogPosition(epoch, offset),),
            ),
            _same("pre_vote", since=2, absent=(False,), needed=True),
        ),
        tags=(_KRAFT_VERSION,),
        is_sound=lambda vote: (
            vote.last_position.offset >= 0
            # A candidate's epoch is above every epoch in its log, a pre-vote's may be the last one there.
            and 0 <= vote.last_position.epoch < vote.epoch + vote.pre_vote
        ),
    ),
    MessageForm(
        raft.BeginQuorumEpochRequest,
        wire.BeginQuorumEpochRequest,
        whole=(
            _CLUSTER,
            _VOTER_ID,
            _leader_endpoints(wire.BeginQuorumEpochRequest.LeaderEndpoint),
        ),
        partition=(
            _same("epoch", "leader_epoch"),
            _same("leader_id"),
            _directory("voter_directory_id", since=1),
        ),
    ),
    MessageForm(
        raft.EndQuorumEpochRequest,
        wire.EndQuorumEpochRequest,
        whole=(_CLUSTER, _leader_endpoints(wire.EndQuorumEpochRequest.LeaderEndpoint)),
        partition=(
            _same("epoch", "leader_epoch"),
            _same("leader_id"),
            _one(
                "preferred_candidates",
                "preferred_successors",
                lambda value: tuple(each.node_id for each in value),
                lambda received: tuple(PreferredCandidate(node_id, b"") for node_id in received),
                until=0,
            ),
            _one("preferred_candidates", "preferred_candidates", _to_candidates, _of_candidates, since=1),
        ),
    ),
    MessageForm(
        raft.FetchRequest,
        wire.FetchRequest,
        whole=(
            _CLUSTER,
            _same("replica_id", until=14),
            _one(
                "replica_id",
                "replica_state",
                lambda value: wire.FetchRequest.ReplicaState(replica_id=value),
                lambda entry: entry.replica_id,
                since=15,
            ),
            _same("max_wait_ms"),
            _same("max_bytes"),
        ),
        partition=(
            _same("epoch", "current_leader_epoch"),
            _same("fetch_offset"),
            _same("last_fetched_epoch"),
            _directory("replica_directory_id", since=17),
            _same("high_watermark", since=18, absent=(raft.UNSTATED,)),
        ),
        tags=(_READ_ROUND,),
        is_sound=lambda fetch: 0 <= fetch.last_fetched_epoch <= fetch.epoch and fetch.max_wait_ms >= 0,
    ),
    MessageForm(
        raft.FetchSnapshotRequest,
        wire.FetchSnapshotRequest,
        whole=(_CLUSTER, _same("replica_id"), _same("max_bytes")),
        partition=(
            _same("epoch", "current_leader_epoch"),
            _one(
                "snapshot",
                "snapshot_id",
                lambda value: _named(wire.FetchSnapshotRequest.SnapshotId, value),
                lambda entry: LogPosition(entry.epoch, entry.end_offset),
            ),
            _same("position"),
            _directory("replica_directory_id", since=1),
        ),
    ),
    MessageForm(
        raft.UpdateVoterRequest,
        wire.UpdateRaftVoterRequest,
        whole=(
            _CLUSTER,
            _same("epoch", "current_leader_epoch"),
            Carried(
                ("voter",),
                ("voter_id", "voter_directory_id", "listeners", "k_raft_version_feature"),
                _to_voter,
                _of_voter,
            ),
        ),
        topics="",
    ),
    MessageForm(
        raft.VoteResponse,
        wire.VoteResponse,
        partition=(*_ANSWER, _same("vote_granted")),
        tags=(
            _position_tag("last_position", _FIRST_TAG + 2),
            _position_tag("known_committed", _FIRST_TAG + 3),
        ),
        echoed=("pre_vote",),
        missing=(("vote_granted", False),),
        nodes_since=1,
    ),
    MessageForm(
        raft.BeginQuorumEpochResponse, wire.BeginQuorumEpochResponse, partition=_ANSWER, nodes_since=1
    ),
    MessageForm(raft.EndQuorumEpochResponse, wire.EndQuorumEpochResponse, partition=_ANSWER, nodes_since=1),
    MessageForm(
        raft.FetchResponse,
        wire.FetchResponse,
        partition=(
            _ERROR,
            _current_leader(wire.FetchResponse.LeaderIdAndEpoch),
            _same("high_watermark"),
            _one("log_start_offset", "log_start_offset", int, lambda received: max(0, received)),
            _position("diverging", "diverging_epoch", wire.FetchResponse.EpochEndOffset),
            _position("snapshot", "snapshot_id", wire.FetchResponse.SnapshotId),
            _one("records", "records", lambda value: value, lambda received: bytes(received or b"")),
        ),
        tags=(_READ_ROUND,),
        topics="responses",
        nodes_since=17,
    ),
    MessageForm(
        raft.FetchSnapshotResponse,
        wire.FetchSnapshotResponse,
        partition=(
            _ERROR,
            _current_leader(wire.FetchSnapshotResponse.LeaderIdAndEpoch),
            _position("snapshot", "snapshot_id", wire.FetchSnapshotResponse.SnapshotId),
            _same("size_bytes", "size"),
            _same("position"),
            _one("data", "unaligned_records", lambda value: value, bytes),
        ),
        nodes_since=1,
    ),
    MessageForm(
        raft.VoterChangeResponse,
        wire.UpdateRaftVoterResponse,
        whole=(
            _ERROR,
            _current_leader(wire.UpdateRaftVoterResponse.CurrentLeader),
        ),
        topics="",
    ),
)
_OF_RAFT = {shape.raft: shape for shape in SHAPES}
_OF_WIRE = {shape.wire: shape for shape in SHAPES}
_RESPONSES = {shape.api: shape.wire for shape in SHAPES if shape.wire.__name__.endswith("Response")}
_PARTITION_ALWAYS = {wire.FetchResponse: {"aborted_transactions": ()}}
_KINDS = {
    wire.FetchRequest: ("FetchTopic", "FetchPartition", "partition"),
    wire.FetchResponse: ("FetchableTopicResponse", "PartitionData", "partition_index"),
    wire.FetchSnapshotRequest: ("TopicSnapshot", "PartitionSnapshot", "partition"),
    wire.FetchSnapshotResponse: ("TopicSnapshot", "PartitionSnapshot", "index"),
}
"""The classes of topics and partitions, and the partition's number, where they are not called as in Vote."""
_AS_IN_VOTE = ("TopicData", "PartitionData", "partition_index")
_OF_THE_WHOLE = frozenset({RaftError.INCONSISTENT_CLUSTER_ID})
"""Errors that Kafka answers for the request rather than its partition."""
_INSTEAD: dict[tuple[Any, int], RaftError] = {
    (wire.FetchSnapshotResponse, ErrorCode.UNKNOWN_SERVER_ERROR): RaftError.SNAPSHOT_NOT_FOUND
}
"""A refusal of a snapshot in Kafka 3.7 may say nothing else."""


def api_of(request: RaftRequest) -> str:
    """The name of the API by which a request is sent. Raises CannotSay."""
    shape = _OF_RAFT.get(type(request))
    if shape is None:
        raise CannotSay(f"{type(request).__name__} has no form in Kafka's protocol")
    return shape.api


# ---- to bodies -------------------------------------------------------------------------------------


def request_body(request: RaftRequest, version: int) -> Any:
    """The body of a request in this version of its API. Raises CannotSay."""
    api_of(request)
    return _body(_OF_RAFT[type(request)], request, version, ())


def response_body(response: RaftResponse, version: int, leader: Endpoint | None = None) -> Any:
    """The body of a response. `leader`: where the leader that it names listens, None: that is not known."""
    shape = _OF_RAFT[type(response)]
    if response.error in _OF_THE_WHOLE:
        return shape.wire(error_code=int(response.error))
    nodes: tuple[Any, ...] = ()
    if leader is not None and response.leader_id is not None and version >= shape.nodes_since:
        kind = shape.wire.NodeEndpoint
        nodes = (kind(node_id=response.leader_id, host=leader.host, port=leader.port),)
    return _body(shape, response, version, nodes)


def refusal(body: Any, code: ErrorCode) -> Any:
    """The response to the request in `body`, with an error of the whole."""
    return _RESPONSES[type(body).__name__.removesuffix("Request")](error_code=code)


def _body(shape: MessageForm, value: Any, version: int, nodes: tuple[Any, ...]) -> Any:
    fields = _fields(shape.whole, value, version)
    if shape.topics:
        topic, partition, number = _kinds(shape)
        part = partition(
            **{number: 0},
            **_PARTITION_ALWAYS.get(shape.wire, {}),
            **_fields(shape.partition, value, version),
        )
        fields[shape.topics] = (topic(**_topic_named(shape, version), partitions=(part,)),)
    if nodes:
        fields["node_endpoints"] = nodes
    packed = ((tag.number, tag.form, tag.to_wire(getattr(value, tag.name))) for tag in shape.tags)
    tags = tuple((number, form.pack(*values)) for number, form, values in packed if values is not None)
    return shape.wire(**fields, unknown_tags=tags)


def _kinds(shape: MessageForm) -> tuple[Any, Any, str]:
    topic, partition, number = _KINDS.get(shape.wire, _AS_IN_VOTE)
    return getattr(shape.wire, topic), getattr(shape.wire, partition), number


def _topic_named(shape: MessageForm, version: int) -> dict[str, Any]:
    match shape.api:
        case "Fetch":
            return {"topic": METADATA_TOPIC} if version <= BY_NAME_TO else {"topic_id": METADATA_TOPIC_ID}
        case "FetchSnapshot":
            return {"name": METADATA_TOPIC}
        case _:
            return {"topic_name": METADATA_TOPIC}


def _fields(columns: tuple[Carried, ...], value: Any, version: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for column in columns:
        values = [getattr(value, name) for name in column.names]
        if column.is_in(version):
            fields.update(zip(column.fields, column.to_wire(*values), strict=True))
        elif column.needed and tuple(values) != column.absent:
            raise CannotSay(f"version {version} of {type(value).__name__} cannot carry {column.names[0]}")
    return fields


# ---- from bodies -----------------------------------------------------------------------------------


def request_of(body: Any, version: int, *, cluster_id: str, node_id: int) -> Any:
    """The request in a body. `cluster_id` and `node_id` are the receiver's, for a body that names none.
    Raises Misshapen."""
    shape = _OF_WIRE[type(body)]
    values = _values(shape.whole, body, version)
    if shape.topics:
        partition = _partition(shape, body, version)
        if partition is None:
            raise Misshapen(f"{shape.api} of something else than partition 0 of {METADATA_TOPIC}")
        values.update(_values(shape.partition, partition, version))
    if values["cluster_id"] is None:
        values["cluster_id"] = cluster_id
    if values.get("voter_id") == NOT_NAMED:
        values["voter_id"] = node_id
    request = shape.raft(**values, **_tagged(shape, body, values))
    if request.cluster_id == cluster_id and not shape.is_sound(request):
        raise Misshapen(f"{shape.api} with offsets or epochs that no log has")
    return request


def response_of(body: Any, version: int, request: RaftRequest | None = None) -> Any:
    """The response in a body, to `request` (needed for votes). Its leader's endpoint has no listener's name.
    Raises NotOfRaft or Misshapen."""
    shape = _OF_WIRE[type(body)]
    code: int = body.error_code if shape.topics else 0
    partition = _partition(shape, body, version) if shape.topics and not code else None
    values = {"epoch": 0, "leader_id": None, **dict(shape.missing)}
    if code:
        values["error"] = _INSTEAD.get((shape.wire, code)) or _error(code)
    elif not shape.topics:
        values.update(_values(shape.whole, body, version))
    elif partition is None:
        raise Misshapen(f"its answer to {shape.api} names no partition of {METADATA_TOPIC}")
    else:
        values.update(_values(shape.partition, partition, version))
    values["leader_endpoints"] = tuple(
        Endpoint("", each.host, each.port)
        for each in getattr(body, "node_endpoints", ())
        if each.node_id == values["leader_id"]
    )
    echoed = {name: getattr(request, name) for name in shape.echoed}
    return shape.raft(**values, **echoed, **_tagged(shape, body, values))


def _partition(shape: MessageForm, body: Any, version: int) -> Any:
    """The only partition of a body; None if it is not partition 0 of the metadata log."""
    topics = getattr(body, shape.topics)
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    partition, number = topics[0].partitions[0], _kinds(shape)[2]
    named = _topic_named(shape, version)
    is_it = all(getattr(topics[0], field) == value for field, value in named.items())
    return partition if is_it and getattr(partition, number) == 0 else None


def _values(columns: tuple[Carried, ...], fields: Any, version: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in columns:
        if column.is_in(version):
            received = column.to_raft(*[getattr(fields, field) for field in column.fields])
            values.update(zip(column.names, received, strict=True))
        elif column.absent is not None:
            values.update(zip(column.names, column.absent, strict=True))
    return values


def _tagged(shape: MessageForm, body: Any, values: dict[str, Any]) -> dict[str, Any]:
    tags = dict(body.unknown_tags)
    received: dict[str, Any] = {}
    for tag in shape.tags:
        data = tags.get(tag.number)
        if data is None:
            received[tag.name] = tag.absent(values)
            continue
        try:
            received[tag.name] = tag.to_raft(*tag.form.unpack(data))
        except struct.error as error:
            raise Misshapen(f"{shape.api}: the tagged field {tag.number} is not {tag.name}") from error
    return received
