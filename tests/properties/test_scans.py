"""What scans over columns find, and which replicas may lead by their tables: the same as row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.controller.partitions.column_elections import Electorate
from metaquorum.controller.partitions.partitions import (
    Find,
    counting_on,
    leaderless,
    listing_rare,
    lying_in,
    naming,
    not_preferred,
)
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.metadata.image import LOST, MIGRATING, NO_LEADER, UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import (
    FeatureLevelRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import replay_records
from tests.properties.test_column_decisions import BROKERS, cluster, directory

Says = Callable[[PartitionInfo], bool]
IDS = list(range(-2, BROKERS + 4))


def image_of(seed: int) -> MetadataImage:
    """The cluster, after its first topic was removed for some seeds: rows that belong to no topic."""
    state, _ = cluster(seed)
    if seed % 2:
        gone = [RemoveTopicRecord(topic_id=bytes([1]) * 16)]
        state = replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=gone)
    return state.newest


def found(image: MetadataImage, find: Find) -> set[tuple[bytes, int]]:
    columns = image.topics.columns
    (chunk,) = columns.chunks
    rows = [int(row) for row in find(chunk)]
    assert len(set(rows)) == len(rows)
    live = set(columns.live_rows().tolist())
    assert set(rows) <= live
    return {(each.topic_id, each.index) for each in map(image.topics.at, rows)}


def meant(image: MetadataImage, says: Says) -> set[tuple[bytes, int]]:
    live = map(image.topics.at, image.topics.columns.live_rows().tolist())
    return {(each.topic_id, each.index) for each in live if says(each)}


def names(broker_id: int) -> Says:
    return lambda each: each.leader == broker_id or broker_id in each.isr


def is_rare(each: PartitionInfo) -> bool:
    return bool(each.adding or each.removing or each.elr or each.last_known_elr)


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32), broker_id=st.integers(0, BROKERS))
def test_scans_find_what_they_say(seed: int, broker_id: int) -> None:
    image = image_of(seed)
    if not image.topics.partition_count:
        return
    dead = [directory(broker_id), b"n" * 16]

    def lies(each: PartitionInfo) -> bool:
        return names(broker_id)(each) and each.directory_of(broker_id) in dead

    expected: list[tuple[Find, Says]] = [
        (naming(broker_id), names(broker_id)),
        (lying_in(image, broker_id, dead), lies),
        (listing_rare, is_rare),
        (leaderless(None), lambda each: each.leader == NO_LEADER),
        (leaderless(broker_id), lambda each: each.leader == NO_LEADER and broker_id in each.replicas),
        (not_preferred, lambda each: each.leader != each.replicas[0]),
        (
            counting_on(broker_id),
            lambda each: names(broker_id)(each) or (broker_id in each.replicas and is_rare(each)),
        ),
    ]
    for find, says in expected:
        assert found(image, find) == meant(image, says)


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32), live=st.frozensets(st.integers(-1, BROKERS + 3)))
def test_tables_of_who_may_lead_hold_for_every_id_and_directory(seed: int, live: frozenset[int]) -> None:
    """Including unknown ids and directories that no registration has; a negative result leads to a closer
    look."""
    image = image_of(seed)
    table = Electorate(image, rules_of(image, live.__contains__))
    ids = np.array(IDS, dtype=np.int32)
    assert table.acceptable(ids).tolist() == [each in image.brokers and each in live for each in IDS]
    codes = image.topics.columns.directories
    known = {
        codes.find(each): each
        for broker in range(BROKERS)
        for each in (directory(broker), directory(broker, 1))
    }
    known |= {codes.find(each): each for each in (UNASSIGNED, MIGRATING, LOST)}
    for broker_id in range(BROKERS):
        for code in range(len(codes) + 3):
            (said,) = table.in_place(np.array([broker_id], dtype=np.int32), np.array([code], dtype=np.int32))
            place = known.get(code)
            online = place is not None and directory_online(image.brokers, broker_id, place)
            assert online or not cast("bool", said)
            if place in (UNASSIGNED, MIGRATING) or (
                place is not None and place in image.brokers[broker_id].directories
            ):
                assert said


def test_a_table_says_nothing_of_directories_that_came_after_it() -> None:
    state, live = cluster(3)
    table = Electorate(state.newest, rules_of(state.newest, live.__contains__))
    more = [
        FeatureLevelRecord("metadata.version", 25),
        TopicRecord("new", b"N" * 16),
        PartitionRecord(0, b"N" * 16, (0, 1), (0, 1), leader=0, directories=(b"1" * 16, b"2" * 16)),
    ]
    after = replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=more).newest
    codes = [after.topics.columns.directories.find(each) for each in (b"1" * 16, b"2" * 16)]
    assert not table.in_place(np.array([0, 1], dtype=np.int32), np.array(codes, dtype=np.int32)).any()
