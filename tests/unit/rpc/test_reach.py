"""Why an address cannot be reached, in words: what gRPC says, and what a look at the address brings."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from metaquorum.errors import StartError
from metaquorum.rpc import reach
from metaquorum.rpc.channels import bind
from metaquorum.rpc.reach import (
    LOOK_AGAIN_S,
    Reasons,
    alert_text,
    failure_text,
    status_text,
    tls_problem,
)
from tests.unit.server.certificates import certificate_files
from tests.unit.server.test_servers import material

Code = grpc.StatusCode
HERE = ("127.0.0.1", 9)


def failed(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


@pytest.mark.parametrize(
    ("code", "details", "text"),
    [
        (Code.DEADLINE_EXCEEDED, "Deadline", "no answer in time"),
        (
            Code.UNAVAILABLE,
            "failed to connect to all addresses; Connection refused (111)",
            "not reachable (connection refused: no process listens there)",
        ),
        (
            Code.UNAVAILABLE,
            "connection attempt timed out before receiving SETTINGS frame",
            "not reachable (it does not accept the connection: the process hangs, or a firewall"
            " drops the packets)",
        ),
        (Code.UNAVAILABLE, "Socket closed", "not reachable (Socket closed)"),
        (
            Code.UNAVAILABLE,
            "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 80)"
            " (Trying to connect an http1.x server (HTTP status 405))",
            f"not reachable ({reach.SPEAKS_HTTP})",
        ),
        (Code.UNAVAILABLE, None, "not reachable (no connection)"),
        (Code.UNIMPLEMENTED, "Method", "it does not serve this request; give a controller's address"),
        (Code.INTERNAL, "odd", "INTERNAL: odd"),
        (Code.PERMISSION_DENIED, "User:x may not act", "refused: User:x may not act"),
        (
            Code.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9093: Broken pipe (32)",
            "not reachable (Broken pipe (32))",
        ),
    ],
)
def test_what_grpc_says_in_words(code: grpc.StatusCode, details: str | None, text: str) -> None:
    assert status_text(failed(code, details)) == text


@pytest.mark.parametrize(
    ("code", "details", "host", "looks"),
    [
        (Code.DEADLINE_EXCEEDED, "", "127.0.0.1", False),
        (Code.INTERNAL, "Socket closed", "127.0.0.1", False),
        (Code.UNAVAILABLE, "DNS resolution failed for a", "a", False),
        *(
            (Code.UNAVAILABLE, f"last error: {said} (1)", host, host == "localhost")
            for said in ("Connection refused", "attempt timed out", "No route to host")
            for host in ("127.0.0.1", "::1", "localhost")
        ),
        (Code.UNAVAILABLE, "Socket closed", "127.0.0.1", True),
        (Code.UNAVAILABLE, "", "localhost", True),
    ],
)
async def test_an_address_is_looked_at_where_grpc_does_not_say_enough(
    code: grpc.StatusCode, details: str, host: str, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name with several addresses gRPC names the last problem alone."""
    asked: list[Any] = []
    monkeypatch.setattr(reach, "tls_problem", lambda *arguments: asked.append(arguments) or "it is odd")
    found = await Reasons(None).of(failed(code, details), (host, 7))
    assert asked == ([(host, 7, None)] if looks else [])
    assert found == ("not reachable (it is odd)" if looks else status_text(failed(code, details)))


async def test_what_a_look_brought_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now, problems = [100.0], iter(["first", "second", ""])
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(reach, "tls_problem", lambda *_: next(problems))
    reasons, closed = Reasons(None), failed(Code.UNAVAILABLE, "Socket closed")
    found = []
    for later_s in (0.0, LOOK_AGAIN_S - 0.1, 0.1, LOOK_AGAIN_S):
        now[0] += later_s
        found.append(await reasons.of(closed, HERE))
    assert found == [
        *["not reachable (first)"] * 2,
        "not reachable (second)",
        "not reachable (Socket closed)",
    ]


async def test_a_problem_is_told_once_until_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reach, "LOOK_AGAIN_S", 0.0)
    problems = iter(["one", "one", "", "one", "two"])
    monkeypatch.setattr(reach, "tls_problem", lambda *_: next(problems))
    reasons, closed = Reasons(None), failed(Code.UNAVAILABLE, "Socket closed")
    reasons.log("broker 7", failed(Code.DEADLINE_EXCEEDED, ""), HERE)
    assert reasons._looks == {}
    for _ in range(5):
        reasons.log("broker 7", closed, HERE)
        (task,) = reasons._looks.values()
        reasons.log("broker 7", closed, HERE)  # one look at a time
        assert [*reasons._looks.values()] == [task]
        await task
        await asyncio.sleep(0)  # what it calls at its end
    assert caplog.messages == [
        f"broker 7 at 127.0.0.1:9 cannot be reached: {problem}" for problem in ("one", "one", "two")
    ]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", reach.WANTS_CERTIFICATE),
        ("sslv3 alert handshake failure", reach.WANTS_CERTIFICATE),
        (
            "TLSV1_ALERT_UNKNOWN_CA",
            "it does not accept this client's certificate: no CA that it trusts has signed it",
        ),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "it does not accept this client's certificate: it has expired"),
        ("sslv3 alert bad certificate", "it does not accept this client's certificate (bad certificate)"),
        ("WRONG_VERSION_NUMBER", reach.SPEAKS_NO_TLS),
        ("CERTIFICATE_VERIFY_FAILED", reach.SPEAKS_NO_TLS),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "the TLS handshake failed: protocol version"),
    ],
)
def test_alerts_in_words(reason: str, text: str) -> None:
    assert alert_text(reason) == text


