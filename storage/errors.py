"""Errors of the storage layer, each with a message of one line: what is wrong, and what to do next."""

from __future__ import annotations

from functools import partial
from typing import Any


class StorageError(Exception):
    """Anything that storage refuses or cannot do. It can be sent to another process, which rebuilds it
    from its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.__dict__)
        return partial(type(self), **fields), () if fields else self.args


def stopped_text(error: BaseException) -> str:
    """Why a process stops, and what to do, once."""
    text = f"stopped: {error}"
    return text if ";" in text else f"{text}; repair the disk, then start again"


class CorruptLogError(StorageError):
    """Bytes that were durable have changed. Never raised for a torn tail."""

    def __init__(self, file: str, position: int, offset: int, expected: str, advice: str) -> None:
        self.file = file
        self.position = position
        self.offset = offset
        self.expected = expected
        self.advice = advice
        super().__init__(f"{file} is damaged at byte {position} (offset {offset}): {expected}; {advice}")


class CorruptFileError(StorageError):
    """A small state file (quorum-state, meta.properties, a checkpoint table) cannot be read."""

    def __init__(self, file: str, reason: str, advice: str) -> None:
        self.file = file
        self.reason = reason
        self.advice = advice
        super().__init__(f"{file}: {reason}; {advice}")


class BatchError(StorageError):
    """Bytes that were passed as record batches are not valid batches. Nothing was written."""


class CompressedBatchError(BatchError):
    """The records of a compressed batch are not available: its codec is unknown, or the caller needs them
    uncompressed in place."""


class NotALogError(StorageError):
    """A path that is not a log directory, segment or checkpoint."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path}: {reason}; give a __cluster_metadata-0 directory, a .log segment or a .checkpoint file"
        )


class CommittedLostError(StorageError):
    """Committed records are lost: from this log, or from the quorum's current log. This is neither a bug
    of this process nor something that it could repair: it stops and changes nothing."""


class DiskError(StorageError):
    """A directory can no longer be used (EIO, ENOSPC, EROFS, EACCES, a failed sync)."""

    def __init__(self, directory: str, operation: str, reason: str) -> None:
        self.directory = directory
        self.operation = operation
        self.reason = reason
        super().__init__(f"disk error in {directory} during {operation}: {reason}")


class FileMissingError(StorageError):
    """A file or directory to open, rename or remove does not exist."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} does not exist; check the path, or format the directory first")


class LogDirectoryLockedError(StorageError):
    """Another process (or another writer in this one) holds the directory's lock."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"{directory} is in use by another running process; stop that process or choose another directory"
        )


class OffsetOutOfRange(StorageError):
    """The requested offset is below the log's start or above its end."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset
        super().__init__(
            f"offset {offset} is outside the log, which holds {start_offset} up to {end_offset}; "
            "read from a snapshot if it is below, wait if it is above"
        )


class LogTruncatedError(StorageError):
    """The log that a reader follows became shorter: a follower truncated records that were never
    committed."""

    def __init__(self, file: str, position: int, offset: int) -> None:
        self.file = file
        self.position = position
        self.offset = offset
        super().__init__(
            f"{file} was truncated below byte {position} (offset {offset}) while it was read; open it again"
        )


class LogDeletedError(StorageError):
    """The log that is read is no longer there, or its newest segment is not."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path} was deleted while the log was read; read another copy of it")


class LogFailedError(StorageError):
    """An earlier write or sync failed, so this log accepts no more writes."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(
            f"a write or sync of the log in {directory} failed, and it accepts no more records; stop the "
            "process, repair the disk, start again"
        )


class SnapshotError(StorageError):
    """A snapshot file is missing, or a chunk does not fit the bytes received so far."""
