"""Controllers asked about themselves, with real gRPC: the active one, one without a quorum, and nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.quorum.nodes import describe_nodes
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.raft.events import ShutdownRequested
from metaquorum.storage.uuids import uuid_to_text
from tests.topics import create_topics
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    free_port,
    new_site,
    running_broker,
    running_controller,
    silent_port,
)
from tests.unit.server.test_servers import SERVING, health_is


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def ask(*arguments: str) -> Result:
    """The command in a thread: its own loop, while the controller has this one."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["controller", "status", *arguments])


async def test_the_active_controller_and_a_silent_address(site: Site) -> None:
    own = f"127.0.0.1:{site.controller_port}"
    async with running_controller(site.controller_file()) as controller, running_broker(site.broker_file()):
        await health_is(site.broker_port, SERVING)
        async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client:
            await create_topics(client, [NewTopic(name="orders", partitions=3, replication_factor=1)])
        with silent_port() as port:
            silent = f"127.0.0.1:{port}"
            result = await ask("--json", "--bootstrap-controllers", f"{own},{silent}")
        raft = controller.node.raft
        refused = controller.driver.statistics.refused
        text = await ask("--bootstrap-controllers", own)
    assert result.exit_code == 1
    found, nobody = json.loads(result.stdout)
    assert (nobody["address"], nobody.keys()) == (silent, {"address", "error"})
    assert "not reachable" in nobody["error"]
    assert (found["address"], found["nodeId"], found["clusterId"]) == (own, 1, CLUSTER_ID)
    assert (found["role"], found["active"], found["epoch"]) == ("leader", True, raft.epoch)
    assert found["brokersByState"] == {"active": 1} and found["sessions"] == 1
    assert found["brokers"][0]["brokerId"] == 101 and found["brokers"][0]["leaseRemainingMs"] > 0
    assert 0 < found["highWatermark"] <= found["syncedOffset"] <= found["logEndOffset"] <= raft.log_end_offset
    metrics = found["metrics"]
    assert metrics["current-state"] == "leader"
    assert metrics["current-leader"] == metrics["current-vote"] == metrics["ActiveControllerCount"] == 1
    assert metrics["LastCommittedRecordOffset"] == found["committedOffset"] - 1
    assert (metrics["GlobalTopicCount"], metrics["GlobalPartitionCount"]) == (1, 3)
    assert (metrics["ActiveBrokerCount"], metrics["FencedBrokerCount"]) == (1, 0)
    assert found["counters"]["heartbeats"] > 0 and found["counters"]["activations"] == 1
    assert found["loop"]["events"] > 0 and found["loop"]["syncs"] > 0 and found["loop"]["refused"] == refused
    assert text.exit_code == 0
    assert text.stdout.startswith(f"Node:             1 at {own}, cluster {CLUSTER_ID}\n")
    assert "\nRole:             leader, active, epoch 1\n" in text.stdout
    assert "\nBrokers:          1 active; 1 sessions\n" in text.stdout


async def test_a_controller_without_a_quorum_answers_and_names_no_leader(site: Site) -> None:
    voters = f"1@127.0.0.1:{site.controller_port},2@127.0.0.1:{free_port()},3@127.0.0.1:{free_port()}"
    async with running_controller(site.controller_file({"controller.quorum.voters": voters})) as controller:
        # An inbox that takes nothing more: the answer does not go through it.
        scheduler = controller.driver._scheduler
        scheduler.config = replace(scheduler.config, inbox_max_events=0)
        assert not controller.driver.submit(ShutdownRequested())
        (answer,) = await describe_nodes([("127.0.0.1", site.controller_port)], timeout_ms=20_000)
        result = await ask("--bootstrap-controllers", f"127.0.0.1:{site.controller_port}")
    assert answer.report is not None
    status = answer.report.status
    assert (status.node_id, status.leader_id, status.is_active) == (1, None, False)
    assert status.role in ("unattached", "prospective") and status.high_watermark == -1
    assert result.exit_code == 0
    assert "\nLeader:           unknown\n" in result.stdout
    assert "\nHighWatermark:    unknown\n" in result.stdout


async def test_a_broker_is_told_apart_from_a_controller(site: Site) -> None:
    async with running_controller(site.controller_file()), running_broker(site.broker_file()):
        result = await ask("--bootstrap-controllers", f"127.0.0.1:{site.broker_port}")
    assert result.exit_code == 1
    assert (
        result.stdout
        == f"127.0.0.1:{site.broker_port}: it does not serve this request; give a controller's address\n"
    )


# Brokers asked about themselves, with real gRPC: one that serves, one without a quorum, and nobody.


async def run(*arguments: str) -> Result:
    """The command in a thread: its own loop, while the servers have this one."""
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def test_a_broker_that_serves_and_one_that_is_not_there(site: Site) -> None:
    controller, own = f"127.0.0.1:{site.controller_port}", f"127.0.0.1:{site.broker_port}"
    async with running_controller(site.controller_file()), running_broker(site.broker_file()) as broker:
        await health_is(site.broker_port, SERVING)
        text = await run("broker", "status", "--bootstrap-controllers", controller)
        with silent_port() as port:
            both = await run("broker", "status", own, f"127.0.0.1:{port}", "--json")
        wrong = await run("broker", "status", controller)
        refused = await run("brokers", "unregister", "101", *site.bootstrap("brokers"))
        forced = await run("brokers", "unregister", "101", "--force", *site.bootstrap("brokers"))
        await health_is(site.broker_port, SERVING)  # it registers again by itself
    assert text.exit_code == 0
    assert text.stdout.startswith(f"Broker:    101 at {own}, cluster {CLUSTER_ID}\n")
    assert "\nState:     RUNNING (Kafka: RUNNING 3): registered, unfenced" in text.stdout
    assert "Waits for" not in text.stdout
    found, nobody = json.loads(both.stdout)
    assert both.exit_code == 1 and nobody.keys() == {"address", "error"}
    assert (found["brokerId"], found["state"], found["fenced"]) == (101, "RUNNING", False)
    assert found["incarnationId"] == uuid_to_text(broker.node.status(now_ms=0).incarnation_id)
    assert 0 <= found["brokerEpoch"] < found["appliedOffset"] <= found["logEndOffset"]
    assert found["leaderId"] == 1 and 0 < found["leaseLeftMs"] <= 9_000
    assert found["metrics"] == {
        "BrokerState": 3,
        "last-applied-record-offset": found["appliedOffset"] - 1,
    }
    assert wrong.exit_code == 1
    assert wrong.stdout == f"{controller}: it does not serve this request; give a broker's address\n"
    assert refused.exit_code == 1 and "broker 101 is running" in refused.output
    assert forced.exit_code == 0 and forced.output == "broker 101 is unregistered\n"


async def test_a_broker_without_a_quorum_says_what_it_waits_for(site: Site) -> None:
    async with running_broker(site.broker_file()):
        result = await run("broker", "status", f"127.0.0.1:{site.broker_port}")
    assert result.exit_code == 0
    assert "\nState:     STARTING (Kafka: STARTING 1): not registered" in result.stdout
    assert "\nEpoch:     not registered\nLease:     none\n" in result.stdout
    assert "the high watermark is unknown\nQuorum:    leader unknown, epoch 0\n" in result.stdout
    assert "\nWaits for: no active controller has answered" in result.stdout
