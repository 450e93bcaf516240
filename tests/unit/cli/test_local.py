"""The directory of a local cluster, and that no process is signalled which is not ours."""

from __future__ import annotations

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

from metaquorum.cli.errors import Failure
from metaquorum.cli.layout import MANIFEST, Layout, create
from metaquorum.cli.local.cluster import Processes
from metaquorum.cli.local.guardian import ProcessRecord
from metaquorum.node import local_nodes
from metaquorum.node.local_nodes import HOST, free_ports
from tests.unit.cli.running import run

OTHER_CLUSTER = "EeRffYZ4QIOTb7vyl6pGQw"


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


DRAWS = """
import sys
from metaquorum.node import local_nodes
local_nodes.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 40)
print(*local_nodes.free_ports(15), flush=True)
sys.stdin.read()
"""


def test_two_that_draw_ports_at_once_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = free_ports(1)
    monkeypatch.setattr(local_nodes, "PORTS", range(first, first + 40))
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


@pytest.mark.parametrize("below", ["", "below"])
def test_up_refuses_a_link_to_itself(tmp_path: Path, below: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    result = run("local", "up", "-d", tmp_path / "loop" / below)
    assert result.exit_code == 1
    assert "too many levels of symbolic links" in result.stderr and result.stderr.count("\n") == 1


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
    with pytest.raises(Failure, match="is not a cluster id"):
        create(tmp_path / "c", cluster_id=" ")
    assert not (tmp_path / "c" / MANIFEST).exists()
