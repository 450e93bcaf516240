"""Laws of replication under any schedule: nothing acknowledged is lost or stored twice, logs below their high
watermarks are the same, no leader's high watermark decreases, and the logs converge again whatever happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metaquorum.metadata.requests.data import ACKS_ALL, ACKS_LEADER
from tests.properties.replica_cluster import BROKERS, Cluster

broker = st.sampled_from(BROKERS)
small = st.integers(0, 3)
any_index = st.integers(0, 50)


class ReplicaMachine(RuleBasedStateMachine):
    """Single actions, and rounds that complete something, so that histories become long."""

    cluster: Cluster

    @initialize(flush=st.booleans(), unclean=st.booleans(), min_isr=st.integers(1, 2), elr=st.booleans())
    def begin(self, flush: bool, unclean: bool, min_isr: int, elr: bool) -> None:
        self.cluster = Cluster(flush=flush, unclean=unclean, min_isr=min_isr, elr=elr)

    @rule(broker_id=broker)
    def read_metadata(self, broker_id: int) -> None:
        self.cluster.read_metadata(broker_id)

    @rule(ms=st.sampled_from([1, 20, 100, 600]))
    def pass_time(self, ms: int) -> None:
        self.cluster.pass_time(ms)

    @rule(broker_id=broker)
    def fence(self, broker_id: int) -> None:
        self.cluster.fence(broker_id)

    @rule(broker_id=broker)
    def unfence(self, broker_id: int) -> None:
        self.cluster.unfence(broker_id)

    @rule(broker_id=broker)
    def elect(self, broker_id: int) -> None:
        self.cluster.elect(broker_id)

    @rule(broker_id=broker, kept=small)
    def crash(self, broker_id: int, kept: int) -> None:
        self.cluster.crash(broker_id, kept)

    @rule(broker_id=broker, forgotten=small, empty=st.booleans())
    def restart(self, broker_id: int, forgotten: int, empty: bool) -> None:
        self.cluster.restart(broker_id, forgotten, empty=empty)
        self.cluster.unfence(broker_id)

    @rule(broker_id=broker, count=small)
    def work(self, broker_id: int, count: int) -> None:
        self.cluster.work(broker_id, count)

    @rule(broker_id=broker)
    def sync(self, broker_id: int) -> None:
        self.cluster.sync(broker_id)

    @rule(broker_id=broker)
    def fetch(self, broker_id: int) -> None:
        self.cluster.fetch(broker_id)

    @rule(broker_id=broker)
    def propose(self, broker_id: int) -> None:
        self.cluster.propose(broker_id)

    @rule(broker_id=broker)
    def give_up_proposal(self, broker_id: int) -> None:
        self.cluster.give_up_proposal(broker_id)

    @rule(index=any_index, again=st.booleans())
    def deliver(self, index: int, again: bool) -> None:
        self.cluster.deliver(index, again=again)

    @rule(index=any_index)
    def drop(self, index: int) -> None:
        self.cluster.drop(index)

    @rule(broker_id=broker, ahead=st.integers(-4, 3), acks=st.sampled_from([ACKS_ALL, ACKS_ALL, ACKS_LEADER]))
    def produce(self, broker_id: int, ahead: int, acks: int) -> None:
        self.cluster.produce(broker_id, ahead=ahead, acks=acks)

    @rule(burst=st.integers(1, 4))
    def produce_to_the_leader(self, burst: int) -> None:
        leader = self.cluster.controller.now.info.leader
        for ahead in range(burst):
            self.cluster.produce(leader, ahead=ahead)

    @rule()
    def calm_round(self) -> None:
        self.cluster.calm_round()

    @rule(broker_id=broker)
    def replicate(self, broker_id: int) -> None:
        replicate(self.cluster, broker_id)

    @rule(broker_id=broker)
    def finish_disk(self, broker_id: int) -> None:
        self.cluster.work(broker_id, 100)
        self.cluster.sync(broker_id)

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.heal()


def replicate(cluster: Cluster, broker_id: int) -> None:
    """One fetch, its response, and the disk work that it causes."""
    if cluster.fetch(broker_id):
        cluster.deliver(len(cluster.messages) - 1)
        cluster.deliver(len(cluster.messages) - 1)
        cluster.work(broker_id, 100)
        cluster.sync(broker_id)


ReplicaMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReplicas = ReplicaMachine.TestCase


def wild(rng: random.Random) -> int:
    return rng.choice(BROKERS)


def leading(cluster: Cluster, rng: random.Random) -> int:
    """Usually the leader; sometimes another broker, which may believe that it leads."""
    leader = cluster.controller.now.info.leader
    return leader if leader in BROKERS and rng.random() < 0.8 else wild(rng)


Action = Callable[[Cluster, random.Random], object]
ACTIONS: tuple[tuple[int, Action], ...] = (
    (24, lambda c, r: c.produce(leading(c, r), ahead=r.randint(0, 3))),
    (3, lambda c, r: c.produce(leading(c, r), ahead=r.randint(0, 1), acks=ACKS_LEADER)),
    (4, lambda c, r: c.produce(leading(c, r), ahead=-r.randint(1, 4))),
    (24, lambda c, r: replicate(c, wild(r))),
    (8, lambda c, r: c.fetch(wild(r))),
    (16, lambda c, r: c.deliver(r.randrange(50), again=r.random() < 0.2)),
    (3, lambda c, r: c.drop(r.randrange(50))),
    (10, lambda c, r: c.work(wild(r), r.randint(0, 3))),
    (8, lambda c, r: c.sync(wild(r))),
    (24, lambda c, r: c.read_metadata(wild(r))),
    (10, lambda c, r: c.propose(leading(c, r))),
    (2, lambda c, r: c.give_up_proposal(leading(c, r))),
    (6, lambda c, r: c.pass_time(r.choice([1, 20, 100, 600]))),
    (1, lambda c, r: c.fence(wild(r))),
    (10, lambda c, r: c.unfence(wild(r))),
    (1, lambda c, r: c.elect(wild(r))),
    (1, lambda c, r: c.crash(wild(r), r.randint(0, 3))),
    (12, lambda c, r: c.restart(wild(r), r.randint(0, 20), empty=r.random() < 0.3)),
    (5, lambda c, r: c.calm_round()),
)


def history(seed: int, actions: int) -> Cluster:
    """A long one, with its own mixture of frequent and rare actions."""
    rng = random.Random(seed)
    cluster = Cluster(
        flush=seed % 5 < 3, unclean=seed % 10 == 9, min_isr=rng.randint(1, 2), elr=rng.random() < 0.5
    )
    weights = [weight * rng.choice((0.3, 1, 1, 3)) for weight, _ in ACTIONS]
    for _ in range(actions):
        (_, act) = rng.choices(ACTIONS, weights)[0]
        act(cluster, rng)
        cluster.check()
    cluster.heal()
    return cluster


@pytest.mark.parametrize("seed", range(20))
def test_long_histories(seed: int) -> None:
    history(seed, 1_000)


def test_the_histories_are_not_idle() -> None:
    clusters = [history(seed, 500) for seed in range(6)]
    assert sum(len(cluster.acknowledged) for cluster in clusters) > 60
    assert sum(cluster.controller.now.info.leader_epoch for cluster in clusters) > 25
    assert sum(len(cluster.controller.images) for cluster in clusters) > 40
