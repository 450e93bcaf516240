"""Records that clients delete from a log's start on (KIP-107): done when the start has moved on every
replica.

Owns the requests that wait for that. Does not remove segments: the directory's store does. A start that has
moved is durable before it is reported; replicas that are not in sync move theirs when they have caught up,
before they are in sync again.
"""

from __future__ import annotations

from typing import Protocol

from metaquorum.broker.replica.partition.isr import IsrState
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.reading import visible_end
from metaquorum.broker.replica.partition.values import Changes
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.log_ends import TO_HIGH_WATERMARK, DeletedRecords


class DeleteTicket(Protocol):
    """One partition of a request that waits. `complete` is called at most once, and not from within
    `Deleting.delete`."""

    @property
    def deadline_ms(self) -> int: ...

    def complete(self, result: DeletedRecords) -> None: ...


class Deleting:
    """The deletions that one leader has pending."""

    def __init__(self, log: LocalLog, isr: IsrState) -> None:
        self._log = log
        self._isr = isr
        self._starts: dict[int, int] = {}
        self.waiting: list[tuple[int, DeleteTicket]] = []

    @property
    def low_watermark(self) -> int:
        """Where the log starts on every replica in sync."""
        others = [
            self._starts.get(broker_id, -1)
            for broker_id in self._isr.followers
            if broker_id in self._isr.committed
        ]
        return min([self._log.start, *others])

    @property
    def deadline_ms(self) -> int | None:
        return min([ticket.deadline_ms for _, ticket in self._for_others()], default=None)

    def _for_others(self) -> list[tuple[int, DeleteTicket]]:
        """Requests that wait only for followers. As in Kafka only that has a time limit: a request with
        timeout 0 waits for the leader's own log."""
        return [each for each in self.waiting if each[0] <= self._log.start]

    def delete(self, ticket: DeleteTicket, offset: int, *, deletes: bool) -> DeletedRecords | None:
        """A result: it is refused, or was done before. None: it waits, and `ticket.complete` is called later.
        `deletes`: what the topic's policy says."""
        log = self._log
        if not deletes:
            text = f"{log}: its cleanup.policy is only compact: delete records with tombstones"
            return DeletedRecords(key=log.key, error=ErrorCode.POLICY_VIOLATION, message=text)
        end = visible_end(log)
        target = end if offset == TO_HIGH_WATERMARK else offset
        if not 0 <= target <= end:
            text = f"{log}: records can be deleted up to {end}, not to {offset}: give that, or -1"
            return DeletedRecords(key=log.key, error=ErrorCode.OFFSET_OUT_OF_RANGE, message=text)
        log.trim_to(target)
        if self.low_watermark >= target:
            return DeletedRecords(key=log.key, low_watermark=self.low_watermark)
        self.waiting.append((target, ticket))
        log.changes |= Changes.DEADLINE
        return None

    def follower_starts(self, broker_id: int, log_start_offset: int) -> None:
        """A follower's fetch reports where its log starts."""
        if log_start_offset >= 0 and log_start_offset != self._starts.get(broker_id):
            self._starts[broker_id] = log_start_offset
            self.moved()

    def start_of(self, broker_id: int) -> int:
        """Where a follower's log starts according to its last fetch; -1 if that did not say."""
        return self._starts.get(broker_id, -1)

    def moved(self) -> None:
        """A log's start moved, or the ISR changed: requests that waited for that are answered."""
        if not self.waiting:
            return
        low = self.low_watermark
        done = [ticket for target, ticket in self.waiting if target <= low]
        self.waiting = [each for each in self.waiting if each[0] > low]
        self._log.changes |= Changes.DEADLINE
        for ticket in done:
            ticket.complete(DeletedRecords(key=self._log.key, low_watermark=low))

    def tick(self, now_ms: int) -> None:
        text = "only the leader and some in-sync replicas have deleted them in time: send the request again"
        overdue = [each for each in self._for_others() if each[1].deadline_ms <= now_ms]
        self._fail(overdue, ErrorCode.REQUEST_TIMED_OUT, f"{self._log}: {text}")

    def resign(self, error: ErrorCode, message: str) -> None:
        self._fail(self.waiting, error, f"{self._log}: {message}")

    def _fail(self, those: list[tuple[int, DeleteTicket]], error: ErrorCode, message: str) -> None:
        self.waiting = [each for each in self.waiting if each not in those]
        for _, ticket in those:
            ticket.complete(DeletedRecords(key=self._log.key, error=error, message=message))

    def cancel(self, ticket: DeleteTicket) -> None:
        self.waiting = [each for each in self.waiting if each[1] is not ticket]
