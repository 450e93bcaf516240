"""Simulated brokers in a process of their own: they register, send heartbeats and fetch, and hold no image.

`python -m tests.bench.fleet` reads one JSON object with its task, then commands, one per line; each gets a
response of one line. Heartbeats are sent by the clock, not after the response, so that a slow controller is
seen as slow. One process may only send heartbeats and another one only fetch: a real broker's heartbeat does
not wait behind the bytes that 299 others fetch. The rest of this file starts such processes and sends them
commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import msgspec
import uvloop

from metaquorum.proto import broker_pb2 as pb
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.raft.messages import FetchRequest, FetchResponse
from metaquorum.rpc.channels import END_OF_STREAM, open_channel
from metaquorum.storage.batches.batch import hop_headers
from tests.bench.log_reader import LogReader
from tests.bench.seeding import METADATA_VERSION, Shape, broker_epoch, directories, incarnation
from tests.e2e.processes import ENVIRONMENT, REPOSITORY

EVERYTHING_APPLIED = 2**40
"""They hold no image and never lag: they report everything as applied."""

FETCH_WAIT_MS = 2000
FETCH_BYTES = 8 * 1024 * 1024
RETRY_S = 0.05
CALL_S = 10.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a fleet. `seeded`: the shape of the seeded cluster; None: the brokers are new, and are
    unfenced by their first heartbeats. `from_offset`, `from_epoch`: where fetches begin (the end of what was
    seeded)."""

    cluster_id: str
    controllers: list[tuple[str, int]]
    brokers: list[int]
    seeded: tuple[int, int, int] | None = None
    heartbeats: bool = True
    fetches: bool = True
    registers: bool = True
    heartbeat_ms: int = 500
    from_offset: int = 0
    from_epoch: int = 0


@dataclass(slots=True)
class Seen:
    """Since the last `mark`. Latencies are those of brokers that are unfenced and are to stay unfenced."""

    latencies_ms: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0
    fenced: int = 0
    fetches: int = 0
    fetched_bytes: int = 0


class Fleet:
    """All brokers of this process."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.seen = Seen()
        self.shape = None if task.seeded is None else _shape(task.seeded)
        self.leader = 0
        self.brokers = {broker_id: SimulatedBroker(self, broker_id) for broker_id in task.brokers}
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        gate = asyncio.Semaphore(50)
        await asyncio.gather(*(each.join(gate) for each in self.brokers.values()))
        if self.task.heartbeats:
            self.tasks += [asyncio.create_task(each.heartbeat()) for each in self.brokers.values()]
        if self.task.fetches:
            self.tasks += [asyncio.create_task(each.fetch()) for each in self.brokers.values()]
        gc.collect()
        gc.freeze()

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carries out one command; returns its response."""
        match command:
            case {"do": "mark"}:
                self.seen = Seen()
                return {}
            case {"do": "report"}:
                broken = [task for task in self.tasks if task.done()]
                problem = repr(broken[0].exception()) if broken else None
                found = {name: getattr(self.seen, name) for name in Seen.__slots__}
                return {**found, "problem": problem, "cpu_s": time.process_time()}
            case {"do": "want", "broker": broker_id, "fence": fence}:
                broker = self.brokers[broker_id]
                broker.wants_fence = fence
                await broker.beat()
                return {"fenced": broker.is_fenced}
            case {"do": "shut down", "broker": broker_id}:
                return await self.brokers[broker_id].shut_down()
            case {"do": "reach", "offset": offset}:
                return await self._reach(offset)
            case _:
                raise ValueError(f"no such command: {command}")

    async def _reach(self, offset: int) -> dict[str, Any]:
        """Waits until every broker has fetched up to `offset`; returns when the last one had (monotonic,
        s)."""
        while any(each.end_offset < offset for each in self.brokers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return {"last_s": max(each.reached_at(offset) for each in self.brokers.values())}

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self.brokers.values()))


