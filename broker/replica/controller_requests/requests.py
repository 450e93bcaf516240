"""The requests of a broker's replicas to the active controller: ISRs, directories, producer ids."""

from __future__ import annotations

import msgspec

from metaquorum.broker.channel import (
    ChannelRequest,
    ChannelResponse,
    ControllerReported,
    NoAnswer,
    RequestInFlight,
    RequestKind,
)
from metaquorum.broker.replica.controller_requests.assignments import Assignments
from metaquorum.broker.replica.controller_requests.isr_changes import IsrChanges
from metaquorum.broker.replica.controller_requests.producer_ids import ProducerIdBlocks
from metaquorum.broker.replica.deadlines import earliest
from metaquorum.broker.replica.events import DataEffect
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
from metaquorum.raft.effects import Outbox

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
        out: Outbox[DataEffect],
    ) -> None:
        self._out = out
        self._broker_id = broker_id
        self._assignments = assignments
        self._isr = isr
        self._producer_ids = producer_ids
        self.broker_epoch = -1

    def reported(self, event: ControllerReported, *, now_ms: int) -> Learned:
        """What came of a request. A report on an older one changes nothing."""
        for kind in (self._isr.call, self._assignments.call, self._producer_ids.call):
            sent = kind.end(event.target, event.correlation_id)
            if sent is not None:
                return self._ended(kind, sent, event.outcome, now_ms)
        return Learned()

    def late(self, now_ms: int) -> list[Learned]:
        """Requests whose time is up: no answer counts."""
        nothing = NoAnswer("the controller did not answer in time")
        return [
            self._ended(kind, sent, nothing, now_ms)
            for kind in (self._isr.call, self._assignments.call, self._producer_ids.call)
            if (sent := kind.end_late(now_ms)) is not None
        ]

    def _ended(
        self,
        kind: RequestKind,
        sent: RequestInFlight,
        outcome: ChannelResponse | ApiError | NoAnswer,
        now_ms: int,
    ) -> Learned:
        match sent.request, outcome:
            case AlterPartitionRequest(), AlterPartitionResponse():
                return Learned(tuple(self._isr.answered(outcome, now_ms=now_ms)))
            case AssignReplicasToDirsRequest(), AssignReplicasToDirsResponse():
                return Learned(lost=tuple(self._assignments.answered(outcome, now_ms)))
            case AllocateProducerIdsRequest(), AllocateProducerIdsResponse():
                self._producer_ids.received(outcome)
                return Learned()
        if not isinstance(outcome, ApiError | NoAnswer):
            outcome = NoAnswer("the answer does not match the request")
        kind.fails(now_ms, sent, outcome)
        match sent.request:
            case AlterPartitionRequest():
                error = outcome
                if isinstance(error, NoAnswer):
                    error = ApiError(ErrorCode.REQUEST_TIMED_OUT, error.reason)
                return Learned(tuple(self._isr.failed(error, now_ms=now_ms)))
            case AssignReplicasToDirsRequest():
                self._assignments.failed()
        return Learned()

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
        asked = (isr.call.in_flight, assignments.call.in_flight, ids.call.in_flight)
        if self.broker_epoch < 0 or not (waits or asked != _NOTHING_ASKED or isr.refused.when):
            return None
        return earliest(
            self._producer_ids.next_deadline_ms(),
            self._assignments.next_deadline_ms(),
            self._isr.next_deadline_ms(),
        )

    def _send(self, kind: RequestKind, request: ChannelRequest | None, now_ms: int) -> None:
        if request is not None:
            self._out.append(kind.send(now_ms, request))
