"""The client of Kafka's protocol: versions, order, bounds, and what it says of nodes that are none."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.clients.kafka.connection import (
    REQUESTS_MAX,
    ConnectionFailed,
    HostUnknown,
    NodeConnection,
    PendingRequests,
    TlsFailed,
    UnsupportedVersion,
    _Protocol,
    connect,
)
from metaquorum.wire import codec
from metaquorum.wire.errors import EncodeError
from metaquorum.wire.messages import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    ProduceRequest,
)
from tests.unit.kafka.test_connection import Server, serving, until
from tests.unit.server.certificates import certificate_files, foreign_client, foreign_server
from tests.unit.server.nodes import silent_port


async def opened(port: int, **more: Any) -> NodeConnection:
    keywords = {"client_id": "me", "answer_max_bytes": 100_000, "timeout_s": 20, **more}
    return await connect("127.0.0.1", port, **keywords)


def offers(**ranges: tuple[int, int]) -> ApiVersionsResponse:
    keys = {"Fetch": 1, "Metadata": 3, "FindCoordinator": 10, "ApiVersions": 18}
    return ApiVersionsResponse(
        api_keys=tuple(
            ApiVersionsResponse.ApiVersion(api_key=keys[name], min_version=low, max_version=high)
            for name, (low, high) in ranges.items()
        )
    )


async def test_a_node_whose_name_no_host_has() -> None:
    """As another node's listeners have it: Python raises UnicodeError for it, no OSError."""
    with pytest.raises(HostUnknown, match="cannot be resolved"):
        await connect("a..b", 1, client_id="me", answer_max_bytes=100_000, timeout_s=20)


# ---- without a socket


def test_the_highest_version_that_both_sides_have() -> None:
    exchange = PendingRequests("me")
    assert exchange.version("ApiVersions") == 3
    with pytest.raises(UnsupportedVersion, match="does not offer Metadata"):
        exchange.version("Metadata")
    exchange.settle_versions(offers(Fetch=(4, 16), Metadata=(0, 99)))
    assert exchange.version("Fetch") == 16
    assert exchange.version("Fetch", 13, 15) == 15
    assert exchange.version("Metadata") == 13
    with pytest.raises(UnsupportedVersion, match="offers Fetch 4 to 16; 17 to 18 is needed"):
        exchange.version("Fetch", 17)
    with pytest.raises(UnsupportedVersion):
        exchange.version("Fetch", 0, 3)


def test_an_answer_belongs_to_the_oldest_request() -> None:
    exchange = PendingRequests("me")
    for _ in range(2):
        exchange.request(FindCoordinatorRequest(key="g"), 1)
    assert len(exchange) == 2
    answers = [
        b"".join(codec.encode_response(10, 1, number, FindCoordinatorResponse(host=f"h{number}")))
        for number in range(2)
    ]
    assert exchange.answer(answers[0]).body.host == "h0"
    with pytest.raises(ConnectionFailed, match="FindCoordinator does not belong to the request"):
        exchange.answer(answers[0])
    exchange.request(FindCoordinatorRequest(key="g"), 1)
    with pytest.raises(ConnectionFailed, match="cannot be read"):
        exchange.answer((2).to_bytes(4, "big") + b"\0")
    with pytest.raises(ConnectionFailed, match="an answer without a request"):
        exchange.answer(answers[1])


def test_a_node_may_refuse_the_version_of_api_versions_with_nothing_but_the_code() -> None:
    exchange = PendingRequests("me")
    exchange.request(exchange.api_versions(3), 3)
    answer = exchange.answer(bytes(4) + b"\0\x23")
    assert (answer.version, answer.body) == (0, ApiVersionsResponse(error_code=35))


def test_numbers_of_requests_start_again_at_zero() -> None:
    exchange, last = PendingRequests("me"), 2**31 - 1
    exchange._next_correlation_id = last
    sent = [b"".join(exchange.request(FindCoordinatorRequest(key="g"), 1)) for _ in range(3)]
    assert [int.from_bytes(frame[8:12], "big") for frame in sent] == [last, 0, 1]


def test_a_request_that_a_version_cannot_carry_is_not_sent() -> None:
    exchange = PendingRequests("me")
    with pytest.raises(EncodeError):
        exchange.request(ProduceRequest(acks=1, timeout_ms=1, transactional_id="t"), 2)
    assert len(exchange) == 0


# ---- with one


async def test_requests_are_answered_in_order_and_wait_for_their_turn() -> None:
    async with serving(Server()) as server:
        connection = await opened(server.port)
        assert connection.version("Metadata") == 12
        asked = [
            asyncio.ensure_future(connection.ask(FindCoordinatorRequest(key=str(n)), timeout_s=20))
            for n in range(7)
        ]
        await until(lambda: len(server.gates) == 5)
        for number in (1, 0):
            server.gates[number].set_result(FindCoordinatorResponse(host=f"h{number}", port=1))
        await until(lambda: len(server.gates) == 7)
        assert [(await each).body.host for each in asked[:2]] == ["h0", "h1"]
        connection.close()
        for each in asked[2:]:
            with pytest.raises(ConnectionFailed, match="this side closed"):
                await each
        assert not connection.is_open


async def test_a_request_without_an_answer_ends_the_connection() -> None:
    async with serving(Server()) as server:
        connection = await opened(server.port)
        with pytest.raises(TimeoutError):
            await connection.ask(FindCoordinatorRequest(key="g"), timeout_s=0.05)
        assert not connection.is_open
        with pytest.raises(ConnectionFailed):
            await connection.ask(MetadataRequest(topics=None), timeout_s=20)


