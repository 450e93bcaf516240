"""A world whose brokers have coordinators and a cleaner, with groups and transactional producers.

Adds to `DataWorld` the brokers of `broker`, the clients of `producers` and `members`, the laws of `laws` and
`history`, and the conditions under which transactions and groups have recovered after healing.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.broker.coordinator.coordinators import Coordinators
from metaquorum.broker.coordinator.transaction import TransactionState
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.image import MetadataImage
from tests.sim.data_broker import DataBroker
from tests.sim.data_world import DataController, DataWorld
from tests.sim.host import Host
from tests.sim.kafka.broker import KafkaBroker
from tests.sim.kafka.clients import KafkaClients
from tests.sim.kafka.history import GroupHistory, TransactionHistory
from tests.sim.kafka.later_release import LaterRelease, is_there
from tests.sim.kafka.laws import KafkaLaws, batches_of_truth
from tests.sim.kafka.members import CLASSIC, CONSUMER, ClassicMember, ConsumerMember
from tests.sim.kafka.plan import SOURCE, KafkaLoad, draw_kafka_load, draw_kafka_profile
from tests.sim.kafka.producers import Copier, Worker, Writer
from tests.sim.kafka.verify import CommittedLogs, verify_copies, verify_offsets, verify_transactions
from tests.sim.processes import BrokerProcess, ControllerProcess
from tests.sim.profile import FaultProfile

LOOK_MS = 25


class KafkaWorld(DataWorld):
    """See the module."""

    laws: KafkaLaws

    def __init__(
        self,
        seed: int,
        on_line: Callable[[str], None] | None = None,
        profile: FaultProfile | None = None,
        kafka: KafkaLoad | None = None,
    ) -> None:
        self.kafka = kafka or draw_kafka_load(seed)
        load = self.kafka.data
        super().__init__(seed, on_line, profile or draw_kafka_profile(seed, self.kafka), load)
        self.lanes = [each for each in self.lanes if each.topic == SOURCE]
        self.readers = []
        self.transactions = TransactionHistory()
        self.clients_of_kafka = KafkaClients(self.cluster, self.laws)
        self._look_at_ms = 0.0
        self.workers = self._workers()
        self.groups = {name: GroupHistory(name) for name in (CLASSIC, CONSUMER)}
        self.consumers = [
            ConsumerMember(
                f"consumer{number}",
                self.groups[CONSUMER],
                self.clients_of_kafka,
                self.transactions,
                self.kafka,
            )
            for number in range(self.kafka.consumer_members)
        ]
        for each in self.consumers:
            each.others = self.consumers
        self.members = [
            ClassicMember(
                f"classic{number}", self.groups[CLASSIC], self.clients_of_kafka, self.transactions, self.kafka
            )
            for number in range(self.kafka.classic_members)
        ]

    def make_laws(self) -> KafkaLaws:
        return KafkaLaws(self.marks, lambda: self.log.image)

    def _workers(self) -> list[Worker]:
        parts = (self.clients_of_kafka, self.transactions, self.kafka)
        writers = [Writer(f"writer{number}", *parts) for number in range(self.kafka.writers)]
        return [*writers, *(Copier(index, *parts) for index in range(self.kafka.copiers))]

    def _begin_clients(self) -> None:
        super()._begin_clients()
        for worker in self.workers:
            self.engine.after(self.engine.rng.random() * 500, worker.begin)
        for member in (*self.members, *self.consumers):
            self.clients_of_kafka.begin(member.name, member.run())
        if is_there(self.seed):
            LaterRelease(self.clients_of_kafka, self.seed).begin()

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        parts = (host, node_id, self.voters, self.calls, self.directory, self.marks)
        if node_id in self.controller_ids:
            return DataController(self.load, *parts)
        return KafkaBroker(self.kafka, self.load, self.data[node_id], self.laws, *parts, self.registrations)

    # ---- after every event -----------------------------------------------------------------------

    def _after_step(self) -> None:
        touched = [each for each in self.data_brokers() if each.touched]
        super()._after_step()
        for process in touched:
            if process.alive and isinstance(process, KafkaBroker):
                self._look_at_coordinators(process)

    def _look_at_coordinators(self, process: KafkaBroker) -> None:
        user = process.manager._user
        if not isinstance(user, Coordinators):
            return
        for key, shard in user._shards.items():
            if shard.is_active and isinstance(shard.state, TransactionState):
                self.laws.coordinates(process, key[1], shard.state, shard.epoch)

    # ---- healing ---------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.clients_of_kafka.running = False
        super()._heal()

    def _is_well(self) -> bool:
        """Checked at intervals, because it costs more than most events."""
        if self.engine.now_ms < self._look_at_ms or self.clients_of_kafka.unfinished():
            return False
        self._look_at_ms = self.engine.now_ms + LOOK_MS
        return super()._is_well()

    def _what_is_unwell(self) -> str:
        unfinished = self.clients_of_kafka.unfinished()
        return f"{unfinished} does not come to an end" if unfinished else super()._what_is_unwell()

    def _unwell_clients(self, image: MetadataImage, brokers: dict[int, DataBroker]) -> str:
        problem = super()._unwell_clients(image, brokers)
        if problem:
            return problem
        for process in brokers.values():
            for key, partition in process.partitions().items():
                if (
                    partition.role is ReplicaRole.LEADER
                    and partition.last_stable_offset < partition.high_watermark
                ):
                    first = partition.last_stable_offset
                    return f"{self.laws.name_of(key)}: a transaction is under way from {first} on"
        return self._unwell_coordinators(brokers)

    def _unwell_coordinators(self, brokers: dict[int, DataBroker]) -> str:
        """Every decided transaction is completed."""
        for process in brokers.values():
            user = process.manager._user
            shards = user._shards.values() if isinstance(user, Coordinators) else ()
            for shard in shards:
                if not shard.is_active:
                    return (
                        f"{process.host.name}: the coordinator of {shard} is not in office: {shard.problem}"
                    )
                if isinstance(shard.state, TransactionState):
                    open_ones = [each for each in shard.state.transactions.values() if each.partitions]
                    if open_ones:
                        return f"{open_ones[0]} is not completed"
        return ""

    def _last_words(self) -> None:
        super()._last_words()
        logs = CommittedLogs()
        brokers = {process.node_id: process for process in self.data_brokers()}
        topics = self.log.image.topics
        for row in topics.columns.live_rows().tolist():
            info = topics.at(row)
            key = (info.topic_id, info.index)
            topic = topics.topic(info.topic_id)
            truth = self.laws.truth(key, 0)
            # After an accepted loss, what was committed before it does not determine what exists now.
            was_lost = bool(self.laws.generation(key, info.leader_epoch))
            if topic is not None:
                logs.walk((topic.name, info.index), batches_of_truth(truth), was_lost=was_lost)
            if self.laws.is_compacted(key) and not was_lost:
                for member in info.replicas:
                    process = brokers[member]
                    replica: Partition = process.partitions()[key]
                    name = f"{process.host.name} {self.laws.name_of(key)} at the end"
                    own = self.laws.batches_of(process, replica)
                    self.laws.require_values(name, truth, own, self.laws.passed(member, key))
        verify_transactions(logs, self.transactions)
        self.marks.counts["copies checked"] += verify_copies(logs)
        for group in self.groups.values():
            verify_offsets(logs, group)
