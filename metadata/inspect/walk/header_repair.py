"""Repairs damaged base offsets and leader epochs of batches, using the batches around them.

Both are outside a batch's CRC, so a flipped bit there damages no record: if the next batch continues as if
the number were the one that fits, that number is restored, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metaquorum.metadata.inspect.walk.rewrite import with_header
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.reader import Damage

Repaired = tuple[RecordBatch | Damage, str | None]
"""What was read, and the repair made to it; None if there was none."""


def repaired_headers(items: Iterable[RecordBatch | Damage], expected: int) -> Iterator[Repaired]:
    """`items` with damaged base offsets and epochs repaired; `expected` is the first offset."""
    epoch = 0
    waiting: RecordBatch | None = None
    between: list[Damage] = []
    for item in items:
        if isinstance(item, Damage):
            between.append(item)
            continue
        if waiting is not None:
            repaired = repair_header(waiting, item, expected, epoch)
            expected, epoch = repaired[0].header.next_offset, repaired[0].header.leader_epoch
            yield repaired
        yield from ((damage, None) for damage in between)
        between = []
        waiting = item
    if waiting is not None:
        yield waiting, None
    yield from ((damage, None) for damage in between)


def repair_header(
    batch: RecordBatch, following: RecordBatch, expected: int, epoch: int
) -> tuple[RecordBatch, str | None]:
    """`batch` as the following one implies it was, and the repair made; None if there was none."""
    header, after = batch.header, following.header
    base, fitting_epoch = fitting_header(
        (header.base_offset, header.last_offset_delta + 1, header.leader_epoch, header.is_control),
        (after.base_offset, after.leader_epoch, after.is_control),
        expected,
        epoch,
    )
    fitting = header._replace(base_offset=base, leader_epoch=fitting_epoch)
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


def fitting_header(
    own: tuple[int, int, int, bool], after: tuple[int, int, bool], expected: int, before: int
) -> tuple[int, int]:
    """The base offset and leader epoch that a batch must have had: its own, unless the next batch continues
    as if they were others. `own` is (base offset, offsets, leader epoch, whether it is a control batch),
    `after` the same of the next batch without its number of offsets; `expected` and `before` are the offset
    and the epoch that the batch before it leads to."""
    base, offsets, epoch, is_control = own
    next_base, next_epoch, next_is_control = after
    if next_base == expected + offsets:
        base = expected
    # An epoch that is not between those around it is damaged. Each epoch begins with a control batch.
    if before <= next_epoch and not before <= epoch <= next_epoch:
        epoch = next_epoch if is_control and not next_is_control else before
    return base, epoch
