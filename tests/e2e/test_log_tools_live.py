"""The log tools and real processes: a running quorum's log is read without a trace; a quorum that lost its
majority is restarted from one survivor, and so is one whose log had a poison record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.segment import segment_name
from tests.e2e.cluster import HOST, Cluster, Node, free_ports, log_end_offset
from tests.e2e.processes import run_cli
from tests.unit.metadata.made_logs import STORY, add_snapshot, make_node

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), controllers=3, brokers=1) as made:
        made.start()
        for name in ("orders", "payments"):
            made.create_topic(name, 3)
        yield made
        made.assert_no_bugs()


def test_a_running_quorum_answers_as_its_files_do(cluster: Cluster) -> None:
    result = run_cli("log", "shell", "--bootstrap", cluster.bootstrap, "-c", "ls topic", "-c", "at")
    assert result.stdout.splitlines()[:2] == ["orders/", "payments/"]
    assert f"of cluster {cluster.cluster_id} from controller {cluster.quorum().leader_id}" in result.stderr
    state = json.loads(run_cli("log", "state", "--bootstrap", cluster.bootstrap, "--json").stdout)
    files = json.loads(run_cli("log", "state", cluster.leader().data, "--json").stdout)
    assert state["topic"] == files["topic"]
    assert state["broker"] == files["broker"]


def test_a_check_says_of_each_voter_what_can_be_known(cluster: Cluster) -> None:
    checked = json.loads(run_cli("log", "check", "--bootstrap", cluster.bootstrap, "--json").stdout)
    voters = checked["clusterVoters"]
    assert [each["nodeId"] for each in voters] == [node.node_id for node in cluster.controllers]
    for each, node in zip(voters, cluster.controllers, strict=True):
        assert each["address"] in (node.kafka_address, node.address)
    leader_id = cluster.quorum().leader_id
    assert [each["recordsCompared"] for each in voters] == [each["nodeId"] == leader_id for each in voters]
    assert all(each["inOrder"] for each in voters), voters


def test_reading_leaves_no_trace_on_the_quorum_and_no_file_behind(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ("log", "dump", "--bootstrap", cluster.bootstrap, "--json", "--type", "topic")
    result = run_cli(*arguments, prefix=("env", f"TMPDIR={tmp_path}"))
    assert [json.loads(line)["data"]["name"] for line in result.stdout.splitlines()] == ["orders", "payments"]
    assert list(tmp_path.iterdir()) == []
    assert [one.node_id for one in cluster.quorum().observers] == [0]


def test_a_quorum_without_its_majority_starts_again_with_new_voters(cluster: Cluster, tmp_path: Path) -> None:
    topics = cluster.topics()
    old_epoch = cluster.quorum().leader_epoch
    cluster.kill_all(cluster.nodes)
    survivor, *lost = cluster.controllers
    for node in lost:
        shutil.rmtree(node.data)
    (broker,) = cluster.brokers
    kept = _content(survivor.data)
    ends = {log_end_offset(survivor), log_end_offset(broker)}

    looked = run_cli("log", "salvage", survivor.data, broker.data)
    assert "voters 3001, 3002 are gone" in looked.stdout, looked.stderr

    ports = free_ports(2)
    voters = ",".join(f"{3100 + at}@{HOST}:{port}" for at, port in enumerate(ports))
    made = run_cli(
        "log", "salvage", survivor.data, broker.data, "--voters", voters, "--to", tmp_path / "new", "--json"
    )
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    assert not report["majority"]
    assert report["survivors"][0]["endOffset"] == max(ends)
    assert _content(survivor.data) == kept

    with Cluster(tmp_path / "again", controllers=0) as again:
        again.cluster_id = cluster.cluster_id
        again.voters = report["controllerQuorumVoters"]
        for at, port in enumerate(ports):
            node = Node(tmp_path / f"home-{3100 + at}", "controller", 3100 + at, port, "")
            node.data = Path(report["directories"][at])
            node.kafka_port = port
            (node.port,) = free_ports(1)
            again.write_config(node)
            again.nodes.append(node)
        broker.set_properties({"controller.quorum.voters": again.grpc_voters})
        again.nodes.append(broker)
        again.start()
        assert again.topics() == topics
        assert again.quorum().leader_epoch > old_epoch
        again.create_topic("after")
        assert sorted(again.topics()) == ["after", "orders", "payments"]
        assert set(again.stop().values()) == {0}
        again.assert_no_bugs()


def test_a_controller_starts_on_a_repaired_log(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", controllers=1, brokers=1) as one:
        one.start()
        one.create_topic("kept")
        one.delete_topics("kept")
        (node,) = one.controllers
        one.stop()
        dump = run_cli("log", "dump", node.data, "--json", "--type", "remove-topic").stdout
        offset = json.loads(dump)["offset"]
        kept = _content(node.data)

        result = run_cli("log", "repair", node.data, "--to", tmp_path / "new", "--drop", offset)
        assert result.returncode == 0, result.stderr
        assert "+ topic/kept" in result.stdout
        assert _content(node.data) == kept

        node.data.rename(tmp_path / "old")
        (tmp_path / "new").rename(node.data)
        (broker,) = one.brokers
        shutil.rmtree(broker.metadata_log)  # it is a copy of the log with the poison
        end = state_at(open_log(PosixDisk(), str(node.data))).end_offset
        one.start()
        assert list(one.topics()) == ["kept"]
        one.create_topic("more")
        assert log_end_offset(node) > end
        one.assert_no_bugs()


def test_a_log_without_its_beginning_is_read_with_its_snapshot(tmp_path: Path) -> None:
    disk = PosixDisk()
    old = make_node(disk, STORY, home=str(tmp_path / "old"), per_segment=5)
    add_snapshot(old, 10)
    disk.remove(f"{old.log.directory}/{segment_name(0)}")
    (port,) = free_ports(1)
    made = run_cli(
        *("log", "salvage", tmp_path / "old", "--voters", f"3100@{HOST}:{port}", "--to", tmp_path / "new"),
        "--json",
    )
    report = json.loads(made.stdout)
    with Cluster(tmp_path / "c", controllers=0) as one:
        one.cluster_id, one.voters = report["cluster"], report["controllerQuorumVoters"]
        node = Node(tmp_path / "home", "controller", 3100, port, "")
        node.data = Path(report["directories"][0])
        node.kafka_port = port
        (node.port,) = free_ports(1)
        one.write_config(node)
        one.nodes.append(node)
        one.start()
        result = run_cli("log", "shell", "--bootstrap", node.address, "-c", "ls topic", "-c", "records 12 13")
        assert "read offsets 7 to " in result.stderr
        assert ", with the snapshot at offset 10, " in result.stderr
        assert result.stdout.splitlines()[0] == "orders/"
        assert "REMOVE_TOPIC_RECORD" in result.stdout
        one.assert_no_bugs()


def _content(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes; a lock file holds nothing that could matter."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
