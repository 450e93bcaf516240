"""Accepting connections: what a process does that has no descriptors left, and how little it says of it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Sequence

import pytest
import uvloop

from metaquorum.network import acceptor as module
from metaquorum.network.acceptor import Acceptor
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot, CreationRate
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.sending import write_all
from tests.unit.kafka.test_connection import until
from tests.unit.sources import files, name_of, tree_of

HOST = "127.0.0.1"


class Scarce:
    """A listening socket of a process that has no descriptors for a while."""

    def __init__(self, bound: socket.socket) -> None:
        self._bound = bound
        self.failures = 0
        self.has_none = False

    def accept(self) -> tuple[socket.socket, object]:
        if self.has_none:
            self.failures += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._bound.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._bound, name)


@contextlib.asynccontextmanager
async def accepting(
    limits: ConnectionLimits, rates: Sequence[CreationRate] = ()
) -> AsyncIterator[tuple[Scarce, list[socket.socket]]]:
    let_in: list[socket.socket] = []

    async def take(client: socket.socket, peer: str, place: ConnectionSlot) -> None:
        let_in.append(client)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            client.close()
            place.leave()

    with socket.create_server((HOST, 0)) as bound:
        scarce = Scarce(bound)
        door = Acceptor(
            scarce,  # type: ignore[arg-type]
            take,
            name="IN",
            limits=limits,
            refused=RefusedCallers(),
            rates=rates,
        )
        door.open()
        try:
            yield scarce, let_in
        finally:
            door.close()
            await asyncio.sleep(0)


async def test_without_descriptors_it_pauses_makes_some_free_says_so_once_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    limits = ConnectionLimits()
    async with accepting(limits) as (scarce, let_in):
        address = scarce.getsockname()  # type: ignore[operator]
        first, _ = await asyncio.open_connection(*address)
        await until(lambda: let_in)
        scarce.has_none = True
        with socket.create_connection(address):
            await until(lambda: scarce.failures >= 5)
            assert await asyncio.wait_for(first.read(), 20) == b""  # it was not known yet
            scarce.has_none = False
            await until(lambda: len(let_in) == 2)
    lines = [each for each in caplog.messages if "accepts no connections for a while" in each]
    assert len(lines) == 1 and "Too many open files" in lines[0]


async def test_what_is_refused_is_closed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(max_per_ip=1)
    async with accepting(limits) as (scarce, let_in):
        address = scarce.getsockname()  # type: ignore[operator]
        _, first = await asyncio.open_connection(*address)
        await until(lambda: let_in)
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        assert len(let_in) == 1
        first.close()
    assert len([each for each in caplog.messages if "max.connections.per.ip allows" in each]) == 1


class Waits(CreationRate):
    """A rate that makes the first few wait for a moment."""

    def __init__(self, waits: int) -> None:
        super().__init__(1)
        self.waits, self.count = waits, 0

    def wait_s(self, now_s: float) -> float:
        self.waits -= 1
        return 0.001 if self.waits >= 0 else 0.0

    def accepted(self, now_s: float) -> None:
        self.count += 1


async def test_every_rate_counts_a_connection_once_however_long_it_waits_for_another_rate() -> None:
    rates = [Waits(0), Waits(3)]
    async with accepting(ConnectionLimits(), rates) as (scarce, let_in):
        for number in range(1, 5):
            with socket.create_connection(scarce.getsockname()):  # type: ignore[operator]
                await until(lambda number=number: len(let_in) == number)
        assert [each.count for each in rates] == [4, 4]


# What peers do not read, on each loop: the writer pauses, everything leaves, and the connection closes.


MIB = 1024 * 1024
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Writer(asyncio.Protocol):
    """Knows whether its transport asked it to pause."""

    def __init__(self) -> None:
        self.is_paused = False
        self.lost = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "chunks",
    [
        (b"head", bytes(4 * MIB)),
        (bytes(4 * MIB),),
        (b"head", bytearray(4 * MIB), memoryview(b"tail"), b""),
        (b"", bytes(4 * MIB), b"", b""),
    ],
    ids=["two", "one", "last is empty", "several are empty"],
)
def test_a_writer_pauses_until_its_peer_reads_and_its_connection_can_end(
    loop: str, chunks: tuple[bytes | bytearray | memoryview, ...]
) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        transport, writer = await asyncio.get_running_loop().create_connection(Writer, sock=ours)
        write_all(transport, chunks)
        write_all(transport, (b"",))
        assert writer.is_paused
        transport.close()
        taken, wanted = bytearray(), b"".join(chunks)
        with contextlib.closing(theirs):
            async with asyncio.timeout(20):  # until everything was read, and the connection has ended
                while part := await asyncio.get_running_loop().sock_recv(theirs, MIB):
                    taken += part
                assert await writer.lost is None
        assert taken == wanted
        assert not writer.is_paused

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


def test_nothing_else_calls_writelines_of_a_transport() -> None:
    callers = [
        name_of(path)
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr == "writelines" and ast.unparse(node.value) != "file"
    ]
    assert callers == ["network/sending.py"]
