"""Records found without objects: the same as one by one, for few and for many, and damage is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.storage.batches import places as under_test
from metaquorum.storage.batches.batch import HEADER_BYTES, encode_batch, parse_header
from metaquorum.storage.batches.encode import encode_records
from metaquorum.storage.batches.places import (
    RecordBounds,
    RecordPlaces,
    places_of_many,
    record_bounds,
    record_places,
    renumbered,
)
from metaquorum.storage.cleaner.retained import BatchToClean, open_batches
from metaquorum.storage.errors import BatchError

ANY = under_test._Headers(2**63)
FIELD = st.one_of(st.none(), st.binary(max_size=80))
RECORDS = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.integers(0, 2**31 - 1),
        FIELD,
        FIELD,
        st.lists(st.tuples(st.binary(max_size=5), FIELD), max_size=3),
    ),
    max_size=60,
)


def encoded(
    records: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
) -> bytes:
    return encode_records(
        base_timestamp_ms=0,
        values=[one[3] for one in records],
        keys=[one[2] for one in records],
        timestamps=[one[0] for one in records],
        headers=[one[4] for one in records],
        deltas=[one[1] for one in records],
    )


def test_a_record_whose_length_differs_in_its_second_byte_alone_ends_a_run() -> None:
    sizes = [50] * 30 + [100] * (under_test.SAME_LENGTH_STEPS + 1) + [164]
    payload = encoded([(at, at, None, bytes(size), []) for at, size in enumerate(sizes)])
    columns = under_test._many(payload, len(sizes), ANY)
    found = RecordPlaces(*[column.tolist() for column in columns])
    assert found.value_lengths == sizes and found.offset_deltas == list(range(len(sizes)))


@given(records=RECORDS, equal=st.integers(0, 90))
def test_every_field_is_found(records, equal) -> None:  # type: ignore[no-untyped-def]
    records = records + [(index, index, b"key", b"value", []) for index in range(equal)]
    payload = encoded(records)
    found = [record_places(payload, len(records)), under_test._few(payload, len(records), ANY)]
    if records:
        columns = under_test._many(payload, len(records), ANY)
        found.append(RecordPlaces(*[column.tolist() for column in columns]))
        times, deltas = found[0].time_deltas, found[0].offset_deltas
        numbered, keyless = deltas == list(range(len(records))), min(found[0].key_lengths) < 0
        headers = sum(len(one[4]) for one in records)
        bounds = RecordBounds(min(times), max(times), numbered, keyless, headers)
        assert record_bounds(payload, len(records)) == bounds
    for places in found:
        assert places.time_deltas == [one[0] for one in records]
        assert places.offset_deltas == [one[1] for one in records]
        for at, size, field in (
            (places.keys, places.key_lengths, 2),
            (places.values, places.value_lengths, 3),
        ):
            assert [
                None if length < 0 else payload[start : start + length]
                for start, length in zip(at, size, strict=True)
            ] == [one[field] for one in records]
        assert places.starts[-1] == len(payload)
    again = record_places(renumbered(payload, found[0]), len(records))
    assert again.offset_deltas == list(range(len(records)))
    assert again.time_deltas == found[0].time_deltas and again.value_lengths == found[0].value_lengths


@given(groups=st.lists(RECORDS, max_size=5), data=st.data())
def test_batches_that_are_opened_together_are_those_that_are_opened_alone(
    groups: list[list[Any]], data: st.DataObject
) -> None:
    batches = []
    for records in groups:
        payload = encoded(records)
        if payload and data.draw(st.integers(0, 9)) == 0:
            payload = payload[:-1]  # takes its last byte from the batch that follows, if any
        header = parse_header(encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[b""]))
        header = header._replace(records_count=len(records))
        batches.append((header, bytes(HEADER_BYTES) + payload))
    together = list(open_batches(batches))
    assert [(one.header, one.data) for one in together] == batches
    for one in together:
        try:
            expected = BatchToClean(one.header, one.data).records()
        except BatchError:
            with pytest.raises(BatchError):
                one.records()
            continue
        assert fields(*one.records()) == fields(*expected)


def test_a_record_that_ends_in_the_next_batch_belongs_to_none() -> None:
    one, two = (encoded([(0, index, b"k", b"v", []) for index in range(count)]) for count in (1, 2))
    with pytest.raises(BatchError, match="do not end with it"):
        places_of_many([one, two], [2, 1])


def fields(plain: bytes, places: RecordPlaces) -> list[object]:
    """What the places show, wherever the records begin."""
    at, end = places.starts[0], places.starts[-1]
    keys, values = ([place - at for place in column] for column in (places.keys, places.values))
    starts = [place - at for place in places.starts]
    return [plain[at:end], starts, keys, values, *places[1:3], places.key_lengths, places.value_lengths]


@given(data=st.data(), count=st.integers(0, 70))
def test_damage_raises_nothing_else(data: st.DataObject, count: int) -> None:
    whole = encoded([(0, index, b"k", b"v" * 9, [(b"h", None)]) for index in range(50)])
    at = data.draw(st.integers(0, len(whole) - 1))
    payload = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    for found in (record_places, partial(under_test._few, headers=ANY), record_bounds):
        try:
            found(payload, max(count, 1))
        except (BatchError, IndexError):
            continue


@pytest.mark.parametrize("wrong", [1, -1])
@pytest.mark.parametrize("count", [3, 60])
def test_another_number_of_records_is_refused(count: int, wrong: int) -> None:
    payload = encoded([(0, index, b"k", b"v", []) for index in range(count)])
    with pytest.raises(BatchError):
        record_places(payload, count + wrong)
    with pytest.raises(BatchError):
        record_bounds(payload, count + wrong)
