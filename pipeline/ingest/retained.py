"""Copies of log records that runs keep beside their tables, for when Kafka has deleted them.

Rows before the resume point are final. Those after it are written again by the next run, from the same
bytes; all are when logs arrive that fill a hole. So every record is kept: a run copies what is new, or makes
one copy of everything. The copy of these bytes: a log for each run of the history, with the snapshots that
gave a state, the origin of each, and the facts that identify the cluster.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from metaquorum.pipeline.ingest.layout import STATE, ClusterEntry
from metaquorum.pipeline.logs.clusters import Facts
from metaquorum.pipeline.logs.cut import section_pieces
from metaquorum.pipeline.logs.merged import HistoryRun, MergedHistory
from metaquorum.pipeline.logs.pieces import Piece, read_piece
from metaquorum.pipeline.logs.places import FACTS_FILE, ORIGINS_FILE, LogPlace
from metaquorum.pipeline.logs.survey import Origin, SegmentSurvey, snapshot_file
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.stores.remote import in_one_line
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, name_of
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition

COPY_BYTES = 1 << 20


def retain(
    merged: MergedHistory,
    low: int,
    learned: Container[int],
    facts: Facts,
    folder: Folder,
    target: str,
) -> None:
    """Copies the bytes from the batch before offset `low` on, and the snapshots that end at the offsets
    `learned` and not before it, to `target` in a folder."""
    for number, run in enumerate(merged.runs()):
        if run.end < low:
            continue
        name = f"{target}/{number}"
        origins = _copy_run(run, max(run.start, low - 1), folder, name)
        for log, end, epoch in run.snapshots:
            if end in learned and end >= low:
                file = snapshot_file(log, LogPosition(epoch, end))
                _copy(file, 0, None, folder, f"{name}/{name_of(file)}")
        folder.put(f"{name}/{ORIGINS_FILE}", msgspec.json.encode(origins))
        folder.put(f"{name}/{FACTS_FILE}", msgspec.msgpack.encode(facts))


def _copy_run(run: HistoryRun, low: int, folder: Folder, target: str) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for section in run.sections:
        if section.end <= low or section.start >= section.end:
            continue
        segments = {segment.file: segment for segment in section.log.segments}
        last = section.log.segments[-1].file
        by_file: dict[str, list[Piece]] = {}
        for piece in section_pieces(section.log, max(section.start, low), section.end):
            by_file.setdefault(piece.path, []).append(piece)
        for path, pieces in by_file.items():
            found = _surveyed(pieces, segments[path]) or _whole_batches(pieces)
            if found is None:
                continue
            base, start, end = found
            # After the last batch of a segment that others follow there is damage, which is kept, too.
            is_cut = pieces[-1].to_offset is not None or pieces[-1].file == last
            name = segment_name(base)
            _copy(path, start, end if is_cut else None, folder, f"{target}/{name}")
            origins[name] = Origin(pieces[0].file, pieces[0].node_id, start + pieces[0].shift)
    return origins


def _surveyed(pieces: list[Piece], segment: SegmentSurvey) -> tuple[int, int, int] | None:
    """What `_whole_batches` finds, without reading: of a whole segment without damage. None for others."""
    first, last = pieces[0], pieces[-1]
    is_whole = (first.position, first.from_offset, last.to_offset, last.end) == (0, None, None, None)
    is_sound = 0 < segment.size_bytes == segment.readable_bytes
    return (segment.start_offset, 0, segment.size_bytes) if is_whole and is_sound else None


def _whole_batches(pieces: list[Piece]) -> tuple[int, int, int] | None:
    """Base offset and byte of the first batch, and the byte after the last one, in the source file."""
    bounds: tuple[int, int, int] | None = None
    for piece in pieces:
        for item in read_piece(StoreDisk(), piece):
            if isinstance(item, RecordBatch):
                at = item.position - piece.shift
                base, start = bounds[:2] if bounds is not None else (item.header.base_offset, at)
                bounds = (base, start, at + len(item.data))
    return bounds


def _copy(source: str, start: int, end: int | None, folder: Folder, target: str) -> None:
    """Copies bytes `start` to `end` (None: its end) of a file in pieces."""
    file = StoreDisk().open_read(source)
    try:
        with folder.sink(target) as into, in_one_line("write", folder.place(target)):
            at, end = start, file.size() if end is None else end
            while data := file.read_at(at, min(end - at, COPY_BYTES)):
                into.write(data)
                at += len(data)
    finally:
        file.close()


def retained_places(
    folder: Folder, clusters: dict[str, ClusterEntry], shared_ids: Iterable[str]
) -> Iterator[LogPlace]:
    """What earlier runs kept of the clusters with these ids."""
    wanted = set(shared_ids)
    disk = StoreDisk()
    for name, entry in sorted(clusters.items()):
        if entry.retained is None or entry.shared_id not in wanted:
            continue
        for stored in (*(entry.stored or ()), entry.retained):
            kept = folder.place(f"{STATE}/{stored}")
            numbers = disk.list_directory(kept) if disk.exists(kept) else []
            for number in sorted(numbers, key=int):
                yield LogPlace(
                    path=join(kept, number),
                    cluster=entry.shared_id,
                    node_id=None,
                    is_retained=True,
                    name_in_tables=name,
                    read=tuple(sorted(entry.logs)),
                )
