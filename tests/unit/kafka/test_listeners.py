"""Kafka listeners as a broker is configured with them: names, TLS, addresses that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from metaquorum.config.load import load_config
from metaquorum.config.security import STANDARD_AUTHORIZER, new_authorizer
from metaquorum.errors import ConfigError, StartError
from metaquorum.listeners import listener as module
from metaquorum.listeners.connection import ConnectionConfig
from metaquorum.listeners.listener import KafkaListeners
from metaquorum.listeners.quotas import Quotas, QuotaWindows
from metaquorum.listeners.request_memory import RequestMemory
from metaquorum.listeners.services import Features, Services
from metaquorum.metadata.authorizer import Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.network.limits import ConnectionLimits, ConnectionSlot
from metaquorum.network.tls import NodeTls
from metaquorum.node.scheduler import StepEnd
from metaquorum.wire import codec
from metaquorum.wire.messages import ApiVersionsRequest
from tests.unit.kafka.test_connection import until
from tests.unit.server.certificates import certificate_files, foreign_client
from tests.unit.server.nodes import Site, free_port, new_site
from tests.waiting import within


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def test_the_name_of_a_listener_says_what_it_speaks(site: Site) -> None:
    listeners = "IN://:9001,GRPC://:9002,OUT://:9003"
    protocols = {"listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT"}
    config = load_config(site.broker_file({"listeners": listeners, **protocols}))
    assert [each.name for each in config.kafka_listeners] == ["IN", "OUT"]
    assert [each.name for each in config.grpc_listeners] == ["GRPC"]
    with pytest.raises(ConfigError, match="every listener speaks gRPC"):
        load_config(site.broker_file({"listeners": "GRPC://:9001"}))


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({}, "PLAINTEXT"),
        ({"inter.broker.listener.name": "IN"}, "IN"),
        ({"security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"listeners": "GRPC://:1,IN://:2"}, "IN"),
        ({"listeners": "GRPC://:1,OUT://:2,IN://:3", "security.inter.broker.protocol": "SSL"}, "IN"),
    ],
)
def test_brokers_follow_through_one_listener(site: Site, keys: dict[str, str], name: str) -> None:
    common = {
        "listeners": "GRPC://:1,IN://:2,SSL://:3,PLAINTEXT://:4",
        "listener.security.protocol.map": "IN:SSL,OUT:PLAINTEXT",
        "ssl.keystore.location": "node.pem",
    }
    config = load_config(site.broker_file({**common, **keys}))
    assert config.inter_broker_listener is not None
    assert config.inter_broker_listener.name == config.replicas().inter_broker_listener == name


async def test_an_address_that_is_taken_is_one_clear_line(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = f"GRPC://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{port}"
        found = KafkaListeners(load_config(site.broker_file({"listeners": listeners})), None)
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            found.bind()


def for_both_families() -> socket.socket:
    """A socket of IPv6 that takes IPv4 too, as of a listener without a host, but only of this machine."""
    bound = socket.socket(socket.AF_INET6)
    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    bound.bind(("::ffff:127.0.0.1", 0))
    return bound


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_a_client_of_ipv4_has_an_address_of_ipv4_at_a_listener_for_both(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ACLs, quotas and limits name it so, and a rule that denies must not pass it over."""
    bound, admit = for_both_families(), ConnectionLimits.admit
    admitted: list[str] = []

    def noted(limits: ConnectionLimits, listener: str, address: str) -> ConnectionSlot | str:
        admitted.append(address)
        return admit(limits, listener, address)

    monkeypatch.setattr(module, "_bound", lambda host, port: bound)
    monkeypatch.setattr(ConnectionLimits, "admit", noted)
    listening = {"listeners": f"GRPC://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{free_port()}"}
    listeners = KafkaListeners(load_config(site.broker_file(listening)), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        with socket.create_connection(("127.0.0.1", bound.getsockname()[1])):
            await until(lambda: len(listeners))
            connected: list[str] = []
            listeners.end_those(lambda client: connected.append(client.address) is not None)
        assert connected == admitted == ["127.0.0.1"]
    finally:
        await listeners.close()


async def ask(port: int, context: ssl.SSLContext) -> int:
    """How many APIs are offered, asked over TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        frame = b"".join(codec.encode_request(codec.RequestHeader(18, 0, 1, "me"), ApiVersionsRequest()))
        writer.write(len(frame).to_bytes(4, "big") + frame)
        async with asyncio.timeout(20):
            size = int.from_bytes(await reader.readexactly(4), "big")
            return len(codec.decode_response(18, 0, await reader.readexactly(size)).body.api_keys)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            async with within("a connection to close"):
                await writer.wait_closed()


@pytest.mark.parametrize(("backlog", "taken"), [({"socket.listen.backlog.size": "2"}, 3), ({}, 20)])
async def test_connections_wait_to_be_accepted_up_to_the_backlog(
    site: Site, backlog: dict[str, str], taken: int
) -> None:
    port = free_port()
    listening = {"listeners": f"GRPC://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{port}"}
    listeners = KafkaListeners(load_config(site.broker_file({**listening, **backlog})), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    callers = [socket.socket() for _ in range(20)]
    try:
        # The loop does not get a turn: none is accepted meanwhile. Linux takes one more than it is told.
        for each in callers:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        assert len(select.select([], callers, [], 0)[1]) == taken
    finally:
        for each in callers:
            each.close()
        await listeners.close()


async def test_a_rate_of_the_whole_broker_does_not_delay_brokers(site: Site) -> None:
    keys = {
        "listeners": f"GRPC://127.0.0.1:{free_port()},IN://127.0.0.1:{free_port()},OUT://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "inter.broker.listener.name": "IN",
        "max.connection.creation.rate": "9",
        "listener.name.in.max.connection.creation.rate": "2",
    }
    listeners = KafkaListeners(load_config(site.broker_file(keys)), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    rates = [[rate._per_s for rate in each._rates] for each in listeners._acceptors]
    await listeners.close()
    assert rates == [[2], [9]]


async def test_a_listener_with_a_keystore_of_its_own_shows_that_certificate(
    site: Site, tmp_path: Path
) -> None:
    trusted = {}
    for name in ("in", "out"):
        trusted[name] = certificate_files(tmp_path, f"{name}-authority", None)
        certificate_files(tmp_path, name, trusted[name])
    ports = {"in": free_port(), "out": free_port()}
    path = site.broker_file(
        {
            "listeners": f"IN://127.0.0.1:{ports['in']},OUT://127.0.0.1:{ports['out']}",
            "listener.security.protocol.map": "IN:SSL,OUT:SSL",
            "inter.broker.listener.name": "IN",
            "ssl.keystore.location": str(tmp_path / "in.pem"),
            "listener.name.out.ssl.keystore.location": str(tmp_path / "out.pem"),
        }
    )
    config = load_config(path)
    listeners = KafkaListeners(config, NodeTls(config))
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        for name, other in (("in", "out"), ("out", "in")):
            context = foreign_client(tmp_path, f"{name}-authority")
            assert await ask(ports[name], context) > 0
            with pytest.raises(ssl.SSLError):
                await ask(ports[other], context)
    finally:
        await listeners.close()


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_tls_as_on_the_other_listeners(site: Site, tmp_path: Path, client_auth: str) -> None:
    authority = certificate_files(tmp_path, "authority", None)
    for name in ("node", "client"):
        certificate_files(tmp_path, name, authority)
    port = free_port()
    path = site.broker_file(
        {
            "listeners": f"GRPC://127.0.0.1:{site.broker_port},KAFKA://127.0.0.1:{port}",
            "listener.security.protocol.map": "KAFKA:SSL",
            "ssl.keystore.location": str(tmp_path / "node.pem"),
            "ssl.truststore.location": str(tmp_path / "authority.crt"),
            "ssl.client.auth": client_auth,
        }
    )
    config = load_config(path)
    listeners = KafkaListeners(config, NodeTls(config))
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        context = foreign_client(tmp_path)
        if client_auth == "required":
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(port, context)
            context.load_cert_chain(tmp_path / "client.pem")
        assert await ask(port, context) == 3
        with pytest.raises(ssl.SSLError):
            await ask(port, foreign_client(tmp_path, None))
    finally:
        await listeners.close()


WITH_LOGIN = {
    "listeners": "GRPC://:1,IN://:2,OUT://:3",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
}


@pytest.mark.parametrize(
    ("key", "value", "attribute", "kept"),
    [
        ("socket.request.max.bytes", "123456789", "request_max_bytes", 123_456_789),
        ("connections.max.idle.ms", "12345", "max_idle_s", 12.345),
        ("connection.authentication.timeout.ms", "4321", "login_timeout_s", 4.321),
        ("connection.failed.authentication.delay.ms", "250", "failed_login_delay_s", 0.25),
        ("sasl.server.max.receive.size", "77777", "login_max_bytes", 77_777),
        ("listener.name.out.sasl.server.max.receive.size", "66666", "login_max_bytes", 66_666),
    ],
)
def test_connections_keep_to_what_the_file_says(
    site: Site, key: str, value: str, attribute: str, kept: float
) -> None:
    def connection(more: dict[str, str]) -> ConnectionConfig:
        config = load_config(site.broker_file({**WITH_LOGIN, **more}))
        quotas = Quotas(MetadataImage, QuotaWindows(count=2, window_ms=1))
        listener = config.kafka_listeners[-1]
        return KafkaListeners(config, None)._connection_config(listener, MetadataImage, quotas, StepEnd())

    usual, changed = connection({}), connection({key: value})
    names = ("listener", "request_max_bytes", "max_idle_s", "login_timeout_s")
    differing = [
        name
        for name in (*names, "failed_login_delay_s", "login_max_bytes")
        if getattr(usual, name) != getattr(changed, name)
    ]
    assert (differing, getattr(changed, attribute)) == ([attribute], kept)


@pytest.mark.parametrize(
    ("keys", "reauth_ms"),
    [
        ({}, (0, 0)),
        ({"connections.max.reauth.ms": "9"}, (9, 9)),
        ({"listener.name.out.connections.max.reauth.ms": "8"}, (8, 8)),
        ({"listener.name.out.scram-sha-512.connections.max.reauth.ms": "7"}, (0, 7)),
        (
            {
                "connections.max.reauth.ms": "9",
                "listener.name.out.connections.max.reauth.ms": "8",
                "listener.name.out.scram-sha-256.connections.max.reauth.ms": "7",
            },
            (7, 8),
        ),
    ],
)
def test_the_nearest_key_says_when_a_session_ends(
    site: Site, keys: dict[str, str], reauth_ms: tuple[int, int]
) -> None:
    mechanisms = "SCRAM-SHA-256", "SCRAM-SHA-512"
    offered = {"sasl.enabled.mechanisms": ",".join(mechanisms)}
    config = load_config(site.broker_file({**WITH_LOGIN, **offered, **keys}))
    assert config.access["OUT"].max_reauth_ms == dict(zip(mechanisms, reauth_ms, strict=True))


@pytest.mark.parametrize("opens", ["true", "false"])
def test_who_decides_is_what_the_file_says(site: Site, opens: str) -> None:
    assert new_authorizer(load_config(site.broker_file()).values) is None
    keys = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:root;User:CN=node,O=x ",
        "allow.everyone.if.no.acl.found": opens,
    }
    found = new_authorizer(load_config(site.broker_file(keys)).values)
    assert found is not None

    def may(principal: str) -> bool:
        return found.allows(MetadataImage(), Caller(principal, "h"), Operation.READ, ResourceType.TOPIC, "t")

    assert [may(each) for each in ("User:root", "User:CN=node,O=x", "User:other")] == [
        True,
        True,
        opens == "true",
    ]


async def connected(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def is_let_in(caller: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Whether it is answered; closed otherwise."""
    reader, writer = caller
    frame = b"".join(codec.encode_request(codec.RequestHeader(18, 0, 1, "me"), ApiVersionsRequest()))
    writer.write(len(frame).to_bytes(4, "big") + frame)
    async with asyncio.timeout(60):
        with contextlib.suppress(OSError):
            return bool(await reader.read(4))
    return False


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [True] * 4),
        ({"max.connections.per.ip": "2"}, [True, True, False, True]),
        ({"max.connections": "3"}, [True, True, True, False]),
        ({"max.connections": "2", "max.connections.per.ip": "1"}, [True, False, False, True]),
    ],
)
async def test_how_many_connections_the_file_allows(
    site: Site, keys: dict[str, str], expected: list[bool]
) -> None:
    """Three of one address and one of another; what has ended makes room."""
    port = free_port()
    listening = {"listeners": f"GRPC://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{port}"}
    listeners = KafkaListeners(load_config(site.broker_file({**listening, **keys})), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        for _ in range(2):
            found, callers = [], []
            for address in ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2"):
                callers.append(await connected(port, address))
                found.append(await is_let_in(callers[-1]))
            assert found == expected
            assert len(listeners) == sum(expected)
            for _, writer in callers:
                writer.close()
            await until(lambda: not len(listeners))
    finally:
        await listeners.close()


@pytest.mark.parametrize(
    ("keys", "windows"), [({}, (11, 1_000)), ({"num": "3"}, (3, 1_000)), ({"size.seconds": "7"}, (11, 7_000))]
)
async def test_the_windows_of_quotas_are_those_of_the_file(
    site: Site, keys: dict[str, str], windows: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []

    def quotas(image: Callable[[], MetadataImage], found: QuotaWindows) -> Quotas:
        made.append((found.count, found.window_ms))
        return Quotas(image, found)

    monkeypatch.setattr(module, "Quotas", quotas)
    listening = {"listeners": f"GRPC://127.0.0.1:{free_port()},PLAINTEXT://127.0.0.1:{free_port()}"}
    more = {f"quota.window.{name}": value for name, value in keys.items()}
    listeners = KafkaListeners(load_config(site.broker_file({**listening, **more})), None)
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    await listeners.close()
    assert made == [windows]


async def test_a_connection_shares_what_its_listeners_have(site: Site) -> None:
    config = load_config(site.broker_file({**WITH_LOGIN, "connections.max.idle.ms": "-1"}))
    quotas, step_end = Quotas(MetadataImage, QuotaWindows(count=2, window_ms=1)), StepEnd()
    listeners = KafkaListeners(config, None)
    plain, login = (
        listeners._connection_config(each, MetadataImage, quotas, step_end) for each in config.kafka_listeners
    )
    for found in (plain, login):
        assert found.quotas is quotas and found.step_end is step_end and found.unsent is listeners.unsent
        assert found.max_idle_s == math.inf
    assert (plain.listener, login.listener) == ("IN", "OUT")
    assert plain.memory is not login.memory
    assert (plain.rules is None or plain.rules.sasl is None) and login.rules is not None
    bound, longest = config.bound("queued.max.request.bytes"), config.number("socket.request.max.bytes")
    assert bound is not None and login.memory is not None
    expected = RequestMemory(bound, longest)
    for name in ("long", "short"):
        assert getattr(login.memory, name).max_bytes == getattr(expected, name).max_bytes


async def test_answers_have_a_moment_to_leave_where_there_are_connections(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners = KafkaListeners(load_config(site.broker_file({})), None)
    waited: list[float] = []

    class Connection:
        ended = 0

        def __init__(self, waiting: int) -> None:
            self._waiting = waiting

        def __len__(self) -> int:
            return self._waiting

        def end(self) -> None:
            Connection.ended += 1

    async def sleep(seconds: float) -> None:
        assert Connection.ended == 0
        waited.append(seconds)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    for connections in ([], [0, 0], [0, 1]):
        Connection.ended = 0
        listeners._connections = {Connection(each) for each in connections}  # type: ignore[assignment]
        await listeners.close()
        assert Connection.ended == len(connections)
        assert len(waited) == (connections == [0, 1])
    assert waited == [module.CLOSE_GRACE_S]


def test_a_socket_that_cannot_be_bound_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    create = socket.socket

    def noted(*arguments: int) -> socket.socket:
        made.append(create(*arguments))
        return made[-1]

    with create(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(socket, "socket", noted)
        with pytest.raises(OSError, match="in use"):
            module._bound("127.0.0.1", port)
        monkeypatch.undo()
    assert [each.fileno() for each in made] == [-1]
