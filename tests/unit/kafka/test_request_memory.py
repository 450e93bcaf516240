"""A listener's memory over all its connections: counted, never above the bound, and no one waits forever."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.config.load import load_config
from metaquorum.errors import ConfigError
from metaquorum.listeners import request_memory as memories
from metaquorum.listeners.connection import ConnectionConfig
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.login_rules import ListenerRules
from metaquorum.listeners.request_memory import RequestMemory, Share
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.network.framing import SCRATCH_BYTES, FrameBuffer
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.unit.kafka.test_connection import (
    API_VERSIONS,
    FIND_COORDINATOR,
    METADATA,
    Caller,
    Server,
    calling,
    serving,
    until,
)
from tests.unit.server.certificates import node_and_client
from tests.unit.server.nodes import new_site

MIB = 1024 * 1024
LENGTHS = 4 + memories.FEW_BYTES
"""Bytes that a connection may hold without room for them."""


def bounded(max_bytes: int, request_max_bytes: int) -> Server:
    server = Server()
    server.config = ConnectionConfig(
        listener="KAFKA",
        request_max_bytes=request_max_bytes,
        max_idle_s=60,
        memory=RequestMemory(max_bytes, request_max_bytes),
    )
    return server


def long_frame(correlation_id: int) -> bytes:
    return frame_of(800_000, correlation_id)


def frame_of(size: int, correlation_id: int) -> bytes:
    topics = tuple(MetadataRequest.MetadataRequestTopic(name="t" * 20_000) for _ in range(size // 20_000))
    header = codec.RequestHeader(METADATA, 12, correlation_id, "me")
    frame = b"".join(codec.encode_request(header, MetadataRequest(topics=topics)))
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize("over_tls", [False, True])
async def test_slow_writers_of_large_frames_stay_under_the_bound_and_block_no_one(
    over_tls: bool, tmp_path: Path
) -> None:
    serves = asks = None
    if over_tls:
        serves, asks = node_and_client(tmp_path)
    frame, bound = long_frame(7), 4 * MIB
    server = bounded(bound, MIB)
    memory = server.config.memory
    most = 0

    async def settled() -> None:
        nonlocal most
        for _ in range(20):
            await asyncio.sleep(0.001)
            most = max(most, memory.held_bytes)

    def connect() -> Any:
        return asyncio.open_connection("127.0.0.1", server.port, ssl=asks)

    async with serving(server, serves):
        writers = [Caller(*await connect()) for _ in range(20)]
        for writer in writers:
            writer.writer.write(frame[:300_000])
        await until(lambda: memory.waiting > 10)  # 3 MiB of long frames, 20 of nearly 1 MiB have begun
        await settled()
        other = Caller(*await connect())  # a short request of another client is answered meanwhile
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        other.send(API_VERSIONS, 3, 1, request)
        assert (await other.receive(API_VERSIONS, 3)).correlation_id == 1
        for writer in writers:
            writer.writer.write(frame[300_000:])
        for writer in writers:
            assert (await writer.receive(METADATA, 12)).correlation_id == 7
            await settled()
        assert 2 * MIB < most <= bound + LENGTHS * 20
        assert (memory.held_bytes, memory.waiting) == (0, 0)
        for each in (*writers, other):
            each.writer.close()


async def test_requests_under_way_count_until_they_are_answered() -> None:
    server = bounded(2 * MIB, MIB)
    memory = server.config.memory
    async with serving(server):
        callers = [Caller(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(9)]
        for caller in callers:
            for at in range(6):
                caller.send(FIND_COORDINATOR, 2, at, FindCoordinatorRequest(key="k" * 30_000))
        await until(lambda: memory.waiting)
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert memory.held_bytes <= MIB + LENGTHS * 9
        assert 20 < len(server.gates) < 54
        for number in range(54):
            await until(lambda: len(server.gates) > number)  # noqa: B023
            server.gates[number].set_result(FindCoordinatorResponse())
        for caller in callers:
            assert [(await caller.receive(FIND_COORDINATOR, 2)).correlation_id for _ in range(6)] == [
                *range(6)
            ]
        assert (memory.held_bytes, memory.waiting) == (0, 0)
        for caller in callers:
            caller.writer.close()


async def test_a_connection_that_ends_gives_back_what_it_held() -> None:
    server = bounded(4 * MIB, MIB)
    memory = server.config.memory
    async with serving(server):
        callers = [Caller(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(8)]
        for caller in callers:
            caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest(key="k"))
            caller.writer.write(long_frame(2)[:300_000])
        await until(lambda: memory.held_bytes > 2 * MIB and len(server.gates) == 8)
        for caller in callers:
            caller.writer.transport.abort()
        await until(lambda: (memory.held_bytes, memory.waiting) == (0, 0))


@pytest.mark.parametrize("others", [0, 1])
async def test_who_sends_too_slowly_ends_only_where_others_wait(
    others: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memories, "PATIENCE_S", 0.05)
    server = bounded(2 * MIB, MIB)  # one long frame at a time
    async with serving(server), calling(server) as slow:
        slow.writer.write(long_frame(1)[:300_000])
        await until(lambda: server.config.memory.held_bytes > 300_000)
        async with calling(server) as other:
            other.writer.write(long_frame(2) * others)
            if others:
                assert await slow.ended()
                assert (await other.receive(METADATA, 12)).correlation_id == 2
                assert "arrived too slowly" in caplog.text
            else:
                await asyncio.sleep(0.2)
                slow.writer.write(long_frame(1)[300_000:])
                assert (await slow.receive(METADATA, 12)).correlation_id == 1


@pytest.mark.parametrize("announced", [MIB, SCRATCH_BYTES - 5], ids=["long", "short"])
async def test_what_is_announced_and_does_not_come_takes_no_room_from_others(announced: int) -> None:
    server = bounded(4 * MIB, MIB)
    async with serving(server):
        idlers = [Caller(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(12)]
        for idler in idlers:
            idler.writer.write(announced.to_bytes(4, "big") + bytes(15))
        await until(
            lambda: (
                len(server.open) == 12
                and all(each._buffer._rest or each._buffer._pieces for each in server.open)
            )
        )
        assert server.config.memory.held_bytes <= 12 * 64 * 1024
        async with calling(server) as other:
            for number in range(5):
                other.send(METADATA, 12, number, MetadataRequest(topics=None))
                assert (await other.receive(METADATA, 12)).correlation_id == number
                other.writer.write(frame_of(400_000, number))
                assert (await other.receive(METADATA, 12)).correlation_id == number
        assert len(server.open) >= 12  # no idler has ended
        for idler in idlers:
            idler.writer.close()


async def test_half_of_many_large_frames_does_not_keep_the_other_half_out() -> None:
    server = bounded(4 * MIB, MIB)
    memory, frame = server.config.memory, long_frame(7)
    async with serving(server):
        callers = [Caller(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(9)]
        for at in range(0, len(frame), 50_000):
            for caller in callers:
                caller.writer.write(frame[at : at + 50_000])
            await asyncio.sleep(0)
            assert memory.held_bytes <= 4 * MIB + LENGTHS * 9
        for caller in callers:
            assert (await caller.receive(METADATA, 12)).correlation_id == 7
            caller.writer.close()


async def test_the_largest_of_those_who_send_nothing_end_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "PATIENCE_S", 0.2)
    server = bounded(4 * MIB, 2 * MIB)
    async with serving(server), calling(server) as small, calling(server) as large:
        large.writer.write((2 * MIB).to_bytes(4, "big") + bytes(2 * MIB - 9))
        small.writer.write((2 * MIB).to_bytes(4, "big") + bytes(MIB))
        await until(lambda: server.config.memory.held_bytes >= 2_900_000)
        async with calling(server) as other:
            other.writer.write(long_frame(2))
            assert (await other.receive(METADATA, 12)).correlation_id == 2
            assert await large.ended()
        assert len(server.open) in (1, 2)


async def test_a_frame_overtakes_others_only_while_they_have_not_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = RequestMemory(4 * MIB, 3 * MIB)

    def share() -> Share:
        return Share(memory, lambda: None, lambda: None)

    holds, waits = share(), share()
    assert holds.reserve(2 * MIB, MIB) and not waits.reserve(5 * MIB // 2, MIB)
    early, begun = share(), share()
    assert early.reserve(MIB, 1) and begun.reserve(MIB, 1)
    monkeypatch.setattr(memories, "PATIENCE_S", 0.0)
    late = share()
    assert not late.reserve(MIB, 1)  # there is room, but it is not its turn
    assert begun.reserve(MIB, 2)  # or no one would ever be whole
    for each in (holds, early, begun):
        each.close()
    await until(lambda: memory.waiting == 0)
    assert waits.has_begun(memory.long)


SIZES = [0, 1, 3, 50, 70_000, SCRATCH_BYTES - 5, SCRATCH_BYTES - 4, SCRATCH_BYTES - 3, 300_000, MIB]


class Sender:
    """One connection's stream, its buffer, and what is under way."""

    def __init__(self, memory: RequestMemory, scratch: bytearray, sizes: list[int]) -> None:
        self.data = b"".join(size.to_bytes(4, "big") + bytes([size % 251]) * size for size in sizes)
        self.sizes = sizes
        self.share = Share(memory, self.goes_on, lambda: None)
        self.buffer = FrameBuffer(MIB, "k", scratch, self.share)
        self.found: list[int] = []
        self.under_way: list[int] = []

    def goes_on(self) -> None:
        self.buffer.resume()

    @property
    def can_read(self) -> bool:
        return bool(self.data) and not self.buffer.waits

    def read(self, most: int) -> None:
        view = self.buffer.get_buffer()
        assert len(view), "there must be room for a byte"
        part = self.data[: min(most, len(view))]
        view[: len(part)] = part
        self.data = self.data[len(part) :]
        for frame in self.buffer.received(len(part)):
            assert bytes(frame) == bytes([len(frame) % 251]) * len(frame)
            self.found.append(len(frame))
            self.under_way.append(len(frame))