async def test_a_node_that_fails_says_so_to_everybody_who_waits() -> None:
    async with serving(Server()) as server:
        connection = await opened(server.port)
        waiting = asyncio.ensure_future(connection.ask(FindCoordinatorRequest(key="g"), timeout_s=20))
        await until(lambda: server.gates)
        with pytest.raises(ConnectionFailed, match="it closed the connection"):
            await connection.ask(FindCoordinatorRequest(key="bug"), timeout_s=20)
        with pytest.raises(ConnectionFailed):
            await waiting


@contextlib.asynccontextmanager
async def answering(
    answer: Callable[[bytes], bytes], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A server that answers whatever comes with `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(answer(data))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(("named", "asked"), [((0, 1), [3, 1]), (None, [3, 0])])
async def test_a_node_that_lacks_our_version_of_apiversions_is_asked_in_its_own(
    named: tuple[int, int] | None, asked: list[int]
) -> None:
    """Or in version 0, which all have, if it does not name one."""
    versions = []

    def answer(data: bytes) -> bytes:
        request = codec.decode_request(data[4:])
        version = request.header.version
        versions.append(version)
        known = offers(ApiVersions=(0, 1), Metadata=(0, 1))
        own = {} if named is None else {"ApiVersions": named}
        refused = ApiVersionsResponse(error_code=35, api_keys=offers(**own, Metadata=(0, 1)).api_keys)
        spoken, body = (0, refused) if version > asked[-1] else (version, known)
        frame = b"".join(codec.encode_response(18, spoken, len(versions) - 1, body))
        return len(frame).to_bytes(4, "big") + frame

    async with answering(answer) as port:
        connection = await opened(port)
        assert (versions, connection.version("Metadata")) == (asked, 1)
        connection.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS, but this client does not"),
        (b"\0\0\0\x08" + bytes(8), "cannot be read"),
        (b"\0\x20\0\0", "a frame announces 2097152 bytes; socket.request.max.bytes allows 0 to"),
    ],
)
async def test_what_is_no_node_of_kafkas_protocol(answer: bytes, reason: str) -> None:
    async with answering(lambda _: answer) as port:
        with pytest.raises(ConnectionFailed, match=reason):
            await opened(port)


async def test_nobody_listens() -> None:
    with silent_port() as port, pytest.raises(ConnectionFailed, match="no process listens there"):
        await opened(port)


async def test_tls_that_does_not_fit_is_said(tmp_path: Path) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    certificate_files(tmp_path, "node", authority)
    certificate_files(tmp_path, "stranger", None)
    theirs = foreign_server(tmp_path)
    strange = foreign_client(tmp_path, "stranger")
    async with answering(lambda data: data, theirs) as port:
        with pytest.raises(TlsFailed, match="its certificate is not accepted"):
            await opened(port, tls=strange)
    async with answering(lambda _: b"") as port:
        with pytest.raises(TimeoutError):
            await opened(port, tls=strange, timeout_s=0.2)
    async with serving(Server()) as server:
        with pytest.raises(TlsFailed, match="it does not speak TLS"):
            await opened(server.port, tls=strange)


@pytest.mark.parametrize(
    ("changes", "room"),
    [
        ({}, True),
        ({"waiting": REQUESTS_MAX - 1}, True),
        ({"waiting": REQUESTS_MAX}, False),
        ({"ended": ConnectionFailed("gone")}, False),
        ({"writes": False}, False),
        ({"logs_in": True}, False),
    ],
)
def test_a_connection_has_room_while_nothing_is_in_the_way(changes: dict[str, Any], room: bool) -> None:
    class Protocol:
        ended = changes.get("ended")
        writable = asyncio.Event()

        def __len__(self) -> int:
            return int(changes.get("waiting", 0))

    if changes.get("writes", True):
        Protocol.writable.set()
    connection = NodeConnection(Protocol(), None)  # type: ignore[arg-type]
    if changes.get("logs_in"):
        connection._no_login.clear()
    assert connection.has_room is room


@pytest.mark.parametrize(
    ("lifetime_ms", "login_s", "replaced_s"),
    [(0, math.inf, math.inf), (1_000, 1.1, 0.85), (1_500, 1.275, 1.275), (3_600_000, 3_060, 3_060)],
)
async def test_a_login_is_due_before_the_session_ends_and_no_sooner_than_a_node_takes_it(
    monkeypatch: pytest.MonkeyPatch, lifetime_ms: int, login_s: float, replaced_s: float
) -> None:
    """Who opens another connection instead need not wait for that. The newest login counts."""
    now_s = 50.0
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now_s))
    connection = NodeConnection(None, None)  # type: ignore[arg-type]
    connection.session_lasts(10)
    now_s = 100.0
    connection.session_lasts(lifetime_ms)
    for after_s in (0, 0.84, 0.86, 1.09, 1.11, 1.27, 1.28, 3_059, 3_061):
        now_s = 100.0 + after_s
        due = (connection.login_is_due, connection.must_be_replaced)
        assert due == (after_s >= login_s, after_s >= replaced_s), after_s


async def test_what_comes_after_the_end_of_a_connection_counts_for_nothing() -> None:
    """Bytes that were read before the transport was closed."""
    exchange, aborted = PendingRequests("me"), list[bool]()
    protocol = _Protocol(exchange, 100_000, is_tls=False)
    protocol.connection_made(SimpleNamespace(abort=lambda: aborted.append(True)))  # type: ignore[arg-type]
    protocol.end(ConnectionFailed("first"))
    protocol.end(ConnectionFailed("second"))
    assert str(protocol.ended) == "first" and aborted
    buffer = protocol.get_buffer(-1)
    buffer[:8] = bytes([0, 0, 0, 4, 0, 0, 0, 1])
    protocol.buffer_updated(8)
    assert str(protocol.ended) == "first" and protocol._begun == b""
