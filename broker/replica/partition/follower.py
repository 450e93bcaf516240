"""What a broker does for a partition that another broker leads: where it fetches, and how it handles answers.

The truncation rules: a log is truncated where its epochs diverge from the leader's (KIP-101, KIP-279,
KIP-595), never at the high watermark, which only bounds reads.
"""

from __future__ import annotations

from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.values import Changes, FollowerOutcome, FollowerStep
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import FetchedPartition, FetchPartition
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.format import is_cut_off, walk_headers
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition


def cut_offset(epochs: EpochTable, end: int, start: int, shared: LogPosition) -> int:
    """Where to truncate a log that diverges from its leader's. The leader knows `shared`: its largest epoch
    not above the follower's last one, and that epoch's end. What is past the end of this log's own largest
    epoch not above `shared.epoch` is never the leader's; the rest may have to be truncated again
    (KIP-279)."""
    own = epochs.end_offset_for(shared.epoch, end)
    if own is None:
        return start
    return max(start, min(own.offset, shared.offset, end))


class Following:
    """In one leader epoch; the next epoch gets a new one."""

    def __init__(self, config: ReplicaConfig, log: LocalLog, *, leader: int, epoch: int) -> None:
        self._config = config
        self._log = log
        self.leader = leader
        self.epoch = epoch
        self.leader_high_watermark = -1
        self._fenced = False
        log.changes |= Changes.POSITION

    @property
    def is_ready(self) -> bool:
        """False while something is unfinished: a fetch offset says that everything below it is held."""
        log = self._log
        return not (log.cutting or log.is_held or self._fenced or log.acknowledged < log.end)

    def position(self) -> FetchPartition | None:
        """The next position to fetch; None while it is not ready."""
        if not self.is_ready:
            return None
        log = self._log
        return FetchPartition(
            key=log.key,
            fetch_offset=log.end,
            max_bytes=self._config.replica_fetch_max_bytes,
            current_leader_epoch=self.epoch,
            last_fetched_epoch=log.last_epoch,
            log_start_offset=log.start,
        )

    def take(self, part: FetchedPartition, asked: FetchPartition, *, wall_ms: int) -> FollowerOutcome:
        log = self._log
        if not self.is_ready or (log.end, self.epoch, log.last_epoch) != (
            asked.fetch_offset,
            asked.current_leader_epoch,
            asked.last_fetched_epoch,
        ):
            return FollowerOutcome(step=FollowerStep.STALE)
        if part.error is not ErrorCode.NONE:
            return self._refused(part)
        if part.diverging is not None:
            return self._diverged(part.diverging)
        return self._take_records(part, wall_ms)

    def _refused(self, part: FetchedPartition) -> FollowerOutcome:
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE and part.log_start_offset >= 0:
            # The leader compares epochs first, so nothing in this log is known to be in the leader's.
            self._log.cut(part.log_start_offset, start_over=True)
            return FollowerOutcome(step=FollowerStep.CUT, error=part.error, message=part.message)
        step = FollowerStep.BACK_OFF
        if part.error is ErrorCode.FENCED_LEADER_EPOCH:
            self._fenced = True
            step = FollowerStep.WAIT
        return FollowerOutcome(step=step, error=part.error, message=part.message)

    def _diverged(self, shared: LogPosition) -> FollowerOutcome:
        log = self._log
        to = cut_offset(log.epochs, log.end, log.start, shared)
        if to >= log.end:
            text = (
                f"{log}: broker {self.leader} says that the logs diverge at epoch {shared.epoch}, offset "
                f"{shared.offset}, but this log has nothing after that: fetching again"
            )
            return FollowerOutcome(
                step=FollowerStep.BACK_OFF, error=ErrorCode.UNKNOWN_SERVER_ERROR, message=text
            )
        log.cut(to)
        return FollowerOutcome(step=FollowerStep.CUT)

    def _take_records(self, part: FetchedPartition, wall_ms: int) -> FollowerOutcome:
        log = self._log
        step = FollowerStep.NOTHING
        if part.records:
            # The leader's log may start within a batch: an empty log begins with the whole batch.
            expected = log.end if log.end > log.start else 0
            walk = walk_headers(
                part.records, expected_offset=expected, min_epoch=log.epochs.last_epoch, gaps=True
            )
            headers, problem = walk.headers, walk.problem
            if headers and is_cut_off(part.records, walk.end):
                problem = None  # the next fetch begins at the end of these
            if problem is None and headers[0].next_offset <= log.end:
                ends = headers[0].next_offset
                problem = f"expected offset {log.end}, found a batch that ends before {ends}"
            elif problem is None and headers[-1].leader_epoch > self.epoch:
                problem = f"expected leader epochs up to {self.epoch}, found {headers[-1].leader_epoch}"
            if problem is not None:
                text = (
                    f"{log}: broker {self.leader} sent records that cannot be stored at offset {log.end}: "
                    f"{problem}; none were stored, fetching again"
                )
                return FollowerOutcome(
                    step=FollowerStep.BACK_OFF, error=ErrorCode.CORRUPT_MESSAGE, message=text
                )
            log.append(Batches.of_walk(part.records, walk), wall_ms)
            step = FollowerStep.APPENDED
        self.leader_high_watermark = part.high_watermark
        log.raise_high_watermark(part.high_watermark)
        log.trim_to(min(part.log_start_offset, log.end))
        return FollowerOutcome(step=step)
