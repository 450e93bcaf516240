"""Controllers that must not become voters, with real processes: each is refused in one line, and the quorum
stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.node.local_nodes import free_ports
from metaquorum.raft import messages as ms
from metaquorum.raft.messages import RaftError
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode
from metaquorum.storage.types import LogPosition
from tests.e2e.cluster import Node, random_id
from tests.e2e.kafka_peer import answers
from tests.e2e.processes import run_cli
from tests.e2e.voter_cluster import DynamicCluster

pytestmark = pytest.mark.e2e

OBSERVER_ID, STATIC_ID, FOREIGN_ID = 3005, 3007, 3011


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamicCluster]:
    with DynamicCluster(tmp_path_factory.mktemp("refused"), controllers=1) as running:
        running.start()
        joins(running, running.new_controller(OBSERVER_ID))
        yield running
        running.assert_no_bugs()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamicCluster]:
    """A quorum of its own."""
    with DynamicCluster(tmp_path_factory.mktemp("elsewhere"), controllers=1) as running:
        running.start()
        yield running


def joins(cluster: DynamicCluster, node: Node, cluster_id: str | None = None) -> None:
    """Formatted for a running cluster, and started."""
    identity = ["--cluster-id", cluster_id or cluster.cluster_id]
    run_cli("storage", "format", "--config", node.config, *identity, "--no-initial-controllers")
    node.start()


def refused(cluster: DynamicCluster, *arguments: object) -> str:
    """The single line of an `add-voter` that changes nothing."""
    before = cluster.quorum().voters_offset
    result = run_cli(
        "quorum", "add-voter", *arguments, "--bootstrap-controllers", cluster.controllers[0].address, expect=1
    )
    assert result.stderr.count("\n") == 1 and result.stdout == "", result.stdout + result.stderr
    assert cluster.quorum().voters_offset == before
    return result.stderr


def test_a_foreign_node_that_asks_for_what_cannot_be_changes_nothing(cluster: DynamicCluster) -> None:
    """Kafka's codes at kraft.version 1; what is repeated is answered again, and done once."""
    before, leader = cluster.quorum(), cluster.controllers[0]
    (voter,) = before.voters
    epoch, own, unknown = before.leader_epoch, cluster.cluster_id, b"u" * 16
    endpoints = tuple(Endpoint(each.name, each.host, each.port) for each in voter.endpoints)
    entry = VoterNode(
        node_id=voter.node_id,
        directory_id=voter.directory_id,
        endpoints=endpoints,
        versions=VersionRange(voter.min_kraft_version, voter.max_kraft_version),
    )
    update = ms.UpdateVoterRequest(cluster_id=own, epoch=epoch, voter=entry)
    vote = ms.VoteRequest(
        cluster_id=own,
        epoch=epoch,
        candidate_id=FOREIGN_ID,
        candidate_directory_id=unknown,
        voter_id=voter.node_id,
        voter_directory_id=voter.directory_id,
        last_position=LogPosition(epoch, 10**9),
        pre_vote=True,
    )
    fetch = ms.FetchRequest(
        cluster_id=own,
        replica_id=FOREIGN_ID,
        replica_directory_id=unknown,
        epoch=epoch,
        fetch_offset=10**9,
        last_fetched_epoch=epoch,
        high_watermark=ms.UNSTATED,
        max_wait_ms=0,
        max_bytes=1,
    )
    codes: list[tuple[Any, RaftError]] = [
        (replace(update, cluster_id="another"), RaftError.INCONSISTENT_CLUSTER_ID),
        (replace(update, epoch=epoch + 1), RaftError.UNKNOWN_LEADER_EPOCH),
        (replace(update, epoch=epoch - 1), RaftError.FENCED_LEADER_EPOCH),
        (replace(update, voter=replace(entry, directory_id=unknown)), RaftError.VOTER_NOT_FOUND),
        (replace(update, voter=replace(entry, node_id=77)), RaftError.VOTER_NOT_FOUND),
        (replace(update, voter=replace(entry, versions=VersionRange(2, 3))), RaftError.INVALID_REQUEST),
        (replace(update, voter=replace(entry, endpoints=())), RaftError.INVALID_REQUEST),
        (update, RaftError.NONE),  # it has that entry already
        (replace(vote, voter_directory_id=unknown), RaftError.INVALID_VOTER_KEY),
        (vote, RaftError.NONE),
        (fetch, RaftError.NONE),
        (replace(fetch, cluster_id="another"), RaftError.INCONSISTENT_CLUSTER_ID),
        (replace(fetch, epoch=epoch + 1), RaftError.UNKNOWN_LEADER_EPOCH),
    ]
    asked = [request for request, _ in codes for _ in range(3)]
    found = answers(leader, asked)
    assert [each.error for each in found] == [code for _, code in codes for _ in range(3)]
    for request, answer in zip(asked, found, strict=True):
        if answer.error is not RaftError.INCONSISTENT_CLUSTER_ID:
            assert (answer.epoch, answer.leader_id) == (epoch, voter.node_id), request
        if request is vote:
            assert not answer.vote_granted
        if request is fetch:
            assert answer.diverging is not None and answer.diverging.epoch == epoch
    after = cluster.quorum()
    assert (after.leader_epoch, after.voters_offset) == (epoch, before.voters_offset)
    assert [each.directory_id for each in after.voters] == [voter.directory_id]


