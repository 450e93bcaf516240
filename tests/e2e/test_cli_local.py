"""The command on a real cluster: processes on loopback, started and stopped by `metaquorum local`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from metaquorum.cli.layout import create, open_layout
from metaquorum.rpc.health import health_problem
from tests.e2e.cluster import client_loop
from tests.e2e.processes import COMMAND, ENVIRONMENT, run_cli, running

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a running cluster of three controllers and two brokers."""
    directory = tmp_path_factory.mktemp("local") / "cluster"
    run_cli("local", "up", "-d", directory, "--brokers", 2, "--free-ports")
    yield directory
    run_cli("local", "down", "-d", directory)
    assert not any(pids(directory, expect=1).values())


@pytest.fixture(scope="module")
def bootstrap(cluster: Path) -> str:
    return str(status(cluster)["bootstrap"])


@pytest.fixture(scope="module")
def servers(cluster: Path) -> str:
    """The brokers, as clients of Kafka's protocol name them."""
    return str(status(cluster)["bootstrapServers"])


def status(directory: Path, expect: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads(
        run_cli("local", "status", "-d", directory, "--json", expect=expect).stdout
    )
    return found


def pids(directory: Path, expect: int = 0) -> dict[str, int | None]:
    nodes = status(directory, expect)["nodes"]
    assert isinstance(nodes, list)
    return {node["node"]: node["pid"] for node in nodes}


def test_every_process_runs_and_is_told(cluster: Path) -> None:
    found = pids(cluster)
    assert len(set(found.values())) == 5
    assert all(pid is not None and psutil.pid_exists(pid) for pid in found.values())


def test_up_again_starts_nothing_twice(cluster: Path) -> None:
    before = pids(cluster)
    run_cli("local", "up", "-d", cluster)
    assert pids(cluster) == before


def test_the_quorum_is_described(cluster: Path, bootstrap: str) -> None:
    found = json.loads(run_cli("quorum", "describe", "--bootstrap-controllers", bootstrap, "--json").stdout)
    assert found["clusterId"] == status(cluster)["clusterId"]
    assert found["currentVoters"] == [3000, 3001, 3002]
    assert found["currentObservers"] == [0, 1]
    text = run_cli("quorum", "describe", "--bootstrap-controllers", bootstrap).stdout
    assert f"LeaderId:               {found['leaderId']}\n" in text
    table = run_cli(
        "quorum", "describe", "--replication", "--bootstrap-controllers", bootstrap
    ).stdout.splitlines()
    roles = ["Status", "Leader", *["Follower"] * 2, *["Observer"] * 2]
    assert [line.split("\t")[6].strip() for line in table] == roles
    assert all("CONTROLLER://127.0.0.1:" in line for line in table[1:4])


def test_topics_live_and_die(servers: str) -> None:
    created = run_cli(
        "topics", "create", "orders", "--partitions", 4, "--replication-factor", 2, "-b", servers
    )
    assert created.stdout == "orders: created\n"
    again = run_cli("topics", "create", "orders", "-b", servers, expect=1)
    assert again.stderr.startswith("metaquorum: orders: TOPIC_ALREADY_EXISTS")
    assigned = run_cli(
        "topics", "create", "assigned", "--replica-assignment", "1:0,0:1", "--json", "-b", servers
    )
    assert json.loads(assigned.stdout)["partitions"] == 2
    listed = json.loads(run_cli("topics", "list", "--json", "-b", servers).stdout)
    assert [(topic["name"], topic["partitionCount"]) for topic in listed] == [("assigned", 2), ("orders", 4)]
    described = json.loads(run_cli("topics", "describe", "assigned", "--json", "-b", servers).stdout)[0]
    assert [partition["replicas"] for partition in described["partitions"]] == [[1, 0], [0, 1]]
    text = run_cli("topics", "describe", "orders", "-b", servers).stdout
    assert "\tPartitionCount: 4\tReplicationFactor: 2\t" in text.splitlines()[0]
    assert len(text.splitlines()) == 5
    missing = run_cli("topics", "describe", "orders", "nope", "-b", servers, expect=1)
    assert missing.stderr.startswith("metaquorum: topic nope does not exist")
    assert run_cli("topics", "delete", "assigned", "-b", servers).stdout == "assigned: deleted\n"
    gone = run_cli("topics", "delete", "assigned", "-b", servers, expect=1)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in gone.stderr
    run_cli("topics", "create", "dry", "--validate-only", "-b", servers)
    assert "dry" not in run_cli("topics", "list", "-b", servers).stdout


def test_brokers_are_listed_and_described(bootstrap: str, servers: str) -> None:
    listed = json.loads(run_cli("brokers", "list", "--json", "--bootstrap-controllers", bootstrap).stdout)
    assert [(broker["id"], broker["state"]) for broker in listed] == [(0, "running"), (1, "running")]
    described = run_cli("brokers", "describe", 1, "--bootstrap-controllers", bootstrap).stdout
    assert "State:        running" in described
    missing = run_cli("brokers", "describe", 77, "--bootstrap-controllers", bootstrap, expect=1)
    assert missing.stderr == "metaquorum: broker 77 is not registered; see: metaquorum brokers list\n"
    refused = run_cli("brokers", "unregister", 77, "-b", servers, expect=1)
    assert "BROKER_ID_NOT_REGISTERED" in refused.stderr


def test_leadership_is_transferred(bootstrap: str) -> None:
    before = json.loads(run_cli("quorum", "describe", "--json", "--bootstrap-controllers", bootstrap).stdout)
    target = next(voter for voter in before["currentVoters"] if voter != before["leaderId"])
    found = json.loads(run_cli("quorum", "transfer", "--to", target, "--json", "-b", bootstrap).stdout)
    assert (found["from"], found["to"]) == (before["leaderId"], target)
    assert found["leaderEpoch"] > before["leaderEpoch"]
    refused = run_cli("quorum", "transfer", "--to", 99, "-b", bootstrap, expect=1)
    assert refused.stderr.count("\n") == 1


def test_a_voter_that_lost_its_directory_does_not_get_its_identity_back(
    cluster: Path, tmp_path: Path
) -> None:
    found = status(cluster)
    config = (cluster / "controller-3002" / "node.properties").read_text()
    lost = tmp_path / "emptied"
    changed = tmp_path / "node.properties"
    lines = [line for line in config.splitlines() if not line.startswith("log.dirs")]
    changed.write_text("\n".join([*lines, f"log.dirs={lost}"]))
    options = ("storage", "format", "-c", changed, "-t", found["clusterId"])
    nodes = open_layout(cluster).controllers
    voters = ",".join(f"{node.node_id}@127.0.0.1:{node.port}:{node.directory_id}" for node in nodes)
    refused = run_cli(*options, "--initial-controllers", voters, expect=1)
    assert "already running" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not lost.exists()
    run_cli(*options, "--no-initial-controllers")
    identity = (lost / "meta.properties").read_text()
    assert not any(f"directory.id={node.directory_id}" in identity for node in nodes)


def test_a_live_log_is_dumped_and_replayed(cluster: Path, bootstrap: str, servers: str) -> None:
    run_cli("topics", "create", "replayed", "-b", servers)
    node = cluster / "controller-3000"
    records = [json.loads(line) for line in run_cli("log", "dump", "--json", node).stdout.splitlines()]
    assert [record["offset"] for record in records] == list(range(len(records)))
    assert records[0]["type"] == "LEADER_CHANGE"
    followed = run_cli("log", "dump", "--follow", "--to-offset", len(records) - 1, "--json", node)
    assert [json.loads(line) for line in followed.stdout.splitlines()] == records
    state = json.loads(run_cli("log", "state", "--json", node).stdout)
    assert set(state["broker"]) == {"0", "1"}
    kinds = [
        json.loads(line)["kind"] for line in run_cli("log", "timeline", "--json", node).stdout.splitlines()
    ]
    assert {"election", "broker registered", "broker unfenced", "topic created"} <= set(kinds)


def kill(pid: int | None, number: signal.Signals) -> None:
    """Returns when the process has ended."""
    assert pid is not None
    process = psutil.Process(pid)
    process.send_signal(number)
    process.wait(60)


def health(directory: Path) -> dict[str, str]:
    """Of every node, at the same time: why it does not serve, empty if it does."""
    layout = open_layout(directory)

    async def ask() -> list[str]:
        return await asyncio.gather(
            *(health_problem(("127.0.0.1", node.port), timeout_ms=3_000) for node in layout.nodes)
        )

    return dict(zip([node.name for node in layout.nodes], client_loop().call(ask()), strict=True))


@pytest.mark.parametrize("killed", [["broker-0", "controller-3001"], ["broker-1"]])
def test_up_is_said_of_processes_that_serve(cluster: Path, killed: list[str]) -> None:
    """Including those that were just restarted, while the quorum still considers the old broker alive."""
    before = pids(cluster)
    for name in killed:
        kill(before[name], signal.SIGKILL)
    run_cli("local", "up", "-d", cluster)
    assert set(health(cluster).values()) == {""}
    after = pids(cluster)
    assert [name for name in before if after[name] != before[name]] == sorted(killed, reverse=True)


def test_a_watch_leaves_a_cluster_alone_that_it_did_not_start(cluster: Path) -> None:
    before = pids(cluster)
    with running("local", "up", "--watch", "-d", cluster, text=True) as process:
        assert process.stdout is not None
        while "leader " not in (line := process.stdout.readline()):
            assert line, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    (line,) = [line for line in out.splitlines() if line.startswith("still running")]
    assert all(name in line for name in before) and "metaquorum local down -d" in line
    assert "stopp" not in out
    assert pids(cluster) == before


def test_a_watch_stops_what_it_started_and_shows_who_is_down(cluster: Path) -> None:
    before = pids(cluster)
    kill(before["controller-3002"], signal.SIGTERM)
    with running("local", "up", "--watch", "-d", cluster, text=True) as process:
        assert process.stdout is not None
        while "leader " not in (line := process.stdout.readline()):
            assert line, process.communicate()
        for name in ("controller-3000", "controller-3001"):
            kill(before[name], signal.SIGKILL)
        while "no leader; down: controller-3000, controller-3001;" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert "still running, because this command did not start them: broker-0, broker-1;" in out
    assert "controller-3002: stopped" in out
    assert [name for name, pid in pids(cluster, expect=1).items() if pid] == ["broker-0", "broker-1"]
    run_cli("local", "up", "-d", cluster)


def test_unregistering_says_what_it_leaves_behind(cluster: Path, servers: str) -> None:
    run_cli("topics", "create", "kept", "--partitions", 7, "--replication-factor", 2, "-b", servers)
    kill(pids(cluster)["broker-1"], signal.SIGTERM)
    refused = run_cli("brokers", "unregister", 77, "-b", servers, expect=1)
    assert refused.stderr.count("\n") == 1
    unregister, deadline_s = ("brokers", "unregister", 1, "--json", "-b", servers), time.monotonic() + 60
    while (
        done := run_cli(*unregister, expect=None)
    ).returncode:  # the other broker does not know yet that it has ended
        assert "is running" in done.stderr and time.monotonic() < deadline_s
    assert re.match(r"metaquorum: \d+ replicas stay assigned to broker 1 and under-replicated: ", done.stderr)
    assert done.stderr.count("\n") == 1
    left = json.loads(done.stdout)["leftBehind"]
    assert left["underReplicated"] >= 7
    topics = json.loads(run_cli("topics", "describe", "kept", "--json", "-b", servers).stdout)
    assert all(partition["isr"] == [0] for partition in topics[0]["partitions"])
    run_cli("local", "up", "-d", cluster)


def test_watching_without_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    directory = tmp_path / "watched"
    process = subprocess.Popen(
        [*COMMAND, "local", "up", "--watch", "-d", str(directory), "--brokers", "1", "--free-ports"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "broker unfenced" in line:
                break
        process.send_signal(signal.SIGINT)
        lines += process.stdout.readlines()
        assert process.wait(60) == 0, "".join(lines)
    finally:
        process.kill()
        run_cli("local", "down", "-d", directory)
    text = "".join(lines)
    assert "brokers: 0 running" in text
    assert "election" in text
    order = [line.split(":")[0] for line in lines if line.endswith(": stopped\n")]
    assert order[0] == "broker-0"
    assert sorted(order[1:]) == ["controller-3000", "controller-3001", "controller-3002"]


def test_a_port_in_use_is_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    import socket

    directory = tmp_path / "busy"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        create(directory, brokers=0, controllers=1, ports=[taken.getsockname()[1]])
        result = run_cli("local", "up", "-d", directory, expect=1)
    assert result.stderr.count("\n") == 1
    assert "controller-3000 exited with code 1" in result.stderr
    assert "cannot listen on 127.0.0.1" in result.stderr
    assert not any(pids(directory, expect=1).values())


def test_a_running_cluster_grows_and_is_not_shrunk(tmp_path: Path) -> None:
    directory = tmp_path / "grows"
    run_cli("local", "up", "-d", directory, "--controllers", 1, "--brokers", 0, "--free-ports")
    try:
        grown = run_cli("local", "up", "-d", directory, "--controllers", 3)
        assert grown.stdout.count(" is a voter\n") == 2
        bootstrap = status(directory)["bootstrap"]
        found = json.loads(
            run_cli("quorum", "describe", "--bootstrap-controllers", bootstrap, "--json").stdout
        )
        assert found["currentVoters"] == [3000, 3001, 3002]
        refused = run_cli("local", "up", "-d", directory, "--controllers", 2, expect=1)
        assert "run: metaquorum quorum remove-voter ID" in refused.stderr
        assert refused.stderr.count("\n") == 1
    finally:
        run_cli("local", "down", "-d", directory)
