"""Records that clients delete from a log's start on (KIP-107): done when the start has moved on every
replica.

Owns the requests that wait for that. Does not remove segments: the directory's store does. A start that has
moved is durable before it is reported; replicas that are not in sync move theirs when they have caught up,
before they are in sync again.
"""

from __future__ import annotations

from typing import Any

from metaquorum.broker.replica.partition.isr import IsrState
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.broker.replica.partition.reading import visible_end
from metaquorum.broker.replica.partition.values import Changes, DeleteTicket, Ticket
from metaquorum.broker.replica.partition.waiting import Waiting, WaitingTickets
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.log_ends import TO_HIGH_WATERMARK, DeletedRecords


class Deleting:
    """The deletions that one leader has pending."""

    def __init__(self, log: LocalLog, isr: IsrState) -> None:
        self._log = log
        self._isr = isr
        self._starts: dict[int, int] = {}
        self._until_trimmed: WaitingTickets[None] = WaitingTickets()
        self._until_everywhere: WaitingTickets[None] = WaitingTickets()

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits."""
        return bool(self._until_trimmed.heap or self._until_everywhere.heap)

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
        """Of requests that wait only for followers. As in Kafka only that has a time limit: a request with
        timeout 0 waits for the leader's own log."""
        return self._until_everywhere.deadline_ms

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
        waits = self._until_everywhere if target <= log.start else self._until_trimmed
        waits.add(Waiting(ticket, target, None))
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
        if not self.is_awaited:
            return
        for waiting in self._until_trimmed.reached(self._log.start):
            self._until_everywhere.add(waiting)
        low = self.low_watermark
        self._log.changes |= Changes.DEADLINE
        for waiting in self._until_everywhere.reached(low):
            waiting.ticket.complete(DeletedRecords(key=self._log.key, low_watermark=low))

    def tick(self, now_ms: int) -> None:
        text = "only the leader and some in-sync replicas have deleted them in time: send the request again"
        self._fail(self._until_everywhere.overdue(now_ms), ErrorCode.REQUEST_TIMED_OUT, text)

    def resign(self, error: ErrorCode, message: str) -> None:
        self._fail([*self._until_trimmed.all(), *self._until_everywhere.all()], error, message)

    def _fail(self, those: list[Waiting[None]], error: ErrorCode, message: str) -> None:
        result = DeletedRecords(key=self._log.key, error=error, message=f"{self._log}: {message}")
        for waiting in those:
            waiting.ticket.complete(result)

    def cancel(self, ticket: Ticket[Any]) -> None:
        self._until_trimmed.cancel(ticket)
        self._until_everywhere.cancel(ticket)