class SimulatedBroker:
    """One broker's connections and what it sends on them."""

    def __init__(self, fleet: Fleet, broker_id: int) -> None:
        self._fleet = fleet
        self._id = broker_id
        self.wants_fence = False
        self.is_fenced = False
        self._wants_shutdown = self._may_stop = False
        self.end_offset = fleet.task.from_offset
        self._fetched: list[tuple[int, float]] = [(self.end_offset, time.monotonic())]
        self._last_epoch = self._epoch = fleet.task.from_epoch
        self._high_watermark = -1
        seeded = fleet.shape is not None
        self._broker_epoch = broker_epoch(broker_id) if seeded else -1
        self._incarnation = incarnation(broker_id) if seeded else random.randbytes(16)
        shape = fleet.shape
        self._directories = (random.randbytes(16),) if shape is None else directories(shape, broker_id)
        addresses = fleet.task.controllers
        self._channels: list[grpc.aio.Channel | None] = [None] * len(addresses)
        self._calls: dict[int, Any] = {}

    def _channel(self, at: int) -> grpc.aio.Channel:
        channel = self._channels[at]
        if channel is None:
            channel = self._channels[at] = open_channel(*self._fleet.task.controllers[at], None)
        return channel

    # --- lifecycle

    async def join(self, gate: asyncio.Semaphore) -> None:
        async with gate:
            if self._fleet.task.registers:
                await self._register()
            if self._fleet.task.heartbeats:
                while not await self.beat() or self.is_fenced:  # noqa: ASYNC110
                    await asyncio.sleep(RETRY_S)

    async def _register(self) -> None:
        request = pb.RegisterBrokerRequest(
            broker_id=self._id,
            cluster_id=self._fleet.task.cluster_id,
            incarnation_id=self._incarnation,
            endpoints=[common.Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9, security_protocol=0)],
            features=[
                common.Feature(
                    name="metadata.version",
                    min_supported_version=1,
                    max_supported_version=METADATA_VERSION,
                )
            ],
            directories=self._directories,
        )
        while True:
            answer = await self._ask("Register", request)
            if answer is not None and not answer.HasField("error"):
                self._broker_epoch = answer.broker_epoch
                return
            if answer is not None and answer.error.code not in (41, 89):
                raise RuntimeError(f"broker {self._id} was not registered: {answer.error.message}")
            self._elsewhere()
            await asyncio.sleep(RETRY_S)

    async def _ask(self, method: str, request: Any) -> Any:
        """The response of the node that the fleet considers the active controller; None: there is none."""
        channel = self._channel(self._fleet.leader)
        stub: Any = BrokerLifecycleStub(channel)
        try:
            return await getattr(stub, method)(request, timeout=CALL_S)
        except grpc.aio.AioRpcError:
            return None

    async def _beat(self, request: pb.BrokerHeartbeatRequest) -> Any:
        """As a broker process sends it: on a stream of its own."""
        at = self._fleet.leader
        call = self._calls.pop(at, None)
        if call is None:
            stub: Any = BrokerLifecycleStub(self._channel(at))
            call = stub.Heartbeats()
        try:
            async with asyncio.timeout(CALL_S):
                await call.write(request)
                answer = await call.read()
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            call.cancel()
            return None
        if answer is END_OF_STREAM:
            return None
        self._calls[at] = call
        return answer

    def _elsewhere(self) -> None:
        self._fleet.leader = (self._fleet.leader + 1) % len(self._fleet.task.controllers)

    async def beat(self) -> bool:
        """Sends one heartbeat; returns whether it was accepted."""
        request = pb.BrokerHeartbeatRequest(
            broker_id=self._id,
            broker_epoch=self._broker_epoch,
            applied_offset=EVERYTHING_APPLIED,
            want_fence=self.wants_fence,
            want_shutdown=self._wants_shutdown,
        )
        asked, seen = self._fleet.leader, self._fleet.seen
        healthy = not (self.wants_fence or self.is_fenced)  # a change of state waits for a commit
        start = time.perf_counter()
        answer = await self._beat(request)
        if answer is None or answer.HasField("error"):
            seen.failed += answer is None
            seen.refused += answer is not None
            if asked == self._fleet.leader:
                self._elsewhere()
            return False
        if healthy:
            seen.latencies_ms.append((time.perf_counter() - start) * 1e3)
        self.is_fenced = answer.is_fenced
        self._may_stop = answer.should_shut_down
        seen.fenced += answer.is_fenced and not self.wants_fence
        return True

    async def heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        every_s = self._fleet.task.heartbeat_ms / 1000
        at = loop.time() + random.uniform(0, every_s)
        while True:
            await asyncio.sleep(max(0.0, at - loop.time()))
            at += every_s
            if not await self.beat():
                at = loop.time() + RETRY_S

    async def shut_down(self) -> dict[str, Any]:
        """Requests a controlled shutdown until the controller permits it; returns how long the first response
        and all of them took, in ms."""
        self._wants_shutdown = True
        start = time.perf_counter()
        await self.beat()
        first_ms = (time.perf_counter() - start) * 1e3
        while not self._may_stop:
            await asyncio.sleep(0.001)
            await self.beat()
        return {"first_ms": first_ms, "all_ms": (time.perf_counter() - start) * 1e3}

    # --- the log

    async def fetch(self) -> None:
        """Follows the log as an observer; what it fetches is looked at and discarded."""
        await asyncio.sleep(random.uniform(0, 0.5))
        while True:
            asked = self._fleet.leader
            with contextlib.suppress(TimeoutError, ConnectionError):
                await self._follow(asked)
            if asked == self._fleet.leader:
                self._elsewhere()
            await asyncio.sleep(RETRY_S)

    async def _follow(self, at: int) -> None:
        """Until that controller no longer leads."""
        reader = await LogReader.at(*self._fleet.task.controllers[at])
        try:
            while True:
                self._take(await reader.fetch(self._fetch_request()))
        finally:
            reader.close()

    def _fetch_request(self) -> FetchRequest:
        return FetchRequest(
            cluster_id=self._fleet.task.cluster_id,
            replica_id=self._id,
            replica_directory_id=self._directories[0],
            epoch=self._epoch,
            fetch_offset=self.end_offset,
            last_fetched_epoch=self._last_epoch,
            high_watermark=self._high_watermark,
            max_wait_ms=FETCH_WAIT_MS,
            max_bytes=FETCH_BYTES,
            read_round=0,
        )

    def _take(self, response: FetchResponse) -> None:
        if response.epoch > self._epoch:
            self._epoch = response.epoch
            return
        if response.error or response.epoch < self._epoch:
            raise ConnectionError("it does not lead")
        if response.diverging is not None or response.snapshot is not None:
            raise RuntimeError(f"broker {self._id}: the leader asks to truncate, or to fetch a snapshot")
        self._high_watermark = max(self._high_watermark, response.high_watermark)
        records = response.records
        if records:
            _, _, self.end_offset, self._last_epoch = hop_headers(records)[-1]
            self._fetched.append((self.end_offset, time.monotonic()))
            del self._fetched[:-64]
        self._fleet.seen.fetches += 1
        self._fleet.seen.fetched_bytes += len(records)

    def reached_at(self, offset: int) -> float:
        return next(at for end, at in self._fetched if end >= offset)

    async def close(self) -> None:
        await asyncio.gather(*(each.close(None) for each in self._channels if each is not None))


