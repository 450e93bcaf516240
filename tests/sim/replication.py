"""Partitions on a simulated broker: it leads and follows according to its own applied image, nothing newer.

The replicas in a host's log directories, and the work of a partition leader: which replicas are in sync,
what is acknowledged, and the AlterPartition requests that follow from it. A fetch is one step in which a
follower copies from the leader that both images name; of the network between brokers only its cuts are
simulated. What a directory holds survives crashes: records are synced before they count (promises that only
replication keeps are KIP-966's subject).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metaquorum.broker.node import BrokerNode
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, PartitionInfo
from metaquorum.metadata.records.types import LEADER_RECOVERED, LEADER_RECOVERING
from metaquorum.metadata.requests.partitions import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    IsrMember,
    PartitionAlteration,
    ReplicaAssignment,
)
from metaquorum.storage.uuids import UUID_BYTES
from tests.sim.engine import Engine
from tests.sim.load import Load
from tests.sim.marks import Marks
from tests.sim.promises import PartitionKey, Promises

LAG_MS = 900
REQUEST_TIMEOUT_MS = 1_000
PAUSE_AFTER_REFUSAL_MS = 300
RECORDS_MAX = 40
REMEMBERED_MAX = 20

Send = Callable[[Any, int, Callable[[Any], None], Callable[[], None]], None]
"""(request, timeout in ms, called with a response, called without one)."""


@dataclass(slots=True)
class Replica:
    """A replica's records and the directory that holds them."""

    directory: bytes
    log: list[int] = field(default_factory=list)


class LogDirectories:
    """The log directories of one host, which outlive its processes. A new disk gets a new id."""

    def __init__(self, slot: int, count: int) -> None:
        self._slot = slot
        self._made = 0
        self.ids: list[bytes] = [self._new_id() for _ in range(count)]
        self.dead: list[bytes] = []
        self.replicas: dict[PartitionKey, Replica] = {}

    def _new_id(self) -> bytes:
        self._made += 1
        return bytes([8] * (UUID_BYTES - 8)) + (self._slot << 16 | self._made).to_bytes(8, "big")

    @property
    def online(self) -> list[bytes]:
        return [each for each in self.ids if each not in self.dead]

    def fail(self, directory: bytes) -> None:
        """From now on nothing can be read from the directory or written to it."""
        self.dead.append(directory)

    def replace(self, directory: bytes) -> list[PartitionKey]:
        """Replaces the disk with an empty one; returns the partitions whose records are lost."""
        self.ids[self.ids.index(directory)] = self._new_id()
        self.dead = [each for each in self.dead if each != directory]
        lost = [key for key, replica in self.replicas.items() if replica.directory == directory]
        for key in lost:
            del self.replicas[key]
        return lost


@dataclass(slots=True)
class _Follower:
    """A follower as its leader knows it, from its fetches."""

    position: int
    broker_epoch: int | None
    caught_up_ms: float


@dataclass(slots=True)
class _Alteration:
    """A request in flight. `unanswered`: attempts whose outcome is unknown."""

    wanted: PartitionAlteration
    unanswered: int = 0


