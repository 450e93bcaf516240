"""Raft messages between dataclasses and protobuf. Sentinels and absent fields exist here only.

Owns the shape of an envelope; knows no stream and no clock. Malformed envelopes (no body, an error code
from the future, a directory id that is not 16 bytes, or absent where it must be) raise `EnvelopeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    VoteRequest,
    VoteResponse,
)
from metaquorum.storage.types import LogPosition

LARGE_BYTES = 4096
"""Records from this size on are put into their envelope by hand."""


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(message: Any, field: str) -> bytes:
    """What stands before a length-delimited field."""
    return _uvarint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2)


_RECORDS_TAG = _tag(pb.FetchResponse, "records")
_FETCH_RESPONSE_TAG = _tag(pb.RaftEnvelope, "fetch_response")


class EnvelopeError(ValueError):
    """A peer sent what is no Raft message of ours."""


def encode(correlation_id: int, message: RaftRequest | RaftResponse) -> pb.RaftEnvelope:
    """The envelope of one request or response."""
    field, convert = _ENCODERS[type(message)]
    body: dict[str, Any] = {field: convert(message)}
    return pb.RaftEnvelope(correlation_id=correlation_id, **body)


def encode_response(correlation_id: int, response: RaftResponse) -> bytes:
    """The bytes of a response's envelope. Records are copied once instead of three times: a broker's death
    sends the same half megabyte to hundreds."""
    if type(response) is not FetchResponse or len(response.records) < LARGE_BYTES:
        return encode(correlation_id, response).SerializeToString()
    records = response.records
    body = _fetch_response(replace(response, records=b"")).SerializeToString()
    in_body = _RECORDS_TAG + _uvarint(len(records))
    head = pb.RaftEnvelope(correlation_id=correlation_id).SerializeToString()
    length = _uvarint(len(body) + len(in_body) + len(records))
    return b"".join((head, _FETCH_RESPONSE_TAG, length, body, in_body, records))


def decode_request(envelope: pb.RaftEnvelope) -> RaftRequest:
    """The request inside; raises EnvelopeError if there is none."""
    kind: Any = envelope.WhichOneof("body")
    convert = _REQUEST_DECODERS.get(kind)
    if convert is None:
        raise EnvelopeError(f"expected a request, but the envelope holds {kind or 'an unknown message'}")
    return convert(getattr(envelope, kind))


def decode_response(envelope: pb.RaftEnvelope) -> RaftResponse:
    """The response inside; raises EnvelopeError if there is none."""
    kind: Any = envelope.WhichOneof("body")
    convert = _RESPONSE_DECODERS.get(kind)
    if convert is None:
        raise EnvelopeError(f"expected a response, but the envelope holds {kind or 'an unknown message'}")
    try:
        return convert(getattr(envelope, kind))
    except ValueError as error:
        raise EnvelopeError(str(error)) from error


def _named_directory(value: bytes) -> bytes:
    """The directory of the voter that is asked; nothing: the sender's list of voters names none."""
    return _directory(value) if value else b""


def _directory(value: bytes) -> bytes:
    if len(value) != 16:
        raise EnvelopeError(f"a directory id has 16 bytes, not {len(value)}")
    return value


def _position(value: pb.LogPosition) -> LogPosition:
    return LogPosition(value.epoch, value.offset)


def _pb_position(value: LogPosition | None) -> pb.LogPosition | None:
    return None if value is None else pb.LogPosition(epoch=value.epoch, offset=value.offset)


def _leader(value: Any) -> int | None:
    return value.leader_id if value.HasField("leader_id") else None


# ---- votes and epochs ----------------------------------------------------------------------------


def _vote_request(m: VoteRequest) -> pb.VoteRequest:
    return pb.VoteRequest(
        cluster_id=m.cluster_id,
        epoch=m.epoch,
        candidate_id=m.candidate_id,
        candidate_directory_id=m.candidate_directory_id,
        voter_id=m.voter_id,
        voter_directory_id=m.voter_directory_id,
        last_epoch=m.last_position.epoch,
        last_offset=m.last_position.offset,
        pre_vote=m.pre_vote,
    )


