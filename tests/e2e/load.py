"""Writers that create and delete topics while faults hit a cluster, and the account of the responses they
got.

Every call is a single attempt, so that each topic is known to be acknowledged or in doubt: after a missing
response, or a refusal by a controller that lost its leadership, it is unknown whether the change was made.
"""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from metaquorum.clients.admin.topics import list_topics
from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.batches import decode_batch
from metaquorum.metadata.records.types import RemoveTopicRecord, TopicRecord
from metaquorum.metadata.requests.common import NewTopic
from tests.e2e.cluster import Cluster, Node, client_loop, log_bytes, read_batches
from tests.topics import committed_image, create_topics, delete_topics

ATTEMPT_MS = 1_500
BACKOFF_S = 0.02
PAUSE_S = 0.02
"""Pause of a writer after each call. Without one, writers take all processors for as long as a test lasts."""
PROGRESS_S = 40.0


@dataclass(slots=True)
class Account:
    """What was acknowledged. `present` and `absent` are certain, `doubtful` may be either."""

    present: dict[str, bytes] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def check(self, found: dict[str, bytes]) -> None:
        """Compares with the existing topics: nothing acknowledged is lost, and no topic is unexpected."""
        assert not self.wrong, self.wrong
        lost = {name for name, topic_id in self.present.items() if found.get(name) != topic_id}
        assert not lost, f"created and acknowledged, but not there: {sorted(lost)}"
        undead = self.absent & found.keys()
        assert not undead, f"deleted and acknowledged, but there: {sorted(undead)}"
        strange = found.keys() - self.present.keys() - self.doubtful
        assert not strange, f"nobody asked for: {sorted(strange)}"


class Load:
    """Use as a context manager; call `stop` first if the account is to be final."""

    def __init__(self, cluster: Cluster, *, writers: int, rng: random.Random, prefix: str) -> None:
        self.account = Account()
        self._cluster = cluster
        self._rngs = [random.Random(rng.getrandbits(64)) for _ in range(writers)]
        self._prefix = prefix
        self._stopping = False
        self._progress = threading.Condition()
        self._acknowledged = 0
        self._running: list[Future[None]] = []

    def __enter__(self) -> Load:
        loop = client_loop().loop
        for number, rng in enumerate(self._rngs):
            self._running.append(asyncio.run_coroutine_threadsafe(self._write(number, rng), loop))
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the writers; raises the error of one that failed."""
        self._stopping = True
        running, self._running = self._running, []
        for writer in running:
            writer.result(PROGRESS_S)

    def wait_more(self, count: int) -> None:
        """Until `count` more changes have been acknowledged."""
        with self._progress:
            wanted = self._acknowledged + count
            come = self._progress.wait_for(lambda: self._acknowledged >= wanted, PROGRESS_S)
            assert come, (
                f"{count - (wanted - self._acknowledged)} of {count} changes in {PROGRESS_S:.0f} s\n"
                + self._cluster.report([])
            )

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    async def _write(self, number: int, rng: random.Random) -> None:
        addresses = self._cluster.bootstrap.split(",")
        turned = ",".join(addresses[number % len(addresses) :] + addresses[: number % len(addresses)])
        count = 0
        async with AdminClient(turned, timeout_ms=ATTEMPT_MS, attempts_max=1, rng=rng) as client:
            mine: list[str] = []
            while not self._stopping:
                dice = rng.random()
                try:
                    if mine and dice < 0.3:
                        await self._delete(client, mine.pop(rng.randrange(len(mine))))
                    elif mine and dice < 0.4:
                        await self._read(client, rng.choice(mine))
                    else:
                        count += 1
                        name = f"{self._prefix}-{number}-{count}"
                        if await self._create(client, name):
                            mine.append(name)
                    await asyncio.sleep(PAUSE_S)
                except (ApiError, ClientError):
                    await asyncio.sleep(BACKOFF_S)

    async def _create(self, client: AdminClient, name: str) -> bool:
        self.account.doubtful.add(name)
        new = NewTopic(name=name, partitions=1, replication_factor=1)
        (result,) = await create_topics(client, [new], timeout_ms=ATTEMPT_MS)
        if result.error is ErrorCode.INVALID_REPLICATION_FACTOR:
            # Every broker was fenced for a moment: refused, and known to be.
            self.account.doubtful.discard(name)
            self.account.absent.add(name)
            await asyncio.sleep(BACKOFF_S)
            return False
        if result.error is not ErrorCode.NONE or result.topic_id is None:
            self.account.wrong.append(f"creating {name}: {result}")
            return False
        self.account.doubtful.discard(name)
        self.account.present[name] = result.topic_id
        self._advance()
        return True

    async def _delete(self, client: AdminClient, name: str) -> None:
        del self.account.present[name]
        self.account.doubtful.add(name)
        (result,) = await delete_topics(client, [name], timeout_ms=ATTEMPT_MS)
        if result.error is not ErrorCode.NONE:
            self.account.wrong.append(f"deleting {name}, which was acknowledged: {result}")
            return
        self.account.doubtful.discard(name)
        self.account.absent.add(name)
        self._advance()

    async def _read(self, client: AdminClient, name: str) -> None:
        """A linearizable read sees the acknowledged changes of this writer."""
        found = (await committed_image(client, timeout_ms=ATTEMPT_MS)).topics.topic_named(name)
        if found is None or found.topic_id != self.account.present[name]:
            self.account.wrong.append(f"{name} was created and acknowledged, a later read gave {found}")

    def _advance(self) -> None:
        with self._progress:
            self._acknowledged += 1
            self._progress.notify_all()


def assert_nothing_lost(cluster: Cluster, load: Load, earlier: dict[str, bytes]) -> None:
    found = cluster.topics()
    assert earlier.items() <= found.items()
    load.account.check({name: found[name] for name in found.keys() - earlier.keys()})
    assert len(load.account.present) > 0 and len(load.account.absent) > 0
    assert_one_log(cluster)


def assert_one_log(cluster: Cluster) -> None:
    """Up to the high watermark the three nodes have the same bytes, and these lead to what a client reads."""
    for node in cluster.controllers:
        cluster.wait_caught_up(node)
    high_watermark = cluster.quorum().high_watermark
    for node in cluster.controllers:
        cluster.wait_caught_up(node)
    first, *others = [log_bytes(node, to_offset=high_watermark) for node in cluster.controllers]
    assert all(other == first for other in others)
    replayed = replayed_topics(cluster.controllers[0], high_watermark)

    def seen() -> bool:
        topics = cluster.kafka(list_topics)
        return {each.name: each.topic_id for each in topics} == replayed

    cluster.wait(seen, "clients to see the topics that the log leads to")


def replayed_topics(node: Node, end_offset: int) -> dict[str, bytes]:
    """The topics that a node's log leads to, according to its records alone."""
    names: dict[bytes, str] = {}
    for batch in read_batches(node):
        if batch.header.base_offset >= end_offset:
            break
        if batch.header.is_control:
            continue
        for decoded in decode_batch(batch):
            match decoded.record:
                case TopicRecord(name=name, topic_id=topic_id):
                    names[topic_id] = name
                case RemoveTopicRecord(topic_id=topic_id):
                    del names[topic_id]
    return {name: topic_id for topic_id, name in names.items()}
