"""A directory's store and its cleaner: which log is cleaned, what is remembered of it, what ends a pass."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    ChangeLogSettings,
    CompactPartition,
    CreateReplica,
    CutPartition,
    PartitionRead,
    ReadPartition,
    RemoveReplica,
    ReplicaLogTrimmed,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import Batches, encode_batch
from metaquorum.storage.cleaner.plan import CleanerSettings
from metaquorum.storage.errors import DiskError
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.partition.replica_directory import load_cleaned_offsets
from tests.unit.broker.directory_bench import DIRECTORY_ID, PATH, SMALL, Bench, key_of, walked

RULES = CleanerSettings(min_dirty_ratio=0.1, delete_retention_ms=100)
COMPACTED = replace(SMALL, compacts=True, deletes=False, cleaner=RULES)


class Cleaned(Bench):
    """A bench with compacted topics t1, t2, ...; values say at which offset they are."""

    def make(self, number: int, keys: Sequence[str], *, settings=COMPACTED) -> PartitionKey:  # type: ignore[no-untyped-def]
        key = key_of(number)
        store = self.opened()
        made = CreateReplica(
            directory_id=DIRECTORY_ID, key=key, incarnation=number, topic=f"t{number}", settings=settings
        )
        store.execute(made)
        self.fill(key, keys)
        return key

    def fill(self, key: PartitionKey, keys: Sequence[str]) -> None:
        log = self.opened()._replicas[key].log
        for name in keys:
            data = encode_batch(
                base_offset=log.end_offset,
                leader_epoch=0,
                timestamp_ms=1_000,
                keys=[name.encode()],
                values=[b"value %d" % log.end_offset],
            )
            self.ask(AppendPartition, key, batches=Batches.sealed(data), sync=True)
        self.sync(checkpoint=True)

    def sync(self, *, checkpoint: bool = False) -> None:
        store = self.opened()
        prepared = store.prepare_sync(checkpoint=checkpoint)
        if prepared is not None:
            prepared.run()
            store.sync_completed(prepared)

    def ask(self, make, key: PartitionKey, **fields: object) -> list[DataEvent]:  # type: ignore[no-untyped-def]
        incarnation = fields.pop("incarnation", None) or self.opened()._replicas[key].incarnation
        work = make(directory_id=DIRECTORY_ID, key=key, incarnation=incarnation, **fields)
        return self.opened().execute(work)

    def compact(self, *keys: PartitionKey, below: int = 1 << 40, wall_ms: int = 10_000) -> None:
        for key in keys:
            self.ask(CompactPartition, key, below_offset=below, wall_ms=wall_ms)

    def kept(self, key: PartitionKey) -> list[int]:
        replica = self.opened()._replicas[key]
        (read,) = self.ask(
            ReadPartition,
            key,
            token=1,
            from_offset=replica.log.log_start_offset,
            to_offset=replica.log.end_offset,
            max_bytes=1 << 20,
        )
        assert isinstance(read, PartitionRead) and read.data
        return [header.base_offset for header in walked(read.data).headers]

    @property
    def remembered(self) -> dict[tuple[str, int], int]:
        return load_cleaned_offsets(self.disk, PATH)


def carry_out(store: DirectoryStore) -> list[DataEvent]:
    """One pass, if one is due."""
    cleaning = store.cleaner.next()
    events: list[DataEvent] = []
    while cleaning is not None and store.cleaner.is_under_way(cleaning):
        assert store.cleaner.next() is None
        for _ in cleaning.pieces():
            pass
        events += store.cleaner.take_up(cleaning)
    return events


KEYS = [f"k{number % 3}" for number in range(30)]


def test_a_pass_leaves_the_last_of_every_key_and_is_remembered() -> None:
    bench = Cleaned()
    key = bench.make(1, KEYS)
    replica = bench.opened()._replicas[key]
    before, active = replica.size_bytes, replica.log.last_segment
    bench.compact(key)
    events = carry_out(bench.opened())
    assert events and all(isinstance(each, ReplicaLogTrimmed) for each in events)
    assert replica.size_bytes == replica.log.size_bytes < before
    assert [each for each in bench.kept(key) if each < active] == list(range(active - 3, active))
    assert bench.remembered == {("t1", 0): active}
    bench.compact(key)
    assert bench.opened().cleaner.next() is None  # nothing is dirty
    kept = bench.kept(key)
    bench.power_loss_now()
    assert bench.kept(key) == kept
    bench.compact(key)
    assert bench.opened().cleaner.next() is None


def test_the_dirtiest_log_comes_first_and_one_at_a_time() -> None:
    bench = Cleaned()
    old = bench.make(1, KEYS)
    bench.compact(old)
    carry_out(bench.opened())
    bench.fill(old, [f"new{number}" for number in range(12)])
    young = bench.make(2, KEYS)
    bench.compact(old, young)
    store = bench.opened()
    names = []
    while (cleaning := store.cleaner.next()) is not None:
        names.append(cleaning.log.directory[-4:])
        while store.cleaner.is_under_way(cleaning):
            for _ in cleaning.pieces():
                pass
            store.cleaner.take_up(cleaning)
    assert names == ["t2-0", "t1-0"]


def test_what_is_not_dirty_not_stable_too_young_or_not_compacted_stays() -> None:
    for settings, below, wall_ms in (
        (SMALL, 1 << 40, 10_000),
        (COMPACTED, 2, 10_000),
        (replace(COMPACTED, cleaner=replace(RULES, min_lag_ms=9_001)), 1 << 40, 10_000),
        (replace(COMPACTED, cleaner=replace(RULES, min_dirty_ratio=1.0)), 1 << 40, 10_000),
    ):
        bench = Cleaned()
        key = bench.make(1, KEYS, settings=settings)
        bench.compact(key, below=below, wall_ms=wall_ms)
        assert bench.opened().cleaner.next() is None
        overdue = replace(COMPACTED, cleaner=replace(RULES, min_dirty_ratio=1.0, max_lag_ms=8_999))
        bench.ask(ChangeLogSettings, key, settings=overdue)
        bench.compact(key)
        assert bench.opened().cleaner.next() is not None


def test_segments_above_the_recovery_point_wait_for_a_checkpoint() -> None:
    bench = Cleaned()
    key = bench.make(1, [])
    log = bench.opened()._replicas[key].log
    for name in KEYS:
        data = encode_batch(
            base_offset=log.end_offset, leader_epoch=0, timestamp_ms=1, keys=[name.encode()], values=[b"v"]
        )
        bench.ask(AppendPartition, key, batches=Batches.sealed(data), sync=True)
    store = bench.opened()
    assert not store.checkpoint_due
    bench.compact(key)
    assert store.cleaner.next() is None and store.checkpoint_due
    bench.sync(checkpoint=True)
    assert not store.checkpoint_due
    assert carry_out(store), "who waited for a checkpoint need not be asked for again"
    assert store.cleaner.next() is None and not store.checkpoint_due
    for name in KEYS:
        data = encode_batch(
            base_offset=log.end_offset, leader_epoch=0, timestamp_ms=1, keys=[name.encode()], values=[b"v"]
        )
        bench.ask(AppendPartition, key, batches=Batches.sealed(data), sync=True)
    bench.compact(key)
    assert store.cleaner.next() is None and store.checkpoint_due
    bench.sync(checkpoint=True)
    assert carry_out(store), "nor the next time"


def test_one_request_to_compact_asks_for_a_checkpoint_once_more_at_most() -> None:
    """A log that grows faster than it is checkpointed is looked at when it is asked for again."""
    bench = Cleaned()
    key = bench.make(1, [])
    log = bench.opened()._replicas[key].log
    store = bench.opened()
    bench.compact(key)
    asked = 0
    for _ in range(4):
        for name in KEYS:
            data = encode_batch(
                base_offset=log.end_offset,
                leader_epoch=0,
                timestamp_ms=1,
                keys=[name.encode()],
                values=[b"v"],
            )
            bench.ask(AppendPartition, key, batches=Batches.sealed(data), sync=True)
        assert store.cleaner.next() is None
        asked += store.checkpoint_due
        store.cleaner.wants_checkpoint = False
    assert asked == 2


def test_a_cut_lowers_what_is_remembered_and_a_new_topic_has_nothing() -> None:
    bench = Cleaned()
    key = bench.make(1, KEYS)
    bench.compact(key)
    carry_out(bench.opened())
    bench.ask(CutPartition, key, end_offset=4, incarnation=50)
    assert bench.remembered == {("t1", 0): 4}
    bench.ask(RemoveReplica, key, reason="test")
    bench.make(1, [])
    assert bench.remembered == {}


def test_a_cut_under_a_pass_ends_it_and_the_next_one_is_whole() -> None:
    bench = Cleaned()
    key = bench.make(1, KEYS)
    bench.compact(key)
    store = bench.opened()
    cleaning = store.cleaner.next()
    assert cleaning is not None
    for _ in cleaning.pieces():
        pass
    bench.ask(CutPartition, key, end_offset=20, incarnation=50)
    assert store.cleaner.take_up(cleaning) == [] and not store.cleaner.is_under_way(cleaning)
    bench.fill(key, KEYS)
    bench.compact(key)
    assert carry_out(store)
    assert len([each for each in bench.kept(key) if each < store._replicas[key].log.last_segment]) == 3


def test_a_damaged_log_is_given_up_with_a_warning_and_keeps_its_bytes() -> None:
    bench = Cleaned()
    key, other = bench.make(1, KEYS), bench.make(2, KEYS)
    store = bench.opened()
    path = f"{PATH}/t1-0/{segment_name(0)}"
    file = bench.disk.open_append(path)
    data = bytearray(file.read_at(0, file.size()))
    data[-3] ^= 1
    file.truncate(0)
    file.append(bytes(data))
    for _ in range(3):
        bench.compact(key, other)
        cleaning = store.cleaner.next()
        while cleaning is not None and store.cleaner.is_under_way(cleaning):
            error: Exception | None = None
            try:
                for _ in cleaning.pieces():
                    pass
            except Exception as raised:
                error = raised
            store.cleaner.take_up(cleaning, error)
    assert len(bench.warnings) == 1 and "not compacted" in bench.warnings[0]
    assert ("t2", 0) in bench.remembered and ("t1", 0) not in bench.remembered
    assert file.read_at(0, file.size()) == bytes(data)


@pytest.mark.parametrize("operation", ["read", "write", "sync", "rename", "remove", "sync_directory"])
def test_an_io_error_makes_the_directory_bad(operation: str) -> None:
    bench = Cleaned()
    key = bench.make(1, KEYS)
    bench.compact(key)
    bench.disk.inject(PATH, operation=operation)
    cleaning = None
    with pytest.raises(DiskError):
        cleaning = bench.opened().cleaner.next()
        assert cleaning is not None
        while True:
            error: Exception | None = None
            try:
                for _ in cleaning.pieces():
                    pass
            except DiskError as raised:
                error = raised
            bench.opened().cleaner.take_up(cleaning, error)
    bench.disk.heal()
    bench.power_loss_now()
    assert set(range(27, 30)) <= set(bench.kept(key))


def test_power_loss_at_every_operation_of_a_directory_s_pass() -> None:
    """The checkpoint never says more than is clean."""
    after, done = 0, False
    while not done:
        bench = Cleaned(random.Random(after).randrange(99))
        key = bench.make(1, KEYS)
        bench.compact(key)
        bench.disk.crash_after = after
        try:
            carry_out(bench.opened())
            done = True
        except Exception as error:
            assert "power" in str(error)
        bench.power_loss_now()
        cleaned_to = bench.remembered.get(("t1", 0), 0)
        kept = bench.kept(key)
        assert set(range(27, 30)) <= set(kept)
        assert len([each for each in kept if each < cleaned_to]) <= 3
        after += 1
    assert after > 15
