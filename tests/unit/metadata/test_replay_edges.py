"""Replay at its edges: damaged records among many, long records, transactions inside a batch, the quick way.

What columns do with many records at once must be what happens record by record, errors included.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

from metaquorum.metadata import replay
from metaquorum.metadata.errors import RecordDecodeError, ReplayError, UnknownRecordError
from metaquorum.metadata.records import codec
from metaquorum.metadata.records.codec import decode, encode
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRecord,
    EndTransactionRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.storage.batches.batch import (
    HEADER_BYTES,
    RecordBatch,
    encode_batch,
    iter_batches,
    parse_header,
    seal_batch,
)
from metaquorum.storage.errors import BatchError
from metaquorum.wire.primitives import MAX_VARINT, Malformed, read_uvarint, uvarint
from tests.images import describe_difference

TOPIC = b"t" * 16
MANY = 40


def batch_of(
    values: list[bytes], base_offset: int = 0, epoch: int = 5, timestamp_ms: int = 70
) -> RecordBatch:
    (batch,) = iter_batches(
        encode_batch(base_offset=base_offset, leader_epoch=epoch, timestamp_ms=timestamp_ms, values=values)
    )
    return batch


def partition(index: int, **fields: Any) -> PartitionRecord:
    usual = {"replicas": (1, 2), "isr": (1, 2), "leader": 1, "directories": (b"a" * 16, b"b" * 16)}
    return PartitionRecord(index, TOPIC, leader_epoch=0, partition_epoch=0, **{**usual, **fields})


def partitions(count: int, **fields: Any) -> list[bytes]:
    return [encode(partition(at, **fields), 1) for at in range(count)]


def run(
    values: list[bytes], *, use_columns: bool, state: ReplayState | None = None
) -> tuple[ReplayState, list[tuple[int, str]]]:
    errors: list[tuple[int, str]] = []
    engine = Replayer(
        state, on_error=lambda error: errors.append((error.offset, error.reason)), use_columns=use_columns
    )
    engine.apply_batch(batch_of(values, engine.end_offset))
    return engine.state(), errors


def run_both(
    values: list[bytes], state: ReplayState | None = None
) -> tuple[ReplayState, list[tuple[int, str]]]:
    in_columns, errors = run(values, use_columns=True, state=state)
    one_by_one, others = run(values, use_columns=False, state=state)
    assert errors == others
    assert describe_difference(in_columns.image, one_by_one.image) == ""
    return in_columns, errors


TOPIC_VALUE = encode(TopicRecord("orders", TOPIC), 0)


@pytest.mark.parametrize("at", [0, 1, 20, MANY - 1])
@pytest.mark.parametrize("damaged", [b"", b"\x01", b"\x01\x03\x01\xff", b"\x02\x03\x01", b"\x01\x03\x63\x00"])
def test_a_record_that_cannot_be_read_among_many_is_named_and_alone_left_out(at: int, damaged: bytes) -> None:
    values = partitions(MANY)
    values[at] = damaged
    state, errors = run_both([TOPIC_VALUE, *values])
    assert [offset for offset, _ in errors] == [1 + at]
    held = [info.index for info in state.image.topics.partitions_of(TOPIC)]
    assert held == [index for index in range(MANY) if index != at]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_record_that_ends_inside_a_longer_buffer_is_refused(cut: int) -> None:
    whole = encode(TopicRecord("orders", TOPIC), 0)
    assert decode(b"??" + whole + b"??", 2, 2 + len(whole)) == (0, TopicRecord("orders", TOPIC))
    for end in range(len(whole)):
        with pytest.raises(RecordDecodeError):
            decode(whole + whole, 0, end)
    with pytest.raises(RecordDecodeError):
        decode(whole, 0, len(whole) + cut)


@pytest.mark.parametrize("name_at", [0, 1, 2])
def test_the_error_names_the_part_of_the_frame_in_which_a_record_ends(name_at: int) -> None:
    # Numbers of the frame may take two bytes; the buffer goes on with another record.
    frame = b"".join([b"\x01", b"\x03", b"\x01"][:name_at]) + b"\xff\x01\x00\x00"
    name = ("frame version", "api key", "version")[name_at]
    with pytest.raises(RecordDecodeError, match=f"it ends inside its {name}"):
        codec._read_frame(frame, 0, name_at + 1)


@pytest.mark.parametrize("isr_length", [1, 10, 60, 300, 1900, 2100, 4100, 9000])
def test_records_whose_length_takes_one_two_or_three_bytes(isr_length: int) -> None:
    values = partitions(MANY, isr=tuple(range(isr_length)))
    state, errors = run_both([TOPIC_VALUE, *values])
    assert errors == []
    held = state.image.topics.partitions_of(TOPIC)
    assert [info.index for info in held] == list(range(MANY))
    assert {info.isr for info in held} == {tuple(range(isr_length))}


def test_numbers_of_variable_length_at_every_edge() -> None:
    for bits in (7, 14, 21, 28, 31):
        for value in (2**bits - 1, 2**bits, 2**bits + 1):
            data = uvarint(value)
            assert len(data) == max(1, -(-value.bit_length() // 7))
            if len(data) == 1:
                assert data[0] == value
            elif value <= MAX_VARINT:
                assert read_uvarint(data + b"\x05", 1, data[0]) == (value, len(data))
            else:
                with pytest.raises(Malformed, match="above"):
                    read_uvarint(data, 1, data[0])
    for value in (MAX_VARINT - 1, MAX_VARINT):
        data = uvarint(value)
        assert read_uvarint(data, 1, data[0]) == (value, len(data))
    with pytest.raises(Malformed):
        read_uvarint(uvarint(MAX_VARINT + 1), 1, uvarint(MAX_VARINT + 1)[0])
    with pytest.raises(Malformed, match="longer than its value needs"):
        read_uvarint(b"\x85\x00", 1, 0x85)


USUAL_BATCHES = {
    "a topic and its partitions": [TOPIC_VALUE, *partitions(MANY)],
    "several topics and their partitions": [
        value
        for topic in (b"1" * 16, b"2" * 16, b"3" * 16)
        for value in (
            encode(TopicRecord(f"t{topic[:1]!r}", topic), 0),
            *(
                encode(PartitionRecord(at, topic, (1, 2), (1,), (), (), 1, 0, 0, 0, (topic, topic)), 1)
                for at in range(MANY)
            ),
        )
    ],
}


def changes(**fields: Any) -> list[bytes]:
    return [encode(PartitionChangeRecord(at, TOPIC, **fields), 1) for at in range(MANY)]


USUAL_CHANGES = {
    "leaders": changes(leader=2),
    "no leaders": changes(leader=-1, isr=(1,)),
    "in-sync replicas": changes(isr=(2,)),
    "both": changes(isr=(2,), leader=2),
    "recovery": changes(isr=(2,), leader=2, leader_recovery_state=1),
    "directories": changes(directories=(b"c" * 16, b"d" * 16)),
}


@pytest.fixture
def no_single_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition record that is applied alone fails the test."""
    single = replay.apply_record

    def refuse(builder: Any, record: object, offset: int) -> None:
        assert not isinstance(record, PartitionRecord | PartitionChangeRecord), f"{record} went alone"
        single(builder, record, offset)

    monkeypatch.setattr(replay, "apply_record", refuse)


