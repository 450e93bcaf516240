"""Whether a snapshot can be relied on. Reads one file; knows nothing of the log beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metadata.errors import RecordDecodeError, ReplayError
from metadata.image import MetadataImage
from metadata.inspect.log import MetadataLog, damage_line
from metadata.snapshot import load_snapshot
from storage.batch import RecordBatch
from storage.errors import BatchError, StorageError
from storage.reader import Damage
from storage.types import LogPosition


def whole_snapshot(log: MetadataLog, position: LogPosition) -> MetadataImage | None:
    """The image in a snapshot; None when it is damaged or not finished."""
    reader = log.snapshot(position).reader()
    try:
        return load_snapshot(_whole(reader), position=position, on_error=_ignore)
    except (StorageError, ReplayError, RecordDecodeError):
        return None
    finally:
        reader.close()


def _whole(found: Iterable[RecordBatch | Damage]) -> Iterator[RecordBatch]:
    for item in found:
        if isinstance(item, Damage):
            raise BatchError(damage_line(item))
        yield item


def _ignore(error: ReplayError) -> None:
    """A record from the future, or one that was poison already, is no damage of the file."""
