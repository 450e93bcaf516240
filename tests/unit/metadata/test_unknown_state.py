"""What records say by themselves where no snapshot says the state; words for sums; who is under min ISR."""

from __future__ import annotations

import random
from typing import Any

import pytest

from metaquorum.metadata.image import RECOVERING
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, BrokerStep
from metaquorum.metadata.inspect.timeline.event_groups import NAMED, Grouped, count, duration, listed
from metaquorum.metadata.inspect.timeline.spans import OpenSpan, is_under_min_isr, under_min_isr
from metaquorum.metadata.inspect.timeline.unknown_state import UNKNOWN, UnknownState, said_fields
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.types import FENCED, IN_CONTROLLED_SHUTDOWN, UNFENCED
from metaquorum.metadata.replay import ReplayState, replay_records

T, U = b"t" * 16, b"u" * 16


class Told:
    """Feeds batches to unknown, each a second after the one before it."""

    def __init__(self) -> None:
        self.unknown = UnknownState(lambda topic_id: chr(topic_id[0]))
        self.offset = 100
        self.time_ms = 0

    def of(self, *records: object) -> list[tuple[str, str, str, str]]:
        """(kind, entity, text, severity) of what one batch tells."""
        self.time_ms += 1_000
        numbered = [(self.offset + at, record) for at, record in enumerate(records)]
        batch = BatchChanges(base_offset=self.offset, epoch=1, time_ms=self.time_ms, unplaced=numbered)
        found = list(self.unknown.events(batch))
        offsets = range(self.offset, self.offset + len(records))
        assert all(each.offset in offsets and each.entities for each in found)
        self.offset += len(records)
        return [(each.kind, each.entity, each.text, each.severity) for each in found]


def fence(**fields: int) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=1, **fields)  # type: ignore[arg-type]


FENCED_, UNFENCED_ = r.FenceBrokerRecord(3, 1), r.UnfenceBrokerRecord(3, 1)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ((), FENCED_, ("broker fenced", "broker 3 (was not known)", "warning")),
        ((), UNFENCED_, ("broker unfenced", "broker 3 (was not known)", "info")),
        ((), fence(fenced=FENCED), ("broker fenced", "broker 3 (was not known)", "warning")),
        ((), fence(fenced=UNFENCED), ("broker unfenced", "broker 3 (was not known)", "info")),
        ((), fence(), None),
        ((FENCED_,), FENCED_, None),
        ((UNFENCED_,), fence(fenced=UNFENCED), None),
        ((UNFENCED_,), FENCED_, ("broker fenced", "broker 3 (was unfenced)", "warning")),
        ((FENCED_,), UNFENCED_, ("broker unfenced", "broker 3 (was fenced)", "info")),
        (
            (fence(in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN),),
            FENCED_,
            ("broker fenced", "broker 3 (was in controlled shutdown)", "info"),
        ),
        (
            (),
            fence(in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN),
            ("broker in controlled shutdown", "broker 3 (was not known)", "info"),
        ),
        ((), r.UnregisterBrokerRecord(3, 1), ("broker unregistered", "broker 3", "info")),
        (
            (FENCED_, r.UnregisterBrokerRecord(3, 1)),
            FENCED_,
            ("broker fenced", "broker 3 (was not known)", "warning"),
        ),
        ((), fence(log_dirs=(T,)), ("directories changed", "broker 3 has 1 log directory online", "info")),
        (
            (),
            fence(log_dirs=(T, U)),
            ("directories changed", "broker 3 has 2 log directories online", "info"),
        ),
    ],
)
def test_what_is_told_of_a_broker(
    first: tuple[object, ...], then: object, expected: tuple[str, str, str] | None
) -> None:
    told = Told()
    for record in first:
        told.of(record)
    found = told.of(then)
    assert found == ([] if expected is None else [(expected[0], "broker/3", *expected[1:])])