def _shape(seeded: tuple[int, int, int]) -> Shape:
    partitions, brokers, count = seeded
    return Shape(partitions=partitions, brokers=brokers, directories=count)


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    fleet = Fleet(msgspec.json.decode(await reader.readline(), type=Task))
    try:
        await fleet.start()
        print(json.dumps({"ready": True}), flush=True)
        while line := await reader.readline():
            print(json.dumps(await fleet.obey(json.loads(line))), flush=True)
    finally:
        await fleet.close()


# --- the other side: a bench that has fleets


class FleetProcess:
    """A fleet, for a benchmark."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.fleet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd=REPOSITORY,
            text=True,
        )
        self._say(msgspec.json.encode(task).decode())

    def wait_ready(self) -> None:
        self._hear()

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, **command: Any) -> dict[str, Any]:
        """Sends one command; returns its response."""
        self._say(json.dumps(command))
        return self._hear()

    def kill(self) -> None:
        """kill -9."""
        self._child.kill()
        self._child.wait()

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a fleet of simulated brokers ended, exit code {self._child.wait()}")
        return json.loads(line)  # type: ignore[no-any-return]


@contextmanager
def fleets(*tasks: Task, ready: bool = True) -> Iterator[list[FleetProcess]]:
    """Running fleets, killed in the end. `ready` False: the quorum has not been started yet."""
    running: list[FleetProcess] = []
    try:
        for task in tasks:
            running.append(FleetProcess(task))
        for each in running if ready else ():
            each.wait_ready()
        yield running
    finally:
        for each in running:
            each.kill()


def addresses(nodes: Sequence[Any]) -> list[tuple[str, int]]:
    """Addresses of controllers, for a task."""
    return [("127.0.0.1", node.port) for node in nodes]


if __name__ == "__main__":
    uvloop.run(main())