@contextlib.contextmanager
def answering(*pieces: bytes) -> Iterator[int]:
    """The port of someone who answers every connection with these bytes and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        for piece in pieces:
                            connection.sendall(piece)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(4096):
                            pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)


SETTINGS = bytes(3) + b"\x04" + bytes(5)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([SETTINGS, bytes(3) + b"\x04\x01" + bytes(4)], ""),  # HTTP/2, so TLS is not what is wrong
        ([b"\x15\x03\x03\x00\x02\x02\x46"], reach.SPEAKS_TLS),
        ([b"\x16\x03\x03"], reach.SPEAKS_TLS),
        ([b"HTTP/1.1 400"], ""),
        ([], ""),
    ],
)
def test_without_tls_who_speaks_it_is_recognized_by_its_first_byte(pieces: list[bytes], text: str) -> None:
    with answering(*pieces) as port:
        assert tls_problem("127.0.0.1", port, None) == text


def test_no_one_there_is_no_problem_with_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert tls_problem("127.0.0.1", port, None) == ""


def test_with_tls_who_speaks_none_is_named(tmp_path: Path) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    certificate_files(tmp_path, "node", authority)
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert tls_problem("127.0.0.1", port, material(tmp_path, None)) == reach.SPEAKS_NO_TLS
    with answering() as port:
        assert tls_problem("127.0.0.1", port, material(tmp_path, None)) in (
            reach.WANTS_CERTIFICATE,
            reach.SPEAKS_NO_TLS,
        )


def test_a_protocol_error_is_named_without_what_openssl_adds(tmp_path: Path) -> None:
    certificate_files(tmp_path, "authority", None)
    with answering(b"\x15\x03\x03\x00\x02\x02\x46") as port:
        found = tls_problem("127.0.0.1", port, material(tmp_path, None))
    assert found == "the TLS handshake failed: protocol version"


def test_why_a_server_would_refuse_this_nodes_certificate(tmp_path: Path) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    certificate_files(tmp_path, "stranger", None)
    certificate_files(tmp_path, "node", authority)
    certificate_files(tmp_path, "late", authority, days_left=-1)
    problems = {name: reach._own_problem(material(tmp_path, name)) for name in ("node", "stranger", "late")}
    assert problems["node"] == ""
    assert "self" in problems["stranger"] and "expired" in problems["late"]


def test_a_stream_that_has_ended_in_words() -> None:
    assert failure_text(asyncio.InvalidStateError("RPC already finished")) == "the connection has ended"
    assert failure_text(grpc.aio.UsageError("RPC already finished.")) == "the connection has ended"
    assert failure_text(failed(Code.DEADLINE_EXCEEDED, "Deadline")) == "no answer in time"
    assert failure_text(ConnectionError("controller 1 ended the stream")) == "controller 1 ended the stream"


async def test_a_node_without_rights_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    reasons = Reasons(None)
    for _ in range(20):
        reasons.log("controller 3000", failed(Code.PERMISSION_DENIED, "User:x may not act"), HERE)
    assert caplog.messages == ["controller 3000 at 127.0.0.1:9: it refuses this node: User:x may not act"]


# Where a server listens. No server runs here: what is asked of gRPC is looked at.


class Recorder:
    """Stands where gRPC's server does."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def add_insecure_port(self, target: str) -> int:
        self.targets.append(target)
        return int(target.rpartition(":")[2])


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def asked_for(host: str, port: int) -> list[str]:
    server: Any = Recorder()
    assert bind(server, host, port, None) == port
    return server.targets


def test_a_host_is_bound_alone_and_none_is_every_interface(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    taken.close()
    assert asked_for("127.0.0.1", port) == [f"127.0.0.1:{port}"]
    assert asked_for("", port) == [f"[::]:{port}"]


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_somebody_has_on_one_interface_is_refused(taken: socket.socket, host: str) -> None:
    taken.listen(1)
    port = taken.getsockname()[1]
    with pytest.raises(StartError, match=f":{port}: Address already in use; stop the process") as caught:
        asked_for(host, port)
    assert "\n" not in str(caught.value)
