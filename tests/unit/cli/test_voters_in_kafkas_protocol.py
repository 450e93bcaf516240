"""The commands that change voters where controllers are asked in Kafka's protocol: a scripted controller of
Apache Kafka 3.9 leads, and another one names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.admin import voter_changes
from metaquorum.cli.main import main
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.listeners.services import Features
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import METADATA_VERSION
from metaquorum.wire import messages as wire
from tests.unit.kafka.kafka_controller import on_a_thread
from tests.unit.kafka.kafka_node import FakeNode

CLUSTER = "EeRffYZ4QIOTb7vyl6pGQw"
NOW_MS = 1_700_000_000_000
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER


def directory(node_id: int) -> bytes:
    return bytes([200, node_id]) * 8


class Controllers:
    """Node 1 leads, node 2 says so. Node 4 observes; `silent`: the leader has not heard from them lately."""

    def __init__(self, sasl: SaslRules | None = None) -> None:
        self.voters, self.observers, self.silent = [1, 2, 3], [4], set[int]()
        self.asked: list[Any] = []
        self.refusals: list[ErrorCode] = []
        self.nodes = {1: self._node(1, sasl), 2: self._node(2, sasl)}

    def _node(self, node_id: int, sasl: SaslRules | None) -> FakeNode:
        node = FakeNode(
            {
                "DescribeQuorum": lambda _: self._describe_quorum(node_id),
                "DescribeCluster": self._describe_cluster,
                "AddRaftVoter": lambda body: self._add(body, node_id),
                "RemoveRaftVoter": lambda body: self._remove(body, node_id),
                "FetchSnapshot": lambda _: None,
            },
            sasl=sasl,
            AddRaftVoter=(0, 0),
        )
        node.features = Features(supported={METADATA_VERSION: (1, 21)}, finalized={}, epoch=1)
        return node

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.nodes[2].port}"

    def _describe_quorum(self, node_id: int) -> wire.DescribeQuorumResponse:
        kinds = wire.DescribeQuorumResponse
        if node_id != 1:
            part = kinds.PartitionData(error_code=REFUSED)
            return kinds(topics=(kinds.TopicData(partitions=(part,)),))

        def states(ids: list[int]) -> tuple[Any, ...]:
            return tuple(
                kinds.ReplicaState(
                    replica_id=each,
                    replica_directory_id=directory(each),
                    log_end_offset=500,
                    last_fetch_timestamp=NOW_MS - 60_000 * (each in self.silent),
                    last_caught_up_timestamp=NOW_MS,
                )
                for each in ids
            )

        part = kinds.PartitionData(
            leader_id=1,
            leader_epoch=3,
            high_watermark=500,
            current_voters=states(self.voters),
            observers=states(self.observers),
        )
        nodes = tuple(
            kinds.Node(
                node_id=each, listeners=(kinds.Listener(name="CONTROLLER", host="h", port=9000 + each),)
            )
            for each in self.voters
        )
        return kinds(topics=(kinds.TopicData(partitions=(part,)),), nodes=nodes)

    def _describe_cluster(self, _: Any) -> wire.DescribeClusterResponse:
        broker = wire.DescribeClusterResponse.DescribeClusterBroker
        places = {4: ("new", 9004)} | {each: ("127.0.0.1", node.port) for each, node in self.nodes.items()}
        brokers = tuple(broker(broker_id=each, host=host, port=port) for each, (host, port) in places.items())
        return wire.DescribeClusterResponse(cluster_id=CLUSTER, controller_id=1, brokers=brokers)

    def _code(self, node_id: int) -> ErrorCode:
        if node_id != 1:
            return REFUSED
        return self.refusals.pop(0) if self.refusals else ErrorCode.NONE

    def _add(self, body: wire.AddRaftVoterRequest, node_id: int) -> wire.AddRaftVoterResponse:
        code = self._code(node_id)
        if not code:
            listeners = [(each.name, each.host, each.port) for each in body.listeners]
            self.asked.append(("add", body.cluster_id, body.voter_id, body.voter_directory_id, listeners))
            self.voters.append(body.voter_id)
            self.observers.remove(body.voter_id)
        return wire.AddRaftVoterResponse(error_code=code, error_message="it is lagging behind")

    def _remove(self, body: wire.RemoveRaftVoterRequest, node_id: int) -> wire.RemoveRaftVoterResponse:
        code = self._code(node_id)
        if not code:
            self.asked.append(("remove", body.cluster_id, body.voter_id, body.voter_directory_id))
            self.voters.remove(body.voter_id)
        return wire.RemoveRaftVoterResponse(error_code=code, error_message="no")


@pytest.fixture
def controllers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controllers]:
    monkeypatch.setattr(voter_changes, "PATIENCE_S", 0.2)
    made = Controllers()
    with on_a_thread(*made.nodes.values()):
        yield made


def run(controllers: Controllers, *args: object) -> Result:
    named = ["--bootstrap-controllers", controllers.bootstrap]
    result = CliRunner().invoke(main, ["quorum", *map(str, args), *named])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_an_observer_is_added_with_the_listener_that_it_registered(controllers: Controllers) -> None:
    result = run(controllers, "add-voter", 4)
    assert result.exit_code == 0, result.output
    assert controllers.asked == [("add", CLUSTER, 4, directory(4), [("CONTROLLER", "new", 9004)])]
    assert "node 4 (directory" in result.stdout and "is a voter" in result.stdout
    assert "nothing to do" in run(controllers, "add-voter", 4).stdout


def test_an_endpoint_that_is_given_has_the_voters_listener(controllers: Controllers) -> None:
    assert run(controllers, "add-voter", 4, "--endpoint", "other:99").exit_code == 0
    assert controllers.asked == [("add", CLUSTER, 4, directory(4), [("CONTROLLER", "other", 99)])]


@pytest.mark.parametrize("node_id", [1, 3])
def test_a_voter_is_removed_the_leader_too(controllers: Controllers, node_id: int) -> None:
    result = run(controllers, "remove-voter", node_id)
    assert result.exit_code == 0, result.output
    assert controllers.asked == [("remove", CLUSTER, node_id, directory(node_id))]


def test_a_voter_is_replaced_by_another_one(controllers: Controllers) -> None:
    assert run(controllers, "replace-voter", 3, "--with", 4).exit_code == 0
    assert [each[0::2][:2] for each in controllers.asked] == [("add", 4), ("remove", 3)]


def test_what_the_leader_refuses_for_now_is_asked_again(controllers: Controllers) -> None:
    controllers.refusals = [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert run(controllers, "add-voter", 4).exit_code == 0
    assert len(controllers.asked) == 1


def test_a_step_without_a_living_majority_is_refused(controllers: Controllers) -> None:
    controllers.silent = {2}
    controllers.voters = [1, 2]
    result = run(controllers, "add-voter", 4)
    assert result.exit_code == 0, result.output  # two of three
    controllers.observers, controllers.silent = [], {2, 4}
    result = run(controllers, "remove-voter", 2)
    assert result.exit_code == 1 and "start node 4 first, or give --force" in result.stderr
    assert [each[0] for each in controllers.asked] == ["add"]


def test_the_plan_is_shown_and_nothing_is_changed(controllers: Controllers) -> None:
    result = run(controllers, "add-voter", 4, "--dry-run", "--json")
    assert json.loads(result.stdout)["steps"][0]["votersAfter"] == [1, 2, 3, 4]
    assert controllers.asked == []


def test_a_login_is_taken_from_the_command_config(tmp_path: Path) -> None:
    rules = SaslRules(
        mechanisms=("PLAIN",), new_exchange=lambda _: PlainExchange({"ann": "secret"}), max_reauth_ms={}
    )
    config = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="ann" password="secret";'
    lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.jaas.config={login}")
    config.write_text("\n".join(lines))
    secured = Controllers(rules)
    with on_a_thread(*secured.nodes.values()):
        result = run(secured, "remove-voter", 3, "--command-config", config)
        assert result.exit_code == 0, result.output
        assert len(secured.asked) == 1
        refused = run(secured, "remove-voter", 2, "--timeout", 5)
    assert refused.exit_code == 1 and "may require a login (--command-config" in refused.stderr
