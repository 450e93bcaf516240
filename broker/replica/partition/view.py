"""What others may see of a replica: its log, and figures of its role.

Owns that view. Must not change the replica; answers to requests are in `answers`.
"""

from __future__ import annotations

from metaquorum.broker.replica.partition.follower import Following
from metaquorum.broker.replica.partition.leader import Leading
from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable


class ReplicaView:
    """Offsets are exclusive ends except `start_offset`. `end_offset` is what was accepted, perhaps not
    written; the tables are live: read only."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._leading: Leading | None = None
        self._following: Following | None = None

    @property
    def incarnation(self) -> int:
        return self._log.incarnation

    @property
    def start_offset(self) -> int:
        return self._log.start

    @property
    def end_offset(self) -> int:
        return self._log.end

    @property
    def written_end(self) -> int:
        return self._log.written

    @property
    def synced_end(self) -> int:
        return self._log.synced

    @property
    def is_held(self) -> bool:
        """Accepted batches wait: the replica is about to be in another directory."""
        return self._log.is_held

    @property
    def given_end(self) -> int:
        """The end of what its directory was given before it was held."""
        return self._log.given

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._log.last_stable_offset

    def aborted_in(self, from_offset: int, records: bytes) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of the aborted transactions that may have records in `records`, which
        were read from `from_offset` on."""
        return tuple(self._log.aborted_in(from_offset, records))

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def epochs(self) -> EpochTable:
        return self._log.epochs

    @property
    def producers(self) -> ProducerTable:
        return self._log.producers

    @property
    def leads(self) -> bool:
        return self._leading is not None

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed ISR while leading, else ()."""
        return () if self._leading is None else self._leading.isr.committed

    @property
    def is_under_replicated(self) -> bool:
        """It leads with fewer replicas in sync than it has; replicas being added do not count."""
        leading = self._leading
        if leading is None:
            return False
        wanted = sum(1 for broker_id in leading.isr.replicas if broker_id not in leading.isr.adding)
        return len(leading.isr.committed) < wanted

    @property
    def is_under_min_isr(self) -> bool:
        """It leads, and acks=all is refused."""
        return self._leading is not None and len(self.isr) < self._leading.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """It leads, and with one replica fewer in sync acks=all would be refused."""
        return self._leading is not None and len(self.isr) == self._leading.min_isr

    @property
    def lag(self) -> int:
        """The offsets between its end and the high watermark that this replica knows; 0 for a leader."""
        following = self._following
        return 0 if following is None else max(0, following.leader_high_watermark - self.end_offset)
