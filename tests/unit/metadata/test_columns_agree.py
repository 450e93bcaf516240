"""The columns say what the record path says: whatever bytes frame a record, whatever order indexes have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata import snapshot
from metaquorum.metadata.columnar.apply import _CHANGE as CHANGE
from metaquorum.metadata.columnar.apply import _CREATE as CREATE
from metaquorum.metadata.columnar.apply import _NEUTRAL as NEUTRAL
from metaquorum.metadata.columnar.apply import BARRIER, CLASS_OF_KEY
from metaquorum.metadata.columnar.encode import framed_value
from metaquorum.metadata.columnar.partition_records import decode_partitions, read_frames
from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.features import LEVEL_ELR_RECORDS
from metaquorum.metadata.image import MetadataImage, differing_parts, images_equal
from metaquorum.metadata.image.directories import DirectoryTable
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.schema import RECORD_SCHEMAS
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    EndTransactionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState, replay_records
from metaquorum.metadata.text.dump import MIN_RECORDS, batch_payloads, payload_text
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches, parse_header, seal_batch
from metaquorum.storage.batches.format import walk_batches
from metaquorum.storage.errors import BatchError, CorruptLogError
from metaquorum.storage.log.runs import BatchRun, split_runs
from metaquorum.storage.types import LogPosition

TOPICS = [b"\x05" * 16, b"\x06" + b"\x05" * 15, b"\x05" * 15 + b"\x06"]
"""The first one and each other one differ in one half of their ids."""
D = b"\xdd" * 16
COUNT = 40


def partition(index: int, topic_id: bytes = TOPICS[0], *, replicas: int = 3) -> bytes:
    nodes = tuple(range(1, replicas + 1))
    record = PartitionRecord(index, topic_id, nodes, nodes[:2], leader=1, directories=(D,) * replicas)
    return encode(record, 1)


def base() -> ReplayState:
    values = [encode(TopicRecord(f"t{at}", topic_id), 0) for at, topic_id in enumerate(TOPICS)]
    engine = Replayer()
    engine.apply_batch(
        next(iter_batches(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=values)))
    )
    return engine.state()


def outcome(state: ReplayState, apply: Callable[[Replayer], None], *, use_columns: bool) -> tuple[Any, ...]:
    """The image, and everything that was refused on the way; or the error that ended it."""
    refused: list[str] = []
    engine = Replayer(state, on_error=lambda error: refused.append(str(error)), use_columns=use_columns)
    try:
        apply(engine)
    except (BatchError, CorruptLogError, ReplayError) as error:
        return state.image, [type(error).__name__]
    return engine.state().image, sorted(refused)


def assert_agree(left: tuple[Any, ...], right: tuple[Any, ...], what: object) -> None:
    assert left[1] == right[1], what
    assert isinstance(left[0], MetadataImage) and images_equal(left[0], right[0]), what


def other_bytes(byte: int) -> list[int]:
    """Edges of a varint's byte, and its neighbours."""
    return sorted(
        {0, 1, 2, 0x7F, 0x80, 0x81, 0xFF, byte ^ 0x80, *((byte + by) & 0xFF for by in (-2, -1, 1, 2))}
        - {byte}
    )


def batch_with(records: bytes, count: int, first: int) -> bytes:
    plain = encode_batch(base_offset=first, leader_epoch=1, timestamp_ms=9, values=[b""] * count)
    return seal_batch(parse_header(plain), records)


