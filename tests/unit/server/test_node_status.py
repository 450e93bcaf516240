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
