"""A log that is cut at snapshots, replayed in parts and joined has the rows of one replay."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.pipeline.fleet.files import write_fleet
from metaquorum.pipeline.fleet.plan import FleetPlan
from metaquorum.pipeline.intervals import ClusterReplay, StateError
from metaquorum.pipeline.intervals.log_parts import (
    NO_END,
    Before,
    EpochStart,
    LateReplay,
    ReplayedSection,
    agrees,
    continues,
    spliced,
)
from metaquorum.pipeline.intervals.moments import (
    DAY_MS,
    LONG_STEP_MS,
    MAX_JUMP_MS,
    MAX_TIME_MS,
    BatchClock,
    Silence,
    days,
)
from metaquorum.pipeline.intervals.tables.availability import (
    DailySums,
    add_sums,
    difference_of,
    quantile,
    sums_row,
)
from metaquorum.pipeline.tables import FAILOVER_BOUNDS_MS, PARTITION_COLUMNS, TABLES
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.types import LogPosition
from tests.unit.pipeline.intervals.telling import (
    DIR_A,
    DIR_B,
    Line,
    alive,
    batches,
    broker,
    change,
    feed,
    fence,
    leads,
    partition,
    read_log,
    tables_of,
)

Tables = dict[str, list[Any]]


class Walk:
    """What is known at each batch of a log, besides the rows: what a snapshot there says."""

    def __init__(self, given: Sequence[RecordBatch]) -> None:
        self.given = given

    def before(self, at: int) -> Before:
        """At the batch `at`: the image as a snapshot's bytes give it back, and the election."""
        engine = Replayer(ReplayState(MetadataImage()), on_error=lambda error: None)
        quorum, election = QuorumView(), None
        clock, silence = BatchClock(), Silence()
        for batch in self.given[:at]:
            engine.apply_batch(batch)
            records = decode_batch(batch, tolerant=True)
            moment = clock.moment(batch.header.base_offset, batch.header.max_timestamp_ms)
            idle = len(records) == 1 and records[0].record.type_name == "NO_OP_RECORD"
            silence.ends(moment.now_ms, idle=idle)
            if batch.header.is_control:
                quorum = quorum.after(batch.header.leader_epoch, records)
                if any(isinstance(one.record, LeaderChangeMessage) for one in records):
                    election = EpochStart(batch.header.leader_epoch, records)
        known = quorum.without_leader() if quorum.kraft_version else QuorumView()
        return Before(
            image=as_read(engine.state().image), quorum=known, election=election, silence=silence.save()
        )


def as_read(image: MetadataImage) -> MetadataImage:
    at = LogPosition(max(image.provenance.epoch, 0), image.provenance.offset)
    data = b"".join(snapshot_batches(image, position=at, metadata_version=image.features.metadata_version))
    return load_snapshot([data], position=at)


def section_told(
    given: Sequence[RecordBatch], before: Before, posts: Sequence[int]
) -> tuple[ReplayedSection, Tables] | None:
    section = LateReplay("made", before, posts)
    rows: Tables = {}
    for batch in given:
        section.batch(batch, decode_batch(batch, tolerant=True))
        collect(rows, section.take())
    collect(rows, section.take())
    try:
        told = section.section()
    except StateError:
        return None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=ReplayedSection), rows


def collect(rows: Tables, more: Any) -> None:
    for table, some in more.items() if isinstance(more, dict) else more:
        rows.setdefault(table, []).extend(some)


def in_sections(
    given: Sequence[RecordBatch], cuts: Sequence[int], posts: Sequence[int]
) -> tuple[Tables, list[int]]:
    """The tables of a log that is cut before the batches `cuts`, and for each the post at which it was joined
    (-1: it was replayed again)."""
    walk, end = Walk(given), NO_END
    engine = feed(ClusterReplay("made", log_end=end), given[: cuts[0]])
    rows: Tables = {}
    joined = []
    for cut, after in zip(cuts, [*cuts[1:], len(given)], strict=True):
        part = given[cut:after]
        result = section_told(part, walk.before(cut), posts)
        at = -1
        if result is not None and continues(engine, result[0]):
            told, body = result
            for number, post in enumerate(told.posts):
                feed(
                    engine, [one for one in part if engine.end_offset <= one.header.base_offset < post.offset]
                )
                if agrees(engine, post):
                    collect(rows, engine.final_rows())
                    engine, late = spliced(engine, told, number, "made", end)
                    collect(rows, late)
                    collect(rows, body)
                    at = number
                    break
        feed(engine, [one for one in part if one.header.base_offset >= engine.end_offset])
        joined.append(at)
    for table, last in tables_of(engine).items():
        rows.setdefault(table, []).extend(last)
    return rows, joined


