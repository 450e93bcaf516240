"""A new voter is asked over Kafka's protocol who it is, where the quorum speaks that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.clients.kafka.raft_messages import request_of, response_body
from metaquorum.controller.server.kafka_quorum import KafkaProbe
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter
from metaquorum.raft.messages import RaftError, VoteRequest, VoteResponse
from metaquorum.storage.types import LogPosition
from metaquorum.wire.messages import ApiVersionsRequest, ApiVersionsResponse

CLUSTER, NEW = "cluster", Voter(7, b"n" * 16, (), KRaftVersionFeature(0, 0))
WHERE = [("a", 1)]


class Node:
    """A controller's listener. `error`: what it answers to a vote; `votes`: the highest version of Vote."""

    def __init__(self, error: RaftError = RaftError.NONE, votes: int = 2, level: int | None = 1) -> None:
        self.error, self.votes, self.level = error, votes, level
        self.asked: list[VoteRequest] = []
        self.closed = 0

    def version(self, api: str, lowest: int = 0, highest: int = 99) -> int:
        return {"Vote": self.votes, "ApiVersions": 4}[api]

    async def ask(self, body: Any, *, version: int, timeout_s: float) -> Any:
        if isinstance(body, ApiVersionsRequest):
            kind = ApiVersionsResponse.SupportedFeatureKey
            named = () if self.level is None else (kind(name=KRAFT_VERSION, max_version=self.level),)
            return SimpleNamespace(body=ApiVersionsResponse(supported_features=named))
        vote = request_of(body, version, cluster_id=CLUSTER, node_id=7)
        self.asked.append(vote)
        answer = VoteResponse(
            error=self.error, epoch=3, leader_id=1, vote_granted=False, pre_vote=vote.pre_vote
        )
        return SimpleNamespace(body=response_body(answer, version))

    def close(self) -> None:
        self.closed += 1


async def asked(node: Node | ConnectionFailed) -> KRaftVersionFeature | ApiError:
    async def connect(address: object) -> Node:
        if isinstance(node, ConnectionFailed):
            raise node
        return node

    identity = SimpleNamespace(directory_id=b"l" * 16)
    state = SimpleNamespace(identity=identity, log=SimpleNamespace(end_position=LogPosition(3, 40)))
    raft: Any = SimpleNamespace(state=state, epoch=3, node_id=1, kraft_version=1)
    way: Any = SimpleNamespace(open=connect)
    return await KafkaProbe(CLUSTER, raft, way).ask(NEW, WHERE, 1_000)


async def test_it_is_asked_for_a_pre_vote_which_binds_no_one() -> None:
    node = Node()
    assert await asked(node) == KRaftVersionFeature(0, 1)
    (vote,) = node.asked
    assert vote.pre_vote and (vote.voter_id, vote.voter_directory_id) == (7, NEW.voter_directory_id)
    assert (vote.cluster_id, vote.epoch, vote.candidate_id) == (CLUSTER, 3, 1)
    assert node.closed == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (RaftError.INVALID_VOTER_KEY, ErrorCode.INVALID_VOTER_KEY, "the node at a:1 is not node 7 with"),
        (RaftError.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_CLUSTER_ID, "belongs to another cluster"),
        (RaftError.INVALID_REQUEST, ErrorCode.REQUEST_TIMED_OUT, "it refuses Vote: INVALID_REQUEST"),
    ],
)
async def test_another_node_is_refused(error: RaftError, code: ErrorCode, text: str) -> None:
    found = await asked(Node(error))
    assert isinstance(found, ApiError) and found.code is code and text in (found.message or "")


async def test_a_newer_epoch_there_says_nothing_against_it() -> None:
    assert await asked(Node(RaftError.FENCED_LEADER_EPOCH)) == KRaftVersionFeature(0, 1)


async def test_without_pre_votes_only_its_versions_are_known() -> None:
    node = Node(RaftError.INVALID_VOTER_KEY, votes=1)
    assert await asked(node) == KRaftVersionFeature(0, 1) and node.asked == []
    assert await asked(Node(votes=1, level=None)) == NEW.kraft_version_feature


async def test_nobody_there() -> None:
    found = await asked(ConnectionFailed("connection refused"))
    assert isinstance(found, ApiError) and found.code is ErrorCode.REQUEST_TIMED_OUT
    assert "voter 7 does not answer at a:1 (connection refused)" in (found.message or "")
