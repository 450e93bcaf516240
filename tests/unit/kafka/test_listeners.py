"""Kafka listeners as a broker is configured with them: names, TLS, addresses that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from pathlib import Path

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.config.load import load_config
from metaquorum.runtime.errors import ConfigError, StartError
from metaquorum.runtime.kafka.listener import KafkaListeners
from metaquorum.runtime.kafka.services import Features, Services
from metaquorum.runtime.tls.material import TlsMaterial
from metaquorum.wire import codec
from metaquorum.wire.messages import ApiVersionsRequest
from tests.unit.server.nodes import Site, free_port, new_site
from tests.unit.server.test_servers import certificate_files


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def test_the_name_of_a_listener_says_what_it_speaks(site: Site) -> None:
    listeners = "IN://:9001,GRPC://:9002,OUT://:9003"
    config = load_config(site.broker_file({"listeners": listeners}))
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
        "listener.security.protocol.map": "IN:SSL",
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
    listeners = KafkaListeners(config, TlsMaterial.load(config.tls))
    listeners.bind()
    await listeners.start(Services({}, lambda: Features(supported={}, finalized={}, epoch=0)), MetadataImage)
    try:
        context = ssl.create_default_context(cafile=tmp_path / "authority.crt")
        if client_auth == "required":
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(port, context)
            context.load_cert_chain(tmp_path / "client.pem")
        assert await ask(port, context) == 3
        with pytest.raises(ssl.SSLError):
            await ask(port, ssl.create_default_context())
    finally:
        await listeners.close()
