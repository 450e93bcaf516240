"""Brokers asked about themselves, with real gRPC: one that serves, one without a quorum, and nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.server.nodes import (
    CLUSTER_ID,
    Site,
    new_site,
    running_broker,
    running_controller,
    silent_port,
)
from tests.unit.server.test_servers import SERVING, health_is


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


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
