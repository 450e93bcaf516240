"""The line between the process that owns a test cluster and a node in another one: calls in both directions.

A frame is its length in four bytes, and (kind, number, text, value) in MessagePack.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from metaquorum.listeners.services import EndConnection
from metaquorum.testing.memory_disk import DiskFaultOrder
from metaquorum.testing.network import Delay, Pair

CALL, ANSWER, FAILED, END = range(4)
"""Kinds of frames: a call and its name, what it returned, why it failed, and an EndConnection."""
_SIZE_BYTES = 4

Answer = Callable[[str, Any], Awaitable[Any]]
"""Carries out a call by its name; gets and returns what MessagePack has."""


class LineError(Exception):
    """The call failed at the other end, or the line has ended."""


class NetworkOrder(msgspec.Struct, frozen=True, kw_only=True, tag="network"):
    """A fault of what the first node of each pair sends to the second."""

    pairs: tuple[Pair, ...]
    delay: Delay | None


class DiskOrder(msgspec.Struct, frozen=True, kw_only=True, tag="disk"):
    """A fault of the node's disk."""

    fault: DiskFaultOrder


Order = NetworkOrder | DiskOrder
"""A fault that is in force from its number's `begin` to its `end`."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner answers a node that starts. `ports`: of every node, by its id; `highest`: see
    `Interception`."""

    ports: dict[str, tuple[int, ...]]
    seed: int
    highest: dict[str, int] | None
    met: MetRequests
    orders: tuple[tuple[int, Order], ...]


class MetRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests the owner decides about: all, or those of some APIs."""

    all: bool = False
    apis: frozenset[str] = frozenset()


class AskedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the owner decides about. `number`: in calls `carry_out`; `names`: of the topics that it
    has the ids of."""

    number: int
    frame: bytes
    address: str
    listener: str
    principal: str
    connection: int
    names: tuple[tuple[bytes, str], ...]


class Line:
    """One end. For one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, name: str, value: object = None) -> Any:
        """What the other end returns. Raises LineError, or EndConnection."""
        if self._writer.is_closing():
            raise LineError("the line has ended")
        number = next(self._numbers)
        ahead = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(CALL, number, name, value)
            return await ahead
        finally:
            self._waiting.pop(number, None)

    async def serve(self) -> None:
        """Carries out the calls of the other end until the line ends."""
        try:
            while True:
                head = await self._reader.readexactly(_SIZE_BYTES)
                frame = await self._reader.readexactly(int.from_bytes(head))
                kind, number, text, value = msgspec.msgpack.decode(frame)
                if kind == CALL:
                    task = asyncio.get_running_loop().create_task(self._carry_out(number, text, value))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._settle(kind, number, text, value)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()
        for ahead in self._waiting.values():
            if not ahead.done():
                ahead.set_exception(LineError("the line has ended"))
        for task in self._tasks:
            task.cancel()

    def _settle(self, kind: int, number: int, text: str, value: Any) -> None:
        ahead = self._waiting.get(number)
        if ahead is None or ahead.done():
            return
        if kind == ANSWER:
            ahead.set_result(value)
        else:
            ahead.set_exception(EndConnection(text) if kind == END else LineError(text))

    async def _carry_out(self, number: int, name: str, given: Any) -> None:
        try:
            value = await self._answer(name, given)
        except EndConnection as error:
            self._send(END, number, str(error), None)
        except Exception as error:  # the other end has it
            self._send(FAILED, number, f"{type(error).__name__}: {error}", None)
        else:
            self._send(ANSWER, number, "", value)

    def _send(self, kind: int, number: int, text: str, value: object) -> None:
        frame = msgspec.msgpack.encode((kind, number, text, value))
        with contextlib.suppress(OSError):
            self._writer.write(len(frame).to_bytes(_SIZE_BYTES) + frame)
