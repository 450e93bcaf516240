"""What a leader takes from a fetch: that its caller is alive, how far it has come, and since when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.raft import memory
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import ReadReady, Respond, RespondWithRecords, SendRequest, Warn
from metaquorum.raft.messages import BeginQuorumEpochRequest, RaftError, VoteRequest
from metaquorum.raft.protocol import election, transitions
from metaquorum.raft.roles import Candidate, Leader, ReplicaState
from metaquorum.raft.voters import Endpoint
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.types import LogPosition
from tests.raft.world import CLUSTER_ID, directory
from tests.unit.raft.test_answers_of_a_leader import KINDS, trimmed_leader
from tests.unit.raft.test_core import batch, make
from tests.unit.raft.test_following import follower
from tests.unit.raft.test_timers_and_replicas import answers, fetch_of, leading


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_is_confirmed_by_any_fetch_of_the_epoch(kind: str) -> None:
    """Also by one of a voter that is far behind, or has other records: it still follows this leader."""
    core = trimmed_leader()
    assert isinstance(core.state.role, Leader)
    core.state.acknowledged.clear()
    core.state.role.view.voters[2].highest_acked_offset = 0
    core.request_read(77, now_ms=7)
    fields = {**KINDS[kind]}
    offset = fields.pop("fetch_offset")
    asked = core.state.role.view.reads.round
    for read_round, ready in ((asked - 1, False), (asked, True)):
        effects = core.on_request(500, fetch_of(2, offset, read_round=read_round, **fields), now_ms=7)
        assert [one.token for one in effects if isinstance(one, ReadReady)] == [77] * ready


def test_a_late_fetch_takes_no_confirmation_of_a_read_back() -> None:
    """It was sent before the one that confirmed the round, and repeats an earlier one."""
    world, core = leading(5)
    core.request_read(77, now_ms=world.now)
    assert isinstance(core.state.role, Leader)
    asked = core.state.role.view.reads.round
    for node_id, read_round, ready in ((2, asked, False), (2, asked - 1, False), (3, asked, True)):
        effects = core.on_request(500, fetch_of(node_id, 1, read_round=read_round), now_ms=world.now)
        assert [one.token for one in effects if isinstance(one, ReadReady)] == [77] * ready


def test_a_read_sees_what_was_committed_when_its_round_began() -> None:
    """It need not wait for what is committed until it is confirmed."""
    world, core = leading()
    core.request_read(77, now_ms=world.now)
    core.append(Batches.sealed(batch(1, 1)), now_ms=world.now)
    core.on_log_synced(2, now_ms=world.now)
    assert isinstance(core.state.role, Leader)
    asked = core.state.role.view.reads.round
    core.on_request(500, fetch_of(2, 2, read_round=asked - 1), now_ms=world.now)
    assert core.high_watermark == 2
    effects = core.on_request(500, fetch_of(2, 2, read_round=asked), now_ms=world.now)
    assert [one.offset for one in effects if isinstance(one, ReadReady)] == [1]


def seen(core: RaftCore, now_ms: int, node_id: int) -> ReplicaState:
    (found,) = [one for one in core.describe(now_ms=now_ms) if one.node_id == node_id]
    return found


def test_an_observer_is_where_its_newest_fetch_was() -> None:
    """It may start again from less."""
    world, core = leading()
    for at in range(1, 5):
        core.append(Batches.sealed(batch(at, 1)), now_ms=world.now)
    for offset in (5, 3):
        core.on_request(500, fetch_of(9, offset), now_ms=world.now)
        assert seen(core, world.now, 9).log_end_offset == offset


@pytest.mark.parametrize("node_id", [2, 9])
def test_a_replica_was_caught_up_when_it_had_asked_for_what_it_has_now(node_id: int) -> None:
    """With a log that never stands still no fetch is at the end; the one before says when this one was."""
    world, core = leading()
    told = []
    for wall_ms, offset in ((1000, 1), (2000, 1), (3000, 2), (4000, 3), (5000, 3), (6000, 5), (7000, 6)):
        core.wall_ms = wall_ms
        core.on_request(500, fetch_of(node_id, offset), now_ms=world.now)
        told.append(seen(core, world.now, node_id).last_caught_up_wall_ms)
        if wall_ms != 6000:
            core.append(Batches.sealed(batch(core.log_end_offset, 1)), now_ms=world.now)
    # At 3000 it has what was the end at 2000, and at 5000 less than what was the end at 4000.
    assert told == [1000, 1000, 2000, 3000, 3000, 5000, 7000]


def test_a_high_watermark_that_goes_on_rising_is_not_put_off() -> None:
    world, core = leading(options="high_watermark_linger_ms=30")
    begun = world.now
    for at in (1, 2):
        core.append(Batches.sealed(batch(at, 1)), now_ms=begun)
    core.on_request(500, fetch_of(2, 3, high_watermark=1, max_wait_ms=100), now_ms=begun)
    core.on_log_synced(2, now_ms=begun)
    core.on_log_synced(3, now_ms=begun + 20)
    assert core.high_watermark == 3
    assert answers(core.tick(now_ms=begun + 29), 500) == []
    (found,) = answers(core.tick(now_ms=begun + 30), 500)
    assert found.response.high_watermark == 3


def test_records_are_offered_to_those_who_vote_once_they_are_in_the_log() -> None:
    world, core = leading()
    core.on_request(500, fetch_of(2, 1, high_watermark=1, max_wait_ms=100), now_ms=world.now)
    effects = core.append(Batches.sealed(batch(1, 1)), now_ms=world.now)
    (found,) = answers(effects, 500)
    assert isinstance(found, RespondWithRecords) and (found.read_from, found.read_to) == (1, 2)


# ---- what ends with the leadership ----------------------------------------------------------------


def test_a_leader_that_ends_answers_at_once_and_remembers_its_own_epoch() -> None:
    """Its answers name the epoch that their callers know: they wait for no write of the next one. What others
    acknowledged to it was acknowledged in the epoch that it led."""
    world, core = leading()
    for at in range(1, 5):
        core.append(Batches.sealed(batch(at, 1)), now_ms=world.now)
    core.on_log_synced(5, now_ms=world.now)
    core.on_request(500, fetch_of(2, 5, high_watermark=5, max_wait_ms=100), now_ms=world.now)
    assert core.high_watermark == 5
    later = VoteRequest(
        cluster_id=CLUSTER_ID,
        epoch=9,
        candidate_id=3,
        candidate_directory_id=directory(3),
        voter_id=1,
        voter_directory_id=directory(1),
        last_position=core.state.log.end_position,
        pre_vote=False,
    )
    effects = core.on_request(501, later, now_ms=world.now)
    ended, voted = answers(effects, 500) + answers(effects, 501)
    assert (ended.after, ended.response.epoch, ended.response.error) == (
        None,
        1,
        RaftError.NOT_LEADER_OR_FOLLOWER,
    )
    assert voted.after is not None and voted.response.epoch == 9
    assert core.state.acknowledged[directory(2)] == Acknowledged(directory(2), 5, 1)
    # So a candidate of the epoch that follows, from a directory that has forgotten some of it, is refused.
    forgetful = replace(
        later, epoch=9, candidate_id=2, candidate_directory_id=directory(2), last_position=LogPosition(1, 4)
    )
    (refused,) = answers(core.on_request(502, forgetful, now_ms=world.now), 502)
    assert not refused.response.vote_granted
    assert memory.refuse_candidate(core.state, forgetful)


def test_a_candidate_that_is_an_older_copy_is_named_also_where_its_log_is_too_short_anyway() -> None:
    world, core = leading()
    core.on_log_synced(core.log_end_offset, now_ms=world.now)
    core.state.acknowledged[directory(2)] = Acknowledged(directory(2), 1, 0)
    request = VoteRequest(
        cluster_id=CLUSTER_ID,
        epoch=9,
        candidate_id=2,
        candidate_directory_id=directory(2),
        voter_id=1,
        voter_directory_id=directory(1),
        last_position=LogPosition(0, 0),
        pre_vote=False,
    )
    effects = core.on_request(501, request, now_ms=world.now)
    warned = [one.message for one in effects if isinstance(one, Warn)]
    assert len(warned) == 1 and "no vote for node 2" in warned[0] and "older copy of itself" in warned[0]


@pytest.mark.parametrize(("late_ms", "due_ms"), [(100, None), (5, 5)])
def test_a_candidate_that_lost_waits_no_longer_than_a_candidate_that_heard_nothing(
    late_ms: int, due_ms: int | None
) -> None:
    """Where it is refused by all shortly before its time ends, the pause after a lost election is cut."""
    core = make()
    core.start(now_ms=0)
    transitions.become_prospective(core.state, now_ms=0)
    transitions.become_candidate(core.state, now_ms=0)
    role = core.state.role
    assert isinstance(role, Candidate)
    role.deadline_ms, role.backoff_until_ms = 100 + late_ms, 100 + 50
    assert election.election_due_ms(core.state) == 100 + (50 if due_ms is None else due_ms)


@pytest.mark.parametrize(("leader_id", "is_told"), [(2, True), (3, False)])
def test_only_the_leader_that_is_followed_says_where_it_listens(leader_id: int, is_told: bool) -> None:
    core, _ = follower()
    endpoints = (Endpoint("L", "elsewhere", 9),)
    transitions.follow(core.state, 4, leader_id, endpoints, now_ms=5)
    assert core.leader_id == 2
    assert (core.state.announced_endpoints == endpoints) == is_told


def test_a_leader_that_is_found_again_may_listen_elsewhere() -> None:
    """What it says of itself replaces what was known; where it says nothing, that stays."""
    core, _ = follower()
    for endpoints in ((), (Endpoint("L", "here", 9),), (Endpoint("L", "there", 9),), ()):
        before = core.state.announced_endpoints
        transitions.become_prospective(core.state, now_ms=5)
        transitions.follow(core.state, 4, 2, endpoints, now_ms=5)
        assert core.leader_id == 2
        assert core.state.announced_endpoints == (endpoints or before)
    transitions.follow(core.state, 5, 3, (), now_ms=5)
    assert (core.leader_id, core.state.announced_endpoints) == (3, ())


def test_a_node_that_leads_does_not_announce_where_the_leader_before_it_listened() -> None:
    """At kraft.version 0 it has no endpoints of its own, but a leader of Kafka 3.9 that it followed has
    announced some."""
    core, _ = follower()
    assert core.state.kraft_version == 0
    transitions.follow(core.state, 4, 2, (Endpoint("L", "there", 9),), now_ms=5)
    assert core.state.leader_endpoints
    transitions.become_prospective(core.state, now_ms=5)
    transitions.become_candidate(core.state, now_ms=5)
    transitions.become_leader(core.state, {1, 3}, now_ms=5)
    begins = [one.request for one in core.tick(now_ms=5) if isinstance(one, SendRequest)]
    assert begins and all(isinstance(one, BeginQuorumEpochRequest) for one in begins)
    assert {one.leader_endpoints for one in begins if isinstance(one, BeginQuorumEpochRequest)} == {()}
    answer = core.on_request(500, fetch_of(2, 0), now_ms=5)
    assert [one.response.leader_endpoints for one in answer if isinstance(one, Respond)] == [()]
