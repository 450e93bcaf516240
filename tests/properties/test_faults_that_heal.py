"""Faults of test clusters in any order, also within each other: once all have healed, none has an effect.

The cluster's time is held: what still waits for it after the end never arrives.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.listeners.services import Client, EndConnection
from metaquorum.network.deferred import Driven
from metaquorum.storage.errors import DiskError
from metaquorum.testing.clock import ClusterClock
from metaquorum.testing.interception import ClientFault, Interception, RequestPath
from metaquorum.testing.loop import LoopThread
from metaquorum.testing.memory_disk import DiskFaultOrder, MemoryDisk, begin_disk_fault
from metaquorum.testing.network import Delay, Network, Pair, Sending
from metaquorum.testing.request_faults import How, RequestFault
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import HeartbeatRequest, HeartbeatResponse
from metaquorum.wire.table import API_BY_NAME

LIMIT_S = 10.0
"""A real one, for what must happen."""
NODES = (0, 1)
LONG_MS = 600_000.0


@pytest.fixture(name="clock", scope="module")
def fixture_clock() -> ClusterClock:
    clock = ClusterClock()
    clock.hold()
    return clock


@pytest.fixture(name="thread", scope="module")
def fixture_thread(clock: ClusterClock) -> Iterator[LoopThread]:
    thread = LoopThread(clock, "faults that heal")
    yield thread
    thread.close()


async def moment() -> None:
    """Some real time, in which the loop does what it can."""
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.001)


async def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        await moment()


def timers() -> list[Any]:
    """What the loop does later."""
    loop: Any = asyncio.get_running_loop()
    return [each for each in loop._scheduled if not each.cancelled()]


# --- the network

PAIRS = st.sampled_from([((0, 1),), ((1, 0),), ((0, 1), (1, 0))])
DELAYS = st.none() | st.sampled_from([(5.0, 0.0), (LONG_MS, 0.0), (LONG_MS, 1000.0)])
NETWORK_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), PAIRS, DELAYS),
        st.tuples(st.just("heal"), st.integers(0, 9)),
        st.tuples(st.just("open"), st.sampled_from(NODES)),
        st.tuples(st.just("send"), st.integers(0, 9), st.sampled_from([1, 3000, 400_000])),
        st.tuples(st.just("hang up"), st.integers(0, 9)),
        st.tuples(st.just("drop"), st.booleans()),
        st.tuples(st.just("advance"), st.sampled_from([0.01, 300.0, 700.0])),
        st.tuples(st.just("moment")),
    ),
    min_size=8,
    max_size=25,
)


class Connection(asyncio.Protocol):
    """A connection of one node to the other, which sends back what it gets."""

    def __init__(self) -> None:
        self.sent, self.came = bytearray(), bytearray()
        self.has_ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.came += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True

    def send(self, data: bytes) -> None:
        self.sent += data
        self.transport.write(data)


class Echo(asyncio.Protocol):
    open: set[Echo] = set()  # noqa: RUF012

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.open.add(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self)


def peers(way: Sending) -> list[Any]:
    """The other ends of the sockets on which something arrives."""
    return [end.transport and end.transport.get_extra_info("peername") for end in way.ends]


class NetworkWorld:
    """Two nodes that send back what they get, and the faults between them."""

    def __init__(self, clock: ClusterClock) -> None:
        self.clock = clock
        self.network = Network(random.Random(0))
        self.faults: list[tuple[tuple[Pair, ...], Delay | None]] = []
        self.connections: list[Connection] = []
        self.servers: list[asyncio.Server] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for node in NODES:
            server = await loop.create_server(Echo, "127.0.0.1", 0)
            self.servers.append(server)
            self.network.place(node, [server.sockets[0].getsockname()[1]])

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case "begin", pairs, delay:
                self.faults.append((pairs, delay))
                await self.network.begin(pairs, delay)
            case "heal", number if self.faults:
                await self.network.end(*self.faults.pop(number % len(self.faults)))
            case "open", node:
                address = self.servers[1 - node].sockets[0].getsockname()
                route = self.network.route_of(node)(*address)
                way = self.network.sending(node, 1 - node)
                _, made = await asyncio.get_running_loop().create_connection(Connection, *route)
                own = made.transport.get_extra_info("sockname")
                await until(lambda: own in peers(way), "the network sees the connection")
                self.connections.append(made)
            case "send", number, size if self.connections:
                connection = self.connections[number % len(self.connections)]
                connection.send(random.Random(number).randbytes(size))
            case "hang up", number if self.connections:
                self.connections.pop(number % len(self.connections)).transport.close()
            case "drop", forth:
                assert await self.network.drop(*((0, 1) if forth else (1, 0))) >= 0
                gone, self.connections = self.connections, []
                await until(lambda: all(each.has_ended for each in gone), "dropped connections end")
            case "advance", seconds:
                self.clock.move(seconds)
            case ("moment",):
                await moment()

    async def heal_and_end(self) -> None:
        while self.faults:
            await self.do(("heal", len(self.faults) // 2))
        for connection in self.connections:
            connection.send(b"the last")
        for connection in self.connections:
            await until(lambda each=connection: each.came == each.sent, "what was sent comes back")  # type: ignore[misc]
        assert not timers()
        for connection in self.connections:
            connection.transport.close()
        await until(lambda: not self.network._tasks, "connections are made, or given up")
        await until(lambda: not Echo.open, "the nodes see the end of connections")
        ways = [self.network.sending(*pair) for pair in ((0, 1), (1, 0))]
        await until(lambda: not any(way.ends for way in ways), "the network forgets connections")
        assert all(way.passes.is_set() and not way.delays for way in ways)
        assert not timers()


@given(steps=NETWORK_STEPS)
@settings(max_examples=40)
def test_a_network_that_has_healed_passes_everything_at_once(
    clock: ClusterClock, thread: LoopThread, steps: list[tuple[Any, ...]]
) -> None:
    async def history() -> None:
        world = NetworkWorld(clock)
        await world.start()
        try:
            await world.do(("open", 0))
            for step in steps:
                await world.do(step)
            await world.heal_and_end()
        finally:
            await world.network.close()
            for server in world.servers:
                server.close()
            await until(lambda: not Echo.open, "all connections end with the network")
            assert not timers()

    thread.run(history(), 3 * LIMIT_S, "a history of the network")


@pytest.mark.parametrize("first", ["cut", "another delay"])
def test_what_heals_does_not_hurry_what_another_delay_holds(
    clock: ClusterClock, thread: LoopThread, first: str
) -> None:
    async def history() -> None:
        world = NetworkWorld(clock)
        await world.start()
        await world.do(("open", 0))
        (connection,) = world.connections
        other = None if first == "cut" else (2 * LONG_MS, 0.0)
        await world.do(("begin", ((1, 0),), (LONG_MS, 0.0)))
        if other is not None:
            await world.do(("begin", ((1, 0),), other))
        connection.send(b"a")
        await until(lambda: bool(timers()), "the answer is under way")
        if other is None:
            await world.do(("begin", ((1, 0),), other))
        await world.do(("heal", 1))
        for _ in range(20):
            await moment()
        assert connection.came == b""
        clock.move(LONG_MS / 1000)
        await until(lambda: connection.came == b"a", "it comes after its own delay")
        await world.heal_and_end()
        await world.network.close()
        for server in world.servers:
            server.close()

    thread.run(history(), 3 * LIMIT_S, "two delays")


# --- requests

HOWS: list[dict[str, Any]] = [
    *({"hold": True}, {"hold": True, "times": 1}, {"delay_s": 600.0}, {"delay_s": 0.01}),
    *({}, {"disconnect": True}, {"lose_answer": True}, {"error": "NOT_COORDINATOR"}, {"throttle_ms": 7}),
    {"client": "nobody", "hold": True},
]
REQUEST_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("way"), st.sampled_from([None, "billing", "nobody"]), st.booleans(), DELAYS),
        st.tuples(st.just("fault"), st.sampled_from(HOWS)),
        st.tuples(st.just("heal"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("ask")),
        st.tuples(st.just("give up"), st.integers(0, 9)),
        st.tuples(st.just("advance"), st.sampled_from([0.01, 300.0, 700.0])),
        st.tuples(st.just("moment")),
    ),
    min_size=8,
    max_size=25,
)
CLIENT = Client(listener="PLAINTEXT", address="127.0.0.1", principal="User:alice")


class RequestWorld:
    """A broker that answers at once, and the faults of the way to it and of requests."""

    def __init__(self, clock: ClusterClock) -> None:
        self.clock = clock
        self.shared = Interception(random.Random(0), clock)
        self.request_path = RequestPath(0, self.shared, lambda entry: None)
        self.heals: list[Callable[[], None]] = []
        self.answers: list[Driven[Any]] = []

    def ask(self) -> Driven[Any]:
        header = RequestHeader(API_BY_NAME["Heartbeat"].key, 4, 1, "billing")
        request = Request(header, HeartbeatRequest(group_id="g"), 0)
        return Driven(self.request_path.passed(lambda request, client: HeartbeatResponse(), request, CLIENT))

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case "way", client, asks, delay:
                way = ClientFault(client, 0, (asks, not asks), delay)
                self.shared.client_faults.append(way)
                self.heals.append(partial(self._heal_way, way))
            case "fault", how:
                fault = RequestFault.of("Heartbeat", cast(How, how))
                self.shared.faults.append(fault)
                self.heals.append(partial(self._heal_fault, fault))
            case "heal", number, in_thread if self.heals:
                heal = self.heals.pop(number % len(self.heals))
                if in_thread:
                    await asyncio.get_running_loop().run_in_executor(None, heal)
                else:
                    heal()
            case ("ask",):
                self.answers.append(self.ask())
            case "give up", number if self.answers:
                self.answers.pop(number % len(self.answers)).cancel()
            case "advance", seconds:
                self.clock.move(seconds)
            case ("moment",):
                await moment()

    def _heal_way(self, way: ClientFault) -> None:
        self.shared.client_faults.remove(way)
        way.heal()

    def _heal_fault(self, fault: RequestFault) -> None:
        self.shared.faults.remove(fault)
        fault.released.set()


@given(steps=REQUEST_STEPS)
@settings(max_examples=40)
def test_requests_that_faults_held_are_answered_once_they_have_healed(
    clock: ClusterClock, thread: LoopThread, steps: list[tuple[Any, ...]]
) -> None:
    async def history() -> None:
        world = RequestWorld(clock)
        for step in steps:
            await world.do(step)
        while world.heals:
            await world.do(("heal", len(world.heals) // 2, len(world.heals) % 2))
        await until(lambda: all(each.done() for each in world.answers), "every request has its answer")
        for answer in world.answers:
            assert answer.error is None or isinstance(answer.error, EndConnection)
        assert world.ask().result() == HeartbeatResponse()
        assert not timers()

    thread.run(history(), 3 * LIMIT_S, "a history of requests")


WAITS: list[tuple[Any, ...]] = [
    *(("way", "billing", asks, delay) for asks in (True, False) for delay in (None, (LONG_MS, 0.0))),
    *(("fault", how) for how in ({"hold": True}, {"delay_s": 600.0})),
]


@pytest.mark.parametrize("fault", WAITS)
def test_a_request_that_waits_for_a_fault_goes_on_when_it_heals(
    clock: ClusterClock, thread: LoopThread, fault: tuple[Any, ...]
) -> None:
    async def history() -> None:
        world = RequestWorld(clock)
        for step in (fault, ("ask",), ("moment",)):
            await world.do(step)
        (answer,) = world.answers
        assert not answer.done()
        await world.do(("heal", 0, True))
        await until(answer.done, "the request has its answer")
        assert answer.result() == HeartbeatResponse() and not timers()

    thread.run(history(), 3 * LIMIT_S, "a request that waits")


def test_a_cut_that_begins_while_a_request_is_late_stops_it(clock: ClusterClock, thread: LoopThread) -> None:
    async def history() -> None:
        world = RequestWorld(clock)
        for step in (("way", "billing", True, (LONG_MS, 0.0)), ("ask",), ("way", "billing", True, None)):
            await world.do(step)
        await world.do(("heal", 0, False))
        for _ in range(10):
            await moment()
        assert not world.answers[0].done()
        await world.do(("heal", 0, False))
        await until(world.answers[0].done, "the request has its answer")

    thread.run(history(), 3 * LIMIT_S, "a late request")


# --- disks

DISK_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from(["full", "read-only", "failing", "slow"])),
        st.tuples(st.just("heal"), st.integers(0, 9)),
        st.tuples(st.just("write")),
        st.tuples(st.just("kill")),
    ),
    min_size=6,
    max_size=12,
)


@given(steps=DISK_STEPS)
@settings(max_examples=25)
def test_a_disk_that_has_healed_is_as_fast_as_ever(steps: list[tuple[Any, ...]]) -> None:
    disk = MemoryDisk(random.Random(0), 1 << 20, lambda: 0)
    disk.make_directory("/node")
    heals: list[Callable[[], None]] = []
    writers: list[threading.Thread] = []

    def write() -> None:
        try:
            file = disk.open_append(f"/node/{threading.get_ident()}")
            file.append(b"a")
            file.sync()
        except DiskError:
            pass

    for step in steps:
        match step:
            case "begin", kind:
                wanted = DiskFaultOrder(kind=kind, directory="/node", value=600 if kind == "slow" else 3)
                heals.append(begin_disk_fault(disk, wanted))
            case "heal", number if heals:
                heals.pop(number % len(heals))()
            case ("write",):
                writers.append(threading.Thread(target=write, daemon=True))
                writers[-1].start()
            case ("kill",):
                disk.kill()
                for writer in writers:
                    writer.join(LIMIT_S)
                    assert not writer.is_alive(), "a node that is killed writes no longer"
                disk.killed(power_lost=False)
    while heals:
        heals.pop(len(heals) // 2)()
    for writer in writers:
        writer.join(LIMIT_S)
        assert not writer.is_alive()
    assert disk.faults == ()
    begun = disk.open_append("/node/last")
    begun.append(b"a")
    begun.sync()


@pytest.mark.parametrize("ends", ["heals", "is killed", "is being killed"])
def test_a_write_to_a_slow_disk_ends_when_it_heals_or_the_node_is_killed(ends: str) -> None:
    disk = MemoryDisk(random.Random(0), 1 << 20, lambda: 0)
    disk.make_directory("/node")
    file = disk.open_append("/node/file")
    heal = begin_disk_fault(disk, DiskFaultOrder(kind="slow", directory="/node", value=600))
    problems: list[DiskError] = []

    def write() -> None:
        try:
            file.append(b"a")
        except DiskError as error:
            problems.append(error)

    writer = threading.Thread(target=write, daemon=True)
    if ends == "is being killed":
        disk.kill()
    writer.start()
    if ends != "is being killed":
        writer.join(0.05)
        assert writer.is_alive(), "it takes its time"
    if ends == "heals":
        heal()
    elif ends == "is killed":
        disk.kill()
    writer.join(LIMIT_S)
    assert not writer.is_alive()
    assert bool(problems) is (ends != "heals")
