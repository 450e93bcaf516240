"""Lanes: who may take one up, what ends with it, and what goes on without one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from metaquorum.config.load import load_config
from metaquorum.config.security import TlsFiles
from metaquorum.controller.server.main import lane_listener
from metaquorum.errors import StartError
from metaquorum.network import lane as lanes
from metaquorum.network.files_plan import FilePlan
from metaquorum.network.lane import PORT_KEY, Lane, LaneListener, Offer, take_up
from metaquorum.network.limits import ConnectionLimits
from metaquorum.network.tls import TlsMaterial
from metaquorum.raft.events import (
    RaftRequestAbandoned,
    RaftRequestArrived,
    RaftRequestFailed,
    RaftResponseArrived,
)
from metaquorum.raft.messages import FetchResponse, RaftError
from metaquorum.rpc import raft_server
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.raft_client import RECONNECT, PeerAddress, RaftClient
from metaquorum.rpc.raft_server import RaftService, add_raft_service
from tests.conformance.test_transport import until
from tests.unit.rpc.fetches import fetch
from tests.unit.server.certificates import certificate_files
from tests.waiting import within

HOST = "127.0.0.1"
FETCH = fetch(1)

ANSWER = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=2, high_watermark=0, log_start_offset=0)


def nothing() -> None:
    return


@pytest.fixture
async def listener() -> AsyncIterator[LaneListener]:
    made = LaneListener(HOST, 0, ConnectionLimits())
    await made.open()
    yield made
    made.close()


class End:
    """One end of a lane, with what it got."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()
        self.lost = asyncio.Event()
        self.lane: Lane | None = None

    def begin(self, lane: Lane) -> None:
        self.lane = lane
        lane.open(self.got.put_nowait, self.lost.set)

    async def next(self) -> bytes:
        return await asyncio.wait_for(self.got.get(), 20)


async def test_messages_go_both_ways_whole_and_in_order_until_one_end_closes(listener: LaneListener) -> None:
    here, there = End(), End()
    messages = [b"", b"one", bytes(range(256)) * 8_000, b"last"]
    lane = await take_up(listener.offer(there.begin), HOST, here.got.put_nowait, here.lost.set)
    assert there.lane is not None
    for message in messages:
        lane.write(message)
        there.lane.write(message)
    assert [await here.next() for _ in messages] == [await there.next() for _ in messages] == messages
    lane.close()
    await asyncio.wait_for(there.lost.wait(), 20)
    assert not here.lost.is_set()
    lane.write(b"too late")


@pytest.mark.parametrize("which", ["unknown", "used", "withdrawn"])
async def test_a_lane_that_no_stream_was_offered_is_closed(listener: LaneListener, which: str) -> None:
    taken: list[Lane] = []
    offer = listener.offer(taken.append)
    if which == "unknown":
        offer = Offer.new(offer.port)
    elif which == "withdrawn":
        listener.withdraw(offer)
    else:
        (await take_up(offer, HOST, lambda _: None, nothing)).close()
        taken.clear()
    with pytest.raises(ConnectionError):
        await take_up(offer, HOST, lambda _: None, nothing)
    assert not taken


async def test_a_port_that_closes_forgets_its_offers(listener: LaneListener) -> None:
    """Also for a caller that connected before, and says only then which one it takes up."""
    taken: list[Lane] = []
    offer = listener.offer(taken.append)
    reader, writer = await asyncio.open_connection(HOST, offer.port)
    (await take_up(listener.offer(lambda _: None), HOST, lambda _: None, nothing)).close()
    listener.close()
    writer.write(struct.pack(">i", len(offer.hello)) + offer.hello)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    assert not taken
    writer.close()


@pytest.mark.parametrize("answer", [b"", struct.pack(">i", 16) + bytes(16), b"HTTP/1.1 400 Bad Request\r\n"])
async def test_something_else_that_listens_there_is_not_taken_for_a_lane(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(20)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionError):
        await take_up(Offer.new(port), HOST, lambda _: None, nothing)
    server.close()


async def test_who_says_nothing_is_not_waited_for(
    listener: LaneListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "HANDSHAKE_S", 0.01)
    reader, writer = await asyncio.open_connection(HOST, listener.offer(lambda _: None).port)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    with socket.create_server((HOST, 0)) as silent, pytest.raises(TimeoutError):
        await take_up(Offer.new(silent.getsockname()[1]), HOST, lambda _: None, nothing)


async def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            StartError, match=f"cannot listen on {HOST}:{port}: .*controller.quorum.lane.port"
        ):
            await LaneListener(HOST, port, ConnectionLimits()).open()


