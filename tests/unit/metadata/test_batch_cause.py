"""The record that says who caused a batch: what is written is read again, bounded, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaquorum.lines import printable
from metaquorum.metadata.records.batch_cause import (
    CAUSE_TAG,
    ENCODED_MAX_BYTES,
    TEXT_MAX_BYTES,
    BatchCause,
    bounded,
    cause_in,
    cause_record,
)
from metaquorum.metadata.records.codec import decode, encode
from metaquorum.metadata.records.types import NoOpRecord, TopicRecord
from metaquorum.metadata.text.cause_text import asked_json, asked_text, brief_text
from metaquorum.wire.primitives import uvarint

TEXTS = st.none() | st.text(max_size=400)
CAUSES = st.builds(
    BatchCause,
    request=TEXTS,
    rule=TEXTS,
    principal=TEXTS,
    client_id=TEXTS,
    address=TEXTS,
    broker_id=st.none() | st.integers(0, 2**31 - 1),
)
WHOLE = BatchCause("CreateTopics", "leader-balance", "User:alice", "app", "10.0.0.1", 3)


@given(CAUSES)
@example(BatchCause("x" * 256, "y" * 255, "é" * 128, "\U0001f600" * 64, "\ud800" * 300))
def test_what_is_written_is_read_again(cause: BatchCause) -> None:
    data = encode(cause_record(cause), 0)
    _, record = decode(data)
    found = cause_in(record)
    assert found == bounded(cause)
    assert encode(record, 0) == data
    assert len(data) <= ENCODED_MAX_BYTES
    for name in ("request", "rule", "principal", "client_id", "address"):
        before, after = getattr(cause, name), getattr(found, name)
        if before is None or len(before.encode(errors="replace")) <= TEXT_MAX_BYTES:
            assert after == (None if before is None else before.encode(errors="replace").decode())
        else:
            assert len(after.encode()) <= TEXT_MAX_BYTES and after.endswith("...")


def test_kafka_sees_a_no_op_record_with_one_tagged_field() -> None:
    """Frame version 1, api key 20, version 0, and behind it tag, length and bytes: all that a reader of
    flexible fields has to know to pass over it."""
    data = encode(cause_record(WHOLE), 0)
    tag = uvarint(CAUSE_TAG)
    assert data[:4] == bytes((1, 20, 0, 1)) and data[4 : 4 + len(tag)] == tag
    body = data[4 + len(tag) :]
    assert body[0] == len(body) - 1


def test_an_unset_field_takes_no_byte() -> None:
    assert len(encode(cause_record(BatchCause(rule="session-expired")), 0)) == 28


@given(st.binary(max_size=80))
def test_any_bytes_are_a_cause_or_none(data: bytes) -> None:
    found = cause_in(NoOpRecord(((CAUSE_TAG, data),)))
    assert found is None or isinstance(found, BatchCause)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\1" + data[1:],
        lambda data: b"",
        lambda data: data + b"\0" * ENCODED_MAX_BYTES,
        lambda data: data.replace(b"alice", b"al\xffce"),
    ],
    ids=["short", "long", "newer", "empty", "huge", "not utf-8"],
)
def test_what_is_no_cause_is_no_error(change: object) -> None:
    ((tag, data),) = cause_record(WHOLE).unknown_tags
    assert cause_in(NoOpRecord(((tag, change(data)),))) is None  # type: ignore[operator]


def test_only_the_field_of_a_no_op_record_counts() -> None:
    fields = cause_record(WHOLE).unknown_tags
    assert cause_in(TopicRecord("a", bytes(16), fields)) is None
    assert cause_in(NoOpRecord()) is None
    assert cause_in(NoOpRecord(((7, fields[0][1]),))) is None
    assert cause_in(NoOpRecord(((7, b"x"), *fields))) == WHOLE


def test_fields_of_a_newer_writer_are_kept() -> None:
    newer = BatchCause(request="CreateTopics", unknown_tags=((9, b"new"),))
    assert cause_in(cause_record(newer)) == newer


def test_text_for_people() -> None:
    assert (
        asked_text(WHOLE)
        == "CreateTopics by User:alice at 10.0.0.1 (client app, through broker 3, rule leader-balance)"
    )
    assert asked_text(BatchCause(rule="leader-balance")) == "the controller itself, by rule leader-balance"
    assert brief_text(BatchCause("UpdateFeatures")) == "UpdateFeatures by the controller's own process"
    shown = asked_json(WHOLE)
    assert shown is not None and list(shown.values()) == [
        *("CreateTopics", "leader-balance", "User:alice", "app", "10.0.0.1", 3)
    ]


@given(CAUSES)
def test_nothing_but_printable_characters_reaches_a_terminal(cause: BatchCause) -> None:
    for text in (asked_text(cause), brief_text(cause)):
        assert text.isprintable()


def test_escapes_keep_what_was_there() -> None:
    assert printable("a\x1b[2Jb\n\u202e\x9b") == r"a\x1b[2Jb\n\u202e\x9b"
