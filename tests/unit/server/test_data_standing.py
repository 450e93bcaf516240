"""Brokers that hold data, seen from outside while they lose a directory or every controller: real processes'
insides on this loop, with records on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from metaquorum.cli.main import main
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import UNASSIGNED
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.proto import data_pb2 as pb
from metaquorum.proto.data_pb2_grpc import DataStub
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.rpc.channels import open_channel
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.server.nodes import (
    Site,
    formatted,
    free_port,
    listeners,
    new_site,
    running_broker,
    running_controller,
)
from tests.unit.server.test_bad_data import LIMIT, TOPIC, Fixture, batch, refusal, serving, wanted
from tests.unit.server.test_partitions import command
from tests.unit.server.test_servers import NOT_SERVING, SERVING, health_is

Directory = dict[str, Any]


async def directories(at: Fixture, *more: str) -> tuple[list[Directory], str]:
    """What `log-dirs describe` says, and what it says to the side."""
    found = await command(at.site, "log-dirs", "describe", "--replicas", "--json", *more)
    assert not found.exception
    (broker,) = json.loads(found.stdout)
    assert broker["brokerId"] == 101
    table = await command(at.site, "log-dirs", "describe", *more)
    return broker["directories"], table.stderr


async def test_log_dirs_describe_before_and_after_a_directory_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as at:
        info = (await at.client.describe_topics([TOPIC])).topics[0].partitions[0]
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
        await at.client.create_topics([NewTopic(name="other", partitions=1, replication_factor=1)])
        while UNASSIGNED in (await at.client.describe_topics(["other"])).topics[0].partitions[0].directories:
            pass
        while [each["replicas"][0]["leads"] for each in (await directories(at))[0] if each["replicas"]] != [
            True,
            True,
        ]:
            pass
        marked = await command(at.site, "log-dirs", "mark-offline", "--broker", "101", str(at.data), "--yes")
        assert not marked.exception and "is now offline" in marked.stdout
        after, warned = await directories(at)
        good, lost = after
        assert (good["online"], lost["online"]) == (True, False)
        assert "an operator took it offline" in warned and str(at.data) in warned
        assert [len(each["replicas"]) for each in after] == [1, 1], "nothing moved to the good directory"
        assert good["replicas"][0]["leads"] and not lost["replicas"][0]["leads"]
        assert {each["replicas"][0]["topic"] for each in after} == {TOPIC, "other"}
        gone = lost["replicas"][0]["topic"]
        while (await at.client.describe_topics([gone])).topics[0].partitions[0].leader != -1:
            pass
        described = await command(at.site, "topics", "describe", gone)
        assert "101" in described.stdout and "ffline" in described.stdout


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
        entries = {each["name"]: each for each in described["configs"]}
        limit = entries["max.message.bytes"]
        assert (limit["value"], limit["source"]) == (str(LIMIT), "STATIC_BROKER_CONFIG")
        assert limit["synonyms"][0]["name"] == "message.max.bytes"
        assert entries["retention.ms"]["value"] == str(48 * 3_600_000)
        assert entries["segment.bytes"]["source"] == "DEFAULT_CONFIG"
        refused = (await at.send(batch(b"x" * LIMIT))).results[0].error
        refusal(refused, ErrorCode.MESSAGE_TOO_LARGE, str(LIMIT))
        # The cluster's default comes before the file, from the moment it is in the log.
        altered = await command(
            at.site, "configs", "alter", "broker", "default", "--set", f"message.max.bytes={2 * LIMIT}"
        )
        assert not altered.exception
        while (await at.send(batch(b"x" * LIMIT))).results[0].error.code == ErrorCode.MESSAGE_TOO_LARGE:
            pass


def second_broker(site: Site, more: Mapping[str, str]) -> tuple[Path, int]:
    """The file of a broker 102, and its port."""
    port = free_port()
    file = site.broker_file(
        {
            "node.id": "102",
            "listeners": listeners(free_port(), port),
            "log.dirs": str(formatted(site.root / "second", 102)),
            **more,
        }
    )
    return file.rename(site.root / "second.properties"), port


async def ask(port: int, method: str, request: Any) -> Any:
    channel = open_channel("127.0.0.1", port, None)
    try:
        return await getattr(DataStub(channel), method)(request)
    finally:
        await channel.close()


def produce(*values: bytes) -> pb.ProduceRequest:
    part = pb.ProducePartition(topic=pb.TopicRef(name=TOPIC), records=batch(*values))
    return pb.ProduceRequest(acks=-1, timeout_ms=5_000, partitions=[part])


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
    second_file, second_port = second_broker(site, short)
    file, controller = site.broker_file(short), site.controller_file({"broker.session.timeout.ms": "2000"})
    ports = (site.broker_port, second_port)
    # Leaving this context tells both to stop while nobody leads the quorum: they end in order (S2.23).
    async with running_broker(file) as first, running_broker(second_file) as second:
        async with running_controller(controller), asyncio.TaskGroup() as group:
            for port in ports:
                group.create_task(health_is(port, SERVING))
            async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=20_000) as client:
                while len([each for each in (await client.list_brokers()).brokers if not each.fenced]) < 2:
                    pass
                made = await client.create_topics([NewTopic(name=TOPIC, partitions=1, replication_factor=2)])
                assert made.results[0].error is ErrorCode.NONE
                while len((await client.describe_topics([TOPIC])).topics[0].partitions[0].isr) < 2:
                    pass
                epochs = {each.broker_id: each.epoch for each in (await client.list_brokers()).brokers}
                code = None
                while code != ErrorCode.NONE:
                    leader = (await client.describe_topics([TOPIC])).topics[0].partitions[0].leader
                    answer = await ask(ports[max(0, leader - 101)], "Produce", produce(b"a"))
                    code = answer.results[0].error.code if answer.results else answer.error.code
        for port in ports:
            await health_is(port, NOT_SERVING)
        # S2.22, S2.17: clients hear so, with the code and with what to do.
        port, follower = ports[leader - 101], 203 - leader
        client_fetch = pb.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, partitions=[wanted()])
        for asked in ports:
            for method, request in (("Produce", produce(b"b")), ("Fetch", client_fetch)):
                answer = await ask(asked, method, request)
                refusal(answer.error, ErrorCode.BROKER_NOT_AVAILABLE, "is fenced: use another broker")
        # S2.20: the follower's fetches are answered all the same, and its own loop goes on.
        as_follower = pb.FetchRequest(
            replica_id=follower,
            replica_epoch=epochs[follower],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            partitions=[wanted()],
        )
        part = (await ask(port, "Fetch", as_follower)).partitions[0]
        assert part.error.code == ErrorCode.NONE
        (stored,) = [each for found in iter_batches(part.records) for each in found.records()]
        assert (stored.offset, stored.value) == (0, b"a")
        process = {101: first, 102: second}[follower]
        assert process.node.replicas is not None
        assert process.node.replicas.status().fetchers == 1
        # S2.22: a controller that is back lets them in again, with what they hold.
        async with running_controller(controller):
            for each in ports:
                await health_is(each, SERVING)
            async with asyncio.timeout(60):
                while True:
                    results = [(await ask(each, "Produce", produce(b"b"))).results for each in ports]
                    taken = [each[0].base_offset for each in results if each and not each[0].error.code]
                    if taken:
                        break
            assert taken == [1]
        for each in ports:
            await health_is(each, NOT_SERVING)
