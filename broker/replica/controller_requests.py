"""The requests of a broker's replicas to the active controller: ISRs, directories, producer ids."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from metaquorum.broker.channel import (
    ChannelRequest,
    ChannelResponse,
    ControllerReported,
    NoAnswer,
    RequestInFlight,
    RequestKind,
)
from metaquorum.broker.replica.deadlines import Deadlines, earliest
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import LOST
from metaquorum.metadata.requests.data import InitProducerIdResponse, PartitionKey
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    PartitionAlteration,
    ReplicaAssignment,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from metaquorum.raft.effects import Outbox

# The ISR changes that this broker's leaders want, collected into AlterPartition requests (KIP-497).

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


# Reports to the controller which directory each replica is in (KIP-858 AssignReplicasToDirs).
#
# The newest report on a replica counts: what it supersedes is no longer sent.

ASSIGNMENTS_PER_REQUEST_MAX = 1_000

SUPERSEDED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""The controller knows of no such replica: newer metadata will show that here too."""


class Assignments:
    """What must be reported. One request in flight; at most one entry per replica."""

    def __init__(self, call: RequestKind, lost_timeout_ms: int) -> None:
        self.call = call
        self._lost_timeout_ms = lost_timeout_ms
        self.wanted: dict[PartitionKey, bytes] = {}
        self._sent: dict[PartitionKey, bytes] = {}
        self._reported: dict[PartitionKey, bytes] = {}
        self.lost_since_ms: dict[PartitionKey, int] = {}

    def __len__(self) -> int:
        """The number of replicas whose newest directory the controller does not know."""
        return len(self.wanted.keys() | self._sent.keys())

    def want(self, key: PartitionKey, directory_id: bytes) -> None:
        """The replica is in `directory_id`. What was acknowledged or is in flight is not sent again."""
        if self._reported.get(key) == directory_id:
            return
        if self._sent.get(key) == directory_id:
            self.wanted.pop(key, None)
            return
        self.wanted[key] = directory_id

    def lose(self, key: PartitionKey, now_ms: int) -> None:
        """The directory failed before the assignment was committed: the controller must learn that first."""
        self._reported.pop(key, None)
        self.wanted[key] = LOST
        self.lost_since_ms.setdefault(key, now_ms)

    def owes_lost(self, key: PartitionKey) -> bool:
        return key in self.lost_since_ms

    def settle(self, key: PartitionKey) -> None:
        """The image shows everything about the replica, or the replica is no longer on this broker."""
        self.wanted.pop(key, None)
        self._reported.pop(key, None)
        self.lost_since_ms.pop(key, None)

    def doubt(self, key: PartitionKey) -> None:
        """The image changed the replica, so what was reported about its directory may have been undone (it
        left and came back): it is reported again if the image does not show it. A loss stays reported."""
        self._reported.pop(key, None)
        if self._sent.get(key, LOST) != LOST:
            del self._sent[key]

    def clear_reported(self) -> None:
        """A new registration: what was acknowledged under the previous one is sent again if it must be."""
        self._reported.clear()

    def next_request(self, broker_id: int, broker_epoch: int) -> AssignReplicasToDirsRequest | None:
        """The next batch, oldest first, which is then in flight. None if there is nothing to report."""
        if not self.wanted:
            return None
        batch = list(self.wanted.items())[:ASSIGNMENTS_PER_REQUEST_MAX]
        self._sent = dict(batch)
        for key, _ in batch:
            del self.wanted[key]
        return AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            assignments=tuple(
                ReplicaAssignment(directory_id=directory_id, topic_id=key[0], partition=key[1])
                for key, directory_id in batch
            ),
        )

    def answered(self, response: AssignReplicasToDirsResponse, now_ms: int) -> list[PartitionKey]:
        """Returns the replicas whose loss is now acknowledged: they may be recreated."""
        sent, self._sent = self._sent, {}
        self.call.succeeded()
        freed: list[PartitionKey] = []
        refused = False
        for result in response.results:
            key = (result.topic_id, result.partition)
            directory_id = sent.pop(key, None)
            if directory_id is None:
                continue
            if result.error is ErrorCode.NONE or result.error in SUPERSEDED:
                freed += self._acknowledged(key, directory_id, is_reported=result.error is ErrorCode.NONE)
            else:
                refused = True
                self.wanted.setdefault(key, directory_id)
        for key, directory_id in sent.items():
            self.wanted.setdefault(key, directory_id)
        if refused or sent:
            self.call.count_failure(now_ms)
        return freed

    def failed(self) -> None:
        """The outcome of the request is unknown: what nothing supersedes is sent again, first."""
        again = {key: where for key, where in self._sent.items() if key not in self.wanted}
        self.wanted = again | self.wanted
        self._sent = {}

    def _acknowledged(
        self, key: PartitionKey, directory_id: bytes, *, is_reported: bool
    ) -> list[PartitionKey]:
        if key in self.wanted:
            return []
        if directory_id == LOST:
            self.lost_since_ms.pop(key, None)
            return [key]
        if is_reported:
            self._reported[key] = directory_id
        return []

    def lost_deadline_ms(self) -> int | None:
        """When the broker has to stop unless all losses are acknowledged (S3.6); None if there are none."""
        first = next(iter(self.lost_since_ms.values()), None)
        return None if first is None else first + self._lost_timeout_ms

    def reason_to_stop(self, now_ms: int) -> str | None:
        """Why the broker has to stop, in one line: a loss was not acknowledged in time. Else None."""
        lost_ms = self.lost_deadline_ms()
        if lost_ms is None or now_ms < lost_ms:
            return None
        return (
            "stopped: a log directory failed before its replicas were assigned to it, and no controller "
            f"acknowledged the loss within {self._lost_timeout_ms} ms (log.dir.failure.timeout.ms); check "
            "the quorum and restart"
        )

    def next_deadline_ms(self) -> int | None:
        return earliest(self.call.next_deadline_ms(waits=bool(self.wanted)), self.lost_deadline_ms())


