"""Raft's messages as bodies of Kafka's protocol, and back: one table of forms, used by both sides.

Kafka's messages lack some of what this core sends: they carry it in tagged fields, which Kafka's nodes pass
over. From a node of Kafka's the fields are absent, and the values say so. A pre-vote has no older form:
`CannotSay`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

from msgspec.structs import replace

from metaquorum.clients.kafka.message_forms import (
    CannotSay,
    Carried,
    Compiled,
    MessageForm,
    OwnTag,
    as_it_is,
    compiled,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.raft import messages as raft
from metaquorum.raft.messages import RaftError, RaftRequest, RaftResponse
from metaquorum.raft.voters import Endpoint, PreferredCandidate, VersionRange, VoterNode
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID
from metaquorum.wire import messages as wire

NOT_NAMED = -1
_FIRST_TAG = 0x6D71
"""The number of the first of our tagged fields: far above those that Kafka uses."""


class Misshapen(ValueError):
    """The body is not one about partition 0 of the metadata log, or holds what no node can mean."""


class NotOfRaft(Exception):
    """A response with an error that is not Raft's. `code`: Kafka's."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode.of(code).name)
        self.code = code


# ---- the parts of a form ---------------------------------------------------------------------------


def _same(name: str, field: str = "", **rest: Any) -> Carried:
    return Carried((name,), (field or name,), **rest)


def _one(
    name: str, field: str, to_wire: Callable[[Any], Any], to_raft: Callable[[Any], Any], **rest: Any
) -> Carried:
    return Carried((name,), (field,), to_wire, to_raft, **rest)


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
        lambda epoch, leader_id: kind(leader_id=_to_id(leader_id), leader_epoch=epoch),
        lambda entry: (max(0, entry.leader_epoch), _of_id(entry.leader_id)),
    )


def _to_current_leader(epoch: int, leader_id: int | None, endpoints: tuple[Endpoint, ...]) -> Any:
    """With the address: Kafka 3.9 takes a leader without one for a leader at the empty address."""
    host, port = (endpoints[0].host, endpoints[0].port) if endpoints else ("", 0)
    kind = wire.UpdateRaftVoterResponse.CurrentLeader
    return kind(leader_id=_to_id(leader_id), leader_epoch=epoch, host=host, port=port)


def _of_current_leader(entry: Any) -> tuple[int, int | None, tuple[Endpoint, ...]]:
    endpoints = (Endpoint("", entry.host, entry.port),) if entry.host else ()
    return max(0, entry.leader_epoch), _of_id(entry.leader_id), endpoints


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


def _of_voter(node_id: int, directory_id: Any, listeners: Any, versions: Any) -> VoterNode:
    return VoterNode(
        node_id=node_id,
        directory_id=bytes(directory_id),
        endpoints=tuple(Endpoint(at.name, at.host, at.port) for at in listeners),
        versions=VersionRange(versions.min_supported_version, versions.max_supported_version),
    )


# ---- the table -------------------------------------------------------------------------------------

_VOTER_ID = _same("voter_id", since=1, absent=(NOT_NAMED,))
_CLUSTER = _one("cluster_id", "cluster_id", lambda value: value or None, as_it_is)
_ERROR = _one("error", "error_code", int, _error)
_LEADER_ID = _one("leader_id", "leader_id", _to_id, _of_id)
_ANSWER = (_ERROR, _same("epoch", "leader_epoch"), _LEADER_ID)

FORMS: tuple[MessageForm, ...] = (
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
                LogPosition,
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
            _one("records", "records", as_it_is, lambda received: bytes(received or b"")),
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
            _one("data", "unaligned_records", as_it_is, bytes),
        ),
        nodes_since=1,
    ),
    MessageForm(
        raft.VoterChangeResponse,
        wire.UpdateRaftVoterResponse,
        whole=(
            _ERROR,
            Carried(
                ("epoch", "leader_id", "leader_endpoints"),
                ("current_leader",),
                _to_current_leader,
                _of_current_leader,
            ),
        ),
        topics="",
    ),
)
_OF_RAFT: dict[Any, MessageForm] = {form.raft: form for form in FORMS}
_OF_WIRE: dict[Any, MessageForm] = {form.wire: form for form in FORMS}
_RESPONSES = {form.api: form.wire for form in FORMS if form.wire.__name__.endswith("Response")}
_OF_THE_WHOLE = frozenset({RaftError.INCONSISTENT_CLUSTER_ID})
"""Errors that Kafka answers for the request rather than its partition."""
_INSTEAD: dict[tuple[Any, int], RaftError] = {
    (wire.FetchSnapshotResponse, ErrorCode.UNKNOWN_SERVER_ERROR): RaftError.SNAPSHOT_NOT_FOUND
}
"""A refusal of a snapshot in Kafka 3.7 may say nothing else."""


