"""Limits of replay: numbers that wrap, lists that are too long, what is refused and what just fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.replay import ReplayState
from tests.images import describe_difference
from tests.unit.metadata.test_replay_edges import (
    MANY,
    TOPIC,
    TOPIC_VALUE,
    changes,
    partition,
    partitions,
    run_both,
)

HIGHEST = 2**31 - 1


@pytest.mark.parametrize(("epoch", "next_epoch"), [(HIGHEST - 1, HIGHEST), (HIGHEST, -HIGHEST - 1), (-1, 0)])
def test_epochs_of_partitions_count_as_numbers_of_32_bits_do(epoch: int, next_epoch: int) -> None:
    values = [
        encode(r.PartitionRecord(at, TOPIC, (1,), (1,), (), (), 1, 0, epoch, epoch), 0) for at in range(MANY)
    ]
    base, _ = run_both([TOPIC_VALUE, *values])
    led, _ = run_both(changes(leader=1), base)
    for info in led.image.topics.partitions_of(TOPIC):
        assert (info.leader_epoch, info.partition_epoch) == (next_epoch, next_epoch)
    kept, _ = run_both(changes(isr=()), base)
    for info in kept.image.topics.partitions_of(TOPIC):
        assert (info.leader_epoch, info.partition_epoch) == (epoch, next_epoch)


@pytest.mark.parametrize("count", [32767, 32768])
def test_lists_of_replicas_have_kafkas_limit(count: int) -> None:
    """The replication factor is an int16."""
    many = tuple(range(count))
    fits = count == 32767
    _, errors = run_both([TOPIC_VALUE, encode(partition(0, isr=many), 1)])
    assert (errors == []) == fits
    wide = encode(r.PartitionRecord(0, TOPIC, many, (1,), leader=1), 0)
    _, errors = run_both([TOPIC_VALUE, wide])
    assert (errors == []) == fits
    base, _ = run_both([TOPIC_VALUE, *partitions(1)])
    _, errors = run_both([encode(r.PartitionChangeRecord(0, TOPIC, isr=many), 1)], base)
    assert (errors == []) == fits


REFUSED = [
    (r.FeatureLevelRecord("metadata.version", 0), "cannot have level 0"),
    (r.FeatureLevelRecord("metadata.version", -1), "cannot have level -1"),
    (r.FeatureLevelRecord("x", -1), "x cannot have level -1"),
    (r.ZkMigrationStateRecord(-1), "state -1"),
    (r.ZkMigrationStateRecord(5), "state 5"),
    (r.ProducerIdsRecord(1, 1, -1), "is not above -1"),
    (r.PartitionRecord(-1, TOPIC, (1,), (1,), leader=1), "index -1 is negative"),
    (r.PartitionRecord(0, TOPIC, (1,), (1,), leader=1, leader_recovery_state=2), "state 2 is not 0 or 1"),
    (r.PartitionRecord(0, TOPIC, (1,), (1,), leader=1, leader_recovery_state=-1), "state -1 is not 0 or 1"),
    (r.RemoveTopicRecord(b"?" * 16), "no topic has the id"),
    (r.ClearElrRecord("no such topic"), "no topic is named no such topic"),
    (r.UnregisterControllerRecord(3000), "controller 3000 is not registered"),
    (r.RemoveAccessControlEntryRecord(b"?" * 16), "no access control entry"),
    (r.RemoveUserScramCredentialRecord("alice", 1), "has no credential of mechanism 1"),
]
ACCEPTED = [
    r.FeatureLevelRecord("metadata.version", 1),
    r.FeatureLevelRecord("x", 0),
    *(r.ZkMigrationStateRecord(state) for state in range(5)),
    r.ProducerIdsRecord(1, 1, 0),
    r.PartitionRecord(0, TOPIC, (1,), (1,), leader=1, leader_recovery_state=1),
    r.RemoveDelegationTokenRecord("?"),
    r.ClearElrRecord(""),
]


@pytest.mark.parametrize(("record", "says"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_replay_refuses_leaves_no_trace(record: Any, says: str) -> None:
    base, _ = run_both([TOPIC_VALUE])
    after, errors = run_both([encode(record, 0)], base)
    assert len(errors) == 1
    assert says in errors[0][1]
    assert describe_difference(after.image, base.image, provenance=False) == ""


@pytest.mark.parametrize("record", ACCEPTED, ids=lambda value: str(value)[:60])
def test_what_stands_at_the_edge_is_accepted(record: Any) -> None:
    base, _ = run_both([TOPIC_VALUE])
    _, errors = run_both([encode(record, 0)], base)
    assert errors == []


def test_blocks_of_producer_ids_only_rise() -> None:
    base, _ = run_both([encode(r.ProducerIdsRecord(1, 1, 1000), 0)])
    for following, fits in ((999, False), (1000, False), (1001, True)):
        after, errors = run_both([encode(r.ProducerIdsRecord(2, 1, following), 0)], base)
        assert (errors == []) == fits
        assert after.image.producer_ids.next_producer_id == (following if fits else 1000)


def broker(epoch: int, **fields: Any) -> bytes:
    return encode(r.BrokerRecord(3, b"i" * 16, epoch, **fields), 1)


@pytest.mark.parametrize("epoch", [4, 6])
@pytest.mark.parametrize(
    "record_of",
    [
        lambda epoch: r.FenceBrokerRecord(3, epoch),
        lambda epoch: r.UnfenceBrokerRecord(3, epoch),
        lambda epoch: r.UnregisterBrokerRecord(3, epoch),
        lambda epoch: r.BrokerRegistrationChangeRecord(3, epoch, fenced=-1),
    ],
)
def test_a_record_about_a_broker_is_about_the_registration_that_it_names(record_of: Any, epoch: int) -> None:
    base, _ = run_both([broker(5)])
    after, errors = run_both([encode(record_of(epoch), 0)], base)
    assert len(errors) == 1
    assert f"it names epoch {epoch} of broker 3, but epoch 5 is registered" in errors[0][1]
    assert describe_difference(after.image, base.image, provenance=False) == ""
    after, errors = run_both([encode(record_of(5), 0)], base)
    assert errors == []


@pytest.mark.parametrize(("fenced", "fits"), [(1, True), (-1, True), (2, False), (-2, False)])
def test_what_a_change_of_a_registration_may_say(fenced: int, fits: bool) -> None:
    for before in (True, False):
        base, _ = run_both([broker(5, fenced=before)])
        change = encode(r.BrokerRegistrationChangeRecord(3, 5, fenced=fenced), 1)
        after, errors = run_both([change], base)
        assert (errors == []) == fits
        assert after.image.brokers[3].fenced == (fenced == 1 if fits else before)
        shutdown = encode(r.BrokerRegistrationChangeRecord(3, 5, in_controlled_shutdown=fenced), 1)
        after, errors = run_both([shutdown], base)
        assert (errors == []) == (fenced == 1)
        assert after.image.brokers[3].in_controlled_shutdown == (fenced == 1)


def test_where_a_registration_stands_is_known_and_goes_with_it() -> None:
    base, _ = run_both([encode(r.NoOpRecord(), 0), broker(5)])
    assert base.image.brokers.registration_offset(3) == 1
    fenced, _ = run_both([encode(r.FenceBrokerRecord(3, 5), 0)], base)
    assert fenced.image.brokers.registration_offset(3) == 1
    again, _ = run_both([broker(9)], fenced)
    assert again.image.brokers.registration_offset(3) == 3
    gone, _ = run_both([encode(r.UnregisterBrokerRecord(3, 9), 0)], again)
    assert gone.image.brokers.registration_offset(3) is None
    assert 3 not in gone.image.brokers


@pytest.mark.parametrize("size", range(0, 60, 3))
@pytest.mark.parametrize("kind", ["new", "changed"])
def test_fields_that_a_newer_writer_added_change_nothing_else(kind: str, size: int) -> None:
    """Records with unknown tagged fields are as long as others with longer lists, and are none of those."""
    tags = ((40, b"\1" * size),)
    if kind == "new":
        tagged = [encode(partition(at, unknown_tags=tags if at % 3 == 0 else ()), 1) for at in range(MANY)]
        state, errors = run_both([TOPIC_VALUE, *tagged])
        plain, _ = run_both([TOPIC_VALUE, *partitions(MANY)])
    else:
        base, _ = run_both([TOPIC_VALUE, *partitions(MANY)])
        tagged = [
            encode(r.PartitionChangeRecord(at, TOPIC, isr=(2,), unknown_tags=tags if at % 3 else ()), 1)
            for at in range(MANY)
        ]
        state, errors = run_both(tagged, base)
        plain, _ = run_both(changes(isr=(2,)), base)
    assert errors == []
    assert describe_difference(state.image, plain.image) == ""


def test_lists_of_brokers_are_numbers_also_where_nobody_is_registered() -> None:
    for values in ([], [broker(5, fenced=True)], [broker(5, fenced=False)]):
        state, _ = run_both([TOPIC_VALUE, *values])
        for listed in state.image.brokers.ids():
            assert listed.dtype == np.int64


@pytest.mark.parametrize("version", [3, 4, 127])
def test_records_of_a_version_from_the_future_are_read_by_nobody(version: int) -> None:
    """As many as are read in columns: none of them is taken for one of a version that is known."""

    def newer(values: list[bytes]) -> list[bytes]:
        return [value[:2] + bytes([version]) + value[3:] for value in values]

    base, _ = run_both([TOPIC_VALUE, *partitions(MANY)])
    for start, values in (
        (ReplayState(), [TOPIC_VALUE, *newer(partitions(MANY))]),
        (base, newer(changes(leader=2))),
    ):
        state, errors = run_both(values, start)
        assert len(errors) == MANY
        assert all(f"version {version}" in reason for _, reason in errors)
        assert state.image.topics.partition_count == start.image.topics.partition_count
