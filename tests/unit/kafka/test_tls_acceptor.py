"""Clients at a listener with TLS: who gets in, and the one line about who does not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from metaquorum.listeners.listener import TlsHandshakes
from metaquorum.network import tls
from metaquorum.network.acceptor import Acceptor
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.network.tls import ABORTED, LastWords, handshake_problem, new_server_context
from tests.unit.server.certificates import certificate_files, foreign_client
from tests.waiting import within

WAIT_S = 10.0


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("door")
    authority = certificate_files(folder, "authority", None)
    other = certificate_files(folder, "other", None)
    for name in ("node", "client"):
        certificate_files(folder, name, authority)
    certificate_files(folder, "expired", authority, days_left=-1)
    certificate_files(folder, "stranger", other)
    return folder


class Echo(asyncio.Protocol):
    def __init__(self, place: ConnectionSlot) -> None:
        self._place = place

    def connection_lost(self, error: Exception | None) -> None:
        self._place.leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another class

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@contextlib.asynccontextmanager
async def door(folder: Path, *, asks: bool = False, timeout_s: float = WAIT_S) -> AsyncIterator[int]:
    context = new_server_context()
    context.load_verify_locations(folder / "authority.crt")
    context.load_cert_chain(folder / "node.pem")
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        refused = RefusedCallers()
        handshakes = TlsHandshakes(context, Echo, listener="IN", timeout_s=timeout_s, refused=refused)
        made = Acceptor(bound, handshakes.handshake, name="IN", limits=ConnectionLimits(), refused=refused)
        made.open(50)
        try:
            yield bound.getsockname()[1]
        finally:
            made.close()
            await asyncio.sleep(0)


async def echoed(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"hello")
        return await asyncio.wait_for(reader.read(5), WAIT_S)
    finally:
        writer.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[str]:
    """What is logged about clients that were refused, with the peer."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    def log(self: RefusedCallers, peer: str, text: str) -> None:
        queue.put_nowait(text.replace("{peer}", peer))

    monkeypatch.setattr(RefusedCallers, "log", log)
    return queue


async def test_a_client_gets_in_while_others_are_in_the_middle(
    folder: Path, told: asyncio.Queue[str]
) -> None:
    async with door(folder) as port:
        _, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(b"\x16\x03\x01")
        assert await echoed(port, foreign_client(folder)) == b"hello"
        assert told.empty()
        slow.close()
        assert await echoed(port, foreign_client(folder)) == b"hello"


@pytest.mark.parametrize(
    ("authority", "own", "problem"),
    [
        ("authority", None, "it sent no certificate, but ssl.client.auth requires one"),
        ("authority", "stranger", "its certificate is not accepted: unable to get local issuer certificate"),
        ("authority", "expired", "its certificate is not accepted: certificate has expired"),
        ("other", "client", ABORTED),
    ],
)
async def test_certificates(
    folder: Path, authority: str, own: str | None, problem: str, told: asyncio.Queue[str]
) -> None:
    async with door(folder, asks=True) as port:
        with contextlib.suppress(OSError):
            assert await echoed(port, foreign_client(folder, authority, own)) == b""
        line = await asyncio.wait_for(told.get(), WAIT_S)
        assert line.startswith("TLS handshake with 127.0.0.1:")
        assert line.endswith(f" at listener IN failed: {problem}")
        assert await echoed(port, foreign_client(folder, own="client")) == b"hello"


def refusal(port: int, context: ssl.SSLContext) -> str:
    """OpenSSL's name of the alert that a client gets."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), WAIT_S)) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
                wrapped.sendall(b"x" * 1_000)  # it is not read, and must not cost the alert
                assert wrapped.recv(1) == b""
        except ssl.SSLError as error:
            return error.reason
    return ""


async def alerts_of_all(folder: Path) -> list[str]:
    found = []
    async with door(folder, asks=True) as port:
        for own in (None, "stranger", "expired"):
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = foreign_client(folder, "authority", own)
                context.maximum_version = version
                found.append(await asyncio.to_thread(refusal, port, context))
        context = foreign_client(folder, "authority", "client")
        assert await echoed(port, context) == b"hello"
    return found


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_client_is_told_why_its_certificate_is_refused(
    folder: Path, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(alerts_of_all(folder))
    assert found == [
        "SSLV3_ALERT_HANDSHAKE_FAILURE",  # TLS 1.2 has no alert for it
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        *["TLSV1_ALERT_UNKNOWN_CA"] * 2,
        *["SSLV3_ALERT_CERTIFICATE_EXPIRED"] * 2,
    ]


async def test_few_refused_clients_may_linger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond get the alert, and their connection is closed at once: none holds a descriptor."""
    lingered: list[socket.socket] = []

    async def linger(left: socket.socket) -> None:
        lingered.append(left)

    monkeypatch.setattr(LastWords, "_linger", staticmethod(linger))
    for most, count in ((1, 1), (0, 0)):
        monkeypatch.setattr(tls, "LINGERING_MAX", most)
        lingered.clear()
        async with door(folder, asks=True) as port:
            with contextlib.suppress(OSError):
                await echoed(port, foreign_client(folder, "authority", "stranger"))
            assert await echoed(port, foreign_client(folder, own="client")) == b"hello"
        assert len(lingered) == count and all(each.fileno() == -1 for each in lingered)


async def test_who_speaks_no_tls(folder: Path, told: asyncio.Queue[str]) -> None:
    async with door(folder) as port:
        for text in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x10\0\x12\0\x03\0\0\0\x01\0\x01x"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            await asyncio.wait_for(reader.read(), WAIT_S)
            writer.close()
            line = await asyncio.wait_for(told.get(), WAIT_S)
            assert line.endswith(" at listener IN failed: it does not speak TLS")


async def test_half_a_handshake_ends(folder: Path, told: asyncio.Queue[str]) -> None:
    async with door(folder, timeout_s=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        line = await asyncio.wait_for(told.get(), WAIT_S)
        assert line.endswith(" at listener IN failed: it did not end within 0.2 s")


async def test_who_leaves_in_the_middle_is_told_of_and_who_says_nothing_is_not(
    folder: Path, told: asyncio.Queue[str]
) -> None:
    async with door(folder) as port:
        with socket.socket() as resets:
            resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            resets.connect(("127.0.0.1", port))
            await asyncio.sleep(0.05)  # it is let in, and waited for
        for text in (b"", b"\x16\x03\x01"):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text)
            writer.close()
            async with within("a connection to close"):
                await writer.wait_closed()
        assert (await asyncio.wait_for(told.get(), WAIT_S)).endswith(f" failed: {ABORTED}")
        assert await echoed(port, foreign_client(folder)) == b"hello"
    assert told.empty()


def test_an_alert_says_what_the_client_did_not_accept() -> None:
    said = handshake_problem("TLSV1_ALERT_UNKNOWN_CA")
    assert said == "it does not accept this node's certificate (unknown ca)"


async def test_a_door_that_closes_ends_handshakes(folder: Path) -> None:
    async with door(folder) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")
        assert await echoed(port, foreign_client(folder)) == b"hello"
    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
    writer.close()
