"""Brokers that hold data, seen from outside while they lose a directory or every controller: real processes'
insides on this loop, with records on disk."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.controller.server.main import SEARCHES_BEFORE_SILENCE, Standing
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import UNASSIGNED
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.messages import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchRequest,
)
from tests.broker_calls import BrokerCalls, batch, calls_to, records
from tests.topics import create_topics, partitions_of
from tests.unit.server.nodes import (
    Site,
    formatted,
    free_port,
    listeners,
    new_site,
    running_broker,
    running_controller,
)
from tests.unit.server.test_bad_data import LIMIT, TOPIC, Fixture, refusal, serving
from tests.unit.server.test_partitions import command
from tests.unit.server.test_servers import NOT_SERVING, SERVING, health_is

Directory = dict[str, Any]


async def directories(at: Fixture) -> tuple[list[Directory], str]:
    """What `log-dirs describe` says, and what it says to the side."""
    here = ("log-dirs", "describe", "--bootstrap", f"127.0.0.1:{at.site.kafka_port}")
    found = await run(*here, "--replicas", "--json")
    assert not found.exception
    (broker,) = json.loads(found.stdout)
    assert broker["brokerId"] == 101
    return broker["directories"], (await run(*here)).stderr


async def run(*arguments: str, given: str = "") -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, given)


async def test_log_dirs_describe_before_and_after_a_directory_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        info = (await partitions_of(at.client, TOPIC))[0]
        before, warned = await directories(at)
        assert [(each["path"], each["online"]) for each in before] == [
            (str(at.site.root / "broker"), True),
            (str(at.data), True),
        ]
        assert warned == ""
        (holder,) = [each for each in before if each["replicas"]]
        assert holder["directoryId"] == uuid_to_text(info.directories[0])
        (replica,) = holder["replicas"]
        assert (replica["topic"], replica["partition"], replica["leads"]) == (TOPIC, 0, True)
        assert (replica["endOffset"], replica["highWatermark"], replica["sizeBytes"] > 0) == (3, 3, True)

        # A second partition lies in the other directory: one of the two is the one that is lost.
        await create_topics(at.client, [NewTopic(name="other", partitions=1, replication_factor=1)])
        while UNASSIGNED in (await partitions_of(at.client, "other"))[0].directories:
            pass
        while [each["replicas"][0]["leads"] for each in (await directories(at))[0] if each["replicas"]] != [
            True,
            True,
        ]:
            pass
        await give_up(at)
        after, warned = await directories(at)
        good, lost = after
        assert (good["online"], lost["online"]) == (True, False)
        assert "an operator took it offline" in warned and str(at.data) in warned
        assert [len(each["replicas"]) for each in after] == [1, 1], "nothing moved to the good directory"
        assert good["replicas"][0]["leads"] and not lost["replicas"][0]["leads"]
        assert {each["replicas"][0]["topic"] for each in after} == {TOPIC, "other"}
        gone = lost["replicas"][0]["topic"]
        while (await partitions_of(at.client, gone))[0].leader != -1:
            pass
        described = await command(at.site, "topics", "describe", gone)
        assert "101" in described.stdout and "ffline" in described.stdout


async def give_up(at: Fixture) -> None:
    """A directory is given up only when that is meant: by its path, and then by its id."""
    mark = ("log-dirs", "mark-offline", "--broker", "101", "-b", f"127.0.0.1:{at.site.controller_port}")
    for given in ("n\n", ""):
        asked = await run(*mark, str(at.data), given=given)
        assert asked.exit_code == 1 and f"Take {at.data} of broker 101 offline?" in asked.stderr
        assert asked.stderr.endswith("metaquorum: nothing was changed; use --yes to skip the question\n")
    assert all(each["online"] for each in (await directories(at))[0])
    marked = await run(*mark, str(at.data), given="y\n")
    assert marked.stdout == f"broker 101: {at.data} is now offline\n"
    (_, lost), _ = await directories(at)
    again = await run(*mark, lost["directoryId"], "--yes", "--json")
    told = {"brokerId": 101, "directoryId": lost["directoryId"], "wasOffline": True}
    assert json.loads(again.stdout) == told
    for wrong, text in (
        (("no-id",), "'no-id' is neither a directory id nor a path with a slash"),
        (("/d", "--yes", "--broker", "7"), "broker 7 has no gRPC listener, or is not registered"),
    ):
        refused = await run(*mark, *wrong)
        assert refused.exit_code == 1 and text in refused.stderr and refused.stderr.count("\n") == 1


async def test_what_a_brokers_file_says_is_shown_with_its_source_and_carried_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        found = await asyncio.to_thread(
            CliRunner().invoke,
            main,
            [
                *("configs", "describe", *at.site.bootstrap("configs")),
                *("topic", TOPIC, "--all", "--json"),
            ],
            standalone_mode=False,
        )
        assert not found.exception
        described = json.loads(found.stdout)
        large = batch([b"x" * LIMIT])
        entries = {each["name"]: each for each in described["configs"]}
        limit = entries["max.message.bytes"]
        assert (limit["value"], limit["source"]) == (str(LIMIT), "STATIC_BROKER_CONFIG")
        assert limit["synonyms"][0]["name"] == "message.max.bytes"
        assert entries["retention.ms"]["value"] == str(48 * 3_600_000)
        assert entries["segment.bytes"]["source"] == "DEFAULT_CONFIG"
        refusal(await at.calls.produce(TOPIC, large), ErrorCode.MESSAGE_TOO_LARGE, str(LIMIT))
        # The cluster's default comes before the file, from the moment it is in the log.
        altered = await command(
            at.site, "configs", "alter", "broker", "default", "--set", f"message.max.bytes={2 * LIMIT}"
        )
        assert not altered.exception
        while (await at.calls.produce(TOPIC, large)).error_code == ErrorCode.MESSAGE_TOO_LARGE:
            pass


def second_broker(site: Site, more: Mapping[str, str]) -> tuple[Path, int, int]:
    """The file of a broker 102, and its ports of Kafka's protocol and of gRPC."""
    kafka_port, port = free_port(), free_port()
    file = site.broker_file(
        {
            "node.id": "102",
            "listeners": listeners(kafka_port, port),
            "log.dirs": str(formatted(site.root / "second", 102)),
            **more,
        }
    )
    return file.rename(site.root / "second.properties"), kafka_port, port


