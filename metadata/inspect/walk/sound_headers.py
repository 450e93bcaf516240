"""Batches whose base offset or leader epoch was damaged, given by the batches around them.

Both are outside what a batch's CRC covers, so a flipped bit there harms no record: where the next batch
continues as if the number were the one that fits, it is put back, and nothing is lost. Owns that rule.
Touches no file; keeps one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

Told = tuple[RecordBatch | Damage, str | None]
"""What was read, and what was put right in it; None: nothing."""


def sound_headers(found: Iterable[RecordBatch | Damage], expected: int) -> Iterator[Told]:
    """`found` with damaged base offsets and epochs put right; `expected` is the first offset to come."""
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
    """`batch` as the one after it says that it was, and what was put back; None: nothing was."""
    header, after = batch.header, following.header
    fitting = header
    if header.base_offset != expected and after.base_offset == expected + header.last_offset_delta + 1:
        fitting = fitting._replace(base_offset=expected)
    # Of two epochs that cannot both be right, the one between those around it is.
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