def _to_vote_request(p: pb.VoteRequest) -> VoteRequest:
    return VoteRequest(
        cluster_id=p.cluster_id,
        epoch=p.epoch,
        candidate_id=p.candidate_id,
        candidate_directory_id=_directory(p.candidate_directory_id),
        voter_id=p.voter_id,
        voter_directory_id=_named_directory(p.voter_directory_id),
        last_position=LogPosition(p.last_epoch, p.last_offset),
        pre_vote=p.pre_vote,
    )


def _vote_response(m: VoteResponse) -> pb.VoteResponse:
    return pb.VoteResponse(
        error=m.error, epoch=m.epoch, leader_id=m.leader_id, vote_granted=m.vote_granted, pre_vote=m.pre_vote
    )


def _to_vote_response(p: pb.VoteResponse) -> VoteResponse:
    return VoteResponse(
        error=RaftError(p.error),
        epoch=p.epoch,
        leader_id=_leader(p),
        vote_granted=p.vote_granted,
        pre_vote=p.pre_vote,
    )


def _begin_request(m: BeginQuorumEpochRequest) -> pb.BeginQuorumEpochRequest:
    return pb.BeginQuorumEpochRequest(
        cluster_id=m.cluster_id,
        epoch=m.epoch,
        leader_id=m.leader_id,
        voter_id=m.voter_id,
        voter_directory_id=m.voter_directory_id,
    )


def _to_begin_request(p: pb.BeginQuorumEpochRequest) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(
        cluster_id=p.cluster_id,
        epoch=p.epoch,
        leader_id=p.leader_id,
        voter_id=p.voter_id,
        voter_directory_id=_named_directory(p.voter_directory_id),
    )


def _begin_response(m: BeginQuorumEpochResponse) -> pb.BeginQuorumEpochResponse:
    return pb.BeginQuorumEpochResponse(error=m.error, epoch=m.epoch, leader_id=m.leader_id)


def _to_begin_response(p: pb.BeginQuorumEpochResponse) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error=RaftError(p.error), epoch=p.epoch, leader_id=_leader(p))


def _end_request(m: EndQuorumEpochRequest) -> pb.EndQuorumEpochRequest:
    return pb.EndQuorumEpochRequest(
        cluster_id=m.cluster_id,
        epoch=m.epoch,
        leader_id=m.leader_id,
        preferred_successors=m.preferred_successors,
    )


def _to_end_request(p: pb.EndQuorumEpochRequest) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(
        cluster_id=p.cluster_id,
        epoch=p.epoch,
        leader_id=p.leader_id,
        preferred_successors=tuple(p.preferred_successors),
    )


def _end_response(m: EndQuorumEpochResponse) -> pb.EndQuorumEpochResponse:
    return pb.EndQuorumEpochResponse(error=m.error, epoch=m.epoch, leader_id=m.leader_id)


def _to_end_response(p: pb.EndQuorumEpochResponse) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error=RaftError(p.error), epoch=p.epoch, leader_id=_leader(p))


# ---- fetches -------------------------------------------------------------------------------------


def _fetch_request(m: FetchRequest) -> pb.FetchRequest:
    return pb.FetchRequest(
        cluster_id=m.cluster_id,
        replica_id=m.replica_id,
        replica_directory_id=m.replica_directory_id,
        epoch=m.epoch,
        fetch_offset=m.fetch_offset,
        last_fetched_epoch=m.last_fetched_epoch,
        high_watermark=m.high_watermark,
        max_wait_ms=m.max_wait_ms,
        max_bytes=m.max_bytes,
        read_round=m.read_round,
    )


def _to_fetch_request(p: pb.FetchRequest) -> FetchRequest:
    return FetchRequest(
        cluster_id=p.cluster_id,
        replica_id=p.replica_id,
        replica_directory_id=_directory(p.replica_directory_id),
        epoch=p.epoch,
        fetch_offset=p.fetch_offset,
        last_fetched_epoch=p.last_fetched_epoch,
        high_watermark=p.high_watermark,
        max_wait_ms=p.max_wait_ms,
        max_bytes=p.max_bytes,
        read_round=p.read_round,
    )


