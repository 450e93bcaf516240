"""What must hold for transactions and compacted topics, seen from outside all brokers at once.

Adds to `DataLaws`: a replica of a compacted topic is the one committed log with some records removed, but no
key's last value, and no reader gets a last stable offset beyond an open transaction. Raises SafetyError.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from metaquorum.broker.coordinator.transaction import PREPARED, TransactionState, TransactionStatus
from metaquorum.broker.replica.disk_work import AppendPartition, CutPartition, DiskWork, FoundDirectory
from metaquorum.broker.replica.events import SendTxnMarkers
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.store.parts import StoredReplica
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.data import (
    DataRequest,
    DataResponse,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    PartitionKey,
)
from metaquorum.storage.batches.batch import RecordBatch, parse_header, read_marker
from tests.sim.data_disks import DataDirectory
from tests.sim.data_generations import Truth
from tests.sim.data_laws import DataLaws
from tests.sim.errors import SafetyError
from tests.sim.kafka.compaction import batches_with_gaps, last_values
from tests.sim.kafka.plan import COMPACTED

if TYPE_CHECKING:
    from tests.sim.data_broker import DataBroker
    from tests.sim.host import Process
    from tests.sim.kafka.broker import KafkaBroker


def batches_of_truth(truth: Truth) -> list[RecordBatch]:
    """The one committed log of a partition, from its start."""
    return [RecordBatch(parse_header(data), data) for _, (_, data) in sorted(truth.batches.items())]


class OpenTransactions:
    """The open transactions of one committed log, as far as it was searched."""

    def __init__(self) -> None:
        self.looked_to = 0
        self._open: dict[int, int] = {}

    def look(self, truth: Truth) -> None:
        while self.looked_to in truth.batches:
            after, data = truth.batches[self.looked_to]
            header = parse_header(data)
            if read_marker(header, data) is not None:
                self._open.pop(header.producer_id, None)
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
            self.looked_to = after

    @property
    def first(self) -> int | None:
        return min(self._open.values(), default=None)


class KafkaLaws(DataLaws):
    """See the module."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._compacted: dict[bytes, bool] = {}
        self._thinned: set[tuple[int, int, int]] = set()
        self._ends: dict[tuple[int, PartitionKey], int] = {}
        self._passed: defaultdict[tuple[int, PartitionKey], list[range]] = defaultdict(list)
        self._open: dict[PartitionKey, OpenTransactions] = {}
        self._sent: dict[tuple[str, int, int], str] = {}
        self._loaded: set[tuple[str, int, int]] = set()

    # ---- compacted logs --------------------------------------------------------------------------

    def is_compacted(self, key: PartitionKey) -> bool:
        known = self._compacted.get(key[0])
        if known is None:
            topic = self.image().topics.topic(key[0])
            known = topic is not None and topic.name in COMPACTED
            if topic is not None:
                self._compacted[key[0]] = known
        return known

    def split(self, key: PartitionKey, data: bytes, start: int | None = None) -> Iterator[RecordBatch]:
        return batches_with_gaps(data) if self.is_compacted(key) else super().split(key, data, start)

    def _compare(self, name: str, truth: Truth, batch: RecordBatch) -> None:
        base = batch.header.base_offset
        seen = truth.batches.get(base)
        if not self.is_compacted(truth.key) or seen is None:
            super()._compare(name, truth, batch)
        elif seen[1] != batch.data and not self.is_thinning(
            RecordBatch(parse_header(seen[1]), seen[1]), batch
        ):
            raise SafetyError(
                f"{name}: the batch at {base} has more than its records removed: {batch.header}"
            )

    def is_thinning(self, old: RecordBatch, batch: RecordBatch) -> bool:
        """Whether a batch is another one with some of its records removed."""
        before, header = old.header, batch.header
        at = (before.crc, header.crc, header.base_offset)
        if at in self._thinned:
            return True
        same = (
            header.base_offset == before.base_offset
            and header.next_offset == before.next_offset
            and (header.producer_id, header.producer_epoch, header.base_sequence)
            == (before.producer_id, before.producer_epoch, before.base_sequence)
            and header.leader_epoch == before.leader_epoch
        )
        had = {each.offset: (each.key, each.value) for each in old.records()}
        has = {each.offset: (each.key, each.value) for each in batch.records()}
        if not same or any(had.get(offset) != what for offset, what in has.items()):
            return False
        self._thinned.add(at)
        return True

    def _require_committed(
        self, name: str, truth: Truth, own: dict[int, bytes], partition: Partition
    ) -> None:
        if not self.is_compacted(partition.key):
            super()._require_committed(name, truth, own, partition)
            return
        mine = [RecordBatch(parse_header(data), data) for _, data in sorted(own.items())]
        below = [each for each in mine if each.header.next_offset <= truth.end]
        if len(below) < len(truth.batches):
            self.marks.add("leader of a cleaned log")
        self.require_values(name, truth, below, self.passed(partition.leader, truth.key))

    def require_values(
        self, name: str, truth: Truth, own: list[RecordBatch], passed: Sequence[range] = ()
    ) -> None:
        """A log with everything that was committed has the last value of every key. `passed`: offsets that it
        never had, because its leader had cleaned them away: a key that was deleted there meanwhile may still
        have its old value, as in Kafka (delete.retention.ms bounds how long a follower may be away)."""
        batches = batches_of_truth(truth)
        wanted, found = last_values(batches), last_values(own)
        for key in found.keys() - wanted.keys():
            deleted = max(each.offset for batch in batches for each in batch.records() if each.key == key)
            if any(deleted in offsets for offsets in passed):
                self.marks.add("deleted key kept by a replica that was away")
                del found[key]
        if found != wanted:
            wrong = sorted(each for each in {*wanted, *found} if wanted.get(each) != found.get(each))
            key = wrong[0]
            raise SafetyError(
                f"{name}: the last value of {key!r} is {wanted.get(key)}, and the log has {found.get(key)}"
            )

    def swapped(
        self, process: Process, replica: StoredReplica, before: list[RecordBatch], after: list[RecordBatch]
    ) -> None:
        """A cleaned segment has replaced others in a log."""
        name = f"{process.host.name} {replica.topic}-{replica.key[1]} after compaction"
        had = {each.header.base_offset: each for each in before}
        for batch in after:
            old = had.get(batch.header.base_offset)
            if old is None or not (old.data == batch.data or self.is_thinning(old, batch)):
                raise SafetyError(f"{name}: the batch {batch.header} was not there before")
        if last_values(before) != last_values(after):
            raise SafetyError(f"{name}: a last value is gone: {last_values(before)} was {last_values(after)}")
        self.marks.add("segment compacted")
        if len(after) < len(before):
            self.marks.add("batch compacted away")

    def works(self, process: DataBroker, work: DiskWork) -> None:
        super().works(process, work)
        if isinstance(work, AppendPartition | CutPartition) and self.is_compacted(work.key):
            at = (process.node_id, work.key)
            if isinstance(work, CutPartition):
                self.marks.add("compacted log cut")
                self._ends[at] = min(work.end_offset, self._ends.get(at, work.end_offset))
                return
            for batch in batches_with_gaps(work.batches.data):
                end = self._ends.get(at, batch.header.base_offset)
                if end < batch.header.base_offset:
                    self._passed[at].append(range(end, batch.header.base_offset))
                self._ends[at] = batch.header.next_offset

    def opened(
        self, process: DataBroker, directory: DataDirectory, store: DirectoryStore, found: FoundDirectory
    ) -> None:
        super().opened(process, directory, store, found)
        self._ends |= {(process.node_id, each.key): each.log.end_offset for each in found.replicas}

    def passed(self, broker_id: int, key: PartitionKey) -> Sequence[range]:
        """Offsets of a compacted partition that the broker's replica never had."""
        return self._passed[broker_id, key]

    def leads(self, broker_id: int, topic: str, index: int) -> bool:
        """Whether a broker leads a partition according to the committed metadata."""
        topics = self.image().topics
        info = topics.topic_named(topic)
        found = None if info is None else topics.partition(info.topic_id, index)
        return found is not None and found.leader == broker_id

    # ---- transactions ----------------------------------------------------------------------------

    def responds(self, process: DataBroker, request: DataRequest, response: DataResponse | ApiError) -> None:
        super().responds(process, request, response)
        match request, response:
            case FetchRequest(read_committed=True), FetchResponse():
                for part in response.partitions:
                    self._read_committed(process, part)
            case _:
                pass

    def _read_committed(self, process: DataBroker, part: FetchedPartition) -> None:
        """Nothing of an open transaction is read (KIP-98)."""
        if part.last_stable_offset < 0:
            return
        key, stable = part.key, part.last_stable_offset
        first = self.first_open(key)
        name = f"{process.host.name} {self.name_of(key)}"
        if first is not None and first < stable:
            raise SafetyError(f"{name} calls {stable} stable, and a transaction is under way from {first} on")
        for batch in self.split(key, part.records):
            if batch.header.next_offset > stable:
                raise SafetyError(f"{name} lets a reader have {batch.header.last_offset} above {stable}")

    def first_open(self, key: PartitionKey) -> int | None:
        """The first offset of the earliest open transaction in the committed log."""
        known = self._open.setdefault(key, OpenTransactions())
        known.look(self.truth(key, 0))
        return known.first

    def sends_markers(self, process: KafkaBroker, effect: SendTxnMarkers) -> None:
        what = (effect.transactional_id, effect.producer_id, effect.producer_epoch)
        who = f"{process.host.name} boot {process.host.boot}"
        before = self._sent.setdefault(what, who)
        if before != who:
            self.marks.add("markers sent by a second coordinator")

    def coordinates(self, process: KafkaBroker, index: int, state: TransactionState, epoch: int) -> None:
        """Records what a transaction coordinator found once it is active."""
        at = (process.host.name, index, epoch)
        if at in self._loaded:
            return
        self._loaded.add(at)
        if any(each.status is TransactionStatus.ONGOING for each in state.transactions.values()):
            self.marks.add("coordinator moved with a transaction under way")
        if any(each.status in PREPARED for each in state.transactions.values()):
            self.marks.add("coordinator moved before the markers were written")
