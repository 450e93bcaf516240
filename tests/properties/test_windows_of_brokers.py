"""Logs with records about brokers between changes of partitions, in any order: in windows of any size they
give the rows, the state and the resume point of a replay record by record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.metadata.records import types as r
from metaquorum.pipeline.intervals import cluster, touched
from tests.unit.pipeline.intervals.telling import (
    DIR_A,
    DIR_B,
    DIR_C,
    ORDERS,
    PAYMENTS,
    Line,
    batches,
    broker,
    change,
    leads,
)
from tests.unit.pipeline.intervals.test_windows import assert_same

BROKERS = (1, 2, 3, 4)
RACKS = (None, "a", "b", "b")
DIRECTORIES = ((DIR_A,), (DIR_B, DIR_C), (DIR_C[:15] + b"3",), ())
COUNT = 8

Step = tuple[str, int, int, int]
"""What is done, to which broker, which of its variants, and how many milliseconds later."""

KINDS = (
    *("shrink", "shrink", "expand", "expand", "lead", "idle", "moved", "directories", "other"),
    *("fence", "fence", "crash", "crash", "unfence", "unfence", "stop", "again"),
)
STEPS = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from(BROKERS),
    st.integers(0, 5),
    st.sampled_from((0, 0, 1, 500, 4_000, 11_000)),
)


class Cluster:
    """The content of the log so far, so that most of its records are those of a correct controller."""

    def __init__(self) -> None:
        self.epochs = {at: 1 + at for at in BROKERS}
        self.isrs = {at: tuple(BROKERS[(at + n) % 4] for n in range(3)) for at in range(COUNT)}
        self.leaders = {at: isr[0] for at, isr in self.isrs.items()}
        self.replicas = dict(self.isrs)
        self.active = set(BROKERS)
        self.offset = 0

    def begin(self) -> list[Line]:
        topics = ((ORDERS, "t", range(5)), (PAYMENTS, "u", range(3)))
        return [
            (0, [leads(3000)]),
            (0, [r.FeatureLevelRecord("metadata.version", 19)]),
            (10, [self._registration(at) for at in BROKERS]),
            (20, [self._change(at, fenced=-1) for at in BROKERS]),
            *(
                (30, [r.TopicRecord(name, topic), *(self._partition(topic, at) for at in numbers)])
                for topic, name, numbers in topics
            ),
            (40, [r.ConfigRecord(2, "t", "min.insync.replicas", "2")]),
            *[(1_000 + 4_000 * at, [r.NoOpRecord()]) for at in range(5)],
        ]

    def _registration(self, who: int) -> r.BrokerRecord:
        return broker(who, self.epochs[who], rack=RACKS[who - 1], dirs=DIRECTORIES[who - 1])

    def _change(self, who: int, **fields: object) -> r.BrokerRegistrationChangeRecord:
        return r.BrokerRegistrationChangeRecord(who, self.epochs[who], **fields)  # type: ignore[arg-type]

    def _partition(self, topic: bytes, index: int) -> r.PartitionRecord:
        isr = self.isrs[index + 5 * (topic == PAYMENTS)]
        where = tuple(DIR_A if at == 1 else DIR_C for at in isr)
        return r.PartitionRecord(
            *(index, topic, isr, isr),
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=where,
        )

    def _put(self, at: int, isr: tuple[int, ...], leader: int) -> list[object]:
        if (isr, leader) == (self.isrs[at], self.leaders[at]) or not isr:
            return []
        fields: dict[str, object] = {"isr": isr} if isr != self.isrs[at] else {}
        if leader != self.leaders[at]:
            fields["leader"] = leader
        self.isrs[at], self.leaders[at] = isr, leader
        topic, index = (PAYMENTS, at - 5) if at >= 5 else (ORDERS, at)
        return [change(index, topic, **fields)]

    def _without(self, who: int, some: Sequence[int]) -> Iterator[object]:
        for at in some:
            isr = tuple(one for one in self.isrs[at] if one != who) or self.isrs[at]
            leader = self.leaders[at]
            if leader == who:
                leader = next((one for one in isr if one in self.active and one != who), -1)
            yield from self._put(at, isr, leader)

    def _back(self, who: int, some: Sequence[int]) -> Iterator[object]:
        for at in some:
            if who in self.replicas[at] and who not in self.isrs[at] and self.leaders[at] >= 0:
                yield from self._put(at, (*self.isrs[at], who), self.leaders[at])

    def step(self, what: str, who: int, variant: int) -> list[object]:
        """The records of one batch; none if there is nothing to do."""
        some = range(variant, COUNT) if variant % 2 else range(COUNT)
        match what:
            case "shrink" if variant < 5:
                return list(self._without(who, range(variant, variant + 2)))
            case "expand":
                return list(self._back(who, some))
            case "lead":
                isr = self.isrs[variant]
                return self._put(variant, isr, isr[-1] if isr[-1] in self.active or who == 1 else isr[0])
            case "idle":
                return [r.NoOpRecord()]
            case "moved":
                where = (DIRECTORIES[variant % 2][0],) * 3
                return [change(variant % 5, directories=where), *self._without(who, range(5, 6))]
            case "fence" | "crash":
                self.active.discard(who)
                fence = (
                    self._change(who, fenced=1) if variant % 3 else r.FenceBrokerRecord(who, self.epochs[who])
                )
                changed = self._without(who, range(COUNT)) if what == "crash" else self._without(who, some)
                return [*changed, fence] if variant > 2 else [fence, *changed]
            case "unfence":
                self.active.add(who)
                return [self._change(who, fenced=-1), *(self._back(who, some) if variant == 3 else ())]
            case "stop":
                self.active.discard(who)
                return [self._change(who, in_controlled_shutdown=1), *self._without(who, some)]
            case "again":
                self.epochs[who] = self.offset + 10
                self.active.discard(who)
                changed = self._without(who, range(COUNT)) if variant else ()
                return [*changed, self._registration(who)]
            case "directories":
                left = DIRECTORIES[who - 1][: variant % 2]
                return [self._change(who, log_dirs=left or (DIR_B,)), *self._without(who, some)]
            case _:
                others: list[object] = [
                    r.BrokerRegistrationChangeRecord(who, 99, fenced=1),
                    r.ConfigRecord(2, "u", "min.insync.replicas", str(who)),
                    r.ProducerIdsRecord(who, self.epochs[who], 1_000 * self.offset),
                    r.UnregisterBrokerRecord(4, self.epochs[4]),
                    broker(4, 50_000 + self.offset, rack="c" if who == 1 else "b"),
                ]
                return others[variant : variant + 1]


def log_of(steps: Sequence[Step]) -> list[Line]:
    made = Cluster()
    lines, now_ms = made.begin(), 20_000
    made.offset = sum(len(records) for _, records in lines)
    for what, who, variant, later_ms in steps:
        records = made.step(what, who, variant)
        if records:
            now_ms += later_ms
            made.offset += len(records)
            lines.append((now_ms, records))
    return lines


FENCED_LATE: list[Step] = [
    *(("shrink", 1, 0, 0), ("shrink", 1, 0, 0), ("directories", 1, 1, 0)),
    *(("fence", 1, 0, 11_000), ("lead", 1, 0, 0)),
]
"""A fence that comes too late to be the cause, in the first batch after the limit."""


@settings(max_examples=120, deadline=None)
@example(steps=FENCED_LATE, window=5)
@given(steps=st.lists(STEPS, min_size=5, max_size=60), window=st.sampled_from((5, 20, 4_096)))
def test_windows_say_what_records_say(steps: list[Step], window: int) -> None:
    together(log_of(steps), window)


def together(lines: Sequence[Line], window: int = 4_096) -> int:
    """How many records were combined, after checking that both ways agree."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cluster, touched):
            patch.setattr(module, "MIN_TOGETHER", 2)
        patch.setattr(touched, "MAX_ALONE", 1)
        return assert_same(batches(lines), window)


def test_a_registration_that_turns_back_is_settled_alone() -> None:
    steps: list[Step] = [("idle", 1, 0, 1), ("crash", 4, 4, 1), ("idle", 1, 0, 1)]
    back = broker(4, 3, rack="b")
    lines = [*log_of(steps), (30_000, [change(0, isr=(1, 2))]), (30_001, [back]), (30_002, [r.NoOpRecord()])]
    assert together(lines) > 3


def test_a_lost_directory_counts_the_replicas_that_it_has_then() -> None:
    """Replicas move into it and out of it before and after it is lost, all in one window."""
    here, elsewhere = (DIR_B,) * 3, (DIR_A,) * 3
    lost = r.BrokerRegistrationChangeRecord(2, 3, log_dirs=(DIR_C,))
    lines = [
        *log_of([("idle", 1, 0, 1)] * 3),
        (30_000, [change(at, directories=here) for at in range(3)]),
        (30_001, [change(0, directories=elsewhere), lost]),
        (30_002, [change(1, directories=elsewhere)]),
        (30_003, [r.NoOpRecord()]),
    ]
    assert together(lines) > 6
