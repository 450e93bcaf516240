"""Striped placement: racks, balance, fenced brokers only as a last resort, the same seed the same lists."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from metaquorum.controller.partitions.placement import Candidates, StripedPlacer, UsableBroker, place


def racks(*sizes: int) -> list[UsableBroker]:
    """Brokers 0, 1, ... in racks r0, r1, ... of these sizes."""
    names = [f"r{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    return [UsableBroker(broker_id, name) for broker_id, name in enumerate(names)]


@pytest.mark.parametrize("seed", range(5))
def test_every_partition_spans_as_many_racks_as_there_are(seed: int) -> None:
    candidates = racks(3, 3, 3)
    rack_of = {each.broker_id: each.rack for each in candidates}
    for replicas in place(candidates, 90, 3, Random(seed)):
        assert {rack_of[replica] for replica in replicas} == {"r0", "r1", "r2"}
    for replicas in place(candidates, 90, 5, Random(seed)):
        assert len(set(replicas)) == 5
        assert max(Counter(rack_of[replica] for replica in replicas).values()) == 2


@pytest.mark.parametrize(("count", "factor"), [(1, 1), (3, 1), (3, 3), (5, 3), (7, 2), (20, 3)])
def test_leaders_and_replicas_are_balanced_and_distinct(count: int, factor: int) -> None:
    candidates = [UsableBroker(10 * n) for n in range(count)]
    lists = place(candidates, 6 * count, factor, Random(2))
    assert all(len(set(replicas)) == factor for replicas in lists)
    assert set(Counter(replicas[0] for replicas in lists).values()) == {6}
    held = Counter(replica for replicas in lists for replica in replicas)
    assert max(held.values()) - min(held.values()) <= 2 * factor
    assert len(held) == count


def test_fenced_brokers_are_a_last_resort_and_never_lead() -> None:
    candidates = [UsableBroker(1), UsableBroker(2), UsableBroker(3), UsableBroker(9, fenced=True)]
    assert all(9 not in replicas for replicas in place(candidates, 50, 3, Random(1)))
    for replicas in place(candidates, 50, 4, Random(1)):
        assert set(replicas) == {1, 2, 3, 9}
        assert replicas[0] != 9
    alone = [UsableBroker(1, "a"), UsableBroker(2, "b", fenced=True)]
    assert set(place(alone, 5, 2, Random(1))) == {(1, 2)}


def test_the_same_seed_places_alike_and_the_order_of_candidates_does_not_matter() -> None:
    candidates = racks(2, 3, 1)
    first = place(candidates, 40, 3, Random(7))
    assert place(list(reversed(candidates)), 40, 3, Random(7)) == first
    assert place(candidates, 40, 3, Random(8)) != first


def test_the_same_brokers_do_not_always_go_together() -> None:
    lists = place([UsableBroker(n) for n in range(5)], 50, 2, Random(3))
    assert len({frozenset(replicas) for replicas in lists}) > 5


@pytest.mark.parametrize("seed", range(4))
def test_partitions_go_round_racks_and_the_brokers_of_each_until_all_is_shuffled(seed: int) -> None:
    """Six brokers in three racks: for six partitions leaders and replicas go on by one rack, then in another
    order, also of the racks."""
    candidates = racks(2, 2, 2)
    rack_of = {each.broker_id: each.rack for each in candidates}
    lists = place(candidates, 60, 3, Random(seed))
    followers: set[tuple[str | None, ...]] = set()
    for begin in range(0, 60, 6):
        turn = lists[begin : begin + 6]
        assert sorted(replicas[0] for replicas in turn) == list(range(6))
        order = [rack_of[replica] for replica in turn[0]]
        for at, replicas in enumerate(turn):
            assert [rack_of[replica] for replica in replicas] == [order[(at + step) % 3] for step in range(3)]
        # Each rack hands out its brokers in turn: what leads now is not what led its rack before.
        assert all(before[0] != after[0] for before, after in pairwise(turn[::3]))
        start = order.index("r0")
        followers.add(tuple(order[(start + step) % 3] for step in range(3)))
    assert len(followers) == 2, "both orders of three racks occur"


@pytest.mark.parametrize("factor", [0, 3])
def test_what_cannot_be_placed_raises(factor: int) -> None:
    with pytest.raises(ValueError, match="cannot be placed"):
        StripedPlacer([UsableBroker(1), UsableBroker(2)], Random(1)).place(factor)
    with pytest.raises(ValueError, match="0 of them unfenced"):
        StripedPlacer([UsableBroker(1, fenced=True)], Random(1)).place(1)


class _Watched:
    """A broker that counts how often it is looked at."""

    looks = 0

    def __init__(self, broker_id: int) -> None:
        self._known = UsableBroker(broker_id, rack=f"r{broker_id % 3}")

    def __getattr__(self, name: str) -> object:
        _Watched.looks += 1
        return getattr(self._known, name)


def test_the_next_topic_is_placed_without_a_look_at_each_broker() -> None:
    """The brokers are the same until one changes, and they may be hundreds."""
    brokers = [_Watched(broker_id) for broker_id in range(300)]
    candidates = Candidates(brokers)  # type: ignore[arg-type]
    expected = [UsableBroker(broker_id, rack=f"r{broker_id % 3}") for broker_id in range(300)]
    first = place(candidates, 700, 3, Random(5))
    looks = _Watched.looks
    assert looks >= 300
    for seed in (5, 6):
        assert place(candidates, 700, 3, Random(seed)) == place(expected, 700, 3, Random(seed))
    assert first == place(candidates, 700, 3, Random(5)) and _Watched.looks == looks
