"""Repairs damaged base offsets and leader epochs of batches, using the batches around them.

Both are outside a batch's CRC, so a flipped bit there damages no record: if the next batch continues as if
the number were the one that fits, that number is restored, and nothing is lost. Owns that rule. Does not
touch files or records, and keeps one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

Told = tuple[RecordBatch | Damage, str | None]
"""What was read, and the repair made to it; None if there was none."""


def sound_headers(found: Iterable[RecordBatch | Damage], expected: int) -> Iterator[Told]:
    """`found` with damaged base offsets and epochs repaired; `expected` is the first offset."""
    epoch = 0
    waiting: RecordBatch | None = None
    between: list[Damage] = []
    for item in found:
        if isinstance(item, Damage):
            between.append(item)
            continue
        if waiting is not None:
            told = put_right(waiting, item, expected, epoch)
            expected, epoch = told[0].header.next_offset, told[0].header.leader_epoch
            yield told
        yield from ((damage, None) for damage in between)
        between = []
        waiting = item
    if waiting is not None:
        yield waiting, None
    yield from ((damage, None) for damage in between)


def put_right(
    batch: RecordBatch, following: RecordBatch, expected: int, epoch: int
) -> tuple[RecordBatch, str | None]:
    """`batch` as the following one implies it was, and the repair made; None if there was none."""
    header, after = batch.header, following.header
    fitting = header
    if header.base_offset != expected and after.base_offset == expected + header.last_offset_delta + 1:
        fitting = fitting._replace(base_offset=expected)
    # If two epochs cannot both be right, the one between those around it is.
    if header.leader_epoch > after.leader_epoch >= epoch:
        fitting = fitting._replace(leader_epoch=after.leader_epoch)
    if fitting == header:
        return batch, None
    changes = [
        f"{name} {old} is put back to {new}"
        for name, old, new in (
            ("base offset", header.base_offset, fitting.base_offset),
            ("leader epoch", header.leader_epoch, fitting.leader_epoch),
        )
        if old != new
    ]
    return with_header(batch, fitting), "; ".join(changes)
