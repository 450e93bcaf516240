"""What must hold for the directories of brokers: what is opened, written, created and truncated, and where.

Raises SafetyError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from metaquorum.broker.channel import SendToController
from metaquorum.broker.replica.disk_work import (
    AppendPartition,
    CreateReplica,
    CutPartition,
    DirectoryFailed,
    DiskWork,
    FoundDirectory,
    LogCut,
    ReadPartition,
    ReplicaCreated,
    ReplicaLog,
    ReplicaPromoted,
    ReplicaRemoved,
)
from metaquorum.broker.replica.events import DataEvent
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.image import LOST, UNASSIGNED, MetadataImage
from metaquorum.metadata.image.directories import given_up_in
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.metadata.requests.partitions import AssignReplicasToDirsRequest
from metaquorum.storage.batches.batch import RecordBatch, iter_batches, read_marker
from metaquorum.storage.partition.producers import ProducerTable
from tests.sim.data_disks import DataDirectory
from tests.sim.data_generations import Generations
from tests.sim.errors import SafetyError
from tests.sim.marks import Marks

if TYPE_CHECKING:
    from tests.sim.data_broker import DataBroker

READ_BYTES = 1 << 20


class DirectoryLaws(Generations):
    """`failed`: the directories of a process (host, boot) that were reported as failed. `on_created` is
    called for every replica that was created, before its broker learns of it."""

    def __init__(self, marks: Marks, image: Callable[[], MetadataImage]) -> None:
        super().__init__(image)
        self.marks = marks
        self.failed: dict[tuple[str, int], set[bytes]] = {}
        self.on_created: Callable[[DataBroker, bytes], None] = lambda process, directory_id: None
        self._futures: set[tuple[int, PartitionKey, bytes]] = set()
        self._written: dict[tuple[PartitionKey, int, int], tuple[int, int, str]] = {}

    # ---- when a process begins -------------------------------------------------------------------

    def opened(
        self, process: DataBroker, directory: DataDirectory, store: DirectoryStore, found: FoundDirectory
    ) -> None:
        """Every log is intact, unless its disk was damaged, and has the same producers as a replay of it."""
        for each in found.damaged:
            if f"{each.topic}-{each.key[1]}" not in directory.rotten:
                raise SafetyError(f"{process.host.name} finds damage that nobody did: {each.problem}")
            self.marks.add("damaged replica found")
        for replica in found.replicas:
            log = replica.log
            if replica.future:
                self.marks.add("unfinished move found")
                self._futures.add((process.node_id, replica.key, directory.directory_id))
            else:
                self.held.setdefault((process.node_id, replica.key), set()).add(directory.directory_id)
            name = f"{process.host.name} {replica.topic}-{replica.key[1]}"
            if not log.start_offset <= log.high_watermark <= log.end_offset:
                raise SafetyError(f"{name} opened with its high watermark outside of its log: {log}")
            work = ReadPartition(
                token=0,
                directory_id=directory.directory_id,
                key=replica.key,
                incarnation=replica.incarnation,
                from_offset=log.start_offset,
                to_offset=log.end_offset,
                max_bytes=READ_BYTES,
            )
            data = read_log(store, work) if log.start_offset < log.end_offset else b""
            self._require_producers(replica.key, name, data, log)

    def split(self, key: PartitionKey, data: bytes, start: int | None = None) -> Iterator[RecordBatch]:
        """The batches of a part of a log, which begins at `start`. Raises if one is missing."""
        return iter_batches(data, expected_offset=start if data else None)

    def is_compacted(self, key: PartitionKey) -> bool:
        """Whether a cleaner removes records that newer ones have replaced."""
        return False

    def _require_producers(self, key: PartitionKey, name: str, data: bytes, log: ReplicaLog) -> None:
        start, end, known = log.start_offset, log.end_offset, log.producers
        cleaned = self.is_compacted(key)
        replayed = ProducerTable()
        position = start
        producers = []
        for batch in self.split(key, data, start):
            replayed.note(batch.header, seen_ms=0, marker=read_marker(batch.header, batch.data))
            position = batch.header.next_offset
            producers.append(batch.header.producer_id)
        if position > end or (position < end and not cleaned):
            raise SafetyError(
                f"{name}: the log holds offsets {start}..{position} and is said to end at {end}"
            )
        for producer_id in dict.fromkeys(producers):
            mine, theirs = replayed.get(producer_id), known.get(producer_id)
            if mine is None:
                continue
            if (
                theirs is None
                or theirs.epoch != mine.epoch
                or theirs.open_from > mine.open_from >= 0
                or theirs.batches[-1:] != mine.batches[-1:]
                or (not cleaned and theirs.batches[len(theirs.batches) - len(mine.batches) :] != mine.batches)
            ):
                raise SafetyError(f"{name}: producer {producer_id} is {theirs}, a replay gives {mine}")
            self.marks.add("producer state rebuilt")

    # ---- what goes to the disks, and what they say -----------------------------------------------

    def works(self, process: DataBroker, work: DiskWork) -> None:
        """A broker passes work to one of its directories."""
        match work:
            case AppendPartition():
                self._appends(process, work)
            case CreateReplica():
                self._creates(process, work)
            case CutPartition(start_over=True):
                self.marks.add("log started over")
            case CutPartition():
                self.marks.add("log cut by epoch")
            case _:
                pass

    def _appends(self, process: DataBroker, work: AppendPartition) -> None:
        """Raft's log matching, whichever broker appends: an offset and an epoch identify one batch."""
        cleaned = self.is_compacted(work.key)
        for batch in self.split(work.key, work.batches.data):
            header = batch.header
            at = (work.key, header.leader_epoch, header.base_offset)
            what = (0 if cleaned else header.crc, header.last_offset_delta)
            before = self._written.setdefault(at, (*what, process.host.name))
            if before[:2] != what:
                raise SafetyError(
                    f"{self.name_of(work.key)}: {process.host.name} appends another batch at offset"
                    f" {header.base_offset} in epoch {header.leader_epoch} than {before[2]} did"
                )

    def _creates(self, process: DataBroker, work: CreateReplica) -> None:
        """S3.6 to S3.8: no replica is created while another configured directory may hold it, working or not.
        A replica that the log has placed nowhere has never run: a directory that was bad at the start does
        not hold it. One that the log says was given up in this directory counts nowhere (ADR 13): it was
        being moved here when its old directory failed, and another broker leads."""
        at = (process.node_id, work.key, work.directory_id)
        if work.future:
            self._futures.add(at)
            return
        self._futures.discard(at)
        held = self.held.get((process.node_id, work.key), set())
        elsewhere = held & set(process.directories.ids()) - {work.directory_id}
        partition = self.image().topics.partition(*work.key)
        place = None if partition is None else partition.directory_of(process.node_id)
        if elsewhere and place == UNASSIGNED:
            self.marks.add("replica that no one had placed made beside a dead directory")
            elsewhere &= set(process.workers)
        if elsewhere and place == given_up_in(work.directory_id):
            self.marks.add("replica given up during a move made beside a dead directory")
            elsewhere &= set(process.workers)
        if place is None or place == given_up_in(work.directory_id):  # None: deleted, as it learns later
            elsewhere -= self.failed.get((process.host.name, process.host.boot), set())
        if elsewhere:
            raise SafetyError(
                f"{process.host.name} creates {work.topic}-{work.key[1]} in {short(work.directory_id)} and"
                f" has it in {[short(each) for each in sorted(elsewhere)]}"
            )

    def is_moving_to(self, process: DataBroker, key: PartitionKey, directory_id: bytes | None) -> bool:
        """Whether a copy is in progress there: the log names the new directory before the old one is left."""
        return directory_id is not None and (process.node_id, key, directory_id) in self._futures

    def heard(self, process: DataBroker, event: DataEvent) -> None:
        """A directory's report has reached the core: a report may wait while others are handled."""
        if isinstance(event, DirectoryFailed):
            self.failed.setdefault((process.host.name, process.host.boot), set()).add(event.directory_id)

    def reported(self, process: DataBroker, event: DataEvent) -> None:
        """A directory's report on its way to the core."""
        match event:
            case ReplicaPromoted(directory_id=directory_id, key=key):
                self.held.setdefault((process.node_id, key), set()).add(directory_id)
                self._futures.discard((process.node_id, key, directory_id))
                self.marks.add("replica moved to another directory")
            case ReplicaCreated(directory_id=directory_id, key=key) if (
                process.node_id,
                key,
                directory_id,
            ) in self._futures:
                pass
            case ReplicaCreated(directory_id=directory_id, key=key):
                self.held.setdefault((process.node_id, key), set()).add(directory_id)
                self.on_created(process, directory_id)
            case ReplicaRemoved(directory_id=directory_id, key=key):
                self.held.setdefault((process.node_id, key), set()).discard(directory_id)
            case DirectoryFailed():
                self.marks.add("directory hung" if "hangs" in event.reason else "directory died")
            case LogCut():
                self._require_cut(process, event)
            case _:
                pass

    def _require_cut(self, process: DataBroker, event: LogCut) -> None:
        worker = process.workers[event.directory_id]
        log = event.log
        if log.start_offset == log.end_offset or worker.failed or worker.directory.dead:
            return
        partition = process.partitions().get(event.key)
        name = f"{process.host.name} {self.name_of(event.key)} after a cut"
        if partition is None or worker.is_busy():
            return
        work = ReadPartition(
            token=0,
            directory_id=event.directory_id,
            key=event.key,
            incarnation=event.incarnation,
            from_offset=log.start_offset,
            to_offset=log.end_offset,
            max_bytes=READ_BYTES,
        )
        self._require_producers(event.key, name, read_log(worker.store, work), log)

    def asks(self, effect: SendToController) -> None:
        if isinstance(effect.request, AssignReplicasToDirsRequest) and any(
            each.directory_id == LOST for each in effect.request.assignments
        ):
            self.marks.add("LOST sent")

    def came_back(self, count: int) -> None:
        if count:
            self.marks.add("damaged replica came back whole")

    def name_of(self, key: PartitionKey) -> str:
        topic = self.image().topics.topic(key[0])
        return f"{key[0].hex()[-6:] if topic is None else topic.name}-{key[1]}"


def read_log(store: DirectoryStore, work: ReadPartition) -> bytes:
    found = store.execute(work)
    data = getattr(found[0], "data", None) if found else None
    return b"" if data is None else bytes(data)


def short(directory_id: bytes) -> str:
    return directory_id.hex()[-6:]