# Producer ids for idempotent producers, from blocks that the controller gives this broker (KIP-98, KIP-730).
#
# An id is given once in the cluster's life; the rest of a block is lost with the process.

WAITING_MAX = 10_000


class ProducerIdBlocks:
    """Answers InitProducerId, at once while it has a block."""

    def __init__(self, call: RequestKind, request_timeout_ms: int, out: Outbox[DataEffect]) -> None:
        self._out = out
        self.call = call
        self._timeout_ms = request_timeout_ms
        self._next = 0
        self._end = 0
        self._waiting: deque[int] = deque()
        self.keys: dict[int, object] = {}
        self._serials: dict[object, int] = {}
        self._serial = 0
        self._deadlines: Deadlines[int] = Deadlines()

    def ask(self, key: object, now_ms: int) -> ApiError | InitProducerIdResponse | None:
        """The answer, or None if it waits for the next block."""
        if self._next < self._end:
            return self._take()
        if len(self.keys) >= WAITING_MAX:
            text = f"{WAITING_MAX} producers are already waiting for an id: try again later"
            return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        self._serial += 1
        self._waiting.append(self._serial)
        self.keys[self._serial] = key
        self._serials[key] = self._serial
        self._deadlines.arm(self._serial, now_ms + self._timeout_ms)
        return None

    def cancel(self, key: object) -> bool:
        serial = self._serials.pop(key, None)
        if serial is None:
            return False
        del self.keys[serial]
        self._deadlines.disarm(serial)
        return True

    def received(self, block: AllocateProducerIdsResponse) -> None:
        """A block for this broker: waiting requests are answered while it lasts."""
        self.call.succeeded()
        self._next, self._end = block.first_id, block.first_id + block.count
        while self._waiting and self._next < self._end:
            key = self._pop(self._waiting.popleft())
            if key is not None:
                self._out.append(DataRespond(key=key, response=self._take()))

    def tick(self, now_ms: int) -> None:
        for serial in self._deadlines.take_due(now_ms):
            key = self._pop(serial)
            text = (
                "the controller did not allocate a block of producer ids in time: check the quorum, "
                "and try again"
            )
            if key is not None:
                self._out.append(DataRespond(key=key, response=ApiError(ErrorCode.REQUEST_TIMED_OUT, text)))

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        keys = list(self.keys.values())
        self.keys.clear()
        self._serials.clear()
        self._waiting.clear()
        return keys

    def next_deadline_ms(self) -> int | None:
        return earliest(self.call.next_deadline_ms(waits=bool(self.keys)), self._deadlines.next_ms())

    def _pop(self, serial: int) -> object | None:
        key = self.keys.pop(serial, None)
        self._deadlines.disarm(serial)
        if key is not None:
            self._serials.pop(key, None)
        return key

    def _take(self) -> InitProducerIdResponse:
        self._next += 1
        return InitProducerIdResponse(producer_id=self._next - 1, producer_epoch=0)


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