@pytest.mark.parametrize("name", USUAL_BATCHES)
@pytest.mark.usefixtures("no_single_partitions")
def test_usual_batches_of_new_partitions_are_read_in_columns(name: str) -> None:
    state, errors = run(USUAL_BATCHES[name], use_columns=True)
    assert errors == []
    assert state.image.topics.partition_count % MANY == 0


@pytest.mark.parametrize("name", USUAL_CHANGES)
def test_usual_changes_of_partitions_are_read_in_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = run([TOPIC_VALUE, *partitions(MANY)], use_columns=True)
    expected, _ = run(USUAL_CHANGES[name], use_columns=False, state=base)
    single = replay.apply_record

    def refuse(builder: Any, record: object, offset: int) -> None:
        assert not isinstance(record, PartitionChangeRecord), f"{record} went alone"
        single(builder, record, offset)

    monkeypatch.setattr(replay, "apply_record", refuse)
    state, errors = run(USUAL_CHANGES[name], use_columns=True, state=base)
    assert errors == []
    assert describe_difference(state.image, expected.image) == ""
    assert describe_difference(state.image, base.image, provenance=False) != ""


OTHER = b"o" * 16
STRETCHES: dict[str, list[list[bytes]]] = {
    "creations": [[encode(PartitionRecord(at, OTHER, (1,), (1,), leader=1), 0) for at in range(60)]],
    "changes": [[encode(PartitionChangeRecord(at, TOPIC, leader=2), 1) for at in range(60)]],
}
STRETCHES["both"] = [*STRETCHES["creations"], *STRETCHES["changes"]]
STRETCHES["changes, then creations"] = STRETCHES["both"][::-1]
UNUSUAL = {
    "a change of replicas": PartitionChangeRecord(70, TOPIC, replicas=(2, 1)),
    "a partition that moves": PartitionRecord(70, OTHER, (1,), (1,), (), (1,), leader=1),
    "a change of one that others change": PartitionChangeRecord(40, TOPIC, removing_replicas=(2,)),
}


