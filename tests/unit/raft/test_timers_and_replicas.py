"""What a leader knows of its replicas and when it does something; late and misdirected answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.raft.config import RaftConfig, RecoveredLog
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import AppendLog, ReadReady, Respond, RespondWithRecords, SendRequest, Warn
from metaquorum.raft.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, RaftError
from metaquorum.raft.protocol import fetching, replication, snapshots
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from metaquorum.raft.state import Vote
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.errors import CommittedLostError
from metaquorum.storage.types import LogPosition
from tests.raft.script import Script
from tests.raft.world import CLUSTER_ID, World, directory
from tests.unit.raft.test_core import batch, make
from tests.unit.raft.test_following import answer, batches, chunk, follower, redirected, sent


def leading(voters: int = 3, *, options: str = "") -> tuple[World, RaftCore]:
    """Node 1 leads `voters` in epoch 1; nothing is on its way, and every other voter's fetch is parked."""
    script = Script()
    script.run(f"nodes {voters} observers=1 {options}")
    if voters > 1:
        script.run("elect 1")
    return script.world, script.world.core(1)


def fetch_of(node_id: int, offset: int, epoch: int = 1, **fields: Any) -> FetchRequest:
    usual: dict[str, Any] = {
        "cluster_id": CLUSTER_ID,
        "replica_id": node_id,
        "replica_directory_id": directory(max(0, node_id) % 256),
        "epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": 1 if offset else 0,
        "high_watermark": -1,
        "max_wait_ms": 0,
        "max_bytes": 1000,
        "read_round": 0,
    }
    return FetchRequest(**{**usual, **fields})


def answers(effects: list[Any], key: int) -> list[Any]:
    return [one for one in effects if isinstance(one, Respond | RespondWithRecords) and one.key == key]


# ---- fetches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_ms", "at_once"), [(0, True), (-1, True), (1, False), (100, False)])
def test_a_fetch_that_does_not_wait_is_answered_at_once(wait_ms: int, at_once: bool) -> None:
    world, core = leading()
    request = fetch_of(7, 1, high_watermark=1, max_wait_ms=wait_ms)
    effects = core.on_request(500, request, now_ms=world.now)
    assert bool(answers(effects, 500)) == at_once
    if not at_once:
        assert core.next_deadline_ms() is not None
        assert answers(core.tick(now_ms=world.now + wait_ms - 1), 500) == []
        assert len(answers(core.tick(now_ms=world.now + wait_ms), 500)) == 1


@pytest.mark.parametrize("node_id", [-(2**31), -2, -1, 0, 4, 2**31 - 1])
def test_a_tool_that_reads_is_answered_and_not_remembered(node_id: int) -> None:
    """It has no node id; every node has one from 0 on."""
    world, core = leading()
    before = core.describe(now_ms=world.now)
    effects = core.on_request(500, fetch_of(node_id, 0, replica_directory_id=directory(9)), now_ms=world.now)
    (one,) = answers(effects, 500)
    assert isinstance(one, RespondWithRecords)
    assert (one.read_from, one.read_to) == (0, core.high_watermark)
    added = [at.node_id for at in core.describe(now_ms=world.now) if at not in before]
    assert added == ([node_id] if node_id >= 0 else [])


def test_replicas_are_told_apart_by_their_directories_and_listed_by_id() -> None:
    world, core = leading()
    for node_id, disk in ((9, 9), (8, 80), (8, 81), (2, 99)):
        core.on_request(500, fetch_of(node_id, 1, replica_directory_id=directory(disk)), now_ms=world.now)
    listed = [
        (at.node_id, at.directory_id, at.is_voter, at.log_end_offset)
        for at in core.describe(now_ms=world.now)
    ]
    assert listed == [
        (1, directory(1), True, 1),
        (2, directory(2), True, 1),
        (3, directory(3), True, 1),
        (2, directory(99), False, 1),  # a voter's id with another directory only observes
        (8, directory(80), False, 1),
        (8, directory(81), False, 1),
        (9, directory(9), False, 1),
    ]


