"""gRPC listeners of nodes with an authorizer: nodes and administrators get in, others learn why not."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path

import pytest

from metaquorum.clients.admin.access import create_acls
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.clients.kafka.login import ClientSecurity
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.config.load import load_config
from metaquorum.config.principals import PrincipalRules
from metaquorum.config.security import STANDARD_AUTHORIZER, TlsFiles
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.rpc.rights import GrpcCallers, GrpcRights, grpc_callers
from tests.unit.server.certificates import certificates_of, foreign_client
from tests.unit.server.nodes import Site, free_port, new_site, running_broker, running_controller
from tests.unit.server.test_servers import SERVING, health_is, material, tls_keys


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    certificates_of(folder, "node", "client")
    return folder


def scraped(port: int, folder: Path, name: str) -> int:
    """The status of GET /metrics with a certificate."""
    context = foreign_client(folder, own=name)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("asks", [("plain", "certain"), ("certain", "plain")])
async def test_one_listener_of_several_that_asks_for_certificates_is_enough(
    site: Site, folder: Path, asks: tuple[str, str]
) -> None:
    """A caller is who its certificate says, whichever of the gRPC listeners asks for one."""
    keys = {
        "listeners": f"CONTROLLER://127.0.0.1:{site.quorum_port},"
        + ",".join(f"GRPC_{each.upper()}://127.0.0.1:{free_port()}" for each in asks),
        "controller.listener.names": ",".join(("CONTROLLER", *(f"GRPC_{each.upper()}" for each in asks))),
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,GRPC_PLAIN:PLAINTEXT,GRPC_CERTAIN:SSL",
        **{f"listener.name.grpc_certain.{key}": value for key, value in tls_keys(folder, "required").items()},
    }
    certificate = (folder / "client.crt").read_bytes()

    class Context:
        def auth_context(self) -> dict[str, list[bytes]]:
            return {"x509_pem_cert": [certificate]}

    callers = grpc_callers(load_config(site.controller_file(keys)))
    assert callers.principal(Context()) == "User:CN=client"


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


def rights_of(user: str) -> GrpcRights:
    return GrpcRights(
        Authorizer(super_users=[f"User:{user}"]),
        GrpcCallers(PrincipalRules("RULE:^CN=(.*?)$/$1/"), shows_certificates=True),
        MetadataImage,
    )


def test_a_permission_is_a_line_of_the_authorizer_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "metaquorum.authorizer")
    rights_of("client").refusal(
        "/metaquorum.Admin/ListBrokers", Context((folder / "client.crt").read_bytes())
    )
    (line,) = caplog.messages
    assert line.startswith("User:client from 10.0.0.1 may CLUSTER_ACTION CLUSTER kafka-cluster, ")
    assert "metaquorum.Admin/ListBrokers" in line


def test_a_caller_that_is_refused_again_and_again_is_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Decisions with a file of their own are all in it; here they have none."""
    caplog.set_level("INFO")
    rights, pem = rights_of("other"), (folder / "client.crt").read_bytes()
    for port in range(50):
        rights.refusal("/metaquorum.BrokerLifecycle/Heartbeats", Context(pem, f"ipv4:10.0.0.1:{4711 + port}"))
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert line.message == (
        "refused metaquorum.BrokerLifecycle/Heartbeats of 10.0.0.1:4711: User:client may not act on the"
        " cluster: add it to super.users, or allow it ClusterAction"
    )
