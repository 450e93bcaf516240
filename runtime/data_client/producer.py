"""The producer: takes messages, batches them by partition, and sends them to their leaders.

Owns partitioning, when a batch is sent, and what its sender learns. Messages of one topic are taken in the
order in which their sends began, whatever each of them waits for (`turns`). The rules of order and sequences
through retries are `produce_queue`'s, sending and answers `sender`'s. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.cluster_view import ClusterView
from metaquorum.runtime.data_client.connections import Connections
from metaquorum.runtime.data_client.producing.batches import BatchBuilder, Headers, Payload, foreign_payload
from metaquorum.runtime.data_client.producing.buffer import Buffer
from metaquorum.runtime.data_client.producing.partitioner import StickyPartition, partition_of
from metaquorum.runtime.data_client.producing.produce_queue import OutBatch
from metaquorum.runtime.data_client.producing.producer_config import ProducerConfig
from metaquorum.runtime.data_client.producing.sender import Lane, Sender, SendError
from metaquorum.runtime.data_client.producing.turns import Turns

__all__ = ["Producer", "ProducerConfig", "Receipt", "SendError", "Settlement"]

_RECORD_OVERHEAD_BYTES = 8
"""Of a small plain record, for the sticky partition's account."""


class Receipt:
    """Messages `first` to `first + count - 1` of one batch. Awaited, it gives the offset of the first of them
    (-1 with acks 0), or raises SendError."""

    __slots__ = ("_future", "count", "first", "partition", "topic")

    def __init__(self, lane: Lane, future: asyncio.Future[int], first: int, count: int) -> None:
        self.topic = lane.topic
        self.partition = lane.partition
        self.first = first
        self.count = count
        self._future = future

    def __await__(self) -> Generator[Any, None, int]:
        base = yield from asyncio.shield(self._future).__await__()
        return base if base < 0 else base + self.first

    def done(self) -> bool:
        return self._future.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A batch that was acknowledged (`error` None) or failed. `taken`: (how many messages, when they were
    taken, as `time.monotonic` has it: a loop's own clock may go in milliseconds)."""

    topic: str
    partition: int
    count: int
    size_bytes: int
    base_offset: int
    taken: Sequence[tuple[int, float]]
    error: SendError | None


@dataclass(slots=True)
class _Handle:
    """What belongs to a batch besides its bytes."""

    lane: Lane
    future: asyncio.Future[int]
    size_bytes: int = 0
    taken: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A lane's batch that still takes records."""

    builder: BatchBuilder
    handle: _Handle
    timer: asyncio.TimerHandle | None = None


class Producer:
    """`async with Producer(connections, bootstrap, config) as producer`: leaving the block sends the rest."""

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[Address],
        config: ProducerConfig | None = None,
        *,
        rng: random.Random | None = None,
        observer: Callable[[Settlement], None] | None = None,
    ) -> None:
        self.config = config or ProducerConfig()
        self._observer = observer
        self._connections = connections
        self._rng = rng or random.Random()
        self._view = ClusterView(connections, bootstrap, rng=self._rng, changed=self._view_changed)
        self._sender = Sender(
            connections, self._view, self.config.limits(), self._rng, self._seal, self._settled
        )
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._open: dict[Lane, _Open] = {}
        self._sticky: dict[str, StickyPartition] = {}
        self._turns: dict[str, Turns] = {}
        self._buffer = Buffer(self.config.buffer_bytes)
        self._view_task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._view_task = self._loop.create_task(self._view.run())
        self._sender.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.close(flush=kind is None)

    # --- taking messages

    @property
    def buffered_bytes(self) -> int:
        """Taken and not settled."""
        return self._buffer.used_bytes

    async def partitions(self, topic: str) -> int:
        """How many the topic has. Raises ApiError for an unknown topic, ClientError when no one answers."""
        if self._view.topic(topic) is None:
            await self._view.find_topics([topic], timeout_ms=self.config.metadata_timeout_ms)
        known = self._view.topic(topic)
        return len(known.partitions) if known else 0

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Receipt:
        """Takes one message, waiting while the buffer is full; await the receipt for its acknowledgement.
        Raises ApiError for an unknown topic or partition, ClientError when no one tells about it."""
        if topic in self._turns or not self._buffer.has_room or self._view.topic(topic) is None:
            async with self._turn(topic):
                lane, receipt = self._take(topic, value, key, headers, partition, timestamp_ms)
        else:
            lane, receipt = self._take(topic, value, key, headers, partition, timestamp_ms)
        if not lane.has_open:
            await asyncio.sleep(0)  # a full batch: who sends in a loop must let the loop send it
        return receipt

    def _take(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[Lane, Receipt]:
        """One message of a known topic, at once."""
        lane = self._lane(topic, key, partition)
        self._account(lane, len(value or b"") + _RECORD_OVERHEAD_BYTES)
        stamp = self._now_ms() if timestamp_ms is None else timestamp_ms
        opened = self._opened(lane, stamp)
        if not opened.builder.append(value, key=key, headers=headers, timestamp_ms=stamp):
            self._seal(lane)
            opened = self._opened(lane, stamp)
            opened.builder.append(value, key=key, headers=headers, timestamp_ms=stamp)
        self._count(lane, opened, 1)
        return lane, Receipt(lane, opened.handle.future, opened.builder.count - 1, 1)

    async def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[Receipt]:
        """Takes plain values, in order, a batch at a time: much less work than one by one. One receipt for
        each batch. Without `partition` each batch goes to the partition that is stuck to then."""
        receipts: list[Receipt] = []
        at = 0
        async with self._turn(topic):
            while at < len(values):
                await self._room()
                lane = self._lane(topic, None, partition)
                stamp = self._now_ms() if timestamp_ms is None else timestamp_ms
                opened = self._opened(lane, stamp)
                first = opened.builder.count
                taken = opened.builder.extend(values, at, stamp)
                if not taken:
                    self._seal(lane)
                    continue
                at += taken
                self._account(lane, opened.builder.size_bytes - opened.handle.size_bytes)
                self._count(lane, opened, taken)
                receipts.append(Receipt(lane, opened.handle.future, first, taken))
                if not lane.has_open:
                    await asyncio.sleep(0)
        return receipts

    async def send_batch(self, topic: str, partition: int, batch: bytes) -> Receipt:
        """A whole record batch made elsewhere, in whatever codec. Raises BatchError if it is none."""
        payload = foreign_payload(batch)
        async with self._turn(topic):
            await self._room()
            lane = self._lane(topic, None, partition)
            self._seal(lane)
            handle = _Handle(lane, self._loop.create_future(), payload.size_bytes)
            handle.taken.append((payload.count, time.monotonic()))
            self._buffer.used_bytes += payload.size_bytes
            self._queue(lane, payload, handle)
        return Receipt(lane, handle.future, 0, payload.count)

    async def flush(self) -> None:
        """Returns when everything that was taken is settled, well or not."""
        for lane in list(self._open):
            self._seal(lane)
        await self._buffer.wait_empty()

    async def close(self, *, flush: bool = True) -> None:
        """Ends the producer. What is not acknowledged by then ends with SendError."""
        if self._closed:
            return
        try:
            if flush:
                await self.flush()
        finally:
            self._closed = True
            for lane in list(self._open):
                self._seal(lane)
            await self._sender.stop()
            if self._view_task is not None:
                self._view_task.cancel()
                await asyncio.gather(self._view_task, return_exceptions=True)

    # --- inside

    @contextlib.asynccontextmanager
    async def _turn(self, topic: str) -> AsyncIterator[None]:
        """Inside it the topic is known and everything that was sent to it before is taken."""
        turns = self._turns.setdefault(topic, Turns())
        place = turns.take()
        try:
            # Those who wait for metadata wait together: one question answers them all.
            await self.partitions(topic)
            await turns.reach(place)
            await self._room()
            yield
        finally:
            turns.leave(place)
            if not turns:
                del self._turns[topic]

    def _lane(self, topic: str, key: bytes | None, partition: int | None) -> Lane:
        """Of a known topic."""
        if self._closed:
            raise SendError(ErrorCode.INVALID_REQUEST, "the producer is closed: create another")
        known = self._view.topic(topic)
        count = len(known.partitions) if known else 0
        if partition is None:
            if key is not None:
                partition = partition_of(key, count)
            else:
                sticky = self._sticky.get(topic)
                if sticky is None:
                    sticky = self._sticky[topic] = StickyPartition(self._rng, self.config.batch_bytes)
                partition = 0 if count == 1 else sticky.choose(count, self._view.led(topic))
        elif not 0 <= partition < count:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic} has no partition {partition}: give one from 0 to {count - 1}",
            )
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = self._sender.lane(topic, partition)
        return lane

    async def _room(self) -> None:
        """Waits while the buffer is full."""
        while not self._buffer.has_room:
            # What is in open batches must go for room to come.
            for lane in list(self._open):
                self._seal(lane)
            await self._buffer.wait_freed()

    def _opened(self, lane: Lane, timestamp_ms: int) -> _Open:
        opened = self._open.get(lane)
        if opened is None:
            opened = self._open[lane] = _Open(
                BatchBuilder(timestamp_ms, self.config.batch_bytes),
                _Handle(lane, self._loop.create_future()),
            )
            lane.has_open = True
            if self.config.linger_ms:
                opened.timer = self._loop.call_later(self.config.linger_ms / 1000, self._lingered, lane)
        return opened

    def _count(self, lane: Lane, opened: _Open, added: int) -> None:
        """After records were added to the open batch."""
        handle = opened.handle
        handle.taken.append((added, time.monotonic()))
        self._buffer.used_bytes += opened.builder.size_bytes - handle.size_bytes
        handle.size_bytes = opened.builder.size_bytes
        if handle.size_bytes >= self.config.batch_bytes - _RECORD_OVERHEAD_BYTES:
            self._seal(lane)
        elif not self.config.linger_ms:
            self._lingered(lane)

    def _account(self, lane: Lane, size_bytes: int) -> None:
        sticky = self._sticky.get(lane.topic)
        if sticky is not None:
            sticky.note(size_bytes)

    def _lingered(self, lane: Lane) -> None:
        """The open batch may go; it takes more records until it can."""
        if lane.has_open:
            lane.lingered = True
            self._sender.ready(lane)

    def _seal(self, lane: Lane) -> None:
        """Closes the lane's open batch, if there is one, and queues it."""
        opened = self._open.pop(lane, None)
        if opened is None:
            return
        lane.has_open = lane.lingered = False
        if opened.timer is not None:
            opened.timer.cancel()
        if opened.builder.count:
            self._queue(lane, opened.builder.payload(self.config.codec), opened.handle)

    def _queue(self, lane: Lane, payload: Payload, handle: _Handle) -> None:
        deadline_ms = int(self._loop.time() * 1000) + self.config.delivery_timeout_ms
        lane.queue.add(OutBatch(payload=payload, deadline_ms=deadline_ms, handle=handle))
        self._sender.ready(lane)

    def _settled(self, batch: OutBatch, outcome: int | SendError) -> None:
        handle: _Handle = batch.handle
        future = handle.future
        if not future.done():
            if isinstance(outcome, SendError):
                future.set_exception(outcome)
                future.exception()  # code that does not look at it must not hear it by the loop
            else:
                future.set_result(outcome)
        if self._observer is not None:
            self._observer(
                Settlement(
                    topic=handle.lane.topic,
                    partition=handle.lane.partition,
                    count=batch.payload.count,
                    size_bytes=handle.size_bytes,
                    base_offset=-1 if isinstance(outcome, SendError) else outcome,
                    taken=handle.taken,
                    error=outcome if isinstance(outcome, SendError) else None,
                )
            )
        self._buffer.free(handle.size_bytes)

    def _view_changed(self) -> None:
        self._sender.view_changed()

    def _now_ms(self) -> int:
        return self._sender.wall_ms()
