"""What lies in a log's files, as text that shows every byte: decoded where a person can read it, else in
hex."""

from __future__ import annotations

import re
import zlib

from metaquorum.storage.batches.batch import RecordBatch, hop_headers, parse_header, read_marker
from metaquorum.storage.batches.format import HEADER_BYTES, BatchHeader
from metaquorum.storage.errors import StorageError
from metaquorum.storage.log.timed_segment import ABORTED_ENTRY, INDEX_ENTRY, TIME_ENTRY
from metaquorum.storage.partition.log_producers import decode_entries
from metaquorum.storage.partition.producers import KnownProducer
from tests.scripts.player import show

START_MS = 1_700_000_000_000
_STAMP = re.compile(r"\b1[67]\d{11}\b")
_SEGMENT_NAME = re.compile(r"\b0{1,19}(\d+\.)")


def timed(line: str) -> str:
    """Times near START_MS as T+ms, offsets in file names without their zeros."""
    line = _STAMP.sub(lambda found: f"T{int(found[0]) - START_MS:+d}", line)
    return _SEGMENT_NAME.sub(r"\1", line)


def told_file(name: str, data: bytes) -> str:
    """Size, sum and content."""
    return timed(f"{name} {len(data)} {zlib.crc32(data):08x} {_content(name, data)}".rstrip())


def _content(name: str, data: bytes) -> str:
    kind = re.sub(r"\.(cleaned|swap|deleted)$", "", name).rpartition(".")[2]
    if kind == "log":
        return " ".join(f"{base}..{end}@{epoch}" for _, base, end, epoch in hop_headers(data))
    if kind == "index":
        return " ".join(f"+{offset}@{place}" for offset, place in _entries(INDEX_ENTRY, data))
    if kind == "timeindex":
        return " ".join(f"{time}:+{offset}" for time, offset in _entries(TIME_ENTRY, data))
    if kind == "txnindex":
        return " ".join(
            f"v{one[0]}:p{one[1]}:{one[2]}..{one[3]}<{one[4]}" for one in _entries(ABORTED_ENTRY, data)
        )
    if kind == "snapshot":
        try:
            return "; ".join(told_producer(each) for each in decode_entries(data, name))
        except StorageError as error:
            return str(error)
    text = data.decode(errors="replace")
    return " | ".join(text.splitlines()) if text.isprintable() or "\n" in text else data.hex()


def _entries(form: object, data: bytes) -> list[tuple[int, ...]]:
    whole = len(data) - len(data) % form.size  # type: ignore[attr-defined]
    return list(form.iter_unpack(data[:whole]))  # type: ignore[attr-defined]


def told_producer(known: KnownProducer) -> str:
    """Epoch, batches as sequences:offsets~time, when it was seen, epoch of its coordinator, transaction."""
    batches = " ".join(
        f"{one.first_sequence}-{one.last_sequence}:{one.first_offset}-{one.last_offset}~{one.timestamp_ms}"
        for one in known.batches
    )
    ends = f"c{known.coordinator_epoch} from {known.open_from}"
    return f"p{known.producer_id}.{known.epoch} [{batches}] seen {known.seen_ms} {ends}"


def told_batches(data: bytes) -> list[str]:
    """A line for each batch, with its header and records."""
    lines, at = [], 0
    while len(data) - at >= HEADER_BYTES:
        header = parse_header(data, at)
        lines.append(
            timed(f"{_header(header)} {_records(header, data[at : at + header.size_bytes])}".rstrip())
        )
        at += header.size_bytes
    if at != len(data):
        lines.append(f"{len(data) - at} bytes more")
    return lines


def _header(header: BatchHeader) -> str:
    producer = f" p{header.producer_id}.{header.producer_epoch}.{header.base_sequence}"
    parts = [
        f"{header.base_offset}..{header.last_offset}@{header.leader_epoch}",
        f"{header.base_timestamp_ms}/{header.max_timestamp_ms}",
        f"{header.size_bytes} bytes",
    ]
    kind = f" attributes={header.attributes:#x}" if header.attributes else ""
    return " ".join(parts) + (producer if header.producer_id >= 0 else "") + kind


def _records(header: BatchHeader, data: bytes) -> str:
    marker = read_marker(header, data)
    if marker is not None:
        return show(marker)
    return " ".join(
        f"{one.offset}:{'' if one.key is None else one.key.decode()}"
        f"{'!' if one.value is None else f'={len(one.value)}'}"
        f"{one.timestamp_ms - header.base_timestamp_ms:+d}"
        for one in RecordBatch(header, data).records()
    )