async def produce(port: int, value: bytes) -> Any:
    async with calls_to(port) as calls:
        return await calls.produce(TOPIC, batch([value]))


async def describes_itself(calls: BrokerCalls) -> None:
    """Operators are answered by a fenced broker, too."""
    topic = DescribeProducersRequest.TopicRequest(name=TOPIC, partition_indexes=(0,))
    described: DescribeProducersResponse = await calls.ask(DescribeProducersRequest(topics=(topic,)))
    assert described.topics[0].partitions[0].error_code == ErrorCode.NONE
    dirs: DescribeLogDirsResponse = await calls.ask(DescribeLogDirsRequest(topics=None))
    assert dirs.error_code == ErrorCode.NONE
    assert [topic.name for each in dirs.results for topic in each.topics] == [TOPIC]


async def test_s2_20_to_s2_23_brokers_without_a_controller(tmp_path: Path) -> None:
    """Fenced: no client is answered, followers are, records stay; with a controller they serve again, and
    without one they end when they are told to, without waiting for anybody."""
    site = new_site(tmp_path)
    short = {
        "broker.heartbeat.interval.ms": "100",
        "controller.request.timeout.ms": "200",
        "registration.lease.timeout.ms": "1000",
        "controlled.shutdown.timeout.ms": "600000",
    }
    second_file, second_kafka_port, second_port = second_broker(site, short)
    file, controller = site.broker_file(short), site.controller_file({"broker.session.timeout.ms": "2000"})
    ports, kafka_ports = (site.broker_port, second_port), (site.kafka_port, second_kafka_port)
    # Leaving this context tells both to stop while nobody leads the quorum: they end in order (S2.23).
    async with running_broker(file) as first, running_broker(second_file) as second:
        async with running_controller(controller), asyncio.TaskGroup() as group:
            for port in ports:
                group.create_task(health_is(port, SERVING))
            async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client:
                while len([each for each in (await client.list_brokers()).brokers if not each.fenced]) < 2:
                    pass
                made = await create_topics(client, [NewTopic(name=TOPIC, partitions=1, replication_factor=2)])
                assert made[0].error is ErrorCode.NONE
                while len((await partitions_of(client, TOPIC))[0].isr) < 2:
                    pass
                epochs = {each.broker_id: each.epoch for each in (await client.list_brokers()).brokers}
                code = None
                while code != ErrorCode.NONE:
                    info = (await partitions_of(client, TOPIC))[0]
                    leader = info.leader
                    code = (await produce(kafka_ports[max(0, leader - 101)], b"a")).error_code
        for port in ports:
            await health_is(port, NOT_SERVING)
        # S2.22, S2.17: clients hear so, with the code and with what to do.
        follower = 203 - leader
        for each in kafka_ports:
            refused = await produce(each, b"b")
            refusal(refused, ErrorCode.NOT_LEADER_OR_FOLLOWER, "is fenced: use another broker")
            async with calls_to(each) as calls:
                refusal(await calls.fetch_one(TOPIC), ErrorCode.NOT_LEADER_OR_FOLLOWER)
                await describes_itself(calls)
        # S2.20: the follower's fetches are answered all the same, and its own loop goes on.
        state = FetchRequest.ReplicaState(replica_id=follower, replica_epoch=epochs[follower])
        async with calls_to(kafka_ports[leader - 101]) as calls:
            part = await calls.fetch_one(info.topic_id, replica_state=state)
        assert part.error_code == ErrorCode.NONE
        assert records(part.records) == [(0, b"a")]
        process = {101: first, 102: second}[follower]
        assert process.node.replicas is not None
        assert process.node.replicas.status().fetchers == 1
        # S2.22: a controller that is back lets them in again, with what they hold.
        async with running_controller(controller):
            for each in ports:
                await health_is(each, SERVING)
            async with asyncio.timeout(60):
                taken: list[int] = []
                while not taken:
                    results = [await produce(each, b"b") for each in kafka_ports]
                    taken = [each.base_offset for each in results if not each.error_code]
            assert taken == [1]
        for each in ports:
            await health_is(each, NOT_SERVING)


