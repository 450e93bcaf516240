"""Who speaks TLS at a listener without is known by the kernel's counts, and nobody else is suspected."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

import grpc
import pytest

from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.platforms import linux_kernel
from metaquorum.rpc.channels import bind, new_server
from metaquorum.rpc.reach import tls_problem
from metaquorum.rpc.silent_refusals import ended_connection, ended_connections, log_ended

pytestmark = pytest.mark.skipif(linux_kernel() is None, reason="only Linux says what ended")


@pytest.fixture(name="ended")
def fixture_ended() -> Iterator[socket.socket]:
    ended = ended_connections()
    assert ended is not None
    with ended:
        ended.settimeout(60)
        yield ended


def tls_client(port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_connection(("127.0.0.1", port)) as connection, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(connection, server_hostname="localhost")


def http1_client(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while connection.recv(100):
            """Until the other side ends it."""


def kafka_client(port: int) -> None:
    """Its first request, as Java's clients send it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        header = struct.pack(">hhih", 18, 3, 0, 13) + b"raft-client-1" + b"\0"
        body = header + b"\x12apache-kafka-java\x063.7.0\0"
        connection.sendall(struct.pack(">i", len(body)) + body)
        while connection.recv(100):
            """Until the other side ends it."""


def probe(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()


def look(port: int) -> None:
    assert tls_problem("127.0.0.1", port, None) == ""


def caller(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/nothing/here")(b"", wait_for_ready=True)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("visit", "suspected"),
    [
        (tls_client, "TLS"),
        (http1_client, "TLS"),
        (kafka_client, "Kafka's protocol"),
        (probe, None),
        (look, None),
        (caller, None),
    ],
)
async def test_who_spoke_no_http2_is_named(
    ended: socket.socket,
    caplog: pytest.LogCaptureFixture,
    visit: Callable[[int], None],
    suspected: str | None,
) -> None:
    caplog.set_level(logging.WARNING)
    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    await server.start()
    try:
        await asyncio.to_thread(visit, port)
        peer = None
        while peer is None:
            message = await asyncio.to_thread(ended.recv, 65_536)
            connection = ended_connection(message)
            if connection is not None and connection[0] == port:
                peer = connection[1]
            log_ended(message, {port}, RefusedCallers())
    finally:
        await server.stop(None)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", peer)
    said = f"{peer} did not speak HTTP/2 on port {port}, which is without TLS: it may speak {suspected}"
    assert [line.split(" (")[0] for line in caplog.messages] == ([said] if suspected else [])


def test_messages_of_another_shape_are_about_nothing() -> None:
    for length in (0, 15, 88, 92, 300):
        assert ended_connection(bytes(length)) is None


def test_addresses_of_every_family(ended: socket.socket) -> None:
    """A connection to a socket that takes both: its peer is told as what it is."""
    for bound, host, told in (("::1", "::1", "[::1]"), ("::", "127.0.0.1", "127.0.0.1")):
        with socket.create_server((bound, 0), family=socket.AF_INET6, dualstack_ipv6=bound == "::") as server:
            port = server.getsockname()[1]
            with socket.create_connection((host, port)) as client:
                peer = f"{told}:{client.getsockname()[1]}"
                server.accept()[0].close()
        connection = None
        while connection is None or connection[0] != port or connection[1].endswith(":0"):
            connection = ended_connection(ended.recv(65_536))
        assert connection == (port, peer, connection[2], 0)


async def test_a_server_that_never_started_gives_its_port_back() -> None:
    server = new_server()
    port = bind(server, "127.0.0.1", 0, None)
    await server.stop(None)
    with socket.create_server(("127.0.0.1", port)) as free:
        assert free.getsockname()[1] == port