def test_where_a_voter_of_another_cluster_answers(cluster: DynamicCluster, elsewhere: DynamicCluster) -> None:
    line = refused(cluster, OBSERVER_ID, "--endpoint", elsewhere.controllers[0].address)
    where = elsewhere.controllers[0].kafka_address
    assert f"INCONSISTENT_CLUSTER_ID: the node at {where} belongs to another cluster" in line
    assert cluster.cluster_id in line and "correct the address" in line


def test_where_another_node_answers(cluster: DynamicCluster) -> None:
    first = cluster.controllers[0]
    line = refused(cluster, OBSERVER_ID, "--endpoint", first.address)
    assert f"INVALID_VOTER_KEY: the node at {first.kafka_address} is not node {OBSERVER_ID}" in line


def test_where_no_one_answers(cluster: DynamicCluster) -> None:
    line = refused(cluster, OBSERVER_ID, "--endpoint", "127.0.0.1:1")
    assert "REQUEST_TIMED_OUT: 127.0.0.1:1 does not answer" in line and "correct --endpoint" in line


def test_a_node_that_runs_with_static_voters(cluster: DynamicCluster) -> None:
    """It leads a quorum of its own, with the same cluster id."""
    node = cluster.new_controller(STATIC_ID)
    servers = {"controller.quorum.bootstrap.servers": None}
    voter = f"{STATIC_ID}@{node.kafka_address}:{node.directory_id}"
    node.set_properties({**servers, "controller.quorum.voters": voter})
    run_cli("storage", "format", "--config", node.config, "--cluster-id", cluster.cluster_id, "--new-cluster")
    node.start()
    node.wait_for_line("leader (active)")
    line = refused(cluster, STATIC_ID, "--endpoint", node.address)
    assert f"INVALID_REQUEST: node {STATIC_ID} at {node.address} runs with static voters" in line
    assert "controller.quorum.bootstrap.servers" in line
    cluster.retire(node)


def test_a_controller_of_another_cluster_does_not_start(cluster: DynamicCluster) -> None:
    stranger = cluster.new_controller(3009)
    stranger.set_properties({"controller.quorum.bootstrap.servers": cluster.controllers[0].kafka_address})
    joins(cluster, stranger, random_id())
    assert stranger.wait_exit() == 1
    last = stranger.last_line()
    assert "but its bootstrap servers to another one" in last
    assert "correct controller.quorum.bootstrap.servers" in last
    cluster.retire(stranger)


@pytest.mark.parametrize("leads", [3000, OBSERVER_ID])
def test_a_second_machine_with_the_id_of_a_voter(cluster: DynamicCluster, leads: int) -> None:
    """Both request to be voters automatically. The first one stays, and continues to vote."""
    if [voter.node_id for voter in cluster.quorum().voters] == [3000]:
        run_cli("quorum", "add-voter", OBSERVER_ID, "--bootstrap-controllers", cluster.controllers[0].address)
    before = cluster.wait_voters([3000, OBSERVER_ID])
    if cluster.quorum().leader_id != leads:
        run_cli("quorum", "transfer", "--to", leads, "--bootstrap-controllers", cluster.bootstrap)
    second = Node(cluster.directory / f"second-{leads}", "controller", OBSERVER_ID, free_ports(1)[0], "")
    cluster.nodes.append(second)
    cluster.write_config(second)
    second.set_properties({"controller.quorum.auto.join.enable": "true"})
    joins(cluster, second)
    second.wait_for_line("a voter with the same id runs", timeout_s=90)
    assert "give this one another node.id and format it again, or stop the other" in second.output()
    after = cluster.wait_voters([3000, OBSERVER_ID])
    assert {voter.directory_id for voter in after.voters} == {voter.directory_id for voter in before.voters}
    cluster.retire(second)