# What a controller process says of its part in the quorum.


def search(standing: Standing, times: int, epoch: int = 4) -> None:
    """A voter that nobody answers: its pre-votes time out, and it is back with the leader that it knew."""
    for _ in range(times):
        standing.moved("prospective", epoch, None, active=False)
        standing.moved("follower", epoch, 2, active=False)


def test_a_follower_takes_part_once_its_leader_answered_and_until_it_falls_silent() -> None:
    standing = Standing(lambda: (2, 3))
    standing.moved("follower", 4, 2, active=False)
    assert not standing.takes_part(high_watermark=7)
    standing.fetched(4)
    assert standing.takes_part(high_watermark=7)
    assert not standing.takes_part(high_watermark=-1)
    search(standing, 1)
    assert not standing.takes_part(high_watermark=7), "it follows a leader that no longer answers"
    standing.fetched(4)
    assert standing.takes_part(high_watermark=7)
    standing.moved("follower", 5, 3, active=False)
    assert not standing.takes_part(high_watermark=7), "the leader of the new epoch has not answered yet"


def test_a_leader_takes_part_while_it_is_active() -> None:
    standing = Standing(lambda: (2, 3))
    standing.moved("leader", 4, 1, active=False)
    assert not standing.takes_part(high_watermark=7)
    standing.moved("leader", 4, 1, active=True)
    assert standing.takes_part(high_watermark=7)
    standing.moved("resigned", 4, None, active=False)
    assert not standing.takes_part(high_watermark=7)


def test_a_search_without_an_end_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    with caplog.at_level(logging.INFO):
        search(standing, 50)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "check that controllers 2, 3 run" in warnings[0]
    assert len(caplog.records) == 1 + 2 * (SEARCHES_BEFORE_SILENCE - 1)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        standing.fetched(4)
        standing.moved("follower", 4, 2, active=False)
        standing.moved("follower", 4, 2, active=False)
        standing.moved("candidate", 5, None, active=False)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["epoch 4: follower, node 2 leads", "epoch 5: candidate, no leader is known"]


def test_a_new_epoch_is_told_in_the_middle_of_a_search(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    search(standing, 10)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        standing.moved("follower", 5, 3, active=False)
    assert [record.getMessage() for record in caplog.records] == ["epoch 5: follower, node 3 leads"]


def test_the_answer_of_another_epochs_leader_is_not_enough() -> None:
    for epoch, enough in ((3, False), (4, True), (5, False)):
        standing = Standing(lambda: (2, 3))
        assert not standing.takes_part(high_watermark=0), "its role is not known yet"
        standing.moved("follower", 4, 2, active=False)
        standing.fetched(epoch)
        assert standing.fetched_in_epoch == epoch
        assert standing.takes_part(high_watermark=0) is enough


def test_one_line_has_the_facts_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing(lambda: (2, 3))
    with caplog.at_level(logging.INFO):
        standing.moved("leader", 4, 1, active=True)
        standing.moved("unattached", 5, None, active=False)
    names = ("epoch", "leader_id", "quorum_role", "active", "source")
    assert [tuple(getattr(each, name) for name in names) for each in caplog.records] == [
        (4, 1, "leader", True, "live"),
        (5, -1, "unattached", False, "live"),
    ]
    assert caplog.messages == [
        "epoch 4: leader (active), node 1 leads",
        "epoch 5: unattached, no leader is known",
    ]