def plain(value: Any) -> Any:
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value


def assert_same(found: Tables, given: Sequence[RecordBatch]) -> None:
    expected = tables_of(feed(ClusterReplay("made", log_end=NO_END), given))
    assert {at for at, rows in found.items() if rows} == {at for at, rows in expected.items() if rows}
    for table, rows in expected.items():
        mine = sorted((plain(row) for row in found.get(table, [])), key=repr)
        missing = [row for row in rows if row not in mine][:3]
        more = [row for row in mine if row not in rows][:3]
        assert mine == rows, (table, missing, more)


def boundaries(given: Sequence[RecordBatch]) -> list[int]:
    """Batches before which a snapshot can be: not inside a transaction, nor before there is a level."""
    engine = ClusterReplay("made", log_end=NO_END)
    found = []
    for number, batch in enumerate(given):
        if number and not engine.is_inside and engine.image.features.metadata_version:
            found.append(number)
        engine.batch(batch, decode_batch(batch, tolerant=True))
    return found


@cache
def fleet_logs(folder: str, seed: int) -> list[list[RecordBatch]]:
    out = Path(folder) / str(seed)
    write_fleet(FleetPlan(clusters=2, records=9_000, seed=seed, damaged_every=0), out)
    return [read_log(path) for path in sorted(out.glob("clusters/*/*/__cluster_metadata-0"))]


@pytest.mark.parametrize("seed", range(2))
def test_generated_logs_cut_anywhere_have_the_rows_of_one_replay(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    joined: list[int] = []
    for whole in fleet_logs(str(tmp_path_factory.mktemp("fleet")), seed):
        cuts = sorted(rng.sample(boundaries(whole), 3))
        found, at = in_sections(whole, cuts, (rng.choice([8, 64]), 300, 1000))
        joined += at
        assert_same(found, whole)
    assert max(joined) >= 0, joined


def long_outage() -> list[RecordBatch]:
    """A broker is out for long, and what it costs grows all the while; it has a lost directory before, and
    another process after."""
    topic = b"T" * 16
    quiet: list[Line] = [(120_000 + 4_000 * at, [r.NoOpRecord()]) for at in range(3)]
    later: list[Line] = [(150_000 + 4_000 * at, [r.NoOpRecord()]) for at in range(3)]
    lines: list[Line] = [
        (0, [leads(3000)]),
        (0, [r.FeatureLevelRecord("metadata.version", 19)]),
        (10, [broker(1, 2, rack="a", dirs=(DIR_A, DIR_B)), broker(2, 3, rack="b"), broker(3, 4)]),
        (20, [alive(1, 2), alive(2, 3), alive(3, 4)]),
        (30, [r.TopicRecord("t", topic), *[partition(at, (1, 2, 3), topic) for at in range(6)]]),
        (40, [r.ConfigRecord(2, "t", "min.insync.replicas", "3")]),
        (50_000, [fence(1, 2), *[change(at, topic, leader=2, isr=(2, 3)) for at in range(3)]]),
        *quiet,
        (140_000, [change(at, topic, leader=2, isr=(2, 3)) for at in (3, 4)]),
        *later,
        (170_000, [change(5, topic, leader=3, isr=(2, 3))]),
        (180_000, [broker(1, 30, rack="a", dirs=(DIR_A, DIR_B)), alive(1, 30)]),
        (200_000, [change(0, topic, isr=(2, 3, 1))]),
        (210_000, [r.NoOpRecord()]),
    ]
    return batches(lines)


def test_what_lasts_over_two_seams_is_counted_once_and_began_when_it_did() -> None:
    given = long_outage()
    places = [at for at in boundaries(given) if at < len(given) - 1]
    joined = []
    for pair in itertools.combinations(places, 2):
        found, at = in_sections(given, pair, (1,))
        assert_same(found, given)
        joined.append(tuple(at))
    assert joined.count((0, 0)) >= 8, joined


# The time that durations are measured by: it never falls, and no single wrong stamp moves it for good.


SIX_YEARS = 6 * 365 * DAY_MS
T0 = 1_795_000_000_000


def times(*stamps: int) -> list[int]:
    clock = BatchClock()
    return [clock.moment(at, T0 + stamp).now_ms - T0 for at, stamp in enumerate(stamps)]


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([0, 10, 20], [0, 10, 20]),
        ([0, 10, 5, 20], [0, 10, 10, 20]),
        ([0, 10, SIX_YEARS, 20, 30], [0, 10, 10, 20, 30]),  # one batch six years ahead
        ([0, 10, SIX_YEARS, 20, SIX_YEARS, 30], [0, 10, 10, 20, 20, 30]),  # and another one
        ([0, SIX_YEARS, SIX_YEARS + 5], [0, 0, SIX_YEARS + 5]),  # set for good: the next batch confirms it
        ([0, LONG_STEP_MS - 1], [0, LONG_STEP_MS - 1]),
        ([0, MAX_JUMP_MS + 1, MAX_JUMP_MS + 2, 5], [0, 0, 0, 5]),  # over ten years are never counted
        ([0, -SIX_YEARS, 5], [0, 0, 5]),
    ],
)
def test_one_wrong_stamp_does_not_move_the_time(stamps: list[int], expected: list[int]) -> None:
    assert times(*stamps) == expected


