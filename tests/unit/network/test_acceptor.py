"""Accepting connections: what a process does that has no descriptors left, and how little it says of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from metaquorum.network import acceptor as module
from metaquorum.network.acceptor import Acceptor
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot, CreationRate
from metaquorum.network.refused_callers import RefusedCallers
from tests.unit.kafka.test_connection import until

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
