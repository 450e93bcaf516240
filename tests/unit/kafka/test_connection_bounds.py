"""How many connections listeners take, and who makes room for whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.listeners.answers import Chunks
from metaquorum.listeners.connection import GATHERED_MAX_BYTES, StepResponses
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.listeners.services import Features, Services
from metaquorum.metadata.image import MetadataImage
from metaquorum.node.scheduler import StepEnd
from metaquorum.wire import codec
from metaquorum.wire.messages import ApiVersionsRequest
from tests.unit.server.nodes import Site, free_port, new_site


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has asked something; IncompleteReadError or OSError where none is taken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await greet(reader, writer)
    return reader, writer


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    frame = b"".join(codec.encode_request(codec.RequestHeader(18, 0, 1, "me"), ApiVersionsRequest()))
    writer.write(len(frame).to_bytes(4, "big") + frame)
    async with asyncio.timeout(20):
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


@contextlib.asynccontextmanager
async def listening(site: Site, names: tuple[str, ...], **keys: str) -> AsyncIterator[dict[str, int]]:
    ports = {name: free_port() for name in names}
    addresses = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    config = {
        "listeners": f"GRPC://127.0.0.1:{free_port()},{addresses}",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in (*names, "CONTROLLER")),
        "inter.broker.listener.name": names[0],
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    listeners = KafkaListeners(load_config(site.broker_file(config)), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        yield ports
    finally:
        await listeners.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is accepted and has said nothing yet."""
    found = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0)
    return found


REFUSED = (asyncio.IncompleteReadError, OSError)


async def test_brokers_get_in_where_clients_have_taken_every_connection(site: Site) -> None:
    async with listening(site, ("BROKERS", "IN", "OUT"), max_connections="3") as ports:
        first, second = await greeted(ports["IN"]), await greeted(ports["OUT"])
        third = await greeted(ports["IN"])
        with pytest.raises(REFUSED):
            await greeted(ports["IN"])
        await greet(*first)  # the least recently used one is the second now
        kept = []
        for gone in (second, third):
            kept.append(await greeted(ports["BROKERS"]))
            assert await gone[0].read() == b""
        await greet(*first)
        for _ in range(3):  # there are brokers alone then, and they are not counted out
            kept.append(await greeted(ports["BROKERS"]))
        assert await first[0].read() == b""
        for each in kept:
            await greet(*each)


async def test_the_only_listener_is_bounded_for_all(site: Site) -> None:
    async with listening(site, ("BROKERS",), max_connections="1") as ports:
        only = await greeted(ports["BROKERS"])
        with pytest.raises(REFUSED):
            await greeted(ports["BROKERS"])
        await greet(*only)


async def test_a_listener_has_a_bound_of_its_own(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    keys = {"listener.name.in.max.connections": "1", "listener.name.brokers.max.connections": "2"}
    async with listening(site, ("BROKERS", "IN"), **keys) as ports:
        first = await greeted(ports["IN"])
        kept = [await greeted(ports["BROKERS"]) for _ in range(2)]
        for name in ("IN", "BROKERS"):
            with pytest.raises(REFUSED):
                await greeted(ports[name])
            assert f"the most that listener.name.{name.lower()}.max.connections allows" in caplog.text
        for each in (first, *kept):
            await greet(*each)


async def test_connections_from_one_address_are_counted_when_accepted(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(site, ("BROKERS",), max_connections_per_ip="2") as ports:
        first, silent = await greeted(ports["BROKERS"]), await connected(ports["BROKERS"])
        with pytest.raises(REFUSED):
            await greeted(ports["BROKERS"])
        assert "the most that max.connections.per.ip allows" in caplog.text
        await greet(*first)
        await greet(*silent)
    overrides = {"max_connections_per_ip_overrides": "localhost:3,10.0.0.9:7"}
    async with listening(site, ("BROKERS",), max_connections_per_ip="1", **overrides) as ports:
        kept = [await greeted(ports["BROKERS"]) for _ in range(3)]
        with pytest.raises(REFUSED):
            await greeted(ports["BROKERS"])
        assert "the most that max.connections.per.ip.overrides allows" in caplog.text
        for each in kept:
            await greet(*each)


async def test_what_says_nothing_makes_room_for_what_does(site: Site) -> None:
    async with listening(site, ("BROKERS",), max_connections_unauthenticated="3") as ports:
        talks = await greeted(ports["BROKERS"])
        silent = [await connected(ports["BROKERS"]) for _ in range(3)]
        later = [await greeted(ports["BROKERS"]) for _ in range(2)]
        assert await silent[0][0].read() == b""
        for each in (talks, *silent[1:], *later):
            await greet(*each)


async def test_connections_come_no_faster_than_their_rate(site: Site) -> None:
    keys = {"listener.name.in.max.connection.creation.rate": "4"}
    async with listening(site, ("BROKERS", "IN"), **keys) as ports:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(7):
            await greeted(ports["IN"])
        assert loop.time() - begun_s >= 2 / 4


# What a connection sends in one step: once, in order, when the step has ended.


def sent() -> tuple[StepEnd, StepResponses, list[bytes]]:
    step_end, found = StepEnd(), []

    def send(chunks: Chunks) -> None:
        found.append(b"".join(map(bytes, chunks)))

    return step_end, StepResponses(step_end, send), found


def test_outside_a_step_everything_leaves_at_once() -> None:
    step_end, departing, found = sent()
    departing.put([b"a", b"b"])
    step_end.begin()
    step_end.flush()
    departing.put([b"c"])
    assert found == [b"ab", b"c"]


def test_in_a_step_all_leaves_with_one_send_when_it_ends() -> None:
    step_end, departing, found = sent()
    for text in (b"123", b"45"):
        step_end.begin()
        for byte in text:
            departing.put([bytes([byte])])
        assert b"".join(found) < text
        step_end.flush()
    assert found == [b"123", b"45"]


def test_a_large_answer_leaves_at_once_behind_what_came_before_it() -> None:
    step_end, departing, found = sent()
    step_end.begin()
    departing.put([b"a"])
    departing.put([large := bytes(GATHERED_MAX_BYTES + 1)])
    assert found == [b"a" + large]
    departing.put([b"b"])
    step_end.flush()
    assert found == [b"a" + large, b"b"]


def test_what_waits_can_leave_before_the_step_ends() -> None:
    step_end, departing, found = sent()
    step_end.begin()
    departing.put([b"a"])
    departing.flush()
    departing.flush()
    assert found == [b"a"]
    step_end.flush()
    assert found == [b"a"]
