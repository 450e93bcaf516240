"""The five requests and events that docs/walkthrough.md follows, in one process: a controller and brokers
with real sockets and real files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metaquorum.broker.server.main import BrokerProcess
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.controller.server.main import ControllerProcess
from metaquorum.wire.messages import CreateTopicsRequest
from tests.broker_calls import BrokerCalls, batch, calls_to
from tests.unit.server.nodes import (
    Site,
    formatted,
    free_port,
    listeners,
    new_site,
    running_broker,
    running_controller,
)
from tests.walk.recorder import Entry, Passed, Recorder, along, passed

REPEATS = 4
PATIENCE_S = 60
CONTROLLER = {
    "broker.session.timeout.ms": "2000",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.log.segment.ms": "100",
    "metadata.max.retention.bytes": "1",
}
BROKER = {"broker.heartbeat.interval.ms": "200"}


STEP = ("Driver.submit", "Scheduler.submit")
WRITE = (
    "encode_and_replay",
    "RaftCore.append",
    "Segment.append",
    "PosixFile.append",
    "SegmentedLog.prepare_sync",
    "NodeRunner._synced",
    "advance_high_watermark",
    "Ledger.commit",
)
CREATION = (
    "ClientConnection._begin",
    "Forwarder.handle",
    "AdminClient.ask",
    "ForwardingService.Forward",
    *STEP,
    "decide_create_topics",
    *WRITE,
    "WaitingRequests.answer",
    "_created",
    "Published.reach",
    "ClientConnection.answer",
)
CODEC = ("encode_request", "decode_request", "encode_response", "decode_response")
"""The client's own passes are the first and the last."""
HEARTBEAT = (
    "BrokerLifecycleService._heartbeat",
    *STEP,
    "decide_heartbeat",
    "WaitingRequests.answer",
    "MessageCodec.answer_to_pb",
)
PRODUCE = (
    "ClientConnection._begin",
    "DataHandlers.produce",
    *STEP,
    "Leading.produce",
    "TimedSegment.append",
    "PosixFile.append",
    "DirectorySync.run",
    "PosixFile.sync",
    "Leading.advance",
    "_produced_topic",
    "ClientConnection.answer",
)
DEATH = ("removal_slice", *WRITE, "NodeTransport.respond", "ReplicaManager.publish")
CATCH_UP = (
    "BrokerNode.start",
    "KafkaRaftClient.send",
    "read_chunk",
    "load_snapshot",
    "ReplicaManager.publish",
)
"""What each of them must reach, in order: the files that lead there are its path. A call of the disk follows
the one that makes it, because other threads use the disk, too."""


@dataclass(frozen=True, slots=True)
class Way:
    """`codec_passes`: how often a message of Kafka's protocol is encoded or decoded, from the client's
    request to the answer in its hands; None: the way has none."""

    title: str
    passed: Passed
    codec_passes: int | None = None


async def walk(root: Path) -> list[Way]:
    """All of them, in the order of docs/walkthrough.md."""
    recorder = Recorder(marks=frozenset((*CREATION, *HEARTBEAT, *PRODUCE, *DEATH, *CATCH_UP)))
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
                await creations(recorder, site),
                Way("A heartbeat", await heartbeats(recorder)),
                Way("A produce", await produces(recorder, site)),
            ]
            await trimmed(controller, site)
            formatted(root / "second", 102)
            listener = listeners(free_port(), free_port())
            second = {"node.id": "102", "log.dirs": str(root / "second"), "listeners": listener, **BROKER}
            recorder.start()
            async with running_broker(site.broker_file(second)):
                await unfenced(client, 102)
                caught_up = along(recorder.stop(), CATCH_UP)
                ways.append(Way("A broker's death", await death(recorder, client, broker)))
                ways.append(Way("A catch-up by snapshot", passed([caught_up], CATCH_UP)))
            with contextlib.suppress(AssertionError):
                await doomed.__aexit__(None, None, None)
    finally:
        recorder.remove()
    return ways


async def unfenced(client: AdminClient, broker_id: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        listing = await client.list_brokers()
        while all(each.fenced for each in listing.brokers if each.broker_id == broker_id):
            await asyncio.sleep(0.05)
            listing = await client.list_brokers()


async def create(calls: BrokerCalls, name: str, partitions: int = 1) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await calls.ask(CreateTopicsRequest(topics=(topic,), timeout_ms=60_000))
    assert not answer.topics[0].error_code, answer


async def trimmed(controller: ControllerProcess, site: Site) -> None:
    """A new broker cannot read the log from its beginning."""
    async with asyncio.timeout(PATIENCE_S), calls_to(site.kafka_port) as calls:
        number = 0
        while controller.node.raft.log_start_offset == 0:
            number += 1
            await create(calls, f"more-{number}", 20)
            await asyncio.sleep(0.2)


async def creations(recorder: Recorder, site: Site) -> Way:
    """From a user's client to a broker, from there to the controller, and back."""
    runs, codec_passes = [], []
    async with calls_to(site.kafka_port) as calls:
        await create(calls, "before")  # the first request of a connection opens one to the controller
        for number in range(REPEATS):
            recorder.start()
            await create(calls, f"walk-{number}")
            entries = recorder.stop()
            codec_passes.append(
                sum(entry.function in CODEC and entry.file == "wire/codec.py" for entry in entries)
            )
            runs.append(along(entries, CREATION))
    return Way("A topic is created", passed(runs, CREATION), min(codec_passes))


async def heartbeats(recorder: Recorder) -> Passed:
    """What the controller does with a heartbeat that requests nothing."""

    def whole(entries: list[Entry]) -> list[Entry]:
        # A coroutine that continues is entered again: the entry point is the last one before the request is
        # queued.
        queued = next((at for at, entry in enumerate(entries) if entry.function == STEP[0]), len(entries))
        doors = [at for at, entry in enumerate(entries[:queued]) if entry.function == HEARTBEAT[0]]
        return along(entries[doors[-1] if doors else 0 :], HEARTBEAT)

    return passed([await until(recorder, whole) for _ in range(REPEATS)], HEARTBEAT)


async def produces(recorder: Recorder, site: Site) -> Passed:
    runs = []
    async with calls_to(site.kafka_port) as calls:
        while (await calls.produce("walk-0", batch([b"until it leads"]))).error_code:
            pass
        for _ in range(REPEATS):
            recorder.start()
            assert not (await calls.produce("walk-0", batch([b"a message"]))).error_code
            runs.append(along(recorder.stop(), PRODUCE))
    return passed(runs, PRODUCE)


async def death(recorder: Recorder, client: AdminClient, broker: BrokerProcess) -> Passed:
    """From the end of its session until another broker has applied the resulting changes."""
    broker.node.farewell = lambda **_: None  # killed: no last word
    recorder.start()
    broker.driver.end("killed", failed=True)
    whole = await until(recorder, lambda entries: along(entries, DEATH))
    return passed([whole], DEATH)


async def until(recorder: Recorder, whole: Callable[[list[Entry]], list[Entry]]) -> list[Entry]:
    """Records until `whole` finds what it looks for."""
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
