"""Opening a log in whatever state it is: examine first, then repair.

Damage other than a torn tail raises before a byte is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from metaquorum.storage.batches.format import Hop
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.errors import CorruptFileError, CorruptLogError, FileMissingError
from metaquorum.storage.files.snapshots import list_snapshots
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS_FILE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.recovery import FILE_NAME as POINT_FILE
from metaquorum.storage.log.recovery import RecoveryPoint, find_valid_batch, scan_file
from metaquorum.storage.log.segment import Segment, segment_name
from metaquorum.storage.types import LogPosition

_ADVICE = (
    "do not replace it with an older copy; see 'Damaged or lost' in docs/operations.md; no byte was changed"
)
_MOVED_ADVICE = (
    "do not replace it with an older copy; see 'Damaged or lost' in docs/operations.md; if another program"
    f" changed the log on purpose, remove {POINT_FILE} to have the whole log verified; no byte was changed"
)


class TornTail(NamedTuple):
    """Bytes from `position` of `segment` on are not whole batches, and nothing valid follows them."""

    segment: Segment
    position: int
    problem: str

    @property
    def place(self) -> tuple[int, int]:
        return self.segment.base_offset, self.position

    @property
    def is_end(self) -> bool:
        """Whether nothing follows in its segment."""
        return self.position == self.segment.size


@dataclass(slots=True, kw_only=True)
class Examined:
    """What a log's directory holds. `segments` are open files, which the caller closes if it stops here."""

    segments: list[Segment] = field(default_factory=list)
    epochs: EpochTable = field(default_factory=EpochTable)
    stored_epochs: EpochTable | None = None
    start_epoch: int = 0
    end_offset: int = 0
    # The first segment that may hold bytes that were never synced.
    unsynced_from: int = 0
    torn: TornTail | None = None
    leftovers: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # What the scan relied on; None if the whole log was verified because the stored one no longer fits it.
    point: RecoveryPoint | None = None

    def close(self) -> None:
        """Closes every segment."""
        for segment in self.segments:
            segment.close()


def examine(
    disk: Disk,
    directory: str,
    point: RecoveryPoint | None,
    bases: list[int],
    open_segment: Callable[[int], Segment],
    *,
    gaps: bool = False,
) -> Examined:
    """Verifies everything above the recovery point (or the whole log without one) and changes nothing.
    `bases` are the base offsets of the existing segments, rising. With `gaps`, offsets may be missing, as a
    cleaner leaves a compacted log; the bytes still have to be intact.

    A point that does not fit the log was left behind by another program that wrote it since: the whole log is
    verified, and `Examined.point` is None. An epoch table that cannot be read, or that does not reach back to
    the log's start, is rebuilt from the whole log. Raises CorruptLogError for damage below the point, or
    before a later valid batch, and DiskError.
    """
    if point is None:
        return _examine(disk, directory, None, bases, open_segment, gaps=gaps, bound=None)
    foreign, bound = _written_by_another(disk, directory, point, bases)
    if foreign is None:
        examined = _examine_pointed(disk, directory, point, bases, open_segment, gaps)
    else:
        examined = _examine(disk, directory, None, bases, open_segment, gaps=gaps, bound=bound)
    if examined.point is None:
        how = foreign or f"no batch begins at byte {point.position} of {segment_name(point.segment)}"
        examined.notes.append(
            f"{directory}: another program has written this log since {POINT_FILE} was stored ({how}); the "
            "whole log was verified"
        )
    return examined


def _examine_pointed(
    disk: Disk,
    directory: str,
    point: RecoveryPoint,
    bases: list[int],
    open_segment: Callable[[int], Segment],
    gaps: bool,
) -> Examined:
    """Verifies what is above the point. If no batch begins at the point, but the batches from the log's start
    on lead past it, another program has written them."""
    point_place = (point.segment, point.position)
    try:
        examined = _examine(disk, directory, point, bases, open_segment, gaps=gaps, bound=point)
        if examined.torn is None or examined.torn.place != point_place or examined.torn.is_end:
            return examined
        examined.close()
    except CorruptLogError as error:
        if (error.file, error.position) != (join(directory, segment_name(point.segment)), point.position):
            raise
    with suppress(CorruptLogError):
        examined = _examine(disk, directory, None, bases, open_segment, gaps=gaps, bound=point)
        if examined.torn is None or examined.torn.place > point_place:
            return examined
        examined.close()
    return _examine(disk, directory, point, bases, open_segment, gaps=gaps, bound=point)