@pytest.mark.parametrize("changed", [0, 1, COUNT // 2, COUNT - 1])
def test_a_batch_says_the_same_whatever_frames_one_of_its_records(changed: int) -> None:
    state = base()
    framed = [framed_value(at, partition(at)) for at in range(COUNT)]
    start = sum(map(len, framed[:changed]))
    whole = b"".join(framed)
    # What frames the value, the value's own frame, and the last byte: the number of headers.
    places = [*range(start, start + 12), start + len(framed[changed]) - 1]
    for place in places:
        for byte in other_bytes(whole[place]):
            data = whole[:place] + bytes((byte,)) + whole[place + 1 :]
            batch = next(iter_batches(batch_with(data, COUNT, len(TOPICS))))

            def apply(engine: Replayer, batch: RecordBatch = batch) -> None:
                engine.apply_batch(batch)

            both = [outcome(state, apply, use_columns=use) for use in (True, False)]
            assert_agree(both[0], both[1], (place - start, byte))


SHORT = [b"", b"\x01", b"\x01\x14", b"\x01\x14\x00", b"\x01\x14\x00\x00", b"\x01\x14\x00\x00\x00"]


@pytest.mark.parametrize("value", SHORT, ids=len)
@pytest.mark.parametrize("place", [0, COUNT // 2, COUNT - 1])
def test_a_record_without_a_whole_frame_is_refused_alone(value: bytes, place: int) -> None:
    """A NoOpRecord that lacks bytes, or has one more than it should, among partitions."""
    state = base()
    values = [value if at == place else partition(at) for at in range(COUNT)]
    batches = [batch_with(framed_value(0, one), 1, len(TOPICS) + at) for at, one in enumerate(values)]
    whole = batch_with(b"".join(map(framed_value, range(COUNT), values)), COUNT, len(TOPICS))
    same = []
    for data, use_columns in ((whole, True), (whole, False), (b"".join(batches), True)):
        walk = walk_batches(data, expected_offset=len(TOPICS), min_epoch=0)
        found = list(split_runs(data, walk, 0, "file"))

        def apply(engine: Replayer, found: list[Any] = found) -> None:
            for one in found:
                engine.apply_run(one) if isinstance(one, BatchRun) else engine.apply_batch(one)

        same.append(outcome(state, apply, use_columns=use_columns))
    assert_agree(same[0], same[1], "one batch")
    assert_agree(same[2], same[1], "many batches")
    assert len(same[1][1]) == (value != SHORT[4])


@pytest.mark.parametrize("changed", [0, COUNT // 2, COUNT - 1])
def test_a_run_says_the_same_whatever_frames_one_of_its_records(changed: int) -> None:
    state = base()
    records = [framed_value(0, partition(at)) for at in range(COUNT)]
    batches = [batch_with(record, 1, len(TOPICS) + at) for at, record in enumerate(records)]
    record = records[changed]
    for place in (*range(12), len(record) - 1):
        for byte in other_bytes(record[place]):
            other = record[:place] + bytes((byte,)) + record[place + 1 :]
            batches[changed] = batch_with(other, 1, len(TOPICS) + changed)
            data = b"".join(batches)
            walk = walk_batches(data, expected_offset=len(TOPICS), min_epoch=0)
            found = list(split_runs(data, walk, 0, "file"))
            assert any(isinstance(one, BatchRun) for one in found)

            def in_runs(engine: Replayer, found: list[Any] = found) -> None:
                for one in found:
                    engine.apply_run(one) if isinstance(one, BatchRun) else engine.apply_batch(one)

            def one_by_one(engine: Replayer, data: bytes = data) -> None:
                for one in iter_batches(data):
                    engine.apply_batch(one)

            fast = outcome(state, in_runs, use_columns=True)
            assert_agree(fast, outcome(state, one_by_one, use_columns=False), (place, byte))


EVEN, ODD = list(range(0, 80, 2)), list(range(1, 80, 2))
ONE_TOPIC: dict[str, list[list[int]]] = {
    "every second": [EVEN, ODD],
    "every third": [list(range(0, 120, 3))],
    "down": [list(range(60, -1, -1))],
    "from the middle, then from the front": [[*range(30, 60), *range(30)]],
    "pairs": [[at ^ 1 for at in range(60)]],
    "at the largest index": [[2**31 - 1 - at for at in range(60)]],
    "one twice": [[*range(40), 39], list(range(39, 80))],
}
Key = tuple[int, bytes]


def in_turn(ones: list[int], others: list[int], topics: tuple[bytes, bytes]) -> list[Key]:
    return [key for pair in zip(ones, others, strict=True) for key in zip(pair, topics, strict=True)]


def orders() -> Iterator[Any]:
    for name, batches in ONE_TOPIC.items():
        yield pytest.param([[(at, TOPICS[0]) for at in indexes] for indexes in batches], id=name)
    for number, other in enumerate(TOPICS[1:], start=1):
        both = TOPICS[0], other
        turns = [in_turn(EVEN, ODD, both), in_turn(ODD, EVEN, both)]
        yield pytest.param(turns, id=f"topics 0 and {number} in turn")
        for first, second in (both, both[::-1]):
            one_after_the_other = [(at, (first, second)[at // 30]) for at in range(60)]
            names = f"topic {TOPICS.index(second)} goes on where topic {TOPICS.index(first)} ends"
            yield pytest.param([one_after_the_other], id=names)
        keys = [(at, topic_id) for at in range(50) for topic_id in both]
        yield pytest.param([random.Random(3).sample(keys, 100)], id=f"topics 0 and {number} mixed")


def leader_of(index: int, topic_id: bytes) -> int:
    return index % 1_000_003 * len(TOPICS) + TOPICS.index(topic_id)


def led_by_its_own(index: int, topic_id: bytes) -> bytes:
    """Each partition gets another leader."""
    return encode(PartitionChangeRecord(index, topic_id, leader=leader_of(index, topic_id)), 0)


@pytest.mark.parametrize("keys_of_batches", list(orders()))
def test_partitions_are_who_they_are_whatever_order_they_come_in(keys_of_batches: list[list[Key]]) -> None:
    """They are created in that order, and then changed in it."""
    state = base()
    batches: list[RecordBatch] = []
    offset = len(TOPICS)
    created = [
        [partition(index, topic_id, replicas=1 + index % 3) for index, topic_id in keys]
        for keys in keys_of_batches
    ]
    changed = [[led_by_its_own(*key) for key in keys] for keys in keys_of_batches]
    for values in (*created, *changed):
        batches += iter_batches(
            encode_batch(base_offset=offset, leader_epoch=1, timestamp_ms=9, values=values)
        )
        offset += len(values)

    def apply(engine: Replayer) -> None:
        for batch in batches:
            engine.apply_batch(batch)

    both = [outcome(state, apply, use_columns=use) for use in (True, False)]
    assert_agree(both[0], both[1], "in order")
    every = {key for keys in keys_of_batches for key in keys}
    for image, _ in both:
        assert image.topics.partition_count == len(every)
        for index, topic_id in every:
            found = image.topics.partition(topic_id, index)
            assert found is not None
            assert (found.index, found.topic_id, len(found.replicas)) == (index, topic_id, 1 + index % 3)
            assert found.leader == leader_of(index, topic_id)


TEXT_ID = b"an id of letters"


def alike(record: PartitionRecord | PartitionChangeRecord) -> RemoveDelegationTokenRecord:
    """A record that differs from `record` only in what its frame calls it: the first byte of the partition's
    index is the length of a token's id, and the rest is the id. No byte may be above 127, the last is 0."""
    value = encode(record, 0)
    token = RemoveDelegationTokenRecord(value[4:-1].decode("ascii"))
    assert encode(token, 0) == value[:1] + b"\x1a" + value[2:]
    return token


def at_index(record: PartitionRecord | PartitionChangeRecord) -> PartitionRecord | PartitionChangeRecord:
    """The same record of the partition whose index begins with the byte that `alike` needs."""
    return msgspec.structs.replace(record, partition_id=(len(encode(record, 0)) - 4) << 24)


LIKE = {
    "change nothing": at_index(PartitionChangeRecord(0, TEXT_ID)),
    "change leader": at_index(PartitionChangeRecord(0, TEXT_ID, leader=0)),
    "change ISR": at_index(PartitionChangeRecord(0, TEXT_ID, isr=(0,))),
    "create": at_index(
        PartitionRecord(0, TEXT_ID, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=0)
    ),
    "create without ISR": at_index(
        PartitionRecord(0, TEXT_ID, (3,), (), leader=0, leader_epoch=0, partition_epoch=0)
    ),
}


@pytest.mark.parametrize("like", LIKE.values(), ids=list(LIKE))
@pytest.mark.parametrize("place", [0, COUNT // 2, COUNT])
def test_what_a_record_is_its_frame_says_and_not_its_bytes(
    like: PartitionRecord | PartitionChangeRecord, place: int
) -> None:
    """The removal of a token whose bytes read as a partition's record touches no partition."""
    there = [TopicRecord("text", TEXT_ID)]
    if isinstance(like, PartitionChangeRecord):
        there.append(PartitionRecord(like.partition_id, TEXT_ID, (5, 6), (5, 6), leader=5))  # type: ignore[arg-type]
        kind = [encode(PartitionChangeRecord(at, TEXT_ID, leader=6), 0) for at in range(COUNT)]
        there += [PartitionRecord(at, TEXT_ID, (5, 6), (5, 6), leader=5) for at in range(COUNT)]  # type: ignore[misc]
    else:
        kind = [encode(PartitionRecord(at, TEXT_ID, (5, 6), (5, 6), leader=5), 0) for at in range(COUNT)]
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=5, records=there)
    values = [*kind[:place], encode(alike(like), 0), *kind[place:]]
    (batch,) = iter_batches(
        encode_batch(base_offset=state.end_offset, leader_epoch=1, timestamp_ms=9, values=values)
    )
    both = [
        outcome(state, lambda engine: engine.apply_batch(batch), use_columns=use) for use in (True, False)
    ]
    assert_agree(both[0], both[1], like)
    for image, refused in both:
        assert refused == []
        before = state.image.topics.partition(TEXT_ID, like.partition_id)
        assert image.topics.partition(TEXT_ID, like.partition_id) == before
        assert image.topics.partition_count == COUNT + (before is not None)


CLASSES = {
    TopicRecord: CREATE,
    PartitionRecord: CREATE,
    PartitionChangeRecord: CHANGE,
    RemoveTopicRecord: BARRIER,
    ClearElrRecord: BARRIER,
    BeginTransactionRecord: BARRIER,
    EndTransactionRecord: BARRIER,
    AbortTransactionRecord: BARRIER,
}


def test_a_type_of_which_the_column_path_knows_nothing_is_a_barrier() -> None:
    known = {schema.key for schema in RECORD_SCHEMAS}
    assert {int(CLASS_OF_KEY[key]) for key in range(len(CLASS_OF_KEY)) if key not in known} == {BARRIER}


@pytest.mark.parametrize("schema", RECORD_SCHEMAS, ids=lambda schema: schema.type_name)
def test_what_may_not_be_passed_by_partitions_is_a_barrier(schema: Any) -> None:
    assert CLASS_OF_KEY[schema.key] == CLASSES.get(schema.body.cls, NEUTRAL), (
        "a type that reads or writes topics or partitions belongs into CLASSES, as a BARRIER; any other into "
        "the neutral ones of CLASS_OF_KEY (metadata/columnar/apply.py)"
    )


@pytest.mark.parametrize(("replicas", "isr"), [((1, 3, 2), (0, 1, 2)), ((2,), (2,)), ((0, 1), (0, 0))])
def test_rows_are_as_wide_as_the_longest_list(replicas: tuple[int, ...], isr: tuple[int, ...]) -> None:
    values = []
    for index, (many, synced) in enumerate(zip(replicas, isr, strict=True)):
        nodes = tuple(range(many))
        record = PartitionRecord(index, TOPICS[0], nodes, tuple(range(synced)), directories=(D,) * many)
        values.append(encode(record, 1))
    (batch,) = iter_batches(encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=9, values=values))
    frames = read_frames(batch.data, batch.header)
    assert frames is not None
    rows, odd = decode_partitions(frames, frames.keys.nonzero()[0], DirectoryTable())
    assert not odd.any()
    assert (rows.replica_width, rows.isr_width) == (max(replicas), max(isr))


def test_places_of_every_width_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of so many partitions that their places take one, two and three bytes."""
    count = 8_300
    monkeypatch.setattr(snapshot, "BATCH_RECORDS", count + 1)
    monkeypatch.setattr(snapshot, "BATCH_BYTES", 8 << 20)
    engine = Replayer(base())
    values = [partition(index) for index in range(count)]
    engine.apply_batch(
        next(
            iter_batches(encode_batch(base_offset=len(TOPICS), leader_epoch=1, timestamp_ms=9, values=values))
        )
    )
    image = engine.state().image
    position = LogPosition(1, image.provenance.offset)
    content = list(snapshot.snapshot_batches(image, position=position, metadata_version=LEVEL_ELR_RECORDS))
    (large,) = (part for part in content if parse_header(part).records_count > count)
    (batch,) = iter_batches(large)
    offsets = [record.offset for record in batch.records()]
    assert offsets == list(range(batch.header.base_offset, batch.header.next_offset))
    for use_columns in (True, False):
        loaded = snapshot.load_snapshot(content, position=position, use_columns=use_columns)
        assert list(differing_parts(loaded, image, provenance=False)) == ["features"]  # the level


# The payloads of whole batches are those of their records one by one.


IDS = st.sampled_from([bytes(16), bytes([255]) * 16, bytes(range(16)), bytes(15) + b"\x01"])
NODES = st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple)
NUMBER = st.integers(-(2**31), 2**31 - 1)


@st.composite
def partitions(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(0, 2))
    odd = draw(st.sampled_from([False] * 6 + [True]))
    record = r.PartitionRecord(
        draw(NUMBER),
        draw(IDS),
        replicas=draw(NODES),
        isr=draw(NODES),
        leader=draw(NUMBER),
        leader_epoch=draw(NUMBER),
        partition_epoch=draw(NUMBER),
        directories=tuple(draw(st.lists(IDS, max_size=4))) if version else (),
        adding_replicas=draw(NODES) if odd else (),
        leader_recovery_state=int(odd),
    )
    return encode(record, version)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(0, 2))
    odd = draw(st.sampled_from([False] * 6 + [True]))
    record = r.PartitionChangeRecord(
        draw(NUMBER),
        draw(IDS),
        isr=draw(maybe(NODES)),
        leader=draw(maybe(st.integers(-1, 9))),
        replicas=draw(NODES) if odd else None,
        leader_recovery_state=draw(maybe(st.integers(0, 2))),
        directories=draw(maybe(st.lists(IDS, max_size=4).map(tuple))) if version else None,
        eligible_leader_replicas=draw(NODES) if odd and version == 2 else None,
    )
    return encode(record, version)


OTHERS = st.sampled_from(
    [
        encode(r.TopicRecord('a "b"', bytes(16)), 0),
        encode(r.NoOpRecord(), 0),
        bytes([1, 3, 9, 5]),  # a PartitionRecord from the future
        bytes([1, 5, 9, 5]),
        bytes([1, 99, 0, 5]),
    ]
)


def one_batch(values: list[bytes]) -> RecordBatch:
    made = encode_batch(base_offset=70, leader_epoch=4, timestamp_ms=1_700_000_000_000, values=values)
    return next(iter(iter_batches(made)))


@given(st.lists(st.one_of(partitions(), changes(), changes(), OTHERS), min_size=MIN_RECORDS, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_same_text_as_record_by_record(values: list[bytes]) -> None:
    batch = one_batch(values)
    made = batch_payloads(batch)
    number = sum(value[1] in (3, 5) for value in values)
    assert (made is None) == (number < MIN_RECORDS)
    if made is not None:
        decoded = decode_batch(batch, tolerant=True)
        assert made[0] == [payload_text(one.record, one.version) for one in decoded]
        assert made[1] == sum(isinstance(one.record, UnknownRecord) for one in decoded)


def test_a_batch_of_one_record_is_not_its_business() -> None:
    assert batch_payloads(one_batch([encode(r.NoOpRecord(), 0)])) is None
