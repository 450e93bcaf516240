"""What must hold of partition data in every simulated run, looked at from outside of all brokers at once.

Owns the one committed log of each partition, as the leaders' high watermarks showed it first, and compares
every replica, every answer and every new leader with it. A partition whose loss was allowed (an unclean
election, a disk that was lost with the last replica in sync) begins a new generation, which keeps what its
first leader has of the old one. Raises SafetyError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.replica.events import (
    AppendPartition,
    AskController,
    CreateReplica,
    CutPartition,
    DataEvent,
    DirectoryFailed,
    DiskWork,
    FoundDirectory,
    LogCut,
    ReadPartition,
    ReplicaCreated,
    ReplicaRemoved,
)
from broker.replica.messages import (
    ACKS_ALL,
    DataRequest,
    DataResponse,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from broker.replica.partition import Partition
from broker.replica.store import DirectoryStore
from broker.replica.values import Role
from metadata.errors import ApiError, ErrorCode
from metadata.image import LOST, MetadataImage
from metadata.requests_partitions import AssignReplicasToDirsRequest
from storage.batch import RecordBatch, hop_headers, iter_batches, parse_header
from storage.producers import ProducerTable
from tests.sim.data_disks import DataDirectory
from tests.sim.errors import SafetyError
from tests.sim.marks import Marks

if TYPE_CHECKING:
    from tests.sim.data_broker import DataBroker

READ_BYTES = 1 << 20


@dataclass(slots=True)
class Truth:
    """One generation of a partition: committed batches by base offset, as (next offset, bytes)."""

    batches: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    end: int = 0


class DataLaws:
    """Takes the place of `Promises` beside the committed metadata log: it hears of unclean elections."""

    def __init__(self, marks: Marks, image: Callable[[], MetadataImage], now_ms: Callable[[], float]) -> None:
        self._marks = marks
        self._image = image
        self._now_ms = now_ms
        self._boundaries: dict[PartitionKey, list[int]] = {}
        self._truths: dict[tuple[PartitionKey, int], Truth] = {}
        self._seeded: set[tuple[PartitionKey, int]] = set()
        self._leaders: dict[tuple[PartitionKey, int], str] = {}
        self._readers: dict[tuple[PartitionKey, int], int] = {}
        self._written: dict[tuple[PartitionKey, int, int], tuple[int, int, str]] = {}
        self._checked: dict[tuple[str, int, PartitionKey, int, int], int] = {}
        self._roles: dict[tuple[str, int, PartitionKey], tuple[Role, int]] = {}
        self._held: dict[tuple[int, PartitionKey], set[bytes]] = {}
        self._lost_disks: dict[PartitionKey, set[int]] = {}
        self._failed: dict[tuple[str, int], set[bytes]] = {}
        self.acknowledged = 0

    # ---- generations -----------------------------------------------------------------------------

    def given_up(self, key: PartitionKey, below_epoch: int) -> None:
        """From leader epoch `below_epoch` on less may be there than was acknowledged before."""
        known = self._boundaries.setdefault(key, [])
        if below_epoch not in known:
            known.append(below_epoch)
            known.sort()

    def generation(self, key: PartitionKey, leader_epoch: int) -> int:
        return sum(1 for each in self._boundaries.get(key, ()) if each <= leader_epoch)

    def may_lose(self, key: PartitionKey) -> bool:
        return key in self._boundaries

    def truth(self, key: PartitionKey, generation: int) -> Truth:
        return self._truths.setdefault((key, generation), Truth())

    def disk_lost(self, broker_id: int, image: MetadataImage, directory_id: bytes) -> None:
        """A directory of a broker is empty now: what its replicas held is gone."""
        for (holder, key), held in self._held.items():
            if holder == broker_id and directory_id in held:
                held.discard(directory_id)
                self._lost_disks.setdefault(key, set()).add(broker_id)
        self.metadata_moved(image)

    def would_lose(self, broker_id: int, directory_id: bytes) -> bool:
        """Whether the directory holds what nobody else in sync has, as far as the metadata log says."""
        image = self._image()
        for (holder, key), held in self._held.items():
            partition = image.topics.partition(*key) if holder == broker_id and directory_id in held else None
            if partition is not None:
                have = set(partition.isr or partition.elr) - self._lost_disks.get(key, set())
                if have and have <= {broker_id}:
                    return True
        return False

    def metadata_moved(self, image: MetadataImage) -> None:
        """A replica whose disk was lost has nothing until it left the ISR and came back; where nobody else is
        in sync, what was acknowledged is gone with the disk."""
        for key, lost in list(self._lost_disks.items()):
            partition = image.topics.partition(*key)
            if partition is None:
                del self._lost_disks[key]
                continue
            lost &= {*partition.isr, *partition.elr}
            if not lost:
                del self._lost_disks[key]
            elif set(partition.isr or partition.elr) <= lost:
                self.given_up(key, partition.leader_epoch + 1)

    # ---- when a process begins -------------------------------------------------------------------

    def opened(
        self, process: DataBroker, directory: DataDirectory, store: DirectoryStore, found: FoundDirectory
    ) -> None:
        """Every log is whole, and knows its producers as a replay of it does."""
        for replica in found.replicas:
            log = replica.log
            self._held.setdefault((process.node_id, replica.key), set()).add(directory.directory_id)
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
            data = _read(store, work) if log.start_offset < log.end_offset else b""
            self._require_producers(name, data, log.start_offset, log.end_offset, log.producers)

    def _require_producers(self, name: str, data: bytes, start: int, end: int, known: ProducerTable) -> None:
        replayed = ProducerTable()
        position = start
        producers = []
        for batch in iter_batches(data, expected_offset=start if data else None):
            replayed.note(batch.header, seen_ms=0)
            position = batch.header.next_offset
            producers.append(batch.header.producer_id)
        if position != end:
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
                or theirs.batches[-len(mine.batches) :] != mine.batches
            ):
                raise SafetyError(f"{name}: producer {producer_id} is {theirs}, a replay gives {mine}")
            self._marks.add("producer state rebuilt")

    # ---- what goes to the disks, and what they say -----------------------------------------------

    def works(self, process: DataBroker, work: DiskWork) -> None:
        """A broker asks for work in one of its directories."""
        match work:
            case AppendPartition():
                self._appends(process, work)
            case CreateReplica():
                self._creates(process, work)
            case CutPartition(start_over=True):
                self._marks.add("log started over")
            case CutPartition():
                self._marks.add("log cut by epoch")
            case _:
                pass

    def _appends(self, process: DataBroker, work: AppendPartition) -> None:
        """Raft's log matching, for whoever appends it: one offset and one epoch are one batch."""
        for position, _, _, _ in hop_headers(work.data):
            header = parse_header(work.data, position)
            at = (work.key, header.leader_epoch, header.base_offset)
            what = (header.crc, header.last_offset_delta)
            before = self._written.setdefault(at, (*what, process.host.name))
            if before[:2] != what:
                raise SafetyError(
                    f"{self._name(work.key)}: {process.host.name} appends another batch at offset"
                    f" {header.base_offset} in epoch {header.leader_epoch} than {before[2]} did"
                )

    def _creates(self, process: DataBroker, work: CreateReplica) -> None:
        """S3.6 to S3.8: not while another configured directory may hold it, working or not."""
        held = self._held.get((process.node_id, work.key), set())
        elsewhere = held & set(process.directories.ids()) - {work.directory_id}
        if elsewhere:
            raise SafetyError(
                f"{process.host.name} creates {work.topic}-{work.key[1]} in {_short(work.directory_id)} and"
                f" has it in {[_short(each) for each in sorted(elsewhere)]}"
            )

    def reported(self, process: DataBroker, event: DataEvent) -> None:
        """A directory's report on its way to the core."""
        match event:
            case ReplicaCreated(directory_id=directory_id, key=key):
                self._held.setdefault((process.node_id, key), set()).add(directory_id)
            case ReplicaRemoved(directory_id=directory_id, key=key):
                self._held.setdefault((process.node_id, key), set()).discard(directory_id)
            case DirectoryFailed(directory_id=directory_id):
                self._failed.setdefault((process.host.name, process.host.boot), set()).add(directory_id)
                self._marks.add("directory hung" if "hangs" in event.reason else "directory died")
                self._note_unassigned(process, directory_id)
            case LogCut():
                self._require_cut(process, event)
            case _:
                pass

    def _note_unassigned(self, process: DataBroker, directory_id: bytes) -> None:
        image = self._image()
        for (node_id, key), held in self._held.items():
            partition = image.topics.partition(*key) if node_id == process.node_id else None
            if partition is None or directory_id not in held or node_id not in partition.replicas:
                continue
            if partition.directory_of(node_id) != directory_id:
                self._marks.add("directory failed before its assignment was committed")

    def _require_cut(self, process: DataBroker, event: LogCut) -> None:
        worker = process.workers[event.directory_id]
        log = event.log
        if log.start_offset == log.end_offset or worker.failed or worker.directory.dead:
            return
        partition = process.partitions().get(event.key)
        name = f"{process.host.name} {self._name(event.key)} after a cut"
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
        data = _read(worker.store, work)
        self._require_producers(name, data, log.start_offset, log.end_offset, log.producers)

    def asks(self, effect: AskController) -> None:
        if isinstance(effect.request, AssignReplicasToDirsRequest) and any(
            each.directory_id == LOST for each in effect.request.assignments
        ):
            self._marks.add("LOST sent")

    # ---- answers ---------------------------------------------------------------------------------

    def responds(self, process: DataBroker, request: DataRequest, response: DataResponse | ApiError) -> None:
        """What leaves a broker for a client or a follower."""
        match request, response:
            case ProduceRequest(), ProduceResponse():
                for asked, result in zip(request.partitions, response.results, strict=True):
                    self._produced(process, request.acks, asked, result)
            case FetchRequest(), FetchResponse() if request.replica_id < 0:
                for part in response.partitions:
                    self._consumed(process, part)
            case _:
                pass

    def _served(self, process: DataBroker, key: PartitionKey) -> Partition:
        """The replica that an answer came from: it leads, and lies in a directory that works."""
        partition = process.partitions().get(key)
        name = f"{process.host.name} {self._name(key)}"
        if partition is None or partition.role is not Role.LEADER:
            raise SafetyError(f"{name} answers and leads no such partition")
        failed = self._failed.get((process.host.name, process.host.boot), set())
        if partition.directory_id in failed:
            raise SafetyError(f"{name} answers from the dead directory {_short(partition.directory_id)}")
        return partition

    def _produced(
        self, process: DataBroker, acks: int, asked: ProducePartition, result: ProduceResult
    ) -> None:
        if result.error is not ErrorCode.NONE or acks != ACKS_ALL:
            return
        partition = self._served(process, asked.key)
        name = f"{process.host.name} {self._name(asked.key)}"
        header = parse_header(asked.records)
        end = result.base_offset + header.last_offset_delta + 1
        if end > partition.high_watermark:
            raise SafetyError(
                f"{name} acknowledges up to {end} with its high watermark at {partition.high_watermark}"
            )
        self.check_replica(process, partition)
        truth = self.truth(asked.key, self.generation(asked.key, partition.leader_epoch))
        stored = truth.batches.get(result.base_offset)
        if stored is None and result.base_offset < partition.start_offset:
            return
        if stored is None or parse_header(stored[1]).crc != header.crc:
            raise SafetyError(
                f"{name} acknowledges a batch at {result.base_offset} that is not there: {result}"
            )
        self.acknowledged += 1

    def _consumed(self, process: DataBroker, part: FetchedPartition) -> None:
        if part.error is not ErrorCode.NONE or part.diverging is not None:
            return
        partition = self._served(process, part.key)
        name = f"{process.host.name} {self._name(part.key)}"
        epoch = partition.leader_epoch
        seen = self._readers.get((part.key, epoch), -1)
        if part.high_watermark < seen:
            raise SafetyError(
                f"{name}: a reader saw the high watermark {seen}, and now {part.high_watermark}"
            )
        if part.high_watermark > partition.high_watermark:
            raise SafetyError(
                f"{name} tells a reader the high watermark {part.high_watermark}, its own is"
                f" {partition.high_watermark}"
            )
        self._readers[part.key, epoch] = part.high_watermark
        self.check_replica(process, partition)
        truth = self.truth(part.key, self.generation(part.key, epoch))
        for batch in iter_batches(part.records):
            if batch.header.next_offset > part.high_watermark:
                raise SafetyError(
                    f"{name} lets a reader have offset {batch.header.last_offset}, the high watermark is"
                    f" {part.high_watermark}"
                )
            self._compare(name, truth, batch)

    # ---- replicas --------------------------------------------------------------------------------

    def after_event(self, process: DataBroker) -> None:
        """Look at every replica of a broker that took a step."""
        for key, partition in process.partitions().items():
            self._check_role(process, key, partition)
            self.check_replica(process, partition)

    def _check_role(self, process: DataBroker, key: PartitionKey, partition: Partition) -> None:
        at = (process.host.name, process.host.boot, key)
        now = (partition.role, partition.leader_epoch)
        if self._roles.get(at) == now:
            return
        self._roles[at] = now
        if partition.role is Role.IDLE:
            return
        name = f"{process.host.name} {self._name(key)}"
        info = None if process.image is None else process.image.topics.partition(*key)
        placed = None if info is None else info.directory_of(process.node_id)
        if placed != partition.directory_id:
            raise SafetyError(
                f"{name} is {partition.role.name} in {_short(partition.directory_id)}, and its image places"
                f" it in {None if placed is None else _short(placed)}"
            )
        if partition.role is Role.LEADER:
            who = f"{process.host.name} boot {process.host.boot}"
            other = self._leaders.setdefault((key, partition.leader_epoch), who)
            if other != who:
                raise SafetyError(f"{name} leads in epoch {partition.leader_epoch}, and so did {other}")
            self._leader_begins(process, key, partition, name)

    def _leader_begins(self, process: DataBroker, key: PartitionKey, partition: Partition, name: str) -> None:
        """A leader has everything that was committed before, as far as its generation promises it."""
        generation = self.generation(key, partition.leader_epoch)
        own = {batch.header.base_offset: batch.data for batch in self.batches_of(process, partition)}
        if generation and (key, generation) not in self._seeded:
            self._seeded.add((key, generation))
            old, new = self.truth(key, generation - 1), self.truth(key, generation)
            for base, (after, data) in sorted(old.batches.items()):
                if own.get(base) != data:
                    break
                new.batches[base], new.end = (after, data), after
        truth = self.truth(key, generation)
        for base, (after, data) in truth.batches.items():
            if base >= partition.start_offset and own.get(base) != data:
                raise SafetyError(
                    f"{name} leads in epoch {partition.leader_epoch} and lacks the batch {base}..{after - 1}"
                    f" that was committed; its log is {partition.start_offset}..{partition.end_offset}"
                )

    def check_replica(self, process: DataBroker, partition: Partition) -> None:
        """What lies below a replica's high watermark is what lies there everywhere."""
        key, high_watermark = partition.key, partition.high_watermark
        at = (process.host.name, process.host.boot, key, partition.incarnation, partition.leader_epoch)
        checked = self._checked.get(at, partition.start_offset)
        if checked >= high_watermark:
            return
        if not partition.start_offset <= high_watermark <= partition.end_offset:
            raise SafetyError(
                f"{process.host.name} {self._name(key)}: the high watermark {high_watermark} is outside of"
                f" the log {partition.start_offset}..{partition.end_offset}"
            )
        if self.may_lose(key) and not self._in_sync(process, partition):
            return
        name = f"{process.host.name} {self._name(key)}"
        truth = self.truth(key, self.generation(key, partition.leader_epoch))
        if partition.role is Role.LEADER:
            self._check_isr(process, partition, name)
        for batch in self.batches_of(process, partition, checked, high_watermark):
            if batch.header.next_offset > high_watermark:
                raise SafetyError(
                    f"{name}: the high watermark {high_watermark} lies inside the batch"
                    f" {batch.header.base_offset}..{batch.header.last_offset}"
                )
            self._compare(name, truth, batch)
            self._checked[at] = batch.header.next_offset

    def check_whole(self, process: DataBroker, partition: Partition) -> None:
        """At the end: all of the log, whoever has it."""
        name = f"{process.host.name} {self._name(partition.key)}"
        truth = self.truth(partition.key, self.generation(partition.key, partition.leader_epoch))
        for batch in self.batches_of(process, partition):
            self._compare(name, truth, batch)

    def _in_sync(self, process: DataBroker, partition: Partition) -> bool:
        info = self._image().topics.partition(*partition.key)
        if info is None or partition.role is Role.IDLE or info.leader_epoch != partition.leader_epoch:
            return False
        return partition.role is Role.LEADER or process.node_id in info.isr

    def _check_isr(self, process: DataBroker, partition: Partition, name: str) -> None:
        """Everyone in sync has what the leader calls committed (as far as one can look: who runs)."""
        info = self._image().topics.partition(*partition.key)
        if info is None or info.partition_epoch != partition.partition_epoch:
            return
        for other in self.others(process):
            theirs = other.partitions().get(partition.key) if other.node_id in info.isr else None
            if theirs is None or theirs.leader_epoch != partition.leader_epoch:
                continue
            end = theirs.synced_end if process.load.flush_before_ack else theirs.end_offset
            if end < partition.high_watermark:
                raise SafetyError(
                    f"{name} calls {partition.high_watermark} committed, and {other.host.name}, which is in"
                    f" sync, holds {end}"
                )

    others: Callable[[DataBroker], Iterator[DataBroker]]
    """All brokers that run, but one; set by the world."""

    def _compare(self, name: str, truth: Truth, batch: RecordBatch) -> None:
        header, data = batch.header, bytes(batch.data)
        seen = truth.batches.setdefault(header.base_offset, (header.next_offset, data))
        if seen != (header.next_offset, data):
            raise SafetyError(
                f"{name}: another batch is committed at offset {header.base_offset} (epoch"
                f" {header.leader_epoch}) than was before (epoch {parse_header(seen[1]).leader_epoch})"
            )
        truth.end = max(truth.end, header.next_offset)

    def batches_of(
        self, process: DataBroker, partition: Partition, start: int | None = None, end: int | None = None
    ) -> list[RecordBatch]:
        """Written batches of a replica, read behind everyone's back."""
        worker = process.workers.get(partition.directory_id)
        start = partition.start_offset if start is None else start
        end = partition.written_end if end is None else min(end, partition.written_end)
        if worker is None or worker.failed or worker.directory.dead or start >= end:
            return []
        work = ReadPartition(
            token=0,
            directory_id=partition.directory_id,
            key=partition.key,
            incarnation=partition.incarnation,
            from_offset=start,
            to_offset=end,
            max_bytes=READ_BYTES,
        )
        return [each for each in iter_batches(_read(worker.store, work)) if each.header.base_offset >= start]

    def _name(self, key: PartitionKey) -> str:
        topic = self._image().topics.topic(key[0])
        return f"{key[0].hex()[-6:] if topic is None else topic.name}-{key[1]}"


def _read(store: DirectoryStore, work: ReadPartition) -> bytes:
    found = store.execute(work)
    data = getattr(found[0], "data", None) if found else None
    return b"" if data is None else bytes(data)


def _short(directory_id: bytes) -> str:
    return directory_id.hex()[-6:]
