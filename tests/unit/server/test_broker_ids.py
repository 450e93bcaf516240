"""Brokers that find their id over gRPC, with real files, and the command that shows and changes bindings."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from pathlib import Path

import grpc.aio
import pytest
from click.testing import CliRunner

from metaquorum.broker.server import identity
from metaquorum.broker.server.identity import ask_until_settled, settle_identity
from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import (
    AdminClient,
    allocate_broker_id,
    bind_broker_id,
    list_broker_ids,
    unbind_broker_id,
)
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError, StartError
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import AllocateBrokerIdRequest, AllocateBrokerIdResponse
from metaquorum.proto import broker_ids_pb2 as pb
from metaquorum.proto.broker_ids_pb2_grpc import BrokerIdsStub
from metaquorum.rpc.channels import open_channel
from metaquorum.rpc.messages.tables import ALLOCATED
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import LogDirectoryLockedError, StorageError
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from tests.unit.server.nodes import CLUSTER_ID, Site, new_site, running_broker_config, running_controller

GENERATES = {"broker.id.generation.enable": "true"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = new_site(tmp_path)
    shutil.rmtree(tmp_path / "broker")
    return made


def config_of(site: Site, more: dict[str, str] | None = None, *, directories: int = 3) -> NodeConfig:
    """A broker without an id and with several directories, none of which exists."""
    dirs = ",".join(str(site.root / f"d{at}") for at in range(directories))
    path = site.broker_file({**GENERATES, "log.dirs": dirs, **(more or {})})
    lines = path.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("node.id=") or "node.id" in (more or {})]
    path.write_text("\n".join(kept) + "\n")
    return load_config(path, "broker")


def identities(config: NodeConfig) -> list[MetaProperties]:
    return [load_meta_properties(PosixDisk(), str(path)) for path in config.log_dirs]


def write_identity(directory: Path, node_id: int, cluster_id: str = CLUSTER_ID) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    identity = MetaProperties(
        cluster_id=cluster_id, node_id=node_id, directory_id=node_id.to_bytes(16, "big")[::-1]
    )
    store_meta_properties(PosixDisk(), str(directory), identity)


# ---- the round trip ------------------------------------------------------------------------------


async def test_s0_26_an_id_is_settled_once_and_written_in_every_directory(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=identity.__name__)
    config = config_of(site)
    async with running_controller(site.controller_file()):
        settled = await settle_identity(config, None)
        assert settled.node_id == 1001
        found = identities(config)
        assert {(one.node_id, one.cluster_id, one.version) for one in found} == {(1001, CLUSTER_ID, 1)}
        assert len({one.directory_id for one in found}) == 3
        again = await settle_identity(config, None)
        assert again.node_id == 1001 and identities(config) == found
    told = [each.getMessage() for each in caplog.records if each.name == identity.__name__]
    assert [line for line in told if line.startswith("this broker is 1001 (")] == told[:1] != []


async def test_s0_5_s0_13_a_broker_that_lost_all_its_disks_is_itself_again(site: Site) -> None:
    config = config_of(site, {"broker.id.binding.key": "machine-a"})
    address = [("127.0.0.1", site.controller_port)]
    async with running_controller(site.controller_file()), AdminClient(address) as client:
        settled = await settle_identity(config, None)
        listing = await list_broker_ids(client)
        assert [(one.broker_id, one.source) for one in listing.claims] == [(1001, IdSource.NEW)]
        assert listing.bindings == () and listing.next_id == 1002
        async with running_broker_config(settled):
            await _until_running(client, 1001)
        listing = await list_broker_ids(client)
        assert [(one.key, one.broker_id, one.current, one.garbage) for one in listing.bindings] == [
            ("machine-a", 1001, True, False)
        ]
        assert listing.claims == ()
        for path in config.log_dirs:
            shutil.rmtree(path)
        assert (await settle_identity(config, None)).node_id == 1001
        assert {one.node_id for one in identities(config)} == {1001}


async def _until_running(client: AdminClient, broker_id: int) -> None:
    async with asyncio.timeout(60):
        while True:
            brokers = (await client.list_brokers()).brokers
            if any(each.broker_id == broker_id and not each.fenced for each in brokers):
                return


async def test_s0_27_a_survivor_says_who_it_is_and_nobody_is_asked(site: Site) -> None:
    config = config_of(site)
    write_identity(site.root / "d1", 77)
    assert (await settle_identity(config, None)).node_id == 77  # no controller runs
    assert [one.node_id for one in identities(config)] == [77, 77, 77]


async def test_s0_3_an_explicit_id_ignores_the_binding_of_its_key(site: Site) -> None:
    config = config_of(site, {"node.id": "55", "broker.id.binding.key": "machine-a"})
    address = [("127.0.0.1", site.controller_port)]
    async with running_controller(site.controller_file()), AdminClient(address) as client:
        await bind_broker_id(client, "machine-a", 9)
        settled = await settle_identity(config, None)
        assert settled.node_id == 55 and {one.node_id for one in identities(config)} == {55}
        assert (await list_broker_ids(client)).claims == ()
        async with running_broker_config(settled):
            await _until_running(client, 55)
        assert [(one.key, one.broker_id) for one in (await list_broker_ids(client)).bindings] == [
            ("machine-a", 55)
        ]


@pytest.mark.parametrize(
    ("prepare", "explicit", "parts"),
    [
        ({"d0": (7, CLUSTER_ID)}, "8", ["node.id is 8", "d0/meta.properties says 7"]),
        ({"d0": (7, CLUSTER_ID), "d2": (8, CLUSTER_ID)}, None, ["is 7", "d2/meta.properties says 8"]),
        ({"d0": (7, CLUSTER_ID), "d1": (7, "other")}, None, [f"cluster {CLUSTER_ID}, but", "to other"]),
    ],
    ids=["S0.2", "S0.27", "clusters"],
)
async def test_s0_2_s0_27_conflicts_change_nothing(
    site: Site, prepare: dict[str, tuple[int, str]], explicit: str | None, parts: list[str]
) -> None:
    config = config_of(site, {} if explicit is None else {"node.id": explicit})
    for name, (node_id, cluster_id) in prepare.items():
        write_identity(site.root / name, node_id, cluster_id)
    before = {path: path.read_bytes() for path in site.root.glob("d*/meta.properties")}
    with pytest.raises(StartError) as caught:
        await settle_identity(config, None)
    assert all(part in str(caught.value) for part in parts) and "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in site.root.glob("d*/meta.properties")} == before


async def test_a_garbled_file_is_an_error_and_no_reason_to_ask(site: Site) -> None:
    config = config_of(site)
    (site.root / "d0").mkdir()
    (site.root / "d0" / "meta.properties").write_text("version=1\nnode.id=seven\ncluster.id=c\n")
    with pytest.raises(StorageError, match=r"meta\.properties"):
        await settle_identity(config, None)
    assert not (site.root / "d1" / "meta.properties").exists()


async def test_another_clusters_directory_gets_no_id(site: Site) -> None:
    config = config_of(site, directories=2)
    (site.root / "d0").mkdir()
    (site.root / "d0" / "meta.properties").write_text("version=0\ncluster.id=another\n")
    async with running_controller(site.controller_file()):
        with pytest.raises(StartError, match="INCONSISTENT_CLUSTER_ID"):
            await settle_identity(config, None)
    assert not (site.root / "d1" / "meta.properties").exists()


async def test_a_metadata_log_that_nobody_owns_is_set_aside(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(site)
    log = site.root / "d0" / "__cluster_metadata-0"
    for content in ("first", "second"):
        log.mkdir(parents=True, exist_ok=True)
        (log / "00000000000000000000.log").write_text(content)
        async with running_controller(site.controller_file()):
            with caplog.at_level(logging.WARNING):
                await settle_identity(config, None)
        (site.root / "d0" / "meta.properties").unlink()
        assert not log.exists()
    kept = sorted(site.root.glob("d0/__cluster_metadata-0.no-identity*/*"))
    assert [path.read_text() for path in kept] == ["first", "second"]
    assert "is set aside" in caplog.text


async def test_two_processes_of_one_configuration_do_not_become_two_brokers(site: Site) -> None:
    config = config_of(site)
    (site.root / "d0").mkdir()
    held = PosixDisk().lock(str(site.root / "d0"))
    try:
        with pytest.raises(LogDirectoryLockedError):
            await settle_identity(config, None)
    finally:
        held.release()


async def test_s0_28_without_the_switch_nothing_is_found_or_formatted(site: Site) -> None:
    config = load_config(site.broker_file(), "broker")
    assert not config.generates_broker_id and config.binding_key is None
    assert await settle_identity(config, None) is config
    assert not (site.root / "broker").exists()


async def test_nobody_there_is_one_line(site: Site) -> None:
    config = config_of(site, {"initial.broker.registration.timeout.ms": "200"})
    with pytest.raises(StartError) as caught:
        await settle_identity(config, None)
    assert str(caught.value).startswith("the request for this broker's id failed: no node at")
    assert not list(site.root.glob("d*/meta.properties"))


async def test_s0_24_a_controller_that_does_not_know_the_question() -> None:
    """An older controller answers UNIMPLEMENTED, which the client turns into one clear line."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AdminClient([("127.0.0.1", port)], attempts_max=1) as client:
            with pytest.raises(Exception, match="it does not serve this"):
                await allocate_broker_id(client, AllocateBrokerIdRequest(request_id=b"r" * 16))
    finally:
        await server.stop(None)


