"""Producer ids for idempotent producers, from blocks that the controller gives this broker (KIP-98, KIP-730).

An id is given once in the cluster's life; the rest of a block is lost with the process.
"""

from __future__ import annotations

from collections import deque

from metaquorum.broker.channel import RequestKind
from metaquorum.broker.replica.deadlines import Deadlines, earliest
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import InitProducerIdResponse
from metaquorum.metadata.requests.settings import AllocateProducerIdsResponse
from metaquorum.raft.effects import Outbox

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