def _examine(
    disk: Disk,
    directory: str,
    point: RecoveryPoint | None,
    bases: list[int],
    open_segment: Callable[[int], Segment],
    *,
    gaps: bool,
    bound: RecoveryPoint | None,
) -> Examined:
    """`point`: where to begin; None: at the log's start. `bound`: what the log must reach."""
    examined = Examined(point=point)
    if bound is not None:
        examined.leftovers = [base for base in bases if base < bound.start_offset]
        bases = [base for base in bases if base >= bound.start_offset]
    trusted = _load_start(disk, directory, point, bases, examined)
    try:
        for base in bases:
            examined.segments.append(open_segment(base))
        if bases:
            _scan(examined, trusted, gaps)
        _check_reached(examined, bound, gaps)
    except BaseException:
        examined.close()
        raise
    return examined


def _written_by_another(
    disk: Disk, directory: str, point: RecoveryPoint, bases: list[int]
) -> tuple[str | None, RecoveryPoint | None]:
    """How the log shows that another program (Kafka) has deleted its beginning, or has truncated it below the
    point and written on, since the point was stored (None: it does not), and the point if the log must still
    reach it. Raises CorruptLogError if what was synced is gone and nothing shows who removed it."""
    newer = _newer_epoch(disk, directory, point) if bases else None
    if newer is not None:
        return newer, None
    later = bool(bases) and bases[0] > point.start_offset and _was_trimmed(disk, directory, bases[0])
    begins = bases[0] if later else None
    if begins is not None and begins >= point.offset:
        return f"it begins at offset {begins}, behind offset {point.offset}", None
    for base, what in ((point.start_offset, "first segment of the log"), (point.segment, "segment")):
        if base not in bases and base >= (begins or 0):
            path = join(directory, segment_name(base))
            expected = f"expected the {what} that {POINT_FILE} names, found no such file"
            raise CorruptLogError(path, 0, base, expected, _MOVED_ADVICE)
    path = join(directory, segment_name(point.segment))
    size = disk.file_size(path) if point.segment in bases else point.position
    if size < point.position:
        expected = (
            f"expected at least {point.position} bytes (synced up to offset {point.offset}), found {size}"
        )
        raise CorruptLogError(path, size, point.offset, expected, _MOVED_ADVICE)
    return (None if begins is None else f"it begins at offset {begins}, not {point.start_offset}"), point


def _was_trimmed(disk: Disk, directory: str, start: int) -> bool:
    """Whether the log begins there on purpose: a lost file changes neither the epoch table nor snapshots."""
    found = Examined()
    stored = _stored_epochs(disk, directory, found)
    if found.stored_epochs is not None and all(offset >= start for _, offset in stored.entries):
        return True
    return any(position.offset >= start for position in list_snapshots(disk, directory))


def _newer_epoch(disk: Disk, directory: str, point: RecoveryPoint) -> str | None:
    """This release never stores an epoch that begins below the point and is newer than the record there."""
    if point.epoch < 0:
        return None
    stored = _stored_epochs(disk, directory, Examined())
    for epoch, start in stored.entries:
        if epoch > point.epoch and start < point.offset:
            return (
                f"epoch {epoch} begins at offset {start}, below offset {point.offset} of epoch {point.epoch}"
            )
    return None


def _load_start(
    disk: Disk, directory: str, point: RecoveryPoint | None, bases: list[int], examined: Examined
) -> RecoveryPoint | None:
    """Fills in the epochs below the point; returns the point to scan from, or None for the whole log."""
    start = bases[0] if bases else 0
    stored = _stored_epochs(disk, directory, examined)
    if point is not None:
        examined.start_epoch = point.start_epoch
    elif start > 0:
        # If another program trimmed the log, only the file knows what came before its start.
        examined.start_epoch = stored.epoch_at(start - 1) or stored.epoch_at(start) or 0
    trusted: RecoveryPoint | None = None
    if point is not None and examined.stored_epochs is not None:
        known = stored.truncate_to(point.offset).truncate_start(start)
        if point.offset == start or (known.epoch_at(start) is not None and _reaches(known, point)):
            examined.epochs, trusted = known, point
    if start > 0 and not examined.epochs.entries and examined.start_epoch >= 0:
        examined.epochs = EpochTable.reset(LogPosition(examined.start_epoch, start))
    return trusted


def _reaches(epochs: EpochTable, point: RecoveryPoint) -> bool:
    """Whether the table is as new as the point: an older copy lacks epochs below it."""
    return point.epoch < 0 or epochs.epoch_at(point.offset - 1) == point.epoch


def _stored_epochs(disk: Disk, directory: str, examined: Examined) -> EpochTable:
    path = join(directory, EPOCHS_FILE)
    try:
        examined.stored_epochs = EpochTable.decode(read_file(disk, path), path)
    except FileMissingError:
        examined.stored_epochs = None
    except CorruptFileError as error:
        examined.notes.append(str(error))
    return examined.stored_epochs or EpochTable()


