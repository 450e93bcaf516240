"""Plans of replica moves: in any cluster, they move what they must, spread it, and crowd no rack."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.controller.partitions.plans import PlanError, drain, plan_size, spread

RACKS = (None, "a", "b", "c")
clusters = st.integers(2, 6).flatmap(
    lambda brokers: st.tuples(
        st.lists(st.sampled_from(RACKS), min_size=brokers, max_size=brokers),
        st.lists(
            st.lists(st.integers(0, brokers - 1), min_size=1, max_size=min(3, brokers), unique=True),
            max_size=24,
        ),
    )
)
Assignment = dict[tuple[str, int], tuple[int, ...]]


def named(lists: list[list[int]]) -> Assignment:
    return {(f"t{at % 3}", at): tuple(replicas) for at, replicas in enumerate(lists)}


def loads(current: Assignment, planned: Assignment) -> Counter[int]:
    return Counter(replica for replicas in (current | planned).values() for replica in replicas)


def crowded(replicas: tuple[int, ...], racks: dict[int, str | None]) -> int:
    """Pairs of replicas on one rack."""
    known = [racks[each] for each in replicas if racks[each] is not None]
    return len(known) - len(set(known))


@settings(max_examples=150)
@given(clusters)
def test_an_emptied_broker_gives_each_partition_to_the_least_loaded_that_fits(
    cluster: tuple[list[str | None], list[list[int]]],
) -> None:
    listed, lists = cluster
    racks, current = dict(enumerate(listed)), named(lists)
    if any(0 in replicas and len(replicas) == len(racks) for replicas in current.values()):
        with pytest.raises(PlanError, match=f"{len(racks) - 1} other brokers are running"):
            drain(current, racks, 0)
        return
    planned = drain(current, racks, 0)
    assert set(planned) == {name for name, replicas in current.items() if 0 in replicas}
    load = loads(current, {})
    for name, replicas in sorted(planned.items()):
        at = current[name].index(0)
        others = current[name][:at] + current[name][at + 1 :]
        assert replicas[:at] + replicas[at + 1 :] == others and replicas[at] not in (0, *others)
        on_rack = {
            each: sum(racks[each] is not None and racks[each] == racks[other] for other in others)
            for each in racks
            if each != 0 and each not in others
        }
        assert replicas[at] == min(on_rack, key=lambda each: (on_rack[each], load[each], each))
        load[replicas[at]] += 1


@settings(max_examples=150)
@given(clusters)
def test_spread_replicas_differ_by_one_unless_racks_forbid_it(
    cluster: tuple[list[str | None], list[list[int]]],
) -> None:
    listed, lists = cluster
    racks, current = dict(enumerate(listed)), named(lists)
    planned = spread(current, racks)
    for name, replicas in planned.items():
        assert len(set(replicas)) == len(current[name]) == len(replicas)
        assert crowded(replicas, racks) <= crowded(current[name], racks)
    before, after = loads(current, {}), loads(current, planned)
    numbers = [after[each] for each in racks]
    assert max(numbers) - min(numbers) <= max(
        1, max(before[each] for each in racks) - min(before[each] for each in racks)
    )
    if len(set(listed)) == 1 and listed[0] is None:
        assert max(numbers) - min(numbers) <= 1
    size = plan_size(current, planned)
    changed = {name: replicas for name, replicas in planned.items() if replicas != current[name]}
    assert size.partitions == len(changed)
    for each in racks:
        arrives = sum(each in replicas and each not in current[name] for name, replicas in planned.items())
        assert size.arriving.get(each, 0) == arrives
    assert size.replicas == sum(size.arriving.values())
    assert list(size.arriving) == sorted(size.arriving) and 0 not in size.arriving.values()
