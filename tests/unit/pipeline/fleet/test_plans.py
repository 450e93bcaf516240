"""What each cluster of a fleet is to be: sizes within their bounds, and what happens to which of them."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.pipeline.fleet import plan as module
from metaquorum.pipeline.fleet.plan import DAMAGES, KINDS, FleetPlan, cluster_plans

MIN_RECORDS = module.MIN_RECORDS


def plans(clusters: int, **more: Any) -> list[module.ClusterPlan]:
    return list(
        cluster_plans(FleetPlan(**{"clusters": clusters, "records": clusters * 6_000, "seed": 5, **more}))
    )


@pytest.mark.parametrize("every", [0, 1, 2, 3, 5])
def test_each_so_many_clusters_end_open_and_are_damaged(every: int) -> None:
    found = plans(11, open_every=every, damaged_every=every)
    last = {at for at in range(11) if every and at % every == every - 1}
    assert {one.number for one in found if one.ends_open} == last
    assert {one.number: one.damage for one in found if one.damage} == {
        at: DAMAGES[at // every % len(DAMAGES)] for at in last
    }


@pytest.mark.parametrize("every", [0, 1, 2, 3])
@pytest.mark.parametrize("broken", [True, False])
def test_a_broken_rule_stays_broken_where_it_may(every: int, broken: bool) -> None:
    kinds = KINDS if broken else tuple(each for each in KINDS if each != "broken_invariant")
    found = {one.number for one in plans(7, open_every=every, kinds=kinds) if one.ends_broken}
    assert found == {at for at in range(7) if broken and every > 1 and at % every == 0}
    assert not {one.number for one in plans(7, open_every=every, kinds=kinds) if one.ends_open} & found


def test_every_kind_is_first_once_and_one_in_five_has_another_default() -> None:
    found = plans(len(KINDS))
    assert [one.kinds[0] for one in found] == list(KINDS)
    assert all(sorted(one.kinds) == sorted(KINDS) for one in found)
    assert [one.default_min_isr for one in found[:10]] == [None, None, None, None, 2] * 2
    assert [one.kinds for one in plans(2, kinds=())] == [(), ()]


@pytest.mark.parametrize(("clusters", "records"), [(1, 6_000), (4, 40_000), (9, 9_000_000)])
def test_records_add_up_and_sizes_are_within_bounds(clusters: int, records: int) -> None:
    found = plans(clusters, records=records)
    assert sum(one.records for one in found) == records
    assert all(one.records >= MIN_RECORDS for one in found)
    for one in found:
        share = int(one.records * 0.012), int(one.records * 0.02)
        low, high = (max(16, min(module._MAX_PARTITIONS, each)) for each in share)
        assert low <= one.partitions <= min(high, one.records // 2)
        root = one.partitions**0.5
        fewest, most = (max(4, min(module._MAX_BROKERS, 4 + int(root * each))) for each in (0.2, 0.5))
        assert fewest <= one.brokers <= most
    given = plans(2, partitions=33, brokers=7)
    assert [(one.partitions, one.brokers) for one in given] == [(33, 7)] * 2
    assert len({one.cluster_id for one in found}) == clusters
    assert [one.name for one in found[:2]] == ["cluster-0000", "cluster-0001"][:clusters]