def _fetch_response(m: FetchResponse) -> pb.FetchResponse:
    return pb.FetchResponse(
        error=m.error,
        epoch=m.epoch,
        leader_id=m.leader_id,
        high_watermark=m.high_watermark,
        log_start_offset=m.log_start_offset,
        diverging=_pb_position(m.diverging),
        snapshot=_pb_position(m.snapshot),
        records=m.records,
        read_round=m.read_round,
    )


def _to_fetch_response(p: pb.FetchResponse) -> FetchResponse:
    return FetchResponse(
        error=RaftError(p.error),
        epoch=p.epoch,
        leader_id=_leader(p),
        high_watermark=p.high_watermark,
        log_start_offset=p.log_start_offset,
        diverging=_position(p.diverging) if p.HasField("diverging") else None,
        snapshot=_position(p.snapshot) if p.HasField("snapshot") else None,
        records=p.records,
        read_round=p.read_round,
    )


def _snapshot_request(m: FetchSnapshotRequest) -> pb.FetchSnapshotRequest:
    return pb.FetchSnapshotRequest(
        cluster_id=m.cluster_id,
        replica_id=m.replica_id,
        replica_directory_id=m.replica_directory_id,
        epoch=m.epoch,
        snapshot=_pb_position(m.snapshot),
        position=m.position,
        max_bytes=m.max_bytes,
    )


def _to_snapshot_request(p: pb.FetchSnapshotRequest) -> FetchSnapshotRequest:
    return FetchSnapshotRequest(
        cluster_id=p.cluster_id,
        replica_id=p.replica_id,
        replica_directory_id=_directory(p.replica_directory_id),
        epoch=p.epoch,
        snapshot=_position(p.snapshot),
        position=p.position,
        max_bytes=p.max_bytes,
    )


def _snapshot_response(m: FetchSnapshotResponse) -> pb.FetchSnapshotResponse:
    return pb.FetchSnapshotResponse(
        error=m.error,
        epoch=m.epoch,
        leader_id=m.leader_id,
        snapshot=_pb_position(m.snapshot),
        size_bytes=m.size_bytes,
        position=m.position,
        data=m.data,
    )


def _to_snapshot_response(p: pb.FetchSnapshotResponse) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        error=RaftError(p.error),
        epoch=p.epoch,
        leader_id=_leader(p),
        snapshot=_position(p.snapshot) if p.HasField("snapshot") else None,
        size_bytes=p.size_bytes,
        position=p.position,
        data=p.data,
    )


_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    VoteRequest: ("vote_request", _vote_request),
    VoteResponse: ("vote_response", _vote_response),
    BeginQuorumEpochRequest: ("begin_request", _begin_request),
    BeginQuorumEpochResponse: ("begin_response", _begin_response),
    EndQuorumEpochRequest: ("end_request", _end_request),
    EndQuorumEpochResponse: ("end_response", _end_response),
    FetchRequest: ("fetch_request", _fetch_request),
    FetchResponse: ("fetch_response", _fetch_response),
    FetchSnapshotRequest: ("snapshot_request", _snapshot_request),
    FetchSnapshotResponse: ("snapshot_response", _snapshot_response),
}
_REQUEST_DECODERS: dict[str, Callable[[Any], RaftRequest]] = {
    "vote_request": _to_vote_request,
    "begin_request": _to_begin_request,
    "end_request": _to_end_request,
    "fetch_request": _to_fetch_request,
    "snapshot_request": _to_snapshot_request,
}
_RESPONSE_DECODERS: dict[str, Callable[[Any], RaftResponse]] = {
    "vote_response": _to_vote_response,
    "begin_response": _to_begin_response,
    "end_response": _to_end_response,
    "fetch_response": _to_fetch_response,
    "snapshot_response": _to_snapshot_response,
}
