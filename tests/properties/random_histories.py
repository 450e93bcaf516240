"""Random histories of a small cluster, as batches: what controllers write, and what none would write."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.storage.batches.batch import RecordBatch
from tests.unit.pipeline.intervals.telling import ORDERS, Line, batches, leads

BROKERS, PARTITIONS = (1, 2, 3), 5
ACTIONS = (
    *("fence", "fence", "split fence", "silent fence", "return", "return", "stop", "restart", "again"),
    *("directory", "lag", "catch up", "balance", "wild", "wild", "elect", "unregister", "election"),
)
WRITTEN = ("session-expired", "fence-requested", "metadata-lag", "controlled-shutdown", "leader-balance")
DIRS = (b"A" * 16, b"B" * 16)


@dataclass
class Known:
    """What the history has written of a broker."""

    epoch: int
    fenced: bool = True
    stopping: bool = False
    dirs: tuple[bytes, ...] = DIRS

    @property
    def active(self) -> bool:
        return not self.fenced and not self.stopping


@dataclass
class History:
    """Lines of a log, and the state after them."""

    level: int
    lines: list[Line] = field(default_factory=list)
    now_ms: int = 0
    number: int = 0
    brokers: dict[int, Known] = field(default_factory=dict)
    leader: list[int] = field(default_factory=list)
    isr: list[tuple[int, ...]] = field(default_factory=list)
    controller: int = 3000

    def begin(self) -> None:
        self.write([leads(3000)])
        self.write([r.FeatureLevelRecord("metadata.version", self.level)])
        for broker_id in BROKERS:
            self.write([self.register(broker_id)])
        self.write([self.change(broker_id, fenced=-1) for broker_id in BROKERS])
        replicas = [tuple(BROKERS[(at + turn) % 3] for turn in range(3)) for at in range(PARTITIONS)]
        self.leader, self.isr = [at[0] for at in replicas], replicas
        made = [
            r.PartitionRecord(
                *(at, ORDERS, listed, listed), leader=listed[0], leader_epoch=0, partition_epoch=0
            )
            for at, listed in enumerate(replicas)
        ]
        self.write([r.TopicRecord("t", ORDERS), *made])

    def write(self, records: list[object], cause: BatchCause | None = None) -> None:
        self.lines.append((self.now_ms, [*([cause_record(cause)] if cause is not None else []), *records]))
        self.number += 1

    def register(self, broker_id: int, incarnation: int = 0) -> r.BrokerRecord:
        self.brokers[broker_id] = Known(1000 + self.number)
        process = bytes([broker_id, incarnation]) * 8
        return r.BrokerRecord(broker_id, process, 1000 + self.number, fenced=True, log_dirs=DIRS)

    def change(self, broker_id: int, *, fenced: int = 0, stopping: bool = False) -> object:
        known = self.brokers[broker_id]
        known.fenced = {0: known.fenced, 1: True, -1: False}[fenced]
        known.stopping = known.stopping or stopping
        if self.level < 7:  # older than the record that changes a registration
            kind = r.FenceBrokerRecord if fenced > 0 else r.UnfenceBrokerRecord
            return kind(broker_id, known.epoch)
        return r.BrokerRegistrationChangeRecord(
            broker_id,
            known.epoch,
            fenced=fenced or None,
            in_controlled_shutdown=1 if stopping else None,
            log_dirs=None,
        )

    def without(self, broker_id: int) -> list[object]:
        """The broker leaves ISRs and leaderships, as controllers do it."""
        found: list[object] = []
        for at in range(PARTITIONS):
            if broker_id not in self.isr[at]:
                continue
            rest = tuple(one for one in self.isr[at] if one != broker_id)
            able = [one for one in rest if one in self.brokers and self.brokers[one].active]
            leader = self.leader[at] if self.leader[at] != broker_id else (able or [-1])[0]
            self.isr[at] = rest or self.isr[at]
            changed = leader if leader != self.leader[at] else None
            self.leader[at] = leader
            if rest or changed is not None:
                found.append(self.moved(at, changed))
        return found

    def moved(self, at: int, leader: int | None) -> r.PartitionChangeRecord:
        return r.PartitionChangeRecord(at, ORDERS, isr=self.isr[at], leader=leader)

    def led_again(self) -> list[object]:
        found: list[object] = []
        for at in range(PARTITIONS):
            able = [one for one in self.isr[at] if one in self.brokers and self.brokers[one].active]
            if self.leader[at] == -1 and able:
                self.leader[at] = able[0]
                found.append(r.PartitionChangeRecord(at, ORDERS, leader=able[0]))
        return found


def act(history: History, draw: st.DrawFn) -> None:
    action, at = draw(st.sampled_from(ACTIONS)), draw(st.integers(0, PARTITIONS - 1))
    history.now_ms += draw(st.sampled_from((1, 300, 900, 1_001, 2_500, 8_999, 9_001, 30_000)))
    broker_id = draw(st.sampled_from(BROKERS))
    known = history.brokers.get(broker_id)
    rule = draw(st.sampled_from((None, None, None, *WRITTEN)))
    cause = None if rule is None or history.level < 5 else BatchCause(rule=rule)
    is_up = known is not None and not known.fenced
    match action:
        case "fence" if is_up:
            fence = history.change(broker_id, fenced=1)
            history.write([*history.without(broker_id), fence], cause)
        case "split fence" if is_up:
            history.brokers[broker_id].fenced = True
            moves = history.without(broker_id)
            history.brokers[broker_id].fenced = False
            if moves:
                history.write(moves, cause)
            history.now_ms += draw(st.sampled_from((0, 400, 1_000, 1_001)))
            history.write([history.change(broker_id, fenced=1)], cause)
        case "silent fence" if is_up:
            history.write([history.change(broker_id, fenced=1)], cause)
        case "return" if known is not None and known.fenced:
            unfence = history.change(broker_id, fenced=-1)
            history.write([unfence, *history.led_again()], cause)
        case "stop" if is_up and history.level >= 7 and not history.brokers[broker_id].stopping:
            stop = history.change(broker_id, stopping=True)
            history.write([stop, *history.without(broker_id)], cause)
        case "restart" | "again":
            moves = history.without(broker_id)
            history.write([*moves, history.register(broker_id, history.number * (action == "restart"))])
        case "directory" if is_up and history.level >= 7 and len(history.brokers[broker_id].dirs) > 1:
            known = history.brokers[broker_id]
            known.dirs = known.dirs[:1]
            lost = r.BrokerRegistrationChangeRecord(broker_id, known.epoch, log_dirs=known.dirs)
            history.write([lost], cause)
        case "lag" if len(history.isr[at]) > 1:
            leader = history.leader[at]
            history.isr[at] = (leader,) if leader in history.isr[at] else BROKERS[:1]
            history.write([history.moved(at, None)], cause)
        case "catch up":
            history.isr[at] = BROKERS
            history.write([history.moved(at, None)], cause)
        case "balance" if known is not None and known.active and broker_id in history.isr[at]:
            if history.leader[at] != broker_id:
                history.leader[at] = broker_id
                history.write([r.PartitionChangeRecord(at, ORDERS, leader=broker_id)], cause)
        case "wild":
            leader = draw(st.sampled_from((-1, *BROKERS)))
            history.isr[at] = tuple(draw(st.sets(st.sampled_from(BROKERS), min_size=1)))
            changed = leader if leader != history.leader[at] else None
            history.leader[at] = leader
            history.write([history.moved(at, changed)], cause)
        case "elect" if moves := history.led_again():
            history.write(moves, cause or BatchCause(request="ElectLeaders", principal="User:a"))
        case "unregister" if known is not None:
            del history.brokers[broker_id]
            history.write([*history.without(broker_id), r.UnregisterBrokerRecord(broker_id, known.epoch)])
        case "election":
            history.controller = 6001 - history.controller
            history.write([leads(history.controller)])


@st.composite
def histories(draw: st.DrawFn) -> list[RecordBatch]:
    history = History(draw(st.sampled_from((6, 14, 19))))
    history.begin()
    for _ in range(draw(st.integers(1, 25))):
        act(history, draw)
    epochs, epoch = [], 0
    for _, records in history.lines:
        epoch += type(records[0]).__name__ == "LeaderChangeMessage"
        epochs.append(epoch)
    return batches(history.lines, epochs)
