"""Repairs of a quorum as docs/operations.md describes them, with real processes and under load: nothing that
was acknowledged is lost, and no repair leaves the quorum without an active controller for long.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, Node
from tests.e2e.load import Load, assert_nothing_lost
from tests.e2e.processes import run_cli
from tests.e2e.topic_histories import TopicHistories
from tests.e2e.voter_cluster import ActiveWatch, DynamicCluster, commands_of, report

pytestmark = pytest.mark.e2e

WRITERS = 4
OUTAGE_MAX_S = 20.0
"""On any machine. The value of a quiet one is printed, and docs/benchmarks.md has it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamicCluster]:
    with DynamicCluster(tmp_path_factory.mktemp("voters"), controllers=3, brokers=1) as running:
        running.start()
        yield running
        running.assert_no_bugs()


@contextlib.contextmanager
def under_load(cluster: Cluster, what: str) -> Iterator[Load]:
    """Writers before, during and after the block; then the account is checked."""
    earlier = cluster.topics()
    prefix = what.replace(" ", "-")
    with Load(cluster, writers=WRITERS, rng=random.Random(7), prefix=prefix) as load:
        with ActiveWatch(cluster) as watch:
            load.wait_more(20)
            yield load
            load.wait_more(20)
        load.stop()
    report(what, watch, cluster.directory)
    assert watch.longest_s < OUTAGE_MAX_S
    assert_nothing_lost(cluster, load, earlier)


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_an_emptied_voter_disk(cluster: DynamicCluster, who: str) -> None:
    with under_load(cluster, f"emptied {who}") as load:
        quorum = cluster.wait_leader()
        others = [node for node in cluster.controllers if node.node_id != quorum.leader_id]
        victim = cluster.leader() if who == "leader" else others[0]
        before = cluster.wait_voters(cluster.voter_ids())
        cluster.lose_disk(victim)
        load.wait_more(10)
        cluster.follow_the_book("An emptied or damaged voter disk", victim, {"3002": victim.node_id})
        after = cluster.wait_voters(sorted(voter.node_id for voter in before.voters))
    directories = [{v.node_id: v.directory_id for v in one.voters} for one in (before, after)]
    changed = {node_id for node_id in directories[0] if directories[0][node_id] != directories[1][node_id]}
    assert changed == {victim.node_id}
    again = run_cli("quorum", "replace-voter", victim.node_id, "--bootstrap-controllers", cluster.bootstrap)
    assert "nothing to do" in again.stdout


def test_a_machine_replaced_under_another_id(cluster: DynamicCluster) -> None:
    quorum = cluster.wait_leader()
    old = next(node for node in cluster.controllers if node.node_id != quorum.leader_id)
    ids = cluster.voter_ids()
    new_id = cluster.unused_id()
    with under_load(cluster, "another id") as load:
        old.kill()
        load.wait_more(10)
        new = cluster.new_controller(new_id)
        cluster.follow_the_book("A machine replaced", new, {"3002": old.node_id, "3003": new_id})
        cluster.wait_voters(sorted({*ids, new_id} - {old.node_id}))
        cluster.retire(old)


def test_a_machine_replaced_under_the_same_id(cluster: DynamicCluster) -> None:
    """Including a new address, which the voters' record has afterwards."""
    quorum = cluster.wait_leader()
    victim = next(node for node in cluster.controllers if node.node_id != quorum.leader_id)
    with under_load(cluster, "same id"):
        cluster.lose_disk(victim)
        cluster.move(victim)
        cluster.follow_the_book("An emptied or damaged voter disk", victim, {"3002": victim.node_id})
        after = cluster.wait_voters(sorted(voter.node_id for voter in quorum.voters))
    (voter,) = [one for one in after.voters if one.node_id == victim.node_id]
    assert [endpoint.port for endpoint in voter.endpoints] == [victim.kafka_port, victim.port]


def test_three_to_five_and_back(cluster: DynamicCluster) -> None:
    ids = cluster.voter_ids()
    new_ids = [cluster.unused_id(), cluster.unused_id() + 1]
    names = {"3003": new_ids[0], "3004": new_ids[1]}
    with under_load(cluster, "three to five and back") as load:
        for node_id in new_ids:
            node = cluster.new_controller(node_id)
            format_it = ["storage", "format", "--config", str(node.config), "--no-initial-controllers"]
            cluster.run([*format_it, "--cluster-id", cluster.cluster_id], node)
            cluster.run(["controller", "run", str(node.config)], node)
        grow, shrink = commands_by_verb("From three voters to five, and back", names)
        for command in grow:
            cluster.run(command, cluster.controllers[-1])
        assert cluster.wait_voters([*ids, *new_ids])
        load.wait_more(10)
        for command in shrink:
            cluster.run(command, cluster.controllers[-1])
        cluster.wait_voters(ids)
        for node in [one for one in cluster.controllers if one.node_id in new_ids]:
            cluster.retire(node)


def commands_by_verb(heading: str, names: dict[str, int]) -> tuple[list[list[str]], list[list[str]]]:
    known = {old: str(new) for old, new in names.items()}
    commands = [[known.get(word, word) for word in command] for command in commands_of(heading)]
    verbs = ("add-voter", "remove-voter")
    grow, shrink = ([one for one in commands if one[:2] == ["quorum", verb]] for verb in verbs)
    return grow, shrink