@pytest.mark.parametrize("at", [0, 30, 60])
@pytest.mark.parametrize("kind", STRETCHES)
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_what_is_unusual_goes_alone(
    unusual: str, kind: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stretch around it does not go with it, nor those before and behind that one."""
    odd = UNUSUAL[unusual]
    first, *rest = STRETCHES[kind]
    values = [
        encode(TopicRecord("other", OTHER), 0),
        *first[:at],
        encode(odd, 0),
        *first[at:],
        *chain.from_iterable(rest),
    ]
    base, _ = run([TOPIC_VALUE, *partitions(80)], use_columns=True)
    expected, _ = run(values, use_columns=False, state=base)
    single, alone = replay.apply_record, []

    def noted(builder: Any, record: object, offset: int) -> None:
        alone.append(record)
        single(builder, record, offset)

    monkeypatch.setattr(replay, "apply_record", noted)
    state, _ = run(values, use_columns=True, state=base)
    assert describe_difference(state.image, expected.image) == ""
    assert odd in alone
    others = [each for each in alone if each != odd and not isinstance(each, TopicRecord)]
    # A stretch with a change of one of its own is halved, down to a few.
    halved = odd.partition_id == 40 and "changes" in kind
    assert len(others) <= (30 if halved else 0), others


FRAMED: dict[str, dict[str, Any]] = {
    "as usual": {},
    "with a key": {"keys": [b"k", *[None] * 6]},
    "with a header": {"headers": [*[()] * 6, [(b"h", b"v")]]},
    "with times": {"timestamps": [70, 71, 72, 73, 74, 75, 70]},
}


@pytest.mark.parametrize("framed", FRAMED)
def test_offsets_and_errors_are_the_same_however_records_are_framed(framed: str) -> None:
    values = [
        encode(NoOpRecord(), 0),
        b"\x01\x63\x00\x00",
        encode(BrokerRecord(1, b"i" * 16, 10), 0),
        b"\x01\x02\x00\xff",
        encode(EndTransactionRecord(), 0),
        encode(BeginTransactionRecord("creation"), 0),
        TOPIC_VALUE,
    ]
    for use_columns in (True, False):
        refused: list[ReplayError] = []
        engine = Replayer(on_error=refused.append, use_columns=use_columns)
        engine.apply_batch(batch_of([encode(NoOpRecord(), 0)] * 100))
        content = encode_batch(
            base_offset=100, leader_epoch=5, timestamp_ms=70, values=values, **FRAMED[framed]
        )
        engine.apply_batch(next(iter_batches(content)))
        causes = [(error.offset, type(error.__cause__)) for error in refused]
        assert causes == [(101, UnknownRecordError), (103, RecordDecodeError), (104, type(None))]
        state = engine.state()
        assert state.image.brokers.registration_offset(1) == 102
        assert state.transaction is not None and state.transaction.begin_offset == 105
        assert (state.image.provenance.offset, state.end_offset) == (105, 107)


def test_of_a_batch_that_cannot_be_taken_apart_nothing_is_applied() -> None:
    """Its first records are whole, and their framing leaves it to the slow way."""
    content = encode_batch(
        base_offset=0,
        leader_epoch=5,
        timestamp_ms=70,
        values=[TOPIC_VALUE, *partitions(MANY)],
        headers=[[(b"h", b"v")]] * (MANY + 1),
    )
    (batch,) = iter_batches(seal_batch(parse_header(content), content[HEADER_BYTES:-1]))
    engine = Replayer()
    with pytest.raises(BatchError):
        engine.apply_batch(batch)
    assert describe_difference(engine.state().image, ReplayState().image) == ""


@pytest.mark.parametrize("fate", ["open", "end", "abort"])
def test_a_transaction_inside_a_batch_shows_the_place_before_it(fate: str) -> None:
    """Records before the Begin of a batch are visible, at their own place in the log."""
    engine = Replayer()
    engine.apply_batch(batch_of([encode(NoOpRecord(), 0)], 0, epoch=3, timestamp_ms=30))
    last = {"open": NoOpRecord(), "end": EndTransactionRecord(), "abort": AbortTransactionRecord()}[fate]
    values = [
        TOPIC_VALUE,
        encode(BeginTransactionRecord("creation"), 0),
        encode(partition(0), 1),
        encode(last, 0),
    ]
    engine.apply_batch(batch_of(values, 1, epoch=5, timestamp_ms=70))
    state = engine.state()
    assert state.end_offset == 5
    assert state.newest.provenance.offset == 5
    assert (state.newest.provenance.epoch, state.newest.provenance.timestamp_ms) == (5, 70)
    assert state.image.topics.topic_named("orders") is not None
    assert len(state.image.topics.partitions_of(TOPIC)) == (fate == "end")
    if fate == "open":
        assert state.transaction is not None
        assert (state.transaction.begin_offset, state.transaction.name) == (2, "creation")
        visible = state.image.provenance
        assert (visible.offset, visible.epoch, visible.timestamp_ms) == (2, 5, 70)
        assert len(state.newest.topics.partitions_of(TOPIC)) == 1
        resumed = Replayer(state)
        resumed.apply_batch(batch_of([encode(AbortTransactionRecord(), 0)], 5, epoch=6, timestamp_ms=80))
        after = resumed.state()
        assert after.transaction is None
        assert after.image.topics.partitions_of(TOPIC) == []
        assert (after.image.provenance.offset, after.image.provenance.epoch) == (6, 6)
    else:
        assert state.transaction is None


def test_an_abort_takes_back_records_and_not_the_place_in_the_log() -> None:
    engine = Replayer()
    engine.apply_batch(batch_of([encode(NoOpRecord(), 0)] * 3, epoch=5, timestamp_ms=70))
    begun = [encode(BeginTransactionRecord("creation"), 0), TOPIC_VALUE]
    engine.apply_batch(batch_of(begun, 3, epoch=6, timestamp_ms=80))
    engine.apply(AbortTransactionRecord(), 5, 7, 90)
    found = engine.state()
    assert found.transaction is None and len(found.image.topics) == 0
    place = found.image.provenance
    assert (place.offset, place.epoch, place.timestamp_ms) == (5, 6, 80)


def test_markers_that_do_not_fit_are_refused_and_change_nothing() -> None:
    for values, offset in (
        ([BeginTransactionRecord("a"), BeginTransactionRecord("b")], 1),
        ([EndTransactionRecord()], 0),
        ([AbortTransactionRecord()], 0),
        ([BeginTransactionRecord("a"), EndTransactionRecord(), AbortTransactionRecord()], 2),
    ):
        encoded = [encode(value, 0) for value in values]
        state, errors = run(encoded, use_columns=True)
        assert [at for at, _ in errors] == [offset]
        assert state.end_offset == len(values)
        with pytest.raises(ReplayError):
            Replayer().apply_batch(batch_of(encoded))


def test_rows_of_an_unknown_topic_are_none_and_can_be_used_as_rows() -> None:
    state, _ = run([TOPIC_VALUE, *partitions(MANY)], use_columns=True)
    topics = state.image.topics
    rows = topics.rows_of(b"?" * 16)
    assert rows.dtype == topics.rows_of(TOPIC).dtype == np.int64
    assert topics.keys_at(rows) == []
    assert topics.keys_at(topics.rows_of(TOPIC)) == [(TOPIC, at) for at in range(MANY)]