def test_a_stamp_keeps_its_own_time_beside_it() -> None:
    clock = BatchClock()
    clock.moment(0, T0)
    odd = clock.moment(1, T0 + SIX_YEARS)
    assert (odd.time_ms, odd.now_ms) == (T0 + SIX_YEARS, T0)
    assert clock.moment(2, -1).time_ms is None


# Clocks, days, quantiles and buckets.


@given(st.integers(0, 10 * DAY_MS), st.integers(0, 10 * DAY_MS))
def test_days_fill_a_span_exactly(start: int, length: int) -> None:
    parts = list(days(start, start + length))
    assert sum(span for _, span in parts) == length
    assert [day for day, _ in parts] == sorted({day for day, _ in parts})
    assert all(0 < span <= DAY_MS for _, span in parts)


def test_a_clock_ignores_what_is_no_time_and_never_goes_back() -> None:
    clock = BatchClock()
    assert clock.moment(0, -1)[:3] == (0, None, -1)
    assert clock.moment(1, 5000)[:3] == (1, 5000, 5000)
    assert clock.moment(2, 4000)[:3] == (2, 4000, 5000)
    assert clock.moment(3, MAX_TIME_MS + 1)[:3] == (3, None, 5000)
    assert clock.moment(4, 5001 + MAX_JUMP_MS)[:3] == (4, 5001 + MAX_JUMP_MS, 5000)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40))
def test_quantiles_are_those_of_the_single_values(values: list[int]) -> None:
    counts = {value: values.count(value) for value in values}
    expected = statistics.quantiles(values, n=20, method="inclusive")
    found = [quantile(counts, share) for share in (0.5, 0.95)]
    assert [round(at or 0, 6) for at in found] == [round(expected[9], 6), round(expected[18], 6)]


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile({}, 0.5) is None


def sums(**counts: Any) -> st.SearchStrategy[DailySums]:
    fields = {name: st.integers(0, 9) for name in DailySums.__struct_fields__}
    durations = st.dictionaries(st.integers(0, 2 * FAILOVER_BOUNDS_MS[-1]), st.integers(1, 3), max_size=6)
    return st.builds(DailySums, **(fields | {"durations": durations} | counts))


@given(sums(), sums())
def test_a_difference_is_what_is_added(before: DailySums, more: DailySums) -> None:
    now = msgspec.structs.replace(before, durations=dict(before.durations))
    add_sums(now, more)
    assert difference_of(now, before) == (more if more != DailySums() else None)


@given(sums(), sums())
def test_a_row_of_a_day_has_its_sums_by_name(cell: DailySums, whole: DailySums) -> None:
    """The cluster's time is that of the whole; every duration is in the bucket that ends at or above it."""
    names = [column.name for column in TABLES["availability"].columns if column.name not in PARTITION_COLUMNS]
    row = dict(zip(names, sums_row("rack", "r", cell, whole), strict=True))
    for name in DailySums.__struct_fields__:
        source = whole if name in ("observed_ms", "unobserved_ms", "off_ms") else cell
        if name.endswith("_ms"):
            assert row.pop(name.replace("_ms", "_seconds")) == getattr(source, name) / 1000
        elif name != "durations":
            assert row.pop(name) == getattr(source, name)
    single = sorted(at for at, n in cell.durations.items() for _ in range(n))
    buckets = np.searchsorted(FAILOVER_BOUNDS_MS, single)
    assert row == {
        "scope": "rack",
        "id": "r",
        "failover_ms_p50": pytest.approx(np.quantile(single, 0.5)) if single else None,
        "failover_ms_p95": pytest.approx(np.quantile(single, 0.95)) if single else None,
        "failover_ms_max": single[-1] if single else None,
        "failover_ms_histogram": np.bincount(buckets, minlength=len(FAILOVER_BOUNDS_MS) + 1).tolist(),
    }