def test_what_is_no_offer_is_refused() -> None:
    offer = Offer.new(4711)
    assert Offer.parse(offer.text()) == offer
    for text in ("", "1", "x:00:00", "1:zz:00", f"{offer.text()}:00"):
        with pytest.raises(ValueError):
            Offer.parse(text)


class Nodes:
    """Node 1 asks node 2, whose streams offer lanes."""

    def __init__(self, listener: LaneListener) -> None:
        self.events: dict[int, asyncio.Queue[Any]] = {1: asyncio.Queue(), 2: asyncio.Queue()}
        self.server = new_server()
        port = bind(self.server, HOST, 0, None)
        self.service = RaftService(self._sink(2), None, listener)
        add_raft_service(self.service, self.server)
        addresses = {2: PeerAddress(HOST, port)}
        self.client = RaftClient(addresses, self._sink(1), rng=random.Random(1), lanes=True)

    def _sink(self, node_id: int) -> Callable[[Any], bool]:
        def take(event: Any) -> bool:
            self.events[node_id].put_nowait(event)
            return True

        return take

    async def next(self, node_id: int, kind: type) -> Any:
        event = await asyncio.wait_for(self.events[node_id].get(), 20)
        assert isinstance(event, kind), event
        return event

    async def ask(self, correlation_id: int) -> int:
        self.client.send(2, correlation_id, FETCH, 30_000)
        key: int = (await self.next(2, RaftRequestArrived)).key
        return key

    async def close(self) -> None:
        await self.client.close()
        await self.server.stop(None)


async def test_the_end_of_a_lane_is_that_of_its_stream_and_of_all_that_waits(listener: LaneListener) -> None:
    nodes = Nodes(listener)
    await nodes.server.start()
    first = await nodes.ask(1)
    await until(lambda: nodes.client.has_lane(2))
    second = await nodes.ask(2)
    caller, _ = nodes.service._callers[second]
    caller._lane._end()  # type: ignore[attr-defined]
    failed = [await nodes.next(1, RaftRequestFailed) for _ in range(2)]
    gone = [await nodes.next(2, RaftRequestAbandoned) for _ in range(2)]
    assert {each.correlation_id for each in failed} == {1, 2}
    assert {each.key for each in gone} == {first, second}
    assert not nodes.client.has_lane(2)
    await nodes.close()


