"""The cost of a scrape of a controller's metrics at a million partitions, and how long it blocks the loop.

A controller alone in its quorum runs in this process, with real files, HTTP and loop; a thread scrapes.
`loop` is the maximum delay of a timer of 1 ms while a page is made.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.raft.store import ReplicaStore
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.wire.messages import UnregisterBrokerRequest
from tests.bench.figures import Figure, percentile
from tests.bench.seeding import NO_SNAPSHOTS, Shape, fill
from tests.unit.server.nodes import forwarded, free_port, new_site, running_controller

WITHOUT_FENCING = {"broker.session.timeout.ms": "3600000", "auto.leader.rebalance.enable": "false"}
SCRAPES = 50
TICK_S = 0.001


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", type=int, default=1_000_000)


def run(options: argparse.Namespace) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        return asyncio.run(measure(Path(directory), options.partitions))


async def measure(root: Path, partitions: int) -> list[Figure]:
    site, port = new_site(root / "site"), free_port()
    store = ReplicaStore.open(PosixDisk(), str(site.root / "controller"))
    fill(store, Shape(partitions=partitions), as_snapshot=True)
    store.close()
    more = {**NO_SNAPSHOTS, **WITHOUT_FENCING, "metrics.listener": f"http://127.0.0.1:{port}"}
    async with running_controller(site.controller_file(more)) as process:
        while process.node.active is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        figures = [Figure(name="partitions", value=partitions, unit="")]
        figures += await timed("first page", lambda: page(port), 1)
        idle = await timed("page, nothing changed", lambda: page(port), SCRAPES, at_most=5.0)
        figures += idle
        async with AdminClient([("127.0.0.1", site.controller_port)], timeout_ms=60_000) as client:
            removed = await forwarded(client, UnregisterBrokerRequest(broker_id=7))
            assert not removed.error_code, removed
        while process.node.active.work or process.node.ledger.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        figures += await timed("page after a broker was removed", lambda: page(port), 1)
        text = await page(port)
        figures.append(Figure(name="size of the page", value=len(text) / 1024, unit="KiB"))
        figures.append(Figure(name="lines of the page", value=text.count(b"\n"), unit=""))
        return figures


async def page(port: int) -> bytes:
    return await asyncio.to_thread(get, port)


def get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read()
    connection.close()
    return body


async def timed(
    name: str, work: Callable[[], Awaitable[bytes]], times: int, *, at_most: float | None = None
) -> list[Figure]:
    """How long it takes the caller, processor time of this process, and how late a timer is meanwhile."""
    walls_ms, late_ms = [], []
    cpu_s = time.process_time()
    for _ in range(times):
        ticker = Ticker()
        begun = time.perf_counter()
        await work()
        walls_ms.append((time.perf_counter() - begun) * 1000)
        late_ms.append(await ticker.end())
    cpu_ms = (time.process_time() - cpu_s) * 1000 / times
    return [
        Figure(name=f"{name}: for the caller, median", value=percentile(walls_ms, 0.5), unit="ms"),
        Figure(name=f"{name}: CPU, the caller's included", value=cpu_ms, unit="ms"),
        Figure(name=f"{name}: loop, worst", value=max(late_ms), unit="ms"),
        Figure(name=f"{name}: loop, median", value=percentile(late_ms, 0.5), unit="ms", at_most=at_most),
    ]


class Ticker:
    """A timer that measures how late it is."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._late_s = max(self._late_s, time.perf_counter() - begun - TICK_S)

    async def end(self) -> float:
        """The maximum, in ms."""
        await asyncio.sleep(TICK_S)
        self._task.cancel()
        return self._late_s * 1000
