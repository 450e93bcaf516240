"""Voters that are added and replaced (KIP-853): an observer that has caught up, and a voter with an emptied
disk.

Three controllers are real processes. `add`: from the request to the response, which is sent when the change
is committed. `replace`: from the start of the process with an empty directory until the command that makes it
a voter has ended, while small writes continue; their times are those of the whole repair.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from metaquorum.clients.quorum.admin import AdminClient, add_raft_voter, remove_raft_voter
from metaquorum.clients.search import ClientError
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    NewTopic,
    RemoveRaftVoterRequest,
    ReplicaStatus,
)
from tests.bench.figures import Figure, percentile, spread
from tests.bench.quorum import StandInBroker, wait_all_caught_up
from tests.e2e.cluster import Node, client_loop
from tests.e2e.processes import run_cli
from tests.e2e.voter_cluster import DynamicCluster
from tests.topics import create_topics

ADD_MS, REPLACE_S, WRITE_P99_MS = 50, 10, 50
PARTITIONS_PER_TOPIC = 10_000
BEFORE_S = 5


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitions", type=int, default=500_000, help="partitions of the quorum that is repaired"
    )
    parser.add_argument("--adds", type=int, default=20, help="observers that are added")
    parser.add_argument("--writes", type=int, default=500, help="small writes per second during the repair")


def run(options: argparse.Namespace) -> list[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        DynamicCluster(Path(directory), controllers=3) as cluster,
    ):
        cluster.start()
        stand_in = StandInBroker(cluster.controllers, cluster.cluster_id)
        client_loop().call(stand_in.start())
        try:
            return [*_adds(cluster, options.adds), *_replace(cluster, options.partitions, options.writes)]
        finally:
            client_loop().call(stand_in.stop())


# ---- adding --------------------------------------------------------------------------------------


def _adds(cluster: DynamicCluster, count: int) -> list[Figure]:
    """The same follower is removed and added."""
    follower = next(node for node in cluster.controllers if node is not cluster.leader())
    times_ms = [_add(cluster, follower) for _ in range(count)]
    return spread("add a caught-up observer", times_ms, "ms", ADD_MS, ADD_MS)


def _add(cluster: DynamicCluster, node: Node) -> float:
    (voter,) = [one for one in cluster.quorum().voters if one.node_id == node.node_id]
    gone = RemoveRaftVoterRequest(voter_id=voter.node_id, voter_directory_id=voter.directory_id)
    cluster.call(lambda client: remove_raft_voter(client, gone))
    cluster.wait(lambda: _observes(cluster, voter), f"{node.name} to observe")
    request = AddRaftVoterRequest(voter=Voter(voter.node_id, voter.directory_id, voter.endpoints))
    begun = time.perf_counter()
    cluster.call(lambda client: add_raft_voter(client, request))
    return (time.perf_counter() - begun) * 1000


def _observes(cluster: DynamicCluster, voter: ReplicaStatus) -> bool:
    """It has fetched what was committed after it was removed."""
    quorum = cluster.quorum()
    return quorum.open_change is None and any(
        one.directory_id == voter.directory_id and one.log_end_offset > (quorum.voters_offset or 0)
        for one in quorum.observers
    )


# ---- replacing -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Writes:
    """Small writes at a steady rate, independent of each other: a slow one delays no other."""

    per_s: int
    times_ms: list[float] = field(default_factory=list)
    failed: int = 0
    stopping: bool = False

    @classmethod
    @contextmanager
    def meanwhile(cls, bootstrap: str, per_s: int) -> Iterator[Writes]:
        """Continues until the block ends and all writes have a response."""
        writes = cls(per_s)
        running = asyncio.run_coroutine_threadsafe(writes._go(bootstrap), client_loop().loop)
        try:
            yield writes
        finally:
            writes.stopping = True
            running.result(60)

    async def _go(self, bootstrap: str) -> None:
        under_way: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with AdminClient(bootstrap, timeout_ms=10_000) as client:
            number = 0
            while not self.stopping:
                task = loop.create_task(self._write(client, f"write-{number}"))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                number += 1
                await asyncio.sleep(max(0.0, begun + number / self.per_s - loop.time()))
            await asyncio.gather(*under_way)

    async def _write(self, client: AdminClient, name: str) -> None:
        begun = time.perf_counter()
        try:
            await create_topics(client, [NewTopic(name=name, partitions=1, replication_factor=1)])
        except (ApiError, ClientError):
            self.failed += 1
        self.times_ms.append((time.perf_counter() - begun) * 1000)


def _replace(cluster: DynamicCluster, partitions: int, per_s: int) -> list[Figure]:
    for at in range(0, partitions, PARTITIONS_PER_TOPIC):
        cluster.create_topic(f"big-{at}", partitions=min(PARTITIONS_PER_TOPIC, partitions - at))
    wait_all_caught_up(cluster)
    victim = next(node for node in cluster.controllers if node is not cluster.leader())
    cluster.lose_disk(victim)
    format_it = ("storage", "format", "--config", victim.config, "--no-initial-controllers")
    run_cli(*format_it, "--cluster-id", cluster.cluster_id)
    gc.collect()
    gc.freeze()  # The client's own pauses are not the quorum's.
    with Writes.meanwhile(cluster.bootstrap, per_s) as before:
        time.sleep(BEFORE_S)
    with Writes.meanwhile(cluster.bootstrap, per_s) as writes:
        begun = time.perf_counter()
        victim.start()
        run_cli("quorum", "replace-voter", victim.node_id, "--bootstrap-controllers", cluster.bootstrap)
        took_s = time.perf_counter() - begun
    what = f"replace an emptied voter, {partitions:,} partitions"
    return [
        Figure(name=what, value=took_s, unit="s", at_most=REPLACE_S),
        Figure(
            name=f"p99 of {per_s} small writes per second, two voters alive",
            value=percentile(before.times_ms, 0.99),
            unit="ms",
        ),
        Figure(
            name=f"p99 of {per_s} small writes per second during the replacement",
            value=percentile(writes.times_ms, 0.99),
            unit="ms",
            at_most=WRITE_P99_MS,
        ),
        Figure(name="writes meanwhile", value=len(writes.times_ms), unit=""),
        Figure(name="of which failed", value=writes.failed, unit="", at_most=0),
    ]
