"""Whether a snapshot is usable, by its file alone: not whether it continues the log beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, damage_line
from metaquorum.metadata.snapshot import load_snapshot
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError, StorageError
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.types import LogPosition


def whole_snapshot(log: MetadataLog, position: LogPosition) -> MetadataImage | None:
    """The image in a snapshot; None if it is damaged or incomplete."""
    reader = log.snapshot(position).reader()
    try:
        return load_snapshot(_whole(reader), position=position, on_error=_ignore)
    except (StorageError, ReplayError, RecordDecodeError):
        return None
    finally:
        reader.close()


def _whole(items: Iterable[RecordBatch | Damage]) -> Iterator[RecordBatch]:
    for item in items:
        if isinstance(item, Damage):
            raise BatchError(damage_line(item))
        yield item


def _ignore(error: ReplayError) -> None:
    """An unknown record, or one that was already poison, is not damage to the file."""
