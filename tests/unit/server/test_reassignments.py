"""Reassignments over gRPC, and the commands that plan, start, list and cancel them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.records.parts import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, NewTopic, RegisterBrokerRequest
from metaquorum.metadata.requests.reassignments import AlterReassignmentsRequest, WantedReplicas
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.runtime.api.brokers import HEARTBEAT, REGISTER
from metaquorum.runtime.client import reassignments as reassignments_client
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.client.reassignments import alter_reassignments, list_reassignments
from tests.unit.server.nodes import CLUSTER_ID, Site, new_site, running_controller


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def start_brokers(client: AdminClient, *broker_ids: int) -> None:
    """Brokers that register and are unfenced, and do nothing more."""
    for broker_id in broker_ids:
        register = REGISTER.to_pb(
            RegisterBrokerRequest(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=bytes([broker_id]) * 16,
                endpoints=(BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9000 + broker_id, 0),),
                features=(BrokerFeature("metadata.version", 1, 25),),
                rack=None,
                directories=(bytes([broker_id]) * 15 + b"d",),
            )
        )
        registered = await client.ask(lambda channel: BrokerLifecycleStub(channel).Register, register)
        beat = HEARTBEAT.to_pb(
            BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=registered.broker_epoch, applied_offset=1 << 40
            )
        )
        await client.ask(lambda channel: BrokerLifecycleStub(channel).Heartbeat, beat)


@pytest.mark.parametrize("a_request", [1, 2_000])
async def test_a_reassignment_is_started_listed_and_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch, a_request: int
) -> None:
    monkeypatch.setattr(reassignments_client, "PARTITIONS_PER_REQUEST", a_request)
    address = [("127.0.0.1", site.controller_port)]
    async with running_controller(site.controller_file()), AdminClient(address) as client:
        await start_brokers(client, 1, 2, 3)
        await client.create_topics([NewTopic(name="t", assignments=((1, 2), (2, 1)))])
        wanted = (
            WantedReplicas(topic="t", partition=0, replicas=(3, 2)),
            WantedReplicas(topic="t", partition=1, replicas=(9,)),
        )
        results = await alter_reassignments(client, AlterReassignmentsRequest(wanted=wanted))
        assert [one.error for one in results] == [ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        assert results[1].message is not None and "broker 9" in results[1].message
        (found,) = await list_reassignments(client)
        assert (found.topic, found.partition, found.replicas) == ("t", 0, (3, 2, 1))
        assert (found.adding, found.removing, found.isr) == ((3,), (1,), (1, 2))
        assert await list_reassignments(client, [("t", 1)]) == ()
        cancel = (WantedReplicas(topic="t", partition=0, replicas=None),)
        (result,) = await alter_reassignments(client, AlterReassignmentsRequest(wanted=cancel))
        assert result.error is ErrorCode.NONE
        assert await list_reassignments(client) == ()


async def test_the_commands(site: Site, tmp_path: Path) -> None:
    address = f"127.0.0.1:{site.controller_port}"
    path = tmp_path / "plan.json"

    def run(*arguments: str, expect: int = 0) -> tuple[str, str]:
        result = CliRunner().invoke(main, ["partitions", *arguments, "--bootstrap", address])
        assert result.exit_code == expect, result.output
        return result.stdout, result.stderr

    def commands() -> None:
        text, size = run("plan", "--drain", "1")
        assert size == "2 partitions change, 2 replicas are copied (to broker 3: 2)\n"
        assert json.loads(text) == {
            "version": 1,
            "partitions": [
                {"topic": "t", "partition": 0, "replicas": [3, 2]},
                {"topic": "t", "partition": 1, "replicas": [2, 3]},
            ],
        }
        path.write_text(text)
        text, _ = run("reassign", "--plan", str(path), "--dry-run")
        assert text.startswith("t-0 would be reassigned\nt-1 would be reassigned\n2 partitions change")
        assert run("reassignments")[0] == "there is no ongoing reassignment\n"
        answer = json.loads(run("reassign", "--plan", str(path), "--json")[0])
        assert [one["error"] for one in answer["results"]] == ["NONE", "NONE"]
        assert (answer["partitionsChanged"], answer["replicasCopied"]) == (2, 2)
        listed = json.loads(run("reassignments", "--json")[0])
        assert [(one["partition"], one["adding"], one["waitingFor"]) for one in listed] == [
            (0, [3], [3]),
            (1, [3], [3]),
        ]
        assert "t-0" in run("reassignments")[0]
        assert run("reassignments", "--cancel", "t-0")[0] == "t-0 is no longer being reassigned\n"
        _, error = run("reassignments", "--cancel", "t-0", expect=1)
        assert "NO_REASSIGNMENT_IN_PROGRESS" in error
        assert run("reassignments", "--cancel-all")[0] == "t-1 is no longer being reassigned\n"
        assert run("plan", "--spread")[1].startswith("1 partitions change, 1 replicas are copied")
        run("plan", expect=2)
        for wrong in (("--drain", "77"), ("--spread", "--topic", "nope")):
            text, error = run("plan", *wrong, expect=1)
            assert not text and wrong[-1] in error and error.count("\n") == 1
        assert "either --cancel-all" in run("reassignments", "--cancel-all", "--cancel", "t-0", expect=2)[1]

    async with running_controller(site.controller_file()):
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            await start_brokers(client, 1, 2, 3)
            await client.create_topics([NewTopic(name="t", assignments=((1, 2), (2, 1)))])
        await asyncio.to_thread(commands)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", '"version": 1'),
        ('{"version": 1, "partitions": []}', "names no partitions"),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}',
            "entry 0: write",
        ),
        (
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}',
            "entry 0: write",
        ),
    ],
)
def test_a_plan_that_is_none_says_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    arguments = ["partitions", "reassign", "--plan", str(path), "--bootstrap", "127.0.0.1:1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1 and says in result.stderr and result.stderr.count("\n") == 1