async def test_raft_goes_on_over_grpc_where_the_lane_cannot_be_reached(
    listener: LaneListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    listener.close()
    nodes = Nodes(listener)
    await nodes.server.start()
    await nodes.ask(1)
    await until(lambda: "its lane cannot be reached" in caplog.text)
    await nodes.ask(2)
    assert not nodes.client.has_lane(2)
    await nodes.close()


async def test_a_lane_over_which_nothing_comes_any_more_is_left_for_the_stream(
    listener: LaneListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    nodes = Nodes(listener)
    await nodes.server.start()
    await nodes.ask(1)
    await until(lambda: nodes.client.has_lane(2))
    caller, _ = nodes.service._callers[await nodes.ask(2)]
    caller._lane._take = lambda message: None  # type: ignore[attr-defined]
    listener.close()
    for correlation_id in range(3, 6):
        nodes.client.send(2, correlation_id, FETCH, 20)
        failed = await nodes.next(1, RaftRequestFailed)
        assert (failed.correlation_id, failed.reason) == (correlation_id, "no answer within 20 ms")
    assert {(await nodes.next(1, RaftRequestFailed)).correlation_id for _ in range(2)} == {1, 2}
    for _ in range(2):
        await nodes.next(2, RaftRequestAbandoned)
    await asyncio.sleep(RECONNECT.max_ms / 1000)
    await nodes.ask(6)
    await until(lambda: "its lane cannot be reached" in caplog.text)
    nodes.service.respond(await nodes.ask(7), ANSWER)
    assert (await nodes.next(1, RaftResponseArrived)).correlation_id == 7
    await nodes.close()


async def test_a_lane_on_which_an_answer_came_between_two_timeouts_stays(listener: LaneListener) -> None:
    nodes = Nodes(listener)
    await nodes.server.start()
    await nodes.ask(1)
    await until(lambda: nodes.client.has_lane(2))
    for correlation_id in range(2, 8):
        nodes.client.send(2, correlation_id, FETCH, 20)
        key = (await nodes.next(2, RaftRequestArrived)).key
        await nodes.next(1, RaftRequestFailed)
        nodes.service.respond(key, ANSWER)
    assert nodes.client.has_lane(2)
    await nodes.close()


async def test_a_lane_outlives_any_number_of_answered_requests(
    listener: LaneListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raft_server, "REQUESTS_PER_STREAM_MAX", 3)
    nodes = Nodes(listener)
    await nodes.server.start()
    nodes.service.respond(await nodes.ask(1), ANSWER)
    await nodes.next(1, RaftResponseArrived)
    await until(lambda: nodes.client.has_lane(2))
    for correlation_id in range(2, 12):
        nodes.service.respond(await nodes.ask(correlation_id), ANSWER)
        assert (await nodes.next(1, RaftResponseArrived)).correlation_id == correlation_id
    assert nodes.client.has_lane(2)
    for correlation_id in range(12, 15):
        await nodes.ask(correlation_id)
    nodes.client.send(2, 15, FETCH, 30_000)
    assert {(await nodes.next(1, RaftRequestFailed)).correlation_id for _ in range(4)} == {12, 13, 14, 15}
    await nodes.close()


async def test_a_caller_that_does_not_read_its_answers_is_not_read_until_it_does(
    listener: LaneListener,
) -> None:
    there = End()
    offer = listener.offer(there.begin)
    reader, writer = await asyncio.open_connection(HOST, offer.port)
    writer.write(struct.pack(">i", len(offer.hello)) + offer.hello)
    assert await reader.readexactly(4 + len(offer.welcome)) == struct.pack(">i", 16) + offer.welcome
    assert there.lane is not None
    transport: Any = there.lane._transport
    assert transport.is_reading()
    answer = bytes(16 << 20)
    there.lane.write(answer)
    await until(lambda: not transport.is_reading())
    writer.write(struct.pack(">i", 4) + b"more")
    async with within("a large answer to arrive"):
        await reader.readexactly(4 + len(answer))
    assert await there.next() == b"more" and transport.is_reading()
    writer.close()


async def test_bytes_that_are_no_request_end_the_lane_with_a_warning(
    listener: LaneListener, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(listener)
    here = End()

    def begin(lane: Lane) -> None:
        nodes.service._on_lane(lane)

    lane = await take_up(listener.offer(begin), HOST, here.got.put_nowait, here.lost.set)
    lane.write(b"\xff\xff")
    await asyncio.wait_for(here.lost.wait(), 20)
    assert "no valid Raft message: its bytes cannot be decoded" in caplog.text
    await nodes.close()


@pytest.mark.parametrize(("port", "offers"), [(None, True), ("9193", True), ("-1", False)])
def test_a_controller_offers_lanes_by_its_configuration(
    port: str | None, offers: bool, tmp_path: Path
) -> None:
    lines = {
        "process.roles": "controller",
        "node.id": "1",
        "listeners": "CONTROLLER://127.0.0.1:9093",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "log.dirs": "/data/a",
    }
    if port is not None:
        lines[PORT_KEY] = port
    path = tmp_path / "node.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    listener = lane_listener(load_config(path, "controller"), None, FilePlan.unlimited())
    assert (listener is not None) is offers
    if port == "9193":
        assert listener is not None and listener.address == (HOST, 9193)


async def test_with_tls_a_lane_is_for_those_whose_certificate_is_trusted(tmp_path: Path) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    files = {}
    for name, issuer in (("node", authority), ("stranger", None)):
        certificate_files(tmp_path, name, issuer)
        keystore = tmp_path / f"{name}.pem"
        trusted = tmp_path / "authority.crt"
        files[name] = TlsMaterial.load(TlsFiles(keystore=keystore, truststore=trusted, client_auth=True))
    path = tmp_path / "node.properties"
    path.write_text(
        "process.roles=controller\nnode.id=1\nlisteners=CONTROLLER://127.0.0.1:9093\nlog.dirs=/data/a\n"
        "controller.quorum.voters=1@127.0.0.1:9093\nlistener.security.protocol.map=CONTROLLER:SSL\n"
        f"ssl.client.auth=required\nssl.keystore.location={tmp_path}/node.pem\n"
        f"ssl.truststore.location={tmp_path}/authority.crt\n"
    )
    listener = lane_listener(load_config(path, "controller"), files["node"], FilePlan.unlimited())
    assert listener is not None
    await listener.open()
    here, there = End(), End()

    async def connect(tls: ssl.SSLContext | None) -> Lane:
        return await take_up(listener.offer(there.begin), HOST, here.got.put_nowait, here.lost.set, tls)

    lane = await connect(files["node"].client_context())
    lane.write(b"hidden")
    assert await there.next() == b"hidden"
    lane.close()
    for refused in (files["stranger"].client_context(), None):
        with pytest.raises(OSError):
            await connect(refused)
    listener.close()