@dataclass(slots=True)
class Leading:
    """One leadership. `maybe_in_sync`: brokers that may be in the ISR because the outcome of a request is
    unknown."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    recovery_state: int
    began_ms: float
    acknowledged: int = 0
    followers: dict[int, _Follower] = field(default_factory=dict)
    pending: _Alteration | None = None
    maybe_in_sync: tuple[int, ...] = ()
    awaits_image: bool = False
    next_alter_ms: float = 0.0

    def maximal_isr(self) -> list[int]:
        """Every broker that must have a record before it is acknowledged (KIP-497)."""
        proposed = [] if self.pending is None else [each.broker_id for each in self.pending.wanted.isr]
        return list(dict.fromkeys((*self.isr, *proposed, *self.maybe_in_sync)))

    def take(self, isr: tuple[int, ...], partition_epoch: int, recovery_state: int) -> None:
        """Takes the committed state of a newer partition epoch, which settles any unknown outcome."""
        self.isr, self.partition_epoch, self.recovery_state = isr, partition_epoch, recovery_state
        self.pending, self.maybe_in_sync, self.awaits_image = None, (), False


class Replication:
    """The partitions of one broker process."""

    def __init__(
        self,
        broker_id: int,
        node: Callable[[], BrokerNode],
        now_ms: Callable[[], int],
        directories: LogDirectories,
        engine: Engine,
        load: Load,
        promises: Promises,
        marks: Marks,
        send: Send,
    ) -> None:
        self.broker_id = broker_id
        self._node = node
        self._now_ms = now_ms
        self.directories = directories
        self._engine = engine
        self._load = load
        self._promises = promises
        self._marks = marks
        self._send = send
        self._image: MetadataImage | None = None
        self._partitions: dict[PartitionKey, PartitionInfo] = {}
        self.leading: dict[PartitionKey, Leading] = {}
        self.stalled_until_ms = 0.0
        self._assigning = False
        self._past: list[AlterPartitionRequest] = []

    def publish(self, image: MetadataImage) -> None:
        """The broker has a newer image."""
        self._image = image
        mine = image.topics.rows_with_replica(self.broker_id).tolist()
        found = [image.topics.at(row) for row in mine]
        self._partitions = {(each.topic_id, each.index): each for each in found}
        replicas = self.directories.replicas
        for key in [key for key in replicas if key not in self._partitions]:
            del replicas[key]
        for key in [key for key in self.leading if key not in self._partitions]:
            del self.leading[key]

    # ---- a step ----------------------------------------------------------------------------------

    def step(self, leader_of: Callable[[int], Replication | None]) -> None:
        """Creates missing replicas, fetches from leaders that can be reached, and leads. `leader_of` finds a
        broker's process over the network in its current state."""
        if self._image is None:
            return
        serves = self._load.leads_without_lease or not self._node().status(now_ms=self._now_ms()).fenced
        for key, partition in self._partitions.items():
            replica = self._replica(key, partition)
            if replica is None or replica.directory not in self.directories.online:
                self.leading.pop(key, None)
            elif partition.leader == self.broker_id:
                if serves:
                    self._lead(key, partition, replica)
            else:
                self.leading.pop(key, None)
                if partition.leader >= 0 and self._engine.now_ms >= self.stalled_until_ms:
                    self._fetch(key, partition, replica, leader_of(partition.leader))
        self._say_where_replicas_are()
        self._repeat_something_old()

    def _replica(self, key: PartitionKey, partition: PartitionInfo) -> Replica | None:
        replicas, rng = self.directories.replicas, self._engine.rng
        replica = replicas.get(key)
        if replica is None:
            wanted = partition.directory_of(self.broker_id) or b""
            online = self.directories.online
            if not online or wanted in self.directories.dead:
                return None
            replica = replicas[key] = Replica(wanted if wanted in online else rng.choice(online))
        elif rng.random() < self._load.move_chance and replica.directory in self.directories.online:
            replica.directory = rng.choice(self.directories.online)
        return replica

    def _fetch(
        self, key: PartitionKey, partition: PartitionInfo, replica: Replica, leader: Replication | None
    ) -> None:
        """Truncates to what it has in common with the leader and copies what follows, which also reports this
        replica's position to the leader."""
        theirs = None if leader is None else leader.leading.get(key)
        if leader is None or theirs is None or theirs.leader_epoch != partition.leader_epoch:
            return
        source = leader.directories.replicas[key].log
        common = 0
        while common < min(len(source), len(replica.log)) and source[common] == replica.log[common]:
            common += 1
        copied = self._engine.rng.randint(1, RECORDS_MAX)
        replica.log = source[: max(common, min(len(source), common + copied))]
        epoch = self._node().status(now_ms=self._now_ms()).broker_epoch
        known = theirs.followers.get(self.broker_id)
        now_ms = self._engine.now_ms
        if len(replica.log) == len(source):
            caught_up_ms = now_ms
        else:
            caught_up_ms = theirs.began_ms if known is None else known.caught_up_ms
        theirs.followers[self.broker_id] = _Follower(len(replica.log), epoch, caught_up_ms)

    # ---- leading ---------------------------------------------------------------------------------

    def _lead(self, key: PartitionKey, partition: PartitionInfo, replica: Replica) -> None:
        now_ms = self._engine.now_ms
        led = self.leading.get(key)
        if led is None or led.leader_epoch < partition.leader_epoch:
            self._promises.leader_begins(key, partition.leader_epoch, replica.log, self.broker_id)
            led = self.leading[key] = Leading(
                partition.leader_epoch,
                partition.partition_epoch,
                partition.isr,
                partition.leader_recovery_state,
                now_ms,
            )
        elif partition.partition_epoch > led.partition_epoch:
            led.take(partition.isr, partition.partition_epoch, partition.leader_recovery_state)
        if len(replica.log) < RECORDS_MAX and self._engine.rng.random() < self._load.write_chance:
            replica.log.append(self._engine.rng.getrandbits(48))
        self._acknowledge(key, led, replica)
        if led.pending is None and not led.awaits_image and now_ms >= led.next_alter_ms:
            wanted = self._wanted_isr(key, partition, led, replica, now_ms)
            if wanted is not None:
                led.pending = _Alteration(wanted)
                self._alter(key, led, led.pending)

    def _acknowledge(self, key: PartitionKey, led: Leading, replica: Replica) -> None:
        have = len(replica.log)
        for member in led.maximal_isr():
            if member != self.broker_id:
                follower = led.followers.get(member)
                have = min(have, 0 if follower is None else follower.position)
        if have > led.acknowledged:
            led.acknowledged = have
            self._promises.acknowledge(key, led.leader_epoch, replica.log[:have])

    def _wanted_isr(
        self, key: PartitionKey, partition: PartitionInfo, led: Leading, replica: Replica, now_ms: float
    ) -> PartitionAlteration | None:
        """The ISR without replicas that lag, or else with those that have caught up; None: no change is
        needed."""
        if led.recovery_state == LEADER_RECOVERING:
            return self._alteration(key, led, (self.broker_id,))

        def fresh_ms(member: int) -> float:
            follower = led.followers.get(member)
            return led.began_ms if follower is None else follower.caught_up_ms

        stay = tuple(
            [each for each in led.isr if each == self.broker_id or now_ms - fresh_ms(each) <= LAG_MS]
        )
        if stay != led.isr:
            return self._alteration(key, led, stay)
        joining = [
            each
            for each, follower in led.followers.items()
            if each in partition.replicas
            and each not in led.isr
            and follower.position >= led.acknowledged
            and now_ms - follower.caught_up_ms <= LAG_MS
            and self._may_join(each)
        ]
        return self._alteration(key, led, (*led.isr, *sorted(joining))) if joining else None

    def _may_join(self, broker_id: int) -> bool:
        """According to this broker's image (KIP-841); now and then the leader sends the request although it
        should not."""
        known = None if self._image is None else self._image.brokers.get(broker_id)
        return (known is not None and known.is_active) or self._engine.rng.random() < self._load.stale_chance

    def _alteration(self, key: PartitionKey, led: Leading, isr: tuple[int, ...]) -> PartitionAlteration:
        return PartitionAlteration(
            topic_id=key[0],
            partition=key[1],
            leader_epoch=led.leader_epoch,
            partition_epoch=led.partition_epoch,
            isr=tuple([IsrMember(broker_id=each, broker_epoch=self._epoch_seen(led, each)) for each in isr]),
            leader_recovery_state=LEADER_RECOVERED,
        )

    def _epoch_seen(self, led: Leading, broker_id: int) -> int | None:
        if broker_id == self.broker_id:
            return self._node().status(now_ms=self._now_ms()).broker_epoch
        follower = led.followers.get(broker_id)
        if follower is not None:
            return follower.broker_epoch
        known = None if self._image is None else self._image.brokers.get(broker_id)
        return None if known is None else known.epoch

    def _request(self, wanted: PartitionAlteration) -> AlterPartitionRequest | None:
        epoch = self._node().status(now_ms=self._now_ms()).broker_epoch
        if epoch is None:
            return None
        return AlterPartitionRequest(broker_id=self.broker_id, broker_epoch=epoch, partitions=(wanted,))

    def _alter(self, key: PartitionKey, led: Leading, alteration: _Alteration) -> None:
        request = self._request(alteration.wanted)
        if request is None:
            led.pending = None
            return

        def current() -> bool:
            return self.leading.get(key) is led and led.pending is alteration

        def answered(response: Any) -> None:
            if not current():
                return
            if isinstance(response, AlterPartitionResponse):
                self._settled(led, alteration, response.results[0], request)
            elif isinstance(response, ApiError) and response.code is ErrorCode.STALE_BROKER_EPOCH:
                self._open(led, alteration)
            else:
                failed()

        def failed() -> None:
            if current():
                alteration.unanswered += 1
                self._engine.after(100, lambda: self._alter(key, led, alteration) if current() else None)

        self._send(request, REQUEST_TIMEOUT_MS, answered, failed)

    def _settled(
        self,
        led: Leading,
        alteration: _Alteration,
        result: AlteredPartition,
        request: AlterPartitionRequest,
    ) -> None:
        match result.error:
            case ErrorCode.NONE:
                if result.partition_epoch >= led.partition_epoch:
                    led.take(result.isr, result.partition_epoch, result.leader_recovery_state)
                led.pending = None
                self._past = [*self._past, request][-REMEMBERED_MAX:]
            case ErrorCode.INELIGIBLE_REPLICA | ErrorCode.INVALID_REQUEST:
                if alteration.unanswered:
                    self._open(led, alteration)
                led.pending = None
                led.next_alter_ms = self._engine.now_ms + PAUSE_AFTER_REFUSAL_MS
            case ErrorCode.NOT_CONTROLLER:
                self._open(led, alteration)
            case _:
                # The log has something newer: the image will show it.
                self._open(led, alteration)
                led.awaits_image = True

    def _open(self, led: Leading, alteration: _Alteration) -> None:
        """No response will show the outcome; an attempt may still take effect. Until a newer partition epoch
        settles it, the proposed members count as if they were in the ISR."""
        proposed = [each.broker_id for each in alteration.wanted.isr]
        led.maybe_in_sync = tuple(dict.fromkeys((*led.maybe_in_sync, *proposed)))
        led.pending = None
        led.next_alter_ms = self._engine.now_ms + PAUSE_AFTER_REFUSAL_MS

    # ---- the rest --------------------------------------------------------------------------------

    def _say_where_replicas_are(self) -> None:
        """Reports replicas whose directory the image does not know to the controller (KIP-858)."""
        epoch = self._node().status(now_ms=self._now_ms()).broker_epoch
        if self._assigning or epoch is None:
            return
        online = self.directories.online
        moved = [
            ReplicaAssignment(directory_id=replica.directory, topic_id=key[0], partition=key[1])
            for key, replica in self.directories.replicas.items()
            if replica.directory in online
            and key in self._partitions
            and self._partitions[key].directory_of(self.broker_id) != replica.directory
        ]
        if not moved:
            return
        self._assigning = True

        def done(_response: Any = None) -> None:
            # The next look is when the image had time to show it.
            self._engine.after(300, ready)

        def ready() -> None:
            self._assigning = False

        request = AssignReplicasToDirsRequest(
            broker_id=self.broker_id, broker_epoch=epoch, assignments=tuple(moved)
        )
        self._send(request, REQUEST_TIMEOUT_MS, done, done)

    def _repeat_something_old(self) -> None:
        """A request that was carried out long ago arrives again."""
        if self._past and self._engine.rng.random() < self._load.stale_chance:
            old = self._engine.rng.choice(self._past)
            self._send(old, REQUEST_TIMEOUT_MS, lambda response: None, lambda: None)
