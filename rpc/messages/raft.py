"""Raft messages between dataclasses and protobuf.

Malformed envelopes (no body, an unknown error code, a directory id that is not 16 bytes, or a missing one
where it is required) raise `EnvelopeError`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from msgspec.structs import replace

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft import messages as raft
from metaquorum.raft.messages import RaftRequest, RaftResponse
from metaquorum.rpc.messages.codec import MessageCodec
from metaquorum.rpc.messages.shapes import FieldRule
from metaquorum.storage.uuids import UUID_BYTES

LARGE_BYTES = 4096
"""Records of at least this many bytes are written into their envelope without protobuf, to copy them once."""


class EnvelopeError(ValueError):
    """A peer sent bytes that are not a Raft message of this release."""


def _directory(value: bytes) -> bytes:
    if len(value) != UUID_BYTES:
        raise EnvelopeError(f"a directory id has {UUID_BYTES} bytes, not {len(value)}")
    return value


def _named_directory(value: bytes) -> bytes:
    """A voter's directory id; empty if the sender does not know it."""
    return _directory(value) if value else b""


_DIRECTORY = FieldRule(check=_directory)
_NAMED_DIRECTORY = FieldRule(check=_named_directory)
_VOTER = FieldRule(
    nested={"directory_id": _DIRECTORY, "versions": FieldRule(spread=("lowest_version", "highest_version"))}
)

REQUESTS: dict[str, MessageCodec[Any, Any]] = {
    "vote_request": MessageCodec(
        raft.VoteRequest,
        pb.VoteRequest,
        candidate_directory_id=_DIRECTORY,
        voter_directory_id=_NAMED_DIRECTORY,
        last_position=FieldRule(spread=("last_epoch", "last_offset")),
    ),
    "begin_request": MessageCodec(
        raft.BeginQuorumEpochRequest, pb.BeginQuorumEpochRequest, voter_directory_id=_NAMED_DIRECTORY
    ),
    "end_request": MessageCodec(
        raft.EndQuorumEpochRequest,
        pb.EndQuorumEpochRequest,
        preferred_candidates=FieldRule(nested={"directory_id": _NAMED_DIRECTORY}),
    ),
    "fetch_request": MessageCodec(raft.FetchRequest, pb.FetchRequest, replica_directory_id=_DIRECTORY),
    "snapshot_request": MessageCodec(
        raft.FetchSnapshotRequest, pb.FetchSnapshotRequest, replica_directory_id=_DIRECTORY
    ),
    "update_voter_request": MessageCodec(raft.UpdateVoterRequest, pb.UpdateVoterRequest, voter=_VOTER),
}
RESPONSES: dict[str, MessageCodec[Any, Any]] = {
    "vote_response": MessageCodec(raft.VoteResponse, pb.VoteResponse),
    "begin_response": MessageCodec(raft.BeginQuorumEpochResponse, pb.BeginQuorumEpochResponse),
    "end_response": MessageCodec(raft.EndQuorumEpochResponse, pb.EndQuorumEpochResponse),
    "fetch_response": MessageCodec(raft.FetchResponse, pb.FetchResponse),
    "snapshot_response": MessageCodec(raft.FetchSnapshotResponse, pb.FetchSnapshotResponse),
    "voter_change_response": MessageCodec(raft.VoterChangeResponse, pb.VoterChangeResponse),
}
"""The codec of an envelope's body, by the envelope's field."""

_BODIES = {codec.value: (field, codec) for field, codec in (REQUESTS | RESPONSES).items()}


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(message: Any, field: str) -> bytes:
    """The tag that precedes a length-delimited field."""
    return _uvarint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2)


_RECORDS_TAG = _tag(pb.FetchResponse, "records")
_FETCH_RESPONSE_TAG = _tag(pb.RaftEnvelope, "fetch_response")


def encode(correlation_id: int, message: RaftRequest | RaftResponse) -> pb.RaftEnvelope:
    """The envelope of one request or response."""
    field, codec = _BODIES[type(message)]
    body: dict[str, Any] = {field: codec.to_pb(message)}
    return pb.RaftEnvelope(correlation_id=correlation_id, **body)


def encode_response(correlation_id: int, response: RaftResponse) -> bytes:
    """The bytes of a response's envelope. Copies records once instead of three times: when a broker dies, a
    leader sends the same half megabyte to hundreds of nodes."""
    if type(response) is not raft.FetchResponse or len(response.records) < LARGE_BYTES:
        return encode(correlation_id, response).SerializeToString()
    records = response.records
    body = RESPONSES["fetch_response"].to_pb(replace(response, records=b"")).SerializeToString()
    in_body = _RECORDS_TAG + _uvarint(len(records))
    head = pb.RaftEnvelope(correlation_id=correlation_id).SerializeToString()
    length = _uvarint(len(body) + len(in_body) + len(records))
    return b"".join((head, _FETCH_RESPONSE_TAG, length, body, in_body, records))


def parse(data: bytes) -> pb.RaftEnvelope:
    """The envelope in these bytes. Raises EnvelopeError."""
    try:
        return pb.RaftEnvelope.FromString(data)
    except DecodeError as error:
        raise EnvelopeError("its bytes cannot be decoded") from error


def decode_request(envelope: pb.RaftEnvelope) -> RaftRequest:
    """The request in an envelope. Raises EnvelopeError."""
    kind: Any = envelope.WhichOneof("body")
    codec = REQUESTS.get(kind)
    if codec is None:
        raise EnvelopeError(f"expected a request, but the envelope holds {kind or 'an unknown message'}")
    request: RaftRequest = codec.from_pb(getattr(envelope, kind))
    return request


def decode_response(envelope: pb.RaftEnvelope) -> RaftResponse:
    """The response in an envelope. Raises EnvelopeError."""
    kind: Any = envelope.WhichOneof("body")
    codec = RESPONSES.get(kind)
    if codec is None:
        raise EnvelopeError(f"expected a response, but the envelope holds {kind or 'an unknown message'}")
    try:
        response: RaftResponse = codec.from_pb(getattr(envelope, kind))
    except ValueError as error:
        raise EnvelopeError(str(error)) from error
    return response
