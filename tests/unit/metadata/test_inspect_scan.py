"""The quick ways of a scan over a log give what the plain ones give."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata import records as r
from metadata.delta import diff
from metadata.image import ImageBuilder, MetadataImage
from metadata.image.columns import CHUNK_ROWS, INDEX, PADDING
from metadata.image.compare import partition_changes
from metadata.invariants import COLUMN_RULES, ChunkView, check_step
from metadata.invariants_changes import (
    FEW_ROWS,
    broken_column_rules,
    check_batch,
    check_changes,
    row_violations,
)
from metadata.replay import Replayer, ReplayState

TOPICS = [bytes([at]) * 16 for at in range(1, 5)]


def base_image(partitions: int = 40) -> MetadataImage:
    engine = Replayer(ReplayState())
    listed: list[object] = [r.BrokerRecord(at, TOPICS[0], at, fenced=at % 4 == 3) for at in range(6)]
    for number, topic_id in enumerate(TOPICS):
        listed.append(r.TopicRecord(f"t{number}", topic_id))
        for index in range(partitions):
            nodes = tuple((index + at) % 6 for at in range(3))
            listed.append(
                r.PartitionRecord(
                    index,
                    topic_id,
                    replicas=nodes,
                    isr=nodes,
                    leader=nodes[0],
                    leader_epoch=0,
                    partition_epoch=0,
                )
            )
    engine.apply_records(base_offset=0, epoch=1, timestamp_ms=1, records=listed)
    return engine.state().image


def scrambled(seed: int) -> MetadataImage:
    """An image whose rows hold anything."""
    rng = np.random.default_rng(seed)
    builder = ImageBuilder(base_image())
    columns = builder.topics.columns
    chunk = columns.own(0)
    live = np.flatnonzero(chunk.data[0] >= 0)
    wanted = rng.integers(-1, 7, size=(chunk.data.shape[0] - INDEX - 1, len(live)), dtype=np.int32)
    keep = rng.random(wanted.shape) < 0.8
    chunk.data[INDEX + 1 :, live] = np.where(keep, chunk.data[INDEX + 1 :, live], wanted)
    return builder.freeze()


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_a_row_breaks_the_same_rules_alone_as_among_many(seed: int) -> None:
    image = scrambled(seed)
    known, active = image.brokers.ids()
    chunk = image.topics.columns.chunks[0]
    view = ChunkView(chunk, known, active)
    answers = {rule: broken(view) & view.live for rule, (_, _, broken) in COLUMN_RULES.items()}
    assert any(answer.any() for answer in answers.values())
    rows = image.topics.columns.live_rows().tolist()
    for row in rows:
        assert broken_column_rules(image, row) == [rule for rule in COLUMN_RULES if answers[rule][row]]
    few = rows[:FEW_ROWS]
    paths = {f"topic/t{at // 40}/{at % 40}" for at in few}
    alone = list(row_violations(image, few))
    assert alone == [one for one in row_violations(image, rows) if one.where in paths]


CHANGE = st.tuples(
    st.sampled_from(TOPICS), st.integers(0, 39), st.integers(-1, 6), st.lists(st.integers(0, 6), max_size=4)
)


@given(st.lists(st.lists(CHANGE, min_size=1, max_size=3), min_size=1, max_size=8), st.booleans())
@settings(max_examples=60, deadline=None)
def test_neighbours_differ_in_what_strangers_with_the_same_content_differ_in(
    story: list[list[tuple[bytes, int, int, list[int]]]], fence: bool
) -> None:
    """`partition_changes` of two images that share their history, and of the same two that do not."""
    state = ReplayState(base_image())
    first = state.image
    for number, batch in enumerate(story):
        listed: list[object] = [
            r.PartitionChangeRecord(index, topic_id, leader=leader, isr=tuple(isr))
            for topic_id, index, leader, isr in batch
        ]
        if fence and number == 1:
            listed += [r.FenceBrokerRecord(1, 1), r.RemoveTopicRecord(TOPICS[3])]
        engine = Replayer(state, on_error=lambda error: None)
        offset = engine.end_offset
        engine.apply_records(base_offset=offset, epoch=1, timestamp_ms=number, records=listed)
        before, state = state, engine.state()
        for old, new in ((before.image, state.image), (first, state.image), (state.image, first)):
            assert partition_changes(old.topics, new.topics) == partition_changes(
                old.topics, stranger(new).topics
            )
        apart = stranger(state.image)
        expected = [*check_step(before.image, apart), *check_changes(before.image, apart)]
        assert sorted(map(str, check_batch(before.image, state.image))) == sorted(map(str, expected))


def stranger(image: MetadataImage) -> MetadataImage:
    """The same content with rows, slots and chunks of its own."""
    engine = Replayer(ReplayState())
    listed: list[object] = []
    topics = image.topics.all()
    random.Random(len(topics)).shuffle(topics)
    for topic in topics:
        listed.append(r.TopicRecord(topic.name, topic.topic_id))
        listed += [
            r.PartitionRecord(
                at.index,
                at.topic_id,
                replicas=at.replicas,
                isr=at.isr,
                leader=at.leader,
                leader_epoch=at.leader_epoch,
                partition_epoch=at.partition_epoch,
                directories=at.directories,
            )
            for at in image.topics.partitions_of(topic.topic_id)
        ]
    engine.apply_records(base_offset=0, epoch=1, timestamp_ms=1, records=listed)
    for broker in image.brokers.values():
        engine.builder.put_broker(broker)
    return engine.state().image.with_provenance(image.provenance)


def test_only_what_was_touched_is_looked_at() -> None:
    image = base_image(CHUNK_ROWS)
    engine = Replayer(ReplayState(image))
    assert len(image.topics.columns.chunks) == len(TOPICS)
    change = r.PartitionChangeRecord(5, TOPICS[2], leader=1)
    engine.apply_records(base_offset=engine.end_offset, epoch=1, timestamp_ms=1, records=[change])
    after = engine.state().image
    assert after.topics.columns.differing_chunks(image.topics.columns) == [2]
    assert image.topics.columns.differing_chunks(after.topics.columns) == [2]
    assert diff(image, after).partitions.changed == ((TOPICS[2], 5),)
    chunk = after.topics.columns.chunks[2]
    assert chunk.data[0, 5] != PADDING