def test_a_broker_that_registers_is_known_again() -> None:
    def registered(before: BrokerRegistration | None, after: BrokerRegistration | None) -> BrokerStep:
        record = r.BrokerRecord(3, T, 9)
        return BrokerStep(offset=7, record=record, broker_id=3, before=before, after=after)

    known = replay_records(
        ReplayState(),
        base_offset=0,
        epoch=1,
        timestamp_ms=0,
        records=[r.FeatureLevelRecord("metadata.version", 19), r.BrokerRecord(3, T, 9, fenced=True)],
    ).image.brokers[3]
    event = Grouped(7, "broker registered", "broker/3", "as told", "info", None, ("broker/3",))

    def again(told: Told, step: BrokerStep) -> tuple[str, str]:
        (found,) = told.unknown.known_again(step, iter([event]))
        return found.text, found.severity

    told = Told()
    assert told.unknown.word(3) == UNKNOWN
    assert again(told, registered(None, known)) == ("as told", "info")
    told.of(FENCED_)
    assert told.unknown.word(3) == "fenced"
    assert again(told, registered(None, known)) == ("broker 3 again, broker epoch 9", "info")
    assert again(told, registered(known, known)) == ("as told", "info")
    assert again(told, registered(None, None)) == ("as told", "info")
    told.of(UNFENCED_)
    expected = "broker 3 again, broker epoch 9 (was unfenced)", "warning"
    assert again(told, registered(None, known)) == expected


def change(index: int = 0, topic: bytes = T, **fields: Any) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(index, topic, **fields)


def made(index: int, leader: int = 1, topic: bytes = T) -> r.PartitionRecord:
    return r.PartitionRecord(index, topic, (1, 2), (1, 2), leader=leader, leader_epoch=0, partition_epoch=0)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ((), (change(leader=-1),), [("leaderless", "topic/t/0", "t-0: ? -> none", "critical")]),
        ((change(leader=-1),), (change(leader=-1),), []),
        ((), (change(leader=2),), [("partition changed", "broker/2", "t-0: ? -> 2", "info")]),
        ((change(leader=1),), (change(leader=2),), [("leader changed", "broker/2", "t-0: 1 -> 2", "info")]),
        ((made(0),), (change(leader=2),), [("leader changed", "broker/2", "t-0: 1 -> 2", "info")]),
        ((change(leader=1),), (change(leader=1),), []),
        (
            (change(leader=-1), r.NoOpRecord()),
            (change(leader=2),),
            [("leader changed", "broker/2", "t-0: none -> 2, 2.0 s without a leader", "info")],
        ),
        (
            (change(leader=1),),
            (change(leader=2, leader_recovery_state=RECOVERING),),
            [("unclean election", "broker/2", "t-0: 1 -> 2; broker 2 was not in the ISR", "critical")],
        ),
        ((), (change(isr=(1,)),), [("partition changed", "topic/t/0", "t-0: ISR [1]", "detail")]),
        (
            (),
            (change(replicas=(1, 2), adding_replicas=(2,), removing_replicas=(), isr=(1,)),),
            [
                (
                    "partition changed",
                    "topic/t/0",
                    "t-0: replicas [1,2], adding [2], removing [], ISR [1]",
                    "info",
                )
            ],
        ),
        ((), (change(),), []),
        (
            (),
            (change(0, leader=-1), change(1, leader=-1), change(0, U, leader=-1)),
            [("leaderless", "topic/t/0", "t-0, t-1, u-0: ? -> none", "critical")],
        ),
        ((), (made(4), made(5)), [("partitions added", "topic/t", "t, 2 more", "info")]),
        ((), (r.RemoveTopicRecord(U),), [("topic deleted", "topic/u", "u", "info")]),
    ],
)
def test_what_is_told_of_a_partition(
    first: tuple[Any, ...], then: tuple[Any, ...], expected: list[tuple[str, str, str, str]]
) -> None:
    told = Told()
    for record in first:
        told.of(record)
    assert told.of(*then) == expected


