"""When things happened in processes of this machine: read from their own logs and records, as Unix ms.

All processes share one clock, and both kinds of time are truncated to whole milliseconds, so a difference is
accurate to 1 ms.

    decided    the time of the first batch of changes: read at the beginning of the step in which the active
               controller expired the session
    first      its line that the broker "is being fenced": the first batch is decided, encoded and replayed,
               and goes to the log next
    appended   the time of the batch that ends with the fence record
    committed  its line that the broker "is fenced": the high watermark has passed the fence record
    applied    the same line of every other process: its image holds the fence record, which is the last one
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import FenceBrokerRecord, PartitionChangeRecord
from metaquorum.storage.batches.batch import RecordBatch
from tests.e2e.cluster import Node, read_batches
from tests.e2e.processes import wait_until

_TIME = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{3})Z ")
FENCED_WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fencing:
    """The moments above, as Unix ms; `end_offset` is after the fence record."""

    decided_ms: int
    first_ms: int
    appended_ms: int
    committed_ms: int
    applied_ms: tuple[int, ...]
    changes: int
    batches: int
    end_offset: int


def line_time_ms(line: str) -> int:
    """When a process wrote a line."""
    match = _TIME.match(line)
    if match is None:
        raise ValueError(f"no time in {line!r}")
    return calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) * 1000 + int(match[2])


def logged_ms(node: Node, part: str, after_ms: int) -> int:
    """When the process wrote the first line with `part` after a time; waits for it."""

    def found() -> int | None:
        times = (line_time_ms(line) for line in reversed(node.lines()) if part in line and _TIME.match(line))
        later = [at for at in times if at >= after_ms]
        return min(later) if later else None

    what = f"{node.name} to say {part!r}"
    return wait_until(found, what, timeout_s=FENCED_WAIT_S, details=node.output)


def fencing(active: Node, others: Sequence[Node], broker_id: int, after_ms: int, from_offset: int) -> Fencing:
    """The fencing of a broker without heartbeats, according to the active controller and the other
    processes."""
    fenced = f"broker {broker_id} is fenced "
    committed_ms = logged_ms(active, fenced, after_ms)
    first_ms = logged_ms(active, f"broker {broker_id} sent no heartbeat", after_ms)
    applied = tuple(logged_ms(node, fenced, after_ms) for node in others)
    batches = [batch for batch in read_batches(active, from_offset=from_offset) if _matters(batch)]
    last = next(at for at, batch in enumerate(batches) if _fences(batch, broker_id))
    mine = batches[: last + 1]
    return Fencing(
        decided_ms=mine[0].header.base_timestamp_ms,
        first_ms=first_ms,
        appended_ms=mine[-1].header.base_timestamp_ms,
        committed_ms=committed_ms,
        applied_ms=applied,
        changes=sum(batch.header.records_count for batch in mine) - 1,
        batches=len(mine),
        end_offset=mine[-1].header.next_offset,
    )


def _matters(batch: RecordBatch) -> bool:
    """Whether a batch belongs to a fencing: changes of partitions, or the fence record alone."""
    if batch.header.is_control:
        return False
    first = next(iter(decode_batch(batch))).record if batch.header.records_count <= 2 else None
    return batch.header.records_count > 2 or isinstance(first, PartitionChangeRecord | FenceBrokerRecord)


def _fences(batch: RecordBatch, broker_id: int) -> bool:
    *_, last = batch.records()
    if last.value is None or last.value[1] != _FENCE_KEY:
        return False
    record = list(decode_batch(batch))[-1].record
    return isinstance(record, FenceBrokerRecord) and record.id == broker_id


_FENCE_KEY = 7
