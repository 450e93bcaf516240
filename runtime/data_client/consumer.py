"""The consumer: reads partitions from their leaders, in order, ahead of the code that takes the records.

Owns positions, what was read ahead and its bound, and what happens when a position is not in the log any
more. Fetches from each leader run beside each other (`fetcher`). Keeps no position anywhere but in memory.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.cluster_view import ClusterView, PartitionName
from metaquorum.runtime.data_client.connections import Connections
from metaquorum.runtime.data_client.consuming.fetcher import (
    Fetched,
    Fetcher,
    FetchLimits,
    Position,
    TruncatedError,
)
from metaquorum.runtime.data_client.consuming.offsets import OffsetFinder
from metaquorum.runtime.data_client.consuming.records import Record
from metaquorum.storage.errors import BatchError

__all__ = [
    "Consumer",
    "ConsumerConfig",
    "OutOfRange",
    "PolledRecords",
    "Start",
    "StartKind",
    "TruncatedError",
]


class StartKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin; `value` is the offset, or the time in ms (the first record not older)."""

    kind: StartKind
    value: int = 0


class OutOfRange(Enum):
    """What to do when the position is not in the log (retention removed it, or the log was cut)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """A fetch waits `max_wait_ms` for `min_bytes`, and gives up to `fetch_max_bytes`, of one partition up to
    `partition_max_bytes` (more where one batch is larger). No partition is read on while `prefetch_bytes`
    wait to be taken. `go_on_after_cut`: read on where a cut log goes on instead of raising TruncatedError."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    fetch_max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024
    prefetch_bytes: int = 32 * 1024 * 1024
    request_timeout_ms: int = 30_000
    metadata_timeout_ms: int = 60_000
    out_of_range: OutOfRange = OutOfRange.FAIL
    go_on_after_cut: bool = False

    def limits(self) -> FetchLimits:
        return FetchLimits(
            max_wait_ms=self.max_wait_ms,
            min_bytes=self.min_bytes,
            fetch_max_bytes=self.fetch_max_bytes,
            partition_max_bytes=self.partition_max_bytes,
            prefetch_bytes=self.prefetch_bytes,
            request_timeout_ms=self.request_timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledRecords:
    """Records of one partition, in order. `next_offset`: where the following ones begin."""

    topic: str
    partition: int
    records: Sequence[Record]
    next_offset: int
    high_watermark: int


class Consumer:
    """`async with Consumer(connections, bootstrap, config) as consumer: await consumer.assign(...)`."""

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[Address],
        config: ConsumerConfig | None = None,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config or ConsumerConfig()
        self._rng = rng or random.Random()
        self._view = ClusterView(connections, bootstrap, rng=self._rng, changed=self._view_changed)
        self._offsets = OffsetFinder(connections, self._view, self._rng)
        self._fetcher = Fetcher(connections, self._view, self.config.limits(), self._rng, self._arrived)
        self._ready: deque[Fetched] = deque()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._positions: dict[PartitionName, int] = {}

    async def __aenter__(self) -> Self:
        self._tasks.append(asyncio.get_running_loop().create_task(self._view.run()))
        return self

    async def __aexit__(self, *rest: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._fetcher.stop()

    async def partitions(self, topic: str) -> int:
        """How many the topic has. Raises ApiError for an unknown topic, ClientError when no one answers."""
        await self._view.find_topics([topic], timeout_ms=self.config.metadata_timeout_ms)
        known = self._view.topic(topic)
        return len(known.partitions) if known else 0

    async def assign(self, starts: Mapping[PartitionName, Start]) -> None:
        """Reads these partitions from now on. Raises ApiError for an unknown topic or partition, ClientError
        when not every start can be found in time."""
        await self._view.find_topics(
            {topic for topic, _ in starts}, timeout_ms=self.config.metadata_timeout_ms
        )
        for topic, partition in starts:
            known = self._view.topic(topic)
            if known is None or partition not in known.partitions:
                last = len(known.partitions) - 1 if known else 0
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic} has no partition {partition}: give one from 0 to {last}",
                )
        for name, offset in (await self._first_offsets(starts)).items():
            self._begin(name, offset)

    async def _first_offsets(self, starts: Mapping[PartitionName, Start]) -> dict[PartitionName, int]:
        questions: dict[PartitionName, int] = {}
        found: dict[PartitionName, int] = {}
        for name, start in starts.items():
            match start.kind:
                case StartKind.OFFSET:
                    found[name] = start.value
                case StartKind.TIME:
                    questions[name] = start.value
                case StartKind.EARLIEST:
                    questions[name] = EARLIEST_TIMESTAMP
                case StartKind.LATEST:
                    questions[name] = LATEST_TIMESTAMP
        timeout_ms = self.config.metadata_timeout_ms
        answers = await self._offsets.find(questions, timeout_ms=timeout_ms)
        # No record is so young: begin at the end.
        late = {name: LATEST_TIMESTAMP for name, offset in answers.items() if offset < 0}
        return found | answers | await self._offsets.find(late, timeout_ms=timeout_ms)

    def _begin(self, name: PartitionName, offset: int) -> None:
        self._drop_ahead(name)
        self._positions[name] = offset
        self._fetcher.assign(name, Position(offset))

    def _drop_ahead(self, name: PartitionName) -> None:
        for each in [one for one in self._ready if one.name == name]:
            self._ready.remove(each)
            self._fetcher.taken(each)

    async def end_offsets(self) -> dict[PartitionName, int]:
        """Of every assigned partition, where it ends now for readers. Raises ClientError."""
        return await self._offsets.find(
            dict.fromkeys(self._positions, LATEST_TIMESTAMP), timeout_ms=self.config.metadata_timeout_ms
        )

    def positions(self) -> dict[PartitionName, int]:
        """The next offset of each partition that `poll` would give."""
        return dict(self._positions)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Goes on there. What was read ahead of the partition is dropped."""
        self._begin((topic, partition), offset)

    async def poll(self, timeout_ms: int | None = None) -> PolledRecords | None:
        """The next records of some partition; None: there were none in `timeout_ms` (None: wait forever).
        Raises what stops a partition: TruncatedError when records that were given are not in the log any
        more, ApiError OFFSET_OUT_OF_RANGE, BatchError for damage or a codec that is not opened here."""
        while True:
            while self._ready:
                chunk = await self._take(self._ready.popleft())
                if chunk is not None:
                    return chunk
            self._news.clear()
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                return None

    async def _take(self, fetched: Fetched) -> PolledRecords | None:
        self._fetcher.taken(fetched)
        name = fetched.name
        match fetched.problem:
            case None:
                pass
            case TruncatedError() as cut if self.config.go_on_after_cut:
                self._begin(name, min(cut.end_offset, self._positions[name]))
                return None
            case ApiError(code=ErrorCode.OFFSET_OUT_OF_RANGE) if (
                self.config.out_of_range is not OutOfRange.FAIL
            ):
                earliest = self.config.out_of_range is OutOfRange.EARLIEST
                when = EARLIEST_TIMESTAMP if earliest else LATEST_TIMESTAMP
                found = await self._offsets.find({name: when}, timeout_ms=self.config.metadata_timeout_ms)
                self._begin(name, found[name])
                return None
            case problem:
                raise problem
        position = self._positions[name]
        records: list[Record] = []
        reached = fetched.next_offset
        for batch in fetched.batches:
            try:
                if not batch.header.is_control:
                    records += batch.records(position)
            except BatchError as error:
                # What is before it is given first; behind it nothing is read.
                self._drop_ahead(name)
                self._fetcher.halt(name)
                self._arrived(Fetched(name=name, problem=error))
                reached = batch.header.base_offset
                break
        self._positions[name] = max(position, reached)
        if not records:
            return None
        return PolledRecords(
            topic=name[0],
            partition=name[1],
            records=records,
            next_offset=self._positions[name],
            high_watermark=fetched.high_watermark,
        )

    def _arrived(self, fetched: Fetched) -> None:
        self._ready.append(fetched)
        self._news.set()

    def _view_changed(self) -> None:
        self._fetcher.view_changed()