def test_who_has_not_fetched_is_at_no_offset_and_who_was_silent_long_is_left_out() -> None:
    world, core = leading()
    assert isinstance(core.state.role, Leader)
    core.state.role.view.voters[2].acked_offset = None
    session = core.state.config.observer_session_ms
    core.on_request(500, fetch_of(9, 1), now_ms=world.now)

    def seen(now_ms: int) -> list[tuple[int, int]]:
        return [(at.node_id, at.log_end_offset) for at in core.describe(now_ms=now_ms)]

    assert seen(world.now) == [(1, 1), (2, -1), (3, 1), (9, 1)]
    assert (9, 1) in seen(world.now + session)
    assert (9, 1) not in seen(world.now + session + 1)


def test_an_observer_that_was_started_again_is_listed_once() -> None:
    """Its reader before, which fetches no more, is listed only while no other fetches under its node id."""
    world, core = leading()
    patience = core.state.config.observer_patience_ms
    for now_ms, disk in ((world.now, 90), (world.now + 10, 91), (world.now + 20, 80)):
        core.on_request(500, fetch_of(disk // 10, 1, replica_directory_id=directory(disk)), now_ms=now_ms)

    def listed(now_ms: int) -> list[bytes]:
        return [at.directory_id for at in core.describe(now_ms=now_ms) if not at.is_voter]

    assert listed(world.now + patience) == [directory(80), directory(90), directory(91)]
    assert listed(world.now + patience + 1) == [directory(80), directory(91)]
    assert listed(world.now + patience + 100) == [directory(80), directory(90), directory(91)]


def test_silent_observers_are_forgotten_after_their_session() -> None:
    core = make(voters=1, config=RaftConfig(observer_session_ms=1000))
    core.start(now_ms=0)
    core.on_log_synced(core.log_end_offset, now_ms=0)
    assert isinstance(core.state.role, Leader)
    observers = core.state.role.view.observers
    core.on_request(1, fetch_of(9, 1, cluster_id="c"), now_ms=10)
    core.on_request(2, fetch_of(8, 1, cluster_id="c"), now_ms=500)
    for now_ms, left in ((1010, {8, 9}), (1011, {8}), (1500, {8}), (1501, set())):
        core.state.role.view.next_prune_ms = now_ms
        core.tick(now_ms=now_ms)
        assert {node_id for node_id, _ in observers} == left, now_ms


def test_the_session_of_the_first_observer_begins_when_it_comes() -> None:
    core = make(voters=1, config=RaftConfig(observer_session_ms=1000))
    core.start(now_ms=0)
    core.on_log_synced(core.log_end_offset, now_ms=0)
    core.tick(now_ms=10)
    for begun in (5_000, 90_000):  # the second one comes when the first one is forgotten
        core.on_request(1, fetch_of(9, 1, cluster_id="c"), now_ms=begun)
        assert core.next_deadline_ms() == begun + 1000
        core.tick(now_ms=begun + 1000)
        core.tick(now_ms=begun + 2000)
        assert len(core.describe(now_ms=begun + 2000)) == 1


def test_a_leader_of_itself_is_no_replica_of_itself() -> None:
    world, core = leading()
    effects = core.on_request(500, fetch_of(1, 1), now_ms=world.now)
    assert len(answers(effects, 500)) == 1
    assert core.high_watermark == 1


# ---- the high watermark and its announcement ------------------------------------------------------


def test_a_high_watermark_lingers_for_records_to_go_with_it_and_no_longer() -> None:
    world, core = leading(options="high_watermark_linger_ms=30")
    assert isinstance(core.state.role, Leader)
    now = world.now + 10
    core.append(Batches.sealed(batch(1, 1)), now_ms=now)
    core.on_log_synced(2, now_ms=now)
    core.on_request(500, fetch_of(2, 2, high_watermark=1, max_wait_ms=100), now_ms=now)
    assert core.high_watermark == 2
    assert core.state.role.view.announce_ms == now + 30
    assert answers(core.tick(now_ms=now + 29), 500) == []
    assert len(answers(core.tick(now_ms=now + 30), 500)) == 1
    assert core.state.role.view.announce_ms is None


def test_only_a_majority_of_others_confirms_reads() -> None:
    world, core = leading(5)
    effects = core.request_read(77, now_ms=world.now)
    assert not any(isinstance(one, ReadReady) for one in effects)
    assert isinstance(core.state.role, Leader)
    asked = core.state.role.view.reads.round
    for node_id, ready in ((2, False), (2, False), (3, True)):
        effects = core.on_request(500, fetch_of(node_id, 1, read_round=asked), now_ms=world.now)
        assert any(isinstance(one, ReadReady) for one in effects) == ready


# ---- transfer -------------------------------------------------------------------------------------


def test_a_transfer_has_its_deadline_and_is_given_up_then() -> None:
    world, core = leading()
    core.append(Batches.sealed(batch(1, 1)), now_ms=world.now)
    core.transfer_leadership(2, now_ms=world.now)
    due = world.now + core.state.config.election_timeout_ms
    assert core.transferring
    deadline = core.next_deadline_ms()
    assert deadline is not None
    assert deadline <= due
    core.tick(now_ms=due - 1)
    assert core.transferring
    effects = core.tick(now_ms=due)
    assert not core.transferring
    assert any(isinstance(one, Warn) and "did not catch up" in one.message for one in effects)
    assert core.is_leader


@pytest.mark.parametrize(
    ("target", "says"), [(1, "already leads"), (7, "is not a voter"), (3, "has not fetched"), (2, None)]
)
def test_who_may_be_given_the_leadership(target: int, says: str | None) -> None:
    _, core = leading()
    assert isinstance(core.state.role, Leader)
    core.state.role.view.voters[3].acked_offset = None
    refusal = core.transfer_refusal(target)
    assert (refusal is None) == (says is None)
    assert says is None or says in (refusal or "")
    idle = make()
    idle.start(now_ms=0)
    assert "not the leader" in (idle.transfer_refusal(2) or "")
    _, alone = leading(1)
    assert [alone.transfer_refusal(each) for each in (1, 7)] == ["there is no other voter; add one first"] * 2


# ---- a follower -----------------------------------------------------------------------------------


def test_an_observer_goes_on_while_its_disk_syncs_and_a_voter_keeps_in_touch() -> None:
    """An observer acknowledges nothing, so what is not synced does not hold it up."""
    observer = make(node_id=9, recovered=RecoveredLog(epoch=4, leader_id=2))
    fetch = sent(observer.start(now_ms=0))
    effects = observer.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    following = sent(effects).request
    assert isinstance(following, FetchRequest)
    assert following.fetch_offset == 3
    assert following.max_bytes == observer.state.config.fetch_max_bytes
    assert following.max_wait_ms == observer.state.config.observer_fetch_max_wait_ms

    voter, fetch = follower()
    effects = voter.on_response(2, fetch.correlation_id, answer(records=batches(0, 3, 4)), now_ms=1)
    assert not any(isinstance(one, SendRequest) for one in effects)
    quarter = voter.state.config.fetch_timeout_ms // 4
    assert not any(isinstance(one, SendRequest) for one in voter.tick(now_ms=quarter))
    keepalive = sent(voter.tick(now_ms=1 + quarter)).request
    assert isinstance(keepalive, FetchRequest)
    assert (keepalive.fetch_offset, keepalive.max_bytes, keepalive.max_wait_ms) == (0, 1, 0)


def test_records_that_are_refused_are_asked_for_again_after_a_while() -> None:
    core, fetch = follower()
    effects = core.on_response(2, fetch.correlation_id, answer(records=batches(5, 1, 4)), now_ms=10)
    assert not any(isinstance(one, AppendLog | SendRequest) for one in effects)
    assert any(isinstance(one, Warn) and "were not appended" in one.message for one in effects)
    pause = core.state.config.retry_backoff_max_ms
    assert not any(isinstance(one, SendRequest) for one in core.tick(now_ms=10 + pause - 1))
    assert isinstance(sent(core.tick(now_ms=10 + pause)).request, FetchRequest)


@pytest.mark.parametrize(
    ("error", "warns"),
    [
        (RaftError.INVALID_REQUEST, True),
        (RaftError.OFFSET_OUT_OF_RANGE, True),
        (RaftError.FENCED_LEADER_EPOCH, False),
        (RaftError.UNKNOWN_LEADER_EPOCH, False),
        (RaftError.NOT_LEADER_OR_FOLLOWER, False),
    ],
)
def test_a_leader_that_refuses_for_a_lasting_reason_is_named_once(error: RaftError, warns: bool) -> None:
    core, fetch = follower()
    told = []
    now = 0
    for _ in range(3):
        now += 1
        effects = core.on_response(
            2, fetch.correlation_id, FetchResponse(error=error, epoch=4, leader_id=2), now_ms=now
        )
        told += [one for one in effects if isinstance(one, Warn)]
        now += 5 * core.state.config.retry_backoff_ms
        again = [one for one in core.tick(now_ms=now) if isinstance(one, SendRequest)]
        if not again:
            break
        fetch = again[0]
    assert len(told) == warns
    assert not warns or error.name in told[0].message


@pytest.mark.parametrize(("epoch", "offset"), [(4, 0), (4, 1)])
def test_a_snapshot_that_contradicts_what_is_committed_stops_the_node(epoch: int, offset: int) -> None:
    core, fetch = follower(((1, 0),), 1)
    core.state.log.high_watermark = 1
    with pytest.raises(CommittedLostError, match="everything below offset 1 was committed"):
        core.on_response(2, fetch.correlation_id, answer(snapshot=LogPosition(epoch, offset)), now_ms=1)


@pytest.mark.parametrize(("epoch", "offset", "fetches"), [(3, 1, True), (4, 1, True), (3, 9, True)])
def test_a_snapshot_that_is_where_the_log_ends_is_not_fetched(epoch: int, offset: int, fetches: bool) -> None:
    """By epoch and offset together: the same end in another epoch is another history."""
    core, fetch = follower(((1, 0),), 1)
    core.state.log.high_watermark = 0
    effects = core.on_response(2, fetch.correlation_id, answer(snapshot=LogPosition(epoch, offset)), now_ms=1)
    asked = [one.request for one in effects if isinstance(one, SendRequest)]
    assert any(isinstance(one, FetchSnapshotRequest) for one in asked) == fetches
    again, fetch = follower(((1, 0),), 1)
    effects = again.on_response(2, fetch.correlation_id, answer(snapshot=LogPosition(1, 1)), now_ms=1)
    assert not any(isinstance(one, SendRequest) for one in effects)


# ---- answers that come too late, or from elsewhere ------------------------------------------------

ROLES = [
    Unattached(deadline_ms=10_000),
    Prospective(deadline_ms=10_000, granted={1}),
    Candidate(deadline_ms=10_000, granted={1}),
    Resigned(deadline_ms=10_000, successors=(), unacknowledged=set()),
    Follower(leader_id=3, deadline_ms=10_000, next_fetch_ms=9_000, keepalive_ms=9_000),
]


def in_role(core: RaftCore, role: Any) -> None:
    """The core as it would be in that role, in the same epoch."""
    core.state.role = role
    core.state.vote = Vote(1, directory(1)) if isinstance(role, Candidate) else core.state.vote
    known = {Follower: 3, Resigned: 1}
    core.state.known_leader_id = known.get(type(role))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.role.value)
def test_a_chunk_or_records_for_an_earlier_role_do_nothing(role: Any) -> None:
    """The one who asked is no follower of that leader any more, though its epoch goes on."""
    core, request = redirected()
    flight = core.state.in_flight.pop(request.correlation_id)
    in_role(core, role)
    late = replace(chunk(0, b"abcd"), leader_id=None)
    snapshots.on_fetch_snapshot_response(core.state, flight, late, now_ms=5)
    assert core.state.out.take() == []

    core, request = follower()
    flight = core.state.in_flight.pop(request.correlation_id)
    in_role(core, role)
    assert isinstance(flight.request, FetchRequest)
    records = replace(answer(records=batches(0, 3, 4), high_watermark=3), leader_id=None)
    fetching.on_fetch_response(core.state, flight, flight.request, records, now_ms=5)
    assert core.state.out.take() == []
    assert (core.log_end_offset, core.high_watermark) == (0, -1)


@pytest.mark.parametrize("target", [1, 3])
def test_a_failure_of_another_nodes_request_is_no_failure(target: int) -> None:
    core, fetch = follower()
    assert core.on_request_failed(target, fetch.correlation_id, "refused", now_ms=5) == []
    assert isinstance(core.state.role, Follower)
    assert core.state.role.failures == 0
    assert core.state.is_asking(2)
    core.on_request_failed(2, fetch.correlation_id, "refused", now_ms=5)
    assert core.state.role.failures == 1


@pytest.mark.parametrize(
    ("acked", "heard", "first", "order"),
    [
        ((5, 9, 7, 9), (1, 2, 3, 4), None, (5, 3, 4, 2)),
        ((9, 9, 9, 9), (4, 3, 2, 1), None, (2, 3, 4, 5)),
        ((9, 9, 9, 9), (1, 1, 1, 1), None, (2, 3, 4, 5)),
        ((None, 9, 0, None), (9, 1, 1, None), None, (3, 4, 2, 5)),
        ((9, 5, 5, 5), (9, 1, 1, 1), 4, (4, 2, 3, 5)),
    ],
)
def test_successors_are_named_best_synced_first_then_heard_last(
    acked: tuple[int | None, ...], heard: tuple[int | None, ...], first: int | None, order: tuple[int, ...]
) -> None:
    world, core = leading(5)
    assert isinstance(core.state.role, Leader)
    for node_id, offset, time in zip((2, 3, 4, 5), acked, heard, strict=True):
        core.state.role.view.voters[node_id].acked_offset = offset
        core.state.role.view.voters[node_id].last_fetch_ms = time
    replication.resign(core.state, first, now_ms=world.now)
    assert isinstance(core.state.role, Resigned)
    assert tuple(one.node_id for one in core.state.role.successors) == order
    assert all(one.directory_id == bytes([one.node_id]) * 16 for one in core.state.role.successors)


def test_nobody_but_a_leader_is_handing_over() -> None:
    for role in ROLES:
        core = make()
        core.start(now_ms=0)
        in_role(core, role)
        assert not core.transferring
    assert not leading()[1].transferring


def test_a_second_fetch_ends_the_first_one_without_records() -> None:
    """What the first one asked for goes to the second, once."""
    world, core = leading()
    fetch = fetch_of(9, 1, high_watermark=1, max_wait_ms=500)
    assert answers(core.on_request(500, fetch, now_ms=world.now), 500) == []
    core.append(Batches.sealed(batch(1, 1)), wake_observers=False, now_ms=world.now)
    core.on_log_synced(2, now_ms=world.now)
    core.on_request(501, fetch_of(2, 2, high_watermark=1), now_ms=world.now)
    assert core.high_watermark == 2
    effects = core.on_request(502, fetch, now_ms=world.now)
    (first,) = answers(effects, 500)
    assert isinstance(first, Respond)
