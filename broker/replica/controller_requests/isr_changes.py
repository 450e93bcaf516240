"""The ISR changes that this broker's leaders want, collected into AlterPartition requests (KIP-497)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from metaquorum.broker.channel import RequestKind
from metaquorum.broker.replica.deadlines import Deadlines, earliest
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionAlteration,
)

ALTERATIONS_PER_REQUEST_MAX = 1_000

Find = Callable[[PartitionKey], Partition | None]


class IsrChanges:
    """One request in flight; at most one entry per partition. `before_asked` is called with each partition
    just before its proposal is taken."""

    def __init__(
        self,
        call: RequestKind,
        find: Find,
        before_asked: Callable[[Partition], None],
        retry_ms: int,
    ) -> None:
        self._before_asked = before_asked
        self.call = call
        self._find = find
        self._retry_ms = retry_ms
        self.refused: Deadlines[PartitionKey] = Deadlines()
        self.waiting: OrderedDict[PartitionKey, None] = OrderedDict()
        self._sent: dict[PartitionKey, PartitionAlteration] = {}
        self.shrinks = 0
        self.expands = 0

    def __len__(self) -> int:
        return len(self.waiting.keys() | self._sent.keys())

    def note(self, key: PartitionKey) -> None:
        """The partition may have something to propose."""
        self.waiting[key] = None

    def tick(self, now_ms: int) -> None:
        """Proposals that were refused are tried again after a while: nothing else may ever move in an idle
        partition."""
        for key in self.refused.take_due(now_ms):
            self.waiting[key] = None

    def next_deadline_ms(self) -> int | None:
        return earliest(self.call.next_deadline_ms(waits=bool(self.waiting)), self.refused.next_ms())

    def next_request(self, broker_id: int, broker_epoch: int, now_ms: int) -> AlterPartitionRequest | None:
        """The next batch, which is then in flight. None if no partition proposes anything."""
        batch: list[PartitionAlteration] = []
        while self.waiting and len(batch) < ALTERATIONS_PER_REQUEST_MAX:
            key, _ = self.waiting.popitem(last=False)
            partition = self._find(key)
            if partition is None:
                continue
            self._before_asked(partition)
            change = partition.isr_change(now_ms=now_ms)
            if change is not None:
                batch.append(change)
                self._sent[key] = change
        if not batch:
            return None
        return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, partitions=tuple(batch))

    def answered(self, response: AlterPartitionResponse, *, now_ms: int) -> list[Partition]:
        """Returns the partitions that got an answer."""
        sent, self._sent = self._sent, {}
        self.call.succeeded()
        learned: list[Partition] = []
        for result in response.results:
            key = (result.topic_id, result.partition)
            change, partition = sent.pop(key, None), self._find(key)
            if change is None or partition is None:
                continue
            before = len(partition.isr)
            partition.isr_answered(change, result, now_ms=now_ms)
            learned.append(partition)
            if result.error is ErrorCode.NONE:
                self._count(before, len(result.isr))
            else:
                # A partition bars new members for this long; the bar must be over when it is tried again.
                self.refused.arm(key, now_ms + self._retry_ms + 1)
        missing = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not mention the partition")
        learned += self._give_back(sent, missing, now_ms)
        if sent:
            self.call.count_failure(now_ms)
        return learned

    def failed(self, error: ApiError, *, now_ms: int) -> list[Partition]:
        """The outcome of the request is unknown: everything in it is tried again after a while."""
        sent, self._sent = self._sent, {}
        return self._give_back(sent, error, now_ms)

    def _give_back(
        self,
        sent: dict[PartitionKey, PartitionAlteration],
        error: ApiError,
        now_ms: int,
    ) -> list[Partition]:
        learned = []
        for key, change in sent.items():
            partition = self._find(key)
            if partition is not None:
                partition.isr_answered(change, error, now_ms=now_ms)
                self.waiting[key] = None
                learned.append(partition)
        return learned

    def _count(self, before: int, after: int) -> None:
        self.shrinks += after < before
        self.expands += after > before