async def run(streams: list[list[int]], bound: int, rng: random.Random) -> None:
    memory, scratch = RequestMemory(bound, MIB), bytearray(SCRATCH_BYTES)
    senders = [Sender(memory, scratch, sizes) for sizes in streams]
    while any(sender.data or sender.under_way for sender in senders):
        steps: list[Any] = [sender.read for sender in senders if sender.can_read]
        busy = [sender for sender in senders if sender.under_way]
        assert steps or busy, "everyone waits for everyone"
        if steps and (not busy or rng.random() < 0.8):
            rng.choice(steps)(rng.choice([1, 5, 100_000, MIB]))
        else:
            sender = rng.choice(busy)
            sender.share.answered(sender.under_way.pop(0))
        assert memory.held_bytes <= bound + LENGTHS * len(senders)
        await asyncio.sleep(0)
    assert [sender.found for sender in senders] == streams
    assert (memory.held_bytes, memory.waiting) == (0, 0)


@settings(max_examples=25, deadline=None)
@example(streams=[[0, SCRATCH_BYTES - 5, SCRATCH_BYTES - 3, MIB]], bound=2 * MIB, seed=0)
@given(
    streams=st.lists(st.lists(st.sampled_from(SIZES), max_size=5), min_size=1, max_size=6),
    bound=st.sampled_from([2 * MIB, 3 * MIB, 8 * MIB]),
    seed=st.integers(0, 99),
)
def test_any_streams_come_whole_under_the_bound(streams: list[list[int]], bound: int, seed: int) -> None:
    asyncio.run(run(streams, bound, random.Random(seed)))


