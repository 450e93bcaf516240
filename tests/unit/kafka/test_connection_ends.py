"""What a connection that has ended leaves behind: nothing, by counting references alone. The collector of
cycles looks rarely in a broker (`node/process.py`)."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import weakref
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from metaquorum.listeners import connection as connections
from metaquorum.listeners.connection import ClientConnection
from metaquorum.listeners.request_memory import RequestMemory
from metaquorum.listeners.services import Client, Later, at_once
from metaquorum.network.deferred import Deferred
from metaquorum.wire import codec
from metaquorum.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest
from tests.unit.kafka.test_connection import (
    FIND_COORDINATOR,
    METADATA,
    Caller,
    Server,
    serving,
    until,
)
from tests.unit.server.certificates import node_and_client

MIB = 1024 * 1024
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Held:
    """Something that a handler holds on to for its request."""


class Listening(Server):
    """Knows every connection that ever began, weakly."""

    def __init__(self) -> None:
        super().__init__(request_max_bytes=100 * MIB)
        memory = RequestMemory(256 * MIB, 100 * MIB)
        self.config = replace(self.config, request_max_bytes=100 * MIB, memory=memory)
        self.known: list[weakref.ref[Any]] = []
        self.deferreds: list[Deferred[Any]] = []

    def find_coordinator(self, request: codec.Request, client: Client) -> Any:  # type: ignore[override]
        """One in four ways, by the key: a task, a deferred answer, a coroutine without a task, a failure."""
        way = request.body.key[:1]
        if way == "t":
            return super().find_coordinator(request, client)
        if way == "f":
            return at_once(self._fails)(request, client)
        deferred: Deferred[Any] = Deferred()
        self.deferreds.append(deferred)
        if way == "d":
            return at_once(self._waits)(request, client)
        return Later(deferred, lambda found: found)

    async def _waits(self, request: codec.Request, client: Client) -> Any:
        held = Held()
        self.known.append(weakref.ref(held))
        return await self.deferreds[-1]

    async def _fails(self, request: codec.Request, client: Client) -> Any:
        held = Held()
        self.known.append(weakref.ref(held))
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn
        raise ValueError("a bug")

    def begun(self, connection: ClientConnection) -> None:
        self.open.add(connection)
        buffer = connection._buffer
        self.known += map(weakref.ref, (connection, buffer, connection._answers))

    @property
    def left(self) -> list[Any]:
        return [found for each in self.known if (found := each()) is not None]


def half(length: int, sent: int) -> bytes:
    return length.to_bytes(4, "big") + bytes(sent)


async def leaves_in_mid_frame(server: Listening, caller: Caller) -> None:
    for _ in range(20):
        caller.writer.write(half(90 * MIB, MIB) if _ == 0 else bytes(MIB))
        await caller.writer.drain()
    await until(lambda: server.config.memory.held_bytes > 15 * MIB)


async def leaves_in_a_short_frame(server: Listening, caller: Caller) -> None:
    caller.writer.write(half(90_000, 80_000))
    await until(lambda: server.config.memory.held_bytes)


async def waits_for_answers(server: Listening, caller: Caller) -> None:
    for number, way in enumerate("tcdtcd"):
        caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest(key=way + "k" * 30_000))
    caller.writer.write(half(90 * MIB, 300_000))
    await until(lambda: len(server.gates) == 2 and len(server.deferreds) == 4)


async def has_answers_out_of_order(server: Listening, caller: Caller) -> None:
    caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest(key="t"))
    for number in range(2, 9):
        caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest(key="c"))
    await until(lambda: len(server.deferreds) == 7)
    for deferred in server.deferreds:
        deferred.set_result(FindCoordinatorResponse(host="h"))


async def sends_a_frame_that_is_refused(server: Listening, caller: Caller) -> None:
    for number, way in enumerate("tcd"):
        caller.send(FIND_COORDINATOR, 2, number, FindCoordinatorRequest(key=way))
    await until(lambda: len(server.gates) == 1 and len(server.deferreds) == 2)
    caller.writer.write(half(101 * MIB, 0))
    assert await caller.ended()


async def asks_what_fails(server: Listening, caller: Caller) -> None:
    caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest(key="t"))
    caller.send(FIND_COORDINATOR, 2, 2, FindCoordinatorRequest(key="f"))
    assert await caller.ended()


async def is_idle(server: Listening, caller: Caller) -> None:
    await leaves_in_a_short_frame(server, caller)
    for each in server.open:
        each.used_s -= 100
        each._look_for_idleness()
    assert await caller.ended()


async def does_not_read(server: Listening, caller: Caller) -> None:
    caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
    header = codec.RequestHeader(METADATA, 12, 1, "x" * 30_000)
    frame = b"".join(codec.encode_request(header, MetadataRequest(topics=None)))
    (connection,) = server.open
    for _ in range(2_000):  # 60 MB of answers
        caller.writer.write(len(frame).to_bytes(4, "big") + frame)
        await asyncio.sleep(0)
        if connection._is_held:
            break
    assert connection._is_held, "a client that reads nothing is read on and on"
    connection.used_s -= 100
    connection._look_for_idleness()
    del connection
    await until(lambda: not server.open)


WAYS: list[Callable[[Listening, Caller], Awaitable[None]]] = [
    leaves_in_mid_frame,
    leaves_in_a_short_frame,
    waits_for_answers,
    has_answers_out_of_order,
    sends_a_frame_that_is_refused,
    asks_what_fails,
    is_idle,
    does_not_read,
]


@pytest.fixture(name="contexts", scope="module")
def fixture_contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return node_and_client(tmp_path_factory.mktemp("ends"))


@pytest.fixture(name="counting_only", autouse=True)
def fixture_counting_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setattr(connections, "LINGER_S", 0.02)
    caplog.set_level(logging.CRITICAL)  # a record that is kept keeps the trace of its error
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_connection_that_ends_leaves_nothing_to_the_collector(
    way: Callable[[Listening, Caller], Awaitable[None]],
    loop: str,
    over_tls: bool,
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async def run() -> None:
        server = Listening()
        serves, asks = contexts if over_tls else (None, None)
        async with serving(server, serves):
            caller = Caller(*await asyncio.open_connection("127.0.0.1", server.port, ssl=asks))
            await until(lambda: server.open)
            await way(server, caller)
            assert server.known
            caller.writer.transport.abort()
            await until(lambda: not server.open)
            await until(lambda: not server.left)
            assert server.config.memory.held_bytes == 0

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
