"""Combined nodes in one thread: what the broker knows of the one log, and the order in which a node ends."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.events import (
    PublishImage,
    SendToController,
    StateChanged,
)
from metaquorum.broker.node import BrokerNode
from metaquorum.combined.node import LEADERLESS_MS, BrokerStopped, CombinedNode
from metaquorum.controller.events import Answer, RequestArrived, Stop
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft import effects as raft
from metaquorum.raft.events import RaftResponseArrived
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.storage.batches.batch import Batches
from tests.controllers import channel_of, reported, unanswered
from tests.unit.controller.node_quorum import CLUSTER, Machine, Quorum

RUNNING = BrokerState.RUNNING


class CombinedMachine(Machine):
    """A machine whose node has both roles. Its broker asks controllers as any other does."""

    quorum: CombinedQuorum

    def what_is_driven(self, rng: Random) -> Any:
        self.states: list[BrokerState] = []
        self.published: list[PublishImage] = []
        self.endings: list[object] = []
        endpoint = BrokerEndpoint(name="PLAINTEXT", host="h", port=1, security_protocol=0)
        config = BrokerConfig(
            node_id=self.node_id,
            cluster_id=CLUSTER,
            endpoints=(endpoint,),
            directories=(b"dir" + self.node_id.to_bytes(13, "big"),),
            features=(BrokerFeature("metadata.version", 1, 25),),
        )
        self.broker = BrokerNode(
            config,
            self.node.raft,
            self.node.replica,
            channel=channel_of(tuple(voter.node_id for voter in self.quorum.voters), rng),
            incarnation_id=rng.randbytes(16),
            now_ms=self.quorum.now_ms,
        )
        return CombinedNode(self.node, self.broker)

    @property
    def state(self) -> BrokerState:
        return self.broker.status(now_ms=self.quorum.now_ms).state

    def _execute(self, effect: object) -> None:
        match effect:
            case SendToController():
                self.quorum.ask(self, effect)
            case Answer(key=key, response=response) if key in self.quorum.asked:
                asker, asked = self.quorum.asked.pop(key)
                asker.inbox.append(reported(asked, response))
            case StateChanged(new=new):
                self.states.append(new)
            case PublishImage():
                self.published.append(effect)
            case BrokerStopped():
                self.endings.append(effect)
            case Stop():
                self.endings.append(effect)
                super()._execute(effect)
            case _:
                super()._execute(effect)


class CombinedQuorum(Quorum):
    machine_type = CombinedMachine
    machines: dict[int, CombinedMachine]  # type: ignore[assignment]

    def __init__(self, size: int) -> None:
        self.asked: dict[int, tuple[CombinedMachine, SendToController]] = {}
        super().__init__(size)

    def ask(self, asker: CombinedMachine, effect: SendToController) -> None:
        target = self.machines[effect.target]
        if not target.alive or (asker.node_id, target.node_id) in self.cut:
            asker.inbox.append(unanswered(effect, "unreachable"))
            return
        self._keys += 1
        self.asked[self._keys] = asker, effect
        arrived = RequestArrived(key=self._keys, arrived_ms=self.now_ms, request=effect.request)
        target.inbox.append(arrived)

    def run(self) -> CombinedMachine:
        """Until every broker serves; the active controller's machine."""
        for _ in range(200):
            self.advance(50)
            if all(machine.state is RUNNING for machine in self.machines.values()):
                return self.leader  # type: ignore[return-value]
        raise AssertionError([machine.state for machine in self.machines.values()])


@pytest.mark.parametrize("size", [1, 3])
def test_every_broker_has_the_image_of_its_own_controller(size: int) -> None:
    quorum = CombinedQuorum(size)
    quorum.run()
    topic_id = quorum.create("a", (1,))
    quorum.advance(2_000)
    for machine in quorum.machines.values():
        assert machine.states == [BrokerState.STARTING, BrokerState.RECOVERY, RUNNING]
        assert machine.published[-1].image is machine.node.ledger.committed.image
        assert machine.published[-1].image.topics.topic(topic_id) is not None


def test_a_broker_registers_when_it_has_what_the_leader_calls_committed() -> None:
    """Not before: what its own disk calls committed may be long ago (S2.3)."""
    quorum = CombinedQuorum(3)
    leader = quorum.run()
    late = next(machine for machine in quorum.machines.values() if machine is not leader)
    late.kill()
    for at in range(20):
        quorum.create(f"t{at}", (leader.node_id,))
    late.boot()
    quorum.disconnect(late.node_id)
    quorum.advance(500)
    assert late.broker.status(now_ms=quorum.now_ms).catch_up_offset is None
    quorum.reconnect(late.node_id)
    end = leader.node.ledger.committed_offset
    quorum.advance(30_000)
    catch_up = late.broker.status(now_ms=quorum.now_ms).catch_up_offset
    assert catch_up is not None and catch_up >= end and late.state is RUNNING


def test_the_log_is_written_and_read_once() -> None:
    quorum = CombinedQuorum(1)
    machine = quorum.run()
    quorum.create("a", (1,))
    appended = [each for each in machine.effects if isinstance(each, raft.AppendLog)]
    batches: list[Batches] = [each.batches for each in appended]
    bases = [each.base_offset for each in batches]
    assert bases == sorted(set(bases))
    assert machine.broker._metadata is machine.node.replica


