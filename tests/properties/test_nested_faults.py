"""Faults of a cluster within each other, which heal in any order: once all have, it serves as ever."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.testing import Cluster, ClusterError
from metaquorum.testing.healing import ActiveFault, Effect, FaultsInForce, cut_effect
from tests.unit.testing.test_cluster import produced

NODES = (0, 1, 2)
LIMIT_S = 60.0
"""Of anything that a cluster is waited for; a hang is longer."""
numbers = itertools.count()

Fault = Callable[[Cluster, int], ActiveFault]
FAULTS: dict[str, Fault] = {
    "kill": lambda cluster, node: cluster.kill(node),
    "power loss": lambda cluster, node: cluster.kill(node, power_lost=True),
    "stop": lambda cluster, node: cluster.stop(node),
    "lost disk": lambda cluster, node: cluster.lose_disk(node),
    "isolation": lambda cluster, node: cluster.isolate(node, clients=bool(node % 2)),
    "cut": lambda cluster, node: cluster.cut(node, (node + 1) % 3, direction=("both", "to", "from")[node]),
    "delay": lambda cluster, node: cluster.delay(node, (node + 1) % 3, ms=600_000),
    "full disk": lambda cluster, node: cluster.disk_full(node),
    "failing disk": lambda cluster, node: cluster.disk_fails(node, after_bytes=1000 * node),
    "slow disk": lambda cluster, node: cluster.disk_slow(node, delay_s=600),
    "held fetches": lambda cluster, node: cluster.fault("Fetch", node=node, hold=True),
}
BEGIN = st.tuples(st.sampled_from(sorted(FAULTS)), st.sampled_from(NODES))
HISTORIES = st.lists(
    st.one_of(BEGIN, BEGIN, st.tuples(st.just("heal"), st.integers(0, 9))), min_size=3, max_size=8
)


@pytest.fixture(name="clusters", scope="module")
def fixture_clusters() -> Iterator[Callable[[], Cluster]]:
    """One for all histories, in which all controllers vote; after one that failed, another one."""
    made: list[Cluster] = []

    def cluster() -> Cluster:
        if not made or not is_sound(made[-1]):
            made.append(Cluster(brokers=3, timeout_s=LIMIT_S).start())
        return made[-1]

    yield cluster
    for each in made:
        each.close()


def is_sound(cluster: Cluster) -> bool:
    """All nodes serve, and vote, after some time for those that lost their disks."""

    def all_vote() -> bool:
        cluster._see_voters()
        return cluster._voters == cluster._disk_ids

    cluster.clock.pass_until(all_vote)
    return all(node.is_up for node in cluster._nodes.values()) and cluster._is_ready() and all_vote()


def begun(cluster: Cluster, kind: str, node: int) -> list[ActiveFault]:
    """The fault; none if there cannot be one: of a node that is down already, or of the last disk."""
    try:
        return [FAULTS[kind](cluster, node)]
    except ClusterError as error:
        assert "is down already" in str(error) or "too few controllers have the metadata" in str(error), error
        return []


def check_serves(cluster: Cluster) -> None:
    """All nodes serve, and a message is stored by all."""
    assert cluster._is_ready(), cluster._what_nodes_do()
    topic = cluster.create_topic(f"orders-{next(numbers)}", configs={"min.insync.replicas": 3})
    cluster.wait_for_full_isr(topic)
    assert produced(cluster.bootstrap_servers, topic, ["a"]) == [0]
    assert [each.value for each in cluster.consume_all(topic)] == [b"a"]


@given(history=HISTORIES)
@example(history=[("isolation", 1), ("kill", 1), ("heal", 1), ("heal", 0)])
@example(history=[("isolation", 2), ("lost disk", 2), ("heal", 1), ("heal", 0)])
@example(history=[("full disk", 0), ("kill", 0), ("kill", 1), ("heal", 1), ("heal", 0), ("heal", 0)])
@settings(max_examples=4)
def test_a_cluster_serves_once_all_its_faults_have_healed(
    clusters: Callable[[], Cluster], history: Sequence[tuple[str, int]]
) -> None:
    cluster, faults = clusters(), list[ActiveFault]()
    for kind, number in history:
        if kind != "heal":
            faults += begun(cluster, kind, number)
        elif faults:
            faults.pop(number % len(faults)).heal()
    while faults:
        faults.pop(len(faults) // 2).heal()
    check_serves(cluster)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_node_that_two_faults_keep_down_starts_after_both(
    clusters: Callable[[], Cluster], order: tuple[int, int]
) -> None:
    cluster = clusters()
    faults = [cluster.kill(1), cluster.lose_disk(1)]
    faults[order[0]].heal()
    assert not cluster._nodes[1].is_up
    faults[order[1]].heal()
    assert cluster._nodes[1].is_serving
    check_serves(cluster)


def test_a_node_that_is_restarted_is_kept_down_by_no_fault(clusters: Callable[[], Cluster]) -> None:
    cluster = clusters()
    faults = [cluster.kill(2), cluster.lose_disk(2)]
    cluster.restart(2)
    assert cluster._nodes[2].is_serving and not any(each.is_in_force for each in faults)
    check_serves(cluster)


def test_a_node_that_ended_by_its_disk_starts_when_the_disk_heals(clusters: Callable[[], Cluster]) -> None:
    cluster = clusters()
    with cluster.disk_read_only(1):
        cluster.create_topic(f"unstored-{next(numbers)}")
        cluster.wait_until(lambda: not cluster._nodes[1].is_up, "a node without its metadata log to end")
        with cluster.disk_full(2), cluster.isolate(1):
            pass
        assert not cluster._nodes[1].is_serving
    check_serves(cluster)


def test_the_last_disks_of_a_quorum_are_not_lost(clusters: Callable[[], Cluster]) -> None:
    cluster = clusters()
    with cluster.lose_disk(0):
        with pytest.raises(ClusterError, match="without the disk of combined-1 too few controllers have the"):
            cluster.lose_disk(1)
        assert cluster._nodes[1].is_up
    check_serves(cluster)
    with Cluster() as alone, pytest.raises(ClusterError, match="0 of 1, and 1 are needed"):
        alone.lose_disk(0)


def test_what_needs_a_quorum_to_heal_heals_once_there_is_one() -> None:
    with Cluster(timeout_s=LIMIT_S) as cluster:
        slow, slower = (cluster.throttle("billing", produce_bytes_s=each) for each in (2000, 1000))
        killed = cluster.kill(0)
        slower.heal()
        killed.heal()
        image = cluster._nodes[0].image
        assert image is not None
        cluster.wait_until(lambda: quota_of(cluster) == 2000, "the quota of the older fault")
        slow.heal()
        cluster.wait_until(lambda: quota_of(cluster) is None, "no quota")


def quota_of(cluster: Cluster) -> float | None:
    image = cluster._nodes[0].image
    assert image is not None
    quotas = image.quotas.get((("client-id", "billing"),)) or {}
    return quotas.get("producer_byte_rate")


def test_an_unclean_election_heals_although_another_fault_hinders_it() -> None:
    with Cluster(brokers=2, controllers=1, timeout_s=LIMIT_S) as cluster:
        topic = cluster.create_topic("orders", configs={"min.insync.replicas": 1})
        behind = 1 - cluster.leader(topic, 0)
        election = cluster.unclean_election(topic)
        others = [cluster.isolate(behind), cluster.kill(1 - behind)]
        election.heal()
        for each in others:
            each.heal()
        assert cluster._is_ready()
        cluster.wait_for_full_isr(topic)
        assert any("another fault keeps" in each.text for each in cluster.events)


def test_a_manual_clock_moves_until_a_node_that_was_killed_serves() -> None:
    with Cluster(brokers=3, clock="manual", timeout_s=LIMIT_S) as cluster:
        with cluster.isolate(1), cluster.kill(cluster.active_controller):
            pass
        check_serves(cluster)


# --- which nodes can serve

PAIRS = st.sets(
    st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)).filter(lambda pair: pair[0] != pair[1])
)
EFFECTS = st.lists(
    st.one_of(
        PAIRS.map(lambda pairs: Effect(cut=frozenset(pairs))),
        st.sampled_from(NODES).map(lambda node: Effect(down=frozenset([node]))),
        st.sampled_from(NODES).map(lambda node: Effect(hampered=frozenset([node]))),
    ),
    max_size=5,
)


def in_force(effects: Sequence[Effect]) -> FaultsInForce:
    faults = FaultsInForce()
    for effect in effects:
        faults.add(ActiveFault("a fault", lambda: None, effect))
    return faults


def able(effects: Sequence[Effect]) -> frozenset[int]:
    return in_force(effects).able(NODES, NODES, len(NODES))


@given(effects=EFFECTS, rng=st.randoms(use_true_random=False))
def test_faults_keep_nodes_from_serving_in_any_order(effects: list[Effect], rng: Any) -> None:
    shuffled = rng.sample(effects, len(effects))
    assert able(effects) == able(shuffled)
    faults = in_force(effects)
    for fault in faults.all:
        fault.end()
    assert faults.able(NODES, NODES, len(NODES)) == {*NODES}
    kept = frozenset().union(*(each.down | each.hampered for each in effects))
    assert not able(effects) & kept
    assert able([*effects, Effect(down=frozenset(NODES))]) == frozenset()


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ([], {0, 1, 2}),
        ([cut_effect([(0, 1)], None)], {2}),
        ([cut_effect([(0, 1), (1, 0)], (150.0, 50.0))], {0, 1, 2}),
        ([cut_effect([(0, 1)], (150.0, 51.0))], {2}),
        ([cut_effect([(1, 0), (0, 1), (1, 2), (2, 1)], None)], {0, 2}),
        ([Effect(down=frozenset([1]))], {0, 2}),
        ([Effect(down=frozenset([1])), Effect(hampered=frozenset([2]))], set()),
        ([Effect(down=frozenset([1])), cut_effect([(0, 2)], None)], set()),
    ],
)
def test_a_node_can_serve_if_it_reaches_whichever_voter_leads(
    effects: list[Effect], expected: set[int]
) -> None:
    assert able(effects) == expected


def test_of_two_quotas_of_a_client_the_newer_one_counts() -> None:
    rates = ({"producer": 1.0, "consumer": 2.0}, {"producer": 3.0})
    faults = in_force(
        [*(Effect(quota=("a", each)) for each in rates), Effect(quota=("b", {"consumer": 4.0}))]
    )
    assert faults.quota_of("a") == {"producer": 3.0, "consumer": 2.0}
    assert faults.quota_of("c") == {}


def test_a_voter_without_its_disk_elects_nobody() -> None:
    faults = in_force([Effect(down=frozenset([2]))])
    assert faults.able(NODES, (1, 2), 3) == frozenset()
    assert in_force([]).able(NODES, (1, 2), 3) == {0, 1, 2}
