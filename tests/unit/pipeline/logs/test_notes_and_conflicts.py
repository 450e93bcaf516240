"""Damage is noted the same wherever a reader hands over to the next, and two logs of one history agree."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.records import types as r
from metaquorum.pipeline.logs.damage import DamageNotes, DamageRow, log_damage, parse_dialect
from metaquorum.pipeline.logs.merged import Conflict, _difference
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.reader import Damage
from tests.unit.pipeline.intervals.telling import batches, leads

# ---- notes


def foreign(kinds: list[int | None]) -> list[RecordBatch | Damage]:
    """A log with a batch for each number, which no release knows, and with damage for each None."""
    found: list[RecordBatch | Damage] = []
    for at, kind in enumerate(kinds):
        if kind is None:
            found.append(Damage(file="f", position=1000 + at, offset=10 * at, reason="hurt"))
            continue
        values = [bytes([1, 0x70 + kind, version, 0]) for version in (0, 0, kind)]
        data = encode_batch(base_offset=10 * at, leader_epoch=1, timestamp_ms=1, values=values)
        found += iter_batches(data, file=f"segment {at}")
    return found


def read(notes: DamageNotes, items: list[RecordBatch | Damage]) -> None:
    for item in items:
        if isinstance(item, Damage):
            notes.damage(item)
        else:
            notes.batch(item)


@given(st.lists(st.none() | st.integers(0, 3), max_size=8), st.integers(0, 8))
def test_readers_that_hand_over_note_what_one_reader_notes(kinds: list[int | None], cut: int) -> None:
    """But for damage at the place where they meet: the later one cannot be the torn end of the log."""
    items = foreign(kinds)
    alone, first, later, resumed = DamageNotes(), DamageNotes(), DamageNotes(), DamageNotes()
    read(alone, items)
    told = last(alone)
    read(first, items[:cut])
    read(later, items[cut:])
    earlier, saved = first.cut_off()
    first.continue_from(*later.cut_off())
    assert [*earlier, *last(first)] == [
        msgspec.structs.replace(row, kind=row.kind.replace("tail", "corrupt")) for row in told
    ]
    resumed.load(saved)
    read(resumed, items[cut:])
    assert [row for row in last(resumed) if row.kind == "unknown"] == [
        row for row in told if row.kind == "unknown"
    ]


def last(notes: DamageNotes) -> list[DamageRow]:
    return notes.take(at_end=True)


def test_an_unreadable_log_is_one_row(tmp_path: Path) -> None:
    gone = LogPlace(path=str(tmp_path / "gone"), cluster="c", node_id=1)
    (row,) = log_damage(PosixDisk(), gone)
    assert (row.kind, row.file, row.position, row.offset) == ("unreadable", gone.path, 0, 0)
    assert gone.path in row.reason


def test_records_that_kraft_never_frames_so_are_of_another_dialect() -> None:
    """A type or version that a release has not is told for each record, and what came before it is not."""
    lines = [(0, [leads(3000)]), (1, [r.NoOpRecord(), r.NoOpRecord()])]
    notes = DamageNotes(parse_dialect("3.0"))
    for batch in batches(lines):
        notes.batch(batch)
    rows = last(notes)
    assert [(row.kind, row.offset) for row in rows] == [("dialect", 1), ("dialect", 2)]
    assert {row.reason for row in rows} == {"metadata.version 3.0-IV1 has no NoOpRecord"}


# ---- two logs of one cluster

Pairs = list[tuple[int, int]]


def surveyed(path: str, start: int, epochs: Pairs, crcs: list[int]) -> LogSurvey:
    """A log with a batch at each offset, whose marks are at even offsets and whose windows are of four."""
    end = start + len(crcs)
    of = dict(zip(range(start, end), crcs, strict=True))
    windows = sorted({at // 4 for at in of})
    sums = {}
    for window in windows:
        inside = [at for at in of if at // 4 == window]
        sums[window] = (inside[0], inside[-1] + 1, sum(of[at] << 3 * (at % 4) for at in inside))
    return LogSurvey(
        location=LogPlace(path=path, cluster="c", node_id=1),
        start_offset=start,
        end_offset=end,
        epochs=epochs,
        segments=[],
        sums=sums,
        snapshots=[],
        records=len(crcs),
        marks={at: (0, crc) for at, crc in of.items() if at % 2 == 0},
    )


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[LogSurvey, LogSurvey]:
    """Logs that mostly agree: each with at most one batch of its own, and with one change of the epoch."""
    found = []
    for path in ("one", "two"):
        start, count = draw(st.integers(0, 6)), draw(st.integers(1, 12))
        crcs = [0] * count
        crcs[draw(st.integers(0, count - 1))] = draw(st.integers(0, 1))
        epochs = [(1, start)]
        if draw(st.booleans()):
            turn = draw(st.integers(start, start + count))
            epochs = [(1, start), (2, turn)] if turn > start else [(2, start)]
        found.append(surveyed(path, start, epochs, crcs))
    return found[0], found[1]


@given(two_logs())
def test_logs_differ_where_they_have_other_epochs_or_other_bytes(logs: tuple[LogSurvey, LogSurvey]) -> None:
    """Against a comparison offset by offset. Bytes are compared only where both logs have summed them."""
    best, log = logs
    shared = range(max(best.start_offset, log.start_offset), max(0, min(best.end_offset, log.end_offset)))
    epoch = next((at for at in shared if best.epoch_at(at) != log.epoch_at(at)), None)
    mark = next((at for at in shared if at in best.marks and best.marks[at] != log.marks[at]), None)
    window = next(
        (
            best.sums[at][0]
            for at in sorted({*best.sums} & {*log.sums})
            if best.sums[at][:2] == log.sums[at][:2] and best.sums[at] != log.sums[at]
        ),
        None,
    )
    expected = None
    if shared:
        expected = next(
            (
                (kind, at)
                for kind, at in (("superseded", epoch), ("mismatch", mark), ("mismatch", window))
                if at is not None
            ),
            None,
        )
    assert told(_difference(best, log)) == expected == told(_difference(log, best))


def told(conflict: Conflict | None) -> tuple[str, int] | None:
    return None if conflict is None else (conflict.kind, conflict.offset)