_APIS: dict[Any, str] = {form.raft: form.api for form in FORMS}


def api_of(request: RaftRequest) -> str:
    """The name of the API by which a request is sent. Raises CannotSay."""
    api = _APIS.get(type(request))
    if api is None:
        raise CannotSay(f"{type(request).__name__} has no form in Kafka's protocol")
    return api


@cache
def _of_value(kind: Hashable, version: int) -> tuple[MessageForm, Compiled]:
    return _OF_RAFT[kind], compiled(_OF_RAFT[kind], version)


@cache
def _of_body(kind: Hashable, version: int) -> tuple[MessageForm, Compiled]:
    return _OF_WIRE[kind], compiled(_OF_WIRE[kind], version)


# ---- to bodies -------------------------------------------------------------------------------------


def request_body(request: RaftRequest, version: int) -> Any:
    """The body of a request in this version of its API. Raises CannotSay."""
    api_of(request)
    return _of_value(type(request), version)[1].to_body(request, ())


def response_body(response: RaftResponse, version: int, leader: Endpoint | None = None) -> Any:
    """The body of a response. `leader`: where the leader that it names listens, None: that is not known."""
    form, way = _of_value(type(response), version)
    if response.error in _OF_THE_WHOLE:
        return form.wire(error_code=int(response.error))
    nodes: tuple[Any, ...] = ()
    if isinstance(response, raft.VoterChangeResponse):
        has_address = leader is not None and response.leader_id is not None
        response = replace(response, leader_endpoints=(leader,) if has_address else ())
    elif leader is not None and response.leader_id is not None and version >= form.nodes_since:
        kind = form.wire.NodeEndpoint
        nodes = (kind(node_id=response.leader_id, host=leader.host, port=leader.port),)
    return way.to_body(response, nodes)


def refusal(body: Any, code: ErrorCode) -> Any:
    """The response to the request in `body`, with an error of the whole."""
    return _RESPONSES[type(body).__name__.removesuffix("Request")](error_code=code)


# ---- from bodies -----------------------------------------------------------------------------------


def request_of(body: Any, version: int, *, cluster_id: str, node_id: int) -> Any:
    """The request in a body. `cluster_id` and `node_id` are the receiver's, for a body that names none.
    Raises Misshapen."""
    kind: Any = type(body)
    form, way = _of_body(kind, version)
    values = way.of_whole(body)
    if form.topics:
        partition = way.partition(body)
        if partition is None:
            raise Misshapen(f"{form.api} of something else than partition 0 of {METADATA_TOPIC}")
        values.update(way.of_partition(partition))
    if values["cluster_id"] is None:
        values["cluster_id"] = cluster_id
    if values.get("voter_id") == NOT_NAMED:
        values["voter_id"] = node_id
    _add_tagged(form, body, values)
    request = form.raft(**values)
    if request.cluster_id == cluster_id and not form.is_sound(request):
        raise Misshapen(f"{form.api} with offsets or epochs that no log has")
    return request


def response_of(body: Any, version: int, request: RaftRequest | None = None) -> Any:
    """The response in a body, to `request` (needed for votes). Its leader's endpoint has no listener's name.
    Raises NotOfRaft or Misshapen."""
    kind: Any = type(body)
    form, way = _of_body(kind, version)
    code: int = body.error_code if form.topics else 0
    partition = way.partition(body) if form.topics and not code else None
    values = {"epoch": 0, "leader_id": None, **dict(form.missing)}
    if code:
        values["error"] = _INSTEAD.get((form.wire, code)) or _error(code)
    elif not form.topics:
        values.update(way.of_whole(body))
    elif partition is None:
        raise Misshapen(f"its answer to {form.api} names no partition of {METADATA_TOPIC}")
    else:
        values.update(way.of_partition(partition))
    if form.topics:
        values["leader_endpoints"] = tuple(
            [
                Endpoint("", each.host, each.port)
                for each in body.node_endpoints
                if each.node_id == values["leader_id"]
            ]
        )
    for name in form.echoed:
        values[name] = getattr(request, name)
    _add_tagged(form, body, values)
    return form.raft(**values)


def _add_tagged(form: MessageForm, body: Any, values: dict[str, Any]) -> None:
    """Adds the values of our tagged fields."""
    tags = dict(body.unknown_tags) if body.unknown_tags else _NO_TAGS
    for tag in form.tags:
        data = tags.get(tag.number)
        if data is None:
            values[tag.name] = tag.absent(values)
            continue
        try:
            values[tag.name] = tag.to_raft(*tag.form.unpack(data))
        except struct.error as error:
            raise Misshapen(f"{form.api}: the tagged field {tag.number} is not {tag.name}") from error


_NO_TAGS: dict[int, bytes] = {}
