"""Parts of one cluster's history that are replayed in parallel, and joined.

What a part leaves for the task that joins, and the handling of a seam: if the state at the end of a part
differs from the snapshot with which the next one began, it is reported as damage, and the next part is
replayed again. Runs on any machine.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from metaquorum.metadata.columnar.windows import BatchWindow, windows
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage, differing_parts
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.quorum import quorum_in_snapshot
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.pipeline.ingest.layout import STATE, WrittenFile
from metaquorum.pipeline.ingest.work import PartFile, PartTask, ReplayTask, TaskResult
from metaquorum.pipeline.ingest.writer import ClusterWriter
from metaquorum.pipeline.intervals import ClusterReplay, StateError
from metaquorum.pipeline.intervals.log_parts import (
    Before,
    EpochStart,
    LateReplay,
    ReplayedSection,
    agrees,
    continues,
    spliced,
)
from metaquorum.pipeline.intervals.moments import BatchClock, Row, Silence
from metaquorum.pipeline.intervals.state import decode_state
from metaquorum.pipeline.intervals.tables.partitions import StateRows
from metaquorum.pipeline.intervals.touched import feed_window
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.damage import CORRUPT, SEAM, DamageNotes, DamageRow
from metaquorum.pipeline.logs.merged import HistoryRun
from metaquorum.pipeline.logs.pieces import HistorySpan, Piece, read_piece
from metaquorum.pipeline.logs.survey import LogSurvey, hop, snapshot_file
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.types import LogPosition

_IDLE_BYTES = len(
    encode_batch(base_offset=0, leader_epoch=0, timestamp_ms=0, values=[encode(NoOpRecord(), 0)])
)
"""The size of the batch that an idle quorum writes, which its header shows."""


class LeftPart(msgspec.Struct, kw_only=True):
    """What the replay of a part leaves: the first part its `state`, later ones the `section` that they
    replayed; neither if it cannot be joined. `seam`: how the snapshot at its end differs from the state that
    it reached."""

    state: bytes | None = None
    section: ReplayedSection | None = None
    rows: list[DamageRow] = []
    unknown: bytes = b""
    end_ms: int = 0
    records: int = 0
    used_snapshots: dict[str, int] = {}
    is_resumed: bool = False
    seam: DamageRow | None = None


def keep_part(task: PartTask, left: LeftPart, writer: ClusterWriter) -> TaskResult:
    """Stores what a part leaves for the task that joins it."""
    replay = task.replay
    name = f"{STATE}/{replay.state_target}-{task.number}-{uuid.uuid4().hex[:16]}.part"
    Folder(replay.out).put(name, msgspec.msgpack.encode(left), private=True)
    return TaskResult(cluster=replay.merged.cluster, files=writer.close(), part=name)


def _first_snapshot(span: HistorySpan) -> tuple[str, MetadataImage] | None:
    """The snapshot with which a part begins, as its file and image; None without one that can be read."""
    if span.log is None:
        return None
    position = LogPosition(span.epoch, span.start)
    image = image_of(span.log, position, DamageNotes())
    return None if image is None else (snapshot_file(span.log, position), image)


def seam_damage(engine: ClusterReplay, following: HistorySpan) -> DamageRow | None:
    """How the snapshot with which the next part begins differs from the state at the end of this one."""
    snapshot = _first_snapshot(following)
    if snapshot is None:
        return None
    file, image = snapshot
    differing = differing_parts(engine.image, image, provenance=False)
    if not differing:
        return None
    reason = (
        f"the snapshot differs from the records below offset {following.start} in {', '.join(differing)}; "
        "the tables have what the records say"
    )
    return DamageRow(file, 0, following.start, SEAM, reason)


def run_part(task: PartTask) -> TaskResult:
    """Replays a part that begins at a snapshot."""
    replay, spans = task.replay, task.replay.spans
    span = spans[task.number]
    writer = ClusterWriter(replay.out, replay.merged.cluster, replay.run)
    run = next(iter(replay.merged.runs()))
    before = _before(replay, run, span)
    if before is None:
        return keep_part(task, LeftPart(), writer)
    section, notes, left = LateReplay(replay.merged.cluster, before), DamageNotes(), LeftPart()

    def passed(records: int, end_ms: int) -> None:
        left.records += records
        left.end_ms = max(left.end_ms, end_ms)

    items = _items(run, span.start, span.end)
    if task.number + 1 == len(spans):
        items = itertools.takewhile(
            lambda item: isinstance(item, Damage) or item.header.next_offset <= span.end, items
        )
    _feed(section, items, notes, passed, lambda: write_rows(writer, section.take().items(), final=True))
    write_rows(writer, section.take().items(), final=True)
    left.rows, left.unknown = notes.cut_off()
    try:
        left.section = section.section()
    except StateError:
        return keep_part(task, left, writer)
    if task.number + 1 < len(spans):
        left.seam = seam_damage(section.engine, spans[task.number + 1])
    return keep_part(task, left, writer)


def _feed(
    replay: ClusterReplay | LateReplay,
    items: Iterable[RecordBatch | Damage],
    notes: DamageNotes,
    passed: Callable[[int, int], None],
    flush: Callable[[], None],
) -> None:
    """Feeds a replay. `passed` gets the number of replayed records and their time. `flush` is called
    when there are many rows."""
    engine = replay.engine if isinstance(replay, LateReplay) else replay
    gathered = 0

    def count(records: int, time_ms: int) -> None:
        nonlocal gathered
        passed(records, time_ms)
        gathered += records
        if gathered >= FLUSH_ROWS:
            gathered = 0
            flush()

    def single(batch: RecordBatch) -> None:
        records = notes.batch(batch)
        if records is not None and batch.header.next_offset > engine.end_offset:
            replay.batch(batch, records)
            count(len(records), batch.header.max_timestamp_ms)

    def together(window: BatchWindow) -> int:
        taken = replay.window(window)
        if taken > 0:
            notes.whole()
            count(*window.part(0, taken).extent)
        return taken

    for item in windows(items):
        if isinstance(item, Damage):
            notes.damage(item)
        elif isinstance(item, BatchWindow):
            feed_window(item, together, single)
        else:
            single(item)


def _items(run: HistoryRun, start: int, end: int) -> Iterable[RecordBatch | Damage]:
    for piece in pieces_of(run, start):
        for item in read_piece(StoreDisk(), piece):
            if isinstance(item, RecordBatch) and item.header.base_offset >= end:
                return
            yield item


def _before(task: ReplayTask, run: HistoryRun, span: HistorySpan) -> Before | None:
    """What is known where a part begins; None if its snapshot cannot be read."""
    snapshot = _first_snapshot(span)
    if snapshot is None:
        return None
    file, image = snapshot
    return Before(
        image=image,
        quorum=quorum_in_snapshot(MetadataLog(StoreDisk(), file)),
        election=None if span.elected is None else _election(run, span.elected),
        silence=_silence(task, run, span.start, image.provenance.timestamp_ms),
    )


def _election(run: HistoryRun, offset: int) -> EpochStart | None:
    """The control batch at an offset."""
    for piece in pieces_of(run, offset):
        for header in hop(piece.path, None, piece.position):
            if header.base_offset == offset:
                here = msgspec.structs.replace(piece, position=header.position, offset=offset)
                item = next(iter(read_piece(StoreDisk(), here)), None)
                if isinstance(item, RecordBatch) and item.header.is_control:
                    return EpochStart(item.header.leader_epoch, decode_batch(item, tolerant=True))
            if header.base_offset >= offset:
                return None
    return None


def _silence(task: ReplayTask, run: HistoryRun, end: int, now_ms: int) -> object:
    """How long an idle quorum waits, according to the headers of the first batches. The task that joins
    examines it more closely."""
    silence, clock, start = Silence(), BatchClock(), run.start
    if task.state_file is not None:
        try:
            silence.load(decode_state(Folder(task.out).get(task.state_file)).trackers["silence"])
            start = task.resume_offset
        except (StateError, StorageError, LookupError, TypeError):
            silence = Silence()
    for piece in pieces_of(run, start):
        for header in hop(piece.path, None, piece.position):
            if silence.is_sure or header.base_offset >= end:
                return silence.at(now_ms)
            moment = clock.moment(header.base_offset, header.max_ms)
            silence.ends(moment.now_ms, idle=header.size_bytes == _IDLE_BYTES)
            if piece.end is not None and header.position >= piece.end:
                break
    return silence.at(now_ms)


class PartJoin:
    """Joins the parts of a cluster in order. `engine`: the replay at the end of the last joined part."""

    def __init__(self, task: ReplayTask, writer: ClusterWriter, first: LeftPart, state: bytes) -> None:
        """Raises StateError for a state that cannot be used."""
        self._task, self._writer = task, writer
        self._run = next(iter(task.merged.runs()))
        self.engine = ClusterReplay(task.merged.cluster, log_end=task.merged.end_offset, saved=state)
        self.engine.is_resumed = first.is_resumed
        self.notes = DamageNotes()
        self.notes.continue_from(first.rows, first.unknown)
        self.end_ms, self.records = first.end_ms, first.records
        self.used_snapshots = first.used_snapshots
        self.node_of = {piece.file: piece.node_id for piece in pieces_of(self._run, self._run.start)}
        self.files: list[WrittenFile] = list(task.parts[0].files)
        self._seam = first.seam

    @classmethod
    def of(cls, task: ReplayTask, writer: ClusterWriter) -> PartJoin | None:
        """The joined parts of a task; None if it has none, or the first cannot be used."""
        if not task.parts:
            return None
        folder = Folder(task.out)
        first = _left(folder, task.parts[0])
        try:
            made = cls(task, writer, first, first.state or b"")
        except StateError:
            return None
        for number in range(1, len(task.parts)):
            if made._join(_left(folder, task.parts[number]), task.spans[number], task.spans[number + 1 :]):
                made.files += task.parts[number].files
        return made

    def _join(self, left: LeftPart, span: HistorySpan, later: list[HistorySpan]) -> bool:
        """Joins a part. False if it had to be replayed again."""
        section, seam, self._seam = left.section, self._seam, left.seam
        if seam is not None:
            self.notes.add(seam.kind, seam.file, seam.position, seam.offset, seam.reason)
            self.node_of[seam.file] = span.log.location.node_id if span.log is not None else None
        if section is None or section.start != self.engine.end_offset:
            self._feed(span.end, noting=True)
            self._look(later)
            return False
        self.notes.continue_from(left.rows, left.unknown)
        self.end_ms, self.records = max(self.end_ms, left.end_ms), self.records + left.records
        if seam is None and self._splice(section):
            return True
        self._feed(section.end, noting=False)
        if seam is not None:
            self._look(later)
        return False

    def _look(self, later: list[HistorySpan]) -> None:
        """Examines a seam again: the earlier result was about another state than the one that is reached."""
        self._seam = seam_damage(self.engine, later[0]) if later else None

    def _splice(self, section: ReplayedSection) -> bool:
        if not continues(self.engine, section):
            return False
        for number, post in enumerate(section.posts):
            self._feed(post.offset, noting=False)
            if not agrees(self.engine, post):
                continue
            self._flush()
            merged = self._task.merged
            try:
                self.engine, rows = spliced(self.engine, section, number, merged.cluster, merged.end_offset)
            except StateError:
                return False
            write_rows(self._writer, rows, final=True)
            return True
        return False

    def _feed(self, end: int, *, noting: bool) -> None:
        """Replays the records up to an offset. `noting`: their damage is not known yet."""
        notes, engine = self.notes if noting else DamageNotes(), self.engine
        items = _items(self._run, engine.end_offset, end)
        _feed(engine, items, notes, lambda records, time_ms: None, self._flush)

    def _flush(self) -> None:
        write_rows(self._writer, self.engine.final_rows().items(), final=True)


def _left(folder: Folder, part: PartFile) -> LeftPart:
    return msgspec.msgpack.decode(folder.get(part.name), type=LeftPart)


FLUSH_ROWS = 20_000
"""Rows of a table to gather before they are written."""


def pieces_of(run: HistoryRun, start: int) -> Iterator[Piece]:
    """The pieces of a run from offset `start` on."""
    for section in run.sections:
        if section.end > start:
            yield from section_pieces(section.log, max(section.start, start), section.end)


def image_of(log: LogSurvey, position: LogPosition, notes: DamageNotes) -> MetadataImage | None:
    """The image of a snapshot; None, with a note, if it is incomplete."""
    path = snapshot_file(log, position)
    try:
        batches = [item for item in MetadataLog(StoreDisk(), path).batches() if isinstance(item, RecordBatch)]
        return load_snapshot(batches, position=position, on_error=lambda error: None)
    except (RecordDecodeError, ReplayError, StorageError, OSError) as error:
        notes.add(CORRUPT, path, 0, position.offset, str(error))
        return None


def write_rows(writer: ClusterWriter, rows: Iterable[tuple[str, Sequence[Row]]], *, final: bool) -> None:
    """Writes rows by table."""
    for table, some in rows:
        if isinstance(some, StateRows):
            writer.states(table, some, final=final)
            continue
        for low in range(0, len(some), FLUSH_ROWS):
            writer.rows(table, some[low : low + FLUSH_ROWS], final=final)
