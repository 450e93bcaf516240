"""Administration of a controller that runs alone: what needs no broker is asked of it in Kafka's protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from msgspec.structs import replace

from metaquorum.cli.client import TlsOptions
from metaquorum.cli.cluster import ClusterOptions
from metaquorum.cli.main import main
from metaquorum.clients.kafka.grpc_way import ControllersClient
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.controller.server.kafka import listens_at
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import metadata_version_name
from metaquorum.metadata.image import ControllerRegistration, NodeEndpoint
from metaquorum.rpc.reach import spoken_at
from metaquorum.wire.messages import ApiVersionsRequest, DescribeClusterRequest, MetadataRequest
from tests.unit.server.nodes import CLUSTER_ID, Site, free_port, new_site, running_controller
from tests.unit.server.test_callers_in_the_log import causes


@pytest_asyncio.fixture(name="site", params=["grpc", "kafka"])
async def fixture_site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """Its controller speaks one of the protocols, and the answers are the same."""
    found = new_site(tmp_path)
    file = found.controller_file()
    if request.param == "kafka":
        found = dataclasses.replace(found, controller_port=found.quorum_port)
    async with running_controller(file):
        while await asyncio.to_thread(spoken_at, "127.0.0.1", found.controller_port, None) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield found


async def run(site: Site, *arguments: str, typed: str | None = None, code: int = 0) -> Result:
    """The first address is nobody's: the client looks on."""
    servers = f"127.0.0.1:{free_port()},127.0.0.1:{site.controller_port}"
    line = [*arguments, "--bootstrap-controllers", servers]
    result = await asyncio.to_thread(CliRunner().invoke, main, line, input=typed)
    assert result.exit_code == code, (arguments, result.output, result.stderr)
    return result


