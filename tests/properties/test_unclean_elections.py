"""What a reader calls an unclean election is what the controller that decides it calls one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.controller.partitions.partition_change import Election, Rules, Target, _Draft
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import BrokerRegistration, BrokersImage, PartitionInfo
from metaquorum.metadata.image.types import NO_LEADER, RECOVERED, RECOVERING
from metaquorum.metadata.inspect.changes.change_steps import reassignment, was_unclean
from tests.unit.pipeline.intervals.telling import read_log, told

DATA = Path(__file__).resolve().parents[1] / "data/unclean-elections"
TOPIC, PLACE = b"T" * 16, b"D" * 16
BROKERS = BrokersImage(
    {each: BrokerRegistration(broker_id=each, epoch=each, incarnation_id=PLACE) for each in (1, 2, 3, 4)}, {}
)
BEFORE_RECOVERY = 2
"""A metadata.version whose partitions do not record that their leader is recovering."""


def partition(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    leader: int,
    *,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
    last_known_elr: tuple[int, ...] = (),
    recovery: int = RECOVERED,
) -> PartitionInfo:
    return PartitionInfo(
        topic_id=TOPIC,
        index=0,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=5,
        partition_epoch=5,
        leader_recovery_state=recovery,
        directories=(PLACE,) * len(replicas),
        adding=adding,
        removing=removing,
        elr=elr,
        last_known_elr=last_known_elr,
    )


def subsets(members: tuple[int, ...], least: int = 0) -> Iterator[tuple[int, ...]]:
    for size in range(least, len(members) + 1):
        yield from itertools.combinations(members, size)


def states() -> Iterator[tuple[PartitionInfo, bool]]:
    """Partitions, and whether eligible leaders are in use."""
    for adding, removing in ((), ()), ((3,), ()), ((3,), (1,)), ((2, 3), (1,)):
        for isr in subsets((1, 2, 3), 1):
            for leader in (NO_LEADER, *isr):
                yield partition((1, 2, 3), isr, leader, adding=adding, removing=removing), False
                if len(isr) == 1:
                    yield partition((1, 2, 3), isr, leader, recovery=RECOVERING), False
    for elr in subsets((1, 2, 3), 1):
        yield partition((1, 2, 3), (), NO_LEADER, elr=elr), True
    for last in 1, 2, 3:
        yield partition((1, 2, 3), (), NO_LEADER, last_known_elr=(last,)), True


def targets(before: PartitionInfo) -> Iterator[Target]:
    yield Target()
    for out in before.isr:  # fenced, in controlled shutdown, or fell behind
        yield Target(isr=tuple(each for each in before.isr if each != out))
    if before.leader != NO_LEADER and before.leader_recovery_state == RECOVERED:  # AlterPartition
        for more in subsets(tuple(each for each in before.replicas if each not in before.isr), 1):
            yield Target(isr=(*before.isr, *more))
    if not before.adding and not before.removing:
        yield Target(replicas=(1, 2, 3, 4), adding=(4,))
        yield Target(replicas=(1, 2, 3), removing=(1,))


def transitions() -> Iterator[tuple[PartitionInfo, PartitionInfo, bool]]:
    """Every change of a small partition that the controller decides, and whether it is unclean there."""
    for (before, elr), live, election, level in itertools.product(
        states(),
        subsets((1, 2, 3)),
        (Election.ONLINE, Election.UNCLEAN),
        (BEFORE_RECOVERY, LEVEL_DIRECTORIES),
    ):
        if before.leader_recovery_state == RECOVERING and level == BEFORE_RECOVERY:
            continue
        for target in targets(before):
            gone = set(before.isr) - set(before.isr if target.isr is None else target.isr)
            rules = Rules(
                brokers=BROKERS,
                may_lead=(set(live) - gone).__contains__,
                metadata_version=level,
                unclean_allowed=lambda topic: True,
                elr=elr,
                min_isr=lambda topic: 2,
            )
            draft = _Draft(before, target, rules)
            draft.end_reassignment()
            draft.note_eligible()
            leader, unclean = draft._choose(election)
            draft.elect(election)
            after = partition(
                draft.replicas,
                draft.isr,
                draft.leader,
                adding=draft.adding,
                removing=draft.removing,
                elr=draft.elr,
                recovery=draft.recovery_state,
            )
            yield before, after, unclean and leader != before.leader


def test_all_transitions_of_a_partition() -> None:
    seen, unclean_seen = 0, 0
    for before, after, unclean in transitions():
        assert was_unclean(before, after) == unclean, (before, after)
        seen, unclean_seen = seen + 1, unclean_seen + unclean
    assert seen > 5_000
    assert unclean_seen > 300


def test_a_replica_that_completes_its_reassignment_leads_cleanly() -> None:
    before = partition((1, 3), (1,), 1, adding=(3,), removing=(1,))
    assert not was_unclean(before, partition((3,), (3,), 3))


def test_a_cancellation_does_not_bring_a_replica_into_sync() -> None:
    before = partition((1, 2, 3), (1,), NO_LEADER, adding=(3,), removing=())
    after = partition((1, 2), (2,), 2)
    assert reassignment(before, after) != "reassignment-changed"
    assert was_unclean(before, after)


@pytest.mark.parametrize("level", [BEFORE_RECOVERY, LEVEL_DIRECTORIES])
def test_a_leader_whose_directory_is_gone_recovers(level: int) -> None:
    """It was in the ISR. Below the level nothing in the log says that it starts over."""
    before = partition((1, 2), (1,), NO_LEADER)
    recovery = RECOVERING if level == LEVEL_DIRECTORIES else RECOVERED
    assert was_unclean(before, partition((1, 2), (1,), 1, recovery=recovery)) == (level == LEVEL_DIRECTORIES)


@pytest.mark.parametrize("name", ["adding", "cancelled"])
def test_tables_and_timeline_agree(name: str) -> None:
    log = read_log(DATA / f"{name}.log")
    assert [row["unclean"] for row in told(log, "failovers")] == [True]
    assert [row["unclean"] for row in told(log, "partition_states")].count(True) == 1
    path = str(DATA / f"{name}.log")
    events = [
        json.loads(line)
        for line in CliRunner().invoke(main, ["log", "timeline", path, "--json"]).stdout.splitlines()
    ]
    critical = [each for each in events if each.get("severity") == "critical" and each.get("offset") == 13]
    assert [each["rule"] for each in critical] == ["unclean-election"]
    why = CliRunner().invoke(main, ["log", "why", path, "topic/orders/0.leader"]).stdout
    assert "ELR []" not in why
    assert "caught up" not in why
