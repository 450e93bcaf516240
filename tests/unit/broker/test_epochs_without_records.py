"""Epochs of which a leader has no record: what it answers about them, against a model of Kafka's rules."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.replica.partition.values import ReadPlan
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    CONSUMER,
    EARLIEST_TIMESTAMP,
    EpochPartition,
    ListedOffset,
    ListOffsetsPartition,
)
from tests.unit.broker.replica_world import KEY, Reader, Replica, batch, info

KAFKA_NOTHING = (-1, -1)


class KafkaEpochs:
    """The epochs as Kafka's leader keeps them: noted when it becomes leader, not at the first record."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.end = 0

    def lead(self, epoch: int) -> None:
        kept = [(known, start) for known, start in self.entries if known < epoch and start < self.end]
        self.entries = [*kept, (epoch, self.end)]

    def trim(self, start: int) -> None:
        covered = [entry for entry in self.entries if entry[1] <= start]
        if covered:
            self.entries = [(covered[-1][0], start), *self.entries[len(covered) :]]

    def end_of(self, epoch: int) -> tuple[int, int]:
        epochs = [known for known, _ in self.entries]
        if epoch < 0 or epoch > epochs[-1]:
            return KAFKA_NOTHING
        if epoch == epochs[-1]:
            return epoch, self.end
        above = bisect_right(epochs, epoch)
        return (epochs[above - 1] if above else epoch), self.entries[above][1]


def end_of(replica: Replica, epoch: int) -> tuple[int, int]:
    found = replica.partition.end_of_epoch(EpochPartition(key=KEY, leader_epoch=epoch))
    assert found.error is ErrorCode.NONE
    return found.leader_epoch, found.end_offset


def check(replica: Replica, kafka: KafkaEpochs, newest: int) -> None:
    """Everything that clients ask about epochs, for every epoch up to the current one and the next."""
    for epoch in range(-1, newest + 2):
        ends = kafka.end_of(epoch)
        assert end_of(replica, epoch) == ends
        if epoch < 0 or ends == KAFKA_NOTHING:
            continue
        answer = replica.fetch_as(CONSUMER, kafka.end, last=epoch)
        if ends == (epoch, kafka.end):
            assert isinstance(answer, ReadPlan), (epoch, answer)
        else:
            assert not isinstance(answer, ReadPlan) and answer.diverging is not None
            assert (answer.diverging.epoch, answer.diverging.offset) == ends
    asked = ListOffsetsPartition(key=KEY, timestamp_ms=EARLIEST_TIMESTAMP)
    found = replica.partition.list_offset(asked, Reader(replica_id=CONSUMER))
    assert isinstance(found, ListedOffset) and found.leader_epoch == kafka.entries[0][0]


STEP = st.one_of(
    st.tuples(st.just("lead"), st.integers(1, 3)),
    st.tuples(st.just("write"), st.integers(1, 2)),
    st.tuples(st.just("trim"), st.integers(0, 4)),
)


@settings(max_examples=80, deadline=None)
@given(first=st.integers(0, 2), steps=st.lists(STEP, max_size=12))
def test_a_leader_knows_its_own_epoch_from_its_start_on(first: int, steps: list[tuple[str, int]]) -> None:
    replica, kafka = Replica(), KafkaEpochs()
    epoch, change = first, 1

    def lead() -> None:
        replica.lead(info(epoch=epoch, partition_epoch=change, isr=[1], replicas=[1]))
        kafka.lead(epoch)

    lead()
    check(replica, kafka, epoch)
    for what, number in steps:
        if what == "lead":
            epoch, change = epoch + number, change + 1
            lead()
        elif what == "write":
            replica.send(batch(*[b"v"] * number))
            replica.settle()
            kafka.end += number
        else:
            replica.trim(max(0, kafka.end - number))
            kafka.trim(replica.partition.start_offset)
        check(replica, kafka, epoch)


def test_the_cases_that_were_met() -> None:
    """An empty partition, and a restart of the leader."""
    replica = Replica()
    replica.lead(info(epoch=0, isr=[1], replicas=[1]))
    assert end_of(replica, 0) == (0, 0)
    assert isinstance(replica.fetch_as(CONSUMER, 0, last=0), ReadPlan)
    replica.send(batch(b"a", b"b"))
    replica.settle()
    replica.lead(info(epoch=2, partition_epoch=2, isr=[1], replicas=[1]))
    assert end_of(replica, 2) == (2, 2)
    assert isinstance(replica.fetch_as(CONSUMER, 2, last=2), ReadPlan)
    assert end_of(replica, 3) == KAFKA_NOTHING
