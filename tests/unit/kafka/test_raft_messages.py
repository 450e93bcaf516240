"""Raft's messages in Kafka's protocol: each value arrives in every version as far as that can carry it, and
what Kafka 3.7's voters said to each other comes back equal."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from metaquorum.clients.kafka import raft_messages
from metaquorum.clients.kafka.message_forms import CannotSay
from metaquorum.clients.kafka.raft_messages import (
    Misshapen,
    NotOfRaft,
    request_body,
    request_of,
    response_body,
    response_of,
)
from metaquorum.raft import messages as raft
from metaquorum.raft.messages import RaftError
from metaquorum.raft.voters import Endpoint, PreferredCandidate, VersionRange, VoterNode
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire import messages as wire
from metaquorum.wire.table import API_BY_NAME

CLUSTER, OWN = "d2lyZS1jYXB0dXJlLTM3MA", 3001
VERSIONS = {
    "Vote": range(3),
    "BeginQuorumEpoch": range(2),
    "EndQuorumEpoch": range(2),
    "Fetch": range(12, 19),
    "FetchSnapshot": range(2),
    "UpdateRaftVoter": range(1),
}
HIGHEST = {api: versions[-1] for api, versions in VERSIONS.items()}

INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 2)
NODE, UUID = st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16).filter(any)
DIRECTORY = st.one_of(st.just(b""), UUID)
PORT, WORD = st.integers(0, 2**16 - 1), st.text(max_size=9)
POSITION = st.builds(LogPosition, INT32, INT64)
ENDPOINTS = st.lists(st.builds(Endpoint, WORD, WORD, PORT), max_size=2).map(tuple)
LEADER = st.one_of(st.none(), NODE)
CLUSTERS = st.text(min_size=1, max_size=22)
ERRORS = st.sampled_from([each for each in RaftError if each is not RaftError.INCONSISTENT_CLUSTER_ID])


@st.composite
def _votes(draw: st.DrawFn) -> raft.VoteRequest:
    pre_vote, last = draw(st.booleans()), draw(POSITION)
    epoch = draw(st.integers(min(2**31 - 1, last.epoch + (not pre_vote)), 2**31 - 1))
    return raft.VoteRequest(
        cluster_id=draw(CLUSTERS),
        epoch=epoch,
        candidate_id=draw(NODE),
        candidate_directory_id=draw(DIRECTORY),
        voter_id=draw(NODE),
        voter_directory_id=draw(DIRECTORY),
        last_position=last if last.epoch < epoch + pre_vote else LogPosition(0, last.offset),
        pre_vote=pre_vote,
        kraft_version=draw(st.integers(0, 1)),
    )


@st.composite
def _fetches(draw: st.DrawFn) -> raft.FetchRequest:
    epoch = draw(INT32)
    return raft.FetchRequest(
        cluster_id=draw(CLUSTERS),
        replica_id=draw(st.integers(-1, 2**31 - 1)),
        replica_directory_id=draw(DIRECTORY),
        epoch=epoch,
        fetch_offset=draw(INT64),
        last_fetched_epoch=draw(st.integers(0, epoch)),
        high_watermark=draw(st.one_of(st.just(-1), st.just(raft.UNSTATED), INT64)),
        max_wait_ms=draw(INT32),
        max_bytes=draw(INT32),
        read_round=draw(INT64),
    )


REQUESTS = st.one_of(
    _votes(),
    _fetches(),
    st.builds(
        raft.BeginQuorumEpochRequest,
        cluster_id=CLUSTERS,
        epoch=INT32,
        leader_id=NODE,
        voter_id=NODE,
        voter_directory_id=DIRECTORY,
        leader_endpoints=ENDPOINTS,
    ),
    st.builds(
        raft.EndQuorumEpochRequest,
        cluster_id=CLUSTERS,
        epoch=INT32,
        leader_id=NODE,
        preferred_candidates=st.lists(st.builds(PreferredCandidate, NODE, DIRECTORY), max_size=3).map(tuple),
        leader_endpoints=ENDPOINTS,
    ),
    st.builds(
        raft.FetchSnapshotRequest,
        cluster_id=CLUSTERS,
        replica_id=st.integers(-1, 2**31 - 1),
        replica_directory_id=DIRECTORY,
        epoch=INT32,
        snapshot=POSITION,
        position=INT64,
        max_bytes=INT32,
    ),
    st.builds(
        raft.UpdateVoterRequest,
        cluster_id=CLUSTERS,
        epoch=INT32,
        voter=st.builds(
            VoterNode,
            node_id=NODE,
            directory_id=UUID,
            endpoints=ENDPOINTS,
            versions=st.builds(VersionRange, st.integers(0, 9), st.integers(0, 9)),
        ),
    ),
)
SIMPLE = {"error": ERRORS, "epoch": INT32, "leader_id": LEADER}
RESPONSES = st.one_of(
    st.builds(
        raft.VoteResponse,
        **SIMPLE,
        vote_granted=st.booleans(),
        pre_vote=st.booleans(),
        last_position=st.one_of(st.none(), POSITION),
        known_committed=st.one_of(st.none(), POSITION),
    ),
    st.builds(raft.BeginQuorumEpochResponse, **SIMPLE),
    st.builds(raft.EndQuorumEpochResponse, **SIMPLE),
    st.builds(
        raft.FetchResponse,
        **SIMPLE,
        high_watermark=st.integers(-1, 2**63 - 2),
        log_start_offset=INT64,
        diverging=st.one_of(st.none(), POSITION),
        snapshot=st.one_of(st.none(), POSITION),
        records=st.binary(max_size=60),
        read_round=INT64,
    ),
    st.builds(
        raft.FetchSnapshotResponse,
        **SIMPLE,
        snapshot=st.one_of(st.none(), POSITION),
        size_bytes=INT64,
        position=INT64,
        data=st.binary(max_size=60),
    ),
    st.builds(raft.VoterChangeResponse, **SIMPLE),
)


def sent(request: Any, version: int) -> Any:
    """The request as its receiver has it."""
    header = codec.RequestHeader(API_BY_NAME[raft_messages.api_of(request)].key, version, 1)
    frame = b"".join(codec.encode_request(header, request_body(request, version)))
    return request_of(codec.decode_request(frame).body, version, cluster_id=CLUSTER, node_id=OWN)


def answered(response: Any, api: str, version: int, to: Any = None, leader: Endpoint | None = None) -> Any:
    """The response as its receiver has it."""
    key = API_BY_NAME[api].key
    frame = b"".join(codec.encode_response(key, version, 1, response_body(response, version, leader)))
    return response_of(codec.decode_response(key, version, frame).body, version, to)


@given(request=REQUESTS)
def test_the_newest_version_carries_a_whole_request(request: Any) -> None:
    assert sent(request, HIGHEST[raft_messages.api_of(request)]) == request


@given(request=REQUESTS, data=st.data())
def test_an_older_version_carries_what_kafkas_nodes_say(request: Any, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS[raft_messages.api_of(request)]))
    if isinstance(request, raft.VoteRequest) and request.pre_vote and version < 2:
        with pytest.raises(CannotSay, match="cannot carry pre_vote"):
            request_body(request, version)
        return
    lost: dict[str, Any] = {}
    match request:
        case raft.VoteRequest() if version < 1:
            lost = {"voter_id": OWN, "voter_directory_id": b"", "candidate_directory_id": b""}
        case raft.BeginQuorumEpochRequest() if version < 1:
            lost = {"voter_id": OWN, "voter_directory_id": b"", "leader_endpoints": ()}
        case raft.EndQuorumEpochRequest() if version < 1:
            named = tuple(PreferredCandidate(each.node_id, b"") for each in request.preferred_candidates)
            lost = {"preferred_candidates": named, "leader_endpoints": ()}
        case raft.FetchSnapshotRequest() if version < 1:
            lost = {"replica_directory_id": b""}
        case raft.FetchRequest() if version < 18:
            lost = {"high_watermark": raft.UNSTATED}
            lost |= {"replica_directory_id": b""} if version < 17 else {}
    assert sent(request, version) == replace(request, **lost)


@given(response=RESPONSES, data=st.data())
def test_every_version_carries_a_response(response: Any, data: st.DataObject) -> None:
    api = "UpdateRaftVoter"
    if not isinstance(response, raft.VoterChangeResponse):
        api = type(response).__name__.removesuffix("Response")
    version = data.draw(st.sampled_from(VERSIONS[api]))
    assert answered(response, api, version, response) == response


@given(response=RESPONSES, host=WORD, port=PORT)
def test_a_leader_is_named_with_its_address_from_kip_853_on(response: Any, host: str, port: int) -> None:
    is_change = isinstance(response, raft.VoterChangeResponse)
    api = "UpdateRaftVoter" if is_change else type(response).__name__.removesuffix("Response")
    leader = Endpoint("KAFKA", host, port)
    found = answered(response, api, HIGHEST[api], response, leader)
    named = () if response.leader_id is None else (Endpoint("", host, port),)
    assert found == replace(response, leader_endpoints=named)
    if is_change:  # it has one version, and Kafka 3.9 follows nobody whose address it lacks
        return
    older = 16 if api == "Fetch" else 0
    assert answered(response, api, older, response, leader) == response


def test_a_candidate_of_kafka_with_a_voters_record_names_directories() -> None:
    """kraft.version is not said by Kafka's candidates: a voter's directory is known from a record only."""
    partition = wire.VoteRequest.PartitionData(
        replica_epoch=2, replica_id=1, voter_directory_id=b"v" * 16, replica_directory_id=b"c" * 16
    )
    topic = wire.VoteRequest.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    body = wire.VoteRequest(cluster_id=CLUSTER, voter_id=OWN, topics=(topic,))
    assert request_of(body, 1, cluster_id=CLUSTER, node_id=OWN).kraft_version == 1
    assert request_of(body, 0, cluster_id=CLUSTER, node_id=OWN).kraft_version == 0


def test_another_cluster_is_answered_for_the_whole_request() -> None:
    refusal = raft.VoteResponse(
        error=RaftError.INCONSISTENT_CLUSTER_ID, epoch=7, leader_id=1, vote_granted=False, pre_vote=True
    )
    assert response_body(refusal, 2) == wire.VoteResponse(error_code=104)
    assert answered(refusal, "Vote", 2, refusal) == replace(refusal, epoch=0, leader_id=None)


def test_what_is_no_answer_of_raft_is_refused() -> None:
    with pytest.raises(NotOfRaft, match="CLUSTER_AUTHORIZATION_FAILED") as refused:
        response_of(wire.VoteResponse(error_code=31), 0)
    assert refused.value.code == 31
    with pytest.raises(Misshapen, match="names no partition"):
        response_of(wire.VoteResponse(), 0)
    other = wire.VoteResponse.TopicData(topic_name="orders", partitions=(wire.VoteResponse.PartitionData(),))
    with pytest.raises(Misshapen, match="names no partition"):
        response_of(wire.VoteResponse(topics=(other,)), 0)


def test_a_tagged_field_of_another_length_is_refused() -> None:
    body = request_body(FETCH, 18)
    (tag,) = body.unknown_tags
    broken = replace(body, unknown_tags=((tag[0], tag[1][1:]),))
    with pytest.raises(Misshapen, match="read_round"):
        request_of(broken, 18, cluster_id=CLUSTER, node_id=OWN)


def test_what_no_node_can_mean_is_refused_by_the_form() -> None:
    """A candidate's epoch is above every epoch in its log; a pre-vote's may be the last one there."""
    vote = raft.VoteRequest(
        cluster_id=CLUSTER,
        epoch=7,
        candidate_id=1,
        candidate_directory_id=b"",
        voter_id=OWN,
        voter_directory_id=b"",
        last_position=LogPosition(6, 5),
        pre_vote=False,
    )
    assert sent(vote, 2) == vote
    assert sent(replace(vote, last_position=LogPosition(7, 5), pre_vote=True), 2).pre_vote
    unsound: list[Any] = [
        replace(vote, last_position=LogPosition(7, 5)),
        replace(vote, last_position=LogPosition(8, 5), pre_vote=True),
        replace(vote, last_position=LogPosition(6, -1)),
        replace(FETCH, last_fetched_epoch=4),
        replace(FETCH, max_wait_ms=-1),
    ]
    for request in unsound:
        with pytest.raises(Misshapen, match="that no log has"):
            sent(request, HIGHEST[raft_messages.api_of(request)])
    # Another cluster's is told that it is another cluster's, whatever else it says.
    assert sent(replace(unsound[0], cluster_id="other"), 2).cluster_id == "other"


def test_kafkas_refusal_of_a_snapshot_may_say_nothing_else() -> None:
    refused = response_of(wire.FetchSnapshotResponse(error_code=-1), 0)
    assert refused.error is RaftError.SNAPSHOT_NOT_FOUND
    with pytest.raises(NotOfRaft, match="UNKNOWN_SERVER_ERROR"):
        response_of(wire.VoteResponse(error_code=-1), 0)


FETCH = raft.FetchRequest(
    cluster_id=CLUSTER,
    replica_id=1,
    replica_directory_id=b"",
    epoch=3,
    fetch_offset=9,
    last_fetched_epoch=3,
    high_watermark=4,
    max_wait_ms=500,
    max_bytes=8_388_608,
    read_round=5,
)


# ---- Kafka's voters -----------------------------------------------------------------------------------

KEYS = {API_BY_NAME[api].key: api for api in VERSIONS}
RECORDINGS = ("A-cluster-start", "B-controller-failover", "D-snapshot-fetch", "M-error-cases.background")


def exchanges(shared_data: Path, name: str) -> Iterator[tuple[int, str, int, Any, Any]]:
    """What one of Kafka's voters or observers asked a controller, and the answer."""
    waiting: dict[tuple[int, int], Any] = {}
    with gzip.open(shared_data / "kafka-3.7-wire" / f"{name}.jsonl.gz") as lines:
        for row in map(json.loads, lines):
            if row.get("api_key") not in KEYS or row.get("event") or not row["link"].startswith("controller"):
                continue
            frame, place = base64.b64decode(row["frame"]), (row["conn"], row["correlation_id"])
            key, version = row["api_key"], row["api_version"]
            if row["dir"] == ">" and row["client_id"].startswith("raft-client"):
                waiting[place] = codec.decode_request(frame).body
            elif row["dir"] == "<" and place in waiting:
                answer = codec.decode_response(key, version, frame).body
                yield int(row["link"].partition("-")[2]), KEYS[key], version, waiting.pop(place), answer


