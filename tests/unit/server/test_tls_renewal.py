"""Certificates that are replaced while nodes run: real handshakes before and after, on every listener."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.config.security import TlsFiles
from metaquorum.network.tls import TlsMaterial
from tests.unit.server.certificates import certificate_files
from tests.unit.server.nodes import Site, new_site, running_broker, running_controller
from tests.unit.server.test_servers import health_is

SERVING = 1


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    """What two authorities issued, one after the other; nodes use node.pem and trusted.crt."""
    folder = tmp_path / "tls"
    folder.mkdir()
    for age in ("old", "new"):
        authority = certificate_files(folder, f"{age}-authority", None)
        for name in ("node", "client"):
            certificate_files(folder, f"{age}-{name}", authority)
    put(folder, "node.pem", "old-node.pem")
    put(folder, "trusted.crt", "old-authority.crt")
    return folder


def put(folder: Path, name: str, *parts: str) -> None:
    """Replaces a file, as tools that renew certificates do."""
    (folder / "next").write_bytes(b"".join((folder / part).read_bytes() for part in parts))
    os.replace(folder / "next", folder / name)


def keys(folder: Path) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "CONTROLLER:SSL,GRPC_CONTROLLER:SSL,PLAINTEXT:SSL,GRPC:SSL",
        "ssl.keystore.location": str(folder / "node.pem"),
        "ssl.truststore.location": str(folder / "trusted.crt"),
        "ssl.client.auth": "required",
    }


def client(folder: Path, age: str) -> TlsMaterial:
    files = TlsFiles(
        keystore=folder / f"{age}-client.pem", truststore=folder / f"{age}-authority.crt", client_auth=True
    )
    return TlsMaterial.load(files)


async def kafka_shows(port: int, tls: TlsMaterial) -> str:
    """The name of the authority behind a Kafka listener, which took our certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls.client_context())
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    try:
        writer.write(b"\0\0\0\x0c" + b"\0\x12\0\0" + b"\0\0\0\1" + b"\0\2me")  # ApiVersions 0
        async with asyncio.timeout(60):
            assert await reader.readexactly(4)
    finally:
        writer.close()
    return x509.load_der_x509_certificate(certificate).issuer.rfc4514_string()


async def is_refused(site: Site, tls: TlsMaterial) -> None:
    for port in (site.controller_port, site.broker_port):
        async with AdminClient([("127.0.0.1", port)], tls=tls, attempts_max=1) as asks:
            with pytest.raises(ClientError):
                await asks.list_brokers()
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await kafka_shows(site.kafka_port, tls)


async def test_nodes_take_up_new_certificates_without_a_restart(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = new_site(tmp_path)
    old, new = client(folder, "old"), client(folder, "new")
    controller, broker = site.controller_file(keys(folder)), site.broker_file(keys(folder))
    async with running_broker(broker):
        async with running_controller(controller):
            await health_is(site.broker_port, SERVING, old)
            assert await kafka_shows(site.kafka_port, old) == "CN=old-authority"
            await is_refused(site, new)
            reader, writer = await asyncio.open_connection("127.0.0.1", site.kafka_port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
            told = "at listener PLAINTEXT failed: it does not speak TLS"
            async with asyncio.timeout(10):
                while not any(line.endswith(told) for line in caplog.messages):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            put(folder, "trusted.crt", "new-authority.crt")
            put(folder, "node.pem", "new-node.pem")
            for port in (site.controller_port, site.broker_port):
                await health_is(port, SERVING, new)
            assert await kafka_shows(site.kafka_port, new) == "CN=new-authority"
            await is_refused(site, old)
        # A controller that knows only the new authority: the broker comes with its new certificate.
        async with (
            running_controller(controller),
            AdminClient([("127.0.0.1", site.controller_port)], tls=new, timeout_ms=60_000) as asks,
        ):
            await health_is(site.broker_port, SERVING, new)
            assert [each.broker_id for each in (await asks.list_brokers()).brokers] == [101]


async def test_files_that_cannot_be_used_change_nothing(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tls = TlsMaterial.load(TlsFiles(keystore=folder / "node.pem", truststore=folder / "trusted.crt"))
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, "127.0.0.1", 0, ssl=tls.server_context("none")
    )
    port = server.sockets[0].getsockname()[1]

    async def shows() -> str:
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        return x509.load_pem_x509_certificate(pem.encode()).issuer.rfc4514_string()

    async with server:
        no_certificate = b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
        broken = (
            lambda: (folder / "node.pem").write_bytes(b"half a certif"),
            lambda: put(folder, "node.pem", "new-node.crt"),
            (folder / "node.pem").unlink,
            lambda: (folder / "trusted.crt").write_bytes(no_certificate),
        )
        for spoil in broken:
            caplog.clear()
            spoil()
            for _ in range(3):
                assert await shows() == "CN=old-authority"
                assert tls.channel_credentials() and tls.client_context()
            (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
            assert line.startswith("TLS continues with the previous key and certificates: ssl.")
            assert "\n" not in line and "PRIVATE" not in line
        # A key that does not belong to the certificate.
        mixed = (folder / "old-node.pem").read_bytes().split(b"-----BEGIN CERT")[0]
        (folder / "node.pem").write_bytes(mixed + (folder / "new-node.crt").read_bytes())
        put(folder, "trusted.crt", "new-authority.crt")
        assert await shows() == "CN=old-authority"
        put(folder, "node.pem", "new-node.pem")
        assert await shows() == "CN=new-authority"
    assert tls.version == 2


async def test_a_certificate_is_shown_at_each_connection(folder: Path) -> None:
    """No session is taken up again: what was trusted before is not trusted by its ticket."""
    tls = TlsMaterial.load(TlsFiles(keystore=folder / "node.pem", truststore=folder / "trusted.crt"))
    server = await asyncio.get_running_loop().create_server(
        asyncio.Protocol, "127.0.0.1", 0, ssl=tls.server_context("required")
    )
    port = server.sockets[0].getsockname()[1]
    context = client(folder, "old").client_context()

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
        ):
            wrapped.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                wrapped.recv(1)
            return wrapped.session, bool(wrapped.session_reused)

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.maximum_version = version
        session, _ = await asyncio.to_thread(connect, None)
        _, reused = await asyncio.to_thread(connect, session)
        assert not reused, version
    server.close()
