"""What a step decides reaches Raft together, and not too late."""

from __future__ import annotations

from metaquorum.controller.active.steps import PENDING_APPENDS_MAX
from metaquorum.controller.events import LogSynced, RequestArrived
from metaquorum.controller.node import GATHERED_MAX_BYTES
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.requests.common import (
    ControllerRequest,
    CreateTopicsRequest,
    NewTopic,
    TopicsResponse,
)
from metaquorum.raft import effects as raft
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum

KEY = 1_000_000
"""Above the keys that the quorum gives."""


def arrived(key: int, request: ControllerRequest) -> RequestArrived:
    return RequestArrived(key=KEY + key, arrived_ms=0, request=request)


def topic(name: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=(NewTopic(name=name, partitions=partitions, replication_factor=1),))


def topics(count: int, first: int = 0) -> list[RequestArrived]:
    return [arrived(at, topic(f"t{at}")) for at in range(first, first + count)]


def serving(config: ControllerConfig | None = None) -> tuple[Quorum, Machine]:
    """A quorum with a broker, and its leader, without effects so far."""
    quorum = Quorum(config=config)
    quorum.elect()
    quorum.start_broker(1)
    quorum.advance(500)
    quorum.leader.effects.clear()
    return quorum, quorum.leader


def appends(machine: Machine) -> list[int]:
    """The number of batches in each append."""
    return [len(each.batches.headers) for each in machine.effects if isinstance(each, raft.AppendLog)]


def test_the_requests_of_a_step_become_one_append_that_voters_fetch_as_a_whole() -> None:
    quorum, leader = serving()
    leader.hear(*topics(5))
    assert appends(leader) == [5]
    end = leader.node.raft.log_end_offset
    sent = [each for each in leader.effects if isinstance(each, raft.RespondWithRecords)]
    assert [each.read_to for each in sent] == [end] * len(quorum.followers)
    quorum.settle()
    answers = [leader.answers[KEY + at] for at in range(5)]
    assert all(isinstance(each, TopicsResponse) and each.results[0].topic_id for each in answers)


def test_raft_takes_no_input_before_it_has_what_was_decided() -> None:
    quorum, leader = serving()
    times = {"now_ms": quorum.now_ms, "wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a")), **times))
    assert appends(leader) == []
    leader.execute(leader.node.handle(LogSynced(end_offset=leader.node.raft.synced_offset), **times))
    assert appends(leader) == [1]
    leader.execute(leader.node.handle(arrived(1, topic("b")), **times))
    leader.execute(leader.node.tick(drained=True, **times))
    assert appends(leader) == [1, 1]


def test_large_batches_do_not_wait_for_the_end_of_a_step() -> None:
    quorum, leader = serving()
    times = {"now_ms": quorum.now_ms, "wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a", GATHERED_MAX_BYTES // 60)), **times))
    assert appends(leader) == [1]


def test_a_round_of_many_requests_does_not_hold_up_work_in_slices() -> None:
    """The slices of a broker's removal go on while requests keep more batches uncommitted than slices may."""
    quorum, leader = serving(ControllerConfig(cluster_id=CLUSTER, node_id=0, records_per_slice_max=1))
    quorum.start_broker(2)
    quorum.create("wide", *[(1, 2)] * 5)
    for machine in quorum.followers:
        machine.sync = False
    leader.hear(*topics(PENDING_APPENDS_MAX + 1))
    leader.hear(arrived(99, quorum.heartbeat_request(1, want_fence=True)))
    before = leader.node.raft.log_end_offset
    leader.tick()
    assert leader.node.raft.log_end_offset > before


def test_what_was_decided_and_not_appended_ends_with_the_leadership() -> None:
    quorum, leader = serving()
    quorum.disconnect(leader.node_id)
    times = {"wall_ms": quorum.wall_ms}
    leader.execute(leader.node.handle(arrived(0, topic("a")), now_ms=quorum.now_ms, **times))
    quorum.advance(5_000)
    answer = leader.answers[KEY]
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.NOT_CONTROLLER
