"""The directory of a local cluster, and that no process is signalled which is not ours."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner, Result

from metaquorum.cli import layout as layout_module
from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import HOST, MANIFEST, Layout, LocalNode, create, free_ports, grow, open_layout
from metaquorum.cli.local.processes import Processes, ProcessRecord
from metaquorum.cli.main import main
from metaquorum.runtime.config.load import load_config
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.storage.uuids import uuid_from_text, uuid_to_text

OTHER_CLUSTER = "EeRffYZ4QIOTb7vyl6pGQw"


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return create(tmp_path / "cluster", ports=free_ports(6))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours by parentage, but not one of the cluster's."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


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
    ports = [port for node in layout.nodes for port in (node.port, node.metrics_port)]
    assert len({*ports, *(node.kafka_port for node in layout.brokers)}) == 15
    assert open_layout(layout.directory) == layout


def test_a_cluster_of_combined_nodes(tmp_path: Path) -> None:
    layout = create(tmp_path / "c", combined=3, ports=free_ports(3), dynamic_voters=True)
    assert [node.name for node in layout.nodes] == ["combined-0", "combined-1", "combined-2"]
    assert layout.controllers == layout.brokers == layout.nodes and layout.combined == 3
    for node in layout.nodes:
        config = load_config(layout.config(node), "combined")
        assert {each.port for each in config.grpc_listeners} == set(node.health_ports)
        assert [each.port for each in config.kafka_listeners] == [node.kafka_port]
        assert config.log_dirs == (config.metadata_log_dir,) == (layout.data(node),)
        assert config.number("offsets.topic.replication.factor") == 3
    ports = [
        port for node in layout.nodes for port in (*node.health_ports, node.metrics_port, node.kafka_port)
    ]
    assert len({*ports}) == 12


@pytest.mark.parametrize(
    ("combined", "options", "text"),
    [
        (2, ["--combined", "3"], "with 2 combined nodes"),
        (2, ["--brokers", "2"], "with 2 combined nodes"),
        (2, ["--controllers", "3"], "with 2 combined nodes"),
        (0, ["--combined", "1"], "without combined nodes"),
        (0, ["--combined", "1", "--brokers", "1"], "leave out --controllers and --brokers"),
    ],
)
def test_a_cluster_keeps_its_kind(tmp_path: Path, combined: int, options: list[str], text: str) -> None:
    create(tmp_path / "c", controllers=1, brokers=1, combined=combined, ports=free_ports(2))
    found = run("local", "up", "--directory", tmp_path / "c", *options)
    assert found.exit_code and text in found.stderr


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
    told = {"controller.quorum.bootstrap.servers": f"127.0.0.1:{first.port}"}
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
        assert found["controller.quorum.bootstrap.servers"] == grown.bootstrap
        assert "controller.quorum.voters" not in found
        identity = load_meta_properties(PosixDisk(), str(grown.data(node)))
        assert identity.directory_id == uuid_from_text(node.directory_id)
        assert not grown.metadata_log(node).exists(), "it is no voter yet"


def properties(layout: Layout, node: LocalNode) -> dict[str, str]:
    return dict(line.split("=", 1) for line in layout.config(node).read_text().splitlines())


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


DRAWS = """
import sys
from metaquorum.cli import layout
layout.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 40)
print(*layout.free_ports(15), flush=True)
sys.stdin.read()
"""


def test_two_that_draw_ports_at_once_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = free_ports(1)
    monkeypatch.setattr(layout_module, "PORTS", range(first, first + 40))
    command = [sys.executable, "-c", DRAWS, str(first)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = free_ports(10)
        assert len(theirs) == 15 and not theirs & set(ours)
        other.communicate("")
    with socket.create_server((HOST, ours[0])) as server:
        assert server.getsockname()[1] == ours[0], "who was given a port may listen on it"


@pytest.mark.parametrize("command", ["up", "status", "down"])
@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe"])
def test_a_damaged_manifest_is_one_line(tmp_path: Path, command: str, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    result = run("local", command, "-d", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "cluster.json is damaged" in result.stderr


def test_a_manifest_from_the_future(layout: Layout) -> None:
    manifest = layout.directory / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"version": 1', b'"version": 9'))
    result = run("local", "up", "-d", layout.directory)
    assert result.exit_code == 1
    assert "has version 9, and this release supports 1" in result.stderr


@pytest.mark.parametrize("command", ["status", "down"])
def test_where_no_cluster_is(tmp_path: Path, command: str) -> None:
    result = run("local", command, "-d", tmp_path / "none")
    assert result.exit_code == 1
    assert "has no local cluster" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--cluster-id", OTHER_CLUSTER], f"not {OTHER_CLUSTER}; give another --directory"),
        (["--controllers", "1"], "holds a cluster with 3 controllers, not 1"),
        (["--brokers", "1"], "holds a cluster with 3 brokers, not 1"),
    ],
)
def test_up_refuses_another_cluster(layout: Layout, options: list[str], part: str) -> None:
    before = snapshot(layout.directory)
    result = run("local", "up", "-d", layout.directory, *options)
    assert result.exit_code == 1
    assert part in result.stderr
    assert result.stderr.count("\n") == 1
    assert snapshot(layout.directory) == before


def test_up_refuses_a_directory_with_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    result = run("local", "up", "-d", tmp_path)
    assert result.exit_code == 1
    assert "is not empty and has no local cluster" in result.stderr
    assert snapshot(tmp_path) == {str(tmp_path / "thesis.tex"): b"mine"}


def test_up_refuses_a_node_directory_of_another_cluster(layout: Layout) -> None:
    properties = layout.data(layout.brokers[1]) / "meta.properties"
    properties.write_bytes(
        properties.read_bytes().replace(layout.cluster_id.encode(), OTHER_CLUSTER.encode())
    )
    before = snapshot(layout.directory)
    result = run("local", "up", "-d", layout.directory)
    assert result.exit_code == 1
    assert f"belongs to cluster {OTHER_CLUSTER}" in result.stderr
    assert snapshot(layout.directory) == before


def test_status_of_a_stopped_cluster(layout: Layout) -> None:
    result = run("local", "status", "-d", layout.directory, "--json")
    assert result.exit_code == 1
    found = msgspec.json.decode(result.stdout)
    assert found["clusterId"] == layout.cluster_id
    assert [node["pid"] for node in found["nodes"]] == [None] * 6


def test_down_of_a_stopped_cluster_says_so(layout: Layout) -> None:
    result = run("local", "down", "-d", layout.directory)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{node.name}: not running" for node in [*layout.brokers, *layout.controllers]
    ]


@pytest.mark.parametrize("created_s", ["true", "wrong"])
def test_a_pid_that_was_given_to_somebody_else_is_left_alone(
    layout: Layout, stranger: subprocess.Popen[bytes], created_s: str
) -> None:
    node = layout.brokers[0]
    started = psutil.Process(stranger.pid).create_time() if created_s == "true" else 1.0
    layout.pid_file(node).write_bytes(msgspec.json.encode(ProcessRecord(pid=stranger.pid, created_s=started)))
    processes = Processes(layout)
    assert processes.pid(node) is None
    assert not processes.signal(node, signal.SIGKILL)
    assert processes.stop(node) == "not running"
    assert run("local", "down", "-d", layout.directory).exit_code == 0
    assert stranger.poll() is None


def test_our_own_process_is_not_a_node(layout: Layout) -> None:
    node = layout.controllers[0]
    record = ProcessRecord(pid=os.getpid(), created_s=psutil.Process().create_time())
    layout.pid_file(node).write_bytes(msgspec.json.encode(record))
    assert Processes(layout).pid(node) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"pid":"x"}', b'{"pid":0,"created_s":0}'])
def test_a_damaged_pid_file_means_not_running(layout: Layout, content: bytes) -> None:
    node = layout.brokers[0]
    layout.pid_file(node).write_bytes(content)
    assert Processes(layout).pid(node) is None


def test_a_node_that_cannot_start_leaves_its_reason(layout: Layout) -> None:
    node = layout.brokers[0]
    layout.config(node).write_text("process.roles=broker\nnode.id=0\nlog.dris=x\n")
    processes = Processes(layout)
    processes.start(node)
    assert processes.wait_gone(node, 30)
    assert processes.exit_code(node) == 1
    assert "log.dris is not a known key: did you mean log.dirs?" in processes.last_line(node)


def test_create_checks_before_it_writes(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="is not a uuid"):
        create(tmp_path / "c", cluster_id="nonsense")
    assert not (tmp_path / "c" / MANIFEST).exists()