async def test_waiting_ends_with_the_time() -> None:
    clock = iter(range(100))
    asked: list[AllocateBrokerIdRequest] = []

    async def ask(request: AllocateBrokerIdRequest) -> AllocateBrokerIdResponse:
        asked.append(request)
        return AllocateBrokerIdResponse(cluster_id="c", retry_after_ms=1, waiting_for="a lease")

    request = AllocateBrokerIdRequest(request_id=b"r" * 16)
    answer = await ask_until_settled(ask, request, 3_000, lambda: float(next(clock)))
    assert answer.broker_id is None and answer.waiting_for == "a lease"
    assert len(asked) == 3 and set(asked) == {request}


async def test_refusals_and_answers_from_the_future(site: Site) -> None:
    async with running_controller(site.controller_file()):
        address = [("127.0.0.1", site.controller_port)]
        async with AdminClient(address) as client:
            with pytest.raises(ApiError) as refused:
                await allocate_broker_id(client, AllocateBrokerIdRequest(request_id=b"short"))
            assert refused.value.code is ErrorCode.INVALID_REQUEST
            with pytest.raises(ApiError) as refused:
                await bind_broker_id(client, "h", 1)  # the controller's own id
            assert refused.value.code is ErrorCode.INVALID_REQUEST
            with pytest.raises(ApiError) as refused:
                await unbind_broker_id(client, "h")
            assert refused.value.code is ErrorCode.RESOURCE_NOT_FOUND
        channel = open_channel("127.0.0.1", site.controller_port, None)
        answer = await BrokerIdsStub(channel).Allocate(pb.AllocateBrokerIdRequest(request_id=b"r" * 16))
        await channel.close(None)
        assert answer.broker_id == 1001
        answer.source = "divined"
        with pytest.raises(ApiError) as refused:
            ALLOCATED.from_pb(answer)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


