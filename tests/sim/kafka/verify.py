"""After healing: the outcome of every transaction, copy and offset according to the committed logs.

Reads the one committed log of each partition, as it was before any cleaning, and compares it with what
producers and members did and received. Raises SafetyError.
"""

from __future__ import annotations

from metaquorum.storage.batches.batch import RecordBatch, read_marker
from metaquorum.storage.batches.format import BatchHeader
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import OffsetCommitKey
from metaquorum.wire.stored import decode_stored
from tests.sim.errors import SafetyError
from tests.sim.kafka.history import GroupHistory, Place, TransactionHistory, Txn
from tests.sim.kafka.plan import OFFSETS, SOURCE
from tests.sim.kafka.producers import COPIES

Fates = dict[str, set[bool]]
"""The outcomes of transactions by name, in all partitions that they wrote to."""


class CommittedLogs:
    """The committed log of each partition, walked once. `values`: (offset, value, committed) of records in
    transactions, `plain`: offsets of other records, `offsets`: the offsets of each group at the end."""

    def __init__(self) -> None:
        self.fates: Fates = {}
        self.values: dict[Place, list[tuple[int, bytes, bool]]] = {}
        self.plain: dict[Place, list[int]] = {}
        self.offsets: dict[tuple[str, Place], int] = {}

    def walk(self, place: Place, batches: list[RecordBatch], *, was_lost: bool = False) -> None:
        """Raises SafetyError if a transaction has not ended, unless the end of this log `was_lost`."""
        pending: dict[int, list[RecordBatch]] = {}
        for batch in batches:
            header = batch.header
            marker = read_marker(header, batch.data)
            if marker is not None:
                for each in pending.pop(header.producer_id, []):
                    self._require_fenced_by(header, each, place)
                    self._take(place, each, committed=marker.committed, is_transactional=True)
            elif header.is_transactional:
                pending.setdefault(header.producer_id, []).append(batch)
            elif not header.is_control:
                self._take(place, batch, committed=True, is_transactional=False)
        for producer_id, left in pending.items() if not was_lost else ():
            raise SafetyError(
                f"{place}: the transaction of producer {producer_id} does not end: {left[0].header}"
            )

    @staticmethod
    def _require_fenced_by(marker: BatchHeader, batch: RecordBatch, place: Place) -> None:
        if batch.header.producer_epoch > marker.producer_epoch:
            raise SafetyError(
                f"{place}: the marker {marker} ends a transaction of the later epoch {batch.header}"
            )

    def _take(self, place: Place, batch: RecordBatch, *, committed: bool, is_transactional: bool) -> None:
        for record in batch.records():
            if place[0] == OFFSETS:
                self._take_offset(record.key, record.value, committed, is_transactional)
            elif not is_transactional:
                self.plain.setdefault(place, []).append(record.offset)
            elif record.value is not None:
                self.values.setdefault(place, []).append((record.offset, record.value, committed))
                self._fate(record.value.split(b"|")[0].decode(), committed)

    def _take_offset(
        self, key: bytes | None, value: bytes | None, committed: bool, is_transactional: bool
    ) -> None:
        try:
            stored = None if key is None else decode_stored(OFFSETS, key, value)
        except DecodeError:
            return  # of a later release
        if stored is None or not isinstance(stored.key, OffsetCommitKey) or stored.value is None:
            return
        at = (stored.key.group, (stored.key.topic, stored.key.partition))
        if committed:
            self.offsets[at] = stored.value.offset
        if is_transactional:
            self._fate(stored.value.metadata, committed)

    def _fate(self, name: str, committed: bool) -> None:
        self.fates.setdefault(name, set()).add(committed)


def verify_transactions(logs: CommittedLogs, history: TransactionHistory) -> None:
    """Each transaction is in the logs completely or not at all, with the outcome that its producer received;
    without an EndTxn of its own producer that commits, none is committed."""
    for name, fates in logs.fates.items():
        txn = history.by_name.get(name)
        if txn is None:
            raise SafetyError(f"records of {name!r} are in the logs, and nobody began it")
        if len(fates) > 1:
            raise SafetyError(f"{txn} is committed in one place and aborted in another")
        committed = True in fates
        if committed != (txn.outcome if txn.outcome is not None else committed):
            raise SafetyError(f"{txn} ended otherwise than its producer was told")
        if committed and not txn.commit_asked:
            raise SafetyError(f"{txn} is committed, and nobody asked for that")
        if txn.was_read and not committed:
            raise SafetyError(f"{txn} was read by a reader of committed transactions, and is aborted")
    stored = {
        place: [(value, committed) for _, value, committed in found] for place, found in logs.values.items()
    }
    for txn in history.by_name.values():
        if True in logs.fates.get(txn.name, set()) or txn.outcome:
            _require_whole(txn, stored)
    for place, found in logs.values.items():
        twice = [value for _, value, _ in found]
        if len(twice) != len(set(twice)):
            again = next(value for value in twice if twice.count(value) > 1)
            raise SafetyError(f"{place}: {again!r} is stored twice")


def _require_whole(txn: Txn, stored: dict[Place, list[tuple[bytes, bool]]]) -> None:
    for place, values in txn.records.items():
        for value in values:
            if value and (value, True) not in stored.get(place, ()):
                raise SafetyError(f"{txn.name} is committed, and {value!r} is not in {place}")


def verify_copies(logs: CommittedLogs) -> int:
    """Every record below a copier's offset was copied once, in committed transactions; none above it. Returns
    the number of copies."""
    copied: dict[int, list[int]] = {}
    for found in logs.values.values():
        for _, value, committed in found:
            parts = value.split(b"|")
            if committed and parts[1] == b"copy":
                index, offset = parts[2].split(b"@")
                copied.setdefault(int(index), []).append(int(offset))
    count = sum(len(offsets) for offsets in copied.values())
    for (group, place), end in sorted(logs.offsets.items()):
        if group != COPIES:
            continue
        wanted = [offset for offset in logs.plain.get(place, ()) if offset < end]
        found = sorted(copied.pop(place[1], []))
        if found != sorted(wanted):
            raise SafetyError(f"{place} is copied up to {end}, and its copies are {found}, not {wanted}")
    if copied:
        raise SafetyError(f"{copied} of {SOURCE} were copied, and no offset says so")
    return count


def verify_offsets(logs: CommittedLogs, group: GroupHistory) -> None:
    """A group's offset at the end is not below the highest acknowledged one."""
    for place in group.places():
        found, newest = logs.offsets.get((group.group_id, place), -1), group.newest(place)
        if found < newest:
            raise SafetyError(f"{group.group_id}: {place} is at {found}, and {newest} was acknowledged")
