"""What must hold for partition data in every simulated run, seen from outside all brokers at once.

A partition whose loss was allowed (an unclean election, or the disk of the last replica in sync was lost)
begins a new generation, which keeps what its first leader has of the old one. Raises SafetyError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from metaquorum.broker.replica.disk_work import ReadPartition
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import ReplicaRole
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import (
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
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch, parse_header
from tests.sim.data_directory_laws import READ_BYTES, DirectoryLaws, read_log, short
from tests.sim.data_generations import Truth
from tests.sim.errors import SafetyError
from tests.sim.marks import Marks

if TYPE_CHECKING:
    from tests.sim.data_broker import DataBroker

REFUSALS_MAX = 60
"""Per partition, follower and second: the first waits are short."""


class DataLaws(DirectoryLaws):
    """Looks at replicas, directories and responses, and raises SafetyError."""

    def __init__(self, marks: Marks, image: Callable[[], MetadataImage]) -> None:
        super().__init__(marks, image)
        self._seeded: set[tuple[PartitionKey, int]] = set()
        self._leaders: dict[tuple[PartitionKey, int], str] = {}
        self._answered: set[tuple[PartitionKey, int, int, int]] = set()
        self._readers: dict[tuple[PartitionKey, int], int] = {}
        self._checked: dict[tuple[str, int, PartitionKey, int, int], int] = {}
        self._roles: dict[tuple[str, int, PartitionKey], tuple[ReplicaRole, int]] = {}
        self._refused: dict[tuple[str, int, int, PartitionKey], tuple[int, int]] = {}
        self.acknowledged = 0

    # ---- answers ---------------------------------------------------------------------------------

    def responds(self, process: DataBroker, request: DataRequest, response: DataResponse | ApiError) -> None:
        """A response of a broker to a client or a follower."""
        match request, response:
            case ProduceRequest(), ProduceResponse():
                for asked, result in zip(request.partitions, response.results, strict=True):
                    if len(request.partitions) == 1 or self._leads(process, asked.key):
                        self._produced(process, request.acks, asked, result)
                    elif result.error is ErrorCode.NONE and request.acks == ACKS_ALL:
                        self._was_committed(process, asked, result)
            case FetchRequest(), FetchResponse() if request.replica_id < 0:
                for part in response.partitions:
                    self._consumed(process, part)
            case FetchRequest(), FetchResponse():
                for part in response.partitions:
                    if part.error is not ErrorCode.NONE:
                        self._refuses(process, request.replica_id, part)
            case _:
                pass

    def _refuses(self, process: DataBroker, replica_id: int, part: FetchedPartition) -> None:
        """A follower that is refused waits a little longer each time, or sends its fetches to another
        leader."""
        at = (process.host.name, process.host.boot, replica_id, part.key)
        second = process.host.engine.now_us // 1_000_000
        known, count = self._refused.get(at, (second, 0))
        self._refused[at] = (second, count + 1 if known == second else 1)
        if self._refused[at][1] > REFUSALS_MAX:
            raise SafetyError(
                f"{process.host.name} refuses {self.name_of(part.key)} to broker {replica_id} more than"
                f" {REFUSALS_MAX} times in a second: {part}"
            )

    def _served(self, process: DataBroker, key: PartitionKey) -> Partition:
        """The replica that a response came from: it leads, and is in a directory that works."""
        partition = process.partitions().get(key)
        name = f"{process.host.name} {self.name_of(key)}"
        if partition is None or partition.role is not ReplicaRole.LEADER:
            raise SafetyError(f"{name} answers and leads no such partition")
        failed = self.failed.get((process.host.name, process.host.boot), set())
        if partition.directory_id in failed:
            raise SafetyError(f"{name} answers from the dead directory {short(partition.directory_id)}")
        return partition

    @staticmethod
    def _leads(process: DataBroker, key: PartitionKey) -> bool:
        partition = process.partitions().get(key)
        return partition is not None and partition.role is ReplicaRole.LEADER

    def _was_committed(self, process: DataBroker, asked: ProducePartition, result: ProduceResult) -> None:
        """The request has several partitions; this broker was the leader of this one when the batch was
        committed."""
        stored = self.truth(asked.key, 0).batches.get(result.base_offset)
        is_there = stored is not None and parse_header(stored[1]).crc == asked.batch.headers[0].crc
        if not is_there and not self.may_lose(asked.key):
            raise SafetyError(
                f"{process.host.name} {self.name_of(asked.key)}: an acknowledged batch is not there: {result}"
            )

    def _produced(
        self, process: DataBroker, acks: int, asked: ProducePartition, result: ProduceResult
    ) -> None:
        if result.error is not ErrorCode.NONE or acks != ACKS_ALL:
            return
        partition = self._served(process, asked.key)
        name = f"{process.host.name} {self.name_of(asked.key)}"
        header = asked.batch.headers[0]
        end = result.base_offset + header.last_offset_delta + 1
        if end > partition.high_watermark:
            raise SafetyError(
                f"{name} acknowledges up to {end} with its high watermark at {partition.high_watermark}"
            )
        self.acknowledged += 1
        self._note_duplicate(asked, header)
        self.check_replica(process, partition)
        truth = self.truth(asked.key, self.generation(asked.key, partition.leader_epoch))
        stored = truth.batches.get(result.base_offset)
        if stored is None and not self._can_look(process, partition, result.base_offset):
            return
        if stored is None or parse_header(stored[1]).crc != header.crc:
            raise SafetyError(
                f"{name} acknowledges a batch at {result.base_offset} that is not there: {result}"
            )
        if parse_header(stored[1]).leader_epoch < partition.leader_epoch:
            self.marks.add("batch of an earlier leader acknowledged")

    def _note_duplicate(self, asked: ProducePartition, header: BatchHeader) -> None:
        which = (asked.key, header.producer_id, header.producer_epoch, header.base_sequence)
        if which in self._answered:
            self.marks.add("duplicate batch acknowledged")
        self._answered.add(which)

    @staticmethod
    def _can_look(process: DataBroker, partition: Partition, offset: int) -> bool:
        """The offset is not below the log's start, and the directory did not die after a correct response."""
        return offset >= partition.start_offset and not process.directories.by_id(partition.directory_id).dead

    def _consumed(self, process: DataBroker, part: FetchedPartition) -> None:
        if part.error is not ErrorCode.NONE or part.diverging is not None:
            return
        partition = self._served(process, part.key)
        name = f"{process.host.name} {self.name_of(part.key)}"
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
        for batch in self.split(part.key, part.records):
            if batch.header.next_offset > part.high_watermark:
                raise SafetyError(
                    f"{name} lets a reader have offset {batch.header.last_offset}, the high watermark is"
                    f" {part.high_watermark}"
                )
            self._compare(name, truth, batch)

    # ---- replicas --------------------------------------------------------------------------------

    def after_event(self, process: DataBroker) -> None:
        """Looks at every replica of a broker that took a step."""
        failed = self.failed.get((process.host.name, process.host.boot), ())
        for key, partition in process.partitions().items():
            if partition.directory_id in failed and partition.role is not ReplicaRole.IDLE:
                raise SafetyError(
                    f"{process.host.name} {self.name_of(key)} goes on as {partition.role.name} in the dead"
                    f" directory {short(partition.directory_id)}"
                )
            self._check_role(process, key, partition)
            self.check_replica(process, partition)

    def _check_role(self, process: DataBroker, key: PartitionKey, partition: Partition) -> None:
        at = (process.host.name, process.host.boot, key)
        now = (partition.role, partition.leader_epoch)
        if self._roles.get(at) == now:
            return
        self._roles[at] = now
        if partition.role is ReplicaRole.IDLE:
            return
        name = f"{process.host.name} {self.name_of(key)}"
        info = None if process.image is None else process.image.topics.partition(*key)
        placed = None if info is None else info.directory_of(process.node_id)
        if placed != partition.directory_id and not self.is_moving_to(process, key, placed):
            raise SafetyError(
                f"{name} is {partition.role.name} in {short(partition.directory_id)}, and its image places"
                f" it in {None if placed is None else short(placed)}"
            )
        if partition.role is ReplicaRole.LEADER:
            who = f"{process.host.name} boot {process.host.boot}"
            other = self._leaders.setdefault((key, partition.leader_epoch), who)
            if other != who:
                raise SafetyError(f"{name} leads in epoch {partition.leader_epoch}, and so did {other}")
            self._leader_begins(process, key, partition, name)

    def _leader_begins(self, process: DataBroker, key: PartitionKey, partition: Partition, name: str) -> None:
        """A leader has everything that was committed before, as far as its generation promises it; one that
        learns of its epoch after that is over need not have what was committed later. Nothing can be checked
        in a directory that has just died if its broker has not noticed yet."""
        worker = process.workers.get(partition.directory_id)
        if worker is None or worker.failed or worker.directory.dead:
            return
        generation = self.generation(key, partition.leader_epoch)
        own = {batch.header.base_offset: batch.data for batch in self.batches_of(process, partition)}
        if generation and (key, generation) not in self._seeded:
            self._seeded.add((key, generation))
            old, new = self.truth(key, generation - 1), self.truth(key, generation)
            for base, (after, data) in sorted(old.batches.items()):
                if own.get(base) != data:
                    break
                new.batches[base], new.end = (after, data), after
        self._require_committed(name, self.truth(key, generation), own, partition)

    def _require_committed(
        self, name: str, truth: Truth, own: dict[int, bytes], partition: Partition
    ) -> None:
        for base, (after, data) in truth.batches.items():
            if parse_header(data).leader_epoch > partition.leader_epoch:
                continue
            if base >= partition.start_offset and own.get(base) != data:
                raise SafetyError(
                    f"{name} leads in epoch {partition.leader_epoch} and lacks the batch {base}..{after - 1}"
                    f" that was committed; its log is {partition.start_offset}..{partition.end_offset}"
                )

    def check_replica(self, process: DataBroker, partition: Partition) -> None:
        """What is below a replica's high watermark is the same on every replica."""
        key, high_watermark = partition.key, partition.high_watermark
        at = (process.host.name, process.host.boot, key, partition.incarnation, partition.leader_epoch)
        checked = self._checked.get(at, partition.start_offset)
        if checked >= high_watermark:
            return
        if not partition.start_offset <= high_watermark <= partition.end_offset:
            raise SafetyError(
                f"{process.host.name} {self.name_of(key)}: the high watermark {high_watermark} is outside of"
                f" the log {partition.start_offset}..{partition.end_offset}"
            )
        if self.may_lose(key) and not self._in_sync(process, partition):
            return
        name = f"{process.host.name} {self.name_of(key)}"
        truth = self.truth(key, self.generation(key, partition.leader_epoch))
        if partition.role is ReplicaRole.LEADER:
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
        """At the end: all of the log, on every replica."""
        name = f"{process.host.name} {self.name_of(partition.key)}"
        truth = self.truth(partition.key, self.generation(partition.key, partition.leader_epoch))
        for batch in self.batches_of(process, partition):
            self._compare(name, truth, batch)

    def _in_sync(self, process: DataBroker, partition: Partition) -> bool:
        info = self.image().topics.partition(*partition.key)
        if partition.role is ReplicaRole.LEADER:
            return True  # its epoch may be over: what it considers committed still is
        if info is None or partition.role is ReplicaRole.IDLE or info.leader_epoch != partition.leader_epoch:
            return False
        return process.node_id in info.isr

    def _check_isr(self, process: DataBroker, partition: Partition, name: str) -> None:
        """Every replica in sync has what the leader considers committed (as far as this can be checked: on
        brokers that run)."""
        info = self.image().topics.partition(*partition.key)
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
    """All running brokers but one; set by the world."""

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
        """Written batches of a replica, read directly from its directory."""
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
        data = read_log(worker.store, work)
        return [each for each in self.split(partition.key, data) if each.header.base_offset >= start]
