"""Every law of one replica notices the state that breaks it, and nothing beside it.

Also what a follower and a log view do at their edges: answers to something else, a resend, lists of replicas.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from metaquorum.raft.config import RecoveredLog
from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import Respond, SendRequest, Warn, WriteSnapshotChunk
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.invariants import (
    ClusterHistory,
    CoreSnapshot,
    check_cluster,
    check_core,
    check_snapshot,
    check_step,
)
from metaquorum.raft.log_view import LogView
from metaquorum.raft.messages import FetchRequest, FetchResponse, RaftError
from metaquorum.raft.roles import (
    Candidate,
    Follower,
    Leader,
    LeaderView,
    Prospective,
    ReplicaProgress,
    Resigned,
    Unattached,
)
from metaquorum.raft.state import RaftState, Vote
from metaquorum.raft.store import TailCache
from metaquorum.raft.voters import VoterHistory, VoterSet, cannot_win, has_majority, majority_value
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from tests.raft.script import Script
from tests.raft.world import directory
from tests.unit.raft.test_core import batch, make, sole_leader
from tests.unit.raft.test_following import answer, chunk, follower, redirected, sent

# ---- the laws of one replica ----------------------------------------------------------------------


def leading() -> RaftCore:
    core = sole_leader()
    core.append(Batches.sealed(batch(1, 1)), now_ms=0)
    core.on_log_synced(2, now_ms=0)
    return core


def observing() -> RaftCore:
    core = make(node_id=9)
    core.start(now_ms=0)
    return core


def in_role(role: object, *, vote: int | None = None, known: int | None = None) -> RaftCore:
    core = make(recovered=RecoveredLog(epoch=4, epochs=((2, 0),), log_end_offset=3))
    core.start(now_ms=0)
    core.state.role = role  # type: ignore[assignment]
    core.state.vote = None if vote is None else Vote(vote, directory(vote))
    core.state.known_leader_id = known
    return core


def candidate() -> RaftCore:
    return in_role(Candidate(deadline_ms=9, granted={1}), vote=1)


def prospective() -> RaftCore:
    return in_role(Prospective(deadline_ms=9, granted={1}))


def following() -> RaftCore:
    return in_role(Follower(leader_id=2, deadline_ms=9, next_fetch_ms=0, keepalive_ms=0), known=2)


def resigned() -> RaftCore:
    return in_role(Resigned(deadline_ms=9, successors=(), unacknowledged=set()), vote=1, known=1)


def _log(**fields: object) -> Callable[[RaftState], None]:
    def change(state: RaftState) -> None:
        for name, value in fields.items():
            setattr(state.log, name, value)

    return change


def _state(**fields: object) -> Callable[[RaftState], None]:
    def change(state: RaftState) -> None:
        for name, value in fields.items():
            setattr(state, name, value)

    return change


def _role(**fields: object) -> Callable[[RaftState], None]:
    def change(state: RaftState) -> None:
        for name, value in fields.items():
            setattr(state.role, name, value)

    return change


def no_voter(state: RaftState) -> None:
    state.voter_history = VoterHistory(VoterSet())


BROKEN = [
    (following, _log(start_offset=-1), "a log starts at or before its end"),
    (following, _log(start_offset=4, synced_offset=4, high_watermark=4), "a log starts at or before its end"),
    (following, _log(synced_offset=4), "only what is in the log is synced"),
    (following, _log(start_offset=2, synced_offset=1, high_watermark=2), "only what is in the log is synced"),
    (following, _log(high_watermark=4), "only what is in the log is known to be committed"),
    (
        following,
        _log(start_offset=2, high_watermark=1),
        "what is missing at the start of the log was committed",
    ),
    (following, _state(epoch=1), "no record is of an epoch that has not begun"),
    (leading, no_voter, "an observer never leads, but until its removal as a voter is committed"),
    (leading, _state(vote=None), "a leader voted for itself"),
    (leading, _state(vote=Vote(2, directory(2))), "a leader voted for itself"),
    (leading, _state(known_leader_id=2), "a leader knows itself as the leader"),
    (leading, _state(known_leader_id=None), "a leader knows itself as the leader"),
    (leading, _role(epoch_start_offset=2), "a leader's epoch begins with a record"),
    (leading, _state(epoch=2), "a leader's last record is of its epoch"),
    (leading, _role(epoch_start_offset=1), "a leader's first record is where its epoch begins"),
    (candidate, no_voter, "an observer never stands for election"),
    (candidate, _state(vote=None), "a candidate voted for itself"),
    (candidate, _state(vote=Vote(3, directory(3))), "a candidate voted for itself"),
    (candidate, _state(known_leader_id=1), "a candidate's epoch has no leader that it knows"),
    (prospective, no_voter, "an observer never stands for election"),
    (following, _role(leader_id=1), "no node follows itself"),
    (following, _state(known_leader_id=3), "a follower's leader is the one on record"),
    (following, _state(known_leader_id=None), "a follower's leader is the one on record"),
    (resigned, _state(known_leader_id=2), "only the leader of an epoch resigns from it"),
]


@pytest.mark.parametrize(("make_core", "change", "law"), BROKEN)
def test_a_broken_state_is_noticed(
    make_core: Callable[[], RaftCore], change: Callable[[RaftState], None], law: str
) -> None:
    core = make_core()
    check_core(core)
    change(core.state)
    with pytest.raises(RaftInvariantError) as caught:
        check_core(core)
    assert str(caught.value).endswith(f": {law}")


SOUND = [
    (following, _log(high_watermark=3)),
    (following, _log(start_offset=3, synced_offset=3, high_watermark=3)),
    (following, _log(synced_offset=0)),
    (following, _state(epoch=2)),
    (observing, _state()),
    # What was trimmed may hold the beginning of the epoch.
    (leading, _log(start_offset=1, high_watermark=1, epochs=EpochTable(((1, 1),)))),
]


@pytest.mark.parametrize(("make_core", "change"), SOUND)
def test_what_lies_at_the_edge_is_sound(
    make_core: Callable[[], RaftCore], change: Callable[[RaftState], None]
) -> None:
    core = make_core()
    change(core.state)
    check_core(core)


def test_the_laws_from_step_to_step_allow_what_a_higher_epoch_brings() -> None:
    core = leading()
    now = CoreSnapshot.of(core)
    assert (now.epoch, now.voted_id, now.known_leader_id, now.was_leader) == (1, 1, 1, True)
    assert (now.high_watermark, now.log_start_offset, now.log_end_offset) == (2, 0, 2)
    # Another vote and leader belong to another epoch, and a follower's log may be cut.
    check_step(replace(now, epoch=0, voted_id=2, known_leader_id=3, log_end_offset=9), core)
    check_step(replace(now, was_leader=False, log_end_offset=9), core)
    check_step(replace(now, voted_id=None, known_leader_id=None), core)
    with pytest.raises(RaftInvariantError, match="one vote in an epoch"):
        check_step(replace(now, voted_id=2), core)


def test_the_laws_across_replicas_know_what_they_may_know() -> None:
    core = leading()
    history = ClusterHistory()
    check_cluster([core], history)
    assert history.leaders == {1: 1}
    assert history.epoch_starts == {1: 0}
    assert history.committed == {0: 1, 1: 1}
    assert history.committed_end == 2
    # A leader of the past may lack what was committed after it.
    check_cluster([core], ClusterHistory(committed_end=9, leaders={2: 2}))
    with pytest.raises(RaftInvariantError, match="epoch 1 has one leader: node 2"):
        check_cluster([core], ClusterHistory(leaders={1: 2}))
    with pytest.raises(RaftInvariantError, match="epoch 4 has one leader: node 3"):
        check_cluster([following()], ClusterHistory(leaders={4: 3}))
    for position, fits in (((1, 2), True), ((1, 3), False), ((2, 2), False), ((2, 1), False), ((1, 1), True)):
        if fits:
            check_snapshot(LogPosition(*position), history)
        else:
            with pytest.raises(RaftInvariantError, match="not a prefix"):
                check_snapshot(LogPosition(*position), history)
    check_snapshot(LogPosition(0, 0), ClusterHistory())
    with pytest.raises(RaftInvariantError, match="not a prefix"):
        check_snapshot(LogPosition(1, 1), ClusterHistory())


# ---- majorities -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "reached"),
    [
        ([0], 0),
        ([None], None),
        ([], None),
        ([0, None, None], None),
        ([0, 0, None], 0),
        ([0, None, 0, None, 0], 0),
        ([5, 4, None, None, None], None),
        ([5, 4, 3, None, None], 3),
        ([5, 4, 3, 2, 1], 3),
        ([9, 1], 1),
        ([9, None], None),
        ([9, 7, 5, 3], 5),
    ],
)
def test_what_a_majority_has_reached(values: list[int | None], reached: int | None) -> None:
    assert majority_value(values) == reached


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5, 6, 7])
def test_a_majority_is_more_than_half_and_refusals_that_leave_one_are_too_few(voters: int) -> None:
    ids = range(1, voters + 1)
    for count in range(voters + 1):
        some = set(range(1, count + 1)) | {77, 78, 79}  # who is no voter does not count
        assert has_majority(some, ids) == (2 * count > voters)
        assert cannot_win(some, ids) == (2 * (voters - count) <= voters)


# ---- a follower and what it hears -----------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 3, 5, 9])
def test_a_chunk_of_another_place_is_not_written(position: int) -> None:
    """An answer to an earlier request, or one that skips a piece, would leave a hole or a repeat."""
    core, request = redirected()
    request = sent(core.on_response(2, request.correlation_id, chunk(0, b"abcd"), now_ms=2))
    effects = core.on_response(2, request.correlation_id, chunk(position, b"e"), now_ms=3)
    assert not any(isinstance(effect, WriteSnapshotChunk) for effect in effects)
    assert any(isinstance(effect, Warn) for effect in effects)


def test_a_leader_that_says_it_leads_no_more_is_left_within_the_backoff() -> None:
    core, fetch = follower(((4, 0),), 1)
    now = 10
    refused = FetchResponse(error=RaftError.NOT_LEADER_OR_FOLLOWER, epoch=4, leader_id=None)
    core.on_response(2, fetch.correlation_id, refused, now_ms=now)
    due = core.next_deadline_ms()
    assert due is not None
    assert now <= due <= now + core.state.config.election_backoff_max_ms
    core.tick(now_ms=now + core.state.config.election_backoff_max_ms)
    assert isinstance(core.state.role, Prospective)


def test_an_observer_that_asks_around_asks_for_no_round_and_does_not_wait() -> None:
    core = make(node_id=9)
    request = sent(core.start(now_ms=0)).request
    assert isinstance(request, FetchRequest)
    assert (request.read_round, request.max_wait_ms, request.epoch) == (0, 0, 0)
    assert (request.fetch_offset, request.last_fetched_epoch, request.high_watermark) == (0, 0, -1)
    assert request.max_bytes == core.state.config.fetch_max_bytes


def test_nothing_is_known_of_an_empty_directory() -> None:
    core = make()
    core.start(now_ms=0)
    assert (core.epoch, core.log_start_offset, core.log_end_offset, core.high_watermark) == (0, 0, 0, -1)
    assert core.state.vote is None
    assert isinstance(core.state.role, Unattached)


def test_a_redirect_to_a_snapshot_says_where_the_log_begins() -> None:
    recovered = RecoveredLog(
        epoch=3, epochs=((3, 20),), log_start_offset=20, log_end_offset=25, snapshots=(LogPosition(2, 20),)
    )
    core = make(voters=1, recovered=recovered)
    core.start(now_ms=0)
    core.on_log_synced(core.log_end_offset, now_ms=0)
    request = FetchRequest(
        cluster_id="c",
        replica_id=5,
        replica_directory_id=directory(5),
        epoch=core.epoch,
        fetch_offset=3,
        last_fetched_epoch=1,
        high_watermark=-1,
        max_wait_ms=0,
        max_bytes=100,
        read_round=0,
    )
    (effect,) = [one for one in core.on_request(1, request, now_ms=1) if isinstance(one, Respond)]
    response = effect.response
    assert isinstance(response, FetchResponse)
    assert response.snapshot == LogPosition(2, 20)
    assert (response.log_start_offset, response.high_watermark) == (20, core.high_watermark)
    assert (response.epoch, response.leader_id, response.diverging) == (core.epoch, 1, None)


# ---- the log as the core sees it ------------------------------------------------------------------


def view(epochs: tuple[tuple[int, int], ...], start: int, end: int, *snapshots: LogPosition) -> LogView:
    return LogView(
        RecoveredLog(epochs=epochs, log_start_offset=start, log_end_offset=end, snapshots=snapshots)
    )


def test_where_logs_part_is_told_by_epoch_and_offset_together() -> None:
    log = view(((1, 0), (3, 10), (5, 20)), 0, 30)
    for offset, epoch, parts in [
        (0, 0, None),
        (10, 1, None),
        (11, 1, LogPosition(1, 10)),  # this log's epoch 1 ended before
        (15, 3, None),
        (20, 3, None),
        (21, 3, LogPosition(3, 20)),
        (15, 1, LogPosition(1, 10)),
        (15, 2, LogPosition(1, 10)),  # an epoch that is not in this log
        (25, 4, LogPosition(3, 20)),
        (30, 5, None),
        (31, 5, LogPosition(5, 30)),
        (30, 6, LogPosition(5, 30)),
    ]:
        assert log.divergence(offset, epoch) == parts, (offset, epoch)


def test_what_is_cut_after_an_answer_is_what_the_leader_does_not_hold() -> None:
    log = view(((1, 0), (3, 10), (5, 20)), 0, 30)
    for diverging, end in [
        (LogPosition(1, 5), 5),
        (LogPosition(1, 15), 10),
        (LogPosition(2, 12), 10),  # the leader has epoch 2, this log ends epoch 1 at 10
        (LogPosition(3, 20), 20),
        (LogPosition(3, 12), 12),
        (LogPosition(4, 25), 20),
        (LogPosition(5, 28), 28),
        (LogPosition(0, 0), 0),
    ]:
        assert log.truncation_offset(diverging) == end, diverging


def test_who_needs_a_snapshot() -> None:
    log = view(((3, 10), (5, 20)), 10, 30, LogPosition(2, 10), LogPosition(3, 15))
    for offset, epoch, needed in [
        (9, 2, True),
        (10, 2, False),  # where the snapshot ends
        (10, 1, True),  # the same offset, of another history
        (15, 3, False),
        (12, 1, True),
        (12, 2, False),  # it is cut to where the snapshot ends
        (12, 3, False),
        (30, 5, False),
    ]:
        assert log.snapshot_needed(offset, epoch) == needed, (offset, epoch)
    whole = view(((3, 0),), 0, 30)
    assert not whole.snapshot_needed(0, 0)
    assert not whole.snapshot_needed(5, 1)
    assert log.latest_snapshot == LogPosition(3, 15)
    assert [log.epoch_before(offset) for offset in (10, 11, 20, 21, 30)] == [2, 3, 3, 5, 5]


def test_nothing_below_the_high_watermark_is_taken_back() -> None:
    log = view(((1, 0),), 0, 30)
    log.high_watermark = 20
    log.truncate(20)
    assert (log.end_offset, log.synced_offset) == (20, 20)
    with pytest.raises(RaftInvariantError, match="truncation to 19"):
        log.truncate(19)
    with pytest.raises(RaftInvariantError, match="would remove committed records"):
        log.reset(LogPosition(1, 19))
    log.reset(LogPosition(1, 20))
    assert (log.start_offset, log.end_offset, log.synced_offset, log.high_watermark) == (20, 20, 20, 20)


def test_a_sync_says_nothing_of_what_was_cut_since() -> None:
    log = view(((1, 0),), 0, 10)
    log.append(1, 10, 15)
    log.synced(12)
    assert log.synced_offset == 12
    log.synced(11)
    assert log.synced_offset == 12
    log.synced(99)
    assert log.synced_offset == 15


# ---- the newest batches in memory -----------------------------------------------------------------


def test_batches_in_memory_are_given_up_to_the_limits_and_at_least_one() -> None:
    one = len(batch(0, 1))
    cache = TailCache(one * 100)
    for offset in range(10):
        cache.append(Batches.parse(batch(offset, 1)))

    def given(low: int, high: int, max_bytes: int) -> list[int]:
        found = cache.read(low, high, max_bytes)
        assert found is not None and found == Batches.parse(found.data)
        data = found.data
        assert data == b"".join(batch(offset, 1) for offset in range(low, low + len(data) // one))
        return [low, low + len(data) // one]

    assert given(2, 10, one * 3) == [2, 5]
    assert given(2, 10, one * 3 - 1) == [2, 4]
    assert given(2, 10, one * 3 + 1) == [2, 5]
    assert given(2, 10, 0) == [2, 3]
    assert given(2, 5, one * 100) == [2, 5]
    assert given(2, 2, one * 100) == [2, 3]
    assert given(9, 10, one * 100) == [9, 10]
    assert given(0, 99, one * 100) == [0, 10]


def test_a_view_of_a_leader_knows_only_the_other_voters() -> None:
    core = make()
    assert core.state.other_voters == [2, 3]
    leader = leading()
    assert isinstance(leader.state.role, Leader)
    assert isinstance(leader.state.role.view, LeaderView)
    assert leader.state.role.view.voters == {}
    assert not any(isinstance(effect, SendRequest) for effect in leader.tick(now_ms=10_000_000))
    assert answer().records == b""


COUNTED = [
    *([2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 6], [0, 3, 4, 5], [1, 2, 3, 4, 5], []),
    *([3, 2, 4, 5], [5, 4, 3, 2]),  # in another order than the voters
]


@pytest.mark.parametrize("counted", COUNTED)
def test_a_leader_of_five_counts_the_four_others(counted: list[int]) -> None:
    script = Script()
    script.run("nodes 5")
    script.run("elect 1")
    core = script.world.core(1)
    check_core(core)
    view = core.state.leader_view()
    view.voters = {
        node_id: ReplicaProgress(node_id=node_id, directory_id=directory(node_id)) for node_id in counted
    }
    with pytest.raises(RaftInvariantError, match="a leader counts the voters in force"):
        check_core(core)