# ---- configuration -------------------------------------------------------------------------------


def test_s0_25_the_key_is_the_host_or_any_text(site: Site) -> None:
    assert config_of(site).binding_key == "127.0.0.1"
    advertised = {"advertised.listeners": "PLAINTEXT://db1.example:9092"}
    assert config_of(site, advertised).binding_key == "db1.example"
    assert config_of(site, {"broker.id.binding.key": "rack7/slot 3"}).binding_key == "rack7/slot 3"
    with pytest.raises(ConfigError, match=r"broker\.id\.binding\.key: .* at most 255"):
        config_of(site, {"broker.id.binding.key": "x" * 256})


def test_s0_12_s0_28_switches_are_off_by_default(site: Site) -> None:
    config = load_config(site.broker_file(), "broker")
    assert not config.flag("broker.id.generation.enable")
    assert not config.flag("broker.id.reuse.missing")


def test_s0_28_without_the_switch_an_id_is_required(site: Site) -> None:
    path = site.broker_file()
    path.write_text(path.read_text().replace("node.id=101\n", ""))
    with pytest.raises(ConfigError, match=r"node\.id is missing"):
        load_config(path, "broker")
    path = site.controller_file()
    path.write_text(path.read_text().replace("node.id=1\n", ""))
    with pytest.raises(ConfigError, match=r"node\.id is missing"):
        load_config(path, "controller")