def test_a_host_renamed(cluster: DynamicCluster) -> None:
    """The leader and another controller listen elsewhere after a restart, one after the other. The load knows
    one address that stays."""
    leader = cluster.leader()
    other = next(node for node in cluster.controllers if node is not leader)
    with under_load(cluster, "hosts renamed"):
        for node in (leader, other):
            node.stop()
            cluster.move(node)
            node.start()
            cluster.wait(
                lambda node=node: node.port in _ports(cluster, node.node_id), f"{node.name} at its address"
            )
            cluster.wait_caught_up(node)
    for node in cluster.nodes:
        cluster.write_config(node)


def test_client_histories_are_linearizable_while_voters_change_and_leaders_are_killed(
    cluster: DynamicCluster,
) -> None:
    """The leader is killed while it adds a voter, and the next one while it removes the first. Each command
    continues by itself."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"the moments of this run come from seed {seed}")
    rng = random.Random(seed)
    ids = cluster.voter_ids()
    new = cluster.new_controller(cluster.unused_id())
    identity = ["--cluster-id", cluster.cluster_id, "--no-initial-controllers"]
    cluster.run(["storage", "format", "--config", str(new.config), *identity], new)
    cluster.run(["controller", "run", str(new.config)], new)
    first = cluster.leader()
    with TopicHistories(cluster, clients=5, rng=rng, prefix="history") as histories:
        change_and_kill(cluster, ["add-voter", new.node_id], first, histories, rng)
        cluster.wait_voters([*ids, new.node_id])
        change_and_kill(cluster, ["remove-voter", first.node_id], cluster.leader(), histories, rng)
        cluster.wait_voters(sorted({*ids, new.node_id} - {first.node_id}))
        cluster.wait(lambda: histories.answered > 300, "answers to clients")
    histories.check()
    cluster.retire(first)


def change_and_kill(
    cluster: DynamicCluster,
    command: list[object],
    leader: Node,
    histories: TopicHistories,
    rng: random.Random,
) -> None:
    """The change is requested, and the leader is killed with -9 at some moment of it; then the command runs
    again."""

    def more(count: int) -> None:
        wanted = histories.answered + count
        cluster.wait(lambda: histories.answered >= wanted, f"{count} answers to clients")

    with ThreadPoolExecutor() as pool:
        change = pool.submit(run_cli, "quorum", *command, "--bootstrap-controllers", cluster.bootstrap)
        more(rng.randint(20, 200))
        leader.kill()
        more(rng.randint(1, 50))
        leader.start()
        change.result()


def _ports(cluster: DynamicCluster, node_id: int) -> list[int]:
    quorum = cluster.quorum()
    if quorum.open_change is not None:
        return []
    return [each.port for voter in quorum.voters if voter.node_id == node_id for each in voter.endpoints]


def test_from_static_to_dynamic_voters(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, brokers=1) as cluster:
        cluster.start()
        with under_load(cluster, "static to dynamic"):
            for command in commands_of("From static to dynamic voters"):
                run_cli(*command, "--bootstrap", cluster.bootstrap_servers)
            quorum = cluster.quorum()
            assert quorum.kraft_version == 1
            for node in cluster.controllers:
                node.set_properties(
                    {
                        "controller.quorum.voters": None,
                        "controller.quorum.bootstrap.servers": cluster.quorum_servers,
                    }
                )
                node.stop()
                node.start()
                cluster.wait_caught_up(node)
        found = json.loads(
            run_cli("quorum", "describe", "--json", "--bootstrap-controllers", cluster.bootstrap).stdout
        )
        assert found["kraftVersion"] == 1 and found["currentVoters"] == [3000, 3001, 3002]
        cluster.assert_no_bugs()


def test_two_of_three_lost_for_good(tmp_path: Path) -> None:
    """One log is left, and the broker's copy: a new voter set continues with all of their records."""
    with DynamicCluster(tmp_path, controllers=3, brokers=1) as cluster:
        cluster.start()
        with Load(cluster, writers=WRITERS, rng=random.Random(11), prefix="lost") as load:
            load.wait_more(40)
            load.stop()
        survivor = cluster.leader()
        cluster.kill_all(cluster.nodes)
        old = cluster.controllers
        new = [cluster.new_controller(node_id) for node_id in (3100, 3101, 3102)]
        voters = ",".join(f"{node.node_id}@{node.kafka_address}" for node in new)
        names = {
            "controller-3000/data": str(survivor.data),
            "broker-*/data": str(cluster.brokers[0].data),
            "/var/lib/salvaged": str(tmp_path / "salvaged"),
        }
        (book,) = commands_of("The majority is permanently gone")
        command = [names.get(word, word) for word in book]
        command[command.index("--voters") + 1] = voters
        told = run_cli(*command).stdout
        assert "may be missing" in told
        for node in old:
            cluster.retire(node)
        key = "controller.quorum.bootstrap.servers"
        (line,) = [each.strip() for each in told.splitlines() if each.strip().startswith(key)]
        for node in new:
            shutil.copytree(tmp_path / "salvaged" / node.name, node.data)
        for node in cluster.nodes:
            if node.role == "controller":
                node.set_properties({key: line.removeprefix(f"{key}=")})
            else:  # it asks over gRPC
                node.set_properties({key: cluster.bootstrap})
        cluster.start()
        load.account.check(cluster.topics())
        assert cluster.voter_ids() == [3100, 3101, 3102]
        cluster.assert_no_bugs()
