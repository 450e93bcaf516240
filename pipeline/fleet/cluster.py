"""One synthetic cluster: brokers, topics and the changes of which every incident consists.

Pure: randomness comes from the plan's seed, and time is a number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.encode import (
    Bytes,
    NewRows,
    framed,
    framed_value,
    partition_values,
    topic_words,
)
from metaquorum.metadata.features import write_version
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import LeaderChangeMessage, LeaderVoter
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.pipeline.fleet.partitions import NO_BROKER, Change, Partitions, Rows
from metaquorum.pipeline.fleet.plan import ClusterPlan
from metaquorum.storage.batches.encode import encode_batch, plain_header, seal_batch
from metaquorum.storage.uuids import random_uuid, uuid_to_text

# Builds the record batches of one synthetic log, in order.
#
# Rows of partitions come as arrays and are encoded in columns, single records by the codec.

LEVEL = 19
"""metadata.version of every generated log: 3.7-IV4, with directories."""

MAX_BATCH_RECORDS = 10_000
"""Most records in one batch, as Kafka's controller writes them."""

_NO_OP = framed_value(0, encode(NoOpRecord(), write_version(NoOpRecord(), LEVEL)))


class BatchLog:
    """Appends batches. `take` returns the bytes of those since its last call."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.last_ms = start_ms
        self.offset = 0
        self.epoch = 0
        self.batches = 0
        self.counts: Counter[str] = Counter()
        self._out: list[bytes] = []

    def take(self) -> list[bytes]:
        """The batches appended since the last call."""
        out, self._out = self._out, []
        return out

    def _append(self, data: bytes, count: int) -> int:
        """Appends one sealed batch. Returns its base offset."""
        base = self.offset
        self._out.append(data)
        self.batches += 1
        self.offset += count
        self.last_ms = self.now_ms
        return base

    def leader_change(self, leader: int, voters: tuple[int, ...], epoch: int) -> int:
        """Starts an epoch. Returns the offset of its LeaderChangeMessage."""
        self.epoch = epoch
        everyone = tuple(LeaderVoter(voter) for voter in voters)
        majority = sorted({leader, *[one for one in voters if one != leader][: len(voters) // 2]})
        granting = tuple(LeaderVoter(voter) for voter in majority)
        key, value = encode_control(LeaderChangeMessage(leader, everyone, granting))
        data = encode_batch(
            base_offset=self.offset,
            leader_epoch=epoch,
            timestamp_ms=self.now_ms,
            values=[value],
            keys=[key],
            is_control=True,
        )
        self.counts["LEADER_CHANGE"] += 1
        return self._append(data, 1)

    def no_op(self) -> None:
        """Appends one idle batch."""
        header = plain_header(self.offset, self.epoch, self.now_ms, 1)
        self.counts[NoOpRecord.type_name] += 1
        self._append(seal_batch(header, _NO_OP), 1)

    def records(self, records: Iterable[Any]) -> int:
        """Appends one batch of single records. Returns its base offset."""
        return self.mixed(records, ())

    def mixed(
        self, before: Iterable[Any], rows: Iterable[tuple[str, Bytes]], after: Iterable[Any] = ()
    ) -> int:
        """Appends one batch: records, then encoded rows (type name, values), then
        records. Returns its base offset.

        Raises ValueError for an empty batch.
        """
        pieces: list[bytes] = []
        count = 0
        count = self._singles(before, pieces, count)
        for name, values in rows:
            if len(values):
                pieces.append(framed(values, count))
                count += len(values)
                self.counts[name] += len(values)
        count = self._singles(after, pieces, count)
        if not count:
            raise ValueError("a batch needs at least one record")
        header = plain_header(self.offset, self.epoch, self.now_ms, count)
        return self._append(seal_batch(header, b"".join(pieces)), count)

    def _singles(self, records: Iterable[Any], pieces: list[bytes], offset_delta: int) -> int:
        for record in records:
            pieces.append(framed_value(offset_delta, encode(record, write_version(record, LEVEL))))
            self.counts[record.type_name] += 1
            offset_delta += 1
        return offset_delta


def chunks(rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Row numbers in pieces that fit in one batch; for no rows, one empty piece."""
    return [rows[low : low + MAX_BATCH_RECORDS] for low in range(0, max(1, len(rows)), MAX_BATCH_RECORDS)]


