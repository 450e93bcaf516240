"""The log tools and real processes: a running quorum's log is read without a trace; a quorum that lost its
majority is restarted from one survivor, and so is one whose log had a poison record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.cli.errors import EXIT_VIOLATIONS
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.log.segment import segment_name
from tests.e2e.cluster import FAST_BROKERS, HOST, Cluster, Node, free_ports, log_end_offset
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


# A controller's directory is replaced with an older copy: nodes that know of more stop, and every tool
# reports it.


LOST = "committed records were lost"


def _refuses_to_start_twice(node: Node, before: bytes) -> None:
    """At every restart it reports the same, and its log stays."""
    for _ in range(2):
        assert node.wait_exit() == 1
        line = node.last_line()
        assert f"{node.role} {node.node_id}: {LOST}: leader" in line
        assert f"{node.metadata_log}/known-committed" in line and "metaquorum log salvage" in line
        assert _segment(node)[: len(before)] == before, "nothing was cut"
        node.start()
    assert node.wait_exit() == 1


def _segment(node: Node) -> bytes:
    return b"".join(path.read_bytes() for path in node.segments())


def test_an_older_copy_of_a_directory_takes_nothing_back_in_silence(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, brokers=1, properties=FAST_BROKERS) as cluster:
        cluster.start()
        (broker,) = cluster.brokers
        knows = cluster.leader()
        absent, replaced = (node for node in cluster.controllers if node is not knows)
        cluster.wait_caught_up(replaced)
        assert replaced.stop() == 0
        backup = shutil.copytree(replaced.data, tmp_path / "backup")
        replaced.start()
        cluster.wait_caught_up(replaced)
        cluster.kill_all([absent])
        # A retry may meet its own success.
        cluster.create_topics(NewTopic(name="kept", partitions=1, replication_factor=1))
        assert "kept" in cluster.topics()
        cluster.wait_caught_up(replaced)
        cluster.kill_all([knows, replaced])
        logs = {node: _segment(node) for node in (knows, broker)}
        end = log_end_offset(knows)
        shutil.rmtree(replaced.data)
        shutil.copytree(backup, replaced.data)
        for node in (absent, replaced):
            node.start()
        after = cluster.wait_leader()
        assert after.leader_id in (absent.node_id, replaced.node_id)
        assert "kept" not in cluster.topics(), "the two of them cannot know of it"

        _refuses_to_start_twice(broker, logs[broker])
        knows.start()
        _refuses_to_start_twice(knows, logs[knows])
        assert log_end_offset(knows) >= end

        said = run_cli("quorum", "describe", "--bootstrap-controllers", cluster.bootstrap)
        assert f"{LOST}: node {knows.node_id} knows that everything below offset" in said.stdout
        found = json.loads(
            run_cli("quorum", "describe", "--bootstrap-controllers", cluster.bootstrap, "--json").stdout
        )
        assert {one["nodeId"] for one in found["lostCommitted"]} == {knows.node_id, broker.node_id}
        asked = run_cli("controller", "status", "--bootstrap-controllers", cluster.leader().address)
        assert LOST in asked.stdout
        cluster.kill_all([absent, replaced])

        homes = [str(node.data) for node in cluster.controllers]
        checked = run_cli("log", "check", *homes, expect=EXIT_VIOLATIONS)
        assert LOST in checked.stdout and str(knows.data) in checked.stdout
        ranked = run_cli("log", "salvage", *homes)
        assert str(knows.data) in ranked.stderr and "were committed" in ranked.stderr
        _start_from_the_one_that_knows(cluster, knows, tmp_path / "salvaged")
        assert "kept" in cluster.topics()
        cluster.assert_no_bugs()


def _start_from_the_one_that_knows(cluster: Cluster, knows: Node, target: Path) -> None:
    """What every message recommends: a new voter set, made from the node that knows the most."""
    voters = ",".join(
        f"{node.node_id}@{node.kafka_address}:{node.directory_id}" for node in cluster.controllers
    )
    made = run_cli("log", "salvage", str(knows.data), "--voters", voters, "--to", str(target))
    assert made.returncode == 0, made.stderr
    for node in cluster.controllers:
        shutil.rmtree(node.data)
        shutil.copytree(target / f"controller-{node.node_id}", node.data)
    cluster.start()
