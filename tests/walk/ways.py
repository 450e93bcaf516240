"""The five ways, walked in one process: a controller and brokers with real gRPC and real files.

Owns what is done and between which calls it is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metaquorum.broker.server.main import BrokerProcess
from metaquorum.controller.server.main import ControllerProcess
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.runtime.client.admin import AdminClient
from metaquorum.runtime.data_client.connections import GrpcConnections
from metaquorum.runtime.data_client.producer import Producer
from tests.unit.server.nodes import (
    Site,
    formatted,
    free_port,
    new_site,
    running_broker,
    running_controller,
)
from tests.walk.recorder import Entry, Recorder, Step, between, steps

REPEATS = 4
PATIENCE_S = 60
CONTROLLER = {
    "broker.session.timeout.ms": "2000",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.ms": "100",
    "metadata.max.retention.bytes": "1",
}
BROKER = {"broker.heartbeat.interval.ms": "200"}


@dataclass(frozen=True, slots=True)
class Way:
    title: str
    steps: list[Step]


async def walk(root: Path) -> list[Way]:
    """Every way, in the order of docs/walkthrough.md."""
    recorder = Recorder()
    recorder.install()
    try:
        site = new_site(root)
        async with (
            running_controller(site.controller_file(CONTROLLER)) as controller,
            AdminClient([("127.0.0.1", site.controller_port)]) as client,
        ):
            doomed = running_broker(site.broker_file(BROKER))
            broker = await doomed.__aenter__()
            await unfenced(client, 101)
            ways = [
                Way("A topic is created", await creations(recorder, client)),
                Way("A heartbeat", await heartbeats(recorder)),
                Way("A produce", await produces(recorder, site)),
            ]
            await trimmed(controller, client)
            formatted(root / "second", 102)
            listener = f"PLAINTEXT://127.0.0.1:{free_port()}"
            second = {"node.id": "102", "log.dirs": str(root / "second"), "listeners": listener, **BROKER}
            recorder.start()
            async with running_broker(site.broker_file(second)):
                await unfenced(client, 102)
                caught_up = between(recorder.stop(), "BrokerNode.start", "ReplicaManager.publish")
                ways.append(Way("A broker's death", await death(recorder, client, broker)))
                ways.append(Way("A catch-up by snapshot", steps([caught_up])))
            with contextlib.suppress(AssertionError):
                await doomed.__aexit__(None, None, None)
    finally:
        recorder.remove()
    return ways


async def unfenced(client: AdminClient, broker_id: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        listing = await client.list_brokers([broker_id])
        while all(each.fenced for each in listing.brokers):
            await asyncio.sleep(0.05)
            listing = await client.list_brokers([broker_id])


async def trimmed(controller: ControllerProcess, client: AdminClient) -> None:
    """A new broker cannot read the log from its beginning."""
    async with asyncio.timeout(PATIENCE_S):
        number = 0
        while controller.node.raft.log_start_offset == 0:
            number += 1
            await client.create_topics([NewTopic(name=f"more-{number}", partitions=20)])
            await asyncio.sleep(0.2)


async def creations(recorder: Recorder, client: AdminClient) -> list[Step]:
    runs = []
    for number in range(REPEATS):
        recorder.start()
        await client.create_topics([NewTopic(name=f"walk-{number}", partitions=1, replication_factor=1)])
        runs.append(between(recorder.stop(), ".CreateTopics", ".answer_to_pb"))
    return steps(runs)


async def heartbeats(recorder: Recorder) -> list[Step]:
    """What the controller does with a heartbeat of a broker that wants nothing."""

    def whole(entries: list[Entry]) -> list[Entry]:
        door = "LifecycleService._heartbeat"
        for first, entry in enumerate(entries):
            if entry.function.endswith(door):
                found = between(entries[first:], door, ".answer_to_pb")
                if any(one.function == "Driver.submit" for one in found):
                    return found  # and not only its end: a coroutine that goes on is entered again
        raise ValueError(f"{door} was not called")

    return steps([await until(recorder, whole) for _ in range(REPEATS)])


async def produces(recorder: Recorder, site: Site) -> list[Step]:
    connections, runs = GrpcConnections(), []
    async with Producer(connections, [("127.0.0.1", site.broker_port)]) as producer:
        await (await producer.send("walk-0", b"the first one asks for metadata"))
        for _ in range(REPEATS):
            recorder.start()
            await (await producer.send("walk-0", b"a message"))
            runs.append(between(recorder.stop(), "DataService._begin_produce", "results_to_pb"))
    await connections.close()
    return steps(runs)


async def death(recorder: Recorder, client: AdminClient, broker: BrokerProcess) -> list[Step]:
    """From the end of its session until another broker has applied what came of it."""
    broker.node.farewell = lambda: None  # type: ignore[method-assign] -- killed: no last word
    recorder.start()
    broker.driver.end("killed", failed=True)
    return steps(
        [await until(recorder, lambda entries: between(entries, ".removal", "ReplicaManager.publish"))]
    )


async def until(recorder: Recorder, whole: Callable[[list[Entry]], list[Entry]]) -> list[Entry]:
    """Records until `whole` finds its way."""
    async with asyncio.timeout(PATIENCE_S):
        recorder.start()
        while True:
            await asyncio.sleep(0.1)
            try:
                found = whole(list(recorder.entries))
            except ValueError:
                continue
            recorder.stop()
            return found
