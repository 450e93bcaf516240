"""What a task does, on whatever machine: survey a log, replay a cluster, read records.

Input and output are values and files; nothing else is shared with the driver.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from metadata.errors import RecordDecodeError, ReplayError
from metadata.image import MetadataImage
from metadata.inspect.log import MetadataLog
from metadata.snapshot import load_snapshot
from pipeline.arrow.schemas import record_batches
from pipeline.arrow.selection import Selection
from pipeline.intervals import ClusterReplay, StateError
from pipeline.intervals.moments import DAY_MS, Row
from pipeline.logs.cut import stretch_pieces
from pipeline.logs.damage import DamageNotes, DamageRow, log_damage
from pipeline.logs.pieces import Piece, read_piece
from pipeline.logs.places import LogPlace
from pipeline.logs.spine import Spine
from pipeline.logs.survey import LogSurvey, survey
from storage.batch import RecordBatch
from storage.errors import StorageError
from storage.posix_disk import PosixDisk
from storage.reader import Damage
from storage.types import LogPosition

from .layout import WrittenFile
from .writer import ClusterWriter, day_of

FLUSH_ROWS = 20_000
"""So many rows of a table are gathered before they are written."""
_GC_THRESHOLD = 200_000
"""Replay makes many objects and no cycles: looking for those more often costs a fifth of the time."""


class SurveyTask(msgspec.Struct, tag="survey", kw_only=True):
    """Look at the batch headers of one log."""

    place: LogPlace
    split_bytes: int


class ReplayTask(msgspec.Struct, tag="replay", kw_only=True):
    """Replay one cluster from `resume_offset` (0: its beginning) on, with the bytes of `state_file`."""

    spine: Spine
    resume_offset: int
    state_file: str | None
    staging: str
    state_target: str


class RecordsTask(msgspec.Struct, tag="records", kw_only=True):
    """Write the records of one piece. Those below `final_below` are final."""

    piece: Piece
    final_below: int
    staging: str


Task = SurveyTask | ReplayTask | RecordsTask


class TaskResult(msgspec.Struct, kw_only=True):
    """What a task reports to the driver."""

    cluster: str
    files: list[WrittenFile] = []
    survey: LogSurvey | None = None
    problem: str | None = None
    records: int = 0
    resume_offset: int = 0
    resume_epoch: int = -1
    has_state: bool = False
    anew: bool = False
    """A replay that was to go on from a state began at the beginning: the state could not be used."""


def run_task(task: Task) -> TaskResult:
    """Runs one task; what is wrong with its input is in the result."""
    gc.set_threshold(_GC_THRESHOLD)
    match task:
        case SurveyTask():
            return _survey(task)
        case ReplayTask():
            return _replay(task)
        case RecordsTask():
            return _records(task)
        case _:
            assert_never(task)


def _survey(task: SurveyTask) -> TaskResult:
    try:
        found = survey(PosixDisk(), task.place, task.split_bytes)
    except (StorageError, OSError, ValueError) as error:
        return TaskResult(cluster=task.place.cluster, problem=str(error))
    return TaskResult(cluster=task.place.cluster, survey=found, records=found.records)


def _records(task: RecordsTask) -> TaskResult:
    piece = task.piece
    writer = ClusterWriter(task.staging, piece.cluster)
    written = 0
    for batch in record_batches("all", piece, Selection()):
        for day, is_final, part in _by_day(batch, task.final_below):
            writer.arrow("records", day, part, final=is_final)
            written += part.num_rows
    return TaskResult(cluster=piece.cluster, files=writer.close(), records=written)


def _by_day(batch: pa.RecordBatch, final_below: int) -> Iterator[tuple[int, bool, pa.RecordBatch]]:
    """The batch without its cluster column, cut where the day or what is final changes."""
    batch = batch.drop_columns(["cluster"])
    times = batch.column("timestamp").cast(pa.int64())
    days = pc.fill_null(times, 0).to_numpy(zero_copy_only=False) // (DAY_MS * 1000)
    final = batch.column("offset").to_numpy(zero_copy_only=False) < final_below
    edges = np.flatnonzero((days[1:] != days[:-1]) | (final[1:] != final[:-1])) + 1
    places = [0, *edges.tolist(), batch.num_rows]
    for low, high in itertools.pairwise(places):
        yield int(days[low]), bool(final[low]), batch.slice(low, high - low)


class _Log:
    """The batches of a spine from an offset on, with damage noted on the way."""

    def __init__(self, spine: Spine, start: int) -> None:
        self.notes = DamageNotes()
        self._spine = spine
        self._start = start
        self._expected: int | None = start or None
        self.node_of: dict[str, int | None] = {}

    def pieces(self) -> Iterator[Piece]:
        for stretch in self._spine.stretches:
            if stretch.end > self._start:
                yield from stretch_pieces(stretch.log, max(stretch.start, self._start), stretch.end)

    def items(self) -> Iterator[RecordBatch | Damage]:
        for piece in self.pieces():
            self.node_of[piece.file] = piece.node_id
            for item in read_piece(PosixDisk(), piece):
                if isinstance(item, RecordBatch):
                    self._note_gap(item)
                    self._expected = item.header.next_offset
                else:
                    self._expected = None
                yield item

    def _note_gap(self, batch: RecordBatch) -> None:
        """A batch that does not follow: pieces are read by themselves and do not see it."""
        found = batch.header.base_offset
        if self._expected is not None and found > self._expected:
            reason = f"expected offset {self._expected}, found {found}: what is between is in no log"
            self.notes.add("corrupt", batch.file, batch.position, self._expected, reason)


def _replay(task: ReplayTask) -> TaskResult:
    spine = task.spine
    engine, start, notes = _engine(task)
    log = _Log(spine, start)
    log.notes = notes
    writer = ClusterWriter(task.staging, spine.cluster)
    damage: list[tuple[DamageRow, bool]] = []
    gathered = records = 0
    end_ms = 0
    for item in log.items():
        if isinstance(item, Damage):
            notes.damage(item)
            continue
        decoded = notes.batch(item)
        if decoded is None or item.header.next_offset <= engine.end_offset:
            continue
        engine.batch(item, decoded)
        records += len(decoded)
        gathered += len(decoded)
        end_ms = max(end_ms, item.header.max_timestamp_ms)
        if gathered >= FLUSH_ROWS:
            gathered = 0
            damage += [(row, engine.saved_state is None) for row in notes.take()]
            _write(writer, engine.final_rows(), True)
    damage += [(row, False) for row in notes.take(at_end=True)]
    _finish(writer, engine)
    damage += [(row, False) for row in _other_damage(spine)]
    _write_damage(writer, spine, log.node_of, damage, day_of(end_ms))
    _write_files(writer, spine)
    files = writer.close()
    return _result(task, engine, files, records)


def _finish(writer: ClusterWriter, engine: ClusterReplay) -> None:
    _write(writer, engine.final_rows(), True)
    _write(writer, engine.provisional_rows(), False)
    by_day: dict[int, list[Row]] = {}
    for day_ms, row in engine.availability_rows():
        by_day.setdefault(day_ms // DAY_MS, []).append(row)
    for day, rows in by_day.items():
        writer.rows("availability", rows, final=False, day=day)


def _result(task: ReplayTask, engine: ClusterReplay, files: list[WrittenFile], records: int) -> TaskResult:
    result = TaskResult(cluster=task.spine.cluster, files=files, records=records)
    result.anew = task.state_file is not None and not engine.is_resumed
    if engine.saved_state is not None:
        target = Path(task.staging) / "_state" / task.state_target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(engine.saved_state)
        result.has_state = True
        result.resume_offset, result.resume_epoch = engine.resume_point
    else:
        result.files = [msgspec.structs.replace(file, final=False) for file in files]
    return result


def _engine(task: ReplayTask) -> tuple[ClusterReplay, int, DamageNotes]:
    """The replay, where it begins, and a first note of what is wrong with that."""
    spine, notes = task.spine, DamageNotes()
    if task.state_file is not None:
        try:
            saved = Path(task.state_file).read_bytes()
            engine = ClusterReplay(spine.cluster, log_end=spine.end_offset, saved=saved)
            return engine, engine.end_offset, notes
        except (StateError, OSError):
            pass  # the result says so: what was made with the state is dropped
    start = spine.start_offset
    for log, position in _snapshots(spine):
        image = _image(log, position, notes)
        if image is not None:
            engine = ClusterReplay(spine.cluster, log_end=spine.end_offset, snapshot=image)
            return engine, position.offset, notes
    if start > 0:
        reason = f"the log begins at offset {start} and no snapshot leads there: what was before is unknown"
        notes.add("corrupt", spine.stretches[0].log.place.path, 0, 0, reason)
    return ClusterReplay(spine.cluster, log_end=spine.end_offset), start, notes


def _snapshots(spine: Spine) -> Iterator[tuple[LogSurvey, LogPosition]]:
    """Snapshots from which a log that does not begin at 0 can be replayed, oldest first."""
    start = spine.start_offset
    if start == 0 and spine.end_offset > 0:
        return
    found = [
        (offset, epoch, log)
        for log in spine.logs
        for offset, epoch in log.snapshots
        if start <= offset <= max(spine.end_offset, start)
    ]
    for offset, epoch, log in sorted(found, key=lambda at: (at[0], at[1], at[2].place.path)):
        yield log, LogPosition(epoch, offset)


def _image(log: LogSurvey, position: LogPosition, notes: DamageNotes) -> MetadataImage | None:
    """The image of a snapshot; None, and a note, if it is not whole."""
    snapshot = MetadataLog(PosixDisk(), log.place.path).snapshot(position)
    try:
        batches = [item for item in snapshot.batches() if isinstance(item, RecordBatch)]
        return load_snapshot(batches, position=position, on_error=lambda error: None)
    except (RecordDecodeError, ReplayError, StorageError, OSError) as error:
        notes.add("corrupt", snapshot.path, 0, position.offset, str(error))
        return None


def _write(writer: ClusterWriter, rows: dict[str, list[Row]], final: bool) -> None:
    for table, some in rows.items():
        for low in range(0, len(some), FLUSH_ROWS):
            writer.rows(table, some[low : low + FLUSH_ROWS], final=final)


def _other_damage(spine: Spine) -> Iterator[DamageRow]:
    """What is wrong with logs that are not read, as far as their headers tell, and how logs differ."""
    used = {stretch.log.place.path for stretch in spine.stretches}
    for log in spine.logs:
        if log.place.path not in used and any(at.readable_bytes != at.size_bytes for at in log.segments):
            yield from log_damage(PosixDisk(), log.place)
    for conflict in spine.conflicts:
        file = conflict.log.place.path
        yield DamageRow(file, 0, conflict.offset, conflict.kind, conflict.reason)


def _write_damage(
    writer: ClusterWriter,
    spine: Spine,
    node_of: dict[str, int | None],
    damage: list[tuple[DamageRow, bool]],
    day: int,
) -> None:
    nodes = {log.place.path: log.place.node_id for log in spine.logs}
    for log in spine.logs:
        nodes |= {segment.file: log.place.node_id for segment in log.segments}
    nodes |= node_of
    for final in (True, False):
        lines = [
            (nodes.get(row.file), row.file, row.position, row.offset, row.kind, row.reason)
            for row, is_final in damage
            if is_final == final
        ]
        writer.rows("damage", lines, final=final, day=day)


def _write_files(writer: ClusterWriter, spine: Spine) -> None:
    used: dict[str, tuple[int, int]] = {}
    for stretch in spine.stretches:
        used[stretch.log.place.path] = (stretch.start, stretch.end)
    for log in spine.logs:
        low, high = used.get(log.place.path, (0, 0))
        for at in log.segments:
            is_used = at.start_offset < high and at.end_offset > low
            line = (log.place.node_id, at.file, at.size_bytes, at.start_offset, at.end_offset, is_used)
            writer.rows("files", [line], final=False, day=day_of(at.last_ms))
