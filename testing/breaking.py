"""What a test can break: nodes, their network and disks, and single requests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack, cast, get_type_hints

from metaquorum.raft.voters import majority
from metaquorum.storage.disk.interface import Disk
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.testing.chaos import ChaosThread
from metaquorum.testing.contents import ClusterContents
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.healing import (
    NO_EFFECT,
    PATIENCE_S,
    ActiveFault,
    ActiveRequestFault,
    Effect,
    cut_effect,
    no_end,
)
from metaquorum.testing.interception import ClientFault, Interceptor, Replacement
from metaquorum.testing.memory_disk import DiskCopy, DiskFaultOrder, DiskKind, MemoryDisk, begin_disk_fault
from metaquorum.testing.network import Delay, Pair
from metaquorum.testing.node import ClusterNode
from metaquorum.testing.request_faults import How, RequestFault, Which, check_api, describe
from metaquorum.testing.running import PROCESSES

WAYS = {"both": (True, True), "to": (True, False), "from": (False, True)}
"""Directions of a fault of the network."""


class NodeCopy(NamedTuple):
    """What was on a node's disk, and when, in Unix time by the cluster's clock."""

    node: int
    copy: DiskCopy | Path
    wall_ms: int


class BreakableCluster(ClusterContents):
    """See the module. Each fault is an event, and heals when its context ends."""

    _chaos_thread: ChaosThread | None = None

    def start(self) -> Self:
        """Starts all nodes and waits until they serve. `with` does it."""
        steps = self._chaos.schedule(random.Random(self.seed), range(self._shape.brokers))
        super().start()
        if steps:
            self._chaos_thread = ChaosThread(self, steps)
        return self

    def close(self) -> None:
        """Ends all nodes, and gives back threads, ports and memory; a second call does nothing."""
        self._end_chaos()
        super().close()

    def wait_for_chaos(self) -> None:
        """Returns once all faults of `chaos` have happened and healed."""
        thread = self._chaos_thread
        if thread is not None:
            self.wait_until(thread.is_over.is_set, "chaos to end")

    def clean(self) -> None:
        """Heals every fault, and deletes all topics and groups. Raises ClusterError if something remains; see
        `ClusterContents.clean`."""
        self._end_chaos()
        super().clean()

    def _end_chaos(self) -> None:
        thread, self._chaos_thread = self._chaos_thread, None
        if thread is not None and os.getpid() == self._pid:
            thread.end()

    # --- nodes

    def kill(self, node: int, *, power_lost: bool = False) -> ActiveFault:
        """Ends a node as `kill -9` does; healing starts it again. `power_lost`: what it had not synced may
        be lost, as when the machine stops."""
        running = self._running(node)
        text = f"{running.name} lost power" if power_lost else ""
        if power_lost and not isinstance(running.disk, MemoryDisk):
            raise ClusterError("a power loss needs data in memory: leave `directory` out")
        return self._kill(running, text, power_lost=power_lost)

    def stop(self, node: int) -> ActiveFault:
        """A controlled shutdown of a node; healing starts it again."""
        found = self._running(node)
        return self._down(found, f"{found.name} was stopped", found.stop())

    def restart(self, node: int) -> None:
        """Starts a node that is down, which heals the faults that keep it down, or stops it and starts it
        again; returns when it serves, unless another fault keeps it from that."""
        cluster_node = self._node(node)
        for fault in self._faults.of_node(node):
            fault.end()
            self._note(f"healed: {fault.text}")
        if cluster_node.is_up:
            self._down(cluster_node, f"{cluster_node.name} was stopped", cluster_node.stop()).end()
        self._recover()

    def _recover(self) -> None:
        """A broker that has given up a directory uses it again after a restart, too."""
        super()._recover()
        for node in [each for each in self._brokers() if self._lacks_a_directory(each)]:
            self._down(node, f"{node.name} was stopped, to use its directories again", node.stop()).end()
            super()._recover()

    def _lacks_a_directory(self, node: ClusterNode) -> bool:
        image = node.image if node.node_id in self._able() and node.is_up else None
        registration = None if image is None else image.brokers.get(node.node_id)
        return registration is not None and 0 < len(registration.directories) < len(node.config.log_dirs)

    def _kill(self, node: ClusterNode, text: str = "", *, power_lost: bool) -> ActiveFault:
        """Also one that is down already."""
        return self._down(node, text or f"{node.name} was killed", node.kill(power_lost=power_lost))

    def _down(self, node: ClusterNode, text: str, end: Coroutine[Any, Any, None]) -> ActiveFault:
        """A node that `end` ends, and that stays down until the fault heals."""
        return self._fault(text, no_end, Effect(down=frozenset([node.node_id])), end)

    def pause(self, node: int) -> ActiveFault:
        """Stops the process of a node as SIGSTOP does; healing has it go on. Only with mode="processes"."""
        raise self._no_process(node, "cannot be paused")

    def resume(self, node: int) -> None:
        """A paused node goes on. Only with mode="processes"."""
        raise self._no_process(node, "is not paused")

    def limit_memory(self, node: int, *, more_bytes: int) -> ActiveFault:
        """A node can allocate at most `more_bytes` beyond what it has now; healing lifts the limit. Only with
        mode="processes", on Linux."""
        raise self._no_process(node, "has no memory of its own")

    def _no_process(self, node: int, what: str) -> ClusterError:
        name = self._node(node).name
        return ClusterError(
            f'{name} shares the process of the test and {what}: use Cluster(mode="{PROCESSES}")'
        )

    # --- the network

    def cut(self, a: int | str, b: int | str, *, direction: str = "both") -> ActiveFault:
        """Nothing passes between two nodes, or between a node and a client, which is named by its client id
        or its principal. Connections stay open, as when packets are lost. `direction`: "to" stops only what
        `a` sends to `b`, "from" only what it gets from it."""
        return self._between(a, b, direction, None, "nothing passes")

    def isolate(self, node: int, *, clients: bool = False) -> ActiveFault:
        """A node and all other nodes cannot reach each other; with `clients`, no client reaches it either."""
        name = self._node(node).name
        pairs = [pair for other in self._nodes if other != node for pair in ((node, other), (other, node))]
        faults = [ClientFault(None, node, (True, True), None)] if clients else []
        return self._network_fault(f"{name} is isolated", pairs, faults, None)

    def delay(
        self, a: int | str, b: int | str, *, ms: float, jitter: float = 0, direction: str = "both"
    ) -> ActiveFault:
        """What two nodes, or a node and a client, send each other arrives `ms` later, give or take up to
        `jitter` ms. `direction`: as in `cut`."""
        text = f"{ms:g} ms late" + (f", give or take {jitter:g} ms" if jitter else "")
        return self._between(a, b, direction, (ms, jitter), text)

    def drop_connections(self, a: int | str, b: int | str) -> int:
        """Ends all connections between two nodes, or a node and a client, which may connect again; returns
        how many."""
        first, second = self._ends(a, b)

        async def drop() -> int:
            if isinstance(first, int):
                return await self._network.drop(first, second)
            return await self._nodes[second].end_connections(first)

        count = self._run(drop(), "connections to end")
        self._note(f"{count} connections between {self._name(a)} and {self._name(b)} were dropped")
        return count

    def _ends(self, a: int | str, b: int | str) -> tuple[int | str, int]:
        """Both ends, checked: a node or a client, and a node."""
        if isinstance(a, str) and isinstance(b, str):
            raise ClusterError(f"{a!r} and {b!r} are clients: name a node, by its id")
        for end in (a, b):
            if isinstance(end, int):
                self._node(end)
        if a == b:
            raise ClusterError(f"{self._name(a)} is both ends: name two nodes, or a node and a client")
        return (b, a) if isinstance(a, int) and isinstance(b, str) else (a, int(b))

    def _between(
        self, a: int | str, b: int | str, direction: str, delay: Delay | None, text: str
    ) -> ActiveFault:
        if direction not in WAYS:
            raise ClusterError(f'direction={direction!r}: write "both", "to" or "from"')
        forth, back = WAYS[direction]
        first, second = self._ends(a, b)
        if first != a:
            forth, back = back, forth
        pairs, faults = [], []
        if isinstance(first, int):
            ways = ((forth, first, second), (back, second, first))
            pairs = [(one, other) for is_meant, one, other in ways if is_meant]
        else:
            faults = [ClientFault(first, second, (forth, back), delay)]
        where = {"both": "between {} and {}", "to": "from {} to {}", "from": "to {} from {}"}[direction]
        text = f"{where.format(self._name(a), self._name(b))}: {text}"
        return self._network_fault(text, pairs, faults, delay)

    def _network_fault(
        self, text: str, pairs: list[Pair], faults: list[ClientFault], delay: Delay | None
    ) -> ActiveFault:
        shared = self._interception

        async def begin() -> None:
            shared.client_faults += faults
            await self._meet_requests()
            await self._network.begin(pairs, delay)

        async def end() -> None:
            for fault in faults:
                shared.client_faults.remove(fault)
                fault.heal()
            await self._meet_requests()
            await self._network.end(pairs, delay)

        effect = cut_effect(pairs, delay) if pairs else NO_EFFECT
        return self._fault(text, lambda: self._run(end(), "the network to heal"), effect, begin())

    # --- disks

    def disk_full(self, node: int, log_dir: int | None = None) -> ActiveFault:
        """No byte more fits on a node's disk, or one of its directories for partitions, counted from 0."""
        return self._disk_fault(node, log_dir, "is full", "full")

    def disk_read_only(self, node: int, log_dir: int | None = None) -> ActiveFault:
        """A disk, or one directory, cannot be written."""
        return self._disk_fault(node, log_dir, "is read-only", "read-only")

    def disk_fails(self, node: int, log_dir: int | None = None, *, after_bytes: int = 0) -> ActiveFault:
        """Every operation on a disk, or in one directory, fails once `after_bytes` more bytes have been
        written. A broker that has given up a directory restarts when it heals."""
        when = f" after {after_bytes} bytes" if after_bytes else ""
        return self._disk_fault(node, log_dir, f"fails{when}", "failing", after_bytes)

    def disk_slow(self, node: int, log_dir: int | None = None, *, delay_s: float) -> ActiveFault:
        """Every write to a disk, or in one directory, takes `delay_s` longer."""
        return self._disk_fault(node, log_dir, f"takes {delay_s:g} s longer", "slow", delay_s)

    def lose_disk(self, node: int) -> ActiveFault:
        """A node dies and its disk with it; healing starts it with an empty, formatted one, which is
        another directory for the cluster."""
        return self._replace_disk(node, None, "lost its disk")

    def copy_disk(self, node: int) -> NodeCopy:
        """What is on a node's disk now, for `restore_disk_from`."""
        return NodeCopy(node, self._memory_disk(self._node(node)).copy(), self.clock.wall_ms)

    def restore_disk_from(self, earlier: NodeCopy) -> ActiveFault:
        """A node dies, and its disk has what it had at an earlier time; healing starts it."""
        ago_s = (self.clock.wall_ms - earlier.wall_ms) / 1000
        return self._replace_disk(earlier.node, earlier.copy, f"has its disk of {ago_s:.1f} s ago")

    def _replace_disk(self, node: int, copy: DiskCopy | Path | None, what: str) -> ActiveFault:
        cluster_node = self._node(node)
        disk = self._memory_disk(cluster_node)
        if isinstance(copy, Path):
            raise ClusterError("this copy is of a cluster of processes: restore it there")
        if copy is None:
            self._check_quorum_outlives(cluster_node)

        async def replace() -> None:
            await cluster_node.kill()
            new = disk.new()
            if copy is None:
                cluster_node.format_again(new)  # which no fault of the disk is to meet
            disk.replace(new.copy() if copy is None else copy)
            self._see_disk(cluster_node, disk.copy().disk)

        return self._down(cluster_node, f"{cluster_node.name} {what}", replace())

    def _check_quorum_outlives(self, node: ClusterNode) -> None:
        """Raises ClusterError if so many voters have lost their disks that none is elected any longer."""
        if node.node_id not in self._voters:
            return
        self._see_voters()
        kept = [each for each, disk_id in self._voters.items() if self._disk_ids.get(each) == disk_id]
        left, needed = len({*kept} - {node.node_id}), majority(len(self._voters))
        if left < needed:
            raise ClusterError(
                f"without the disk of {node.name} too few controllers have the metadata: {left} of"
                f" {len(self._voters)}, and {needed} are needed; have more controllers, or wait"
                " until those with new disks vote again"
            )

    def _see_disk(self, node: ClusterNode, disk: Disk) -> None:
        """What a node has on its disk now: whether it is that of a voter."""
        if node.local.controls:
            own = load_meta_properties(disk, str(node.config.metadata_log_dir))
            self._disk_ids[node.node_id] = own.directory_id or b""

    @staticmethod
    def _memory_disk(node: ClusterNode) -> MemoryDisk:
        if not isinstance(node.disk, MemoryDisk):
            raise ClusterError("faults of disks need data in memory: leave `directory` out")
        return node.disk

    def _disk_fault(
        self, node: int, log_dir: int | None, what: str, kind: DiskKind, value: float = 0
    ) -> ActiveFault:
        cluster_node = self._node(node)
        directories = [str(path) for path in cluster_node.config.log_dirs]
        if log_dir is not None and not 0 <= log_dir < len(directories):
            raise ClusterError(
                f"{cluster_node.name} has no log_dir {log_dir}: it has {len(directories)}, from 0"
            )
        directory = self._home_of(cluster_node) if log_dir is None else directories[log_dir]
        wanted = DiskFaultOrder(kind=kind, directory=directory, value=value)
        is_endurable = kind == "slow" and value <= PATIENCE_S
        effect = NO_EFFECT if is_endurable else Effect(hampered=frozenset([node]))
        return self._fault(f"{directory} {what}", self._begin_disk_fault(cluster_node, wanted), effect)

    def _home_of(self, node: ClusterNode) -> str:
        """The directory that has all directories of a node."""
        return f"/{node.name}"

    def _begin_disk_fault(self, node: ClusterNode, wanted: DiskFaultOrder) -> Callable[[], None]:
        """The fault is in force; returns what heals it."""
        return begin_disk_fault(self._memory_disk(node), wanted)

    # --- requests

    async def _meet_requests(self) -> None:
        """The faults of requests are other ones now: has nodes in other processes know."""

    def _requests_changed(self) -> None:
        """`_meet_requests`, for the threads of tests."""

    def intercept(self, api: str, function: Replacement) -> ActiveFault:
        """Has a function of the test see each request of an API, on the cluster's thread, and decide what
        becomes of it: see `Replacement`. What the function raises ends the connection, and healing raises
        it again."""
        self._require_running()
        check_api(api)
        interceptor = Interceptor(api, function)

        def heal() -> None:
            self._interception.interceptors.remove(interceptor)
            self._requests_changed()
            if interceptor.problem is not None:
                problem = f"{type(interceptor.problem).__name__}: {interceptor.problem}"
                raise ClusterError(f"the function for {api} failed: {problem}") from interceptor.problem

        self._interception.interceptors.append(interceptor)
        self._requests_changed()
        return self._fault(f"requests {api}: a function sees them", heal)

    def observe(self, api: str, **which: Unpack[Which]) -> ActiveRequestFault:
        """Counts requests of an API, and changes nothing, whatever faults there are. `Which` has the
        keywords."""
        more = sorted(set(which) - set(get_type_hints(Which)))
        if more:
            raise ClusterError(f"observe only counts, and has no {', '.join(more)}: use fault")
        return self.fault(api, **which)

    def fault(self, api: str, **how: Unpack[How]) -> ActiveRequestFault:
        """Meets requests of an API at brokers, named as in Kafka's protocol, such as "Produce". `How` has the
        keywords: which requests, and what becomes of them; without the latter, they are counted."""
        self._require_running()
        how = cast(How, {name: value for name, value in how.items() if value is not None})
        if "node" in how:
            self._node(how["node"])
        fault = RequestFault.of(api, how)
        text = describe(fault)
        self._note(text)

        def heal() -> None:
            fault.released.set()
            if fault in self._interception.faults:
                self._interception.faults.remove(fault)
                self._requests_changed()
            self._note(f"healed: {text}, met {fault.hits}")

        handle = ActiveRequestFault(text, heal, fault, self.timeout_s, self._what_nodes_do)
        self._interception.faults.append(fault)
        self._requests_changed()
        self._faults.add(handle)
        return handle
