"""The requests of a broker's replicas to the active controller: ISRs, directories, producer ids.

Owns the three kinds of requests together: one of each is in flight, an answer goes to the part that sent the
request, and a request without a report is sent again. Does not know what to send or what an answer means: the
parts do.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from metaquorum.broker.replica.controller_requests.assignments import Assignments
from metaquorum.broker.replica.controller_requests.calls import ControllerCall
from metaquorum.broker.replica.controller_requests.isr_changes import IsrChanges
from metaquorum.broker.replica.controller_requests.producer_ids import ProducerIdBlocks
from metaquorum.broker.replica.deadlines import earliest
from metaquorum.broker.replica.events import AskController, ControllerAnswered, DataEffect
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.raft.outbox import Outbox

_NOTHING_ASKED = (None, None, None)


class Learned(msgspec.Struct, frozen=True):
    """`partitions` learned of their ISRs; the loss of the `lost` replicas is acknowledged."""

    partitions: tuple[Partition, ...] = ()
    lost: tuple[PartitionKey, ...] = ()


class ControllerTalk:
    """Sends nothing before `broker_epoch` is known."""

    def __init__(
        self,
        broker_id: int,
        assignments: Assignments,
        isr: IsrChanges,
        producer_ids: ProducerIdBlocks,
        next_correlation_id: Callable[[], int],
        out: Outbox[DataEffect],
    ) -> None:
        self._out = out
        self._broker_id = broker_id
        self._assignments = assignments
        self._isr = isr
        self._producer_ids = producer_ids
        self._next_correlation_id = next_correlation_id
        self.broker_epoch = -1

    def answered(self, event: ControllerAnswered, *, now_ms: int) -> Learned:
        """An answer to an older request is dropped."""
        at, response = event.correlation_id, event.response
        error = response if isinstance(response, ApiError) else None
        if error is None:
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not match the request")
        if at == self._isr.call.correlation_id:
            if isinstance(response, AlterPartitionResponse):
                return Learned(tuple(self._isr.answered(response, now_ms=now_ms)))
            return Learned(tuple(self._isr.failed(error, now_ms=now_ms)))
        if at == self._assignments.call.correlation_id:
            if isinstance(response, AssignReplicasToDirsResponse):
                return Learned(lost=tuple(self._assignments.answered(response, now_ms)))
            self._assignments.failed(now_ms, error)
        elif at == self._producer_ids.call.correlation_id:
            if isinstance(response, AllocateProducerIdsResponse):
                self._producer_ids.received(response)
            else:
                self._producer_ids.call.failed(now_ms, error)
        return Learned()

    def unreported(self, now_ms: int) -> list[ControllerAnswered]:
        """Requests without a report count as refused."""
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer")
        return [
            ControllerAnswered(correlation_id=call.correlation_id, response=error)
            for call in (self._isr.call, self._assignments.call, self._producer_ids.call)
            if call.correlation_id is not None and call.is_lost(now_ms)
        ]

    def ask(self, *, now_ms: int) -> None:
        """Sends what can be sent now."""
        me, epoch = self._broker_id, self.broker_epoch
        if epoch < 0 or not (self._assignments.wanted or self._isr.waiting or self._producer_ids.keys):
            return
        if self._assignments.call.is_ready(now_ms):
            self._send(self._assignments.call, self._assignments.next_request(me, epoch), now_ms)
        if self._isr.waiting and self._isr.call.is_ready(now_ms):
            self._send(self._isr.call, self._isr.next_request(me, epoch, now_ms), now_ms)
        if self._producer_ids.keys and self._producer_ids.call.is_ready(now_ms):
            request = AllocateProducerIdsRequest(broker_id=me, broker_epoch=epoch)
            self._send(self._producer_ids.call, request, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Called at every step; as a rule nothing is due."""
        isr, assignments, ids = self._isr, self._assignments, self._producer_ids
        waits = isr.waiting or assignments.wanted or assignments.lost_since_ms or ids.keys
        asked = (isr.call.correlation_id, assignments.call.correlation_id, ids.call.correlation_id)
        if self.broker_epoch < 0 or not (waits or asked != _NOTHING_ASKED or isr.refused.when):
            return None
        return earliest(
            self._producer_ids.next_deadline_ms(),
            self._assignments.next_deadline_ms(),
            self._isr.next_deadline_ms(),
        )

    def _send(
        self,
        call: ControllerCall,
        request: AlterPartitionRequest | AssignReplicasToDirsRequest | AllocateProducerIdsRequest | None,
        now_ms: int,
    ) -> None:
        if request is None:
            return
        correlation_id = self._next_correlation_id()
        call.sent(correlation_id, now_ms)
        self._out.append(
            AskController(
                target=call.target,
                correlation_id=correlation_id,
                request=request,
                timeout_ms=call.timeout_ms,
            )
        )
