"""Deciding, encoding and replaying partition changes in columns gives the same result as doing it one at a
time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaquorum.controller.ledger import encode_records_batch
from metaquorum.controller.partitions import column_elections, elections, partitions
from metaquorum.controller.partitions import column_elections as electorate
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.partitions import (
    Scan,
    election_slice,
    eligible_anywhere,
    failed_directories_slice,
    forgetting_slice,
    listing_rare,
    naming,
    preferred_slice,
    removal_slice,
)
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.partitions.rules import elr_enabled, rules_of
from metaquorum.controller.partitions.topics import NewPartitions
from metaquorum.controller.result import Slice
from metaquorum.metadata.columnar.encode import RecordPieces, in_pieces
from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED, MetadataImage
from metaquorum.metadata.records.types import (
    BrokerRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from metaquorum.metadata.replay import ReplayState, replay, replay_records
from metaquorum.metadata.requests.partitions import ElectLeadersRequest
from metaquorum.storage.batches.batch import iter_batches
from tests.images import describe_difference

BROKERS = 6
Cluster = tuple[ReplayState, frozenset[int]]


def directory(broker_id: int, number: int = 0) -> bytes:
    return b"directory" + bytes([0, 0, 0, 0, 0, broker_id, number + 1])


def partition(rng: random.Random, topic_id: bytes, index: int, level: int) -> PartitionRecord:
    replicas = tuple(rng.sample(range(BROKERS), rng.randint(1, 4)))
    isr = tuple(rng.sample(replicas, rng.randint(1, len(replicas))))
    leader = rng.choice((*isr, isr[0], -1))
    odd = rng.randrange(12)
    if odd == 5:  # no controller writes this, but a log may contain it
        leader = next((broker for broker in range(BROKERS) if broker not in replicas), leader)
    adding = replicas[-1:] if odd == 0 and len(replicas) > 1 else ()
    removing = replicas[:1] if odd == 1 and len(replicas) > 1 else ()
    places = [
        rng.choice((directory(broker), directory(broker), directory(broker, 1), UNASSIGNED, LOST))
        for broker in replicas
    ]
    outside = tuple([replica for replica in replicas if replica not in isr])
    return PartitionRecord(
        index,
        topic_id,
        replicas,
        isr,
        removing,
        adding,
        leader=leader,
        leader_recovery_state=int(odd == 2 and leader >= 0),
        leader_epoch=rng.randint(0, 3),
        partition_epoch=rng.randint(0, 3),
        directories=() if level < 17 else tuple(places),
        eligible_leader_replicas=outside[:1] if odd in {3, 4} and level >= 23 and outside else None,
        last_known_elr=replicas[:1] if odd == 4 and level >= 23 else None,
    )


def cluster(seed: int) -> Cluster:
    """A state with some dozens of partitions, and the brokers that may lead in it."""
    rng = random.Random(seed)
    level = rng.choice((11, 12, 19, 25))
    records: list[Record] = [FeatureLevelRecord("metadata.version", level)]
    if level >= 23 and rng.random() < 0.5:
        records.append(FeatureLevelRecord("eligible.leader.replicas.version", 1))
    for broker in range(BROKERS):
        held = tuple([directory(broker, number) for number in range(rng.randint(1, 2))])
        records.append(
            BrokerRecord(
                broker, bytes([broker + 1]) * 16, 7, fenced=False, log_dirs=held if level >= 17 else ()
            )
        )
    for number in range(rng.randint(1, 3)):
        topic_id = bytes([number + 1]) * 16
        records.append(TopicRecord(f"topic-{number}", topic_id))
        if rng.random() < 0.5:
            records.append(ConfigRecord(2, f"topic-{number}", "unclean.leader.election.enable", "true"))
        if rng.random() < 0.5:
            records.append(ConfigRecord(2, f"topic-{number}", "min.insync.replicas", "2"))
        for index in range(rng.randint(8, 24)):
            records.append(partition(rng, topic_id, index, level))
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    dead = rng.sample(range(BROKERS), rng.randint(0, 3))
    return state, frozenset(range(BROKERS)).difference(dead)


Decide = Callable[[MetadataImage, Callable[[int], bool], int], Slice]


def removal(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    return removal_slice(image, 1, rules_of(image, may_lead), at_most, final=FenceBrokerRecord(1, 7))


def unclean_removal(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    final = FenceBrokerRecord(1, 7)
    return removal_slice(image, 1, rules_of(image, may_lead), at_most, final=final, unclean=True)


def failed_directory(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    rules, final = rules_of(image, may_lead), FenceBrokerRecord(1, 7)
    return failed_directories_slice(image, 1, [directory(1, 1)], rules, at_most, final=final)


def election(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    return election_slice(image, 1, rules_of(image, may_lead), at_most)


def any_election(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    return election_slice(image, None, rules_of(image, may_lead), at_most)


def preferred(image: MetadataImage, may_lead: Callable[[int], bool], at_most: int) -> Slice:
    return preferred_slice(image, rules_of(image, may_lead), at_most)


def one_by_one(decide: Decide, image: MetadataImage, live: frozenset[int]) -> Slice:
    with mock.patch.object(partitions, "MIN_ROWS", 1 << 60):
        return decide(image, live.__contains__, 1 << 20)


def in_columns(decide: Decide, image: MetadataImage, live: frozenset[int], dense: int = 1 << 20) -> Slice:
    """`dense`: broker ids from here on are not in the tables."""
    with (
        mock.patch.object(partitions, "MIN_ROWS", 1),
        mock.patch.object(electorate, "DENSE_IDS_MAX", dense),
        mock.patch.object(column_elections, "DENSE_IDS_MAX", dense),
    ):
        return decide(image, live.__contains__, 1 << 20)


def as_set(records: Sequence[Record]) -> dict[tuple[bytes, int], PartitionChangeRecord]:
    found = {
        (record.topic_id, record.partition_id): record
        for record in records
        if isinstance(record, PartitionChangeRecord)
    }
    assert len(found) == sum(isinstance(record, PartitionChangeRecord) for record in records)
    return found


def appended(state: ReplayState, records: Sequence[Record]) -> ReplayState:
    data = encode_records_batch(
        records,
        base_offset=state.end_offset,
        epoch=1,
        timestamp_ms=0,
        metadata_version=state.newest.features.metadata_version,
    )
    return replay(state, next(iter_batches(data)))


DECISIONS = (removal, unclean_removal, failed_directory, election, any_election, preferred)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    decide=st.sampled_from(DECISIONS),
    dense=st.sampled_from((1 << 20, BROKERS - 2)),
)
def test_columns_decide_what_is_decided_one_by_one(seed: int, decide: Decide, dense: int) -> None:
    state, live = cluster(seed)
    plain, fast = one_by_one(decide, state.newest, live), in_columns(decide, state.newest, live, dense)
    assert plain.done and fast.done
    assert as_set(plain.records) == as_set(fast.records)
    assert len(plain.records) == len(fast.records)
    if not plain.records:
        return
    assert plain.records[-1] == fast.records[-1] or decide not in {removal, unclean_removal, failed_directory}
    slow = replay_records(
        state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=list(plain.records)
    )
    quick = appended(state, fast.records)
    assert not describe_difference(slow.newest, quick.newest)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), unclean=st.booleans())
@example(seed=1383, unclean=True)  # a completed move of a partition that no replica can lead
def test_elections_everywhere_are_those_of_every_partition_by_name(seed: int, unclean: bool) -> None:
    state, live = cluster(seed)
    topics = state.newest.topics
    named = tuple(
        (info.name, each.index) for info in topics.all() for each in topics.partitions_of(info.topic_id)
    )
    rules = rules_of(state.newest, live.__contains__)
    with mock.patch.object(elections, "REFUSALS_REPORTED_MAX", 0):
        everywhere, each = (
            decide_elections(
                state.newest, ElectLeadersRequest(unclean=unclean, partitions=wanted), rules, records_max=1000
            )
            for wanted in (None, named)
        )
    assert as_set(everywhere.records) == as_set(each.records)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_after_an_unclean_stop_nobody_counts_on_the_broker(seed: int) -> None:
    state, live = cluster(seed)
    done = unclean_removal(state.newest, live.__contains__, 1 << 20)
    after = appended(state, done.records).newest
    eligible = elr_enabled(after)
    for row in after.topics.columns.live_rows().tolist():
        partition = after.topics.at(row)
        assert partition.leader != 1 and 1 not in partition.elr
        assert 1 not in partition.isr or (not eligible and partition.isr == (1,))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), at_most=st.integers(1, 12))
def test_slices_take_what_is_left_of_eligible_leaders_out_of_everything(seed: int, at_most: int) -> None:
    """After the feature was switched off: every partition keeps or gets an ISR."""
    state, live = cluster(seed)
    off = FeatureLevelRecord("eligible.leader.replicas.version", 0)
    state = replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=[off])
    scan = Scan(listing_rare)
    for _ in range(200):
        image = state.newest
        part = forgetting_slice(image, rules_of(image, live.__contains__), at_most, scan=scan)
        assert len(part.records) <= at_most
        if part.records:
            state = appended(state, part.records)
        if part.done:
            break
    else:
        raise AssertionError("the slices never end")
    assert not eligible_anywhere(state.newest)
    for row in state.newest.topics.columns.live_rows().tolist():
        partition = state.newest.topics.at(row)
        assert partition.isr and set(partition.isr) <= set(partition.replicas)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), at_most=st.integers(1, 12))
def test_slices_together_take_a_broker_out_of_everything(seed: int, at_most: int) -> None:
    """With a scan that is kept between the slices, and with other changes between them."""
    state, live = cluster(seed)
    scan = Scan(naming(1))
    for _ in range(200):
        image = state.newest
        with mock.patch.object(partitions, "MIN_ROWS", 1):
            part = removal_slice(image, 1, rules_of(image, live.__contains__), at_most, scan=scan)
        assert len(part.records) <= at_most
        if part.records:
            state = appended(state, part.records)
        if part.done:
            break
    else:
        raise AssertionError("the slices never end")
    for row in state.newest.topics.columns.live_rows().tolist():
        partition = state.newest.topics.at(row)
        assert partition.leader != 1
        assert 1 not in partition.isr or partition.isr == (1,)


def test_a_scan_looks_again_at_what_changed_between_two_slices() -> None:
    topic = bytes([9]) * 16
    brokers = [
        BrokerRecord(broker, bytes([broker + 1]) * 16, 7, fenced=False, log_dirs=(directory(broker),))
        for broker in range(3)
    ]
    new = [
        PartitionRecord(
            index,
            topic,
            (0, 2),
            (0, 2),
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
            directories=(directory(0), directory(2)),
        )
        for index in range(30)
    ]
    first = FeatureLevelRecord("metadata.version", 19)
    records = [first, *brokers, TopicRecord("t", topic), *new]
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    scan = Scan(naming(1))
    assert removal_slice(state.newest, 1, rules_of(state.newest, lambda _: True), 10, scan=scan).records == ()
    joins = PartitionChangeRecord(
        5, topic, replicas=(0, 2, 1), isr=(0, 2, 1), directories=(directory(0), directory(2), directory(1))
    )
    state = replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=[joins])
    again = removal_slice(state.newest, 1, rules_of(state.newest, lambda _: True), 10, scan=scan)
    assert again.records == (PartitionChangeRecord(5, topic, isr=(0, 2)),)


def test_the_columns_are_used_where_many_rows_are_plain() -> None:
    topic = bytes([9]) * 16
    records: list[Record] = [FeatureLevelRecord("metadata.version", 19)]
    records += [
        BrokerRecord(broker, bytes([broker + 1]) * 16, 7, fenced=False, log_dirs=(directory(broker),))
        for broker in range(3)
    ]
    records.append(TopicRecord("t", topic))
    records += [
        PartitionRecord(
            index,
            topic,
            (0, 1, 2),
            (0, 1, 2),
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
            directories=(directory(0), directory(1), MIGRATING),
        )
        for index in range(100)
    ]
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    part = removal_slice(state.newest, 0, rules_of(state.newest, lambda _: True), 1000)
    assert isinstance(part.records, RecordPieces)
    assert [len(piece) for piece in part.records.pieces] == [100]  # type: ignore[arg-type]
    assert part.records[3] == PartitionChangeRecord(3, topic, isr=(1, 2), leader=1)
    rules, final = rules_of(state.newest, lambda _: True), FenceBrokerRecord(0, 7)
    part = failed_directories_slice(state.newest, 0, [directory(0)], rules, 1000, final=final)
    assert isinstance(part.records, RecordPieces)
    assert len(part.records.pieces[0]) == 100 and part.records.pieces[1:] == (final,)  # type: ignore[arg-type]
    assert part.records[3] == PartitionChangeRecord(3, topic, isr=(1, 2), leader=1)
    elsewhere = failed_directories_slice(state.newest, 0, [directory(0, 1)], rules, 1000, final=final)
    assert elsewhere.records == (final,)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 200), level=st.sampled_from((16, 19, 25)))
def test_new_partitions_in_columns_are_those_made_one_by_one(seed: int, count: int, level: int) -> None:
    rng = random.Random(seed)
    topic = bytes([9]) * 16
    records: list[Record] = [FeatureLevelRecord("metadata.version", level)]
    for broker in range(BROKERS):
        held = tuple([directory(broker, number) for number in range(rng.randint(1, 2))])
        held = held if level >= 17 else ()
        records.append(BrokerRecord(broker, bytes([broker + 1]) * 16, 7, fenced=False, log_dirs=held))
    records.append(TopicRecord("t", topic))
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=0, records=records)
    fenced = rng.choice((-1, -1, 3))
    candidates = [UsableBroker(broker, None, broker == fenced) for broker in range(BROKERS)]
    new = NewPartitions(state.newest, candidates, rng)
    width = rng.randint(1, 4)
    lists = [(0, *rng.sample(range(1, BROKERS), width - 1)) for _ in range(count)]
    one_is_shorter = width > 1 and rng.random() < 0.2
    if one_is_shorter:
        lists[-1] = lists[-1][:-1]
    one_by_one = [new.record(topic, 5 + index, replicas) for index, replicas in enumerate(lists)]
    made = new.records(topic, 5, lists)
    if count >= 24 and fenced < 0 and not one_is_shorter:
        assert len(made) == 1, "many of the usual shape are one record of columns"
    together = in_pieces(made)
    assert list(together) == one_by_one
    plain = replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=one_by_one)
    assert not describe_difference(plain.newest, appended(state, together).newest)
