"""Every field of every Raft message survives the way through protobuf, also fields that are added later."""

from __future__ import annotations

import typing

import pytest
from msgspec import structs

from metaquorum.proto import raft_pb2 as pb
from metaquorum.raft.messages import (
    AddVoterRequest,
    FetchResponse,
    RaftError,
    RaftRequest,
    RaftResponse,
    RemoveVoterRequest,
    UpgradeRequest,
    VoteResponse,
)
from metaquorum.raft.voters import Endpoint, PreferredCandidate, VersionRange, VoterNode
from metaquorum.rpc.messages import raft as raft_codec
from metaquorum.storage.types import LogPosition

OF_THE_DRIVER = {AddVoterRequest, RemoveVoterRequest, UpgradeRequest}
"""A core gets these from its own driver; no replica sends them to another."""
REQUESTS = [kind for kind in typing.get_args(RaftRequest) if kind not in OF_THE_DRIVER]
RESPONSES = typing.get_args(RaftResponse)


def filled(kind: type, *, absent: bool) -> typing.Any:
    """A message whose fields all differ from each other and from their defaults; with `absent`, every field
    that may be None is."""
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for number, one in enumerate(structs.fields(kind), start=3):
        options = typing.get_args(hints[one.name])
        if absent and type(None) in options:
            values[one.name] = None
            continue
        wanted = options[0] if type(None) in options else hints[one.name]
        examples: dict[object, object] = {
            str: f"text {number}",
            int: number,
            bool: True,
            bytes: bytes([number] * 16),
            RaftError: RaftError.FENCED_LEADER_EPOCH,
            LogPosition: LogPosition(number, number * 100),
            tuple[PreferredCandidate, ...]: (
                PreferredCandidate(number, bytes([number]) * 16),
                PreferredCandidate(0, b""),
            ),
            tuple[Endpoint, ...]: (Endpoint("CONTROLLER", "a", number), Endpoint("OTHER", "b", 65_535)),
            VoterNode: VoterNode(
                node_id=number,
                directory_id=None if absent else bytes([number]) * 16,
                endpoints=(Endpoint("CONTROLLER", "c", 0),),
                versions=VersionRange(1, number),
            ),
        }
        values[one.name] = examples[wanted]
    return kind(**values)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_requests_keep_every_field(kind: type, absent: bool) -> None:
    message = filled(kind, absent=absent)
    envelope = pb.RaftEnvelope.FromString(raft_codec.encode(7, message).SerializeToString())
    assert envelope.correlation_id == 7
    assert raft_codec.decode_request(envelope) == message


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
def test_responses_keep_every_field(kind: type, absent: bool) -> None:
    message = filled(kind, absent=absent)
    envelope = pb.RaftEnvelope.FromString(raft_codec.encode(9, message).SerializeToString())
    assert raft_codec.decode_response(envelope) == message


@pytest.mark.parametrize("size", [0, 1, raft_codec.LARGE_BYTES - 1, raft_codec.LARGE_BYTES, 300_000])
def test_bytes_of_a_response_are_those_of_its_envelope(size: int) -> None:
    response = structs.replace(filled(FetchResponse, absent=False), records=bytes([7]) * size)
    envelope = pb.RaftEnvelope.FromString(raft_codec.encode_response(1 << 40, response))
    assert envelope.correlation_id == 1 << 40
    assert raft_codec.decode_response(envelope) == response
    vote = filled(VoteResponse, absent=True)
    assert raft_codec.decode_response(pb.RaftEnvelope.FromString(raft_codec.encode_response(2, vote))) == vote


def test_a_message_of_defaults_only_is_still_a_message() -> None:
    kind = next(kind for kind in RESPONSES if kind.__name__ == "BeginQuorumEpochResponse")
    message = kind(error=RaftError.NONE, epoch=0, leader_id=None)
    envelope = pb.RaftEnvelope.FromString(raft_codec.encode(1, message).SerializeToString())
    assert raft_codec.decode_response(envelope) == message


@pytest.mark.parametrize(
    "envelope",
    [
        pb.RaftEnvelope(correlation_id=1),
        pb.RaftEnvelope(fetch_response=pb.FetchResponse()),
        pb.RaftEnvelope(fetch_request=pb.FetchRequest(replica_directory_id=b"short")),
    ],
    ids=["empty", "a response", "a bad directory id"],
)
def test_what_is_no_request_is_refused(envelope: pb.RaftEnvelope) -> None:
    with pytest.raises(raft_codec.EnvelopeError):
        raft_codec.decode_request(envelope)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in REQUESTS if any(one.name == "voter_directory_id" for one in structs.fields(kind))],
    ids=lambda kind: kind.__name__,
)
def test_the_voter_that_is_asked_may_have_no_known_directory(kind: type) -> None:
    """`id@host:port` in controller.quorum.voters pins none."""
    message = structs.replace(filled(kind, absent=False), voter_directory_id=b"")
    envelope = pb.RaftEnvelope.FromString(raft_codec.encode(7, message).SerializeToString())
    assert raft_codec.decode_request(envelope) == message
    short = structs.replace(message, voter_directory_id=b"short")
    with pytest.raises(raft_codec.EnvelopeError, match="16 bytes"):
        raft_codec.decode_request(pb.RaftEnvelope.FromString(raft_codec.encode(7, short).SerializeToString()))


def test_an_error_code_from_the_future_is_refused() -> None:
    envelope = pb.RaftEnvelope(vote_response=pb.VoteResponse(error=31_000))
    with pytest.raises(raft_codec.EnvelopeError, match="31000"):
        raft_codec.decode_response(envelope)
