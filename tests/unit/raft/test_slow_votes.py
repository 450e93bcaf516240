"""Elections among voters that take longer to write a vote than a candidate waits at first, and among voters
without pre-votes, which end each other's elections."""

from __future__ import annotations

import heapq
import itertools

import pytest
from msgspec.structs import replace

from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import PersistQuorumState, RaftEffect, SendRequest
from metaquorum.raft.messages import BeginQuorumEpochRequest, RaftError, VoteRequest, VoteResponse
from metaquorum.raft.roles import Unattached
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory
from tests.unit.raft.test_core import make

VOTERS = (2, 3)


class SlowVoters:
    """Core 1 and two voters of Kafka 3.9, without pre-votes: a vote takes `vote_ms`, one after another."""

    def __init__(self, *, vote_ms: int, grants: bool = True) -> None:
        self.core: RaftCore = make()
        self.down: set[int] = set()
        self.epochs_asked: list[tuple[int, int]] = []
        """When, and in which epoch, voter 2 was asked for its vote."""
        self._vote_ms, self._grants = vote_ms, grants
        self._idle_ms = dict.fromkeys(VOTERS, 0)
        self._answers: list[tuple[int, int, int, int, VoteResponse]] = []
        self._order = itertools.count()
        self._carry_out(self.core.start(now_ms=0), 0)

    def run(self, until_ms: int) -> None:
        """Until then, or until it leads."""
        while not self.core.is_leader:
            due_ms = self.core.next_deadline_ms()
            if self._answers and (due_ms is None or self._answers[0][0] <= due_ms):
                now_ms, _, voter_id, correlation_id, response = heapq.heappop(self._answers)
                if now_ms > until_ms:
                    return
                effects = self.core.on_response(voter_id, correlation_id, response, now_ms=now_ms)
            else:
                assert due_ms is not None
                now_ms = due_ms
                if now_ms > until_ms:
                    return
                effects = self.core.tick(now_ms=now_ms)
            self._carry_out(effects, now_ms)

    def hear(self, request: VoteRequest | BeginQuorumEpochRequest, now_ms: int) -> None:
        self._carry_out(self.core.on_request(1, request, now_ms=now_ms), now_ms)

    def _carry_out(self, effects: list[RaftEffect], now_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, PersistQuorumState):
                self._carry_out(self.core.on_quorum_state_persisted(effect.token, now_ms=now_ms), now_ms)
            elif isinstance(effect, SendRequest) and isinstance(effect.request, VoteRequest):
                self._ask(effect.to, effect.correlation_id, effect.request, now_ms)

    def _ask(self, voter_id: int, correlation_id: int, request: VoteRequest, now_ms: int) -> None:
        if voter_id in self.down:
            return
        answered_ms, error = now_ms, RaftError.UNSUPPORTED_VERSION
        if not request.pre_vote:
            answered_ms = max(now_ms, self._idle_ms[voter_id]) + self._vote_ms
            self._idle_ms[voter_id], error = answered_ms, RaftError.NONE
            if voter_id == VOTERS[0]:
                self.epochs_asked.append((now_ms, request.epoch))
        response = VoteResponse(
            error=error,
            epoch=0 if request.pre_vote else request.epoch,
            leader_id=None,
            vote_granted=self._grants and not request.pre_vote,
            pre_vote=request.pre_vote,
        )
        heapq.heappush(self._answers, (answered_ms, next(self._order), voter_id, correlation_id, response))


@pytest.mark.parametrize("vote_ms", [5, 400, 700])
def test_a_candidate_waits_for_votes_that_take_longer_than_its_first_timeout(vote_ms: int) -> None:
    quorum = SlowVoters(vote_ms=vote_ms)
    quorum.run(until_ms=10_000)
    assert quorum.core.is_leader
    assert quorum.core.epoch <= 4


def test_a_candidate_that_voters_without_pre_votes_refuse_leaves_them_time_for_an_election() -> None:
    quorum = SlowVoters(vote_ms=5, grants=False)
    quorum.run(until_ms=10_000)
    asked_ms = [now_ms for now_ms, _ in quorum.epochs_asked]
    pauses_ms = [after - before for before, after in itertools.pairwise(asked_ms)]
    config = quorum.core.state.config
    assert pauses_ms[0] >= config.election_timeout_ms
    assert min(pauses_ms[3:]) >= config.request_timeout_ms


def test_a_voter_that_voted_for_another_leaves_it_time_to_announce_itself() -> None:
    quorum = SlowVoters(vote_ms=5, grants=False)
    quorum.run(until_ms=5_000)
    core = quorum.core
    request = asks_for_vote(core, 2, epoch=core.epoch + 1, end=LogPosition(0, 0))
    core.on_request(1, request, now_ms=5_000)
    assert core.voted_id == 2
    assert isinstance(core.state.role, Unattached)
    assert (core.state.role.deadline_ms or 0) - 5_000 >= core.state.config.request_timeout_ms


@pytest.mark.parametrize("how", ["its candidacy", "its epoch"])
def test_a_voter_without_pre_votes_that_is_ahead_counts_as_refusing_one(how: str) -> None:
    """It would refuse the vote, too, which would end its own election, or its epoch. Once nobody has more, or
    it does not answer, this node stands."""
    quorum = SlowVoters(vote_ms=5)
    core, ahead = quorum.core, VOTERS[0]
    quorum.down.add(VOTERS[1])
    if how == "its candidacy":
        quorum.hear(asks_for_vote(core, ahead, epoch=7, end=LogPosition(6, 10)), 0)
    else:
        begun = BeginQuorumEpochRequest(
            cluster_id=core.state.identity.cluster_id,
            epoch=7,
            leader_id=ahead,
            voter_id=1,
            voter_directory_id=b"",
        )
        quorum.hear(begun, 0)
    quorum.run(until_ms=20_000)
    assert core.epoch == 7
    quorum.hear(asks_for_vote(core, ahead, epoch=8, end=LogPosition(0, 0)), 20_000)
    quorum.run(until_ms=40_000)
    assert core.is_leader


def test_only_of_voters_is_it_remembered_where_their_log_ends() -> None:
    """From kraft.version 1 on, a node of any id may request votes: they must not fill the memory."""
    core = make()
    core.start(now_ms=0)
    for candidate in (VOTERS[0], 98, 99):
        request = asks_for_vote(core, candidate, epoch=7, end=LogPosition(6, 10))
        core.on_request(candidate, replace(request, kraft_version=1), now_ms=1)
    assert core.state.log_ends == {VOTERS[0]: LogPosition(6, 10)}


def test_the_vote_of_another_is_enough_against_a_voter_that_is_ahead() -> None:
    quorum = SlowVoters(vote_ms=5)
    core = quorum.core
    quorum.hear(asks_for_vote(core, VOTERS[0], epoch=7, end=LogPosition(6, 10)), 0)
    quorum.run(until_ms=20_000)
    assert core.is_leader


def asks_for_vote(core: RaftCore, voter_id: int, *, epoch: int, end: LogPosition) -> VoteRequest:
    return VoteRequest(
        cluster_id=core.state.identity.cluster_id,
        epoch=epoch,
        candidate_id=voter_id,
        candidate_directory_id=directory(voter_id),
        voter_id=1,
        voter_directory_id=b"",
        last_position=end,
        pre_vote=False,
    )


def test_the_first_election_is_as_short_as_the_configuration_says() -> None:
    core = make()
    first_ms = core.state.config.election_timeout_ms
    core.state.election_attempts = 1
    drawn = [core.state.election_patience_ms() for _ in range(400)]
    assert first_ms <= min(drawn) and max(drawn) <= first_ms * 3 // 2