async def test_levels_entries_users_and_quotas_without_a_broker(site: Site) -> None:
    (level,) = [
        each
        for each in json.loads((await run(site, "features", "describe", "--json")).stdout)
        if each["name"] == "metadata.version"
    ]
    assert 0 < level["finalizedLevel"] <= level["maxLevel"] and level["offset"] > 0
    quorum = json.loads((await run(site, "quorum", "describe", "--json")).stdout)
    assert (quorum["clusterId"], quorum["leaderId"]) == (CLUSTER_ID, 1)
    changed = await run(site, "features", "upgrade", f"metadata.version={level['maxLevel']}")
    assert changed.stdout == f"metadata.version: finalized at {metadata_version_name(level['maxLevel'])}\n"
    refused = await run(site, "features", "upgrade", "metadata.version=7", code=1)
    assert "INVALID_UPDATE_VERSION" in refused.stderr and refused.stderr.count("\n") == 1

    on_topic = ("--resource-type", "topic", "--resource-name", "x")
    await run(site, "acls", "add", "User:x", *on_topic)
    (entry,) = json.loads((await run(site, "acls", "list", "--json")).stdout)
    assert (entry["principal"], entry["resourceName"]) == ("User:x", "x")
    assert "removed" in (await run(site, "acls", "remove", "--all")).stdout

    words = ("scram", "set", "alice", "--password-stdin", "--iterations", "4096")
    await run(site, "users", *words, typed="secret\n")
    assert "alice" in (await run(site, "users", "scram", "list")).stdout
    await run(site, "quotas", "alter", "--user", "alice", "--set", "producer_byte_rate=1")
    (quota,) = json.loads((await run(site, "quotas", "describe", "--json")).stdout)
    assert quota == {"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1.0}}

    asked = [cause for cause, _ in causes(site) if cause is not None and cause.request == "CreateAcls"]
    assert [(each.principal, each.address, each.broker_id) for each in asked] == [
        ("User:ANONYMOUS", "127.0.0.1", None)
    ]


async def test_configurations_and_tokens_without_a_broker(site: Site) -> None:
    session = "consumer.session.timeout.ms"
    await run(site, "configs", "alter", "group", "g", "--set", f"{session}=50000")
    await run(site, "configs", "alter", "broker", "default", "--set", "log.retention.ms=5")
    (group,) = json.loads((await run(site, "configs", "describe", "group", "g", "--json")).stdout)["configs"]
    assert (group["name"], group["value"], group["source"]) == (session, "50000", "DYNAMIC_GROUP_CONFIG")
    shared = json.loads((await run(site, "configs", "describe", "broker", "default", "--json")).stdout)
    assert [(each["name"], each["value"]) for each in shared["configs"]] == [("log.retention.ms", "5")]
    speaks_kafka = site.controller_port == site.quorum_port  # then it answers as the node that it is
    for kind, name, error in (
        ("topic", "nope", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("broker", "7", "INVALID_REQUEST" if speaks_kafka else "BROKER_ID_NOT_REGISTERED"),
        ("broker-logger", "7", "INVALID_REQUEST"),
    ):
        refused = await run(site, "configs", "describe", kind, name, code=1)
        assert error in refused.stderr and refused.stderr.count("\n") == 1
    assert "give NAME" in (await run(site, "configs", "describe", "topic", code=2)).stderr
    nobody = await run(site, "tokens", "list", code=1)
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in nobody.stderr and nobody.stderr.count("\n") == 1


@pytest.mark.parametrize("site", ["grpc"], indirect=True)
async def test_controllers_tell_of_themselves_and_of_nothing_that_is_brokers(site: Site) -> None:
    client = ControllersClient(
        AdminClient(f"127.0.0.1:{site.controller_port}", timeout_ms=60_000), timeout_ms=60_000
    )
    try:
        own = await client.ask(DescribeClusterRequest(endpoint_type=2))
        while not own.brokers:  # until it has registered
            own = await client.ask(DescribeClusterRequest(endpoint_type=2))
        assert (own.error_code, own.controller_id) == (0, 1)
        assert [(each.broker_id, each.port) for each in own.brokers] == [(1, site.quorum_port)]
        theirs = await client.ask(DescribeClusterRequest(endpoint_type=1))
        assert theirs.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE and not theirs.brokers
        asked = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        offered = await client.ask(asked)
        assert await client.version("Metadata") is None
        assert len(offered.api_keys) > 15 and await client.version("UpdateFeatures") == 2
        with pytest.raises(ApiError, match="does not offer Metadata"):
            await client.ask(MetadataRequest())
    finally:
        await client.close()


async def test_the_quorum_is_described_in_either_protocol(site: Site) -> None:
    """Voters as gRPC has them, and as Kafka's protocol has them; only gRPC lists brokers."""
    found = json.loads((await run(site, "quorum", "describe", "--json")).stdout)
    assert (found["leaderId"], found["currentVoters"]) == (1, [1])
    speaks_grpc = site.controller_port != site.quorum_port
    listed = await run(site, "brokers", "list", "--json", code=0 if speaks_grpc else 1)
    if not speaks_grpc:
        assert "ask a broker with --bootstrap" in listed.stderr and listed.stderr.count("\n") == 1


def test_silent_controllers_are_asked_what_they_speak_once_and_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, asked = [0.0], []

    def silent(host: str, port: int, tls: object, within_s: float) -> None:
        asked.append(port)
        now_s[0] += 2 * within_s

    monkeypatch.setattr("metaquorum.cli.cluster.spoken_at", silent)
    monkeypatch.setattr("metaquorum.cli.cluster.time.monotonic", lambda: now_s[0])
    servers = ",".join(f"127.0.0.1:{port}" for port in range(1, 10))
    for timeout_s, ports in ((10.0, [1, 2]), (4.0, [1]), (60.0, [*range(1, 9)])):
        asked.clear()
        began_s = now_s[0]
        options = ClusterOptions(bootstrap=None, timeout_s=timeout_s, tls=TlsOptions(), controllers=servers)
        settled = options.settled()
        assert not settled.by_kafka and asked == ports
        assert settled.timeout_s == timeout_s
        assert now_s[0] - began_s == pytest.approx(settled.spent_s)
        assert settled.settled() is settled and asked == ports
    with_login = replace(options, command_config=Path("client.properties"))
    assert with_login.settled().by_kafka and asked == ports


def test_however_long_the_look_took_there_is_time_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def hangs(host: str, port: int, tls: object, within_s: float) -> None:
        now_s[0] += 100

    monkeypatch.setattr("metaquorum.cli.cluster.spoken_at", hangs)
    monkeypatch.setattr("metaquorum.cli.cluster.time.monotonic", lambda: now_s[0])
    options = ClusterOptions(bootstrap=None, timeout_s=10, tls=TlsOptions(), controllers="127.0.0.1:1")
    assert 0 < options.timeout_s - options.settled().spent_s < 1


def test_a_silent_controller_costs_no_more_than_the_time_limit() -> None:
    """It takes connections, as a process that hangs does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        began_s = time.monotonic()
        words = ["quorum", "describe", "--bootstrap-controllers", servers, "--timeout", "2"]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 1 and result.stderr.count("\n") == 1
        assert time.monotonic() - began_s < 3.9, "asking twice what it speaks would take 2 s more"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--bootstrap", "127.0.0.1:1"), "give either --bootstrap or --bootstrap-controllers"),
        (("--command-config", "absent.properties"), "absent.properties"),
        (("--timeout", "0.2"), " ms (last: "),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: tuple[str, ...], says: str) -> None:
    line = ["features", "describe", "--bootstrap-controller", f"127.0.0.1:{free_port()}", *words]
    result = CliRunner().invoke(main, line)
    assert result.exit_code != 0 and says in result.stderr and result.stderr.count("\n") == 1, result.stderr


# Where a caller finds a controller: at that controller's listener of the name by which the caller came.


NAMES = ("CONTROLLER", "SECURE")
REGISTERED = {
    node_id: ControllerRegistration(
        controller_id=node_id,
        incarnation_id=bytes([node_id]) * 16,
        endpoints=tuple(
            NodeEndpoint(name=name, host=f"node-{node_id}", port=1000 * node_id + at, security_protocol=0)
            for at, name in enumerate(NAMES)
        ),
    )
    for node_id in (1, 2, 3)
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("node_id", REGISTERED)
def test_the_endpoint_is_of_this_controller_and_this_listener(node_id: int, name: str) -> None:
    endpoint = listens_at(REGISTERED, node_id, Client(listener=name, address="10.0.0.1"))
    assert endpoint is not None
    assert (endpoint.name, endpoint.host) == (name, f"node-{node_id}")
    assert endpoint.port == 1000 * node_id + NAMES.index(name)


@pytest.mark.parametrize(("node_id", "name"), [(4, "CONTROLLER"), (1, "OTHER")])
def test_what_is_not_registered_is_not_guessed(node_id: int, name: str) -> None:
    assert listens_at(REGISTERED, node_id, Client(listener=name, address="10.0.0.1")) is None
