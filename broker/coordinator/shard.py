"""One partition of an internal topic whose coordinator this broker is: loading, then active.

The steps of a decision: its records are appended as one batch, replayed, and answered when the high watermark
has passed them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metaquorum.broker.coordinator.state import (
    Ask,
    BatchOrigin,
    CoordinatorState,
    Decision,
    Now,
    Reply,
    coordinator_error,
)
from metaquorum.broker.replica.events import DataEffect, DataRespond
from metaquorum.broker.replica.requests.own_logs import OwnLogs
from metaquorum.lines import printable
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.data import (
    CoordinatorRequest,
    CoordinatorResponse,
    PartitionKey,
    ProduceResult,
)
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.storage.batches.batch import (
    Batches,
    BatchHeader,
    RawRecord,
    RecordBatch,
    encode_batch,
    parse_control_key,
)
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.storage.errors import BatchError
from metaquorum.wire.errors import DecodeError, EncodeError
from metaquorum.wire.stored import decode_stored, encode_stored

LOAD_BYTES = 256 * 1024
"""The log is loaded in chunks of this size: replaying one takes some milliseconds."""
RETRY_MS = 500
"""How long due work waits while the log refuses appends."""

_COMMIT_MARKER, _ABORT_MARKER = 1, 0


@dataclass(slots=True)
class _Batch:
    """A batch that is not committed yet (`values.ProduceTicket`), and what is sent when it is."""

    shard: Shard
    deadline_ms: int
    answers: list[Reply] = field(default_factory=list)
    effects: list[DataEffect] = field(default_factory=list)
    if_unsettled: list[Callable[[], None]] = field(default_factory=list)
    is_done: bool = False

    def add(self, decision: Decision) -> None:
        """Adds what is sent with it, and what is called if that cannot be sent."""
        self.answers += decision.replies
        self.effects += decision.effects
        if decision.if_unsettled is not None:
            self.if_unsettled.append(decision.if_unsettled)

    def complete(self, result: ProduceResult) -> None:
        self.is_done = True
        self.shard.completed(self, result)


class Shard:
    """See the module. `epoch`: the leader epoch in which this broker leads. `wake` is called when `load` has
    more to do."""

    def __init__(
        self,
        key: PartitionKey,
        topic: str,
        epoch: int,
        state: CoordinatorState,
        logs: OwnLogs,
        commit_timeout_ms: int,
        wake: Callable[[], None],
        out: Outbox[DataEffect],
    ) -> None:
        self.key = key
        self.topic = topic
        self.epoch = epoch
        self.state = state
        self.is_active = False
        self.problem: str | None = None
        self._logs = logs
        self._commit_timeout_ms = commit_timeout_ms
        self._wake = wake
        self._out = out
        self._open: dict[object, None] = {}
        self._newest: _Batch | None = None
        self._is_reading = False
        self._load_from = -1
        self._load_to = -1
        self._skipped = SkippedRecords(topic, key[1])
        self._retry_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.key[1]}"

    # ---- loading ---------------------------------------------------------------------------------

    def load(self, image: MetadataImage, now: Now) -> None:
        """Continues reading, up to the end of the log when this broker became its leader."""
        if self.is_active or self._is_reading or self.problem is not None:
            return
        bounds = self._logs.bounds(self.key)
        if bounds is None:
            return
        if self._load_to < 0:
            self._load_from, self._load_to = bounds.start, bounds.end
        self._load_from = max(self._load_from, bounds.start)
        if self._load_from >= self._load_to:
            self.is_active = True
            self._out += [Warn(message=text, is_loss=True) for text in self._skipped.take_texts()]
            self._carry_out(self.state.loaded(image, now), now)
            return
        until = min(bounds.written, self._load_to)
        if self._load_from < until:
            self._is_reading = True
            self._logs.read(self.key, self._load_from, until, LOAD_BYTES, self._read)

    def _read(self, data: bytes | None, problem: str | None) -> None:
        self._is_reading = False
        self._wake()
        if data is None and problem is None:
            return  # the log starts later now
        try:
            if data is None:
                raise BatchError(problem or "the log cannot be read")
            self._replay(data)
        except BatchError as error:
            self.problem = str(error)
            text = (
                f"{self}: its coordinator cannot load it: {error}; elect another leader, then let this "
                "broker copy the replica again: see 'Damaged or lost' in docs/operations.md"
            )
            self._out.append(Warn(message=text, is_loss=True))

    def _replay(self, data: bytes) -> None:
        for batch in Batches.sealed(data).split():
            if batch.header.next_offset > self._load_from:
                self._replay_batch(batch)
            self._load_from = max(self._load_from, batch.header.next_offset)
        if not data:
            self._load_from = self._load_to

    def _replay_batch(self, batch: RecordBatch) -> None:
        """What cannot be read is left out, as in Kafka: one record must not disable the partition."""
        header = batch.header
        try:
            records = batch.records()
        except BatchError as error:
            self._skipped.add_batch(header, error)
            return
        producer_id = header.producer_id if header.is_transactional else -1
        for record in records:
            origin = BatchOrigin(record.offset, producer_id, header.producer_epoch)
            try:
                self._replay_record(record, origin, is_control=header.is_control)
            except (BatchError, DecodeError) as error:
                self._skipped.add(record, error)

    def _replay_record(self, record: RawRecord, origin: BatchOrigin, *, is_control: bool) -> None:
        if is_control:
            kind = parse_control_key(record.key)[1]
            if kind in (_COMMIT_MARKER, _ABORT_MARKER):
                self.state.replay_marker(origin, committed=kind == _COMMIT_MARKER)
        elif record.key is not None:
            if record.value is None:
                self._skipped.deleted(record.key)
            stored = decode_stored(self.topic, record.key, record.value)
            if stored is not None:
                self.state.replay(stored, origin)

    def marked(self, origin: BatchOrigin, *, committed: bool) -> None:
        """A marker was appended to this partition."""
        if self.is_active:
            self.state.replay_marker(origin, committed=committed)
        elif self._load_to >= 0:
            bounds = self._logs.bounds(self.key)
            self._load_to = self._load_to if bounds is None else bounds.end

    # ---- active ----------------------------------------------------------------------------------

    def handle(self, key: object, request: CoordinatorRequest, now: Now) -> None:
        """A request to this coordinator: answered once, unless the caller disconnects."""
        self._open[key] = None
        if not self.is_active:
            self._answer(Reply(key, self._not_active()))
        elif not self.state.only_reads(request.body) and not self._logs.can_append(self.key):
            text = f"{self} accepts no records now (too few replicas are in sync): try again later"
            self._answer(Reply(key, ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)))
        else:
            self._carry_out(self.state.decide(Ask(key, request), now), now, request.body)

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> None:
        """Metadata changed. What the log refuses now is decided again at the next change."""
        if self.is_active:
            self._carry_out(self.state.image_moved(image, previous, now), now)

    def tick(self, now: Now) -> None:
        """Carries out what is due."""
        due_ms = self.next_deadline_ms()
        if due_ms is None or now.ms < due_ms:
            return
        self._retry_ms = None
        if not self._logs.can_append(self.key):
            self._retry_ms = now.ms + RETRY_MS
            return
        self._carry_out(self.state.tick(now), now)

    def next_deadline_ms(self) -> int | None:
        if not self.is_active:
            return None
        return self.state.next_deadline_ms() if self._retry_ms is None else self._retry_ms

    def cancel(self, key: object) -> bool:
        """The caller is gone: it gets no answer."""
        return self._open.pop(key, self) is None

    def take_waiting(self) -> list[object]:
        """Removes and returns all waiting requests."""
        waiting = list(self._open)
        self._open.clear()
        return waiting

    def resign(self) -> None:
        """Another broker is the coordinator now, or none is."""
        self.is_active = False
        text = f"this broker is no longer the coordinator of {self}: look it up again"
        for key in self.take_waiting():
            error = ApiError(ErrorCode.NOT_COORDINATOR, text)
            self._out.append(DataRespond(key=key, response=error))

    # ---- decisions --------------------------------------------------------------------------------

    def completed(self, batch: _Batch, result: ProduceResult) -> None:
        """A batch is committed, or its outcome is unknown."""
        if result.error is ErrorCode.NONE:
            self._out += batch.effects
            for answer in batch.answers:
                self._answer(answer)
            return
        error = ApiError(coordinator_error(result.error), result.message or "the append failed")
        for answer in batch.answers:
            self._answer(Reply(answer.key, error))
        # The batch may be committed later, or never.
        for notify in batch.if_unsettled:
            notify()
        self._wake()

    def _carry_out(self, decision: Decision, now: Now, asked: Any = None) -> None:
        """`asked`: the request that is decided, if it is one."""
        if decision.records:
            self._append(decision, now, asked)
        elif decision.at_once or self._newest is None or self._newest.is_done:
            self._out += decision.effects
            for answer in decision.replies:
                self._answer(answer)
        else:
            self._newest.add(decision)

    def _append(self, decision: Decision, now: Now, asked: Any) -> None:
        batch = _Batch(self, now.ms + self._commit_timeout_ms)
        batch.add(decision)
        try:
            data = _encoded(decision, now)
        except (BatchError, EncodeError) as error:
            # A name or an assignment that no record can hold; clients choose them.
            code = ErrorCode.MESSAGE_TOO_LARGE
            self._refused(decision, ProduceResult(key=self.key, error=code, message=str(error)), now, asked)
            return
        bounds = self._logs.bounds(self.key)
        result = self._logs.append(self.key, self.epoch, data, batch, wall_ms=now.wall_ms)
        if result is not None and result.error is not ErrorCode.NONE:
            self._refused(decision, result, now, asked)
            return
        origin, base = decision.origin, -1 if bounds is None else bounds.end
        for offset, record in enumerate(decision.records, base):
            self.state.replay(record, BatchOrigin(offset, origin.producer_id, origin.producer_epoch))
        if result is None:
            self._newest = batch
        else:
            batch.complete(result)

    def _refused(self, decision: Decision, result: ProduceResult, now: Now, asked: Any) -> None:
        if decision.if_refused is not None:
            self._carry_out(decision.if_refused(result.error), now, asked)
            return
        code = coordinator_error(result.error, asked)
        error = ApiError(code, result.message or "the append was refused")
        for answer in decision.replies:
            self._answer(Reply(answer.key, error))

    def _answer(self, answer: Reply) -> None:
        if answer.key in self._open:
            del self._open[answer.key]
            body = answer.body
            response = body if isinstance(body, ApiError) else CoordinatorResponse(body=body)
            self._out.append(DataRespond(key=answer.key, response=response))

    def _not_active(self) -> ApiError:
        if self.problem is not None:
            text = f"{self} cannot be loaded: {self.problem}"
            return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        text = f"the coordinator is still reading {self}: try again"
        return ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


def _encoded(decision: Decision, now: Now) -> bytes:
    pairs = [encode_stored(record) for record in decision.records]
    origin = decision.origin
    return encode_batch(
        base_offset=0,
        leader_epoch=0,
        timestamp_ms=now.wall_ms,
        keys=[key for key, _ in pairs],
        values=[value for _, value in pairs],
        producer_id=origin.producer_id,
        producer_epoch=origin.producer_epoch,
        attributes=TRANSACTIONAL if origin.producer_id >= 0 else 0,
    )


REPORTED_MAX = 5
"""Records of one partition that have a line of their own; one more line counts the others."""
_SHOWN_KEY_BYTES = 256


class SkippedRecords:
    """Records of an internal topic that its coordinator cannot read: malformed, or of a newer release. They
    are left out and the rest is served, as in Kafka. A deletion of the same key is the repair: a record
    that is deleted later is not reported. Here: those of one partition, while it is loaded.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._by_key: dict[bytes, tuple[int, str]] = {}
        self._others: list[str] = []
        self._unlisted = 0

    def add(self, record: RawRecord, error: Exception) -> None:
        """The newest record of a key is reported. The deletion of a key that cannot be read deletes
        nothing."""
        if record.key is None:
            self._add_other(f"the control record at offset {record.offset} cannot be read ({error})")
        elif record.value is None:
            self.deleted(record.key)
        elif len(self._by_key) >= REPORTED_MAX and record.key not in self._by_key:
            self._unlisted += 1
        else:
            self._by_key[record.key] = record.offset, str(error)

    def add_batch(self, header: BatchHeader, error: Exception) -> None:
        """All records of a batch."""
        self._add_other(
            f"the records at offsets {header.base_offset} to {header.last_offset} cannot be read ({error})"
        )

    def deleted(self, key: bytes) -> None:
        """A later record deletes this key."""
        self._by_key.pop(key, None)

    def take_texts(self) -> list[str]:
        """One line per record, or batch, that was left out."""
        where = f"{self._topic}-{self._partition}"
        lines = [
            f"{where}: the record at offset {offset} with key {key_text(self._topic, key)} cannot be read "
            f"({error}): it is left out and all others are served; start a release that knows it, or delete "
            f"it: metaquorum groups discard --topic {self._topic} --partition {self._partition} "
            f"--offset {offset}"
            for key, (offset, error) in self._by_key.items()
        ]
        lines += [f"{where}: {text}: left out, and all others are served" for text in self._others]
        if self._unlisted:
            lines.append(f"{where}: {self._unlisted} more records cannot be read and are left out")
        self._by_key, self._others, self._unlisted = {}, [], 0
        return lines

    def _add_other(self, text: str) -> None:
        if len(self._others) >= REPORTED_MAX:
            self._unlisted += 1
        else:
            self._others.append(text)


def key_text(topic: str, key: bytes) -> str:
    """A key for people: its fields, or its first bytes in hexadecimal."""
    try:
        decoded = decode_stored(topic, key, None)
    except DecodeError:
        decoded = None
    if decoded is None:
        more = "..." if len(key) > _SHOWN_KEY_BYTES // 2 else ""
        return f"0x{key[: _SHOWN_KEY_BYTES // 2].hex()}{more}"
    fields = [getattr(decoded.key, name) for name in decoded.key.__struct_fields__ if name != "unknown_tags"]
    text = ", ".join(str(each) for each in fields)
    kind = type(decoded.key).__name__.removesuffix("Key")
    return f"{kind}({printable(text[:_SHOWN_KEY_BYTES])})"
