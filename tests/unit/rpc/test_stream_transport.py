"""A gRPC stream as the transport of a protocol: what arrives, what waits, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.rpc.channels import END_OF_STREAM
from metaquorum.rpc.stream_transport import HIGH_BYTES, StreamTransport


class Stream:
    """One end of a stream. `room`: how many messages it takes before a write waits."""

    def __init__(self, room: int = 1_000) -> None:
        self.arriving: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[bytes] = []
        self.room = asyncio.Semaphore(room)
        self.problem: Exception | None = None

    def receive(self, data: bytes) -> None:
        self.arriving.put_nowait(pb.Bytes(data=data))

    async def read(self) -> Any:
        message = await self.arriving.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, message: pb.Bytes, /) -> None:
        await self.room.acquire()
        if self.problem is not None:
            raise self.problem
        self.written.append(message.data)


class Protocol(asyncio.BufferedProtocol):
    """Notes what happens to it. Its buffer has three bytes."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.received = b""
        self._buffer = bytearray(3)
        self.transport: StreamTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += bytes(self._buffer[:nbytes])
        if self.received.endswith(b"|"):
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(exc)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_bytes_arrive_in_pieces_and_wait_while_the_protocol_reads_nothing() -> None:
    stream, protocol = Stream(), Protocol()
    transport = StreamTransport(stream, protocol)
    stream.receive(b"abcd")
    stream.receive(b"ef|ghi")
    stream.receive(b"jk")
    await settle()
    assert protocol.received == b"abcdef|"
    assert stream.arriving.qsize() == 1, "a paused protocol reads no message of the stream"
    transport.resume_reading()
    await settle()
    assert protocol.received == b"abcdef|ghijk"
    transport.abort()


async def test_a_message_leaves_at_once_and_what_follows_waits_for_it() -> None:
    stream, protocol = Stream(room=0), Protocol()
    transport = StreamTransport(stream, protocol)
    transport.write(b"a")
    transport.write(b"b")
    transport.write(b"c")
    assert stream.written == [] and protocol.events == []
    stream.room.release()
    await settle()
    assert stream.written == [b"a"]
    stream.room.release()
    await settle()
    assert stream.written == [b"a", b"bc"]
    free = Stream()
    StreamTransport(free, Protocol()).write(b"d")
    assert free.written == [b"d"], "in the step that wrote it"
    transport.abort()


async def test_a_protocol_is_paused_while_much_is_unsent() -> None:
    stream, protocol = Stream(room=0), Protocol()
    transport = StreamTransport(stream, protocol)
    transport.write(bytes(HIGH_BYTES))
    assert protocol.events == []
    transport.write(b"x")
    assert protocol.events == ["paused"]
    for _ in range(2):
        stream.room.release()
        await settle()
    assert protocol.events == ["paused", "resumed"]
    transport.set_write_buffer_limits(high=10)
    transport.write(bytes(11))
    assert protocol.events == ["paused", "resumed", "paused"]
    transport.abort()


async def test_close_lets_leave_what_was_written_and_abort_does_not() -> None:
    for end, written in ((StreamTransport.close, [b"a", b"b"]), (StreamTransport.abort, [b"a"])):
        stream, protocol = Stream(room=0), Protocol()
        transport = StreamTransport(stream, protocol)
        transport.write(b"a")
        transport.write(b"b")
        end(transport)
        transport.write(b"c")
        assert transport.is_closing()
        finished = asyncio.ensure_future(transport.finished())
        await settle()
        stream.room.release()
        stream.room.release()
        await asyncio.wait_for(finished, 10)
        assert stream.written == written
        assert protocol.events == [None]


@pytest.mark.parametrize("message", [END_OF_STREAM, ConnectionError("cut")])
async def test_the_protocol_hears_how_the_stream_ended(message: Any) -> None:
    stream, protocol = Stream(), Protocol()
    transport = StreamTransport(stream, protocol)
    stream.arriving.put_nowait(message)
    if isinstance(message, Exception):
        with pytest.raises(ConnectionError, match="cut"):
            await transport.finished()
        assert protocol.events == [message]
    else:
        await transport.finished()
        assert protocol.events == [None]
    transport.write(b"late")
    assert stream.written == []


async def test_a_write_that_fails_drops_the_rest_and_the_reader_says_why() -> None:
    stream, protocol = Stream(room=0), Protocol()
    transport = StreamTransport(stream, protocol)
    stream.problem = asyncio.InvalidStateError("over")
    transport.write(b"a")
    transport.write(b"b")
    stream.room.release()
    await settle()
    assert stream.written == [] and protocol.events == []
    stream.arriving.put_nowait(ConnectionError("cut"))
    await settle()
    assert [str(each) for each in protocol.events] == ["cut"]
    with pytest.raises(ConnectionError):
        await transport.finished()


async def test_a_caller_that_is_cancelled_ends_the_connection() -> None:
    stream, protocol = Stream(room=0), Protocol()
    transport = StreamTransport(stream, protocol)
    transport.write(b"a")
    serving = asyncio.ensure_future(transport.finished())
    await settle()
    serving.cancel()
    await settle()
    assert serving.cancelled() and protocol.events == [None]
