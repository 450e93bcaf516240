"""Answers that clients do not take: how much is held for one connection, for all, and who waits for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from metaquorum.listeners import response_memory as unsents
from metaquorum.listeners.connection import WRITTEN_MAX_BYTES
from metaquorum.listeners.response_memory import Unsent, UnsentShare
from metaquorum.listeners.services import Client, Features, Later, Offered, Services
from metaquorum.network.deferred import Deferred
from metaquorum.wire import codec
from metaquorum.wire.messages import ApiVersionsRequest, FetchRequest, FetchResponse
from tests.sim.engine import Engine
from tests.sim.kafka.loop import SimulatedLoop
from tests.unit.kafka.test_connection import API_VERSIONS, Caller, Server, serving, until
from tests.unit.server.certificates import node_and_client

MIB = 1024 * 1024
FETCH = 1
ANSWER_BYTES = 8 * MIB
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
FOLLOWER = 3


class Fetched(Server):
    """A listener whose fetches are answered with so many bytes, a turn of the loop later."""

    def __init__(self, max_bytes: int | None = None, answer_bytes: int = ANSWER_BYTES) -> None:
        super().__init__()
        self.answer_bytes = answer_bytes
        self.unsent = Unsent(max_bytes)
        self.config = replace(self.config, unsent=self.unsent)
        self.fetched: list[int] = []
        features = Features(supported={}, finalized={}, epoch=1)
        self.services = Services({"Fetch": Offered(4, 11, self.fetch)}, lambda: features)

    def fetch(self, request: codec.Request, client: Client) -> Any:
        self.fetched.append(request.header.correlation_id)
        deferred: Deferred[FetchResponse] = Deferred()
        part = FetchResponse.PartitionData(records=bytes(self.answer_bytes))
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=(part,))
        answer = FetchResponse(responses=(topic,))
        asyncio.get_running_loop().call_soon(deferred.set_result, answer)
        return Later(deferred, lambda found: found)


async def connected(server: Server, tls: ssl.SSLContext | None = None, *, reads: bool = False) -> Caller:
    host = "127.0.0.1"
    client = socket.create_connection((host, server.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    name = None if tls is None else host
    caller = Caller(*await asyncio.open_connection(sock=client, ssl=tls, server_hostname=name))
    if not reads:
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return caller


def fetches(caller: Caller, *numbers: int, replica_id: int = -1) -> None:
    for number in numbers:
        caller.send(FETCH, 11, number, FetchRequest(replica_id=replica_id, topics=()))


def on(loop: str, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(work)


@pytest.fixture(name="contexts", scope="module")
def fixture_contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return node_and_client(tmp_path_factory.mktemp("unsent"))


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_takes_nothing_holds_one_answer_however_many_it_asks_for(
    loop: str, over_tls: bool, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    serves, asks = contexts if over_tls else (None, None)

    async def run() -> None:
        server = Fetched()
        async with serving(server, serves):
            caller = await connected(server, asks)
            fetches(caller, *range(9))
            await until(lambda: server.unsent.held_bytes > MIB)
            await until(lambda: all(each._outgoing.is_blocked for each in server.open))
            (connection,) = server.open
            for _ in range(50):
                await asyncio.sleep(0)
            assert server.fetched == [0]
            # The transport has a little of it, too: over TLS in clear and encrypted.
            assert connection._transport.get_write_buffer_size() < 3 * WRITTEN_MAX_BYTES
            assert server.unsent.held_bytes <= ANSWER_BYTES + 100
            caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for number in range(9):
                answer = await caller.receive(FETCH, 11)
                assert answer.correlation_id == number
                assert len(answer.body.responses[0].partitions[0].records) == ANSWER_BYTES
            assert server.unsent.held_bytes == 0
            caller.writer.transport.abort()
            await until(lambda: not server.open)

    on(loop, run())


async def test_a_fetch_waits_where_answers_of_others_fill_the_memory_and_nothing_else_does() -> None:
    server = Fetched(4 * MIB)
    async with serving(server):
        slow = await connected(server)
        fetches(slow, 1)
        await until(lambda: server.unsent.left() <= 0)
        reads, follows = await connected(server, reads=True), await connected(server, reads=True)
        fetches(reads, 2)
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        reads.send(API_VERSIONS, 3, 3, request)  # behind it, in order
        fetches(follows, FOLLOWER, replica_id=7)
        assert (await follows.receive(FETCH, 11)).correlation_id == FOLLOWER
        follows.send(API_VERSIONS, 3, 4, request)
        assert (await follows.receive(API_VERSIONS, 3)).correlation_id == 4
        assert server.fetched == [1, FOLLOWER] and len(server.unsent.line) == 1
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await slow.receive(FETCH, 11)).correlation_id == 1
        assert (await reads.receive(FETCH, 11)).correlation_id == 2
        assert (await reads.receive(API_VERSIONS, 3)).correlation_id == 3
        for each in (slow, reads, follows):
            each.writer.close()
        await until(lambda: not server.open)
        assert (server.unsent.held_bytes, server.unsent.holders, server.unsent.line) == (0, {}, {})


@pytest.mark.parametrize("ends", [True, False])
async def test_who_takes_nothing_ends_where_others_wait(
    ends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unsents, "PATIENCE_S", 0.1)
    server = Fetched(20 * MIB, 16 * MIB)  # the sockets take some MiB of an answer
    async with serving(server):
        slow = await connected(server)
        fetches(slow, 1)
        await until(lambda: server.unsent.held_bytes > MIB)
        if ends:
            another, reads = await connected(server), await connected(server, reads=True)
            fetches(another, 2)
            await until(lambda: server.unsent.left() <= 0)
            fetches(reads, 3)
            assert (await reads.receive(FETCH, 11)).correlation_id == 3
            assert "it did not read its answers while others waited" in caplog.text
        else:
            await asyncio.sleep(0.3)
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await slow.receive(FETCH, 11)).correlation_id == 1


async def test_an_answer_that_waits_for_an_earlier_one_counts() -> None:
    share_calls: list[Callable[[], None]] = []
    unsent = Unsent(100)
    first = unsents.UnsentShare(unsent, lambda: share_calls.append(first.close), lambda: None)
    second = unsents.UnsentShare(unsent, lambda: share_calls.append(second.close), lambda: None)
    first.add(100)
    assert not second.may_fetch() and unsent.left() == 0
    first.sent(1)
    await until(lambda: share_calls)
    assert second.may_fetch()
    first.close()
    assert (unsent.held_bytes, unsent.left()) == (0, 100)


@pytest.mark.parametrize(("moves_at_s", "ends_at_s"), [(0, 5.0), (3, 8.0), (4.5, 10.0)])
def test_a_client_that_takes_nothing_is_looked_for_again_and_again(
    moves_at_s: float, ends_at_s: float
) -> None:
    """The largest first, until there is room. Time is the simulator's."""
    engine, ended = Engine(1), list[tuple[str, float]]()
    loop, unsent = SimulatedLoop(engine), Unsent(100)
    shares: dict[str, UnsentShare] = {}

    def late(name: str) -> None:
        ended.append((name, round(engine.now_ms / 1_000, 2)))
        shares[name].sent(shares[name].held_bytes)

    def begin() -> None:
        for name, size in (("small", 45), ("large", 60), ("waits", 0)):
            shares[name] = UnsentShare(unsent, lambda: None, lambda name=name: late(name))  # type: ignore[misc]
            if size:
                shares[name].add(size)
        assert not shares["waits"].may_fetch()

    loop.call_soon(begin)
    if moves_at_s:
        for name in ("small", "large"):
            loop.call_later(moves_at_s, lambda name=name: shares[name].sent(1))  # type: ignore[misc]
    engine.run_for(20_000, lambda: None)
    assert ended == [("large", ends_at_s)]