def test_the_bound_has_room_for_the_longest_request_and_more(tmp_path: Any) -> None:
    site = new_site(tmp_path)
    keys = {"socket.request.max.bytes": str(100 * MIB), "queued.max.request.bytes": str(101 * MIB)}
    load_config(site.broker_file(keys)).replicas()
    with pytest.raises(ConfigError, match=r"must be at least 1048576 more than socket\.request\.max\.bytes"):
        load_config(site.broker_file({**keys, "queued.max.request.bytes": str(101 * MIB - 1)})).replicas()


@pytest.mark.parametrize("line", ["long", "short", None])
@pytest.mark.parametrize("came", [99, 100])
def test_a_frame_that_waits_for_room_is_not_late(line: str | None, came: int) -> None:
    memory = RequestMemory(10_000_000, 1_000_000)
    share = Share(memory, lambda: None, lambda: None)
    if line is not None:
        getattr(memory, line).line[share] = 0.0
    share.filled(came)
    share.look(7.0, 100)
    assert share.moved_s == (7.0 if line is not None or came >= 100 else 0.0)
    assert share.filled_bytes == 0


async def test_what_a_connection_holds_moves_with_it_when_its_client_is_known() -> None:
    """Whole frames, a partial one, and one that waits for room: it goes on where there is some."""
    strangers, clients = RequestMemory(2 * MIB, MIB), RequestMemory(8 * MIB, MIB)
    woken = []
    share = Share(strangers, lambda: woken.append("share"), lambda: None)
    other = Share(strangers, lambda: woken.append("other"), lambda: None)
    assert other.reserve(900_000, 900_000)
    share.arrived(100)
    share.arrived(300_000)
    assert not share.reserve(900_000, 65_536)
    held = strangers.held_bytes
    share.move_to(clients)
    assert strangers.held_bytes == held - 300_100 and strangers.waiting == 0
    await until(lambda: woken == ["share"])
    assert clients.waiting == 0 and share.reserve(900_000, 65_536)
    share.answered(100)
    share.answered(300_000)
    share.close()
    other.close()
    assert (strangers.held_bytes, clients.held_bytes) == (0, 0)


