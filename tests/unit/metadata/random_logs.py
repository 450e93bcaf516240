"""Logs of a made-up cluster as a quiet controller writes them, with what no correct one writes among it.

Long stretches of batches with one record each: idle ones, changes of partitions, and now and then something
else; batches that create topics; whole transactions; records that do not fit or are from the future. What is
made follows from the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from metaquorum.metadata.inspect.repair.log_copy import NodeFiles
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import Disk, join, read_file
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.images import replay_all
from tests.unit.metadata.made_logs import flip, leads, make_node, strict, write

START_MS = 1_795_000_000_000
BROKERS = (1, 2, 3, 4)
DIRECTORIES = tuple(bytes([at]) * 16 for at in range(101, 105))
FROM_THE_FUTURE = bytes((1, 99, 0, 7))
NOT_A_RECORD = encode(r.PartitionChangeRecord(0, bytes(16), leader=1), 1) + b"\x00"


class RandomLog:
    """Writes batches one after the other; `data` is the log so far."""

    def __init__(self, seed: object, *, wild: float = 0.05, garbage: bool = True) -> None:
        """`wild` is how much of it no correct controller writes; with `garbage`, also what is no record."""
        self._rng = random.Random(f"log {seed}")
        self._wild = wild
        self._garbage = garbage
        self._offset = 0
        self._epoch = 1
        self._time_ms = START_MS
        self._topics: dict[str, tuple[bytes, int]] = {}
        self._placed: dict[tuple[bytes, int], tuple[int, ...]] = {}
        self._isrs: dict[tuple[bytes, int], tuple[int, ...]] = {}
        self._made = 0
        self._broker_epochs = dict.fromkeys(BROKERS, 0)
        self.data: list[bytes] = []

    def add(self, *records: object) -> None:
        """One batch; bytes are taken as an encoded value."""
        rng = self._rng
        self._time_ms += rng.choice((0, 1, 400, 500, 500))
        if rng.random() < self._wild / 5:
            self._time_ms += rng.choice((-700, 7_000))
        is_control = isinstance(records[0], control.LeaderChangeMessage)
        pairs = [encode_control(one) for one in records] if is_control else []  # type: ignore[arg-type]
        values = [
            one if isinstance(one, bytes) else encode(one, _version(one)) for one in records if not pairs
        ]  # type: ignore[arg-type,type-var]
        self.data.append(
            encode_batch(
                base_offset=self._offset,
                leader_epoch=self._epoch,
                timestamp_ms=self._time_ms,
                values=[value for _, value in pairs] or values,
                keys=[key for key, _ in pairs] or None,
                is_control=is_control,
            )
        )
        self._offset += len(records)

    def begin(self) -> None:
        self.add(leads(3000))
        self.add(r.FeatureLevelRecord("metadata.version", 25))
        for broker in BROKERS:
            self.add(self._broker(broker))
            self.add(r.UnfenceBrokerRecord(broker, self._offset - 1))
        for _ in range(3):
            self.create()

    def _broker(self, broker: int) -> r.BrokerRecord:
        incarnation = self._rng.randbytes(16)
        self._broker_epochs[broker] = self._offset
        directories = (DIRECTORIES[broker - 1],)
        return r.BrokerRecord(broker, incarnation, self._offset, fenced=True, log_dirs=directories)

    def create(self) -> None:
        """A topic, or more of one; sometimes with settings, sometimes badly."""
        rng = self._rng
        fresh = not self._topics or rng.random() < 0.7
        if fresh:
            self._made += 1
            name, topic_id, low = f"topic-{self._made}", self._made.to_bytes(16, "big"), 0
        else:
            name = rng.choice(sorted(self._topics))
            topic_id, low = self._topics[name]
        high = low + rng.choice((1, 5, 40, 80))
        records: list[object] = [r.TopicRecord(name, topic_id)] if fresh else []
        if fresh and rng.random() < 0.4:
            records.append(r.ConfigRecord(2, name, "min.insync.replicas", rng.choice(("1", "2"))))
        for index in range(low, high):
            records.append(self._partition(topic_id, index))
        if rng.random() < 3 * self._wild:
            unplaced = msgspec.structs.replace(self._partition(topic_id, high), directories=DIRECTORIES[:1])
            records.append(rng.choice((records[-1], self._partition(b"unknown topic id", 0), unplaced)))
        self._topics[name] = topic_id, high
        self.add(*records)

    def _partition(self, topic_id: bytes, index: int) -> r.PartitionRecord:
        rng = self._rng
        replicas = tuple(rng.sample(BROKERS, 3))
        odd = rng.random() < self._wild / 20
        self._placed[topic_id, index] = replicas
        return r.PartitionRecord(
            index,
            topic_id,
            replicas,
            replicas[:1] if odd else replicas,
            leader=-1 if odd else replicas[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(DIRECTORIES[at - 1] for at in replicas),
        )

    def change(self) -> r.PartitionChangeRecord:
        rng = self._rng
        topic_id, count = rng.choice(sorted(self._topics.values())) if self._topics else (bytes(16), 1)
        index = rng.randrange(count)
        if rng.random() < self._wild:
            wild: list[Callable[[], r.PartitionChangeRecord]] = [
                lambda: r.PartitionChangeRecord(index + 1000, topic_id, leader=1),
                lambda: r.PartitionChangeRecord(index, b"unknown topic id", leader=1),
                lambda: r.PartitionChangeRecord(index, topic_id, leader=4, isr=(1,)),
                lambda: r.PartitionChangeRecord(index, topic_id, isr=()),
                lambda: r.PartitionChangeRecord(index, topic_id, replicas=(1, 1)),
                lambda: r.PartitionChangeRecord(index, topic_id, directories=(DIRECTORIES[0],)),
            ]
            return rng.choice(wild)()
        isr = tuple(rng.sample(BROKERS, rng.randint(1, 3)))
        kinds: list[Callable[[], r.PartitionChangeRecord]] = [
            lambda: r.PartitionChangeRecord(index, topic_id, isr=isr),
            lambda: r.PartitionChangeRecord(index, topic_id, isr=isr, leader=isr[0]),
            lambda: r.PartitionChangeRecord(index, topic_id, leader=-1),
            lambda: r.PartitionChangeRecord(
                index, topic_id, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, directories=DIRECTORIES[:3]
            ),
            lambda: r.PartitionChangeRecord(index, topic_id, adding_replicas=(4,), removing_replicas=(1,)),
            lambda: r.PartitionChangeRecord(index, topic_id, adding_replicas=(), removing_replicas=()),
            lambda: r.PartitionChangeRecord(index, topic_id, isr=isr, leader=isr[0], leader_recovery_state=1),
            lambda: r.PartitionChangeRecord(index, topic_id, isr=isr, eligible_leader_replicas=BROKERS[:2]),
            lambda: r.PartitionChangeRecord(index, topic_id, leader=-1, last_known_elr=isr[:1]),
        ]
        return rng.choice(kinds)()

    def quiet(self, batches: int) -> None:
        """Idle batches and changes, one record each."""
        for _ in range(batches):
            self.add(r.NoOpRecord() if self._rng.random() < 0.6 else self.change())

    def steady(self, batches: int) -> None:
        """Changes of a topic that nothing else touches: all apply and differ from what was there, so that
        many can be taken together. States that no controller writes are among them."""
        rng = self._rng
        topic_id = b"steady" + len(self._isrs).to_bytes(10, "big")
        partitions = [self._partition(topic_id, index) for index in range(6)]
        self.add(r.TopicRecord(f"steady-{len(self._isrs)}", topic_id), *partitions)
        for number in range(batches):
            if number % 5 == 4:
                self.add(r.NoOpRecord())
                continue
            key = topic_id, rng.randrange(6)
            replicas = self._placed[key]
            isrs = [replicas, *((one,) for one in replicas), replicas[:2], replicas[1:]]
            isr = rng.choice([one for one in isrs if one != self._isrs.get(key)])
            self._isrs[key] = isr
            leader = rng.choice((isr[0], isr[-1], rng.choice(replicas), -1))
            if rng.random() < 0.01:
                self._isrs[key] = isr = ()
            self.add(r.PartitionChangeRecord(key[1], topic_id, isr=isr, leader=leader))

    def other(self) -> None:
        """Anything else."""
        rng = self._rng
        broker = rng.choice(BROKERS)
        epoch = self._broker_epochs[broker]
        pick = rng.randrange(9)
        if pick == 0:
            self._epoch += rng.choice((1, 1, 2))
            self.add(leads(rng.choice((3000, 3001))))
        elif pick == 1:
            self.add(self._broker(broker))
        elif pick == 2:
            self.add(self.change(), self.change(), r.BrokerRegistrationChangeRecord(broker, epoch, fenced=1))
        elif pick == 3:
            self.add(r.BrokerRegistrationChangeRecord(broker, epoch, fenced=-1))
        elif pick == 4 and self._topics:
            name = rng.choice(sorted(self._topics))
            setting = r.ConfigRecord(2, name, "min.insync.replicas", rng.choice(("1", "2", None)))
            self.add(setting, r.ClearElrRecord(rng.choice((name, name, ""))))
        elif pick == 5 and len(self._topics) > 1:
            name = rng.choice(sorted(self._topics))
            self.add(r.RemoveTopicRecord(self._topics.pop(name)[0]))
        elif pick == 6:
            self.add(r.BeginTransactionRecord("t"))
            self.quiet(rng.choice((2, 40)))
            self.add(rng.choice((r.EndTransactionRecord(), r.AbortTransactionRecord("gave up"))))
        elif pick == 7 and rng.random() < 10 * self._wild:
            self.add(FROM_THE_FUTURE)
        elif pick == 8 and self._garbage and rng.random() < 2 * self._wild:
            self.add(NOT_A_RECORD)
        else:
            self.create()


def _version(record: object) -> int:
    latest = SCHEMA_BY_CLASS[type(record)].latest_version
    has_elr = isinstance(record, r.PartitionChangeRecord) and (
        record.eligible_leader_replicas is not None or record.last_known_elr is not None
    )
    return min(latest, 3 if isinstance(record, r.BrokerRecord) else 1 + has_elr)


def random_node(
    disk: Disk,
    seed: object,
    *,
    wild: float = 0.05,
    rounds: int = 8,
    garbage: bool = True,
    steady: bool = False,
) -> NodeFiles:
    """A node's directory with such a log, in one to three segments; `steady` ones have long stretches of
    changes that fit."""
    rng = random.Random(f"node {seed}")
    log = RandomLog(seed, wild=wild, garbage=garbage)
    log.begin()
    for _ in range(rounds):
        log.quiet(rng.choice((3, 40, 40, 100)))
        if steady:
            log.steady(rng.choice((33, 70, 150)))
        for _ in range(rng.randint(1, 3)):
            log.other()
    log.quiet(rng.choice((0, 5, 50)))
    node = make_node(disk)
    write(disk, join(node.log.directory, segment_name(0)), b"")
    cuts = sorted({0, *(rng.randrange(len(log.data)) for _ in range(rng.randrange(3)))})
    for low, high in zip(cuts, [*cuts[1:], len(log.data)], strict=True):
        base = int.from_bytes(log.data[low][:8], "big")
        write(disk, join(node.log.directory, segment_name(base)), b"".join(log.data[low:high]))
    return node


def add_snapshots(node: NodeFiles, seed: object, count: int = 2) -> None:
    """Snapshots at ends of batches, and one that does not say what the log says."""
    rng = random.Random(f"snapshots {seed}")
    batches = strict(node.log)
    for number in range(count):
        upto = rng.randrange(1, len(batches))
        position = LogPosition(batches[upto - 1].header.leader_epoch, batches[upto - 1].header.next_offset)
        wrong = upto - 1 if number == 0 else upto
        image = replay_all(ReplayState(), batches[:wrong], on_error=lambda error: None).image
        content = b"".join(snapshot_batches(image, position=position))
        write(node.log.disk, snapshot_path(node.log.directory, position), content)


def tamper(node: NodeFiles, seed: object) -> str:
    """Damages one batch in one of several ways; says what was done."""
    rng = random.Random(f"tamper {seed}")
    batches = strict(node.log)
    at = rng.randrange(len(batches) // 4, len(batches))
    batch = batches[at]
    kind = rng.choice(("flip", "base offset", "epoch", "gone", "torn"))
    if kind == "flip":
        flip(node, batch.header.base_offset)
        return kind
    content = bytearray(read_file(node.log.disk, batch.file))
    start, end = batch.position, batch.position + len(batch.data)
    if kind == "base offset":
        content[start : start + 8] = (batch.header.base_offset + 5).to_bytes(8, "big")
    elif kind == "epoch":
        content[start + 12 : start + 16] = (batch.header.leader_epoch + 7).to_bytes(4, "big")
    elif kind == "gone":
        del content[start:end]
    else:
        del content[start + len(batch.data) // 2 :]
    write(node.log.disk, batch.file, bytes(content))
    return kind
