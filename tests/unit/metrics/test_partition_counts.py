"""Counts over all partitions: right, kept by chunk, and in slices."""

from __future__ import annotations

import asyncio
import random

import pytest

from metaquorum.controller.server import metrics
from metaquorum.controller.server.metrics import Counts, PartitionCounts
from metaquorum.metadata.image import MetadataImage, TopicsImage
from metaquorum.metadata.image.chunk import CHUNK_ROWS
from metaquorum.metadata.image.types import PartitionInfo

TOPIC_ID = bytes(15) + b"\x01"


def partition(index: int, *, leader: int = 0, isr: tuple[int, ...] = (0, 1, 2)) -> PartitionInfo:
    return PartitionInfo(
        topic_id=TOPIC_ID,
        index=index,
        replicas=(0, 1, 2),
        isr=isr,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        leader_recovery_state=0,
        directories=(bytes(16),) * 3,
    )


def put(topics: TopicsImage, partitions: list[PartitionInfo]) -> TopicsImage:
    builder = topics.builder()
    if builder.by_id.get(TOPIC_ID) is None:
        builder.add_topic(TOPIC_ID, "t")
    for each in partitions:
        entry = builder.by_id.get(TOPIC_ID)
        assert entry is not None
        builder.put_partition(entry, each)
    return builder.freeze()


def by_hand(topics: TopicsImage) -> Counts:
    partitions = topics.partitions_of(TOPIC_ID)
    return Counts(
        leaderless=sum(each.leader < 0 for each in partitions),
        not_preferred=sum(each.leader != each.replicas[0] for each in partitions),
        under_replicated=sum(len(each.isr) < len(each.replicas) for each in partitions),
    )


async def test_counts_follow_random_changes() -> None:
    rng = random.Random(5)
    counts = PartitionCounts()
    topics = put(MetadataImage().topics, [partition(index) for index in range(3 * CHUNK_ROWS + 7)])
    await counts.count(topics)
    assert counts.latest == Counts()
    for _ in range(20):
        changed = [
            partition(
                rng.randrange(3 * CHUNK_ROWS),
                leader=rng.choice((-1, 0, 1)),
                isr=rng.choice(((0, 1, 2), (0, 1), (1,))),
            )
            for _ in range(rng.randrange(1, 200))
        ]
        topics = put(topics, changed)
        await counts.count(topics)
        assert counts.latest == by_hand(topics)
    assert counts.latest.leaderless > 0 and counts.latest.under_replicated > counts.latest.leaderless // 10


async def test_only_chunks_that_changed_are_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    real = metrics.count_chunk

    def counted(chunk: metrics.Chunk) -> object:
        looked.append(chunk)
        return real(chunk)

    monkeypatch.setattr(metrics, "count_chunk", counted)
    counts = PartitionCounts()
    topics = put(MetadataImage().topics, [partition(index) for index in range(4 * CHUNK_ROWS)])
    await counts.count(topics)
    assert len(looked) == 4
    await counts.count(topics)
    assert len(looked) == 4
    topics = put(topics, [partition(CHUNK_ROWS + 1, leader=-1)])
    await counts.count(topics)
    assert len(looked) == 5 and looked[-1] is topics.columns.chunks[1]
    assert counts.latest == Counts(leaderless=1, not_preferred=1)


async def test_partitions_of_a_deleted_topic_do_not_count() -> None:
    counts = PartitionCounts()
    topics = put(MetadataImage().topics, [partition(index, leader=-1, isr=(2,)) for index in range(600)])
    await counts.count(topics)
    assert counts.latest == Counts(leaderless=600, not_preferred=600, under_replicated=600)
    builder = topics.builder()
    entry = builder.by_id.get(TOPIC_ID)
    assert entry is not None
    builder.remove_topic(entry)
    await counts.count(builder.freeze())
    assert counts.latest == Counts()
    # A smaller image, as a loaded snapshot gives: chunks beyond its end are forgotten.
    await counts.count(put(MetadataImage().topics, [partition(0, leader=2)]))
    assert counts.latest == Counts(not_preferred=1)


async def test_the_loop_gets_turns_while_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SLICE_MS", 0.0)
    monkeypatch.setattr(metrics, "CHUNKS_PER_LOOK", 1)
    topics = put(MetadataImage().topics, [partition(index) for index in range(6 * CHUNK_ROWS)])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await PartitionCounts().count(topics)
    task.cancel()
    assert turns >= 6