async def test_frames_before_logins_have_a_small_budget_of_their_own() -> None:
    """However many strangers announce long frames, those who are logged in keep their memory."""
    rules = SaslRules(
        mechanisms=("PLAIN",), new_exchange=lambda _: PlainExchange({"a": "secret"}), max_reauth_ms={}
    )
    listening = ListenerRules(sasl=rules, certificates=None)  # type: ignore[arg-type]
    bound = 2 * MIB
    server = bounded(8 * MIB, MIB)
    strangers = RequestMemory(bound, 524_288)
    server.config = replace(server.config, rules=listening, login_memory=strangers)
    clients = server.config.memory
    announced = (524_288).to_bytes(4, "big") + b"\0\x11" + bytes(300_000)
    async with serving(server):
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
        for _, writer in held:
            writer.write(announced)
        await until(lambda: strangers.waiting > 10)
        assert bound // 4 < strangers.held_bytes <= bound + LENGTHS * len(held)
        assert clients.held_bytes == 0
        async with calling(server) as client:
            client.send(17, 1, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            assert (await client.receive(17, 1)).body.error_code == 0
            client.send(36, 2, 2, SaslAuthenticateRequest(auth_bytes=b"\0a\0secret"))
            assert (await client.receive(36, 2)).body.error_code == 0
            client.writer.write(long_frame(7))
            assert (await client.receive(METADATA, 12)).correlation_id == 7
        for _, writer in held:
            writer.close()
        await until(lambda: not server.open)
    assert (strangers.held_bytes, strangers.waiting, clients.held_bytes) == (0, 0, 0)
