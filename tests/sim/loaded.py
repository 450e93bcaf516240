"""A world whose brokers hold partitions: leaders change their ISRs, directories die, ids are allocated.

Adds to `World` the load of `load`, the laws that only a run with partitions can break, and the conditions
under which partitions and broker ids have recovered after healing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec.structs import replace

from metaquorum.controller.partitions.partitions import leads_any
from metaquorum.controller.partitions.rules import unclean_allowed
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.image import MetadataImage, PartitionInfo, Provenance
from metaquorum.metadata.records.types import NO_LEADER
from metaquorum.metadata.requests.common import AllocateBrokerIdResponse
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.meta_properties import load_meta_properties
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.checks import Checks
from tests.sim.committed import CommittedLog
from tests.sim.errors import SafetyError
from tests.sim.host import Host
from tests.sim.load import Load, draw_load
from tests.sim.loaded_processes import REUSE_GRACE_MS, LoadedBroker, LoadedController
from tests.sim.losses import accept_losses
from tests.sim.newcomers import Newcomer
from tests.sim.operators import Operator
from tests.sim.processes import (
    DATA_DIRECTORY,
    SESSION_TIMEOUT_MS,
    BrokerProcess,
    ControllerProcess,
    format_host,
)
from tests.sim.profile import FaultProfile, draw_profile
from tests.sim.promises import Promises
from tests.sim.replication import LogDirectories, Replication
from tests.sim.world import STEP_MS, World

REPLICA_STEP_MS = (60, 240)
MOMENTS_MAX = 4
NEWCOMER_SAFETY_MS = 25_000
"""Long enough for a machine to leave, its lease and the grace period to end, and a new one to come."""
CLOCKS_DIFFER = 0.9


class LoadedWorld(World):
    """Broker hosts are numbered from 0; a host's broker id is on its disk."""

    def __init__(
        self,
        seed: int,
        on_line: Callable[[str], None] | None = None,
        profile: FaultProfile | None = None,
        load: Load | None = None,
    ) -> None:
        self.load = load or draw_load(seed)
        drawn = profile or draw_profile(random.Random(f"faults of {seed}"))
        spare = int(self.load.newcomer)
        self._directories: dict[int, LogDirectories] = {}
        self._newcomers: dict[int, Newcomer] = {}
        self._retired: set[int] = set()
        self._last_served_ms: dict[int, float] = {}
        self._last_heard_ms: dict[int, float] = {}
        """By broker id: when the last heartbeat was sent that was answered while it served."""
        self._asked_ms: float | None = None
        """Since when a newcomer waits that may take over a missing id."""
        self._moments = 0
        self._judged: tuple[Provenance, set[int], str] | None = None
        self._lost_disk: set[int] = set()
        self._holders: dict[int, int] = {}
        self.promises = Promises()
        drawn = replace(drawn, brokers=self.load.brokers + spare)
        if spare and drawn.safety_ms:
            drawn = replace(drawn, safety_ms=NEWCOMER_SAFETY_MS)
        super().__init__(seed, on_line, drawn)
        self._absent: set[int] = {self.load.brokers} if spare else set()
        self.log = CommittedLog(self.marks, self.promises, self._id_taken)
        self.checks = Checks(self.log.apply)
        self.operator = Operator(
            self.engine, self.calls, self.directory, self.load, self.log, self.marks, self._controller_to_ask
        )
        self.engine.trace("world", f"{self.load}")

    def _controller_to_ask(self) -> int:
        active = self._active()
        rng = self.engine.rng
        return rng.choice(self.controller_ids) if active is None or rng.random() < 0.1 else active.node_id

    # ---- machines and processes ------------------------------------------------------------------

    def prepare(self, host: Host, node_id: int) -> None:
        if node_id in self.broker_ids:
            self._directories[node_id] = LogDirectories(node_id, self.load.directories)
            if self.load.generated_ids:
                return
        super().prepare(host, node_id)

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        if node_id in self.controller_ids:
            parts = (host, node_id, self.voters, self.calls, self.directory, self.marks)
            return LoadedController(self.load, self._on_granted, *parts)
        broker_id = self._id_on_disk(node_id)
        if broker_id is not None and self._holders.setdefault(broker_id, node_id) != node_id:
            # Another machine is this broker now: it does not have what its predecessor acknowledged.
            self._holders[broker_id] = node_id
            self._give_up(broker_id)
        parts = (host, broker_id, self.voters, self.calls, self.directory, self.marks)
        key = self._key_of(node_id) if self.load.generated_ids else None
        process = LoadedBroker(
            self.load, self._directories[node_id], key, self.promises, *parts, self.registrations
        )
        self._replicate_soon(node_id, process)
        return process

    @staticmethod
    def _key_of(slot: int) -> str:
        return f"host-{slot}"

    def _id_on_disk(self, slot: int) -> int | None:
        try:
            return load_meta_properties(self.directory[slot].disk, DATA_DIRECTORY).node_id
        except StorageError:
            return None

    def boot(self, node_id: int) -> None:
        if node_id in self.broker_ids:
            if node_id in self._retired or node_id in self._absent:
                return
            if self._id_on_disk(node_id) is None:
                self._start_newcomer(node_id)
                return
        super().boot(node_id)

    def _start_newcomer(self, slot: int) -> None:
        host, known = self.directory[slot], self._newcomers.get(slot)
        if host.process is not None or (known is not None and known.alive):
            return

        def settle(answer: AllocateBrokerIdResponse) -> None:
            if answer.broker_id is None or answer.source is None:
                return
            self.engine.trace(host.name, f"is broker {answer.broker_id} ({answer.source.value})")
            if slot in self._lost_disk and answer.source is ids.IdSource.BINDING:
                self.marks.add("id returned after a lost disk")
            format_host(host, answer.broker_id, self.engine.rng.randbytes(16))
            self.boot(slot)

        self.engine.trace(host.name, "asks who it is")
        if slot == self.load.brokers:
            self._asked_ms = self.engine.now_ms
        newcomer = Newcomer(
            host.name,
            self._key_of(slot),
            self.engine,
            self.calls,
            self.directory,
            self.controller_ids,
            settle,
            reuse_missing=slot == self.load.brokers,
        )
        self._newcomers[slot] = newcomer
        newcomer.ask()

    def loaded_brokers(self) -> list[LoadedBroker]:
        return [process for process in self.brokers() if isinstance(process, LoadedBroker)]

    # ---- replication -----------------------------------------------------------------------------

    def _replicate_soon(self, slot: int, process: LoadedBroker) -> None:
        def step() -> None:
            if not process.alive:
                return
            if not process.paused:
                process.replication.step(lambda leader_id: self._reach(process, leader_id))
            self._replicate_soon(slot, process)

        self.engine.after(self.engine.rng.randint(*REPLICA_STEP_MS), step)

    def _reach(self, source: LoadedBroker, broker_id: int) -> Replication | None:
        """The process that has this id, if it runs and a fetch would reach it."""
        for process in self.loaded_brokers():
            if process.node_id == broker_id and process is not source and not process.paused:
                there, back = process.host.name, source.host.name
                if self.network.is_cut(back, there) or self.network.is_cut(there, back):
                    return None
                return process.replication
        return None

    # ---- the run ---------------------------------------------------------------------------------

    def _throw_faults(self) -> None:
        if self.engine.now_ms <= 2 * STEP_MS:
            self.operator.begin()
            if self._absent:
                self._plan_newcomer()
        super()._throw_faults()
        if not self.faults_on:
            return
        rng, load, seconds = self.engine.rng, self.load, STEP_MS / 1000
        if rng.random() < load.broker_crash_rate * seconds:
            self.crash(rng.choice(self.broker_ids), power_loss=rng.random() < 0.5)
        if rng.random() < load.directory_failure_rate * seconds:
            self.fail_directory(rng.choice(self.broker_ids))
        if rng.random() < load.stall_rate * seconds:
            for process in self.loaded_brokers():
                if rng.random() < 0.5:
                    process.replication.stalled_until_ms = self.engine.now_ms + rng.randint(800, 3_000)

    def _plan_newcomer(self) -> None:
        """A machine leaves for a while, and an empty one that may take over a missing id comes: before the
        grace period is over, or after it."""
        rng = self.engine.rng
        gone = rng.randrange(self.load.brokers)
        leaves_ms = rng.randint(1_500, 5_000)
        comes_ms = leaves_ms + SESSION_TIMEOUT_MS + rng.randint(2_000, 2 * REUSE_GRACE_MS)

        def leave() -> None:
            if self.faults_on:
                self._absent.add(gone)
                self.crash(gone, power_loss=False)

        self.engine.after(leaves_ms, leave)
        self.engine.after(comes_ms, lambda: self._bring(self.load.brokers))
        self.engine.after(leaves_ms + rng.randint(6_000, 20_000), lambda: self._bring(gone))

    def _bring(self, slot: int) -> None:
        self._absent.discard(slot)
        self.boot(slot)

    def fail_directory(self, slot: int) -> None:
        """A log directory of a running broker dies. If it is the last one, the machine is repaired soon."""
        process, directories = self.directory[slot].process, self._directories[slot]
        if process is None or not directories.online:
            return
        failed = self.engine.rng.choice(directories.online)
        self.engine.trace(process.host.name, f"log directory {failed.hex()[-4:]} dies")
        directories.fail(failed)
        if not directories.online:
            self.marks.add("last directory died")
            self.engine.after(self.engine.rng.randint(500, 4_000), lambda: self._repair(slot, failed))

    def _repair(self, slot: int, directory: bytes) -> None:
        if directory in self._directories[slot].dead:
            self.crash(slot, power_loss=False)
            self._replace_dead(slot)

    def _replace_dead(self, slot: int) -> None:
        """Replaces dead disks while the broker is down."""
        directories = self._directories[slot]
        for directory in list(directories.dead):
            self._lose(slot, directory)

    def _lose(self, slot: int, directory: bytes) -> None:
        self.engine.trace(self.directory[slot].name, f"log directory {directory.hex()[-4:]} is empty and new")
        self._directories[slot].replace(directory)
        broker_id = self._id_on_disk(slot)
        if broker_id is not None:
            self._give_up(broker_id)

    def _give_up(self, broker_id: int) -> None:
        """Replicas of a broker may lack what they had, including those that are in sync and not created
        yet."""
        topics = self.log.image.topics
        for row in topics.rows_with_replica(broker_id).tolist():
            partition = topics.at(row)
            self.promises.given_up((partition.topic_id, partition.index), partition.leader_epoch + 1)

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        known = self._newcomers.get(node_id)
        if known is not None:
            known.alive = False
        if known is not None and self.directory[node_id].process is None:
            self.engine.after(self.engine.rng.randint(*self.profile.down_ms), lambda: self.boot(node_id))
        running = self.directory[node_id].process is not None
        super().crash(node_id, power_loss=power_loss)
        if running and node_id in self.broker_ids and self.faults_on:
            self._maybe_lose_disks(node_id)

    def _maybe_lose_disks(self, slot: int) -> None:
        rng, directories = self.engine.rng, self._directories[slot]
        if rng.random() >= self.load.disk_loss_chance:
            return
        if rng.random() < 0.5:
            self._lose(slot, rng.choice(directories.ids))
            return
        for directory in list(directories.ids):
            self._lose(slot, directory)
        host = self.directory[slot]
        broker_id = self._id_on_disk(slot)
        self.engine.trace(host.name, "has lost every disk")
        self.marks.add("every disk of a broker lost")
        self._lost_disk.add(slot)
        host.disk = FaultyDisk(host.rng)
        if not self.load.generated_ids and broker_id is not None:
            format_host(host, broker_id, rng.randbytes(16))

    # ---- after every event -----------------------------------------------------------------------

    def _after_event(self) -> None:
        super()._after_event()
        if self.load.moments_chance and self.faults_on and self._moments < MOMENTS_MAX:
            self._strike_at_moments()

    def _after_step(self) -> None:
        touched = [process for process in self.loaded_brokers() if process.touched]
        super()._after_step()
        for process in touched:
            if process.alive and self._serves(process):
                self._last_served_ms[process.node_id] = self.engine.now_ms
                self._last_heard_ms[process.node_id] = self._heard_ms(process)
                for other in self.loaded_brokers():
                    if other is not process and other.node_id == process.node_id and self._serves(other):
                        raise SafetyError(
                            f"{process.host.name} and {other.host.name} both serve as broker {other.node_id}"
                        )

    @staticmethod
    def _serves(process: LoadedBroker) -> bool:
        return not process.paused and process.node.serves(process.host.monotonic_ms())

    def _heard_ms(self, process: LoadedBroker) -> float:
        lease_ms = process.node._session.lease.end_ms
        if lease_ms is None:
            return self.engine.now_ms
        return self.engine.now_ms - (process.host.monotonic_ms() - (lease_ms - SESSION_TIMEOUT_MS))

    def _strike_at_moments(self) -> None:
        """The active controller dies in the middle of something that takes several batches."""
        active = self._active()
        if not isinstance(active, LoadedController):
            return
        chance = self.load.moments_chance
        chance = chance if active.between_batches() else chance / 20 if active.shutdown_under_way() else 0.0
        if chance and self.engine.rng.random() < chance:
            self._moments += 1
            self.crash(active.node_id, power_loss=True)

    def _id_taken(self, broker_id: int) -> str | None:
        for process in self.loaded_brokers():
            if process.node_id == broker_id and self._serves(process):
                return f"{process.host.name} serves as this broker"
        last_ms = self._last_served_ms.get(broker_id)
        if last_ms is None:
            return None
        # Who asked while the session was open waits for its end, and for no grace period. A broker that is
        # cut off serves until nearly then.
        waited = self._asked_ms is not None and self._asked_ms <= last_ms + SESSION_TIMEOUT_MS
        did, since_ms, least_ms = "served", last_ms, REUSE_GRACE_MS
        if waited:
            did, since_ms, least_ms = "was heard", self._last_heard_ms[broker_id], SESSION_TIMEOUT_MS
        if self.engine.now_ms - since_ms < CLOCKS_DIFFER * least_ms:
            return f"it {did} {self.engine.now_ms - since_ms:.0f} ms ago, within {least_ms} ms"
        return None

    def _on_granted(self, controller: LoadedController, broker_id: int, leaving: bool) -> None:
        """A broker is about to get permission to stop (K9)."""
        image = controller.node.ledger.committed.image
        if leads_any(image, broker_id):
            raise SafetyError(f"broker {broker_id} may stop, and leads partitions in the committed image")
        if not leaving:
            return  # it was fenced, or led nothing at its first request
        for process in self.loaded_brokers():
            registered = image.brokers.get(process.node_id)
            if process.node_id == broker_id or registered is None or not registered.is_active:
                continue
            current = registered.incarnation_id == process.incarnation_id
            if current and process.image is not None and leads_any(process.image, broker_id):
                raise SafetyError(
                    f"broker {broker_id} may stop, and {process.host.name} still takes it for a leader"
                )
        self.marks.add("controlled shutdown granted after its moves were seen")

    # ---- healing ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.faults_on = False
        self.operator.running = False
        self._absent.clear()
        self._retire_doubles()
        for slot in self.broker_ids:
            if self._directories[slot].dead:
                self.crash(slot, power_loss=False)
                self._replace_dead(slot)
        super()._heal()
        accept_losses(self.engine, self.log, self.ask_active, self.marks)
        for slot in self.broker_ids:
            self.boot(slot)

    def _retire_doubles(self) -> None:
        """If two machines have one id, the operator stops the one that is refused."""
        by_id: dict[int, list[int]] = {}
        for slot in self.broker_ids:
            broker_id = self._id_on_disk(slot)
            if broker_id is not None:
                by_id.setdefault(broker_id, []).append(slot)
        for broker_id, slots in by_id.items():
            if len(slots) < 2:
                continue
            self.marks.add("an id was taken over by another machine")
            known = self.log.image.brokers.get(broker_id)
            processes = {slot: self.directory[slot].process for slot in slots}
            holder = next(
                (
                    slot
                    for slot, process in processes.items()
                    if isinstance(process, LoadedBroker)
                    and known is not None
                    and process.incarnation_id == known.incarnation_id
                ),
                slots[-1],
            )
            for slot in slots:
                if slot != holder:
                    self._retired.add(slot)
                    self.crash(slot, power_loss=False)

    def unwell_brokers(self, active: ControllerProcess) -> str:
        image = active.node.ledger.committed.image
        live: set[int] = set()
        for slot in self.broker_ids:
            if slot in self._retired or slot in self._absent:
                continue
            host = self.directory[slot]
            process = host.process
            if not isinstance(process, LoadedBroker):
                known = self._newcomers.get(slot)
                return f"{host.name} is down" + (f": {known.last_problem}" if known is not None else "")
            registration = image.brokers.get(process.node_id)
            serves = process.node.serves(host.monotonic_ms())
            if not serves or registration is None or not registration.is_active:
                status = process.node.status(now_ms=host.monotonic_ms())
                return (
                    f"{host.name} is {status.state.name}: {status.last_problem}; registered: {registration}"
                )
            live.add(process.node_id)
        if self._judged is None or self._judged[:2] != (image.provenance, live):
            self._judged = image.provenance, live, self._unwell_image(image, live)
        return self._judged[2]

    def _unwell_image(self, image: MetadataImage, live: set[int]) -> str:
        for row in image.topics.columns.live_rows().tolist():
            problem = self._unwell_partition(image, image.topics.at(row), live)
            if problem:
                return problem
        return _unwell_bindings(image)

    def _unwell_partition(self, image: MetadataImage, partition: PartitionInfo, live: set[int]) -> str:
        """Leaderless, moving or not in sync for no reason; empty if it is fine or cannot recover."""
        name = CommittedLog.name_of(image, partition)
        if partition.leader == NO_LEADER:
            able = set(partition.isr) & live
            if unclean_allowed(image, partition.topic_id):
                able = set(partition.replicas) & live
            return f"{name} has no leader, and {sorted(able)} could lead: {partition}" if able else ""
        missing = (set(partition.replicas) & live) - set(partition.isr)
        if missing:
            return f"{name}: {sorted(missing)} run and are not in the ISR: {partition}"
        if (partition.adding or partition.removing) and set(partition.replicas) <= live:
            return f"{name}: its reassignment does not end: {partition}"
        return ""


def _unwell_bindings(image: MetadataImage) -> str:
    """No binding to the id of a running broker exists besides the one with which it registered (S0.18)."""
    entries = ids.remembered(image)
    bindings = ids.bindings(entries)
    for broker_id, known in image.brokers.items():
        key = ids.current_key(entries, broker_id)
        keys = [each.key for each in bindings if each.broker_id == broker_id]
        if not known.fenced and key in keys and len(keys) > 1:
            return f"{keys} are bound to broker {broker_id}, which registered with {key}"
    return ""
