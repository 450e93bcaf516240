"""Kafka's protocol at a port of gRPC, and gRPC at a port of Kafka's protocol: each side says so, at once."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.kafka.connection import SPEAKS_GRPC, _is_http2
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.network.framing import FrameBuffer, FrameError, other_protocol
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.reach import SPEAKS_KAFKA
from metaquorum.wire.messages import MetadataRequest


@pytest.fixture(name="kafka_port")
def fixture_kafka_port() -> Iterator[int]:
    """A node that answers ApiVersions and closes what is not Kafka's protocol, as Kafka does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer_as_kafka, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]


def answer_as_kafka(listening: socket.socket) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            if listening.fileno() < 0:
                return
            continue  # a caller without TLS
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            begun = connection.recv(1000)
            length = int.from_bytes(begun[:4])
            if length == len(begun) - 4:
                body = begun[8:12] + bytes(2) + struct.pack(">i", 0)
                connection.sendall(struct.pack(">i", len(body)) + body)
                with contextlib.suppress(OSError):
                    connection.recv(1)


async def test_a_client_of_controllers_at_a_node_of_kafka(kafka_port: int) -> None:
    """It does not go on until its time is over: 10 minutes here."""
    client = AdminClient([("127.0.0.1", kafka_port)], timeout_ms=600_000)
    try:
        with pytest.raises(ClientError) as raised:
            await client.describe_quorum()
    finally:
        await client.close()
    assert str(raised.value) == f"127.0.0.1:{kafka_port}: not reachable ({SPEAKS_KAFKA})"


async def test_a_client_of_brokers_at_a_controller() -> None:
    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    await server.start()
    try:
        async with KafkaClient([("127.0.0.1", port)], timeout_ms=600_000) as client:
            with pytest.raises(ClientError) as raised:
                await client.ask(MetadataRequest(topics=()))
    finally:
        await server.stop(None)
    assert str(raised.value) == f"127.0.0.1:{port}: {SPEAKS_GRPC}"


@pytest.mark.parametrize(
    ("begun", "protocol"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2, as gRPC does"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"SSH-2.0-x\r\n", "SSH"),
    ],
)
def test_a_listener_of_kafkas_protocol_names_what_is_spoken(begun: bytes, protocol: str) -> None:
    buffer = FrameBuffer(100 << 20)
    buffer.get_buffer()[: len(begun)] = begun
    with pytest.raises(FrameError) as raised:
        buffer.received(len(begun))
    assert str(raised.value).endswith(f"(it speaks {protocol}, for which this port is not)")


@pytest.mark.parametrize("length", [-1, 105 << 20, 2**31 - 1])
def test_a_length_that_is_only_wrong_names_no_protocol(length: int) -> None:
    assert other_protocol(struct.pack(">i", length)) is None


@pytest.mark.parametrize("settings", range(1, 12))
def test_settings_of_http2_are_no_answer_of_kafkas(settings: int) -> None:
    begun = (6 * settings).to_bytes(3) + b"\x04" + bytes(5) + b"\x00\x03" + bytes(4)
    assert _is_http2(begun[:11]) and not _is_http2(begun[:10])
    for length in range(6, 3000):
        versioned = struct.pack(">ii", length, 0) + bytes(2) + struct.pack(">i", 60)
        compact = struct.pack(">ii", length, 0) + bytes(2) + b"\x3d\x00\x00"
        assert not _is_http2(versioned[:11]) and not _is_http2(compact[:11])
