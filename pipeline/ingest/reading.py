"""Input and output of a replay: the pieces of a run, snapshots, rows.

Owns how each is read or written. Does not replay or decide the order; `replay` and `parts` share this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.pipeline.ingest.writer import ClusterWriter
from metaquorum.pipeline.intervals.moments import Row
from metaquorum.pipeline.intervals.states.ended import StateRows
from metaquorum.pipeline.logs.cut import stretch_pieces
from metaquorum.pipeline.logs.damage import CORRUPT, DamageNotes
from metaquorum.pipeline.logs.pieces import Piece
from metaquorum.pipeline.logs.spine import SpineRun
from metaquorum.pipeline.logs.survey import LogSurvey
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.types import LogPosition

FLUSH_ROWS = 20_000
"""Rows of a table to gather before they are written."""


def pieces_of(run: SpineRun, start: int) -> Iterator[Piece]:
    """The pieces of a run from offset `start` on."""
    for stretch in run.stretches:
        if stretch.end > start:
            yield from stretch_pieces(stretch.log, max(stretch.start, start), stretch.end)


def snapshot_file(log: LogSurvey, position: LogPosition) -> str:
    """The file of a log's snapshot."""
    source = MetadataLog(StoreDisk(), log.place.path)
    return source.path if source.is_checkpoint else snapshot_path(source.directory, position)


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
