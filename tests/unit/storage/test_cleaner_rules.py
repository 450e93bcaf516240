"""The cleaner's rules for one batch: what stays, what is emptied, when tombstones and markers go."""

from __future__ import annotations

from metaquorum.storage.batches.batch import RecordBatch, encode_batch, parse_header, seal_batch
from metaquorum.storage.batches.format import DELETE_HORIZON, HEADER_BYTES, TRANSACTIONAL
from metaquorum.storage.batches.markers import EndMarker, encode_marker
from metaquorum.storage.cleaner.keys import KeyOffsets
from metaquorum.storage.cleaner.opened import open_batches
from metaquorum.storage.cleaner.plan import CleanerSettings, SegmentFacts, group_segments, plan_cleaning
from metaquorum.storage.cleaner.retained import LastOfProducer, RecordFilter
from metaquorum.storage.cleaner.transactions import CleanedTransactions
from metaquorum.storage.partition.aborted import AbortedTransaction

NOW, LATER = 10_000, 500


def records(base: int, *keys: str, dead: bool = False, producer: int = -1, attributes: int = 0) -> bytes:
    return encode_batch(
        base_offset=base,
        leader_epoch=0,
        timestamp_ms=100 + base,
        keys=[key.encode() for key in keys],
        values=[None if dead else b"v" for _ in keys],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=7 if producer >= 0 else -1,
        attributes=attributes,
    )


