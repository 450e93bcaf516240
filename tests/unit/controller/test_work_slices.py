"""Work in slices belongs to one incarnation of a broker: it ends when another one has registered."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from metaquorum.controller.active.outcome import (
    BalanceLeaders,
    ForgetEligible,
    MoveLeaders,
    RemoveBroker,
    Work,
    next_slice,
)
from metaquorum.controller.partitions.partition_change import Rules
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.result import Slice
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import (
    FeatureLevelRecord,
    FenceBrokerRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from tests.unit.controller.node_quorum import image_of
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

NOTHING_LEFT = Slice(records=(), done=True)


def anybody(image: MetadataImage) -> Rules:
    """Rules by which every broker may lead."""
    return rules_of(image, lambda _: True)


def image_with_epoch(epoch: int, *, shutting_down: bool = False) -> MetadataImage:
    """Broker 1 of that epoch and broker 2, unfenced; broker 1 leads a partition."""
    return image_of(
        FeatureLevelRecord(name="metadata.version", feature_level=19),
        broker(1, epoch=epoch, shutting_down=shutting_down),
        broker(2),
        TopicRecord(name="t", topic_id=TOPIC),
        partition(0, (1, 2), (1, 2), 1),
    )


@pytest.mark.parametrize(
    "work",
    [
        RemoveBroker(broker_id=1, epoch=10),
        RemoveBroker(broker_id=1, epoch=10, unregister=True),
        MoveLeaders(broker_id=1, epoch=10),
    ],
)
def test_work_on_an_earlier_incarnation_leaves_the_newer_one_alone(work: Work) -> None:
    leaves = isinstance(work, MoveLeaders)
    same, newer = (image_with_epoch(epoch, shutting_down=leaves) for epoch in (10, 11))
    assert next_slice(work, same, anybody(same), 100).records
    assert next_slice(work, newer, anybody(newer), 100) == NOTHING_LEFT


@pytest.mark.parametrize("elr", [0, 1])
@pytest.mark.parametrize("kind", get_args(Work))
def test_work_that_finds_nothing_to_do_is_done(kind: type[Any], elr: int) -> None:
    """Of every kind; work that is never done would be asked for empty batches for ever."""
    image = image_of(
        FeatureLevelRecord(name="metadata.version", feature_level=25),
        FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=elr),
        broker(2),
        TopicRecord(name="t", topic_id=TOPIC),
        partition(0, (2,), (2,), 2),
    )
    given = {"broker_id": 1, "epoch": 10, "directories": frozenset([b"d" * 16])}
    wanted = set(kind.__struct_fields__) & given.keys()
    work = kind(**{name: given[name] for name in wanted if kind not in (BalanceLeaders, ForgetEligible)})
    assert next_slice(work, image, anybody(image), 100) == NOTHING_LEFT
    assert next_slice(work, MetadataImage(), anybody(image), 100) == NOTHING_LEFT


def test_leaders_stay_where_the_broker_does_not_leave_any_more() -> None:
    image = image_with_epoch(10)
    assert next_slice(MoveLeaders(broker_id=1, epoch=10), image, anybody(image), 100) == NOTHING_LEFT


def test_a_removal_ends_with_the_record_for_the_epoch_that_it_began_with() -> None:
    image = image_with_epoch(10)
    fenced = next_slice(RemoveBroker(broker_id=1, epoch=10), image, anybody(image), 100)
    assert fenced.done and fenced.records[-1] == FenceBrokerRecord(id=1, epoch=10)
    work = RemoveBroker(broker_id=1, epoch=10, unregister=True)
    removed = next_slice(work, image, anybody(image), 100)
    assert removed.done and removed.records[-1] == UnregisterBrokerRecord(broker_id=1, broker_epoch=10)
    assert not any(isinstance(record, FenceBrokerRecord) for record in removed.records)
