"""What a log knows of its producers: every bound of sequences, epochs, markers and forgetting."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from metaquorum.storage.batches.batch import EndMarker, encode_batch, encode_marker, parse_header
from metaquorum.storage.batches.format import TRANSACTIONAL, BatchHeader
from metaquorum.storage.partition.producers import (
    AbortedTransaction,
    CoordinatorFenced,
    Duplicate,
    EndedTransaction,
    Fenced,
    Fresh,
    KnownBatch,
    KnownProducer,
    OutOfOrder,
    OutsideTransaction,
    ProducerTable,
    Verdict,
)

LAST = 2**31 - 1


def header(
    epoch: int = 3,
    sequence: int = 0,
    count: int = 1,
    *,
    producer: int = 0,
    base: int = 0,
    transactional: bool = False,
    time: int = 50,
) -> BatchHeader:
    data = encode_batch(
        base_offset=base,
        leader_epoch=1,
        timestamp_ms=time,
        values=[b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
    )
    return parse_header(data)


def marker(
    table: ProducerTable, base: int, *, producer: int = 0, epoch: int = 3, committed: bool = True, by: int = 7
) -> EndedTransaction | None:
    end = EndMarker(committed, by)
    data = encode_marker(end, producer_id=producer, producer_epoch=epoch, timestamp_ms=1)
    return table.note(parse_header(data)._replace(base_offset=base), seen_ms=base, marker=end)


def known(*ends: tuple[int, int], epoch: int = 3) -> ProducerTable:
    """A table with producer 0, whose batches have these first and last sequences, ten offsets apart."""
    batches = [KnownBatch(first, last, 10 * at, 10 * at + 1, at) for at, (first, last) in enumerate(ends)]
    return ProducerTable({0: KnownProducer(0, epoch, tuple(batches), 0)})


@pytest.mark.parametrize(
    ("table", "batch", "expected"),
    [
        (ProducerTable(), header(sequence=9), Fresh()),
        (ProducerTable(), header(producer=-1, epoch=-1, sequence=-1), Fresh()),
        (known((0, 4)), header(producer=-1, epoch=-1, sequence=-1), Fresh()),
        (known((0, 4)), header(sequence=5), Fresh()),
        (known((0, 4)), header(sequence=6), OutOfOrder(5)),
        (known((0, 4)), header(sequence=4), OutOfOrder(5)),
        (known((0, 4)), header(sequence=0, count=5), Duplicate(0, 1, 0)),
        (known((0, 4)), header(sequence=0, count=4), OutOfOrder(5)),
        (known((0, 4)), header(sequence=1, count=4), OutOfOrder(5)),
        (known((0, 1), (2, 3), (4, 5)), header(sequence=0, count=2), Duplicate(0, 1, 0)),
        (known((0, 1), (2, 3), (4, 5)), header(sequence=2, count=2), Duplicate(10, 11, 1)),
        (known((0, 1), (2, 3), (4, 5)), header(sequence=4, count=2), Duplicate(20, 21, 2)),
        (known((0, 4)), header(epoch=2, sequence=5), Fenced(3)),
        (known((0, 4)), header(epoch=2, sequence=0, count=5), Fenced(3)),
        (known((0, 4)), header(epoch=4, sequence=0), Fresh()),
        (known((0, 4)), header(epoch=4, sequence=5), OutOfOrder(0)),
        (known((0, 4)), header(epoch=4, sequence=1), OutOfOrder(0)),
        (known(), header(sequence=0), Fresh()),
        (known(), header(sequence=1), OutOfOrder(0)),
        (known((LAST, LAST)), header(sequence=0), Fresh()),
        (known((LAST - 1, LAST - 1)), header(sequence=LAST), Fresh()),
        (known((LAST - 1, LAST - 1)), header(sequence=0), OutOfOrder(LAST)),
        (known((LAST, 0)), header(sequence=LAST, count=2), Duplicate(0, 1, 0)),
        (known((LAST, 0)), header(sequence=1), Fresh()),
    ],
)
def test_a_batch_is_judged_by_what_is_known(
    table: ProducerTable, batch: BatchHeader, expected: Verdict
) -> None:
    assert table.check(batch) == expected


def under_way(epoch: int = 3) -> ProducerTable:
    table = ProducerTable()
    table.note(header(epoch, transactional=True, base=5), seen_ms=0)
    return table


@pytest.mark.parametrize(
    ("epoch", "sequence", "transactional", "expected"),
    [
        (3, 1, True, Fresh()),
        (3, 1, False, OutsideTransaction()),
        (4, 0, False, OutsideTransaction()),
        (2, 1, False, Fenced(3)),
        (2, 1, True, Fenced(3)),
    ],
)
def test_while_a_transaction_is_under_way(
    epoch: int, sequence: int, transactional: bool, expected: Verdict
) -> None:
    assert under_way().check(header(epoch, sequence, transactional=transactional)) == expected


@pytest.mark.parametrize(
    ("epoch", "expected"), [(2, Fenced(3)), (3, Fresh()), (4, Fresh())], ids=["older", "same", "newer"]
)
def test_a_coordinators_batch_needs_no_sequence_but_its_epoch(epoch: int, expected: Verdict) -> None:
    batch = header(epoch, -1)
    assert known((0, 4)).check(batch, sequenced=False) == expected
    assert ProducerTable().check(batch, sequenced=False) == Fresh()


@pytest.mark.parametrize(
    ("epoch", "by", "expected"),
    [
        (3, 7, Fresh()),
        (4, 8, Fresh()),
        (2, 7, Fenced(3)),
        (2, 6, Fenced(3)),
        (3, 6, CoordinatorFenced(7)),
        (4, 6, CoordinatorFenced(7)),
    ],
)
def test_a_marker_is_judged_by_producer_and_coordinator(epoch: int, by: int, expected: Verdict) -> None:
    table = under_way()
    end = EndMarker(True, by)
    one = header(epoch, -1)
    assert ProducerTable().check_marker(one, end) == Fresh()
    marker(table, 6)
    assert table.check_marker(one, end) == expected


def test_five_batches_are_remembered_and_a_new_epoch_begins_anew() -> None:
    table = ProducerTable()
    for at in range(7):
        table.note(header(3, 2 * at, 2, base=2 * at, time=at), seen_ms=10 + at)
    expected = tuple(KnownBatch(2 * at, 2 * at + 1, 2 * at, 2 * at + 1, at) for at in range(2, 7))
    assert table.get(0) == KnownProducer(0, 3, expected, 16)
    table.note(header(4, 0, base=20, time=9), seen_ms=30)
    assert table.get(0) == KnownProducer(0, 4, (KnownBatch(0, 0, 20, 20, 9),), 30)
    table.note(header(4, -1, base=21), seen_ms=31)
    assert table.get(0) == KnownProducer(0, 4, (KnownBatch(0, 0, 20, 20, 9),), 31)
    table.note(header(producer=-1, epoch=-1, sequence=-1), seen_ms=40)
    assert len(table) == 1


def test_sequences_wrap_inside_a_batch() -> None:
    table = ProducerTable()
    table.note(header(3, LAST, 3), seen_ms=0)
    found = table.get(0)
    assert found is not None and (found.batches[0].first_sequence, found.batches[0].last_sequence) == (
        LAST,
        1,
    )


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_begin_and_end(committed: bool) -> None:
    """Of two producers: one of them from offset 0 on, and the same again after its first has ended."""
    table = ProducerTable()
    assert table.open_from is None
    table.note(header(transactional=True, base=0), seen_ms=0)
    table.note(header(producer=4, transactional=True, base=1), seen_ms=0)
    table.note(header(sequence=1, transactional=True, base=2), seen_ms=0)
    assert table.open_from == 0
    assert [table.has_open(0, epoch) for epoch in (2, 3, 4)] == [False, True, False]
    assert not table.has_open(9, 3)
    assert marker(table, 3, committed=committed) == EndedTransaction(0, 3)
    assert table.open_from == 1 and not table.has_open(0, 3)
    after = table.get(0)
    assert after is not None and (after.coordinator_epoch, after.open_from, after.seen_ms) == (7, -1, 3)
    assert [each.first_offset for each in after.batches] == [0, 2]
    # Nothing is under way: a marker of no transaction ends none, and one in a new epoch clears the batches.
    assert marker(table, 4, committed=committed, epoch=4, by=8) is None
    after = table.get(0)
    assert after == KnownProducer(0, 4, (), 4, coordinator_epoch=8)
    table.note(header(4, 0, transactional=True, base=5), seen_ms=5)
    again = table.get(0)
    assert again is not None and (again.coordinator_epoch, again.open_from) == (8, 5)
    assert table.open_from == 1
    assert marker(table, 6, producer=4, committed=committed) == EndedTransaction(1, 6)
    assert table.open_from == 5
    assert marker(table, 7, epoch=4, committed=committed) == EndedTransaction(5, 7)
    assert table.open_from is None
    # A producer, its first offset, its marker, and from where on nothing was stable then.
    told = [(0, 0, 3, 1), (4, 1, 6, 5), (0, 5, 7, 8)]
    assert list(table.aborted) == ([] if committed else [AbortedTransaction(*each) for each in told])


def test_a_control_batch_that_is_no_end_marker_changes_nothing() -> None:
    table = under_way()
    before = table.all()
    data = encode_marker(EndMarker(True, 1), producer_id=0, producer_epoch=3, timestamp_ms=1)
    assert table.note(parse_header(data), seen_ms=9, marker=None) is None
    assert table.all() == before


def test_who_is_silent_is_forgotten_but_not_in_a_transaction() -> None:
    table = ProducerTable()
    for producer, seen in ((1, 9), (2, 10), (3, 11), (4, 9)):
        table.note(header(producer=producer, transactional=producer == 4), seen_ms=seen)
    assert table.expire(10) == 1 and [each.producer_id for each in table.all()] == [2, 3, 4]
    assert table.expire(10) == 0
    assert table.expire(100) == 2 and table.open_from == 0


def test_a_table_made_of_producers_knows_what_is_under_way() -> None:
    """As from a snapshot: the earliest first, whoever comes first; what is copied stays as it was."""
    one = KnownProducer(1, 0, (), 0, open_from=7)
    table = ProducerTable({each.producer_id: each for each in (replace(one, producer_id=5), one)})
    table = ProducerTable({each.producer_id: each for each in (*table.all(), KnownProducer(3, 0, (), 0))})
    zero = replace(one, producer_id=9, open_from=0)
    assert table.open_from == 7
    both = ProducerTable({each.producer_id: each for each in (*table.all(), zero)})
    assert both.open_from == 0
    copy = both.copy()
    assert copy == both and copy.open_from == 0
    marker(both, 8, producer=9, epoch=0, committed=False)
    assert (both.open_from, copy.open_from) == (7, 0)
    assert copy != both and len(list(copy.aborted)) == 0
    assert both != 1
