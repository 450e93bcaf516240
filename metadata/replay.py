"""The single interpreter: `replay(state, batch) -> state`, and the engine that replays whole logs.

Batches and metadata transactions (KIP-868): records between Begin and End change only the pending image, End
publishes it, Abort drops it. `meaning` owns what a single record means; many partition records at once go
through `columnar`.

`Replayer` is for long runs: it edits one builder in place and copies nothing until `state()` requests an
image. `replay` and `replay_records` are pure and cost one small copy per call; `Replays` avoids most of it
when each state follows the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from metaquorum.metadata import columnar
from metaquorum.metadata.errors import RecordDecodeError, ReplayError
from metaquorum.metadata.image import ImageBuilder, MetadataImage, Provenance
from metaquorum.metadata.meanings import apply_record
from metaquorum.metadata.records.codec import decode
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from metaquorum.storage.batches.batch import RecordBatch, batch_record_spans
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.runs import BatchRun

ErrorHandler = Callable[[ReplayError], None]
"""Handles a record that cannot be applied: return to skip it, raise to stop."""


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A metadata transaction that has not ended yet.

    `pending` is the image with the transaction's records; its provenance is the end of the log as replayed.
    `begin_offset` is the offset of the Begin record, `name` its name.
    """

    begin_offset: int
    name: str | None
    pending: MetadataImage


class ReplayState(msgspec.Struct, frozen=True):
    """The visible image, and the open transaction if there is one.

    The visible image's offset is never inside a transaction: while one is open, it is the offset of the Begin
    record.
    """

    image: MetadataImage = msgspec.field(default_factory=MetadataImage)
    transaction: OpenTransaction | None = None

    @property
    def newest(self) -> MetadataImage:
        """The image that the next record applies to: the pending one inside a transaction."""
        return self.image if self.transaction is None else self.transaction.pending

    @property
    def end_offset(self) -> int:
        """Offset of the next record, inside a transaction or not."""
        return self.newest.provenance.offset


def replay(state: ReplayState, batch: RecordBatch) -> ReplayState:
    """The state after one batch of the log. `state` is unchanged, even if this fails.

    Raises ReplayError (which names offset and record) for a record that does not fit, for a batch that does
    not start where the state ends, and for one that cannot be decoded.
    """
    engine = Replayer(state)
    engine.apply_batch(batch)
    return engine.state()


def replay_records(
    state: ReplayState, *, base_offset: int, epoch: int, timestamp_ms: int, records: Sequence[object]
) -> ReplayState:
    """The state after `records`, which are about to be appended as one batch at `base_offset`.

    The active controller calls this before it appends. Raises ReplayError as `replay` does.
    """
    engine = Replayer(state)
    engine.apply_records(base_offset=base_offset, epoch=epoch, timestamp_ms=timestamp_ms, records=records)
    return engine.state()


