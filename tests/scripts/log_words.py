"""What the words of a log's scripts mean: batches and markers.

A batch is `a:10,b!,:5+20/@2/~100/p7.0.5t/z1/o12`: records by key and bytes of the value (`!`: none) and later
by so many ms, then leader epoch, time, producer with epoch and first sequence (`t`: in a transaction), codec,
base offset. `commit` and `abort` are markers, with `c3` of coordinator epoch 3.
"""

from __future__ import annotations

import re

from metaquorum.storage.batches.batch import EndMarker, encode_batch, encode_marker, parse_header, seal_batch
from metaquorum.storage.batches.codecs import pack
from metaquorum.storage.batches.format import HEADER_BYTES, TRANSACTIONAL
from tests.scripts.stored import START_MS

_RECORD = re.compile(r"([a-z]*)(!|:(\d+))?([+-]\d+)?")


def batch_of(word: str, base: int, epoch: int = 1) -> bytes:
    records, *parts = word.split("/")
    given = {part[0]: part[1:] for part in parts}
    base = int(given.get("o", base))
    epoch, time_ms = int(given.get("@", epoch)), START_MS + int(given.get("~", 10 * base))
    producer, producer_epoch, sequence = [
        *(int(each) for each in given.get("p", "-1.-1.-1").rstrip("t").split(".")), 0, -1
    ][:3]  # fmt: skip
    marker = marker_of(word)
    if marker is not None:
        data = encode_marker(
            marker, producer_id=producer, producer_epoch=producer_epoch, timestamp_ms=time_ms
        )
        header = parse_header(data)._replace(base_offset=base, leader_epoch=epoch)
        return seal_batch(header, data[HEADER_BYTES:])
    found = [_RECORD.fullmatch(each) for each in records.split(",")]
    rows = [one.groups() for one in found if one is not None]
    assert len(rows) == len(found), f"{word}: not records"
    times = [time_ms + int(row[3] or 0) for row in rows]
    plain = encode_batch(
        base_offset=base,
        leader_epoch=epoch,
        timestamp_ms=time_ms,
        max_timestamp_ms=max(times),
        keys=[row[0].encode() or None for row in rows],
        values=[None if row[1] == "!" else b"v" * int(row[2] or 0) for row in rows],
        timestamps=times,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if given.get("p", "").endswith("t") else 0,
    )
    codec = int(given.get("z", "0"))
    header = parse_header(plain)
    header = header._replace(attributes=header.attributes | codec)
    return seal_batch(header, pack(codec, plain[HEADER_BYTES:])) if codec else plain


def marker_of(word: str) -> EndMarker | None:
    kind, *parts = word.split("/")
    epochs = [int(part[1:]) for part in parts if part[0] == "c"]
    return EndMarker(kind == "commit", *(epochs or [0])) if kind in ("commit", "abort") else None
