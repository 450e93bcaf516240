"""Many partition changes at once, including several of one partition: each version is the one that the
changes one by one lead to, and so is the resulting image.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.columnar.apply import versions_of
from metaquorum.metadata.columnar.partition_records import MAX_SHAPES, read_frames
from metaquorum.metadata.image import images_equal
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.metadata.meanings import merge_change
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from tests.properties.test_batch_runs import PARTITIONS, TOPICS, start

DIRECTORIES = [(one,) * 3 for one in (b"d" * 16, b"e" * 16)]
usual = st.builds(
    r.PartitionChangeRecord,
    st.integers(0, 3),
    st.sampled_from(TOPICS[:3]),
    isr=st.none() | st.sampled_from([(1,), (2, 3), (3, 1, 2), (5, 6, 7, 8)]),
    leader=st.none() | st.sampled_from([1, 2, -1]),
    leader_recovery_state=st.none() | st.sampled_from([0, 1]),
    directories=st.none() | st.sampled_from(DIRECTORIES),
)
unusual = st.sampled_from(
    [
        r.PartitionChangeRecord(1, TOPICS[0], replicas=(4, 5, 6), isr=(4,), leader=4),
        r.PartitionChangeRecord(2, TOPICS[1], adding_replicas=(4,), removing_replicas=()),
        r.PartitionChangeRecord(0, TOPICS[2], directories=(b"d" * 16,)),
        r.PartitionChangeRecord(PARTITIONS, TOPICS[0], leader=1),
        r.PartitionChangeRecord(0, b"x" * 16, leader=1),
    ]
)


def batch_of(records: list[r.PartitionChangeRecord], base_offset: int) -> RecordBatch:
    values = [encode(record, 1) for record in records]
    data = encode_batch(base_offset=base_offset, leader_epoch=1, timestamp_ms=7, values=values)
    return next(iter(iter_batches(data)))


def begun(*, use_columns: bool) -> tuple[Replayer, list[str]]:
    refused: list[str] = []
    engine = Replayer(on_error=lambda error: refused.append(str(error)), use_columns=use_columns)
    data = encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=start())
    for batch in iter_batches(data):
        engine.apply_batch(batch)
    return engine, refused


def _shape(record: r.PartitionChangeRecord) -> tuple[int | None, ...]:
    """Changes of one shape are decoded together: they set the same fields, with lists of the same length."""
    named = (record.isr, record.directories, record.leader, record.leader_recovery_state)
    return tuple(len(each) if isinstance(each, tuple) else each is not None for each in named)


@settings(max_examples=60, deadline=None)
@given(st.lists(usual, min_size=1, max_size=120))
def test_every_version_is_what_the_changes_one_by_one_make(records: list[r.PartitionChangeRecord]) -> None:
    engine, _ = begun(use_columns=True)
    topics = engine.builder.topics
    batch = batch_of(records, engine.end_offset)
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    versions = versions_of(engine.builder, frames, frames.keys.nonzero()[0])
    if versions is None:
        assert len({_shape(record) for record in records}) > MAX_SHAPES
        return
    pairs = zip(
        versions.records.tolist(),
        topics.seen(versions.chunk(versions.before()), versions.rows),
        topics.seen(versions.chunk(versions.after), versions.rows),
        strict=True,
    )
    found = {number: (before, after) for number, before, after in pairs}
    now: dict[int, PartitionInfo] = {}
    for number, record in enumerate(records):
        row = topics.row_of(record.topic_id, record.partition_id)
        before = now.get(row) or topics.at(row)
        now[row] = merge_change(before, record, 0)
        assert found[number] == (before, now[row])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(usual, min_size=30, max_size=120), st.lists(st.tuples(st.integers(0, 150), unusual), max_size=3)
)
def test_a_batch_with_partitions_that_come_twice_is_replayed_as_record_by_record(
    records: list[r.PartitionChangeRecord], odd: list[tuple[int, r.PartitionChangeRecord]]
) -> None:
    for place, record in odd:
        records.insert(place, record)
    states = []
    for use_columns in (True, False):
        engine, refused = begun(use_columns=use_columns)
        engine.apply_batch(batch_of(records, engine.end_offset))
        states.append((engine.state(), refused))
    assert states[0][1] == states[1][1]
    assert images_equal(states[0][0].image, states[1][0].image)
