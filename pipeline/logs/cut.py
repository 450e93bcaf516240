"""Cuts logs into pieces that are read in parallel.

A segment smaller than a piece is one piece and is not opened; the headers of a larger one are read once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from metaquorum.pipeline.logs.clusters import merge_histories, read_facts
from metaquorum.pipeline.logs.merged import MergedHistory
from metaquorum.pipeline.logs.pieces import Piece, Selection
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import LogSurvey, SegmentSurvey, Split, hop, survey
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.storage.archive import FileInArchive
from metaquorum.storage.disk.interface import Disk, join
from metaquorum.storage.errors import FileMissingError
from metaquorum.storage.files.snapshots import list_snapshots, snapshot_path
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.types import LogPosition


def record_pieces(
    places: list[LogPlace],
    selection: Selection,
    *,
    checkpoints: str,
    one_history: bool,
    split_bytes: int,
) -> list[Piece]:
    """Pieces of all logs that may have selected records."""
    pieces: list[Piece] = []
    histories = _histories(places, split_bytes) if one_history else []
    if checkpoints != "only":
        for merged in histories:
            for section in merged.sections:
                pieces += section_pieces(section.log, section.start, section.end)
        for log_place in () if one_history else places:
            pieces += _log_pieces(log_place, selection, split_bytes)
    if checkpoints != "false":
        pieces += _newest_of_histories(histories) if one_history else _checkpoint_pieces(places)
    elif not pieces:
        # Paths that are checkpoints are read without being asked for again.
        pieces += [_checkpoint(place, place.path) for place in places if ".checkpoint" in place.path]
    return pieces


def _log_pieces(location: LogPlace, selection: Selection, split_bytes: int) -> Iterator[Piece]:
    disk = StoreDisk()
    if not disk.is_directory(location.path):
        if location.path.endswith((".log", ".log.deleted")):
            yield from _segment_pieces(location, location.path, disk.file_size(location.path), split_bytes)
        return
    bases = list_segments(disk, location.path)
    timed = selection.from_ms is not None or selection.to_ms is not None
    for at, base in enumerate(bases):
        following = bases[at + 1] if at + 1 < len(bases) else None
        if selection.from_offset is not None and following is not None and following <= selection.from_offset:
            continue
        if selection.to_offset is not None and base > selection.to_offset:
            continue
        if timed and is_outside(times_of(disk, location.path, base, following), selection):
            continue
        file = join(location.path, segment_name(base))
        yield from _segment_pieces(location, file, disk.file_size(file), split_bytes)


def _segment_pieces(location: LogPlace, file: str, size_bytes: int, split_bytes: int) -> Iterator[Piece]:
    """Cuts one segment at batch boundaries. What follows damage belongs to the last piece."""
    position, offset = 0, None
    if size_bytes >= 2 * split_bytes:
        for header in hop(file, None):
            if header.position - position >= split_bytes and size_bytes - header.position >= split_bytes // 2:
                yield _piece(location, file, position, offset, header.position)
                position, offset = header.position, header.base_offset
    yield _piece(location, file, position, offset, None)


def _piece(location: LogPlace, file: str, position: int, offset: int | None, end: int | None) -> Piece:
    return Piece(
        cluster=location.cluster,
        node_id=location.node_id,
        file=file,
        position=position,
        offset=offset,
        end=end,
    )


def _checkpoint(location: LogPlace, file: str) -> Piece:
    return Piece(cluster=location.cluster, node_id=location.node_id, file=file, checkpoint=True)


def _checkpoint_pieces(places: Iterable[LogPlace]) -> list[Piece]:
    """The newest snapshot of each log."""
    disk = StoreDisk()
    pieces: list[Piece] = []
    for log_place in places:
        if not disk.is_directory(log_place.path):
            pieces += [_checkpoint(log_place, log_place.path)] if ".checkpoint" in log_place.path else []
            continue
        snapshots = list_snapshots(disk, log_place.path)
        pieces += [_checkpoint(log_place, snapshot_path(log_place.path, snapshots[-1]))] if snapshots else []
    return pieces


def _newest_of_histories(histories: Iterable[MergedHistory]) -> list[Piece]:
    """The newest snapshot of each cluster."""
    pieces: list[Piece] = []
    for merged in histories:
        known = [(epoch, offset, log.location) for log in merged.logs for offset, epoch in log.snapshots]
        if known:
            epoch, offset, place = max(known, key=lambda at: (at[0], at[1], at[2].path))
            is_file = ".checkpoint" in place.path
            file = place.path if is_file else snapshot_path(place.path, LogPosition(epoch, offset))
            pieces.append(_checkpoint(place, file))
    return pieces


def _histories(places: list[LogPlace], split_bytes: int) -> list[MergedHistory]:
    disk = StoreDisk()
    surveys = [one for place in places for one in survey(disk, place, split_bytes)]
    return merge_histories(surveys, lambda logs: [read_facts(disk, log) for log in logs])


def section_pieces(log: LogSurvey, start: int, end: int) -> list[Piece]:
    """Pieces of a surveyed log with offsets `start` to below `end`."""
    pieces: list[Piece] = []
    for segment in log.segments:
        if segment.end_offset > start and segment.start_offset < end:
            pieces += _surveyed(log, segment, start, end)
        elif segment.readable_bytes < segment.size_bytes and start <= segment.start_offset <= end:
            pieces.append(_piece_of(log, segment, Split(position=0, offset=segment.start_offset)))
    return pieces


def _surveyed(log: LogSurvey, segment: SegmentSurvey, start: int, end: int) -> Iterator[Piece]:
    for at, split in enumerate(segment.splits):
        after = segment.splits[at + 1].offset if at + 1 < len(segment.splits) else segment.end_offset
        if split.offset < end and after > start:
            yield msgspec.structs.replace(
                _piece_of(log, segment, split),
                from_offset=start if start > split.offset else None,
                to_offset=end if end < after else None,
            )


def _piece_of(log: LogSurvey, segment: SegmentSurvey, split: Split) -> Piece:
    origin = segment.origin
    return Piece(
        cluster=log.location.cluster,
        node_id=log.location.node_id if origin is None else origin.node_id,
        file=segment.file if origin is None else origin.file,
        read_from="" if origin is None else segment.file,
        shift=0 if origin is None else origin.position,
        position=split.position,
        offset=split.offset,
        end=split.end,
    )


def damage_places(places: list[LogPlace]) -> list[LogPlace]:
    """The logs and, for each directory of segments, its snapshots, which can be damaged, too."""
    disk = StoreDisk()
    with_snapshots = list(places)
    for log_place in places:
        if disk.is_directory(log_place.path):
            for snapshot in list_snapshots(disk, log_place.path):
                path = snapshot_path(log_place.path, snapshot)
                with_snapshots.append(
                    LogPlace(path=path, cluster=log_place.cluster, node_id=log_place.node_id)
                )
    return with_snapshots


_ENTRY = struct.Struct(">qi")


class SegmentTimes(NamedTuple):
    """No record is earlier than `low` or later than `high` (Unix ms); None: unknown."""

    low: int | None = None
    high: int | None = None


def times_of(disk: Disk, directory: str, base_offset: int, next_base: int | None) -> SegmentTimes:
    """The times of a segment. `next_base`: the base offset of the next one."""
    path = join(directory, segment_name(base_offset))
    file = disk.open_read(path)
    try:
        if isinstance(file, FileInArchive):
            return SegmentTimes(*(file.times() or ()))
    finally:
        file.close()
    if next_base is None:
        return SegmentTimes()
    return SegmentTimes(
        high=_indexed(disk, path.removesuffix(".log") + ".timeindex", next_base - base_offset)
    )


def _indexed(disk: Disk, path: str, offsets: int) -> int | None:
    """The highest timestamp in a time index whose last entry is close to the last of `offsets` offsets. None
    for an index that is missing or ends earlier, since later batches may have higher timestamps."""
    try:
        file = disk.open_read(path)
    except FileMissingError:
        return None
    try:
        entries = file.size() // _ENTRY.size
        last = file.read_at((entries - 1) * _ENTRY.size, _ENTRY.size) if entries else b""
    finally:
        file.close()
    if len(last) < _ENTRY.size:
        return None
    timestamp_ms, relative_offset = _ENTRY.unpack(last)
    return int(timestamp_ms) if timestamp_ms >= 0 and relative_offset == offsets - 1 else None


def is_outside(times: SegmentTimes, selection: Selection) -> bool:
    """Whether no record with such a time is selected."""
    return (selection.from_ms is not None and times.high is not None and times.high < selection.from_ms) or (
        selection.to_ms is not None and times.low is not None and times.low > selection.to_ms
    )