def _scan(examined: Examined, trusted: RecoveryPoint | None, gaps: bool) -> None:
    first = examined.segments[0].base_offset
    from_segment, position = (trusted.segment, trusted.position) if trusted else (first, 0)
    examined.end_offset = trusted.offset if trusted else first
    examined.unsynced_from = from_segment
    previous: Segment | None = None
    for segment in examined.segments:
        if segment.base_offset < from_segment:
            continue
        base, end = segment.base_offset, examined.end_offset
        if examined.torn is None and previous is not None and (base < end if gaps else base != end):
            expected = (
                f"expected the log to continue here, but {segment.path} begins at {segment.base_offset}"
            )
            examined.torn = TornTail(previous, previous.size, expected)
        if examined.torn is not None:
            _refuse_if_valid(segment, 0, examined.torn, examined.end_offset)
            continue
        _scan_segment(examined, segment, position if previous is None else 0, gaps)
        previous = segment


def _scan_segment(examined: Examined, segment: Segment, position: int, gaps: bool) -> None:
    epochs = examined.stored_epochs or EpochTable()

    def note(window_position: int, hops: list[Hop]) -> None:
        segment.note(window_position, hops)
        for _, base, following, epoch in hops:
            if base > examined.end_offset and epoch > examined.epochs.last_epoch:
                # Epochs that begin where records are missing: only the file knows them.
                for each, start in epochs.between(examined.epochs.last_epoch, epoch):
                    if examined.end_offset <= start <= base:
                        examined.epochs = examined.epochs.append(each, start)
            examined.epochs = examined.epochs.append(epoch, base)
            examined.end_offset = following

    epoch = max(examined.epochs.last_epoch, examined.start_epoch)
    scan = scan_file(segment.file, position, examined.end_offset, epoch, note, gaps=gaps)
    if scan.problem is None:
        examined.end_offset = max(examined.end_offset, segment.base_offset)
    if scan.problem is not None:
        examined.torn = TornTail(segment, scan.end, scan.problem)
        _refuse_if_valid(segment, scan.end + 1, examined.torn, examined.end_offset)


def _refuse_if_valid(segment: Segment, position: int, torn: TornTail, end_offset: int) -> None:
    # Any epoch is accepted: a damaged epoch that reads too high must not hide the good batches after it.
    found = find_valid_batch(segment.file, position, max(end_offset, segment.base_offset))
    if found is None:
        return
    where, header = found
    behind = f"byte {where} of {segment.path} (offset {header.base_offset})"
    expected = f"{torn.problem}; a valid batch follows at {behind}"
    raise CorruptLogError(torn.segment.path, torn.position, end_offset, expected, _ADVICE)


def _check_reached(examined: Examined, point: RecoveryPoint | None, gaps: bool) -> None:
    """If the scan began below the point (no epoch table), damage before the point is still corruption."""
    if point is None or examined.end_offset >= point.offset:
        return
    torn = examined.torn
    if gaps and (torn is None or torn.place >= (point.segment, point.position)):
        examined.end_offset = point.offset  # what was truncated there left no record before it
        return
    path = torn.segment.path if torn else examined.segments[-1].path
    position = torn.position if torn else examined.segments[-1].size
    expected = f"expected a log synced up to offset {point.offset}" + (f" ({torn.problem})" if torn else "")
    raise CorruptLogError(path, position, examined.end_offset, expected, _MOVED_ADVICE)


def repair(
    disk: Disk, directory: str, examined: Examined, on_warning: Callable[[str], None], *, sync: bool = True
) -> None:
    """Completes an interrupted trim, truncates the torn tail, and syncs every byte that may not be
    durable; without `sync`, the caller syncs many logs at once."""
    for note in examined.notes:
        on_warning(note)
    for base in examined.leftovers:
        disk.remove(join(directory, segment_name(base)))
        disk.sync_directory(directory)
    torn = examined.torn
    if torn is not None:
        while examined.segments[-1] is not torn.segment:
            extra = examined.segments.pop()
            on_warning(
                f"{extra.path}: removed; its {extra.size} bytes follow a torn tail and hold no valid batch"
            )
            extra.close()
            disk.remove(extra.path)
            disk.sync_directory(directory)
        if torn.segment.size > torn.position:
            on_warning(
                f"{torn.segment.path}: truncated a torn tail of {torn.segment.size - torn.position} bytes "
                f"at byte {torn.position} (offset {examined.end_offset}): {torn.problem}"
            )
            torn.segment.cut(torn.position)
    if not sync:
        return
    # What a killed process wrote may be in the page cache only.
    for segment in examined.segments:
        if segment.base_offset >= examined.unsynced_from:
            segment.file.sync()
    disk.sync_directory(directory)