@pytest.mark.shared_data
@pytest.mark.parametrize("name", RECORDINGS)
def test_what_kafkas_voters_say_comes_back_equal(shared_data: Path, name: str) -> None:
    count: Counter[str] = Counter()
    for at, api, version, asked, answer in exchanges(shared_data, name):
        request = request_of(asked, version, cluster_id="", node_id=at)
        assert without_tags(request_body(request, version)) == asked
        response = response_of(answer, version, request)
        assert encoded(api, version, response_body(response, version)) == encoded(api, version, answer)
        count[api] += 1
    assert count["Fetch"] > 180 and count["Vote"] >= 4 and count["BeginQuorumEpoch"] >= 2
    assert name != "D-snapshot-fetch" or count["FetchSnapshot"] == 3
    assert name == "A-cluster-start" or count["EndQuorumEpoch"] >= 2


def without_tags(body: Any) -> Any:
    """Without our own fields, which Kafka's nodes pass over."""
    return replace(body, unknown_tags=())


def encoded(api: str, version: int, body: Any) -> bytes:
    return b"".join(codec.encode_response(API_BY_NAME[api].key, version, 1, body))


@pytest.mark.shared_data
def test_what_kafka_refuses_by_its_form_is_refused(shared_data: Path) -> None:
    """The recorded error cases: other topics, partitions, and offsets and epochs that no log has."""
    refused, taken = set(), set()
    with gzip.open(shared_data / "kafka-3.7-wire" / "M-error-cases.jsonl.gz") as lines:
        for row in map(json.loads, lines):
            if row["api"] not in VERSIONS or not row["to"].startswith("controller"):
                continue
            body = codec.decode_request(base64.b64decode(row["request"])).body
            try:
                request_of(body, row["api_version"], cluster_id=CLUSTER, node_id=OWN)
                taken.add(row["label"])
            except Misshapen:
                refused.add(row["label"])
    assert {
        "Raft Fetch: other topic id",
        "Raft Fetch: partition 5",
        "Raft Fetch: last fetched epoch unknown (diverging epoch)",
        "FetchSnapshot: unknown topic",
        "Vote: unknown topic",
        "Vote: negative epoch",
        "Vote: candidate epoch not above the last epoch",
        "Vote: same epoch, leader known (refused)",
        "Vote: candidate that is no voter",
    } == refused
    assert {"Vote: old epoch", "Raft Fetch: null cluster id", "FetchSnapshot: the whole"} <= taken
