"""Partitions over gRPC at a running controller and a broker, and the commands for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    IsrMember,
    PartitionAlteration,
    ReplicaAssignment,
)
from tests.controller_calls import alter_partition, assign_replicas
from tests.topics import create_topics, partitions_of
from tests.unit.server.nodes import Site, new_site, running_broker, running_controller, without_data


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


async def settled(client: AdminClient) -> int:
    """The broker's epoch once it is unfenced."""
    async with asyncio.timeout(240):
        while True:
            found = (await client.list_brokers()).brokers
            if found and not found[0].fenced:
                return found[0].epoch
            await asyncio.sleep(0.02)


async def command(site: Site, *arguments: str) -> Result:
    line = [*arguments[:2], *site.bootstrap(arguments[0]), *arguments[2:]]
    return await asyncio.to_thread(CliRunner().invoke, main, line, standalone_mode=False)


async def test_the_round_trip_of_every_request_and_the_commands(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_data(monkeypatch)
    async with (
        running_controller(site.controller_file()),
        running_broker(site.broker_file()),
        AdminClient([("127.0.0.1", site.controller_port)]) as client,
    ):
        epoch = await settled(client)
        created = (await create_topics(client, [NewTopic(name="t", partitions=1)]))[0]
        topic = created.topic_id
        assert topic is not None
        grown = await command(site, "partitions", "add", "t", "--count", "3")
        assert grown.output == "t: has 3 partitions\n"
        unknown = await command(site, "partitions", "add", "u", "--count", "2", "--json")
        assert json.loads(unknown.output)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
        none = await command(site, "partitions", "elect", "--election", "preferred", "--all")
        assert none.output == "nothing to do: no partition needs this election\n"
        await altered(client, epoch, topic)
        await assigned(client, epoch, topic)
        await commands(site)


async def altered(client: AdminClient, epoch: int, topic: bytes) -> None:
    wanted = PartitionAlteration(
        topic_id=topic,
        partition=0,
        leader_epoch=0,
        partition_epoch=0,
        isr=(IsrMember(broker_id=101, broker_epoch=epoch),),
    )
    request = AlterPartitionRequest(broker_id=101, broker_epoch=epoch, partitions=(wanted,))
    answer = (await alter_partition(client, request)).results[0]
    assert (answer.error, answer.leader, answer.isr, answer.partition_epoch) == (
        ErrorCode.NONE,
        101,
        (101,),
        0,
    )
    stale = AlterPartitionRequest(broker_id=101, broker_epoch=epoch - 1, partitions=(wanted,))
    with pytest.raises(ApiError) as refused:
        await alter_partition(client, stale)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


async def assigned(client: AdminClient, epoch: int, topic: bytes) -> None:
    broker = (await client.list_brokers()).brokers[0]
    place = ReplicaAssignment(directory_id=broker.directories[0], topic_id=topic, partition=1)
    gone = ReplicaAssignment(directory_id=b"gone" * 4, topic_id=topic, partition=2)
    request = AssignReplicasToDirsRequest(broker_id=101, broker_epoch=epoch, assignments=(place, gone))
    answer = await assign_replicas(client, request)
    assert [each.error for each in answer.results] == [ErrorCode.NONE, ErrorCode.NONE]
    found = await partitions_of(client, "t")
    assert [each.leader for each in found] == [101, 101, -1]


async def commands(site: Site) -> None:
    described = await command(site, "topics", "describe", "t")
    assert described.output.splitlines()[3].endswith("Isr: 101\tOffline: 101")
    assert "Offline" not in described.output.splitlines()[1]
    added = await command(site, "partitions", "add", "t", "--count", "4")
    assert (added.return_value, added.output) == (0, "t: has 4 partitions\n")
    fewer = await command(site, "partitions", "add", "t", "--count", "2", "--json")
    assert (fewer.return_value, json.loads(fewer.output)["error"]) == (1, "INVALID_PARTITIONS")
    one = await command(
        site, "partitions", "elect", "--election", "preferred", "--topic", "t", "--partition", "0"
    )
    assert (one.return_value, "as preferred: no election is needed" in one.output) == (0, True)
    everywhere = await command(site, "partitions", "elect", "--election", "unclean", "--all", "--json")
    assert everywhere.return_value == 1
    assert [(each["partition"], each["error"]) for each in json.loads(everywhere.output)] == [
        (2, "ELIGIBLE_LEADERS_NOT_AVAILABLE")
    ]
    await configured(site)
    vague = await command(site, "partitions", "elect", "--election", "preferred")
    assert "either --all, or --topic" in str(vague.exception)


async def configured(site: Site) -> None:
    """Topics that are given configurations at their creation."""
    made = ("topics", "create", "c", "--config", "retention.ms=5", "--config", "flush.ms=1")
    dry = await command(site, *made, "--validate-only")
    note = "metaquorum: c: note: flush.ms=1: this is stored but has no effect yet\n"
    assert (dry.return_value, dry.output) == (
        0,
        "c: can be created, with flush.ms=1, retention.ms=5\n" + note,
    )
    dry = await command(site, *made, "--validate-only", "--json")
    assert json.loads(dry.output)["topicId"] is None
    created = await command(site, *made, "--json")
    assert json.loads(created.output)["topicId"] is not None
    assert json.loads(created.output)["configs"] == {"flush.ms": "1", "retention.ms": "5"}
    shown = await command(site, "topics", "describe", "c")
    assert "Configs: flush.ms=1,retention.ms=5" in shown.output
    wrong = await command(site, "topics", "create", "d", "--config", "retention.ms=soon")
    assert wrong.return_value == 1 and "INVALID_CONFIG" in wrong.output
    twice = await command(site, "topics", "create", "d", "--config", "flush.ms=1", "--config", "flush.ms=2")
    assert "--config flush.ms is given twice" in str(twice.exception)