class Replayer:
    """Replays many batches in place. Discard it after an error that was raised (not handled)."""

    __slots__ = ("_begin", "_on_error", "_visible", "builder", "keeps_changes", "skipped", "use_columns")

    def __init__(
        self,
        state: ReplayState | None = None,
        *,
        on_error: ErrorHandler | None = None,
        use_columns: bool = True,
    ) -> None:
        state = ReplayState() if state is None else state
        self.builder = ImageBuilder(state.newest)
        self._visible: MetadataImage | None = None
        self._begin: tuple[int, str | None] | None = None
        if state.transaction is not None:
            self._visible = state.image
            self._begin = (state.transaction.begin_offset, state.transaction.name)
        self._on_error = on_error
        self.use_columns = use_columns
        self.keeps_changes = True
        """If False, runs and large batches leave out what usual partition changes set. They are checked as
        ever, and the errors are the same; the leaders and ISRs of the states are not."""
        self.skipped = 0

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self.builder.offset

    def state(self) -> ReplayState:
        """The state reached, as immutable images. The engine can continue."""
        newest = self.builder.freeze()
        if self._begin is None:
            return ReplayState(newest)
        begin_offset, name = self._begin
        if self._visible is None:
            raise RuntimeError("an open transaction without its visible image")
        return ReplayState(
            self._visible, OpenTransaction(begin_offset=begin_offset, name=name, pending=newest)
        )

    def apply_batch(self, batch: RecordBatch) -> None:
        """Applies every record of a batch; control batches only move the offset."""
        header = batch.header
        self._check_start(header.base_offset)
        if not header.is_control and not (
            self.use_columns
            and header.records_count >= columnar.MIN_RECORDS
            and columnar.apply_batch(self, batch)
        ):
            for offset, record in self._decoded(batch):
                self.apply(record, offset, header.leader_epoch, header.max_timestamp_ms)
        builder = self.builder  # an abort inside the batch replaced it
        builder.offset = header.next_offset
        builder.epoch = header.leader_epoch
        builder.timestamp_ms = header.max_timestamp_ms

    def apply_run(self, run: BatchRun) -> None:
        """Applies plain batches, many at a time; equals `apply_batch` for each of them."""
        self._check_start(run.base_offset)
        if self.use_columns:
            columnar.apply_run(self, run)
            return
        for batch in run.batches():
            self.apply_batch(batch)

    def apply_records(
        self, *, base_offset: int, epoch: int, timestamp_ms: int, records: Sequence[object]
    ) -> None:
        """Applies records that form one batch at `base_offset`."""
        self._check_start(base_offset)
        for offset, record in enumerate(records, base_offset):
            self.apply(record, offset, epoch, timestamp_ms)
        builder = self.builder
        builder.offset = base_offset + len(records)
        builder.epoch = epoch
        builder.timestamp_ms = timestamp_ms

    def _check_start(self, base_offset: int) -> None:
        if base_offset != self.builder.offset:
            self.refuse(
                ReplayError(
                    base_offset,
                    None,
                    f"the batch starts at offset {base_offset}, but replay has only reached "
                    f"{self.builder.offset}; load the snapshot that ends there, or give the missing "
                    "segment",
                )
            )

    def apply(self, record: object, offset: int, epoch: int, timestamp_ms: int) -> None:
        """Applies one record, transaction markers included; refused records go to the error handler."""
        kind = type(record)
        try:
            if kind is BeginTransactionRecord:
                self._begin_transaction(record, offset, epoch, timestamp_ms)
            elif kind is EndTransactionRecord:
                self._require_transaction(record, offset)
                self._begin = self._visible = None
            elif kind is AbortTransactionRecord:
                self._abort_transaction(record, offset)
            else:
                apply_record(self.builder, record, offset)
        except ReplayError as error:
            self.refuse(error)

    def _begin_transaction(self, record: Any, offset: int, epoch: int, timestamp_ms: int) -> None:
        if self._begin is not None:
            raise ReplayError(
                offset, record, f"the transaction that began at offset {self._begin[0]} is still open"
            )
        image = self.builder.freeze()
        if image.provenance.offset != offset:
            # Records before the Begin in its own batch are visible.
            image = image.with_provenance(Provenance(offset, epoch, timestamp_ms))
        self._visible = image
        self._begin = (offset, record.name)

    def _require_transaction(self, record: object, offset: int) -> None:
        if self._begin is None:
            raise ReplayError(offset, record, "no transaction is open")

    def _abort_transaction(self, record: object, offset: int) -> None:
        self._require_transaction(record, offset)
        if self._visible is None:
            raise RuntimeError("an open transaction without its visible image")
        position = (self.builder.offset, self.builder.epoch, self.builder.timestamp_ms)
        self.builder = ImageBuilder(self._visible)
        self.builder.offset, self.builder.epoch, self.builder.timestamp_ms = position
        self._begin = self._visible = None

    def refuse(self, error: ReplayError) -> None:
        """Raises `error`, or passes it to the error handler and counts what was skipped."""
        if self._on_error is None:
            raise error
        self._on_error(error)
        self.skipped += 1

    def _decoded(self, batch: RecordBatch) -> Iterator[tuple[int, object]]:
        for offset, data, start, end in _values(batch):
            try:
                _, record = decode(data, start, end)
            except RecordDecodeError as error:
                failure = ReplayError(offset, None, str(error))
                failure.__cause__ = error  # distinguishes a newer record from garbage
                self.refuse(failure)
                continue
            yield offset, record


class Replays:
    """Replays piece after piece. If the next piece follows the last state, the engine that made it continues:
    a new engine would first copy what a state shares with the previous one."""

    def __init__(self) -> None:
        self._engine: Replayer | None = None
        self._made: ReplayState | None = None

    def after(self, state: ReplayState, apply: Callable[[Replayer], object]) -> ReplayState:
        """The state that `apply` produces from `state`, which is unchanged. Raises what `apply` raises."""
        engine, self._engine = self._engine, None  # an engine that failed is not reused
        if engine is None or state is not self._made:
            engine = Replayer(state)
        apply(engine)
        self._made = engine.state()
        self._engine = engine
        return self._made


def _values(batch: RecordBatch) -> Iterator[tuple[int, bytes, int, int]]:
    """(offset, buffer, start, end) of every record's value."""
    base = batch.header.base_offset
    try:
        spans = batch_record_spans(batch)
    except BatchError:
        # Keys, headers, compression or offset gaps: slower, and not what KRaft writes.
        for raw in batch.records():
            value = raw.value or b""
            yield raw.offset, value, 0, len(value)
        return
    for delta, (start, end) in enumerate(spans):
        yield base + delta, batch.data, start, end
