"""Where an image answers without a look at everything: that it does, from where on, and at the very edges.

A short way gives what the long one gives, so tests of answers alone notice neither a missing one nor one that
is taken too often. Chunks here are filled to their last row.
"""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest

from metaquorum.metadata.columnar import apply as columnar_apply
from metaquorum.metadata.columnar.apply import MIN_RECORDS
from metaquorum.metadata.columnar.partition_records import PartitionRows, read_frames
from metaquorum.metadata.columnar.runs import idle_frames
from metaquorum.metadata.image import (
    CHUNK_ROWS,
    UNASSIGNED,
    BrokerRegistration,
    ImageBuilder,
    MetadataImage,
    PartitionInfo,
    ShardedMap,
    compare,
)
from metaquorum.metadata.image.columns import PartitionColumns, split_by_chunk
from metaquorum.metadata.image.compare import FEW_CHUNKS, FEW_ROWS, PartitionChanges, partition_changes
from metaquorum.metadata.image.directories import DirectoryTable, _HashIndex
from metaquorum.metadata.image.image import BrokersImage
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from tests.images import describe_difference

NO_OP_KEY = 20
A, B = b"a" * 16, b"b" * 16
Key = tuple[bytes, int]


def partition(topic_id: bytes, index: int, leader_epoch: int = 0, **fields: Any) -> PartitionInfo:
    replicas = tuple((index + at) % 5 for at in range(1 + index % 3))
    return PartitionInfo(
        topic_id=topic_id,
        index=index,
        replicas=replicas,
        isr=replicas[:1],
        leader=replicas[0],
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
        leader_recovery_state=0,
        directories=(UNASSIGNED,) * len(replicas),
        **fields,
    )


def topics_with(*parts: PartitionInfo, base: TopicsImage | None = None) -> TopicsImage:
    builder = ImageBuilder(MetadataImage() if base is None else MetadataImage(topics=base))
    for name, topic_id in (("a", A), ("b", B)):
        if topic_id not in builder.topics.by_id:
            builder.topics.add_topic(topic_id, name)
    for part in parts:
        builder.topics.put_partition(builder.topics.by_id[part.topic_id], part)
    return builder.freeze().topics


def filled(count: int) -> TopicsImage:
    return topics_with(*(partition(A, index) for index in range(count)))


def all_of(topics: TopicsImage) -> dict[Key, PartitionInfo]:
    return {(at.topic_id, at.index): at for topic_id in (A, B) for at in topics.partitions_of(topic_id)}


def plainly(old: TopicsImage, new: TopicsImage) -> PartitionChanges:
    before, after = all_of(old), all_of(new)
    return PartitionChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(key for key in before.keys() & after.keys() if before[key] != after[key])),
    )


# ---- what differs --------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [1, FEW_ROWS, FEW_ROWS + 1, CHUNK_ROWS, CHUNK_ROWS + 1])
@pytest.mark.parametrize("count", [CHUNK_ROWS - 1, CHUNK_ROWS, 2 * CHUNK_ROWS])
def test_what_differs_at_the_edge_of_a_chunk(count: int, more: int) -> None:
    old = filled(count)
    new = topics_with(*(partition(B, index) for index in range(more)), partition(A, count - 1, 7), base=old)
    apart = filled(count)
    for one, two in ((old, new), (new, old), (apart, new), (new, apart), (old, apart)):
        assert partition_changes(one, two) == plainly(one, two)
    for one, two in ((old, new), (new, old)):
        assert compare._by_topic(one, two) == plainly(one, two)


def test_neighbours_in_a_log_are_compared_by_what_was_touched() -> None:
    columns, other = PartitionColumns(DirectoryTable()), PartitionColumns(DirectoryTable())
    other.derived_from(columns, frozenset({9, 4}))
    assert columns.differing_chunks(other) == other.differing_chunks(columns) == [4, 9]
    assert columns.differing_chunks(PartitionColumns(DirectoryTable())) == []
    assert other.differing_chunks(PartitionColumns(DirectoryTable())) == []


def test_what_differs_between_any_two_of_many_states() -> None:
    """Of one builder that goes on: each step touches another chunk, or one that an earlier step touched."""
    builder = ImageBuilder(MetadataImage(topics=filled(6 * CHUNK_ROWS)))
    states = [builder.freeze().topics]
    for step, chunk in enumerate((0, 1, 2, 0, 2)):
        entry = builder.topics.by_id[A]
        builder.topics.put_partition(entry, partition(A, chunk * CHUNK_ROWS + step, 7))
        states.append(builder.freeze().topics)
    for one, two in permutations(range(len(states)), 2):
        low, high = sorted((one, two))
        steps = zip(range(low, high), (0, 1, 2, 0, 2)[low:high], strict=True)
        expected = tuple(sorted((A, chunk * CHUNK_ROWS + step) for step, chunk in steps))
        assert partition_changes(states[one], states[two]) == PartitionChanges(changed=expected), (one, two)


