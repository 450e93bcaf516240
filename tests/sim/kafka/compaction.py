"""The cleaner's thread of a simulated directory, and the values of keys in a log.

A pass works in pieces, while the directory continues; the directory's own thread swaps in what the pass has
staged. The law: a swap changes no key's last value, moves no offset and changes no order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from metaquorum.broker.replica.disk_work import ReadPartition
from metaquorum.broker.replica.store.parts import StoredReplica
from metaquorum.storage.batches.batch import RecordBatch, batch_problem, parse_header, read_marker
from metaquorum.storage.cleaner.cleaning import Cleaning
from metaquorum.storage.errors import DiskError
from tests.sim.data_directory_laws import READ_BYTES, read_log
from tests.sim.data_workers import DirectoryWorker
from tests.sim.errors import SafetyError

if TYPE_CHECKING:
    from tests.sim.kafka.laws import KafkaLaws

Value = tuple[int, bytes | None]
"""Offset and value; a value of None is a tombstone."""


def batches_with_gaps(data: bytes) -> Iterator[RecordBatch]:
    """Every batch of a log from which a cleaner may have removed some. Raises SafetyError."""
    position, expected = 0, 0
    while position < len(data):
        problem = batch_problem(data, position, gaps=True)
        header = parse_header(data, position)
        if problem is not None or header.base_offset < expected:
            raise SafetyError(f"a log holds {header} where {expected} or more follows: {problem}")
        yield RecordBatch(header, data[position : position + header.size_bytes])
        position += header.size_bytes
        expected = header.next_offset


def last_values(batches: Iterable[RecordBatch]) -> dict[bytes, tuple[int, bytes]]:
    """The last committed value of each key; keys whose last value is a tombstone are left out."""
    found: dict[bytes, Value] = {}
    pending: dict[int, dict[bytes, Value]] = {}
    for batch in batches:
        header = batch.header
        if header.is_control:
            marker = read_marker(header, batch.data)
            held = {} if marker is None else pending.pop(header.producer_id, {})
            if marker is not None and marker.committed:
                for name, value in held.items():
                    if name not in found or found[name][0] < value[0]:
                        found[name] = value
            continue
        into = pending.setdefault(header.producer_id, {}) if header.is_transactional else found
        for record in batch.records():
            if record.key is not None:
                into[record.key] = (record.offset, record.value)
    return {name: (at, value) for name, (at, value) in found.items() if value is not None}


class CleaningWorker(DirectoryWorker):
    """The threads of a directory, including its cleaner."""

    def __init__(self, *parts: Any, laws: KafkaLaws) -> None:
        self._laws = laws
        super().__init__(*parts)

    def _look_after(self) -> None:
        super()._look_after()
        if not self.works or self.directory.hung:
            return
        try:
            cleaning = self.store.cleaner.next()
        except DiskError as error:
            self.fail(str(error))
            return
        current = self.store.cleaner._current
        if cleaning is not None and current is not None:
            self._work_on(cleaning, current[0], cleaning.pieces())

    def _work_on(self, cleaning: Cleaning, replica: StoredReplica, pieces: Iterator[int]) -> None:
        def step() -> None:
            if not self.works:
                with contextlib.suppress(Exception):  # its disk has failed too
                    cleaning.close()
                return
            if self.directory.hung:
                self._stuck.append(step)
                return
            error: Exception | None = None
            try:
                next(pieces)
            except StopIteration:
                pass
            except Exception as raised:
                error = raised
            else:
                self._work_on(cleaning, replica, pieces)
                return
            self._later(self._io_ms(), lambda: self._take_up(cleaning, replica, error))

        self._engine.after(self._io_ms(), step)

    def _take_up(self, cleaning: Cleaning, replica: StoredReplica, error: Exception | None) -> None:
        swaps = cleaning.staged is not None and error is None
        before = self._read(replica) if swaps else []
        try:
            events = self.store.cleaner.take_up(cleaning, error)
        except DiskError as failed:
            self.fail(str(failed))
            return
        if events and swaps:
            self._laws.swapped(self._process, replica, before, self._read(replica))
        elif not events:
            self._laws.marks.add("compaction ended by a change of its log")
        for event in events:
            self._report(event, in_order=True)
        if self.store.cleaner.is_under_way(cleaning):
            self._work_on(cleaning, replica, cleaning.pieces())

    def _read(self, replica: StoredReplica) -> list[RecordBatch]:
        log = replica.log
        if log.log_start_offset >= log.end_offset:
            return []
        work = ReadPartition(
            token=0,
            directory_id=self.directory_id,
            key=replica.key,
            incarnation=replica.incarnation,
            from_offset=log.log_start_offset,
            to_offset=log.end_offset,
            max_bytes=READ_BYTES,
        )
        return list(batches_with_gaps(read_log(self.store, work)))
