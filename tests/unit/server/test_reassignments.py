"""The commands that plan, start, list and cancel reassignments."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.admin.partitions import plan_json
from metaquorum.cli.main import main
from metaquorum.clients.admin import replicas
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.records.types import BrokerEndpoint, BrokerFeature
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, NewTopic, RegisterBrokerRequest
from metaquorum.proto.broker_pb2_grpc import BrokerLifecycleStub
from metaquorum.rpc.messages.tables import HEARTBEAT, REGISTER
from tests.topics import create_topics
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    new_site,
    running_broker,
    running_controller,
    without_data,
)
from tests.unit.server.test_servers import SERVING, health_is


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


async def test_the_commands(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_data(monkeypatch)
    monkeypatch.setattr(replicas, "PARTITIONS_PER_REQUEST", 1)
    path = tmp_path / "plan.json"

    def run(*arguments: str, expect: int = 0) -> tuple[str, str]:
        result = CliRunner().invoke(main, ["partitions", *arguments, *site.bootstrap("partitions")])
        assert result.exit_code == expect, result.output
        return result.stdout, result.stderr

    def commands() -> None:
        text, size = run("plan", "--drain", "101")
        assert size == "2 partitions change, 2 replicas are copied (to broker 3: 2)\n"
        assert json.loads(text) == {
            "version": 1,
            "partitions": [
                {"topic": "t", "partition": 0, "replicas": [3, 2]},
                {"topic": "t", "partition": 1, "replicas": [2, 3]},
            ],
        }
        path.write_text(text)
        foreseen, _ = run("reassign", "--plan", str(path), "--dry-run")
        assert foreseen.startswith("t-0 would be reassigned\nt-1 would be reassigned\n2 partitions change")
        half = {("t", 0): (101, 2), ("t", 1): (2, 3)}
        path.write_text(json.dumps(plan_json(half)))
        foreseen, _ = run("reassign", "--plan", str(path), "--dry-run")
        assert foreseen.startswith("t-0 stays as it is\nt-1 would be reassigned\n1 partitions change")
        bad = {("t", 0): (3, 9), ("t", 1): (3, 3), ("t", 5): (3,), ("u", 0): (3,)}
        path.write_text(json.dumps(plan_json(bad)))
        refused = json.loads(run("reassign", "--plan", str(path), "--dry-run", "--json", expect=1)[0])
        dry = [one["error"] for one in refused["results"]]
        real = json.loads(run("reassign", "--plan", str(path), "--json", expect=1)[0])
        assert dry == [one["error"] for one in real["results"]], "a dry run foresees what is refused"
        path.write_text(text)
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

    async with running_controller(site.controller_file()), running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        async with AdminClient([("127.0.0.1", site.controller_port)]) as client:
            await start_brokers(client, 2, 3)
            await create_topics(client, [NewTopic(name="t", assignments=((101, 2), (2, 101)))])
        await asyncio.to_thread(commands)


ENTRY = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": %s}]}'


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
        (ENTRY % "5", "entry 0: log_dirs has to be a list"),
        (ENTRY % '["any"]', "entry 0: log_dirs has to be a list"),
        (ENTRY % '["any", "disk"]', "'disk' in log_dirs is neither an absolute path nor"),
        (ENTRY % '["any", "/disk"]', "metaquorum log-dirs move --plan"),
    ],
)
def test_a_plan_that_is_none_says_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    arguments = ["partitions", "reassign", "--plan", str(path), "--bootstrap", "127.0.0.1:1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1 and says in result.stderr and result.stderr.count("\n") == 1