def test_a_leaderless_partition_is_remembered_from_where_it_began() -> None:
    told = Told()
    told.of(change(leader=-1), change(1, leader=-1))
    assert told.unknown.leaderless == {(T, 0): OpenSpan(100, 1_000), (T, 1): OpenSpan(101, 1_000)}
    told.of(change(leader=5))
    assert list(told.unknown.leaderless) == [(T, 1)]


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (FENCED_, {"fenced": True}),
        (UNFENCED_, {"fenced": False}),
        (fence(), {}),
        (fence(fenced=FENCED), {"fenced": True}),
        (fence(fenced=UNFENCED), {"fenced": False}),
        (fence(in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN), {"inControlledShutdown": True}),
        (change(leader=-1), {"leader": -1}),
        (change(isr=(2, 1), adding_replicas=()), {"isr": [2, 1], "addingReplicas": []}),
        (change(replicas=(1,), removing_replicas=(3,)), {"replicas": [1], "removingReplicas": [3]}),
        (r.NoOpRecord(), {}),
    ],
)
def test_fields_that_a_record_says(record: object, fields: dict[str, Any]) -> None:
    assert said_fields(record) == fields


# ---- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "one", "text"),
    [
        (1, "partition", "1 partition"),
        (0, "partition", "0 partitions"),
        (2, "log directory", "2 log directories"),
        (2, "batch", "2 batches"),
        (1, "batch", "1 batch"),
    ],
)
def test_numbers_of_things(number: int, one: str, text: str) -> None:
    assert count(number, one) == text


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_the_first_names_and_how_many_more(more: int) -> None:
    names = [str(at) for at in range(NAMED + more)]
    assert listed(names) == ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_900, "59.9 s"),
        (60_000, "1 min 0 s"),
        (3_599_000, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (47 * 3_600_000 + 59 * 60_000, "47 h 59 min"),
        (48 * 3_600_000, "2 d 0 h"),
        (100 * 3_600_000, "4 d 4 h"),
    ],
)
def test_durations_in_words(ms: int, text: str) -> None:
    assert duration(ms) == text


# ---- min ISR --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_one_partition_and_all_of_them_are_judged_alike(seed: int) -> None:
    """By the topic's setting, else the brokers' default, else 1; never more than there are replicas."""
    rng = random.Random(seed)
    default = rng.choice([None, "1", "2", "3", "x"])
    records: list[object] = [r.FeatureLevelRecord("metadata.version", 19)]
    if default is not None:
        records.append(r.ConfigRecord(4, "", "min.insync.replicas", default))
    expected = []
    keys = []
    for at in range(4):
        topic_id, name = bytes([at + 1]) * 16, f"t{at}"
        records.append(r.TopicRecord(name, topic_id))
        setting = rng.choice([None, "1", "2", "9", "x"])
        if setting is not None:
            records.append(r.ConfigRecord(2, name, "min.insync.replicas", setting))
        for index in range(3):
            replicas = tuple(range(1, rng.randint(1, 3) + 1))
            isr = replicas[: rng.randint(0, len(replicas))]
            leader = isr[0] if isr else -1
            records.append(
                r.PartitionRecord(
                    index, topic_id, replicas, isr, leader=leader, leader_epoch=0, partition_epoch=0
                )
            )
            wanted = setting or default
            least = min(int(wanted) if wanted is not None and wanted.isdigit() else 1, len(replicas))
            keys.append((topic_id, index))
            expected.append(f"topic/{name}/{index}" if len(isr) < least else None)
    image = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records).image  # type: ignore[arg-type]
    assert [is_under_min_isr(image, key) for key in keys] == [each is not None for each in expected]
    assert under_min_isr(image) == [each for each in expected if each is not None]
    assert not is_under_min_isr(image, (b"x" * 16, 0)) and not is_under_min_isr(image, (keys[0][0], 9))
