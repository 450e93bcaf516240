"""The cleaner's rules for one batch: what stays, what is emptied, when tombstones and markers go."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.storage.batches.batch import (
    Batches,
    EndMarker,
    RecordBatch,
    batch_problem,
    encode_batch,
    encode_marker,
    parse_header,
    seal_batch,
)
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.encode import control_key, encode_records, plain_header
from metaquorum.storage.batches.format import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Compression,
)
from metaquorum.storage.batches.places import record_places, retimed
from metaquorum.storage.cleaner.cleaning import Cleaning, CleaningEndedError
from metaquorum.storage.cleaner.plan import (
    CleanerSettings,
    CleaningPlan,
    SegmentFacts,
    group_segments,
    plan_cleaning,
)
from metaquorum.storage.cleaner.retained import (
    CleanedTransactions,
    KeyOffsets,
    LastOfProducer,
    RecordFilter,
    key_names,
    open_batches,
)
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.partition.producers import AbortedTransaction
from tests.unit.storage.cleaner_bench import clean, load, make_disk, settle

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
    latest: int = 1_000,
) -> list[bytes | None]:
    keys = KeyOffsets(1 << 20)
    keys.put_all([name.encode() for name in last], list(last.values()))
    keys.latest = latest
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


@pytest.mark.parametrize("tombstone", [False, True])
def test_the_time_of_the_append_stays_that_of_every_record(tombstone: bool) -> None:
    """In a batch with log append time, whatever its records say, with a delete horizon or without."""
    whole = encode_batch(
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=100,
        timestamps=[100, 150, 120],
        keys=[b"a", b"b", b"c"],
        values=[b"x", b"y", None if tombstone else b"z"],
        max_timestamp_ms=900,
        attributes=LOG_APPEND_TIME,
    )
    (left,) = cleaned(whole, last={"a": 50, "b": 1, "c": 2})
    assert left is not None and batch_problem(left, 0, gaps=True) is None
    header = parse_header(left)
    assert header.attributes == LOG_APPEND_TIME | (DELETE_HORIZON if tombstone else 0)
    assert header.max_timestamp_ms == 900
    assert header.base_timestamp_ms == (NOW + LATER if tombstone else 900)
    records = RecordBatch(header, left).records()
    assert [(one.offset, one.timestamp_ms) for one in records] == [(1, 900), (2, 900)]
    plain = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME)
    assert {one.timestamp_ms for one in RecordBatch(plain, left).records()} == {900}
    assert cleaned(left, last={"a": 50, "b": 1, "c": 2}) == [left]


def test_a_control_batch_that_ends_no_transaction_stays() -> None:
    """As one of a kind that a later release knows."""
    other = encode_batch(
        base_offset=0,
        leader_epoch=0,
        timestamp_ms=1,
        keys=[control_key(9)],
        values=[b"v"],
        producer_id=5,
        producer_epoch=0,
        attributes=CONTROL | TRANSACTIONAL,
    )
    assert cleaned(other, last={}, now=10**12) == [other]


def test_a_pass_that_has_staged_nothing_swaps_nothing_in() -> None:
    log = load(make_disk(1))
    log.append(Batches.parse(records(0, "a")))
    plan = CleaningPlan(first_dirty=0, end=1, dirty_ratio=1.0)
    cleaning = Cleaning(log, plan, CleanerSettings(), now_ms=1, key_bytes=1 << 20)
    with pytest.raises(CleaningEndedError):
        cleaning.swap()
    log.close()


def test_a_batch_that_a_pass_emptied_has_no_keys_for_the_next_one() -> None:
    """It stays for its producer alone, in one pass after another."""
    log = load(make_disk(1))
    log.append(Batches.parse(records(0, "a", "b", producer=9)))
    for offset in range(2, 30):
        log.append(Batches.parse(records(offset, "ab"[offset % 2])))
    settle(log)
    seen = []
    for _ in range(2):
        assert clean(log, None, 10**13) is not None
        data = log.read_range(0, 30, 1 << 20)
        seen.append([(one.base_offset, one.records_count) for one in Batches.sealed(data).headers][:2])
    assert seen[0] == seen[1] and seen[0][0] == (0, 0)
    log.close()


def test_an_empty_value_is_no_tombstone() -> None:
    both = encode_batch(
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=NOW,
        keys=[b"a", b"b"],
        values=[None, b""],
        attributes=DELETE_HORIZON,
    )
    (left,) = cleaned(both, last={"a": 0, "b": 1}, now=NOW)
    assert kept(left) == [1]


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


def test_an_aborted_transaction_whose_marker_is_gone_takes_nothing_with_it() -> None:
    """The log still knows it until the next start: an earlier pass of this process took the marker away."""
    one = records(4, "a", producer=5, attributes=TRANSACTIONAL)
    commit = marker(5, committed=True)
    assert cleaned(one, commit, last={"a": 4}, aborted=(AbortedTransaction(5, 0, 3, 4),)) == [one, commit]
    later = records(6, "b", producer=5, attributes=TRANSACTIONAL)
    abort = marker(7, committed=False)
    known = (AbortedTransaction(5, 0, 3, 4), AbortedTransaction(5, 6, 7, 8))
    assert cleaned(one, commit, later, abort, last={"a": 4}, aborted=known) == [one, commit, None, abort]


def test_an_emptied_batch_of_data_stays_for_its_offset_and_a_marker_for_its_epoch() -> None:
    one = records(4, "a", producer=9)
    for keeps, stays in (
        (LastOfProducer(data_offset=-1, epoch=0), False),
        (LastOfProducer(data_offset=4, epoch=7), True),
        (LastOfProducer(data_offset=0, epoch=0), False),
    ):
        (left,) = cleaned(one, last={"a": 50}, producers={9: keeps})
        assert (left is not None) == stays
    abort = marker(0, committed=False)
    for epoch, stays in ((0, True), (1, False)):
        (first,) = cleaned(marker(1, committed=True), last={})
        assert first is not None
        keeps = LastOfProducer(data_offset=-1, epoch=epoch)
        (left,) = cleaned(first, last={}, now=NOW + LATER, producers={5: keeps})
        assert (left is not None) == stays
    assert cleaned(abort, last={}, producers={}) != [None]


KEYS = st.sampled_from([None, b"", b"a", b"b"])
ROWS = st.lists(
    st.tuples(KEYS, st.sampled_from([None, b"", b"v"]), st.integers(0, 20)), min_size=1, max_size=8
)


@settings(max_examples=150, deadline=None)
@given(
    rows=ROWS,
    last=st.dictionaries(st.sampled_from(["", "a", "b"]), st.integers(0, 15)),
    latest=st.integers(3, 14),
    horizon=st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
    codec=st.sampled_from([Compression.NONE, Compression.GZIP]),
)
def test_what_stays_of_a_batch_is_what_the_rules_say(
    rows: list[tuple[bytes | None, bytes | None, int]],
    last: dict[str, int],
    latest: int,
    horizon: int | None,
    codec: Compression,
) -> None:
    """A record stays above the keys that are known; below, it has a key, is the newest of it, and is no
    tombstone whose horizon has come. Of what stays, keys, values, offsets and times are as before."""
    base = 5
    last = {key: min(offset, latest) for key, offset in last.items()}
    data = encode_batch(
        base_offset=base,
        leader_epoch=3,
        timestamp_ms=100,
        keys=[row[0] for row in rows],
        values=[row[1] for row in rows],
        timestamps=[100 + row[2] for row in rows],
    )
    header, body = parse_header(data), data[HEADER_BYTES:]
    raw = RecordBatch(header, data).records()
    if horizon is not None:
        header = header._replace(attributes=header.attributes | DELETE_HORIZON)
        times = [one.timestamp_ms - horizon for one in raw]
        places = record_places(body, len(raw))
        body = retimed(body, places, range(len(raw)), times)
        header = header._replace(base_timestamp_ms=horizon)
    header = header._replace(attributes=header.attributes | codec)
    data = seal_batch(header, pack(codec, body))
    raw = RecordBatch(parse_header(data), data).records()
    assert [one.timestamp_ms for one in raw] == [100 + row[2] for row in rows]
    due = horizon is not None and horizon <= NOW

    def stays(offset: int, key: bytes | None, value: bytes | None) -> bool:
        if offset > latest:
            return True
        newest = key is not None and offset >= last.get(key.decode(), -1)
        return newest and not (due and value is None)

    wanted = [one for one in raw if stays(one.offset, one.key, one.value)]
    (left,) = cleaned(data, last=last, latest=latest)
    if not wanted:
        assert left is None
        return
    assert left is not None and batch_problem(left, 0, gaps=True) is None
    after = parse_header(left)
    assert RecordBatch(after, left).records() == wanted
    kept_fields = ("base_offset", "last_offset_delta", "leader_epoch", "producer_id", "base_sequence")
    assert all(getattr(after, name) == getattr(header, name) for name in kept_fields)
    assert (after.compression, after.records_count) == (codec, len(wanted))
    new_horizon = horizon is None and any(one.value is None for one in wanted)
    if new_horizon or len(wanted) < len(raw):
        assert after.max_timestamp_ms == max(one.timestamp_ms for one in wanted)
        expected = NOW + LATER if new_horizon else wanted[0].timestamp_ms if horizon is None else horizon
        assert after.base_timestamp_ms == expected
    else:
        assert left == data
    assert bool(after.attributes & DELETE_HORIZON) == (new_horizon or horizon is not None)


def test_a_batch_may_be_larger_than_one_of_metadata() -> None:
    body = encode_records(base_timestamp_ms=1, keys=[b"a", b"b"], values=[b"v" * (9 << 20), b"v"])
    data = seal_batch(plain_header(0, 0, 1, 2), body, limit=1 << 30)
    (left,) = cleaned(data, last={"a": 0, "b": 7})
    assert kept(left) == [0]


def test_keys_are_looked_up_from_the_first_dirty_offset_on() -> None:
    """Inside a batch too; records without a key are passed over, empty batches have none."""
    disk = make_disk(1)
    log = load(disk)
    keyed: list[list[bytes | None]] = [[b"a", b"b"], [b"c", None, b"a"], [None, b""], [b"b"]]
    for keys in keyed:
        base = log.end_offset
        values: list[bytes | None] = [b"v" * 400] * len(keys)
        log.append(
            Batches.parse(
                encode_batch(base_offset=base, leader_epoch=0, timestamp_ms=5, keys=keys, values=values)
            )
        )
    log._roll()
    settle(log)
    end = log.end_offset
    flat = [key for keys in keyed for key in keys]
    for first_dirty in range(end):
        plan = CleaningPlan(first_dirty=first_dirty, end=end, dirty_ratio=1.0)
        cleaning = Cleaning(log, plan, CleanerSettings(), now_ms=10**13, key_bytes=1 << 20)
        assert all(used > 0 for used in cleaning._pass._find_keys())
        newest = {key: at for at, key in enumerate(flat) if key is not None and at >= first_dirty}
        assert cleaning._pass._keys._offsets == newest
        assert cleaning._pass._keys.latest == end - 1
    log.close()


def facts(*sizes: int) -> list[SegmentFacts]:
    return [SegmentFacts(at * 10, at * 10 + 10, size, at + 1, at + 1) for at, size in enumerate(sizes)]


def test_segments_become_one_while_they_are_not_too_large_together() -> None:
    groups = group_segments(facts(50, 50, 1, 0, 100, 0, 30), 100)
    assert [[one.base_offset for one in group] for group in groups] == [[0, 10], [20, 30], [40, 50], [60]]
    for end, count in ((2**31, 1), (2**31 + 1, 2)):
        two = [SegmentFacts(0, 5, 1, 1, 1), SegmentFacts(5, end, 1, 1, 1)]
        assert len(group_segments(two, 100)) == count
    far = [
        SegmentFacts(0, 5, 1, 1, 1),
        SegmentFacts(5, 2**31 + 2, 1, 1, 1),
        SegmentFacts(2**31 + 2, 2**32, 0, 1, 1),
    ]
    assert [len(group) for group in group_segments(far, 100)] == [1, 2]
    steps = [SegmentFacts(at, at + 2**30, 1, 1, 1) for at in range(0, 2**33, 2**30)]
    assert [len(group) for group in group_segments(steps, 100)] == [2, 2, 2, 2]


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


@pytest.mark.parametrize(
    ("first_ms", "overdue"), [(-1, False), (0, False), (1, True), (50, True), (51, False)]
)
def test_only_a_time_that_is_one_makes_a_log_overdue(first_ms: int, overdue: bool) -> None:
    segments = [SegmentFacts(0, 10, 90, 1, 1), SegmentFacts(10, 20, 10, first_ms, first_ms)]
    settings = CleanerSettings(max_lag_ms=49)
    plan = plan_cleaning(segments, first_dirty=10, stable_to=20, settings=settings, now_ms=100)
    assert (plan is not None) == overdue
    if plan is not None:
        assert (plan.first_dirty, plan.end, plan.dirty_ratio) == (10, 20, 0.1)
    empty = [SegmentFacts(0, 10, 0, -1, -1), SegmentFacts(10, 20, 0, -1, -1)]
    assert plan_cleaning(empty, first_dirty=0, stable_to=20, settings=settings, now_ms=100) is None


def test_keys_have_room_up_to_their_bound() -> None:
    keys = KeyOffsets(1_080)
    many = [b"%04d" % at for at in range(5)]
    assert keys.has_room([b"k" * 9_000]), "one batch always has"
    keys.put_all(many, list(range(5)))
    keys.put_all(many, list(range(5, 10)))
    assert keys.has_room([b"0005"]) and not keys.has_room([b"0005", b"0006"]) and keys.has_room([])
    assert KeyOffsets(180).has_room([b"0000"])
    keys = KeyOffsets(360)
    keys.put_all([b"0000"], [0])
    assert keys.has_room([b"0001"]) and not keys.has_room([b"00010"])


def test_offsets_that_are_gone_at_the_end_of_a_segment_count_as_looked_up_and_read() -> None:
    """Of a log that was compacted before: its segment of 0 to 9 ends with batch 1."""
    disk = make_disk(1)
    for base, batches in ((0, [records(0, "a"), records(1, "b")]), (10, [records(10, "c")])):
        file = disk.open_append(f"/d/t-0/{base:020}.log")
        file.append(b"".join(batches))
        file.close()
    log = load(disk)
    settle(log)
    for to in (1, 2, 7, 10):
        assert log.read_range(0, to, 10_000) == b"".join([records(0, "a"), records(1, "b")][:to])
    assert log.truncate_to(11) == 11
    plan = CleaningPlan(first_dirty=0, end=10, dirty_ratio=1.0)
    cleaning = Cleaning(log, plan, CleanerSettings(), now_ms=10**13, key_bytes=1 << 20)
    for _ in cleaning._pass._find_keys():
        pass
    assert (cleaning._pass._keys.latest, len(cleaning._pass._keys)) == (9, 2)
    log.close()


@pytest.mark.parametrize("first_dirty", [0, 1])
def test_records_that_cannot_be_read_end_the_pass_and_stay(first_dirty: int) -> None:
    """Their checksum is right: somebody sent them so."""
    disk = make_disk(1)
    log = load(disk)
    log.append(Batches.sealed(seal_batch(plain_header(0, 0, 1, 1), b"\x7fgarbage")))
    log.append(Batches.sealed(records(1, "a")))
    log._roll()
    settle(log)
    before = log.read_range(0, 2, 10_000)
    plan = CleaningPlan(first_dirty=first_dirty, end=2, dirty_ratio=1.0)
    cleaning = Cleaning(log, plan, CleanerSettings(), now_ms=10**13, key_bytes=1 << 20)
    with pytest.raises(CorruptLogError, match="the log is no longer cleaned"):
        for _ in cleaning.pieces():
            pass
    assert log.read_range(0, 2, 10_000) == before
    assert not [name for name in disk.list_directory("/d/t-0") if name.endswith(".cleaned")]
    log.close()


def test_keys_are_named_alike_whatever_is_beside_them() -> None:
    keys = [b"", b"a", b"k" * 64, b"k" * 65, b"l" * 65, b"k" * 900]
    payload = b"".join(keys)
    starts = [sum(map(len, keys[:at])) for at in range(len(keys))]
    lengths = list(map(len, keys))
    alone = [key_names(payload, [start], [length])[0] for start, length in zip(starts, lengths, strict=True)]
    assert key_names(payload, starts, lengths) == alone
    assert alone[:3] == keys[:3] and {len(name) for name in alone[3:]} == {65} and len(set(alone)) == 6


def test_a_pass_tells_every_byte_that_it_reads_and_writes() -> None:
    log = load(make_disk(1))
    for base, key in enumerate("abab"):
        log.append(Batches.parse(records(base, key)))
        if base % 2:
            log._roll()  # nothing is left of the first segment
    settle(log)
    plan = CleaningPlan(first_dirty=0, end=4, dirty_ratio=1.0)
    cleaning = Cleaning(log, plan, CleanerSettings(), now_ms=10**13, key_bytes=1 << 20)
    before = sum(one.size_bytes for one in cleaning.task.segments)
    used = []
    while cleaning.result is None:
        used += list(cleaning.pieces())
        if cleaning.staged is not None:
            cleaning.swap()
    # Every byte is read twice, and half of them are written.
    assert min(used) >= 0 and sum(used) == 2 * before + before // 2
    assert cleaning.result.cleaned_to == 4
    log.close()


# Which batches of transactions a cleaner drops, by their definition: pass after pass over made logs.


PRODUCERS = (-1, 5, 6, 7)
DATA, PLAIN, COMMIT, ABORT = "data", "plain", "commit", "abort"


@dataclass
class Step:
    """A batch of a log, of the transaction `of` (None: of none), whose marker it may be."""

    offset: int
    producer: int
    kind: str
    of: int | None = None
    emptied: bool = False

    def encoded(self) -> bytes:
        if self.kind in (COMMIT, ABORT):
            marker = EndMarker(self.kind == COMMIT, 0)
            data = encode_marker(marker, producer_id=self.producer, producer_epoch=0, timestamp_ms=1)
            body = b"" if self.emptied else data[HEADER_BYTES:]
            count = 0 if self.emptied else 1
            return seal_batch(parse_header(data)._replace(base_offset=self.offset, records_count=count), body)
        return encode_batch(
            base_offset=self.offset,
            leader_epoch=0,
            timestamp_ms=1,
            keys=[b"k", b"l"],
            values=[b"v", b"w"],
            producer_id=self.producer,
            attributes=TRANSACTIONAL if self.kind == DATA else 0,
        )


def written(rng: random.Random) -> list[Step]:
    """A log as leaders let it be: within a transaction a producer writes nothing outside of it."""
    steps: list[Step] = []
    open_since: dict[int, int] = {}
    offset = transactions = 0
    for _ in range(rng.randint(1, 40)):
        producer = rng.choice(PRODUCERS)
        kind = PLAIN if producer < 0 else rng.choice((DATA, DATA, PLAIN, COMMIT, ABORT))
        if kind == PLAIN and producer in open_since:
            kind = DATA
        if kind == DATA and producer not in open_since:
            open_since[producer] = transactions = transactions + 1
        of = open_since.get(producer)
        steps.append(Step(offset, producer, kind, of))
        offset += 2 if kind in (DATA, PLAIN) else 1
        if kind in (COMMIT, ABORT):
            open_since.pop(producer, None)
    return [one for one in steps if one.kind == PLAIN or one.of not in open_since.values()]


def aborted_in(steps: list[Step]) -> dict[int, AbortedTransaction]:
    """By transaction."""
    found = {}
    for end in steps:
        if end.kind == ABORT and end.of is not None:
            first = min(one.offset for one in steps if one.of == end.of)
            found[end.of] = AbortedTransaction(end.producer, first, end.offset, end.offset + 1)
    return found


def is_dropped(step: Step, steps: list[Step], aborted: dict[int, AbortedTransaction]) -> bool:
    if step.kind == PLAIN:
        return False
    if step.kind == DATA:
        return step.of in aborted
    return step.emptied or not any(one.kind == DATA and one.of == step.of for one in steps if step.of)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_dropped_is_what_the_definition_says(seed: int) -> None:
    """A marker outlives its batches by one pass. What an earlier pass dropped, and the list of aborted
    transactions, which still has those whose marker went, change nothing for what is left."""
    rng = random.Random(seed)
    steps = written(rng)
    aborted = aborted_in(steps)
    for _ in range(3):
        transactions = CleanedTransactions(rng.sample(list(aborted.values()), len(aborted)))
        wanted = [is_dropped(one, steps, aborted) for one in steps]
        encoded = [one.encoded() for one in steps]
        assert [transactions.is_dropped(parse_header(one), one) for one in encoded] == wanted
        kept = [one for one, dropped in zip(steps, wanted, strict=True) if not dropped]
        stays = [aborted[one.of] for one in kept if one.kind == ABORT and one.of is not None]
        assert transactions.take_retained() == stays
        assert transactions.take_retained() == []
        # Compaction takes others too, and empties a marker that its producer needs.
        for one, dropped in zip(steps, wanted, strict=True):
            if dropped and one.kind in (COMMIT, ABORT) and rng.random() < 0.5:
                one.emptied = True
                kept.append(one)
        steps = [
            one for one in sorted(kept, key=lambda one: one.offset) if one.kind != DATA or rng.random() < 0.7
        ]
