"""What a leader takes from a fetch: that its caller is alive, how far it has come, and since when."""

from __future__ import annotations

import pytest

from metaquorum.raft.core import RaftCore
from metaquorum.raft.effects import ReadReady, RespondWithRecords
from metaquorum.raft.state.progress import ReplicaState
from metaquorum.raft.state.roles import Leader
from metaquorum.storage.batches.parsed import Batches
from tests.unit.raft.test_answers_of_a_leader import KINDS, trimmed_leader
from tests.unit.raft.test_core import batch
from tests.unit.raft.test_timers_and_replicas import answers, fetch_of, leading


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_is_confirmed_by_any_fetch_of_the_epoch(kind: str) -> None:
    """Also by one of a voter that is far behind, or has other records: it still follows this leader."""
    core = trimmed_leader()
    assert isinstance(core.state.role, Leader)
    core.state.acknowledged.clear()
    core.state.role.view.voters[2].furthest_offset = 0
    core.request_read(7, 77)
    fields = {**KINDS[kind]}
    offset = fields.pop("fetch_offset")
    asked = core.state.role.view.reads.round
    for read_round, ready in ((asked - 1, False), (asked, True)):
        effects = core.on_request(7, 500, fetch_of(2, offset, read_round=read_round, **fields))
        assert [one.token for one in effects if isinstance(one, ReadReady)] == [77] * ready


def seen(core: RaftCore, now_ms: int, node_id: int) -> ReplicaState:
    (found,) = [one for one in core.describe(now_ms) if one.node_id == node_id]
    return found


@pytest.mark.parametrize("node_id", [2, 9])
def test_a_replica_is_where_its_newest_fetch_was(node_id: int) -> None:
    """An observer may start again from nothing; a voter's late fetch takes back nothing that is committed."""
    world, core = leading()
    for at in range(1, 5):
        core.append(world.now, Batches.sealed(batch(at, 1)))
    for offset in (5, 3):
        core.on_request(world.now, 500, fetch_of(node_id, offset))
        assert seen(core, world.now, node_id).log_end_offset == offset


@pytest.mark.parametrize("node_id", [2, 9])
def test_a_replica_was_caught_up_when_it_had_asked_for_what_it_has_now(node_id: int) -> None:
    """With a log that never stands still no fetch is at the end; the one before says when this one was."""
    world, core = leading()
    told = []
    for wall_ms, offset in ((1000, 1), (2000, 1), (3000, 2), (4000, 3), (5000, 3), (6000, 5), (7000, 6)):
        core.wall_ms = wall_ms
        core.on_request(world.now, 500, fetch_of(node_id, offset))
        told.append(seen(core, world.now, node_id).last_caught_up_wall_ms)
        if wall_ms != 6000:
            core.append(world.now, Batches.sealed(batch(core.log_end_offset, 1)))
    # At 3000 it has what was the end at 2000, and at 5000 less than what was the end at 4000.
    assert told == [1000, 1000, 2000, 3000, 3000, 5000, 7000]


def test_a_high_watermark_that_goes_on_rising_is_not_put_off() -> None:
    world, core = leading(options="high_watermark_linger_ms=30")
    begun = world.now
    for at in (1, 2):
        core.append(begun, Batches.sealed(batch(at, 1)))
    core.on_request(begun, 500, fetch_of(2, 3, high_watermark=1, max_wait_ms=100))
    core.on_log_synced(begun, 2)
    core.on_log_synced(begun + 20, 3)
    assert core.high_watermark == 3
    assert answers(core.tick(begun + 29), 500) == []
    (found,) = answers(core.tick(begun + 30), 500)
    assert found.response.high_watermark == 3


def test_records_are_offered_to_those_who_vote_once_they_are_in_the_log() -> None:
    world, core = leading()
    core.on_request(world.now, 500, fetch_of(2, 1, high_watermark=1, max_wait_ms=100))
    effects = core.append(world.now, Batches.sealed(batch(1, 1)))
    (found,) = answers(effects, 500)
    assert isinstance(found, RespondWithRecords) and (found.read_from, found.read_to) == (1, 2)
