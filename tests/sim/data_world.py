"""A world whose brokers hold data: real replicas in real directory stores, with producers and consumers.

Adds to `World` the brokers of `data_broker`, the faults of `data_faults`, the laws of `data_laws`, and the
conditions under which partition data has recovered after healing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.features import ELR_VERSION, LEVEL_ELR_RECORDS
from metaquorum.metadata.image import UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import NO_LEADER, FeatureLevelRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.partition.replica_directory import parse_replica_name
from tests.sim.checks import Checks
from tests.sim.committed import CommittedLog
from tests.sim.data_broker import DataBroker
from tests.sim.data_clients import Cluster
from tests.sim.data_disks import DataDirectories, DataDirectory
from tests.sim.data_faults import DataFaults
from tests.sim.data_laws import DataLaws
from tests.sim.data_load import DataLoad, draw_data_load, draw_data_profile
from tests.sim.data_producers import Lane, lanes_of
from tests.sim.data_readers import Reader
from tests.sim.data_verify import verify_lane
from tests.sim.errors import SafetyError
from tests.sim.host import Host, Process
from tests.sim.losses import accept_losses
from tests.sim.processes import BrokerProcess, ControllerProcess
from tests.sim.profile import FaultProfile
from tests.sim.world import World

LANES_AT_FULL_RATE = 4
"""With more producers than this, each is slower: the cost of a run is what it writes."""


_ELIGIBLE_LEADERS = (
    FeatureLevelRecord(name="metadata.version", feature_level=LEVEL_ELR_RECORDS),
    FeatureLevelRecord(name=ELR_VERSION, feature_level=1),
)


class DataController(ControllerProcess):
    """A controller whose slices and clocks are those of the load."""

    def __init__(self, load: DataLoad, *parts: Any) -> None:
        self.load = load
        super().__init__(*parts)

    def make_config(self) -> ControllerConfig:
        return replace(
            super().make_config(),
            bootstrap=_ELIGIBLE_LEADERS if self.load.eligible_leaders else (),
            records_per_slice_max=self.load.slice_records,
            leader_imbalance_check_interval_ms=2_000,
        )


class DataWorld(World):
    """Brokers are numbered from 0."""

    def __init__(
        self,
        seed: int,
        on_line: Callable[[str], None] | None = None,
        profile: FaultProfile | None = None,
        load: DataLoad | None = None,
    ) -> None:
        self.load = load or draw_data_load(seed)
        self.data: dict[int, DataDirectories] = {}
        super().__init__(seed, on_line, profile or draw_data_profile(seed, self.load))
        self.laws = self.make_laws()
        self.laws.others = self._others
        self.laws.on_created = self._strike_after_creation
        self._struck = False
        self._rot_rng = random.Random(f"rot in {seed}")
        self.log = CommittedLog(self.marks, self.laws, lambda broker_id: None)
        self.checks = Checks(self._committed)
        self.cluster = Cluster(
            self.engine, self.calls, self.directory, self.broker_ids, self.laws, self.marks, self.load
        )
        self.lanes = lanes_of(self.load, self.cluster)
        self.readers = [
            Reader(f"r{number}-{plan.name}-{index}", self.cluster, plan.name, index)
            for number in range(self.load.consumers)
            for plan in self.load.topics
            for index in range(plan.partitions)
        ]
        self.faults = DataFaults(self)
        self.producing = True
        self.engine.trace("world", f"{self.load}")
        self.engine.after(300, self._begin_clients)

    def make_laws(self) -> DataLaws:
        return DataLaws(self.marks, lambda: self.log.image)

    def _begin_clients(self) -> None:
        self.faults.keep_topics()
        for lane in self.lanes:
            self._produce_soon(lane)
        for reader in self.readers:
            reader.begin()

    def _produce_soon(self, lane: Lane) -> None:
        def produce() -> None:
            if self.producing:
                lane.add()
                self._produce_soon(lane)

        pause_ms = self.engine.rng.randint(*self.load.produce_pause_ms)
        self.engine.after(pause_ms * max(1.0, len(self.lanes) / LANES_AT_FULL_RATE), produce)

    # ---- machines and processes ------------------------------------------------------------------

    def prepare(self, host: Host, node_id: int) -> None:
        if node_id in self.broker_ids:
            self.data[node_id] = DataDirectories(node_id, self.load.directories, host.rng)
        super().prepare(host, node_id)

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        parts = (host, node_id, self.voters, self.calls, self.directory, self.marks)
        if node_id in self.controller_ids:
            return DataController(self.load, *parts)
        return DataBroker(self.load, self.data[node_id], self.laws, *parts, self.registrations)

    @staticmethod
    def data_part(process: Process | None) -> DataBroker | None:
        """The broker in a process; None if there is none."""
        found = None if process is None else process.broker
        return found if isinstance(found, DataBroker) else None

    def data_brokers(self) -> list[DataBroker]:
        return [process for process in self.brokers() if isinstance(process, DataBroker)]

    def _others(self, process: DataBroker) -> Iterator[DataBroker]:
        return (other for other in self.data_brokers() if other is not process)

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        part = self.data_part(self.directory[node_id].process)
        super().crash(node_id, power_loss=power_loss)
        if part is not None:
            unsynced = any(each.written_end > each.synced_end for each in part.partitions().values())
            if power_loss and unsynced:
                self.marks.add("unsynced records lost")
            self._process_gone(node_id, power_loss=power_loss)

    def _process_gone(self, node_id: int, *, power_loss: bool) -> None:
        self.data[node_id].ended(power_loss=power_loss)
        if self.faults_on:
            self._look_after_directories(node_id)

    def _look_after_directories(self, node_id: int) -> None:
        """Between two processes an operator may repair or replace bad directories, or lose good ones; without
        a directory that works, the next process could not start."""
        rng, load, directories = self.engine.rng, self.load, self.data[node_id]
        for directory in directories.bad():
            if rng.random() < load.repaired_chance or not directories.good():
                self._repair(node_id, directory, emptied=rng.random() < load.emptied_chance)
        if directories.good() and rng.random() < load.emptied_chance / 8:
            self._empty(node_id, rng.choice(directories.good()))
        for directory in directories.good():
            if self._rot_rng.random() < load.rot_chance:
                self.rot(node_id, directory)

    def rot(self, node_id: int, directory: DataDirectory, name: str | None = None) -> bool:
        """Damages one of the replicas of a directory that no process uses; False: none can be damaged."""
        names = [each for each in directory.disk.list_directory(directory.path) if parse_replica_name(each)]
        chosen = name or (self._rot_rng.choice(names) if names else None)
        if chosen is None or chosen in directory.rotten or not directory.rot(chosen):
            return False
        self.engine.trace(self.directory[node_id].name, f"{directory.path}/{chosen} rots")
        self.marks.add("replica damaged")
        return True

    def restore(self, node_id: int) -> None:
        """Undoes all damage; no process may use the directories."""
        for directory in self.data[node_id].good():
            self.laws.came_back(directory.restore())

    def _repair(self, node_id: int, directory: DataDirectory, *, emptied: bool) -> None:
        if emptied:
            self._empty(node_id, directory)
        if directory.dead or directory.hung:
            self.engine.trace(self.directory[node_id].name, f"{directory.path} works again")
            self.marks.add("directory came back")
            directory.repair()

    def _empty(self, node_id: int, directory: DataDirectory) -> None:
        """Replaces the disk; usually only if other replicas have its data."""
        if self.laws.would_lose(node_id, directory.directory_id) and self.engine.rng.random() < 0.9:
            return
        self.engine.trace(self.directory[node_id].name, f"{directory.path} is empty and new")
        self.marks.add("directory replaced by an empty one")
        self.laws.disk_lost(node_id, self.log.image, directory.directory_id)
        directory.replace()

    def _ended(self, node_id: int, host: Host, process: Process) -> None:
        stopped, part = process.stopped, self.data_part(process)
        if part is not None and stopped is not None:
            part.close(clean=not stopped.failed)
            self._process_gone(node_id, power_loss=False)
        super()._ended(node_id, host, process)

    def may_fail(self, node_id: int, reason: str) -> bool:
        process = self.directory[node_id].process
        if node_id in self.broker_ids and "director" in reason:
            self.marks.add("broker stopped for its directories")
            return True
        return super().may_fail(node_id, reason) and process is None

    def fail_directory(self, node_id: int, *, leave_one: bool = False) -> None:
        """A log directory dies. A while later the broker is restarted."""
        directories = self.data[node_id]
        good = directories.good()
        if len(good) > int(leave_one):
            chosen = self.engine.rng.choice(good)
            self.engine.trace(self.directory[node_id].name, f"{chosen.path} dies")
            chosen.die()
            self._restart_later(node_id)

    def _strike_after_creation(self, process: DataBroker, directory_id: bytes) -> None:
        """Once per run, a directory dies after a replica was created and before the log names it."""
        if not self.faults_on or self._struck or not self.load.directory_death_rate:
            return
        if len(self.data[process.node_id].good()) > 1 and self.engine.rng.random() < 0.5:
            self._struck = True
            directory = self.data[process.node_id].by_id(directory_id)
            self.engine.trace(process.host.name, f"{directory.path} dies with a replica that was just made")
            directory.die()
            self._restart_later(process.node_id)

    def hang_directory(self, node_id: int, *, for_ms: int | None) -> None:
        """A log directory hangs, for a while or until it is considered failed."""
        process, good = self.data_part(self.directory[node_id].process), self.data[node_id].good()
        if process is None or not good:
            return
        chosen = self.engine.rng.choice(good)
        worker = process.workers.get(chosen.directory_id)
        if worker is None or not worker.works:
            return
        self.engine.trace(process.host.name, f"{chosen.path} hangs" + (f" for {for_ms} ms" if for_ms else ""))
        worker.hang()
        if for_ms is None:
            self._restart_later(node_id)
        else:
            self.engine.after(for_ms, lambda: worker.go_on() if worker.works else None)

    def _restart_later(self, node_id: int) -> None:
        def restart() -> None:
            if self.faults_on and self.data[node_id].bad():
                self.crash(node_id, power_loss=False)

        self.engine.after(self.engine.rng.randint(800, 5_000), restart)

    # ---- the run ---------------------------------------------------------------------------------

    def _throw_faults(self) -> None:
        super()._throw_faults()
        if self.faults_on:
            self.faults.step()

    def _committed(self, batch: RecordBatch) -> MetadataImage:
        before = self.log.image
        image = self.log.apply(batch)
        if image is not before:
            self._require_assigned(before, image)
            self.laws.metadata_moved(image)
        return image

    def _require_assigned(self, before: MetadataImage, image: MetadataImage) -> None:
        """No replica rejoins an ISR before the log says which directory it is in (S3.6)."""
        if image.topics is before.topics:
            return
        for row in image.topics.columns.live_rows().tolist():
            partition = image.topics.at(row)
            old = before.topics.partition(partition.topic_id, partition.index)
            if old is None or old == partition:
                continue
            for member in set(partition.isr) - set(old.isr):
                elected = member == partition.leader != old.leader  # uncleanly, with whatever it has
                if partition.directory_of(member) in (None, UNASSIGNED) and not elected:
                    raise SafetyError(
                        f"broker {member} joined the ISR before its directory was known: {partition}"
                    )
                self.marks.add("ISR expanded")
            if set(partition.isr) < set(old.isr) and partition.leader_epoch == old.leader_epoch:
                self.marks.add("ISR shrunk")

    def _after_step(self) -> None:
        touched = [each for each in self.data_brokers() if each.touched]
        super()._after_step()
        for process in touched:
            if process.alive:
                self.laws.after_event(process)

    # ---- healing ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.faults_on = False
        self.producing = False
        for node_id in self.broker_ids:
            directories = self.data[node_id]
            if directories.bad():
                self.crash(node_id, power_loss=False)
                for directory in directories.bad():
                    self._repair(node_id, directory, emptied=False)
            if any(each.rotten for each in directories.all):
                self.crash(node_id, power_loss=False)
                self.restore(node_id)
        super()._heal()
        accept_losses(self.engine, self.log, self.ask_active, self.marks)

    def unwell_brokers(self, active: ControllerProcess) -> str:
        problem = super().unwell_brokers(active)
        if problem:
            return problem
        image = active.node.ledger.committed.image
        brokers = {process.node_id: process for process in self.data_brokers()}
        for plan in self.load.topics:
            if image.topics.topic_named(plan.name) is None:
                return f"topic {plan.name} does not exist"
        for row in image.topics.columns.live_rows().tolist():
            problem = self._unwell_partition(image, image.topics.at(row), brokers)
            if problem:
                return problem
        problem = self._strays(image, brokers)
        return problem if problem or self.producing else self._unwell_clients(image, brokers)

    def _unwell_partition(
        self, image: MetadataImage, partition: PartitionInfo, brokers: dict[int, DataBroker]
    ) -> str:
        name = CommittedLog.name_of(image, partition)
        if partition.leader == NO_LEADER:
            return f"{name} has no leader: {partition}"
        if set(partition.isr) != set(partition.replicas) or partition.adding or partition.removing:
            return f"{name} is not in sync: {partition}"
        key = (partition.topic_id, partition.index)
        leader = brokers[partition.leader].partitions().get(key)
        if leader is None or leader.role is not ReplicaRole.LEADER:
            return f"{name}: broker {partition.leader} does not lead"
        for member in partition.replicas:
            replica = brokers[member].partitions().get(key)
            if replica is None:
                return f"{name}: broker {member} has no replica"
            if self.producing:
                continue
            ends = (replica.end_offset, replica.synced_end, replica.high_watermark)
            if ends != (leader.end_offset,) * 3:
                return f"{name}: broker {member} stands at {ends}, the leader ends at {leader.end_offset}"
        return ""

    def _unwell_clients(self, image: MetadataImage, brokers: dict[int, DataBroker]) -> str:
        for lane in self.lanes:
            if not lane.is_idle():
                return f"{lane.name} waits for answers to {list(lane.waiting)[:2]}"
        for reader in self.readers:
            info = image.topics.topic_named(reader.topic)
            if info is None:
                return f"{reader.name} has no topic"
            index = int(reader.name.rsplit("-", 1)[1])
            partition = image.topics.partition(info.topic_id, index)
            if partition is None:
                return f"{reader.name} has no partition"
            leader = brokers[partition.leader].partitions()[info.topic_id, index]
            if reader.position != leader.high_watermark:
                return f"{reader.name} stands at {reader.position}, the log ends at {leader.high_watermark}"
        return ""

    @staticmethod
    def _strays(image: MetadataImage, brokers: dict[int, DataBroker]) -> str:
        """Replicas that the log does not place on these brokers (S3.21: including those of topics that were
        deleted while their broker was down)."""
        for process in brokers.values():
            for key in process.partitions():
                partition = image.topics.partition(*key)
                if partition is None or process.node_id not in partition.replicas:
                    return f"{process.host.name} keeps a stray replica of {key[0].hex()[-6:]}-{key[1]}"
        return ""

    def _last_words(self) -> None:
        super()._last_words()
        brokers = {process.node_id: process for process in self.data_brokers()}
        for process in brokers.values():
            for partition in process.partitions().values():
                self.laws.check_whole(process, partition)
        for lane in self.lanes:
            verify_lane(lane, self.log.image, brokers, self.laws)
        self.marks.counts["records acknowledged and checked"] += self.laws.acknowledged