def test_chunks_of_strangers_are_compared_one_by_one() -> None:
    shared, own = filled(1).columns.chunks[0], filled(1).columns.chunks[0]
    one = PartitionColumns(DirectoryTable(), chunks=[shared, own, shared])
    two = PartitionColumns(DirectoryTable(), chunks=[shared, shared])
    assert one.differing_chunks(two) == two.differing_chunks(one) == [1, 2]


@pytest.mark.parametrize(
    ("chunks", "touched", "by"),
    [
        (1, 1, "chunk"),
        (FEW_CHUNKS, FEW_CHUNKS, "chunk"),
        (FEW_CHUNKS + 2, FEW_CHUNKS + 2, "topic"),
        (FEW_CHUNKS + 2, (FEW_CHUNKS + 2) // 2, "chunk"),
        (FEW_CHUNKS + 2, (FEW_CHUNKS + 2) // 2 + 1, "topic"),
    ],
)
def test_which_way_two_images_are_compared(
    chunks: int, touched: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    for name in ("chunk", "topic"):
        way = getattr(compare, f"_by_{name}")

        def noted(*arguments: Any, name: str = name, way: Any = way) -> PartitionChanges:
            ways.append(name)
            return way(*arguments)  # type: ignore[no-any-return]

        monkeypatch.setattr(compare, f"_by_{name}", noted)
    old = filled(chunks * CHUNK_ROWS)
    new = topics_with(*(partition(A, at * CHUNK_ROWS, 7) for at in range(touched)), base=old)
    assert partition_changes(old, old) == PartitionChanges() and ways == []
    assert partition_changes(old, new).changed == tuple((A, at * CHUNK_ROWS) for at in range(touched))
    assert ways == [by]


@pytest.mark.parametrize(("count", "one_by_one"), [(FEW_ROWS, True), (FEW_ROWS + 1, False)])
def test_few_rows_are_looked_up_one_by_one(
    count: int, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = filled(20)
    together: list[int] = []
    keys_at = TopicsImage.keys_at

    def noted(self: TopicsImage, rows: Any) -> list[Key]:
        together.append(len(rows))
        return keys_at(self, rows)

    monkeypatch.setattr(TopicsImage, "keys_at", noted)
    assert compare._keys(topics, np.arange(count)) == [(A, index) for index in range(count)]
    assert together == ([] if one_by_one else [count])


class Noted(int):
    """A value that notes what it is compared with."""

    seen: ClassVar[list[int]] = []

    def __eq__(self, other: object) -> bool:
        Noted.seen.append(int(self))
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def test_a_shared_shard_is_not_looked_into() -> None:
    builder = ShardedMap[int, Noted]().builder()
    for at in range(40):
        builder.put(at, Noted(at))
    one = builder.freeze()
    builder = one.builder()
    builder.put(3, Noted(33))
    two = builder.freeze()
    Noted.seen.clear()
    assert list(one.changed_keys(one)) == [] and Noted.seen == []
    assert list(one.changed_keys(two)) == list(two.changed_keys(one)) == [3] and one != two
    looked_at = set(Noted.seen)
    assert {3, 33} <= looked_at and len(looked_at) < 15  # of one shard only


# ---- batches in columns --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "in_columns"), [(MIN_RECORDS - 1, False), (MIN_RECORDS, True), (MIN_RECORDS + 1, True)]
)
@pytest.mark.parametrize("rest", [0, MIN_RECORDS])
def test_from_how_many_partitions_on_columns_are_used(
    count: int, in_columns: bool, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []
    store = columnar_apply._store

    def noted(*arguments: Any) -> None:
        stored.append(len(arguments[1].records))
        store(*arguments)

    monkeypatch.setattr(columnar_apply, "_store", noted)
    made = (
        PartitionRecord(index, A, (1,), (1,), (), (), 1, 0, 0, 0, (), None, None) for index in range(count)
    )
    records: list[Any] = [TopicRecord("a", A), *made, *([NoOpRecord()] * rest)]
    values = [encode(record, 0) for record in records]
    engine = Replayer()
    for batch in iter_batches(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=values)):
        engine.apply_batch(batch)
    topics = engine.state().image.topics
    assert [at.index for at in topics.partitions_of(A)] == list(range(count))
    assert stored == ([count] if in_columns else [])


@pytest.mark.parametrize(("mixed", "sorted_"), [(5, False), (6, False), (7, True)])
def test_rows_are_sorted_only_where_they_are_mixed(mixed: int, sorted_: bool) -> None:
    """Where more than a quarter of them do not follow the row before."""
    count = 24
    indexes = [*range(count - mixed), *range(1000, 1000 + 2 * mixed, 2)]
    block = np.zeros((8, count), dtype=np.int32)
    block[1] = indexes
    topics = np.zeros((count, 2), dtype=np.uint64)
    rows = PartitionRows(np.arange(count), topics, block, replica_width=0, isr_width=0)
    assert (columnar_apply._in_order(rows) is rows) == (not sorted_)


X, Y = b"x" * 8, b"y" * 8


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("changes", [False, True])
def test_topics_whose_ids_differ_in_one_half(changes: bool, mixed: bool) -> None:
    """Ids are compared as two numbers; partitions come topic by topic, or all mixed."""
    ids = [X + X, X + Y, Y + Y, Y + X, Y + b"z" * 8]
    keys = [(topic_id, index) for topic_id in ids for index in range(MIN_RECORDS)]
    if mixed:
        random.Random(5).shuffle(keys)
    created = [
        PartitionRecord(index, topic_id, (1, 2), (1, 2), (), (), 1, 0, index, 0, (), None, None)
        for topic_id, index in keys
    ]
    records: list[Any] = [TopicRecord(topic_id.hex(), topic_id) for topic_id in ids]
    batches = [[*records, *created]]
    if changes:
        changed = [PartitionChangeRecord(index, topic_id, isr=(2,), leader=2) for topic_id, index in keys]
        batches.append([*changed, PartitionChangeRecord(0, X + X, leader=1)])
    images = []
    for use_columns in (True, False):
        engine = Replayer(use_columns=use_columns)
        for each in batches:
            values = [encode(record, 0) for record in each]
            content = encode_batch(
                base_offset=engine.end_offset, leader_epoch=1, timestamp_ms=5, values=values
            )
            for batch in iter_batches(content):
                engine.apply_batch(batch)
        images.append(engine.state().image)
    assert describe_difference(*images) == ""
    parts = {key: images[0].topics.partition(*key) for key in keys}
    assert all(at is not None and at.leader_epoch == key[1] + changes for key, at in parts.items() if key[1])


@pytest.mark.parametrize(
    "odd", [{"keys": [b"k"] * 3}, {"headers": [[(b"h", b"v")]] * 3}, {"timestamps": [5, 6, 7]}]
)
def test_a_batch_of_another_shape_says_the_same(odd: dict[str, Any]) -> None:
    records: list[Any] = [
        TopicRecord("a", A),
        PartitionRecord(0, A, (1,), (1,), (), (), 1, 0, 3, 0, (), None, None),
        PartitionChangeRecord(0, A, leader=-1),
    ]
    images = []
    for how in ({}, odd):
        engine = Replayer()
        content = encode_batch(
            base_offset=0, leader_epoch=1, timestamp_ms=5, values=[encode(at, 0) for at in records], **how
        )
        for batch in iter_batches(content):
            engine.apply_batch(batch)
        images.append(engine.state().image)
    assert describe_difference(*images, provenance=False) == ""
    found = images[1].topics.partition(A, 0)
    assert found is not None and (found.leader, found.leader_epoch) == (-1, 4)


def test_only_a_whole_noop_is_passed_over() -> None:
    """Others of its length are too short for what they are, and must be refused."""
    kinds = [
        (key, version, rest) for key in range(30) for version in (0, 1) for rest in (b"\0", b"\1", b"\0\0")
    ]
    values = [bytes((1, key, version)) + rest for key, version, rest in kinds]
    (batch,) = iter_batches(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=values))
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    passed = [kind for kind, is_idle in zip(kinds, idle_frames(frames).tolist(), strict=True) if is_idle]
    assert passed == [(NO_OP_KEY, 0, b"\0")]


# ---- questions -----------------------------------------------------------------------------------


def test_every_question_about_brokers() -> None:
    def broker(broker_id: int, **fields: Any) -> BrokerRegistration:
        return BrokerRegistration(broker_id=broker_id, epoch=7, incarnation_id=A, **fields)

    known = {
        3: broker(3, fenced=False),
        0: broker(0, fenced=True),
        9: broker(9, fenced=False, in_controlled_shutdown=True),
        1: broker(1, fenced=False),
    }
    image = BrokersImage(known, {3: 5, 0: 6, 9: 7, 1: 8})
    assert list(image) == [0, 1, 3, 9] and len(image) == 4 and 9 in image and 2 not in image
    assert image[3] is known[3] and image.get(0) is known[0] and image.get(2) is None
    assert image.items() == [(at, known[at]) for at in (0, 1, 3, 9)]
    assert image.values() == [known[at] for at in (0, 1, 3, 9)]
    assert [at for at in range(-1, 11) if image.is_active(at)] == [1, 3]
    every, active = image.ids()
    assert every.tolist() == [0, 1, 3, 9] and active.tolist() == [1, 3] and image.ids() is image.ids()
    assert [image.registration_offset(at) for at in (0, 1, 2, 3, 9)] == [6, 8, None, 5, 7]
    assert image == BrokersImage(dict(known), {}) and image != BrokersImage({3: known[3]}, {3: 5})
    assert image != known


@pytest.mark.parametrize("seed", range(3))
def test_every_question_about_rows(seed: int) -> None:
    """Against a look at every partition, over chunks that are full, half empty and used again."""
    rng = random.Random(seed)
    builder = ImageBuilder(MetadataImage(topics=filled(CHUNK_ROWS + 3)))
    topics = builder.topics
    topics.remove_topic(topics.by_id[A])
    topics.add_topic(A, "a")
    for index in rng.sample(range(3000), 700):
        topics.put_partition(topics.by_id[A if index % 2 else B], partition(A if index % 2 else B, index))
    image = builder.freeze().topics
    parts = all_of(image)
    assert image.partition_count == len(parts) == 700 and len(image) == 2
    assert [at.name for at in image.all()] == ["a", "b"]
    assert image.topic_named("c") is None and image.topic(b"c" * 16) is None
    for topic_id in (A, B):
        own = [key[1] for key in parts if key[0] == topic_id]
        assert image.partition_count_of(topic_id) == len(own) == len(image.rows_of(topic_id))
        assert image.keys_at(image.rows_of(topic_id)) == [(topic_id, index) for index in sorted(own)]
    assert image.rows_of(b"c" * 16).tolist() == [] and image.row_of(b"c" * 16, 0) == -1
    for key, part in parts.items():
        row = image.row_of(*key)
        assert image.partition(*key) == part == image.at(row) and image.key_at(row) == key
        assert part == partition(*key)
    assert image.partition(A, 0) is None and image.partition(A, 3001) is None
    assert image.row_of(A, 0) == image.row_of(A, 3001) == image.row_of(A, -1) == -1

    def keys(rows: Any) -> list[Key]:
        assert sorted(rows.tolist()) == rows.tolist()
        return sorted(image.keys_at(rows))

    assert keys(image.columns.live_rows()) == sorted(parts)
    assert keys(image.rows_without_leader()) == []
    for broker_id in range(-1, 6):
        led = [key for key, at in parts.items() if at.leader == broker_id]
        held = [key for key, at in parts.items() if broker_id in at.replicas]
        in_sync = [key for key, at in parts.items() if broker_id in at.isr]
        if broker_id >= 0:
            assert keys(image.rows_led_by(broker_id)) == sorted(led)
            assert keys(image.rows_with_replica(broker_id)) == sorted(held)
            assert keys(image.rows_with_isr(broker_id)) == sorted(in_sync)
        assert image.replica_counts().get(broker_id, 0) == len(held)


def test_ids_that_meet_in_a_hash_table_are_found() -> None:
    rng = random.Random(3)
    ids = [rng.randbytes(16) for _ in range(3000)]
    strangers = [rng.randbytes(16) for _ in range(3000)]
    words = np.frombuffer(b"".join([*ids, *strangers]), dtype=np.uint64).reshape(-1, 2)
    found = _HashIndex(words[:3000]).find(words)
    assert found.tolist() == [*range(3000), *([-1] * 3000)]


def test_a_hash_table_goes_on_at_its_beginning() -> None:
    rng = random.Random(4)
    words = np.frombuffer(rng.randbytes(16 * 10_000), dtype=np.uint64).reshape(-1, 2)
    homes = _HashIndex(words[:1])._home(words)
    last = words[homes == homes.max()]
    assert homes.max() == 1023 and len(last) > 3
    assert _HashIndex(last[:-1]).find(last).tolist() == [*range(len(last) - 1), -1]


def test_rows_are_split_by_chunk_in_any_order() -> None:
    for rows in (
        [],
        [0],
        [CHUNK_ROWS - 1, CHUNK_ROWS],
        [3 * CHUNK_ROWS, 5, CHUNK_ROWS, 4, 3 * CHUNK_ROWS + 9],
    ):
        found = split_by_chunk(np.array(rows, dtype=np.int64))
        assert [at for at, _, _ in found] == sorted({row // CHUNK_ROWS for row in rows})
        for at, places, local in found:
            wanted = [place for place, row in enumerate(rows) if row // CHUNK_ROWS == at]
            assert places.tolist() == wanted
            assert local.tolist() == [rows[place] % CHUNK_ROWS for place in wanted]
