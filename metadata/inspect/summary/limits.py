"""What a summary must know of a log besides its events, such as its idle write interval and its end."""

from __future__ import annotations

from statistics import median

from metaquorum.metadata.image import BROKER_RESOURCE, MetadataImage
from metaquorum.metadata.image.types import ConfigResource
from metaquorum.metadata.inspect.changes.changes import MIN_INSYNC_REPLICAS
from metaquorum.metadata.inspect.log.clock import clock_of
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.timeline.time_events import GAP_MS
from metaquorum.metadata.inspect.walk.rewrite import NO_OP
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError

IDLE_INTERVALS = 10
"""After this many intervals without a record, silence counts as a gap: a slow disk and a
long pause skip a few."""
_SAMPLE = 2_000
"""Maximum number of batches, from the log's first one on, used to find the interval."""


def idle_interval_ms(log: MetadataLog) -> int | None:
    """How long an idle controller waits before it writes a NoOpRecord (metadata.max.idle.interval.ms), by the
    median of its intervals. None for a log without NoOpRecords, in which silence means nothing."""
    steps: list[int] = []
    last: int | None = None
    batches = (found for found in log.batches() if isinstance(found, RecordBatch))
    for number, batch in enumerate(batches):
        if number >= _SAMPLE:
            break
        time_ms = batch.header.max_timestamp_ms
        if _is_idle(batch):
            if last is not None and time_ms > last:
                steps.append(time_ms - last)
            last = time_ms
        else:
            last = None
    return int(median(steps)) if steps else None


def gap_ms(interval_ms: int | None) -> int:
    """Silence of this length, derived from the interval, means that the quorum had no leader."""
    return GAP_MS if interval_ms is None else max(GAP_MS, IDLE_INTERVALS * interval_ms)


def last_time_ms(log: MetadataLog) -> int | None:
    """The time of the log's last batch, Unix ms, by the log's clock; None if it has no batch."""
    last = log.last_header()
    return None if last is None else clock_of(log).time_ms(last.base_offset, last.max_timestamp_ms)


def cannot_decide(
    *,
    image: MetadataImage,
    interval_ms: int | None,
    uncertain: int,
    gaps: int,
    names_who: bool,
    has_records: bool,
    may_lack_votes: bool,
) -> list[str]:
    """What the log does not show, in lines for people, the most important first. With `may_lack_votes`, this
    is the log of one of several voters, and its last records may be on no other voter."""
    lines = []
    if not has_records:
        lines.append("what happened: no record is here")
    elif interval_ms is None:
        lines.append("whether there were times without a leader: idle controllers wrote nothing")
    if gaps:
        lines.append(f"what happened in the {count(gaps, 'gap') if gaps > 1 else 'gap'}: nothing was written")
    if uncertain:
        lines.append(f"whether {count(uncertain, 'fence')} followed a clean shutdown or missed heartbeats")
    if not _has_default_min_isr(image):
        lines.append("min.insync.replicas in brokers' files: taken as 1 unless a record sets it")
    if may_lack_votes and has_records:
        lines.append("whether its last records were committed: compare the other nodes' logs")
    hidden = "heartbeats, lag, and what clients saw"
    lines.append(hidden if names_who else f"who asked for a change; {hidden}")
    return lines


def _has_default_min_isr(image: MetadataImage) -> bool:
    return MIN_INSYNC_REPLICAS in (image.configs.get(ConfigResource(BROKER_RESOURCE, "")) or {})


def _is_idle(batch: RecordBatch) -> bool:
    if batch.header.is_control or batch.header.records_count != 1:
        return False
    try:
        return batch.records()[0].value == NO_OP
    except (BatchError, IndexError):
        return False