def marker(base: int, *, committed: bool, producer: int = 5) -> bytes:
    data = encode_marker(EndMarker(committed, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1)
    return seal_batch(parse_header(data)._replace(base_offset=base, leader_epoch=0), data[HEADER_BYTES:])


def cleaned(
    *batches: bytes,
    last: dict[str, int],
    aborted: tuple[AbortedTransaction, ...] = (),
    producers: dict[int, LastOfProducer] | None = None,
    now: int = NOW,
) -> list[bytes | None]:
    keys = KeyOffsets(1 << 20)
    keys.put_all([name.encode() for name in last], list(last.values()))
    keys.latest = 1_000
    records = RecordFilter(
        keys=keys,
        transactions=CleanedTransactions(aborted),
        producers=producers or {},
        now_ms=now,
        delete_retention_ms=LATER,
    )
    return [records.batch(one) for one in open_batches((parse_header(one), one) for one in batches)]


def kept(batch: bytes | None) -> list[int]:
    assert batch is not None
    return [one.offset for one in RecordBatch(parse_header(batch), batch).records()]


def test_a_batch_of_last_records_stays_as_it_is_and_others_lose_records_but_no_offset() -> None:
    whole, part = records(0, "a", "b"), records(2, "a", "c", "b")
    left = cleaned(whole, part, last={"a": 2, "b": 1, "c": 3})
    assert kept(left[0]) == [1] and kept(left[1]) == [2, 3, 4]
    assert left[1] == part
    assert left[0] is not None
    header = parse_header(left[0])
    assert (header.base_offset, header.last_offset, header.records_count) == (0, 1, 1)
    assert header.base_timestamp_ms == 100


def test_an_emptied_batch_stays_while_it_is_its_producers_last() -> None:
    one = records(4, "a", "b", producer=9)
    keeps = {9: LastOfProducer(data_offset=5, epoch=0)}
    (left,) = cleaned(one, last={"a": 50, "b": 51}, producers=keeps)
    assert left is not None
    header = parse_header(left)
    assert (header.records_count, header.size_bytes, header.base_sequence) == (0, HEADER_BYTES, 7)
    assert (header.base_offset, header.last_offset, header.base_timestamp_ms) == (4, 5, -1)
    assert cleaned(left, last={}, producers=keeps) == [left]
    later = {9: LastOfProducer(data_offset=8, epoch=0)}
    assert cleaned(one, left, last={"a": 50, "b": 51}, producers=later) == [None, None]


def test_a_tombstone_gets_a_horizon_and_goes_when_it_has_come() -> None:
    (once,) = cleaned(records(3, "a", dead=True), last={"a": 3})
    assert once is not None and kept(once) == [3]
    header = parse_header(once)
    assert header.attributes & DELETE_HORIZON and header.base_timestamp_ms == NOW + LATER
    assert RecordBatch(header, once).records()[0].timestamp_ms == 103
    assert cleaned(once, last={"a": 3}, now=NOW + LATER - 1) == [once]
    assert cleaned(once, last={"a": 3}, now=NOW + LATER) == [None]
    assert cleaned(once, last={"a": 9}, now=NOW) == [None]


def test_a_marker_stays_while_a_batch_of_its_transaction_does() -> None:
    one = records(0, "a", producer=5, attributes=TRANSACTIONAL)
    commit = marker(1, committed=True)
    assert cleaned(one, commit, last={"a": 0}) == [one, commit]
    (lonely,) = cleaned(commit, last={})
    assert lonely is not None and parse_header(lonely).attributes & DELETE_HORIZON
    assert cleaned(lonely, last={}, now=NOW + LATER) == [None]
    fences = {5: LastOfProducer(data_offset=-1, epoch=0)}
    (kept_empty,) = cleaned(lonely, last={}, now=NOW + LATER, producers=fences)
    assert kept_empty is not None and parse_header(kept_empty).records_count == 0


def test_an_aborted_transaction_goes_and_its_marker_one_pass_later() -> None:
    one = records(0, "a", producer=5, attributes=TRANSACTIONAL)
    abort = marker(1, committed=False)
    entry = AbortedTransaction(5, 0, 1, 2)
    assert cleaned(one, abort, last={"a": 0}, aborted=(entry,)) == [None, abort]
    transactions = CleanedTransactions((entry,))
    assert transactions.is_dropped(parse_header(one), one)
    assert not transactions.is_dropped(parse_header(abort), abort)
    assert transactions.take_retained() == [entry] and transactions.take_retained() == []
    assert CleanedTransactions((entry,)).is_dropped(parse_header(abort), abort)


def facts(*sizes: int) -> list[SegmentFacts]:
    return [SegmentFacts(at * 10, at * 10 + 10, size, at + 1, at + 1) for at, size in enumerate(sizes)]


def test_segments_become_one_while_they_are_not_too_large_together() -> None:
    groups = group_segments(facts(50, 50, 1, 0, 100, 0, 30), 100)
    assert [[one.base_offset for one in group] for group in groups] == [[0, 10], [20, 30], [40, 50], [60]]
    far = [
        SegmentFacts(0, 5, 1, 1, 1),
        SegmentFacts(5, 2**31 + 2, 1, 1, 1),
        SegmentFacts(2**31 + 2, 2**32, 0, 1, 1),
    ]
    assert [len(group) for group in group_segments(far, 100)] == [1, 2]


def test_what_is_due() -> None:
    def due(first_dirty: int, stable_to: int = 1_000, **rules: float) -> tuple[int, float] | None:
        settings = CleanerSettings(**rules)  # type: ignore[arg-type]
        plan = plan_cleaning(
            facts(60, 20, 20), first_dirty=first_dirty, stable_to=stable_to, settings=settings, now_ms=100
        )
        return None if plan is None else (plan.end, plan.dirty_ratio)

    assert due(0) == (30, 1.0)
    assert due(10) is None and due(10, min_dirty_ratio=0.3) == (30, 0.4)
    assert due(10, min_dirty_ratio=0.4) is None
    assert due(30, min_dirty_ratio=0.0) is None
    assert due(0, stable_to=29) == (20, 1.0) and due(0, stable_to=9) is None
    assert due(0, min_lag_ms=98) == (20, 1.0)
    assert due(20, max_lag_ms=96) == (30, 0.2) and due(20, max_lag_ms=97) is None