TOPIC, BROKER = 2, 4
"""Resource types of configurations."""
MIN_ISR = "min.insync.replicas"
DIRECTORIES = 2
"""Log directories per broker."""
FENCED, ACTIVE, SHUTDOWN = "fenced", "active", "controlled_shutdown"
_TOPIC_WORDS = ("orders", "payments", "clicks", "invoices", "audit", "sessions", "alerts", "prices")
SAMPLES = 6
"""Partitions of a cluster of which the truth has every state."""


@dataclass(slots=True)
class Broker:
    """A broker as the log has it, and its current incarnation."""

    broker_id: int
    rack: str
    directories: tuple[bytes, ...]
    incarnation: bytes
    epoch: int = -1
    state: str = FENCED
    online: tuple[bytes, ...] = ()


class FleetCluster:
    """State, log and truth of one cluster."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.log = BatchLog(plan.start_ms)
        self.partitions = Partitions()
        self.brokers: dict[int, Broker] = {}
        self.leader = plan.controllers[0]
        self.epochs: list[dict[str, Any]] = []
        self.broker_states: list[dict[str, Any]] = []
        self.incidents: list[dict[str, Any]] = []
        self.failovers: list[dict[str, Any]] = []
        self.configs: dict[tuple[int, str, str], str] = {}
        self.controllers: list[Any] = []
        self.quotas: dict[tuple[Any, str], Any] = {}
        self.next_producer_id = 0
        self.names = 0

    # -- room and time -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of records that the plan still needs."""
        return self.plan.records - self.log.offset

    def after(self, low_ms: int, high_ms: int) -> int:
        """Moves time by `low_ms` to `high_ms` without a record. Returns the new time."""
        self.log.now_ms += self.rng.randint(low_ms, high_ms)
        return self.log.now_ms

    def idle(self, duration_ms: int, keep: int = 0) -> None:
        """Moves time, with NoOps while more than `keep` records are left to write."""
        end = self.log.now_ms + duration_ms
        step = self.plan.idle_ms
        while self.log.now_ms + step <= end and self.room > keep:
            self.log.now_ms += step
            self.log.no_op()
        self.log.now_ms = max(self.log.now_ms, end)

    def idle_records(self, duration_ms: int) -> int:
        """The most records that `idle` writes in that time."""
        return duration_ms // self.plan.idle_ms + 1

    # -- brokers -------------------------------------------------------------------------------------

    def active(self) -> list[int]:
        """Ids of brokers that may lead."""
        return [at for at, broker in self.brokers.items() if broker.state == ACTIVE]

    def add_broker(self, broker_id: int) -> None:
        """Adds a broker that was not started yet."""
        directories = tuple(sorted(random_uuid(self.rng) for _ in range(DIRECTORIES)))
        rack = self.plan.racks[broker_id % len(self.plan.racks)]
        self.brokers[broker_id] = Broker(broker_id, rack, directories, random_uuid(self.rng))

    def register(self, broker_id: int) -> int:
        """A new process registers, fenced. Returns the record's offset."""
        broker = self.brokers[broker_id]
        broker.incarnation = random_uuid(self.rng)
        broker.online = broker.directories
        broker.epoch = self.log.offset
        offset = self.log.records([self.registration(broker)])
        self._state(broker, FENCED, offset)
        return offset

    def registration(self, broker: Broker) -> BrokerRecord:
        """The record with all of a broker's registration."""
        host = f"broker-{broker.broker_id}.{self.plan.name}.example"
        return BrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation,
            broker_epoch=broker.epoch,
            end_points=(BrokerEndpoint("PLAINTEXT", host, 9092, 0),),
            features=(BrokerFeature("metadata.version", 1, LEVEL),),
            rack=broker.rack,
            fenced=broker.state == FENCED,
            in_controlled_shutdown=broker.state == SHUTDOWN,
            log_dirs=broker.online,
        )

    def _state(self, broker: Broker, state: str, offset: int) -> None:
        broker.state = state
        self.broker_states.append(
            {"broker": broker.broker_id, "state": state, "offset": offset, "time_ms": self.log.now_ms}
        )

    def fence(self, broker_id: int) -> dict[str, Any]:
        """A session ends: leaders and ISRs move, then the fence, in one batch. Returns what changed."""
        broker = self.brokers[broker_id]
        record = BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=1)
        event = self.leave(broker_id, record, "broker-fenced")
        self._state(broker, FENCED, self.log.offset - 1)
        return event

    def controlled_shutdown(self, broker_id: int) -> dict[str, Any]:
        """The broker starts a controlled shutdown: leaders and ISRs move, then it is
        marked. Returns what changed."""
        broker = self.brokers[broker_id]
        record = BrokerRegistrationChangeRecord(broker_id, broker.epoch, in_controlled_shutdown=1)
        event = self.leave(broker_id, record, "controlled-shutdown")
        self._state(broker, SHUTDOWN, self.log.offset - 1)
        return event

    def leave(self, broker_id: int, record: Any, cause: str, rows: Rows | None = None) -> dict[str, Any]:
        """`broker_id` leaves the ISRs of `rows` (default: all its replicas), with `record` as the reason."""
        own = self.partitions.holding(broker_id) if rows is None else rows
        change = self.partitions.without(broker_id, own)
        led = self.partitions.columns.leader[change.rows] == broker_id
        lost = led & (change.leader == NO_BROKER)
        shrinks = change.isr.sum(axis=1) < self.partitions.columns.isr[change.rows].sum(axis=1)
        first = self.log.offset
        pieces = chunks(change.rows)
        for at, _ in enumerate(pieces):
            part = self._part(change, pieces, at)
            ends = at == len(pieces) - 1
            if at:
                self.after(1, 10)
            offset = self.log.mixed((), self.partitions.encode(part), [record] if ends else ())
            self.partitions.apply(part, self.log.now_ms, offset)
        event = {
            "broker": broker_id,
            "rack": self.brokers[broker_id].rack,
            "cause": cause,
            "time_ms": self.log.now_ms,
            "offset": self.log.offset - 1,
            "first_offset": first,
            "leaders_moved": int((led & ~lost).sum()),
            "left_leaderless": int(lost.sum()),
            "isr_shrinks": int(shrinks.sum()),
        }
        self.failovers.append(event)
        return event

    @staticmethod
    def _part(change: Change, pieces: list[Rows], index: int) -> Change:
        low = sum(len(piece) for piece in pieces[:index])
        high = low + len(pieces[index])
        return Change(change.rows[low:high], change.isr[low:high], change.leader[low:high])

    def unfence(self, broker_id: int) -> dict[str, Any]:
        """The broker is unfenced, and leads again the partitions without a leader. Returns what changed."""
        broker = self.brokers[broker_id]
        own = self.partitions.holding(broker_id)
        waiting = own[
            (self.partitions.columns.leader[own] == NO_BROKER) & self.partitions.in_isr(broker_id, own)
        ]
        change = self.partitions.led_by(broker_id, waiting)
        record = BrokerRegistrationChangeRecord(broker_id, broker.epoch, fenced=-1)
        offset = self.log.mixed([record], self.partitions.encode(change))
        self.partitions.apply(change, self.log.now_ms, offset)
        self._state(broker, ACTIVE, offset)
        return {"time_ms": self.log.now_ms, "offset": offset, "leads_again": len(waiting)}

    # -- ISRs and leaders ----------------------------------------------------------------------------

    def alter(self, change: Change) -> None:
        """Writes a change as requests of leaders: one batch per leader, in order of their
        ids, within a short time."""
        leaders = self.partitions.columns.leader[change.rows]
        order = np.argsort(leaders, kind="stable")
        bounds = np.flatnonzero(np.diff(leaders[order])) + 1
        for mine in np.split(order, bounds):
            if not len(mine):
                continue
            self.after(1, 400)
            self.write(Change(change.rows[mine], change.isr[mine], change.leader[mine]))

    def write(self, change: Change) -> None:
        """Writes a change as one batch, or several if it is too long."""
        pieces = chunks(change.rows)
        for at, _ in enumerate(pieces):
            part = self._part(change, pieces, at)
            rows = self.partitions.encode(part)
            if rows:
                self.partitions.apply(part, self.log.now_ms, self.log.mixed((), rows))

    def catch_up(self, broker_id: int, rows: Rows | None = None) -> None:
        """`broker_id` joins the ISRs that it is not in, if they have a leader."""
        own = self.partitions.holding(broker_id) if rows is None else rows
        own = own[~self.partitions.in_isr(broker_id, own) & (self.partitions.columns.leader[own] >= 0)]
        if len(own):
            self.alter(self.partitions.with_member(broker_id, own))

    def preferred(self) -> int:
        """Preferred election: the first replicas lead again if they are in sync.
        Returns how many leaders moved."""
        rows = self.partitions.live()
        first = self.partitions.columns.replicas[rows, 0]
        fit = self.partitions.columns.isr[rows, 0] & np.isin(first, self.active())
        fit &= (first != self.partitions.columns.leader[rows]) & (self.partitions.columns.leader[rows] >= 0)
        rows, first = rows[fit], first[fit]
        if len(rows):
            self.write(self.partitions.led_by(first, rows))
        return len(rows)

    # -- topics --------------------------------------------------------------------------------------

    def create_topic(self, count: int, width: int, min_isr: int | None) -> Rows:
        """A topic with its configuration and partitions in one batch. Returns its rows."""
        word = _TOPIC_WORDS[self.names % len(_TOPIC_WORDS)]
        name, topic_id = f"{word}-{self.names // len(_TOPIC_WORDS):03d}", random_uuid(self.rng)
        self.names += 1
        active = np.array(self.active(), dtype=np.int32)
        start = self.rng.randrange(len(active))
        step = 1 + self.rng.randrange(max(1, len(active) - 1))
        step = step if np.gcd(step, len(active)) == 1 else 1
        places = start + np.arange(count)[:, None] + step * np.arange(width)[None, :]
        replicas = active[places % len(active)]
        held = np.array(
            [self.rng.randrange(DIRECTORIES) for _ in range(count * width)], dtype=np.int8
        ).reshape(count, width)
        words = {at: topic_words(list(broker.directories)) for at, broker in self.brokers.items()}
        table = np.stack([words[at] for at in active.tolist()])
        directories = table[np.searchsorted(active, replicas), held]
        values = partition_values(
            NewRows(topic_words([topic_id])[0], np.arange(count, dtype=np.int32), replicas, directories), 1
        )
        records: list[Any] = [TopicRecord(name, topic_id)]
        if min_isr is not None:
            records.append(ConfigRecord(TOPIC, name, MIN_ISR, str(min_isr)))
            self.configs[TOPIC, name, MIN_ISR] = str(min_isr)
        effective = min_isr or self.plan.default_min_isr or 1
        offset = self.log.mixed(records, [(PartitionRecord.type_name, values)])
        rows = self.partitions.add_topic(name, topic_id, replicas, effective, held)
        if count and len(self.partitions.samples) < SAMPLES:
            self.partitions.follow([int(rows[self.rng.randrange(count)])], self.log.now_ms, offset)
        return rows

    def delete_topic(self, topic: int) -> None:
        """Deletes a topic with its partitions and its configuration."""
        self.log.records([RemoveTopicRecord(self.partitions.topic_ids[topic])])
        self.partitions.remove_topic(topic, self.log.now_ms)
        self.configs.pop((TOPIC, self.partitions.topic_names[topic], MIN_ISR), None)

    # -- truth ---------------------------------------------------------------------------------------

    def note_incident(self, kind: str, start_ms: int, first_offset: int, **what: Any) -> None:
        """Adds an incident that is over now to the truth."""
        self.incidents.append(
            {
                "kind": kind,
                "start_ms": start_ms,
                "end_ms": self.log.last_ms,
                "first_offset": first_offset,
                "last_offset": self.log.offset - 1,
                **what,
            }
        )

    def directory_text(self, directory: bytes) -> str:
        """A directory's id as the tools print it."""
        return uuid_to_text(directory)
