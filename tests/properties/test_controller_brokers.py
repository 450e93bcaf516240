"""Random lives of a few brokers at one controller: only edges of the table, and the laws of S2 hold."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.controller.active.brokers import TRANSITIONS
from metaquorum.controller.server.main import state_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.replay import Replayer
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatResponse,
    CreateTopicsRequest,
    NewTopic,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.status import BrokerControlState
from metaquorum.storage.batches.batch import iter_batches
from tests.unit.controller.node_quorum import CLUSTER, Quorum

BROKERS = (1, 2, 3)
FENCED_STATES = {BrokerControlState.FENCED, BrokerControlState.SHUTDOWN}
EDGES = {(before, after) for (before, _), after in TRANSITIONS.items()}

brokers = st.sampled_from(BROKERS)
flag = st.booleans()
steps = st.lists(
    st.one_of(
        st.tuples(st.just("register"), brokers, st.integers(1, 3)),
        st.tuples(
            st.just("heartbeat"), brokers, flag, flag, st.integers(-3, 0), st.sampled_from([0, 0, 0, -1, 1])
        ),
        st.tuples(st.just("create"), st.permutations(BROKERS), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.sampled_from([10, 1_000, 4_000, 9_000])),
        st.tuples(st.just("beat all")),
        st.tuples(st.just("unregister"), brokers),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


class Life:
    """A quorum of one, with a model beside it: the highest epoch of each broker, and what each broker
    learned."""

    def __init__(self, slice_max: int) -> None:
        config = ControllerConfig(
            cluster_id=CLUSTER,
            node_id=0,
            records_per_slice_max=slice_max,
            broker_metadata_lag_timeout_ms=6_000,
        )
        self.quorum = Quorum(size=1, config=config)
        self.quorum.elect()
        self.epochs: dict[int, int] = {}
        self.topics = 0
        for broker_id in BROKERS:
            self.epochs[broker_id] = self.quorum.start_broker(broker_id)
        for replicas in ((1, 2, 3), (2, 3), (1,)):
            self.do_create(list(replicas), 3)

    def states(self) -> dict[int, BrokerControlState]:
        node = self.quorum.leader.node
        return {broker_id: state_of(node, broker_id) for broker_id in BROKERS}

    def apply(self, step: tuple[object, ...]) -> None:
        before = self.states()
        getattr(self, "do_" + str(step[0]).replace(" ", "_"))(*step[1:])
        self.quorum.elect()
        self.quorum.advance(5)
        self.check(before, forgets=step[0] == "restart", about=step[1] if step[0] == "heartbeat" else None)

    # ---- what can happen

    def do_register(self, broker_id: int, incarnation: int) -> None:
        known = self.quorum.image().brokers.get(broker_id)
        lease_ms = self.quorum.leader.node.sessions.remaining_ms(broker_id, self.quorum.now_ms)
        key_end = self.quorum.leader.end_offset
        answer = self.quorum.register(broker_id, incarnation)
        self.quorum.advance(5)
        same = known is not None and known.incarnation_id == bytes([incarnation]) * 16
        if known is not None and not same and lease_ms > 0 and not known.in_controlled_shutdown:
            assert isinstance(answer, ApiError) and answer.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            return
        registered = self.quorum.image().brokers[broker_id]
        if same and known is not None:
            assert registered.epoch == known.epoch
            return
        assert registered.epoch >= key_end and registered.epoch > self.epochs.get(broker_id, -1)
        assert registered.fenced
        self.epochs[broker_id] = registered.epoch
        assert answer is None or isinstance(answer, RegisterBrokerResponse)

    def do_heartbeat(
        self, broker_id: int, fence: bool, shutdown: bool, behind: int, epoch_error: int
    ) -> None:
        request = self.quorum.heartbeat_request(broker_id, want_fence=fence, want_shutdown=shutdown)
        applied = max(0, request.applied_offset + 40 * behind)
        epoch = request.broker_epoch + epoch_error
        end = self.quorum.leader.end_offset
        answer = self.quorum.heartbeat(
            broker_id, want_fence=fence, want_shutdown=shutdown, applied_offset=applied, broker_epoch=epoch
        )
        known = broker_id in self.quorum.image().brokers
        if not known or epoch_error:
            assert isinstance(answer, ApiError)
            assert self.quorum.leader.end_offset == end
            return
        assert isinstance(answer, BrokerHeartbeatResponse)
        assert not (answer.in_controlled_shutdown and answer.is_fenced)
        assert answer.is_fenced or not answer.should_shut_down
        if answer.should_shut_down:
            assert self.quorum.image().brokers[broker_id].fenced

    def do_create(self, replicas: list[int], count: int) -> None:
        self.topics += 1
        topic = NewTopic(name=f"t{self.topics}", assignments=tuple([tuple(replicas[:count])] * 3))
        self.quorum.call(CreateTopicsRequest(topics=(topic,)))

    def do_wait(self, ms: int) -> None:
        self.quorum.advance(ms)

    def do_beat_all(self) -> None:
        for broker_id in self.quorum.image().brokers:
            self.quorum.heartbeat(broker_id)

    def do_unregister(self, broker_id: int) -> None:
        self.quorum.call(UnregisterBrokerRequest(broker_id=broker_id))

    def do_restart(self) -> None:
        machine = self.quorum.leader
        machine.kill()
        self.quorum.advance(50)
        machine.boot()

    # ---- what must hold

    def check(self, before: dict[int, BrokerControlState], *, forgets: bool, about: object) -> None:
        node = self.quorum.leader.node
        active = node.active
        assert active is not None and not active.work
        after = self.states()
        for broker_id in BROKERS:
            was, now = before[broker_id], after[broker_id]
            if forgets and was is BrokerControlState.SHUTDOWN:
                assert now is BrokerControlState.FENCED  # the permission to stop is soft state
            elif was is not now and not (was in FENCED_STATES and now in FENCED_STATES):
                # A step may take several edges: a lease that ends on the way to its own event.
                middle = {to for at, to in EDGES if at is was}
                assert (was, now) in EDGES or any((via, now) in EDGES for via in middle), (was, now)
        self.check_partitions(node.ledger.committed.image, after)
        engine = Replayer()
        for _, _, data in self.quorum.leader.log:
            for batch in iter_batches(data):
                engine.apply_batch(batch)
        assert engine.state().image == node.ledger.committed.image

    def check_partitions(self, image: MetadataImage, states: dict[int, BrokerControlState]) -> None:
        for topic in image.topics.all():
            for partition in image.topics.partitions_of(topic.topic_id):
                assert partition.isr and set(partition.isr) <= set(partition.replicas)
                alive = [b for b in partition.isr if states[b] is BrokerControlState.ACTIVE]
                if partition.leader == -1:
                    assert not alive
                else:
                    assert partition.leader in alive
                if len(partition.isr) > 1:
                    assert not any(states[b] in FENCED_STATES for b in partition.isr)


@settings(max_examples=150, deadline=None)
@given(steps=steps, slice_max=st.sampled_from([1, 2, 1_000]))
@example(
    # With permission to stop, it continues to send heartbeats without a shutdown request.
    steps=[("unregister", 2), ("heartbeat", 3, False, True, 0, 0), ("beat all",), ("beat all",)],
    slice_max=1,
)
@example(
    # Fenced by a heartbeat after its shutdown: another process may take the id at once, as in Kafka.
    steps=[("heartbeat", 2, False, True, 0, 0), ("beat all",), ("beat all",), ("register", 2, 2)],
    slice_max=1,
)
def test_random_lives_of_brokers(steps: list[tuple[object, ...]], slice_max: int) -> None:
    life = Life(slice_max)
    for step in steps:
        life.apply(step)
