"""The HTTP address of the figures, spoken to in bytes; and that it costs one line when it cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.errors import StartError
from metaquorum.runtime.metrics import endpoint as endpoint_module
from metaquorum.runtime.metrics.endpoint import CONNECTIONS_MAX, HEADER_BYTES_MAX, MetricsEndpoint
from metaquorum.runtime.metrics.service import bind_metrics
from tests.unit.server.nodes import free_port
from tests.unit.server.test_servers import certificate_files


def listener(port: int, host: str = "127.0.0.1") -> Listener:
    return Listener(name="http", host=host, port=port, protocol="PLAINTEXT")


@contextlib.asynccontextmanager
async def served(body: bytes = b"figure 1\n", files: TlsFiles | None = None) -> AsyncIterator[int]:
    async def render() -> bytes:
        return body

    there = listener(free_port())
    if files is not None:
        there = replace(there, name="https", protocol="SSL")
    bound = bind_metrics(there, files or TlsFiles())
    assert bound is not None
    port = int(bound.socket.getsockname()[1])
    endpoint = MetricsEndpoint(render, "text/plain; version=0.0.4; charset=utf-8")
    await endpoint.start(*bound)
    try:
        yield port
    finally:
        await endpoint.close()


async def talk(port: int, *requests: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Everything that the other side says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    for request in requests:
        writer.write(request)
        await writer.drain()
    async with asyncio.timeout(60):
        said = await reader.read()
    writer.close()
    return said


def request(target: str, method: str = "GET", *, close: bool = True) -> bytes:
    last = "connection: close\r\n" if close else ""
    return f"{method} {target} HTTP/1.1\r\nhost: x\r\n{last}\r\n".encode()


async def test_the_page_is_at_metrics_whatever_the_query() -> None:
    async with served() as port:
        for target in ("/metrics", "/metrics?name=x"):
            head, body = (await talk(port, request(target))).split(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: text/plain; version=0.0.4; charset=utf-8" in head.lower()
            assert b"content-length: 9" in head.lower()
            assert body == b"figure 1\n"


async def test_one_connection_serves_several_requests() -> None:
    async with served() as port:
        said = await talk(port, request("/metrics", close=False), request("/metrics"))
    assert said.count(b"figure 1\n") == 2


async def test_head_sends_no_body() -> None:
    async with served() as port:
        said = await talk(port, request("/metrics", "HEAD"))
    assert said.endswith(b"\r\n\r\n") and b"content-length: 9" in said.lower()


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (request("/"), b"200", b"the figures are at /metrics"),
        (request("/elsewhere"), b"404", b"the figures are at /metrics"),
        (request("/metrics", "DELETE"), b"405", b"only GET and HEAD"),
        (b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n", b"400", b""),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400", b""),
        (b"GET /" + b"x" * (2 * HEADER_BYTES_MAX) + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"431", b""),
    ],
)
async def test_other_requests_are_refused_and_the_next_caller_is_served(
    sent: bytes, status: bytes, text: bytes
) -> None:
    async with served() as port:
        said = await talk(port, sent)
        assert said.startswith(b"HTTP/1.1 " + status + b" ")
        assert text in said
        assert b"figure 1" in await talk(port, request("/metrics"))


async def test_a_caller_that_breaks_off_leaves_nothing_behind() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metr")
        await writer.drain()
        writer.close()
        assert b"figure 1" in await talk(port, request("/metrics"))
        del reader


async def test_connections_are_bounded() -> None:
    async with served() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        for _, writer in held:
            writer.write(request("/metrics", close=False))
        for reader, _ in held:
            await reader.readuntil(b"figure 1\n")
        assert await talk(port) == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "IDLE_S", 0.01)
    async with served() as port:
        assert await talk(port) == b""
        assert await talk(port, b"GET /metrics") == b""


async def test_https_asks_for_a_certificate(tmp_path: Path) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    for name in ("node", "scraper"):
        certificate_files(tmp_path, name, authority)
    certificate_files(tmp_path, "stranger", certificate_files(tmp_path, "other-authority", None))
    for needed in (False, True):
        files = TlsFiles(
            keystore=tmp_path / "node.pem", truststore=tmp_path / "authority.crt", client_auth=needed
        )
        async with served(files=files) as port:
            for shown, gets_in in ((None, not needed), ("stranger", not needed), ("scraper", True)):
                context = ssl.create_default_context(cafile=tmp_path / "authority.crt")
                if shown is not None:
                    context.load_cert_chain(tmp_path / f"{shown}.pem")
                said = b""
                with contextlib.suppress(OSError):
                    said = await talk(port, request("/metrics"), tls=context)
                assert (b"figure 1" in said) is gets_in, (needed, shown)
            with contextlib.suppress(OSError):
                assert b"figure" not in await talk(port, request("/metrics"))


def test_no_listener_no_socket() -> None:
    assert bind_metrics(None, TlsFiles()) is None


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartError) as refused:
            bind_metrics(listener(port), TlsFiles())
    text = str(refused.value)
    assert text == (
        f"cannot listen on 127.0.0.1:{port} for metrics: Address already in use; "
        "stop the process that uses it, or choose another port in metrics.listener"
    )


def test_a_host_that_nobody_knows_is_one_line() -> None:
    with pytest.raises(
        StartError, match=r"cannot resolve the host of metrics.listener 'no.such.host.invalid'"
    ):
        bind_metrics(listener(9404, "no.such.host.invalid"), TlsFiles())
