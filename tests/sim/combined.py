"""A world in which some nodes, or all, are controller and broker at once: a crash takes both down.

Adds to `DataWorld` the process of such a node, with one machine and one metadata log for both roles, and the
shapes that a cluster of such nodes can have. Faults and laws are those of `data_world`.
"""

from __future__ import annotations

import random
from typing import Any

from metaquorum.broker.node import BrokerNode
from metaquorum.combined.node import BrokerStopped, CombinedNode
from metaquorum.controller.events import Answer
from metaquorum.raft import effects as raft
from metaquorum.raft.invariants import CoreSnapshot
from tests.controllers import channel_of
from tests.sim.calls import Calls
from tests.sim.data_broker import DataBroker
from tests.sim.data_disks import DataDirectories
from tests.sim.data_laws import DataLaws
from tests.sim.data_load import DataLoad
from tests.sim.data_world import DataController, DataWorld
from tests.sim.errors import SafetyError
from tests.sim.host import Host, Process
from tests.sim.marks import Marks
from tests.sim.processes import BrokerProcess, ControllerProcess, Directory, Registrations
from tests.sim.world import FIRST_CONTROLLER_ID

COMBINED_FROM = 6_000
_CONTROLLERS = (raft.SendRequest, raft.Respond, raft.RespondWithRecords, Answer)


class BrokerPart(DataBroker):
    """The broker of a combined process, which drives it and has the log of both."""

    def __init__(
        self,
        process: CombinedProcess,
        load: DataLoad,
        directories: DataDirectories,
        laws: DataLaws,
        calls: Calls,
        directory: Directory,
        marks: Marks,
        registrations: Registrations,
    ) -> None:
        self.load, self.directories, self.laws = load, directories, laws
        self.workers, self.found, self.image, self.asked = {}, (), None, {}
        self.loses = lambda request: False
        self._in_flight = {}
        self._process = process
        self.host, self.store, self._marks = process.host, process.store, marks
        self.node_id, self.core = process.node_id, process.core
        self._calls, self._directory, self._registrations = calls, directory, registrations
        self.touched = True
        self.before = CoreSnapshot.of(self.core)
        self.incarnation_id = self.host.rng.randbytes(16)
        now_ms = self.host.monotonic_ms()
        config = self.make_config()
        self.fences_itself = config.self_fencing_enable
        rng = random.Random(self.host.rng.getrandbits(64))
        channel = channel_of(tuple(sorted(self.core.state.voters)), rng)
        self.node = BrokerNode(
            config,
            self.core,
            process.node.replica,
            channel=channel,
            incarnation_id=self.incarnation_id,
            now_ms=now_ms,
            replicas=self.make_replicas(now_ms, channel),
            previous_broker_epoch=self.clean_epoch(),
        )

    @property
    def alive(self) -> bool:  # type: ignore[override]
        return self._process.alive

    @property
    def paused(self) -> bool:  # type: ignore[override]
        return self._process.paused

    def deliver(self, make_event: Any) -> None:
        self._process.deliver(make_event)


class CombinedProcess(DataController):
    """One driver, one log, one core; `combined` orders the effects of both parts."""

    def __init__(
        self,
        load: DataLoad,
        directories: DataDirectories,
        laws: DataLaws,
        registrations: Registrations,
        *parts: Any,
    ) -> None:
        super().__init__(load, *parts)
        self.part = BrokerPart(
            self, load, directories, laws, self._calls, self._directory, self._marks, registrations
        )
        self.combined = CombinedNode(self.node, self.part.node)
        self.broker_stopped = False

    @property
    def driven(self) -> CombinedNode:
        return self.combined

    @property
    def broker(self) -> BrokerProcess:
        return self.part

    def before_event(self, event: Any) -> None:
        super().before_event(event)
        self.part.touched = True
        self.part.before_event(event)

    def execute_own(self, effect: Any) -> None:
        if isinstance(effect, _CONTROLLERS):
            super().execute_own(effect)
        elif isinstance(effect, BrokerStopped):
            self.host.engine.trace(self.host.name, f"its broker has stopped: {effect.reason}")
            self.broker_stopped = True
            self._marks.add("combined node: its broker stopped before its controller")
        else:
            self.part.execute_own(effect)


class CombinedWorld(DataWorld):
    """Shapes: all nodes have both roles; additional brokers; additional controllers."""

    def node_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        rng, count = random.Random(f"shape of {self.seed}"), max(1, self.profile.controllers)
        brokers = tuple(range(max(self.profile.brokers, count)))
        both = rng.choice((count, count, 1))
        more = tuple(FIRST_CONTROLLER_ID + at for at in range(count - both))
        return (*range(both), *more), brokers

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        if node_id not in self.controller_ids or node_id not in self.broker_ids:
            return super().make_process(host, node_id)
        return CombinedProcess(
            self.load,
            self.data[node_id],
            self.laws,
            self.registrations,
            *(host, node_id, self.voters, self.calls, self.directory, self.marks),
        )

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        process = self.directory[node_id].process
        super().crash(node_id, power_loss=power_loss)
        if isinstance(process, CombinedProcess):
            if process.core.is_leader:
                self.marks.add("combined node crashed while its controller was active")
            if any(each.leads for each in process.part.partitions().values()):
                self.marks.add("combined node crashed while it led partitions")

    def _ended(self, node_id: int, host: Host, process: Process) -> None:
        stopped = process.stopped
        if isinstance(process, CombinedProcess) and stopped is not None and not stopped.failed:
            if not process.broker_stopped:
                raise SafetyError(f"{host.name} stopped in order, and its controller before its broker")
            self.marks.add("combined node stopped in order")
        super()._ended(node_id, host, process)
