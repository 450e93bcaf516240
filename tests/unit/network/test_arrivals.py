"""Connections to a gRPC port, which gRPC accepts by itself: they stay within the limits all the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from metaquorum.config.security import TlsFiles
from metaquorum.network.limits import ConnectionLimits
from metaquorum.network.tls import TlsMaterial
from metaquorum.rpc import channels
from metaquorum.rpc.channels import bind, new_server, open_channel
from tests.unit.kafka.test_connection import until
from tests.unit.server.certificates import certificate_files, foreign_client

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


class Echo(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> object:
        async def echo(request: bytes, context: object) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo, lambda raw: raw, lambda raw: raw)


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[int]:
    server = new_server(limits=limits)
    server.add_generic_rpc_handlers((Echo(),))
    port = bind(server, HOST, 0, None)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def call(channel: grpc.aio.Channel) -> bytes:
    return await channel.unary_unary("/any/Echo")(b"hello", timeout=20)


async def closed(connections: list[socket.socket], wanted: int) -> int:
    """How many of them the other end has closed, once they are as many as wanted."""
    gone: set[socket.socket] = set()

    def look() -> bool:
        for each in connections:
            try:
                if each not in gone and not each.recv(4_096):
                    gone.add(each)
            except BlockingIOError:
                pass
            except OSError:
                gone.add(each)
        return len(gone) >= wanted

    await until(look)
    return len(gone)


async def connected(port: int, data: bytes = PREFACE) -> socket.socket:
    loop, connection = asyncio.get_running_loop(), socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, (HOST, port))
    if data:
        await loop.sock_sendall(connection, data)
    return connection


async def test_of_new_connections_the_oldest_close_and_a_caller_gets_in() -> None:
    limits = ConnectionLimits(new_max=5)
    async with serving(limits) as port:
        channel = open_channel(HOST, port, None)
        assert await call(channel) == b"hello"  # known from now on
        strangers = [await connected(port) for _ in range(30)]
        assert await closed(strangers, 25) == 25
        later = open_channel(HOST, port, None)
        assert await call(later) == b"hello"
        assert await call(channel) == b"hello"
        for each in strangers:
            each.close()
        await channel.close()
        await later.close()


async def test_an_address_has_its_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ConnectionLimits(max_per_ip=2)) as port:
        channel = open_channel(HOST, port, None)
        assert await call(channel) == b"hello"
        strangers = [await connected(port) for _ in range(10)]
        assert await closed(strangers, 9) == 9
        assert await call(channel) == b"hello"
        await until(lambda: "max.connections.per.ip allows" in caplog.text)
        assert sum("max.connections.per.ip" in line for line in caplog.messages) == 1
        for each in strangers:
            each.close()
        await channel.close()


async def test_places_of_connections_that_are_gone_are_free() -> None:
    limits = ConnectionLimits(max_per_ip=1)
    async with serving(limits) as port:
        for _ in range(5):
            channel = open_channel(HOST, port, None)
            assert await call(channel) == b"hello"
            await channel.close()


def silent(connection: socket.socket, context: ssl.SSLContext | None) -> None:
    """Says nothing."""


def begun(connection: socket.socket, context: ssl.SSLContext | None) -> None:
    """Its first bytes come late, and are not all."""
    time.sleep(LIMIT_S / 2)
    connection.sendall(HELLO[: len(HELLO) // 2] if context else PREFACE[:10])


def between(connection: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    """A handshake, and nothing of HTTP/2 after it; without TLS the preface, and no frame after it."""
    if context is not None:
        return context.wrap_socket(connection, server_hostname=HOST)
    connection.sendall(PREFACE[:24])
    return connection


LIMIT_S = 1.0
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(507)
"""The record of a TLS ClientHello, as long as usual ones are."""


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("visit", [silent, begun, between])
async def test_who_does_not_end_its_handshake_in_time_is_closed_with_tls_and_without(
    over_tls: bool,
    visit: Callable[[socket.socket, ssl.SSLContext | None], socket.socket | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    limited = {**dict(channels._SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": int(LIMIT_S * 1_000)}
    assert dict(channels._SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] == channels.SERVER_HANDSHAKE_MS
    monkeypatch.setattr(channels, "_SERVER_OPTIONS", tuple(limited.items()))
    material = context = None
    if over_tls:
        certificate_files(tmp_path, "node", None)
        files = TlsFiles(keystore=tmp_path / "node.pem", truststore=tmp_path / "node.crt", client_auth=False)
        material = TlsMaterial.load(files)
        context = foreign_client(tmp_path, "node")
        context.set_alpn_protocols(["h2"])

    def visited(port: int) -> None:
        with socket.create_connection((HOST, port), timeout=20) as connection:
            with visit(connection, context) or connection as said, contextlib.suppress(ConnectionError):
                while said.recv(4_096):
                    """Until the other side ends it."""

    server = channels.new_server()
    port = bind(server, HOST, 0, material)
    await server.start()
    try:
        await asyncio.to_thread(visited, port)
    finally:
        await server.stop(None)
