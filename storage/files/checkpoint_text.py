"""The text format of all of Kafka's checkpoint files: version 0, the number of entries, one entry per line.

Source: Kafka's `CheckpointFile`, `OffsetCheckpointFile`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metaquorum.storage.errors import CorruptFileError

_VERSION = "0"


def encode_entries(entries: Iterable[str]) -> bytes:
    """The content of a file with these entries."""
    lines = list(entries)
    return ("\n".join((_VERSION, str(len(lines)), *lines)) + "\n").encode()


def decode_entries(data: bytes, file: str, advice: str) -> list[list[str]]:
    """The entries, each split at blanks. Raises CorruptFileError for any other content."""
    try:
        lines = [line.split() for line in data.decode("ascii").splitlines()]
    except UnicodeDecodeError as error:
        raise CorruptFileError(file, f"is not a checkpoint file ({error})", advice) from None
    lines = [line for line in lines if line]
    if not lines:
        return []
    if lines[0] != [_VERSION]:
        version = " ".join(lines[0])
        raise CorruptFileError(file, f"has version {version}, this release reads {_VERSION}", advice)
    if len(lines) == 1:
        return []
    announced, entries = " ".join(lines[1]), lines[2:]
    if announced != str(len(entries)):
        raise CorruptFileError(file, f"announces {announced} entries but has {len(entries)}", advice)
    return entries


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Encodes offsets by (topic, partition)."""
    return encode_entries(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offsets(data: bytes, file: str, advice: str) -> dict[tuple[str, int], int]:
    """The inverse of `encode_offsets`. Raises CorruptFileError."""
    offsets: dict[tuple[str, int], int] = {}
    for entry in decode_entries(data, file, advice):
        try:
            topic, partition, offset = entry
            key, value = (topic, int(partition)), int(offset)
        except ValueError:
            value = -1
        if value < 0 or key in offsets:
            text = " ".join(entry)
            raise CorruptFileError(file, f"has {text!r}, which is not a topic, partition and offset", advice)
        offsets[key] = value
    return offsets
