"""The directory of a local cluster: which nodes there are, what each is told, and where its files are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import MANIFEST, Layout, create, grow, open_layout
from metaquorum.config.load import load_config
from metaquorum.node.local_nodes import LocalNode, free_ports
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text
from tests.unit.cli.running import run


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return create(tmp_path / "cluster", ports=free_ports(6))


def test_a_new_cluster_is_formatted_and_configured(layout: Layout) -> None:
    assert [node.name for node in layout.nodes] == [
        "controller-3000",
        "controller-3001",
        "controller-3002",
        "broker-0",
        "broker-1",
        "broker-2",
    ]
    for node in layout.nodes:
        config = load_config(layout.config(node), node.role)
        identity = load_meta_properties(PosixDisk(), str(layout.data(node)))
        assert (config.node_id, identity.node_id) == (node.node_id, node.node_id)
        assert identity.cluster_id == layout.cluster_id
        assert identity.directory_id is not None
        assert uuid_to_text(identity.directory_id) == node.directory_id
        assert config.grpc_listeners[0].port == node.port
        assert config.listeners[0].host == "127.0.0.1"
        pinned = {voter.node_id: voter.directory_id for voter in config.voters}
        if node.role == "controller":
            assert pinned[node.node_id] == identity.directory_id
            assert config.log_dirs == (layout.data(node),)
        else:
            assert config.log_dirs == tuple(layout.home(node) / name for name in ("data-1", "data-2"))
            ids = [load_meta_properties(PosixDisk(), str(path)).directory_id for path in config.log_dirs]
            assert len({*ids, identity.directory_id}) == 3
            assert [uuid_to_text(each or b"") for each in ids] == list(node.log_directory_ids)
        assert config.metadata_log_dir == layout.data(node)
        assert config.metrics_listener is not None
        assert config.metrics_listener.host == "127.0.0.1"
        assert config.metrics_listener.port == node.metrics_port
        if node.role == "broker":
            assert [each.port for each in config.kafka_listeners] == [node.kafka_port]
            assert not config.quorum_speaks_kafka
        else:
            assert config.quorum_speaks_kafka
            assert [each.port for each in config.kafka_listeners] == [node.quorum_port]
        # Voters ask each other by Kafka's protocol, brokers ask them over gRPC.
        ports = [each.port if node.serves else each.quorum_port for each in layout.controllers]
        assert [voter.port for voter in config.voters] == ports
    ports = [port for node in layout.nodes for port in (node.port, node.metrics_port)]
    ports += [node.kafka_port for node in layout.brokers] + [node.quorum_port for node in layout.controllers]
    assert len({*ports}) == 18
    assert open_layout(layout.directory) == layout


def test_a_cluster_of_combined_nodes(tmp_path: Path) -> None:
    layout = create(tmp_path / "c", combined=3, ports=free_ports(3), dynamic_voters=True)
    assert [node.name for node in layout.nodes] == ["combined-0", "combined-1", "combined-2"]
    assert layout.controllers == layout.brokers == layout.nodes and layout.combined == 3
    for node in layout.nodes:
        config = load_config(layout.config(node), "combined")
        assert {each.port for each in config.grpc_listeners} == set(node.health_ports)
        assert {each.port for each in config.kafka_listeners} == {node.kafka_port, node.quorum_port}
        assert config.quorum_speaks_kafka
        assert config.log_dirs == (config.metadata_log_dir,) == (layout.data(node),)
        assert config.number("offsets.topic.replication.factor") == 3
    ports = [
        port
        for node in layout.nodes
        for port in (*node.health_ports, node.metrics_port, node.kafka_port, node.quorum_port)
    ]
    assert len({*ports}) == 15


def test_settings_go_to_the_nodes_of_a_role(tmp_path: Path) -> None:
    settings = {"controller": {"broker.session.timeout.ms": "3000"}}
    layout = create(tmp_path / "c", controllers=1, brokers=1, extra=settings)
    assert load_config(layout.config(layout.controllers[0])).number("broker.session.timeout.ms") == 3000
    load_config(layout.config(layout.brokers[0]), "broker")


def test_the_usual_ports_and_where_the_figures_are(tmp_path: Path) -> None:
    layout = create(tmp_path / "c")
    assert [node.port for node in layout.nodes] == [19190, 19191, 19192, 19090, 19091, 19092]
    assert [node.metrics_port for node in layout.nodes] == [19390, 19391, 19392, 19290, 19291, 19292]
    shown = run("local", "status", "--directory", layout.directory)
    assert shown.exit_code == 1
    assert shown.stdout.splitlines()[2].split() == [*"NODE STATE PID PORT KAFKA METRICS DATA".split()]
    assert shown.stdout.count("http://127.0.0.1:19390/metrics") == 1
    servers = "127.0.0.1:19490,127.0.0.1:19491,127.0.0.1:19492"
    assert f"bootstrap.servers={servers}" in shown.stdout
    found = json.loads(run("local", "status", "--json", "--directory", layout.directory).stdout)
    assert found["bootstrapServers"] == servers
    assert found["nodes"][5]["metrics"] == "http://127.0.0.1:19292/metrics"
    assert [node["kafkaPort"] for node in found["nodes"]] == [None] * 3 + [19490, 19491, 19492]


def test_a_cluster_that_was_made_without_figures_has_none(tmp_path: Path) -> None:
    layout = create(tmp_path / "c", controllers=1, brokers=0)
    path = layout.directory / MANIFEST
    manifest = json.loads(path.read_bytes())
    del manifest["nodes"][0]["metrics_port"], manifest["nodes"][0]["kafka_port"]
    path.write_text(json.dumps(manifest))
    assert open_layout(layout.directory).nodes[0].metrics_url is None
    assert "http://" not in run("local", "status", "--directory", layout.directory).stdout


def test_a_cluster_with_dynamic_voters_grows_by_controllers_that_observe(tmp_path: Path) -> None:
    before = create(tmp_path / "c", controllers=1, brokers=1, dynamic_voters=True)
    first = before.controllers[0]
    told = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{first.quorum_port}"}
    assert told.items() <= properties(before, first).items()
    checkpoint = before.metadata_log(first) / "00000000000000000000-0000000000.checkpoint"
    assert checkpoint.is_file()
    left = before.directory / "controller-3001" / "data"
    left.mkdir(parents=True)
    (left / "half").write_text("of an interrupted command")
    grown = grow(before, 3)
    assert [node.name for node in grown.nodes] == [
        *(f"controller-{n}" for n in (3000, 3001, 3002)),
        "broker-0",
    ]
    assert [node.port for node in grown.controllers] == [19190, 19191, 19192]
    assert grown.nodes[0] == first and grown.brokers == before.brokers
    assert open_layout(grown.directory) == grown
    for node in grown.controllers[1:]:
        found = properties(grown, node)
        servers = ",".join(f"127.0.0.1:{each.quorum_port}" for each in grown.controllers)
        assert found["controller.quorum.bootstrap.servers"] == servers
        assert "controller.quorum.voters" not in found
        identity = load_meta_properties(PosixDisk(), str(grown.data(node)))
        assert identity.directory_id == uuid_from_text(node.directory_id)
        assert not grown.metadata_log(node).exists(), "it is no voter yet"


def properties(layout: Layout, node: LocalNode) -> dict[str, str]:
    return dict(line.split("=", 1) for line in layout.config(node).read_text().splitlines())


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize("dynamic_voters", [False, True])
@pytest.mark.parametrize(("controllers", "brokers", "combined"), [(1, 0, 0), (1, 2, 0), (3, 1, 0), (0, 0, 2)])
def test_every_line_that_a_node_is_told(
    tmp_path: Path, controllers: int, brokers: int, combined: int, dynamic_voters: bool
) -> None:
    """Listeners in order, the quorum by name or by address, and replication that the brokers can give."""
    sizes = {"controllers": controllers, "brokers": brokers, "combined": combined}
    layout = create(tmp_path / "c", **sizes, dynamic_voters=dynamic_voters)
    voting = layout.controllers
    serving = combined or brokers
    for node in layout.nodes:
        ports = [one.port if node.role == "broker" else one.quorum_port for one in voting]
        named = zip(voting, ports, strict=True)
        voters = ",".join(f"{one.node_id}@127.0.0.1:{port}:{one.directory_id}" for one, port in named)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        quorum = {"controller.quorum.voters": voters}
        own = "GRPC" if node.role == "broker" else "GRPC_CONTROLLER"
        listeners = [f"{own}://127.0.0.1:{node.port}"]
        if node.role != "broker":
            listeners.insert(0, f"CONTROLLER://127.0.0.1:{node.quorum_port}")
        if node.role == "combined":
            listeners.append(f"GRPC://127.0.0.1:{node.broker_port}")
        if node.role != "controller":
            listeners.insert(0, f"PLAINTEXT://127.0.0.1:{node.kafka_port}")
        home = layout.directory / node.name
        logs = f"{home}/data-1,{home}/data-2" if node.role == "broker" else f"{home}/data"
        expected = {
            "process.roles": "broker,controller" if node.role == "combined" else node.role,
            "node.id": str(node.node_id),
            **({"controller.quorum.bootstrap.servers": addresses} if dynamic_voters else quorum),
            "controller.listener.names": "CONTROLLER,GRPC_CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GRPC:PLAINTEXT",
            "listeners": ",".join(listeners),
            "log.dirs": logs,
            "metrics.listener": f"http://127.0.0.1:{node.metrics_port}",
        }
        if node.role != "controller":
            expected["offsets.topic.replication.factor"] = str(min(3, serving))
            expected["transaction.state.log.replication.factor"] = str(min(3, serving))
            expected["transaction.state.log.min.isr"] = str(min(2, serving))
            expected["group.initial.rebalance.delay.ms"] = "0"
        if node.role == "broker":
            expected["metadata.log.dir"] = f"{home}/data"
        assert properties(layout, node) == expected


@pytest.mark.parametrize("kind", ["absent", "empty", "full", "file"])
def test_a_cluster_is_made_in_an_empty_or_absent_directory_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c"
    if kind == "file":
        path.write_text("mine")
    elif kind != "absent":
        path.mkdir()
    if kind == "full":
        (path / "thesis.tex").write_text("mine")
    if kind in ("absent", "empty"):
        made = create(path, controllers=1, brokers=0)
        assert open_layout(path) == made
        return
    why = "is not a directory" if kind == "file" else "is not empty and has no local cluster"
    with pytest.raises(Failure, match=why):
        create(path, controllers=1, brokers=0)
    assert [each.name for each in tmp_path.rglob("*")] == (["c"] if kind == "file" else ["c", "thesis.tex"])


def test_a_node_is_found_by_its_name(layout: Layout) -> None:
    assert [layout.node(node.name) for node in layout.nodes] == layout.nodes
    with pytest.raises(KeyError):
        layout.node("broker-9")


@pytest.mark.parametrize("usual", [True, False])
def test_new_controllers_take_usual_ports_beside_usual_ports(tmp_path: Path, usual: bool) -> None:
    made = create(tmp_path / "c", controllers=2, brokers=0, ports=None if usual else free_ports(2))
    grown = grow(made, 3)
    assert grown.controllers[:2] == made.controllers
    assert (grown.controllers[2].port == 19192) == usual
    assert len({node.port for node in grown.controllers}) == 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('"version": 1', "version 9, and this release supports 1; use a newer release"),
        ("{", "is damaged"),
    ],
)
def test_a_manifest_of_no_use_is_refused(layout: Layout, text: str, part: str) -> None:
    manifest = layout.directory / MANIFEST
    now = manifest.read_text().replace(text, '"version": 9' if "version" in text else "", 1)
    manifest.write_text(now)
    with pytest.raises(Failure, match=part):
        open_layout(layout.directory)


def test_a_node_of_another_cluster_is_refused(layout: Layout) -> None:
    path = layout.data(layout.nodes[-1]) / "meta.properties"
    path.write_text(path.read_text().replace(layout.cluster_id, "EeRffYZ4QIOTb7vyl6pGQw"))
    with pytest.raises(Failure, match=f"EeRffYZ4QIOTb7vyl6pGQw, but .* cluster {layout.cluster_id}"):
        open_layout(layout.directory)
