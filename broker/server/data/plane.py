"""A broker's partition data outside the pure core: threads of the directories, peers, requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from metaquorum.broker.replica.disk_work import AbandonDirectory, DiskWork
from metaquorum.broker.replica.events import DataRespond, SendFetch
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.broker.server.data.cleaners import CleanerProcesses
from metaquorum.broker.server.data.directory import DirectoryThreads
from metaquorum.broker.server.data.open import OpenData
from metaquorum.broker.server.data.peers import Peer, PeerConnector, PeerFetches
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.data.watched_disk import DirectoryProbe, DiskWatch, HangClock, WatchedDisk
from metaquorum.config.addresses import PROTOCOL_IDS
from metaquorum.config.node import NodeConfig
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.tls import NodeTls
from metaquorum.node.driver import Driver
from metaquorum.node.machine import OWN_PROCESS, Machine
from metaquorum.observability.metrics.statistics import NodeStatistics

LOOKS_PER_TIMEOUT = 8
LOOK_MAX_S = 1.0
"""How often to look for hangs: this often within log.dir.hang.timeout.ms, and at least once per second."""


class DataPlane:
    """See the module. `image` is the newest published one; its publisher keeps it. `connector` leads to other
    brokers."""

    def __init__(
        self,
        config: NodeConfig,
        data: OpenData,
        driver: Driver,
        image: MetadataImage,
        tls: NodeTls,
        statistics: NodeStatistics | None = None,
        *,
        machine: Machine = OWN_PROCESS,
    ) -> None:
        self.image = image
        self._config = config
        self._driver = driver
        self._clock = machine.clock
        self.connector = PeerConnector(
            tls.brokers,
            config.brokers_login,
            answer_max_bytes=config.number("socket.request.max.bytes"),
            route=machine.route,
        )
        self._loop = asyncio.get_running_loop()
        self.threads: dict[bytes, DirectoryThreads] = {}
        self._probes: list[DirectoryProbe] = []
        self._clocks: list[tuple[HangClock, Callable[[str], None]]] = []
        self._look: asyncio.TimerHandle | None = None
        self._metadata_clock: HangClock | None = None
        hang_s = config.number("log.dir.hang.timeout.ms") / 1000
        self._look_s = min(LOOK_MAX_S, hang_s / LOOKS_PER_TIMEOUT)
        enabled = config.flag("log.cleaner.enable")
        self._cleaners = CleanerProcesses(
            config.number("log.cleaner.threads") if enabled else 0,
            config.real("log.cleaner.io.max.bytes.per.second"),
            None if machine.owns_process else machine.disk,
        )
        for directory in data.directories:
            if directory.store is not None:
                threads = self._threads_of(directory.store)
                self.threads[directory.store.directory_id] = threads
                self._watch(directory.disk, directory.watch, threads.path, threads.fail, hang_s)
        if config.metadata_log_dir not in config.log_dirs:
            # Nothing else would notice: the metadata log writes to a file that is already open.
            watch = DiskWatch(None, data.faults)
            disk, path = WatchedDisk(machine.disk, watch), str(config.metadata_log_dir)
            self._metadata_clock = self._watch(disk, watch, path, self._metadata_directory_failed, hang_s)
        self.requests = DataRequests(
            driver.submit,
            driver.post,
            produced_max_bytes=config.bound("queued.max.request.bytes"),
            statistics=statistics,
        )
        self._peers = PeerFetches(
            driver.post, self.connector, self._peer_of, self._topic_name, broker_id=config.node_id
        )
        driver.hand_over(self._handler_table())

    def _threads_of(self, store: DirectoryStore) -> DirectoryThreads:
        driver = self._driver
        return DirectoryThreads(
            store, driver.post, self._crash, self._loop, self._cleaners, driver.step_end, self._clock
        )

    def _handler_table(self) -> Mapping[type, Callable[[Any], None]]:
        table: dict[type, Callable[[Any], None]] = dict.fromkeys(get_args(DiskWork), self._disk_work)
        table[DataRespond] = self.requests.answer
        table[SendFetch] = self._peers.send
        return table

    # ---- start and end

    def start(self) -> None:
        self._cleaners.start()
        for threads in self.threads.values():
            threads.start()
        for probe in self._probes:
            probe.start()
        self._look_for_hangs()

    def refuse_clients(self) -> None:
        """Waiting and later requests get an answer that sends the client elsewhere."""
        text = f"broker {self._config.node_id} is stopping: use the new leader"
        self.requests.refuse_all(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))

    def abandon(self) -> None:
        """The process is being killed: from now on nothing is written, and no failure is reported."""
        for directory_id, threads in self.threads.items():
            threads.submit(AbandonDirectory(directory_id=directory_id))

    async def close(self, *, clean: bool = True) -> list[str]:
        """Ends everything, writing nothing more unless `clean`. Returns the directories that were closed
        cleanly, with all their data on disk."""
        if self._look is not None:
            self._look.cancel()
        for probe in self._probes:
            probe.end()
        await self._peers.close()
        self._cleaners.stop()
        threads = list(self.threads.values())
        closed = await asyncio.gather(*(thread.close(clean=clean) for thread in threads))
        return [each.path for each, good in zip(threads, closed, strict=True) if good]

    # ---- effects

    def _disk_work(self, effect: DiskWork) -> None:
        threads = self.threads.get(effect.directory_id)
        if threads is not None:
            threads.submit(effect)

    def _peer_of(self, effect: SendFetch) -> Peer:
        """With the endpoint that the broker has registered; otherwise like this broker's own."""
        ours = self._config.inter_broker_listener
        protocol = PROTOCOL_IDS["PLAINTEXT" if ours is None else ours.protocol]
        broker = self.image.brokers.get(effect.target)
        for endpoint in () if broker is None else broker.endpoints:
            if (endpoint.host, endpoint.port) == (effect.host, effect.port):
                protocol = endpoint.security_protocol
        return Peer(effect.target, effect.host, effect.port, protocol)

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics.topic(topic_id)
        return None if topic is None else topic.name

    # ---- detection of failures

    def _watch(
        self, disk: Any, watch: DiskWatch, path: str, fail: Callable[[str], None], hang_s: float
    ) -> HangClock:
        def failed(reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no one is left to receive it
                self._loop.call_soon_threadsafe(fail, reason)

        interval_s = self._config.number("log.dir.probe.interval.ms") / 1000
        self._probes.append(DirectoryProbe(disk, path, interval_s=interval_s, failed=failed))
        clock = HangClock(watch, timeout_s=hang_s, look_max_s=2 * self._look_s)
        self._clocks.append((clock, fail))
        return clock

    def _look_for_hangs(self) -> None:
        now_s = self._loop.time()
        for clock, fail in self._clocks:
            reason = clock.look(now_s)
            if reason is not None:
                fail(reason)
        self._look = self._loop.call_later(self._look_s, self._look_for_hangs)

    async def metadata_hangs(self) -> bool:
        """Whether a call to the metadata log's directory hangs: nothing more can be done there. Call it after
        `close`. A call that is under way gets the time that every call has."""
        return self._metadata_clock is not None and await self._metadata_clock.running_call_hangs()

    def _metadata_directory_failed(self, reason: str) -> None:
        self._driver.end(f"stopped: the metadata log's directory failed: {reason}", failed=True)

    def _crash(self, reason: str) -> None:
        self._driver.end(reason, failed=True)
