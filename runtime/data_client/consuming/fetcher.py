"""Fetching: one request at a time to each leader, for all of its partitions that may be read on.

Owns fetch positions, following leaders, and telling what is only a matter of time from what stops a
partition. Batches are checked (lengths, CRC) before they are handed on; records stay packed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.data_client.cluster_view import ClusterView, PartitionLeader, PartitionName
from metaquorum.runtime.data_client.connections import Connections, LinkError
from metaquorum.runtime.data_client.consuming.records import FetchedBatch, split_batches
from metaquorum.storage.errors import BatchError

RETRY = BackoffPolicy(initial_ms=20, max_ms=500)
SLOW_MS = 1_500
"""A fetch that takes this much longer than it may wait makes us ask whether its broker still leads."""
DAMAGED_FETCHES_MAX = 3
"""How often damaged data is fetched again before it counts as damaged on the leader's disk."""


class TruncatedError(ApiError):
    """The log was cut below what was read of it: its leader has other records, or none, from `end_offset`
    on. An unclean election does that."""

    def __init__(self, topic: str, partition: int, end_offset: int, position: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"the log of {topic}-{partition} was truncated at offset {end_offset}: records read from there "
            f"to {position} are no longer in it; undo them, and read again from {end_offset}",
        )
        self.end_offset = end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    max_wait_ms: int
    min_bytes: int
    fetch_max_bytes: int
    partition_max_bytes: int
    prefetch_bytes: int
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to fetch, and the leader epoch of the batch before it (-1: nothing was fetched)."""

    offset: int
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fetched:
    """What came of one partition: batches, or the problem that stops it."""

    name: PartitionName
    batches: tuple[FetchedBatch, ...] = ()
    next_offset: int = -1
    high_watermark: int = -1
    size_bytes: int = 0
    problem: Exception | None = None


@dataclass(slots=True, eq=False)
class _Assigned:
    name: PartitionName
    position: Position
    backoff: Backoff
    stopped: bool = False
    not_before: float = 0.0
    damaged: int = 0


@dataclass(slots=True)
class _Loop:
    """The task that fetches from one broker, and what wakes it when it has nothing to ask."""

    task: asyncio.Task[None]
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Fetcher:
    """`arrived` gets everything, in order for each partition; `taken` gives its room back."""

    def __init__(
        self,
        connections: Connections,
        view: ClusterView,
        limits: FetchLimits,
        rng: random.Random,
        arrived: Callable[[Fetched], None],
    ) -> None:
        self._connections = connections
        self._view = view
        self._limits = limits
        self._rng = rng
        self._arrived = arrived
        self._assigned: dict[PartitionName, _Assigned] = {}
        self._loops: dict[int, _Loop] = {}
        self._waiting_bytes = 0

    def assign(self, name: PartitionName, position: Position) -> None:
        """Fetches from there, whatever was assigned before."""
        self._assigned[name] = _Assigned(name, position, Backoff(RETRY, self._rng))
        self.view_changed()

    def halt(self, name: PartitionName) -> None:
        """Nothing more of this partition until it is assigned again; an answer under way is dropped."""
        self._assigned.pop(name, None)

    def taken(self, fetched: Fetched) -> None:
        full = self._waiting_bytes >= self._limits.prefetch_bytes
        self._waiting_bytes -= fetched.size_bytes
        if full and self._waiting_bytes < self._limits.prefetch_bytes:
            self._wake_all()

    def view_changed(self) -> None:
        """Leaders may have changed: every one of them has a loop."""
        for each in self._assigned.values():
            leader = self._view.leader(*each.name)
            if leader is None:
                self._view.want_refresh()
            elif leader.broker_id not in self._loops:
                task = asyncio.get_running_loop().create_task(self._run(leader.broker_id))
                task.add_done_callback(self._ended)
                self._loops[leader.broker_id] = _Loop(task)
        self._wake_all()

    async def stop(self) -> None:
        loops, self._loops = self._loops, {}
        for each in loops.values():
            each.task.cancel()
        await asyncio.gather(*(each.task for each in loops.values()), return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends only by a bug of ours, which must not look like a quiet topic."""
        if not task.cancelled() and (error := task.exception()) is not None:
            problem = error if isinstance(error, Exception) else RuntimeError(str(error))
            for name in list(self._assigned):
                self._arrived(Fetched(name=name, problem=problem))

    def _wake_all(self) -> None:
        for each in self._loops.values():
            each.wake.set()

    async def _run(self, broker_id: int) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(RETRY, self._rng)
        while True:
            wake = self._loops[broker_id].wake
            wake.clear()
            leader, chosen, wait_s = self._choose(broker_id, loop.time())
            if leader is None or not chosen:
                try:
                    async with asyncio.timeout(wait_s):
                        await wake.wait()
                except TimeoutError:
                    pass
                continue
            if await self._fetch(leader, chosen):
                backoff.succeeded()
            else:
                self._view.want_refresh()
                await asyncio.sleep(backoff.failed(0) / 1000)

    def _choose(
        self, broker_id: int, now: float
    ) -> tuple[PartitionLeader | None, list[_Assigned], float | None]:
        """Which partitions to ask this broker for; where there is none, how long to wait for one (None: until
        something changes)."""
        if self._waiting_bytes >= self._limits.prefetch_bytes:
            return None, [], None
        chosen: list[_Assigned] = []
        found: PartitionLeader | None = None
        wait_s: float | None = None
        for each in self._assigned.values():
            leader = None if each.stopped else self._view.leader(*each.name)
            if leader is None or leader.broker_id != broker_id:
                continue
            if each.not_before > now:
                wait_s = min(each.not_before - now, wait_s or each.not_before - now)
                continue
            found = leader
            chosen.append(each)
        return found, chosen, wait_s

    async def _fetch(self, leader: PartitionLeader, chosen: list[_Assigned]) -> bool:
        """One request and what came of it; False: the broker did not help."""
        request = api.FetchRequest(
            max_wait_ms=self._limits.max_wait_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.fetch_max_bytes,
            partitions=tuple(self._question(each) for each in chosen),
        )
        timeout_ms = self._limits.max_wait_ms + self._limits.request_timeout_ms
        nagging = asyncio.get_running_loop().create_task(self._nag())
        try:
            answer = await self._connections.fetch(leader.address, request, timeout_ms=timeout_ms)
        except LinkError:
            return False
        finally:
            nagging.cancel()
        if isinstance(answer, ApiError):
            if answer.retriable or answer.code is ErrorCode.BROKER_NOT_AVAILABLE:
                return False
            for each in chosen:
                self._stop(each, answer)
            return True
        asked = {
            question.key: (each, question.fetch_offset)
            for question, each in zip(request.partitions, chosen, strict=True)
        }
        for part in answer.partitions:
            one, offset = asked.get(part.key, (None, 0))
            # Who was assigned again meanwhile, or was told more by another leader, needs no old answer.
            if one is not None and self._assigned.get(one.name) is one and one.position.offset == offset:
                self._take(one, part, leader)
        # A large answer takes turns: the partition that was asked for first is asked for last next time.
        first = self._assigned.pop(chosen[0].name, None)
        if first is not None:
            self._assigned[first.name] = first
        return True

    async def _nag(self) -> None:
        """While a broker is silent: perhaps someone else leads."""
        await asyncio.sleep(self._limits.max_wait_ms / 1000)
        while True:
            await asyncio.sleep(SLOW_MS / 1000)
            self._view.want_refresh()

    def _question(self, each: _Assigned) -> api.FetchPartition:
        topic = self._view.topic(each.name[0])
        return api.FetchPartition(
            key=(topic.topic_id if topic else b"", each.name[1]),
            fetch_offset=each.position.offset,
            max_bytes=self._limits.partition_max_bytes,
            last_fetched_epoch=each.position.epoch,
        )

    def _take(self, each: _Assigned, part: api.FetchedPartition, leader: PartitionLeader) -> None:
        if part.error is not ErrorCode.NONE:
            self._refused(each, part, leader)
            return
        if part.diverging is not None:
            end = min(part.diverging.offset, each.position.offset)
            self._stop(each, TruncatedError(*each.name, end, each.position.offset))
            return
        each.backoff.succeeded()
        if not part.records:
            return
        try:
            batches = tuple(split_batches(part.records))
        except BatchError as error:
            each.damaged += 1
            if each.damaged >= DAMAGED_FETCHES_MAX:
                self._stop(each, BatchError(f"{each.name[0]}-{each.name[1]}: {error}"))
            else:
                self._later(each)
            return
        each.damaged = 0
        last = batches[-1].header
        each.position = Position(last.next_offset, last.leader_epoch)
        self._waiting_bytes += len(part.records)
        self._arrived(
            Fetched(
                name=each.name,
                batches=batches,
                next_offset=last.next_offset,
                high_watermark=part.high_watermark,
                size_bytes=len(part.records),
            )
        )

    def _refused(self, each: _Assigned, part: api.FetchedPartition, leader: PartitionLeader) -> None:
        name = f"{each.name[0]}-{each.name[1]}"
        if self._view.is_gone(each.name[0]):
            text = f"topic {each.name[0]} was deleted while it was read"
            self._stop(each, ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
            return
        if part.error.retriable or part.error is ErrorCode.BROKER_NOT_AVAILABLE:
            if not self._view.learned(*each.name, part.leader, part.leader_epoch):
                self._later(each)
                known = self._view.leader(*each.name)
                if known is None or known.epoch <= leader.epoch:
                    self._view.want_refresh()
            self.view_changed()
            return
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            message = (
                f"offset {each.position.offset} is not in the log of {name}, which has "
                f"{part.log_start_offset} to {part.high_watermark}; start at one of those, at earliest "
                "or at latest"
            )
            self._stop(each, ApiError(part.error, message))
            return
        self._stop(each, ApiError(part.error, f"{name}: {part.message or 'refused'}"))

    def _later(self, each: _Assigned) -> None:
        each.not_before = asyncio.get_running_loop().time() + each.backoff.failed(0) / 1000

    def _stop(self, each: _Assigned, problem: Exception) -> None:
        """Nothing more of this partition until it is assigned again."""
        each.stopped = True
        self._arrived(Fetched(name=each.name, problem=problem))
