"""What this broker's leaders want changed of their ISRs, collected into AlterPartition requests (KIP-497).

Owns which partitions have to be asked and what is under way. What is proposed, and what an answer means, is
the partition's.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.replica.controller_calls import ControllerCall
from broker.replica.events import DataEffect
from broker.replica.messages import PartitionKey
from broker.replica.partition import Partition
from metadata.errors import ApiError, ErrorCode
from metadata.requests_partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionAlteration,
)

ALTERATIONS_PER_REQUEST_MAX = 1_000

Find = Callable[[PartitionKey], Partition | None]


class IsrChanges:
    """One request in flight; bounded by the number of partitions, once each."""

    def __init__(self, call: ControllerCall, find: Find) -> None:
        self.call = call
        self._find = find
        self._waiting: dict[PartitionKey, None] = {}
        self._sent: dict[PartitionKey, PartitionAlteration] = {}
        self.shrinks = 0
        self.expands = 0

    def __len__(self) -> int:
        return len(self._waiting.keys() | self._sent.keys())

    def note(self, key: PartitionKey) -> None:
        """The partition may have something to propose."""
        self._waiting[key] = None

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def next_request(self, broker_id: int, broker_epoch: int, now_ms: int) -> AlterPartitionRequest | None:
        """The next batch, which is in flight then; None: nobody proposes anything."""
        batch: list[PartitionAlteration] = []
        while self._waiting and len(batch) < ALTERATIONS_PER_REQUEST_MAX:
            key = next(iter(self._waiting))
            del self._waiting[key]
            partition = self._find(key)
            change = None if partition is None else partition.isr_change(now_ms=now_ms)
            if change is not None:
                batch.append(change)
                self._sent[key] = change
        if not batch:
            return None
        return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, partitions=tuple(batch))

    def answered(
        self, response: AlterPartitionResponse, *, now_ms: int, out: list[DataEffect]
    ) -> list[Partition]:
        """Partitions that learned something."""
        sent, self._sent = self._sent, {}
        self.call.succeeded()
        learned: list[Partition] = []
        refused = False
        for result in response.results:
            key = (result.topic_id, result.partition)
            change, partition = sent.pop(key, None), self._find(key)
            if change is None or partition is None:
                continue
            before = len(partition.isr)
            partition.isr_answered(change, result, now_ms=now_ms, out=out)
            learned.append(partition)
            if result.error is ErrorCode.NONE:
                self._count(before, len(result.isr))
            else:
                refused = True
                self._waiting[key] = None
        missing = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer leaves the partition out")
        learned += self._give_back(sent, missing, now_ms, out)
        if refused or sent:
            self.call.failures += 1
            self.call.back_off(now_ms)
        return learned

    def failed(self, error: ApiError, *, now_ms: int, out: list[DataEffect]) -> list[Partition]:
        """It is not known what became of the request: all is asked again after a while."""
        sent, self._sent = self._sent, {}
        self.call.failed(now_ms, error)
        return self._give_back(sent, error, now_ms, out)

    def _give_back(
        self,
        sent: dict[PartitionKey, PartitionAlteration],
        error: ApiError,
        now_ms: int,
        out: list[DataEffect],
    ) -> list[Partition]:
        learned = []
        for key, change in sent.items():
            partition = self._find(key)
            if partition is not None:
                partition.isr_answered(change, error, now_ms=now_ms, out=out)
                self._waiting[key] = None
                learned.append(partition)
        return learned

    def _count(self, before: int, after: int) -> None:
        self.shrinks += after < before
        self.expands += after > before
