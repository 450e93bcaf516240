"""Gaps and clocks that run backwards, inside what a timeline takes many batches at a time."""

from __future__ import annotations

import random

import pytest

from metaquorum.metadata.inspect.causes.losses import LOSSES
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from tests.unit.metadata.made_logs import Batch, leads, make_node, memory_disk, topic
from tests.unit.metadata.test_passing_over import told_one_by_one

ID = bytes(range(16))
START: list[Batch] = [
    (1, [leads(3000)]),
    (1, [r.FeatureLevelRecord("metadata.version", 19), *topic("orders", ID)]),
]
STEPS_MS = (0, 40, 900, 5_000, 5_001, 7_000, 61_000, -100)


def batch_of(dice: random.Random) -> list[object]:
    led: list[object] = [r.PartitionChangeRecord(0, ID, leader=dice.choice((-1, 1, 2)))]
    asked = cause_record(BatchCause(request="AlterPartition", principal="User:ann"))
    return dice.choice(([r.NoOpRecord()], led, [asked, *led], [asked, r.PartitionChangeRecord(1, ID)]))


@pytest.mark.parametrize("seed", range(8))
def test_batches_taken_together_say_the_same_of_time_as_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    batches = START + [(1, batch_of(dice)) for _ in range(300)]
    stamps = [1_000_000, 1_000_000]
    for _ in batches[2:]:
        stamps.append(stamps[-1] + dice.choice(STEPS_MS))
    log = make_node(memory_disk(), batches, per_segment=dice.choice((90, 400)), stamps=stamps).log
    expected, _ = told_one_by_one(log, 5_000)
    taken = 0
    own = Timeline.part

    def counted(self: Timeline, part: object) -> object:
        nonlocal taken
        taken += part.batches  # type: ignore[attr-defined]
        return own(self, part)  # type: ignore[arg-type]

    monkeypatch.setattr(Timeline, "part", counted)
    assert list(events(log, pytest.fail)) == expected
    gaps = [event for event in expected if event.kind == "gap in time"]
    assert len(gaps) > 50 and {None} < {event.asked for event in gaps}
    assert taken > 250, "a gap costs no batch its place among the others"


def test_what_is_kept_for_a_broker_in_one_batch_is_said_by_rules_that_know_nothing_else() -> None:
    names = {rule.name for rule in LOSSES.rules}
    assert LOSSES.of_broker and names >= LOSSES.of_broker
    for rule in LOSSES.rules:
        fields = set(rule.find.__code__.co_names)
        assert not (rule.name in LOSSES.of_broker and fields & {"change", "led", "leads"}), rule


MANY = 1_100


@pytest.mark.parametrize("later_ms", [400, 1_000, 1_001])
@pytest.mark.parametrize("left", [{"isr": (2,), "leader": 2}, {"leader": -1}, {"leader": 2}, {"isr": (1,)}])
def test_a_batch_of_a_split_fence_is_taken_as_a_whole_and_says_the_same(
    left: dict[str, object], later_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the leaders that moved before it are explained by the fence depends on the time between."""
    brokers = [r.BrokerRecord(number, ID, number, fenced=False) for number in (1, 2)]
    rows = [
        r.PartitionRecord(at, ID, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0)
        for at in range(MANY)
    ]
    moved: list[object] = [r.PartitionChangeRecord(at, ID, **left) for at in range(MANY)]  # type: ignore[arg-type]
    fence = r.BrokerRegistrationChangeRecord(1, 1, fenced=r.FENCED)
    batches: list[Batch] = [
        *START[:1],
        (1, [r.FeatureLevelRecord("metadata.version", 19), *brokers, r.TopicRecord("orders", ID)]),
        (1, list(rows)),
        (1, moved),
        (1, [fence]),
        (1, [r.NoOpRecord()]),
    ]
    stamps = [0, 1_000, 2_000, 60_000, 60_000 + later_ms, 70_000]
    log = make_node(memory_disk(), batches, stamps=stamps).log
    expected, _ = told_one_by_one(log, 5_000)
    alone: list[int] = []
    own = Timeline.batch

    def noted(self: Timeline, epoch: int, time_ms: int, records: list[object]) -> object:
        alone.append(len(records))
        return own(self, epoch, time_ms, records)  # type: ignore[arg-type]

    monkeypatch.setattr(Timeline, "batch", noted)
    assert list(events(log, pytest.fail)) == expected
    assert max(alone) < MANY
