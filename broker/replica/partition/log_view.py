"""What others may see of a replica's log. Changes nothing and knows no role."""

from __future__ import annotations

from metaquorum.broker.replica.partition.local_log import LocalLog
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.partition.producers import ProducerTable


class LogView:
    """Offsets are exclusive ends but `start_offset`. `end_offset` is what was accepted, perhaps not written;
    the tables are live: look, and change nothing."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log

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
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def epochs(self) -> EpochTable:
        return self._log.epochs

    @property
    def producers(self) -> ProducerTable:
        return self._log.producers
