"""Decisions at their edges: the first partition of the image, and what an answer says."""

from __future__ import annotations

import msgspec
import pytest

from controller.alter_partition import decide_alter_partition
from controller.effective import min_isr, rules_of
from metadata.errors import ErrorCode
from metadata.image import MetadataImage
from metadata.records import ConfigRecord, FeatureLevelRecord, PartitionRecord, TopicRecord
from metadata.requests_partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
    PartitionAlteration,
)
from tests.unit.controller.node_quorum import image_of
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

OTHER = b"o" * 16
LEVEL = FeatureLevelRecord("metadata.version", 23)
ELR = FeatureLevelRecord("eligible.leader.replicas.version", 1)


def replace_record(record: PartitionRecord, **fields: object) -> PartitionRecord:
    return msgspec.structs.replace(record, **fields)


def cluster(*records: object) -> MetadataImage:
    return image_of(*(broker(at) for at in (1, 2, 3)), TopicRecord("t", TOPIC), *records, level=23)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("wanted", "replicas", "expected"),
    [(None, 3, 1), ("1", 3, 1), ("2", 3, 2), ("3", 3, 3), ("4", 3, 3), ("2", 1, 1), ("0", 3, 1), ("x", 3, 1)],
)
def test_min_isr_is_at_most_the_replication_factor_in_every_row_of_the_image(
    wanted: str | None, replicas: int, expected: int, first: bool
) -> None:
    """The topic whose partition is the very first of the image, and one behind it."""
    brokers = tuple(range(1, replicas + 1))
    topics: list[object] = [TopicRecord("t", TOPIC), partition(0, brokers, brokers, 1)]
    others: list[object] = [
        TopicRecord("o", OTHER),
        PartitionRecord(0, OTHER, (1, 2), (1, 2), leader=1, leader_epoch=0, partition_epoch=0),
    ]
    config = [] if wanted is None else [ConfigRecord(2, "t", "min.insync.replicas", wanted)]
    listed = [*topics, *others] if first else [*others, *topics]
    image = image_of(*(broker(at) for at in (1, 2, 3)), *listed, *config)
    assert min_isr(image, TOPIC) == expected
    assert min_isr(image, OTHER) == 1
    assert min_isr(image, b"?" * 16) == 1


@pytest.mark.parametrize(("before", "wanted", "after"), [(1, 0, 0), (1, 1, 1), (0, 0, 0)])
def test_the_answer_to_a_change_of_an_isr_says_all_of_it(before: int, wanted: int, after: int) -> None:
    held = replace_record(partition(0, (1, 2, 3), (1,), 1), leader_recovery_state=before, leader_epoch=4)
    lies_in = tuple(broker(at).log_dirs[0] for at in (1, 2, 3))
    image = cluster(replace_record(held, partition_epoch=7, directories=lies_in))
    asked = (1,) if wanted else (1, 2)
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=10,
        partitions=(
            PartitionAlteration(
                topic_id=TOPIC,
                partition=0,
                leader_epoch=4,
                partition_epoch=7,
                isr=tuple(IsrMember(broker_id=at, broker_epoch=10) for at in asked),
                leader_recovery_state=wanted,
            ),
        ),
    )
    result = decide_alter_partition(image, request, rules_of(image, image.brokers.is_active))
    assert isinstance(result.response, AlterPartitionResponse)
    (said,) = result.response.results
    assert said.error is ErrorCode.NONE, said
    assert (said.topic_id, said.partition, said.isr) == (TOPIC, 0, asked)
    assert (said.leader, said.leader_epoch, said.leader_recovery_state) == (1, 4, after)
    assert said.partition_epoch == 7 + len(result.records)
