"""gRPC listeners of nodes with an authorizer: nodes and administrators get in, others learn why not."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from pathlib import Path

import pytest

from metaquorum.metadata.access.authorizer import Authorizer
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.runtime.client.admin import AdminClient, ClientError
from metaquorum.runtime.config.access.certificates import PrincipalRules
from metaquorum.runtime.config.access.listeners import STANDARD_AUTHORIZER
from metaquorum.runtime.config.tls import TlsFiles
from metaquorum.runtime.kafka.admin.access import create_acls
from metaquorum.runtime.kafka.client.cluster import KafkaClient
from metaquorum.runtime.kafka.client.security import ClientSecurity
from metaquorum.runtime.rpc.callers import GrpcCallers
from metaquorum.runtime.rpc.rights import GrpcRights
from tests.unit.server.nodes import Site, free_port, new_site, running_broker, running_controller
from tests.unit.server.test_servers import (
    SERVING,
    certificate_files,
    health_is,
    material,
    tls_keys,
)


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = certificate_files(folder, "authority", None)
    for name in ("node", "client"):
        certificate_files(folder, name, authority)
    return folder


def scraped(port: int, folder: Path, name: str) -> int:
    """The status of GET /metrics with a certificate."""
    context = ssl.create_default_context(cafile=folder / "authority.crt")
    context.load_cert_chain(folder / f"{name}.pem")
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


async def test_nodes_get_in_and_others_with_a_right(site: Site, folder: Path) -> None:
    keys = {
        **tls_keys(folder, "required"),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:node",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
    }
    pages = {"controller": free_port(), "broker": free_port()}
    address = [("127.0.0.1", site.controller_port)]
    node, client = material(folder, "node"), material(folder, "client")
    files = {role: {**keys, "metrics.listener": f"https://127.0.0.1:{pages[role]}"} for role in pages}
    async with (
        running_controller(site.controller_file(files["controller"])),
        running_broker(site.broker_file(files["broker"])),
    ):
        # The broker registers and is unfenced: nodes may call each other.
        await health_is(site.broker_port, SERVING, client)
        async with AdminClient(address, tls=client, attempts_max=1) as stranger:
            with pytest.raises(ClientError, match="User:client may not act on the cluster: add it"):
                await stranger.list_brokers()
        async with AdminClient(address, tls=node) as administrator:
            assert [each.broker_id for each in (await administrator.list_brokers()).brokers] == [101]
        for port in pages.values():
            # Figures are for super users, and for those who may describe the cluster.
            found = [await asyncio.to_thread(scraped, port, folder, name) for name in ("node", "client")]
            assert found == [200, 403]
        allowed = Acl(
            resource_type=ResourceType.CLUSTER,
            resource_name="kafka-cluster",
            pattern_type=PatternType.LITERAL,
            principal="User:client",
            host="127.0.0.1",
            operation=Operation.CLUSTER_ACTION,
            permission_type=Permission.ALLOW,
        )
        files = TlsFiles(keystore=folder / "node.pem", truststore=folder / "authority.crt")
        security = ClientSecurity(tls=files)
        async with KafkaClient(f"127.0.0.1:{site.kafka_port}", timeout_ms=60_000, security=security) as kafka:
            assert [each.error for each in await create_acls(kafka, [allowed])] == [ErrorCode.NONE]
        async with AdminClient(address, tls=client, attempts_max=1) as known:
            assert [each.broker_id for each in (await known.list_brokers()).brokers] == [101]


class Context:
    def __init__(self, pem: bytes | None, peer: str = "ipv4:10.0.0.1:4711") -> None:
        self._pem, self._peer = pem, peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {} if self._pem is None else {"x509_pem_cert": [self._pem]}

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize(
    ("shown", "checked", "rules", "refusal"),
    [
        (True, True, "RULE:^CN=(.*?)$/$1/", None),
        (True, True, "DEFAULT", "User:CN=client may not act"),
        (True, True, "RULE:^CN=x$/y/", "no rule of ssl.principal.mapping.rules matches"),
        (True, False, "RULE:^CN=(.*?)$/$1/", "User:ANONYMOUS may not act"),
        (False, True, "DEFAULT", "User:ANONYMOUS may not act"),
    ],
)
def test_who_is_there(folder: Path, shown: bool, checked: bool, rules: str, refusal: str | None) -> None:
    rights = GrpcRights(
        Authorizer(super_users=["User:client"]),
        GrpcCallers(PrincipalRules(rules), shows_certificates=checked),
        MetadataImage,
    )
    context = Context((folder / "client.crt").read_bytes() if shown else None)
    for _ in range(2):
        found = rights.refusal("/metaquorum.Admin/ListBrokers", context)
        assert found is None if refusal is None else refusal in str(found)
    assert rights.refusal("/grpc.health.v1.Health/Check", context) is None


@pytest.mark.parametrize(("user", "decision"), [("client", "may"), ("other", "may not")])
def test_a_decision_is_a_line_of_the_authorizer_log(
    folder: Path, user: str, decision: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "metaquorum.authorizer")
    rights = GrpcRights(
        Authorizer(super_users=[f"User:{user}"]),
        GrpcCallers(PrincipalRules("RULE:^CN=(.*?)$/$1/"), shows_certificates=True),
        MetadataImage,
    )
    rights.refusal("/metaquorum.Admin/ListBrokers", Context((folder / "client.crt").read_bytes()))
    (line,) = caplog.messages
    assert line.startswith(f"User:client from 10.0.0.1 {decision} CLUSTER_ACTION CLUSTER kafka-cluster, ")
    assert "metaquorum.Admin/ListBrokers" in line
