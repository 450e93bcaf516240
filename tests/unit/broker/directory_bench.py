"""A log directory on a disk in memory, its store, and a model of what must be in it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    CreateReplica,
    CutPartition,
    DiskWork,
    EnforceRetention,
    FindOffset,
    FoundDirectory,
    LogAppended,
    LogCut,
    LogSettings,
    OffsetFound,
    PartitionRead,
    ReadPartition,
    RemoveReplica,
    ReplicaCreated,
    ReplicaLogTrimmed,
    ReplicaRemoved,
    TrimTo,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.parts import ExpectedIdentity, StoreOptions
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.storage.batches.batch import (
    Batches,
    BatchHeader,
    EndMarker,
    encode_batch,
    encode_marker,
    iter_batches,
    parse_header,
    read_marker,
    seal_batch,
)
from metaquorum.storage.batches.format import HEADER_BYTES, walk_headers
from metaquorum.storage.batches.format import TRANSACTIONAL as TRANSACTIONAL_BIT
from metaquorum.storage.disk.interface import Disk, DiskFile, FileSystem, join, read_file
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.log.timed_segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name
from metaquorum.storage.partition.producers import ProducerTable
from metaquorum.storage.partition.replica_directory import parse_replica_name
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile

PATH = "/data/d0"
DIRECTORY_ID = b"directory-id-0-0"
TRANSACTIONAL = (8, 9)
EXPECTED = ExpectedIdentity(cluster_id="cluster", node_id=1)
SMALL = LogSettings(segment_bytes=500, retention_bytes=1200, retention_ms=-1, file_delete_delay_ms=100)
OPTIONS = StoreOptions(max_open_files=3, index_interval_bytes=100)


def key_of(number: int) -> PartitionKey:
    """Topic ids from numbers; partition 0."""
    return (number.to_bytes(16, "big"), 0)


def walked(data: bytes) -> Batches:
    """Batches among which offsets may be missing."""
    walk = walk_headers(data, gaps=True)
    assert walk.problem is None
    return Batches.of_walk(data, walk)


@dataclass
class Model:
    """What a replica must hold. Below `kept` nothing may be lost; it starts in `lowest` to `start`.
    `over`: an offset at which an empty log may be found, because it was started over there."""

    incarnation: int
    batches: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    lowest: int = 0
    end: int = 0
    kept: int = 0
    epoch: int = 1
    sequences: dict[int, int] = field(default_factory=dict)
    over: int | None = None

    def forget_from(self, end: int) -> None:
        self.batches = {base: data for base, data in self.batches.items() if base < end}
        self.end = end
        self.resume()

    def resume(self) -> None:
        """The producers go on after what is left."""
        self.sequences = {}
        for _, data in sorted(self.batches.items()):
            header = parse_header(data)
            if header.base_sequence >= 0:
                self.sequences[header.producer_id] = header.base_sequence + header.records_count


def check_index_files(disk: Disk, directory: str, base: int, headers: list[BatchHeader]) -> None:
    """Every entry is the last offset of the batch at that position, and the newest time so far."""
    index = read_file(disk, join(directory, index_name(base, INDEX_SUFFIX)))
    times = read_file(disk, join(directory, index_name(base, TIME_INDEX_SUFFIX)))
    at, newest, last_at = 0, (-1, base), 0
    entries: set[tuple[int, int]] = set()
    lasts: list[tuple[int, int]] = []
    for header in headers:
        newest = max(newest, (header.max_timestamp_ms, header.last_offset), key=lambda each: each[0])
        entries.add((header.last_offset - base, at))
        lasts.append((newest[0], newest[1] - base))
        last_at = at
        at += header.size_bytes
    assert set(struct.iter_unpack(">ii", index)) <= entries
    assert len(index) // 8 >= (last_at > OPTIONS.index_interval_bytes)
    noted = list(struct.iter_unpack(">qi", times))
    assert set(noted) <= set(lasts) and noted[-1:] == lasts[-1:]


class Interrupted:
    """A file system before whose syncs something happens."""

    def __init__(self, inner: FileSystem, before: Callable[[], object]) -> None:
        self._inner = inner
        self._before = before

    def sync(self, files: Sequence[DiskFile], directories: Sequence[str]) -> None:
        self._before()
        self._inner.sync(files, directories)

    def close(self) -> None:
        self._inner.close()


class Bench:
    """The store, opened anew at will, and the model of every replica."""

    def __init__(self, seed: int = 0, crash_after: int | None = None, **profile: float) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(random.Random(seed), FaultProfile(**profile))  # type: ignore[arg-type]
        self.disk.make_directory(PATH)
        self.disk.sync_directory("/")
        self.disk.sync_directory("/data")
        identity = MetaProperties(cluster_id="cluster", node_id=1, directory_id=DIRECTORY_ID)
        store_meta_properties(self.disk, PATH, identity)
        if crash_after is not None:
            self.disk.crash_after = crash_after
        self.models: dict[PartitionKey, Model] = {}
        self.coming: set[PartitionKey] = set()
        self.going: set[PartitionKey] = set()
        self.warnings: list[str] = []
        self.store: DirectoryStore | None = None
        self.found: FoundDirectory | None = None
        self.now_ms = 0
        self.next_key = 1
        self.incarnation = 100

    # --- the store

    def opened(self) -> DirectoryStore:
        if self.store is None:
            self.store, self.found = DirectoryStore.open(
                self.disk,
                PATH,
                EXPECTED,
                self.warnings.append,
                rng=self.rng,
                settings=SMALL,
                options=OPTIONS,
            )
            assert self.store is not None, self.found.problem
            assert self.found.damaged == (), self.found.damaged
            for replica in self.found.replicas:
                if replica.key in self.models:
                    self.models[replica.key].incarnation = replica.incarnation
        return self.store

    def do(self, make: Callable[..., DiskWork], key: PartitionKey, **fields: object) -> list[DataEvent]:
        incarnation = fields.pop("incarnation", None) or self.models[key].incarnation
        return self.opened().execute(
            make(directory_id=DIRECTORY_ID, key=key, incarnation=incarnation, **fields)
        )

    def pick(self) -> PartitionKey:
        if not self.models:
            self.create()
        return self.rng.choice(sorted(self.models))

    # --- steps

    def create(self) -> PartitionKey:
        key = key_of(self.next_key)
        self.next_key += 1
        self.incarnation += 1
        self.opened()
        self.coming.add(key)
        events = self.do(
            CreateReplica, key, incarnation=self.incarnation, topic=f"t{key[0][15]}", settings=SMALL
        )
        assert events == [ReplicaCreated(directory_id=DIRECTORY_ID, key=key, incarnation=self.incarnation)]
        self.coming.discard(key)
        self.models[key] = Model(self.incarnation)
        return key

    def append(self, key: PartitionKey | None = None, *, sync: bool = True) -> None:
        self.opened()
        key = key or self.pick()
        model = self.models[key]
        model.epoch += self.rng.random() < 0.2
        data = b"".join(self.batch(model) for _ in range(self.rng.randint(1, 2)))
        events = self.do(AppendPartition, key, batches=walked(data), sync=sync)
        (event,) = events
        assert isinstance(event, LogAppended) and event.end_offset == model.end

    def batch(self, model: Model) -> bytes:
        records = self.rng.randint(1, 3)
        producer = self.rng.choice([-1, 7, *TRANSACTIONAL])
        sequence = model.sequences.get(producer, 0)
        if producer in TRANSACTIONAL and self.rng.random() < 0.4:
            return self.marker(model, producer)
        data = encode_batch(
            base_offset=model.end,
            leader_epoch=model.epoch,
            timestamp_ms=self.rng.randint(0, 50) + model.end,
            values=[self.rng.randbytes(self.rng.randint(0, 40)) for _ in range(records)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            attributes=TRANSACTIONAL_BIT if producer in TRANSACTIONAL else 0,
        )
        model.sequences[producer] = sequence + records
        model.batches[model.end] = data
        model.end += records
        return data

    def marker(self, model: Model, producer: int) -> bytes:
        end = EndMarker(committed=self.rng.random() < 0.4, coordinator_epoch=3)
        sent = encode_marker(end, producer_id=producer, producer_epoch=0, timestamp_ms=model.end)
        header = parse_header(sent)._replace(base_offset=model.end, leader_epoch=model.epoch)
        model.batches[model.end] = data = seal_batch(header, sent[HEADER_BYTES:])
        model.end += 1
        return data

    def aborted(self, key: PartitionKey) -> int:
        """How many aborted transactions the replica knows."""
        return len(self.opened()._replicas[key].log.producers.aborted)

    def sync(self, *, checkpoint: bool = False) -> None:
        store = self.opened()
        prepared = store.prepare_sync(checkpoint=checkpoint)
        if prepared is None:
            return
        prepared.run()
        synced = store.sync_completed(prepared)
        assert synced.directory_id == DIRECTORY_ID
        for key, incarnation, end, _ in synced.ends:
            model = self.models[key]
            assert (incarnation, end) == (model.incarnation, model.end)
            model.kept = end

    def checkpoint(self) -> None:
        self.sync(checkpoint=True)

    def busy_sync(self) -> None:
        """A sync on its own thread, with something else done before each of its steps on the disk; beside the
        files of a checkpoint other syncs run, too."""
        store = self.opened()
        ends = {key: model.end for key, model in self.models.items()}
        prepared = store.prepare_sync(checkpoint=self.rng.random() < 0.7)
        if prepared is None:
            return
        logs, files = prepared.split()
        logs._file_system = Interrupted(logs._file_system, self.something)
        logs.run()
        for key, incarnation, end, size_bytes in store.sync_completed(logs).ends:
            model = self.models[key]
            assert incarnation == model.incarnation and min(ends[key], model.end) <= end <= model.end
            model.kept = max(model.kept, end)
            assert size_bytes >= sum(map(len, model.batches.values()))
        files._file_system = Interrupted(files._file_system, self.something_or_sync)
        files.run()
        assert store.sync_completed(files).ends == ()

    def something_or_sync(self) -> None:
        (self.sync if self.rng.random() < 0.3 else self.something)()

    def something(self) -> None:
        steps = (self.append, self.append, self.cut, self.trim, self.start_over, self.remove, self.create)
        self.rng.choice(steps)()

    def cut(self) -> None:
        self.opened()
        key = self.pick()
        model = self.models[key]
        bases = [base for base in model.batches if base >= model.start] or [model.end]
        end = self.rng.choice([*bases, model.end])
        self.incarnation += 1
        model.kept = min(model.kept, end)
        model.incarnation = self.incarnation
        (event,) = self.do(CutPartition, key, end_offset=end)
        assert isinstance(event, LogCut) and event.log.end_offset == end
        model.forget_from(end)
        model.kept = end
        model.epoch += 1
        self.check_producers(event.log.producers, key, model.start, end)

    def start_over(self) -> None:
        self.opened()
        key = self.pick()
        model = self.models[key]
        self.incarnation += 1
        model.incarnation = self.incarnation
        model.over = model.end + self.rng.randint(0, 20)
        (event,) = self.do(CutPartition, key, end_offset=model.over, start_over=True)
        assert isinstance(event, LogCut)
        assert (event.log.start_offset, event.log.end_offset) == (model.over, model.over)
        assert not event.log.epochs.entries and not len(event.log.producers)
        self.started_over(model)

    @staticmethod
    def started_over(model: Model) -> None:
        assert model.over is not None
        model.batches, model.sequences = {}, {}
        model.start = model.lowest = model.end = model.kept = model.over
        model.over = None

    def retention(self) -> None:
        self.opened()
        key = self.pick()
        model = self.models[key]
        model.start = model.kept
        self.note_trim(key, self.do(EnforceRetention, key, below_offset=model.kept, wall_ms=10**6))

    def trim(self) -> None:
        self.opened()
        key = self.pick()
        model = self.models[key]
        model.start = max(model.kept, model.lowest)
        bases = [base for base in model.batches if model.lowest <= base <= model.start]
        to = self.rng.choice([model.lowest, model.start, *bases])
        self.note_trim(key, self.do(TrimTo, key, start_offset=to))

    def note_trim(self, key: PartitionKey, events: list[DataEvent]) -> None:
        model = self.models[key]
        if events:
            (event,) = events
            assert isinstance(event, ReplicaLogTrimmed) and model.lowest < event.start_offset <= model.start
            model.lowest = event.start_offset
            size = sum(len(data) for base, data in model.batches.items() if base >= event.start_offset)
            assert event.size_bytes >= size  # the segment that holds the start is still there
        model.start = model.lowest
        model.batches = {base: data for base, data in model.batches.items() if base >= model.lowest}

    def remove(self) -> None:
        self.opened()
        key = self.pick()
        self.going.add(key)
        (event,) = self.do(RemoveReplica, key, reason="test")
        assert isinstance(event, ReplicaRemoved)
        self.going.discard(key)
        del self.models[key]

    def tick(self) -> None:
        self.now_ms += 60
        self.opened().tick(self.now_ms)

    def restart(self) -> None:
        self.opened().close(clean=True)
        self.store = None
        self.check_index_files()
        for model in self.models.values():
            model.kept = model.end
        self.opened()

    def check_index_files(self) -> None:
        """After an orderly stop every segment has both, and they say what it holds."""
        for name in self.disk.list_directory(PATH):
            directory = join(PATH, name)
            if parse_replica_name(name) is None or not self.disk.is_directory(directory):
                continue
            for base in list_segments(self.disk, directory):
                data = read_file(self.disk, join(directory, segment_name(base)))
                check_index_files(self.disk, directory, base, [one.header for one in iter_batches(data)])

    def kill(self) -> None:
        self.disk = self.disk.kill()
        self.store = None
        self.opened()
        for model in self.models.values():
            model.kept = model.end

    def power_loss(self) -> None:
        self.disk = self.disk.crash()
        self.store = None
        self.check_after_crash()

    def power_loss_now(self) -> None:
        """Without a look at the models, for tests that look themselves."""
        self.disk = self.disk.crash()
        self.store = None
        self.opened()

    # --- what must be so

    def read_all(self, key: PartitionKey, start: int, end: int, max_bytes: int = 300) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        at = start
        while at < end:
            (event,) = self.do(
                ReadPartition, key, token=1, from_offset=at, to_offset=end, max_bytes=max_bytes
            )
            assert isinstance(event, PartitionRead) and event.problem is None and event.data
            for one in iter_batches(event.data, expected_offset=at):
                found[one.header.base_offset] = one.data
                at = one.header.next_offset
        return found

    def check_producers(self, table: ProducerTable, key: PartitionKey, start: int, end: int) -> None:
        """As a replay of the log gives them; of batches that were trimmed more may be known."""
        replayed = ProducerTable()
        for base, data in sorted(self.models[key].batches.items()):
            if start <= base < end:
                header = parse_header(data)
                replayed.note(header, seen_ms=header.max_timestamp_ms, marker=read_marker(header, data))
        if start == 0:
            assert table == replayed and list(table.aborted) == list(replayed.aborted)
            assert table.open_from == replayed.open_from
            return
        aborted = {one.last_offset: one for one in table.aborted}
        for each in replayed.aborted:
            also = aborted[each.last_offset]
            assert also.producer_id == each.producer_id and also.first_offset <= each.first_offset
        for one in replayed.all():
            known = table.get(one.producer_id)
            assert known is not None and (known.epoch, known.seen_ms) == (one.epoch, one.seen_ms)
            assert known.batches[len(known.batches) - len(one.batches) :] == one.batches

    def check_after_crash(self) -> None:
        """Opens and compares; then the models take over what there is."""
        self.opened()
        assert self.found is not None
        found = {replica.key: replica for replica in self.found.replicas}
        assert set(self.models) - self.going <= set(found) <= set(self.models) | self.coming
        for key in [key for key in self.models if key not in found]:
            del self.models[key]
        for key in set(found) - set(self.models):
            assert found[key].log.end_offset == 0
            self.models[key] = Model(found[key].incarnation)
        self.coming, self.going = set(), set()
        for key, model in self.models.items():
            self.check_replica(key, model)

    def check_replica(self, key: PartitionKey, model: Model) -> None:
        assert self.found is not None
        log = next(one.log for one in self.found.replicas if one.key == key)
        if model.over is not None and log.start_offset == log.end_offset == model.over:
            assert not log.epochs.entries and not len(log.producers)
            self.started_over(model)
            return
        model.over = None
        assert model.lowest <= log.start_offset <= max(model.start, model.lowest)
        assert log.end_offset >= model.kept
        assert log.start_offset <= log.high_watermark <= log.end_offset
        expected = {
            base: data for base, data in model.batches.items() if log.start_offset <= base < log.end_offset
        }
        assert self.read_all(key, log.start_offset, log.end_offset) == expected
        assert log.size_bytes >= sum(len(data) for data in expected.values())
        for base, data in expected.items():
            assert log.epochs.epoch_at(base) == parse_header(data).leader_epoch
        self.check_producers(log.producers, key, log.start_offset, log.end_offset)
        model.start = model.lowest = log.start_offset
        model.kept = log.end_offset
        model.batches = expected
        model.forget_from(log.end_offset)

    def check(self) -> None:
        for key, model in self.models.items():
            assert self.read_all(key, model.start, model.end) == model.batches
            if model.batches:
                self.check_search(key, model)

    def check_search(self, key: PartitionKey, model: Model) -> None:
        target = self.rng.randint(0, model.end + 60)
        below = self.rng.randint(model.start, model.end)
        times = [
            (record.offset, record.timestamp_ms)
            for _, data in sorted(model.batches.items())
            for one in iter_batches(data)
            for record in one.records()
        ]
        expected = next((each for each in times if each[1] >= target and each[0] < below), (None, -1))
        (event,) = self.do(FindOffset, key, token=2, timestamp_ms=target, below_offset=below)
        assert isinstance(event, OffsetFound) and (event.offset, event.timestamp_ms) == expected
