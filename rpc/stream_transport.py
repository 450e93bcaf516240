"""A gRPC stream of bytes as the transport of an asyncio protocol: a connection of Kafka's protocol keeps its
code, and its limits, where gRPC carries it.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Protocol

import grpc.aio

from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.rpc.channels import END_OF_STREAM

# Coroutines that start at once, like eager tasks of Python 3.12: a message leaves in the step that produced
# it.


def start(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Runs `coroutine` until it first waits, on `loop`'s thread, and continues it in a task. Returns the
    task, or None if the coroutine has ended. Raises the exception of the coroutine before it waits."""
    try:
        waits_for = coroutine.send(None)
    except (StopIteration, asyncio.CancelledError):
        return None  # cancelled before there was a task
    task = loop.create_task(_rest(coroutine, waits_for))

    def ended(_: asyncio.Task[None]) -> None:
        """A task that is cancelled at once never runs: nothing else waits for the future."""
        coroutine.close()
        if isinstance(waits_for, asyncio.Future):
            waits_for.add_done_callback(_seen)

    task.add_done_callback(ended)
    return task


def _seen(future: asyncio.Future[Any]) -> None:
    """A call that fails after its caller has gone is not an error to report."""
    if not future.cancelled():
        future.exception()


async def _rest(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _resumed(coroutine, waits_for)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Continues a coroutine that has started, from the object that it waits for."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(value)
    except StopIteration:
        return


HIGH_BYTES = 64 * 1024
"""How many unsent bytes pause the protocol, until half of them have left."""
WRITE_ENDS_S = 1.0
"""How long a write may take to fail after its stream has ended."""


class StreamEnd(Protocol):
    """One end of the stream: a call of a client, or the context of a servicer's method."""

    async def read(self) -> Any: ...

    async def write(self, message: pb.Bytes, /) -> None: ...


class StreamTransport(asyncio.Transport):
    """Carries between `stream` and `protocol` until one of them ends. Everything runs on the loop's
    thread."""

    def __init__(
        self, stream: StreamEnd, protocol: asyncio.BufferedProtocol, peer: tuple[str, int] = ("", 0)
    ) -> None:
        super().__init__({"peername": peer})
        self._stream, self._protocol = stream, protocol
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes, self._high_bytes = 0, HIGH_BYTES
        self._is_writing = self._is_paused = self._is_closing = False
        self._writer: asyncio.Task[None] | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._reader = self._loop.create_task(self._read())
        self._reader.add_done_callback(self._lost)
        protocol.connection_made(self)

    async def finished(self) -> None:
        """Returns once the stream has ended, and a write that was in progress: gRPC accepts no status before.
        Raises the exception of a stream that failed."""
        try:
            await asyncio.wait({self._reader})
            if self._writer is not None:
                await asyncio.wait({self._writer}, timeout=WRITE_ENDS_S)
        finally:
            self._reader.cancel()
            if self._writer is not None:
                self._writer.cancel()
        if not self._reader.cancelled():
            self._reader.result()

    # ---- as a transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_BYTES if high is None else high

    def write(self, data: Any) -> None:
        """A message leaves before this returns, unless another write is in progress."""
        if self._is_closing or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        if not self._is_writing:
            self._is_writing = True
            self._writer = start(self._write(), self._loop)
        if self._unsent_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Ends the stream once everything has left."""
        self._is_closing = True
        self._may_read.clear()
        if not self._is_writing:
            self._reader.cancel()

    def abort(self) -> None:
        self._is_closing = True
        self._drop()
        self._reader.cancel()

    # ---- the stream

    async def _read(self) -> None:
        while True:
            await self._may_read.wait()
            message = await self._stream.read()
            if message is END_OF_STREAM:
                return
            left = memoryview(message.data)
            while left:
                await self._may_read.wait()
                buffer = memoryview(self._protocol.get_buffer(len(left)))
                size = min(len(buffer), len(left))
                buffer[:size] = left[:size]
                self._protocol.buffer_updated(size)
                left = left[size:]

    async def _write(self) -> None:
        try:
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                await self._stream.write(pb.Bytes(data=data))
                self._unsent_bytes -= len(data)
                if self._is_paused and self._unsent_bytes <= self._high_bytes // 2:
                    self._is_paused = False
                    self._protocol.resume_writing()
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError, ConnectionError):
            self._drop()  # the reader reports the reason
        self._is_writing = False
        if self._is_closing:
            self._reader.cancel()

    def _drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def _lost(self, ended: asyncio.Task[None]) -> None:
        self._is_closing = True
        self._drop()
        error = None if ended.cancelled() else ended.exception()
        self._protocol.connection_lost(error if isinstance(error, Exception) else None)