def test_s0_1_the_command_line_names_the_id(site: Site) -> None:
    path = site.broker_file()
    assert load_config(path, "broker", 101).node_id == 101
    with pytest.raises(ConfigError, match=r"node\.id=101, but the command line says 102"):
        load_config(path, "broker", 102)
    path.write_text(path.read_text().replace("node.id=101\n", ""))
    assert load_config(path, "broker", 102).node_id == 102


def test_formatting_a_broker_that_formats_itself_is_refused(site: Site) -> None:
    path = config_of(site).path
    result = CliRunner().invoke(main, ["storage", "format", "--config", str(path), "-t", CLUSTER_ID])
    assert result.exit_code == 1 and "formats its directories" in result.stderr
    assert result.stderr.count("\n") == 1


# ---- the command ---------------------------------------------------------------------------------


async def test_s0_15_bindings_on_the_command_line(site: Site) -> None:
    address = f"127.0.0.1:{site.controller_port}"
    results: list[str] = []

    def run(*arguments: str, expect: int = 0) -> str:
        result = CliRunner().invoke(main, ["brokers", *arguments, "--bootstrap-controllers", address])
        assert result.exit_code == expect, result.output
        return result.stderr if expect else result.stdout

    def commands() -> None:
        assert json.loads(run("bindings", "--json"))["bindings"] == []
        assert run("bind", "db 1/a", "10") == "db 1/a is bound to broker id 10\n"
        assert json.loads(run("bind", "db2", "10", "--json")) == {
            "key": "db2",
            "brokerId": 10,
            "bound": True,
        }
        run("bind", "db3", "11")
        listing = json.loads(run("bindings", "--json"))
        assert listing["bindings"] == [
            {"key": key, "brokerId": broker_id, "version": 0, "state": "absent"}
            | {"current": False, "garbage": False}
            for key, broker_id in (("db2", 10), ("db3", 11))
        ]
        assert listing["missingIds"] == [] and listing["claims"] == [] and listing["offset"] > 0
        table = run("bindings").splitlines()
        assert table[0].split() == ["KEY", "BROKER", "STATE", "CURRENT", "GARBAGE"]
        assert table[1].split() == ["db2", "10", "absent", "no", "no"]
        assert run("unbind", "db3") == "db3 is no longer bound\n"
        assert json.loads(run("unbind", "db2", "--json")) == {"key": "db2", "bound": False}
        assert "no id is bound to db2" in run("unbind", "db2", expect=1)
        assert "cannot be a broker's id" in run("bind", "h", "1", expect=1)
        results.append("done")

    async with running_controller(site.controller_file()):
        await asyncio.to_thread(commands)
    assert results == ["done"]
