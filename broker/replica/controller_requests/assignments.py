"""Reports to the controller which directory each replica is in (KIP-858 AssignReplicasToDirs).

The newest report on a replica counts: what it supersedes is no longer sent.
"""

from __future__ import annotations

from metaquorum.broker.channel import RequestKind
from metaquorum.broker.replica.deadlines import earliest
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import LOST
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.requests.partitions import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    ReplicaAssignment,
)

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
