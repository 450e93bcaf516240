"""The HTTP address of the figures, spoken to in bytes; and that it costs one line when it cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.config.addresses import Listener
from metaquorum.config.principals import PrincipalRules
from metaquorum.config.security import TlsFiles
from metaquorum.errors import StartError
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.image import Acl, ImageBuilder, MetadataImage
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.observability.authorizer_log import denials
from metaquorum.observability.metrics import endpoint as endpoint_module
from metaquorum.observability.metrics.endpoint import CONNECTIONS_MAX, HEADER_BYTES_MAX, MetricsEndpoint
from metaquorum.observability.metrics.rights import ScraperRights
from metaquorum.observability.metrics.service import bind_metrics
from tests.unit.server.certificates import certificate_files, certificates_of, foreign_client
from tests.unit.server.nodes import free_port
from tests.waiting import within


def listener(port: int, host: str = "127.0.0.1") -> Listener:
    return Listener(name="http", host=host, port=port, protocol="PLAINTEXT")


@contextlib.asynccontextmanager
async def served(
    body: bytes = b"figure 1\n", files: TlsFiles | None = None, rights: ScraperRights | None = None
) -> AsyncIterator[int]:
    async def render() -> bytes:
        return body

    there = listener(free_port())
    if files is not None:
        there = replace(there, name="https", protocol="SSL")
    bound = bind_metrics(there, files or TlsFiles())
    assert bound is not None
    port = int(bound.socket.getsockname()[1])
    refusal = None if rights is None else rights.refusal
    endpoint = MetricsEndpoint(render, "text/plain; version=0.0.4; charset=utf-8", refusal)
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
        async with within("the page on each connection"):
            for reader, _ in held:
                await reader.readuntil(b"figure 1\n")
        assert await talk(port) == b""
        async with within("the connections to close"):
            for _, writer in held:
                writer.close()
                await writer.wait_closed()


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "IDLE_S", 0.01)
    async with served() as port:
        assert await talk(port) == b""
        assert await talk(port, b"GET /metrics") == b""


async def test_https_asks_for_a_certificate(tmp_path: Path) -> None:
    certificates_of(tmp_path, "node", "scraper")
    certificate_files(tmp_path, "stranger", certificate_files(tmp_path, "other-authority", None))
    for needed in (False, True):
        files = TlsFiles(
            keystore=tmp_path / "node.pem", truststore=tmp_path / "authority.crt", client_auth=needed
        )
        async with served(files=files) as port:
            for shown, gets_in in ((None, not needed), ("stranger", not needed), ("scraper", True)):
                context = foreign_client(tmp_path, own=shown)
                said = b""
                with contextlib.suppress(OSError):
                    said = await talk(port, request("/metrics"), tls=context)
                assert (b"figure 1" in said) is gets_in, (needed, shown)
            with contextlib.suppress(OSError):
                assert b"figure" not in await talk(port, request("/metrics"))


def cluster_acl(principal: str, operation: Operation, permission: Permission, host: str = "*") -> Acl:
    return Acl(
        resource_type=ResourceType.CLUSTER,
        resource_name="kafka-cluster",
        pattern_type=PatternType.LITERAL,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


ALLOW, DENY = Permission.ALLOW, Permission.DENY
ANY = "User:*"
SCRAPERS: list[tuple[list[Acl], bool, bool]] = [
    # entries; whether the certificate of CN=scraper reads, whether a caller without one does
    ([], False, False),
    ([cluster_acl("User:scraper", Operation.DESCRIBE, ALLOW)], True, False),
    ([cluster_acl("User:scraper", Operation.ALTER, ALLOW)], True, False),
    ([cluster_acl("User:scraper", Operation.CLUSTER_ACTION, ALLOW)], False, False),
    ([cluster_acl("User:scraper", Operation.DESCRIBE, ALLOW, "10.0.0.1")], False, False),
    ([cluster_acl("User:scraper", Operation.DESCRIBE, ALLOW, "127.0.0.1")], True, False),
    ([cluster_acl("User:CN=scraper", Operation.DESCRIBE, ALLOW)], False, False),
    ([cluster_acl("User:ANONYMOUS", Operation.DESCRIBE, ALLOW)], False, True),
    ([cluster_acl(ANY, Operation.ALL, ALLOW)], True, True),
    (
        [cluster_acl(ANY, Operation.ALL, ALLOW), cluster_acl("User:scraper", Operation.DESCRIBE, DENY)],
        False,
        True,
    ),
]


def image_of(acls: list[Acl]) -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    for number, acl in enumerate(acls):
        builder.acls.put(bytes([number]) * 16, acl)
    return builder.freeze()


async def test_where_there_is_an_authorizer_scrapers_need_describe_on_the_cluster(tmp_path: Path) -> None:
    certificates_of(tmp_path, "node", "scraper", "nobody")
    now = [MetadataImage()]
    rules = PrincipalRules("RULE:^CN=(scraper)$/$1/")
    rights = ScraperRights(Authorizer(super_users=["User:root"]), rules, lambda: now[0])
    files = TlsFiles(keystore=tmp_path / "node.pem", truststore=tmp_path / "authority.crt", client_auth=True)
    contexts = {name: foreign_client(tmp_path, own=name) for name in ("scraper", "nobody")}
    async with served(files=files, rights=rights) as https, served(rights=rights) as http:
        for acls, known, unknown in SCRAPERS:
            now[0] = image_of(acls)
            found = []
            for port, tls in ((https, contexts["scraper"]), (http, None), (https, contexts["nobody"])):
                for method in ("GET", "HEAD"):
                    said = await talk(port, request("/metrics", method), tls=tls)
                    assert said[9:12] in (b"200", b"403")
                    assert said[9:12] == b"200" or b"figure" not in said
                    found.append(said[9:12] == b"200")
            assert found == [known, known, unknown, unknown, False, False], acls
        said = await talk(http, request("/"))
        assert said.startswith(b"HTTP/1.1 200 "), "it says where the figures are, and none"


def test_each_request_of_a_scraper_is_a_decision_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    entries = [cluster_acl("User:ANONYMOUS", Operation.DESCRIBE, ALLOW, "10.0.0.1")]
    rules = PrincipalRules("DEFAULT")
    rights = ScraperRights(Authorizer(super_users=[]), rules, lambda: image_of(entries))
    denials.start_over()  # a test before may have used up the lines of this principal
    with caplog.at_level(logging.DEBUG, logger="metaquorum.authorizer"):
        assert rights.refusal((None, "10.0.0.1"), "GET /metrics") is None
        refusal = rights.refusal((None, "10.0.0.2"), "HEAD /metrics")
    assert refusal == "User:ANONYMOUS needs Describe on the cluster"
    assert caplog.messages == [
        "User:ANONYMOUS from 10.0.0.1 may DESCRIBE CLUSTER kafka-cluster, for GET /metrics",
        "User:ANONYMOUS from 10.0.0.2 may not DESCRIBE CLUSTER kafka-cluster, which HEAD /metrics needs",
    ]


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
