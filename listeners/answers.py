"""The responses of one connection: their order, and those that another node has encoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from metaquorum.wire import codec
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.primitives import Buffer
from metaquorum.wire.table import API_BY_NAME

Chunks = list[Buffer]


class AnswerFrame(msgspec.Struct, frozen=True, gc=False):
    """A response as another node has encoded it for the same request: its bytes are passed on unless its body
    is needed or changed here."""

    api_key: int
    version: int
    frame: bytes

    def body(self) -> Any:
        return codec.decode_response(self.api_key, self.version, self.frame).body


def opened(answer: Any) -> Any:
    """The body of an answer."""
    return answer.body() if type(answer) is AnswerFrame else answer


class AnswerQueue:
    """Requests in progress on one connection. A response leaves once all earlier ones have; `left` is then
    called with the size of its request in bytes."""

    def __init__(self, *, max_requests: int, max_bytes: int, left: Callable[[int], object]) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._left = left
        self._first = 0
        self._sizes: deque[int] = deque()
        self._done: dict[int, Chunks] = {}
        self.bytes_in_progress = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def has_room(self) -> bool:
        """True if another request may begin. A request larger than the bound of bytes may begin if it is the
        only one."""
        return len(self._sizes) < self._max_requests and (
            not self._sizes or self.bytes_in_progress < self._max_bytes
        )

    def begin(self, size: int) -> int:
        """Adds a request of `size` bytes; returns its number."""
        self._sizes.append(size)
        self.bytes_in_progress += size
        return self._first + len(self._sizes) - 1

    def finish(self, number: int, chunks: Chunks) -> Chunks:
        """Notes the response to the request with this number (empty for none); returns the chunks that can
        leave now."""
        if number != self._first:
            self._done[number] = chunks
            return []
        self._leave()
        while self._done and self._first in self._done:
            chunks = chunks + self._done.pop(self._first)
            self._leave()
        return chunks

    def drop(self) -> None:
        """The connection has ended: forgets all requests."""
        self._first += len(self._sizes)
        self._sizes.clear()
        self._done.clear()
        self.bytes_in_progress = 0

    def _leave(self) -> None:
        size = self._sizes.popleft()
        self._first += 1
        self.bytes_in_progress -= size
        self._left(size)


PREPARED_MAX_BYTES = 32 * 1024 * 1024
"""The most encoded bodies that are kept; beyond it, bodies are encoded each time."""


class Prepared:
    """Responses that are sent repeatedly: a body is encoded once, and its bytes are sent each time. A body is
    identified by its identity, so a changed one must be a new object. `add` announces that a body will be
    sent repeatedly in one version of an API; `forget` drops all bodies."""

    def __init__(self, bytes_max: int = PREPARED_MAX_BYTES) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bodies: dict[int, tuple[Any, bytes | None]] = {}

    def add(self, body: Any) -> None:
        self._bodies[id(body)] = body, None

    def forget(self) -> None:
        self._bodies.clear()
        self._bytes = 0

    def encode(self, header: RequestHeader, body: Any) -> Chunks:
        """The response frame with this body. Raises EncodeError."""
        entry = self._bodies.get(id(body))
        if entry is None or entry[0] is not body:
            return codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        data = entry[1]
        if data is None:
            data = codec.encode_body(header.api_key, header.version, body)
            if self._bytes + len(data) <= self._bytes_max:
                self._bytes += len(data)
                self._bodies[id(body)] = body, data
        return [codec.response_header(header.api_key, header.version, header.correlation_id), data]


_PRODUCE = API_BY_NAME["Produce"].key
_ADD_PARTITIONS = API_BY_NAME["AddPartitionsToTxn"].key
_MARKERS = API_BY_NAME["WriteTxnMarkers"].key
ADD_PARTITIONS_OF_BROKERS = 4
"""The version from which AddPartitionsToTxn is a broker's."""
_LOOK_UPS = frozenset(
    API_BY_NAME[name].key
    for name in ("ListOffsets", "OffsetFetch", "OffsetForLeaderEpoch", "FindCoordinator", "DescribeGroups")
)
_BETWEEN_BROKERS = "transactions"


def group_of(request: Request) -> object | None:
    """Requests with the same group may be in progress together; None: only alone.

    As in Kafka, a request begins when all earlier ones of its connection are answered, so that it sees their
    effects. Requests overlap only if their order is decided where they begin, or does not matter: a
    producer's, whose batches are appended as they arrive; the same look-up, again; and what brokers say to
    each other about transactions, where the sender waits for what it needs.
    """
    key = request.header.api_key
    if key == _PRODUCE:
        return key, request.body.transactional_id
    if key in _LOOK_UPS:
        return key
    if key == _MARKERS or (key == _ADD_PARTITIONS and request.header.version >= ADD_PARTITIONS_OF_BROKERS):
        return _BETWEEN_BROKERS
    return None
