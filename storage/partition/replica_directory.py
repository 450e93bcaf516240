"""The names in a broker's log directory, and the small files that belong to it or to one replica."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Mapping, Sequence

from metaquorum.storage.disk.interface import Disk, join, read_file, remove_if_present, write_atomically
from metaquorum.storage.errors import CorruptFileError, DiskError, FileMissingError
from metaquorum.storage.files.checkpoint_text import decode_offsets, encode_offsets
from metaquorum.storage.log.config import PARTITION_METADATA_FILE
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
KAFKA_RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
"""Kafka's file for all replicas of a directory. metaquorum has one beside each replica's segments and
removes this one: it would make Kafka believe that what metaquorum wrote had been flushed. If the file is
found, Kafka has used the directory since."""
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"
MAX_NAME_BYTES = 255
_REPLICA = re.compile(r"([A-Za-z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
_REMOVED = re.compile(r".+\.[0-9a-f]{32}-delete")
_VERSION = "0"


def replica_name(topic: str, partition: int) -> str:
    """The directory of a replica."""
    return f"{topic}-{partition}"


def parse_replica_name(name: str) -> tuple[str, int] | None:
    """(topic, partition); None for any other name."""
    match = _REPLICA.fullmatch(name)
    return (match.group(1), int(match.group(2))) if match and int(match.group(2)) < 2**31 else None


def future_name(topic: str, partition: int, rng: random.Random) -> str:
    """The directory of a replica that is being copied from another log directory (KIP-113)."""
    return f"{replica_name(topic, partition)}.{rng.randbytes(16).hex()}{FUTURE_SUFFIX}"


def may_have_future(topic: str, partition: int) -> bool:
    """Whether that name is short enough for a file system."""
    return len(replica_name(topic, partition)) + 33 + len(FUTURE_SUFFIX) <= MAX_NAME_BYTES


def parse_future_name(name: str) -> tuple[str, int] | None:
    """(topic, partition); None for any other name."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else parse_replica_name(match.group(1))


def removed_name(name: str, rng: random.Random, ending: str = DELETE_SUFFIX) -> str:
    """The name of a replica's directory once it is removed (or, with STRAY_SUFFIX, set aside); the topic's
    name is shortened if the whole would be too long for a file system."""
    suffix = f".{rng.randbytes(16).hex()}{ending}"
    return name[: MAX_NAME_BYTES - len(suffix)] + suffix


def is_removed_name(name: str) -> bool:
    """True for a removed replica's directory whose files have yet to be deleted."""
    return _REMOVED.fullmatch(name) is not None


def encode_partition_metadata(topic_id: bytes) -> bytes:
    """The content of `partition.metadata`."""
    return f"version: {_VERSION}\ntopic_id: {uuid_to_text(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes, file: str) -> bytes:
    """The topic's id. Raises CorruptFileError."""
    advice = "restore it from another replica of the topic, or move this directory away"
    try:
        lines = data.decode("ascii").splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if fields["version"] != _VERSION:
            version = fields["version"]
            raise CorruptFileError(file, f"has version {version}, this release reads {_VERSION}", advice)
        return uuid_from_text(fields["topic_id"])
    except (ValueError, KeyError) as error:
        raise CorruptFileError(file, f"does not name a topic ({error})", advice) from None


def load_partition_metadata(disk: Disk, directory: str) -> bytes | None:
    """The topic's id; None if the file does not exist. Raises CorruptFileError, DiskError."""
    path = join(directory, PARTITION_METADATA_FILE)
    try:
        return decode_partition_metadata(read_file(disk, path), path)
    except FileMissingError:
        return None


def store_high_watermarks(disk: Disk, directory: str, offsets: Sequence[tuple[str, int, int]]) -> None:
    """(topic, partition, high watermark) of every replica. Durable on return; raises DiskError."""
    by_name = {(topic, partition): offset for topic, partition, offset in offsets}
    write_atomically(disk, join(directory, HIGH_WATERMARK_FILE), encode_offsets(by_name))


def load_high_watermarks(disk: Disk, directory: str) -> dict[tuple[str, int], int]:
    """By (topic, partition); empty if the file does not exist. Raises CorruptFileError, DiskError."""
    advice = "no action is needed: reads are bounded by the log start offsets until leaders are known"
    return _load_offsets(disk, join(directory, HIGH_WATERMARK_FILE), advice)


def store_log_starts(disk: Disk, directory: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """By (topic, partition): the start of logs that begin within their first segment, or after it. Durable
    on return; raises DiskError."""
    write_atomically(disk, join(directory, LOG_START_FILE), encode_offsets(offsets))


def load_log_starts(disk: Disk, directory: str) -> dict[tuple[str, int], int]:
    """The inverse; empty if the file does not exist. Raises CorruptFileError, DiskError."""
    advice = "records that were deleted but are still in their segments are visible again: delete them again"
    return _load_offsets(disk, join(directory, LOG_START_FILE), advice)


def store_cleaned_offsets(disk: Disk, directory: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """By (topic, partition): the offset up to which logs were compacted. Durable on return; raises
    DiskError."""
    write_atomically(disk, join(directory, CLEANER_OFFSET_FILE), encode_offsets(offsets))


def load_cleaned_offsets(disk: Disk, directory: str) -> dict[tuple[str, int], int]:
    """The inverse; empty if the file does not exist. Raises CorruptFileError, DiskError."""
    advice = "no action is needed: logs are compacted again from their start"
    return _load_offsets(disk, join(directory, CLEANER_OFFSET_FILE), advice)


def _load_offsets(disk: Disk, path: str, advice: str) -> dict[tuple[str, int], int]:
    try:
        return decode_offsets(read_file(disk, path), path, advice)
    except FileMissingError:
        return {}


# The `.kafka_cleanshutdown` file of a log directory: which process stopped cleanly last.
# The file: written at the end of a clean shutdown, removed at the next start before anything is written.
# A broker that finds it in all of its directories can prove to the controller that it lost nothing
# (KIP-966's PreviousBrokerEpoch). Source: Kafka's CleanShutdownFileHandler, version 0.

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"


def leave_clean_shutdown(disk: Disk, directories: Sequence[str], broker_epoch: int) -> None:
    """Call this when everything that was written is on disk. Durable on return; raises DiskError."""
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()
    for directory in directories:
        write_atomically(disk, join(directory, CLEAN_SHUTDOWN_FILE), data)


def take_clean_shutdown(disk: Disk, directories: Sequence[str]) -> int | None:
    """The broker epoch of the process that stopped cleanly, if all directories have the same one;
    otherwise None, for an unclean or unproven stop. The files are removed on return, except in a directory
    whose disk fails: a file left there proves nothing later, because the others will differ."""
    epochs = [_epoch_in(disk, join(directory, CLEAN_SHUTDOWN_FILE)) for directory in directories]
    for directory in directories:
        with contextlib.suppress(DiskError):
            if remove_if_present(disk, join(directory, CLEAN_SHUTDOWN_FILE)):
                disk.sync_directory(directory)
    return epochs[0] if epochs and len(set(epochs)) == 1 else None


def _epoch_in(disk: Disk, path: str) -> int | None:
    """The epoch in the file; an unreadable file proves nothing."""
    try:
        fields = json.loads(read_file(disk, path))
    except (FileMissingError, DiskError, ValueError):
        return None
    epoch = fields.get("brokerEpoch") if isinstance(fields, dict) and fields.get("version") == 0 else None
    return epoch if type(epoch) is int and epoch >= 0 else None