@pytest.mark.parametrize("size", [1, 3])
def test_the_broker_stops_before_its_controller(size: int) -> None:
    quorum = CombinedQuorum(size)
    leader = quorum.run()
    epoch = leader.node.raft.epoch
    quorum.shut_down(leader)
    quorum.advance(5_000)
    gone, last = leader.endings
    assert isinstance(gone, BrokerStopped) and "granted the shutdown" in gone.reason
    assert isinstance(last, Stop) and not last.failed
    order = [type(each) for each in leader.effects]
    resigned = [at for at, each in enumerate(leader.effects) if isinstance(each, raft.PersistQuorumState)]
    assert order.index(BrokerStopped) < order.index(Stop)
    if size > 1:
        assert quorum.leader.node.raft.epoch > epoch and resigned
        known = quorum.leader.node.ledger.committed.image.brokers[leader.node_id]
        assert known.fenced


def test_all_nodes_that_stop_at_once_end_without_failure() -> None:
    quorum = CombinedQuorum(3)
    quorum.run()
    begun_ms = quorum.now_ms
    for machine in quorum.machines.values():
        quorum.shut_down(machine)
    while any(machine.alive for machine in quorum.machines.values()):
        quorum.advance(50)
        assert quorum.now_ms < begun_ms + 10_000, "a broker waits for a quorum that is gone"
    for machine in quorum.machines.values():
        assert [type(each) for each in machine.endings] == [BrokerStopped, Stop]
        assert not any(each.failed for each in machine.endings if isinstance(each, Stop))


def test_a_stop_waits_as_long_as_a_leader_is_to_be_found() -> None:
    quorum = CombinedQuorum(3)
    leader = quorum.run()
    other = next(machine for machine in quorum.machines.values() if machine is not leader)
    leader.kill()
    quorum.shut_down(other)
    quorum.advance(LEADERLESS_MS // 2)
    assert other.alive and not other.endings
    quorum.advance(30_000)
    assert [type(each) for each in other.endings] == [BrokerStopped, Stop]


@pytest.mark.parametrize("part", ["broker", "controller"])
def test_what_ends_one_role_ends_both(part: str) -> None:
    quorum = CombinedQuorum(1)
    machine = quorum.run()
    times = {"now_ms": quorum.now_ms, "wall_ms": quorum.wall_ms}
    if part == "broker":
        effects: list[Any] = machine.broker.give_up("the last directory is bad", **times)
        machine.execute(machine.driven._settle(effects, [], *times.values()))
    else:
        machine.node._stop("the log cannot be replayed", failed=True)
        machine.execute(machine.driven._settle([], machine.node._out.take(), *times.values()))
    (last,) = machine.endings
    assert isinstance(last, Stop) and last.failed and not machine.alive
    assert machine.states[-1].ended
    assert machine.driven.handle(object(), **times) == []


@pytest.mark.parametrize(
    ("changes", "source", "known"),
    [
        ({}, 2, True),
        ({"high_watermark": 0}, 2, True),
        ({"high_watermark": -1}, 2, False),
        ({"epoch": 3}, 2, False),
        ({"epoch": 5}, 2, False),
        ({"error": RaftError.FENCED_LEADER_EPOCH}, 2, False),
        ({}, 3, False),
    ],
)
def test_only_the_leaders_answer_of_this_epoch_says_what_is_committed(
    changes: dict[str, Any], source: int, known: bool
) -> None:
    core = SimpleNamespace(leader_id=2, epoch=4, high_watermark=9)
    controller: Any = SimpleNamespace(raft=core, active=None)
    node = CombinedNode(controller, SimpleNamespace())  # type: ignore[arg-type]
    assert node._known_end() is None
    answer = replace(FetchResponse(error=RaftError.NONE, epoch=4, leader_id=2, high_watermark=7), **changes)
    node._note_answer(RaftResponseArrived(source=source, correlation_id=1, response=answer))
    assert node._known_end() == (9 if known else None)
    core.leader_id = None
    assert node._known_end() is None
    controller.active, core.leader_id = object(), 1
    assert node._known_end() == 9


def test_a_broker_that_gives_up_without_a_quorum_has_not_failed() -> None:
    node = CombinedNode(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    other = BrokerStopped(reason="x")
    effects = node._without_failure([other, Stop(reason="no quorum", failed=True), other])
    assert effects == [other, Stop(reason="no quorum", failed=False), other]


@pytest.mark.parametrize(
    ("controller_ms", "broker_ms", "leaderless_ms", "due_ms"),
    [
        (None, None, None, None),
        (5, None, None, 5),
        (None, 6, None, 6),
        (7, 6, None, 6),
        (7, 8, 3, 7),
        (None, None, 3, 3 + LEADERLESS_MS),
        (9_000, 9_000, 0, LEADERLESS_MS),
    ],
)
def test_the_first_of_all_deadlines_is_due(
    controller_ms: int | None, broker_ms: int | None, leaderless_ms: int | None, due_ms: int | None
) -> None:
    controller, broker = (
        SimpleNamespace(next_deadline_ms=lambda at=at: at) for at in (controller_ms, broker_ms)
    )
    node = CombinedNode(controller, broker)  # type: ignore[arg-type]
    node._leaderless_ms = leaderless_ms
    assert node.next_deadline_ms() == due_ms
