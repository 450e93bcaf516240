"""Replays one cluster's log once, and returns the rows of all tables that need a state.

The order in which the parts get a batch, and the resume point: the last batch boundary at or after a multiple
of RESUME_EVERY before the log's end. Rows that ended before it are final. Rows after it, and those still
open, are provisional: a later run starts at the resume point and writes them again, so an uncommitted tail of
the log that is later replaced leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from metaquorum.metadata.columnar.apply import store
from metaquorum.metadata.columnar.windows import BatchWindow
from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.features import METADATA_VERSION, MIN_METADATA_VERSION
from metaquorum.metadata.image import MetadataImage, Provenance
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import DecodedRecord
from metaquorum.metadata.records.control import LeaderChangeMessage, UnknownControlRecord
from metaquorum.metadata.records.types import (
    BrokerRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    UnknownRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.pipeline.intervals.differences import BatchDifferences
from metaquorum.pipeline.intervals.moments import DAY_MS, Moment, Row
from metaquorum.pipeline.intervals.state import (
    SavedState,
    StateError,
    decode_image,
    decode_state,
    saved_bytes,
)
from metaquorum.pipeline.intervals.touched import (
    MIN_TOGETHER,
    NOT_THE_FIRST,
    Times,
    changes_of,
    decoded,
    first_unusual,
    kinds_of,
    times_of,
)
from metaquorum.pipeline.intervals.trackers import Taken, Trackers
from metaquorum.storage.batches.batch import BatchHeader, RecordBatch
from metaquorum.storage.batches.places import Places
from metaquorum.storage.types import LogPosition

_COULD_TURN_BACK = frozenset({BrokerRecord, ProducerIdsRecord, FeatureLevelRecord})
_UNKNOWN = frozenset({UnknownRecord, UnknownControlRecord})
_CHANGES = {PartitionChangeRecord}
RESUME_EVERY = 2_000
"""Offsets between places where a later run can continue."""
COLUMN_RECORDS = 24
"""Batches with at least this many records are replayed in columns, smaller ones record by record."""


class ClusterReplay:
    """Give it the log's batches in order, then ask for `final_rows` and `provisional_rows`.

    `log_end`: the offset at which the log ends, which determines the resume point. Without `saved` (the bytes
    of an earlier `saved_state`) or a `snapshot`, it starts with an empty image. If the log begins after 0, or
    continues after missing records, call `begins`, and `learn` with the state: until then there are only rows
    for what a record says by itself, and nothing is judged.
    """

    def __init__(
        self,
        cluster: str,
        *,
        log_end: int,
        saved: bytes | None = None,
        snapshot: MetadataImage | None = None,
    ) -> None:
        """Raises StateError for saved bytes that cannot be used."""
        self._cluster = cluster
        self._log_end = log_end
        trackers = self.trackers = Trackers()
        """The parts that make rows."""
        self._coverage = trackers.coverage
        self._quorum, self._partitions, self._violations = (
            trackers.quorum,
            trackers.partitions,
            trackers.violations,
        )
        self.moment = Moment(0, None, -1)
        """The last batch, or the snapshot before the next one."""
        self._final: Taken | None = None
        self.saved_state: bytes | None = None
        """State from which a later run continues; None before the resume point, and if
        the image cannot be saved."""
        self.is_resumed = saved is not None
        self.resume_point = (0, -1)
        """Offset at which a later run continues, and epoch of the record before; valid with `saved_state`."""
        self._begins: int | None = None
        self._apply_to(self._load(decode_state(saved)) if saved is not None else MetadataImage())
        if saved is None and snapshot is not None:
            self.begins(snapshot.provenance.offset)
            self.learn(snapshot)

    def _apply_to(self, image: MetadataImage) -> None:
        """From now on, records apply to `image`."""
        self._engine = Replayer(ReplayState(image), on_error=self._refuse)
        self._differences = BatchDifferences(self.trackers, self._engine, image.features.metadata_version)
        self._touched = self._differences.touched
        self._next_resume = _next_resume(image.provenance.offset)

    def begins(self, offset: int) -> None:
        """The next record is at `offset`, where nothing is known of the state. If there were records before,
        their open states end there, with an unknown end."""
        moment = self.moment.at(self.end_offset)
        if self.moment.offset or self.end_offset:
            self.trackers.lose(moment)
        self._begins = offset
        self._apply_to(MetadataImage().with_provenance(Provenance(offset, 0, 0)))

    def learn(self, image: MetadataImage, quorum: QuorumView | None = None) -> None:
        """Sets the state before the next record. `image`: of a snapshot that ends there. `quorum`:
        from its control records."""
        provenance = image.provenance
        moment = self.moment = self.trackers.clock.moment(provenance.offset, provenance.timestamp_ms)
        self._note_begin(moment)
        self.trackers.learn(image, quorum or QuorumView(), moment)
        self._apply_to(image)
        if self.end_offset < self._log_end < self._next_resume:
            self._remember()

    def _note_begin(self, moment: Moment) -> None:
        if self._begins is not None:
            self._coverage.begins(self._begins, moment.time_ms)
            self._begins = None

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self._engine.end_offset

    @property
    def image(self) -> MetadataImage:
        """The present state, or what is known of it."""
        return self._engine.state().image

    @property
    def is_inside(self) -> bool:
        """Whether a transaction is open."""
        return self._touched.is_open

    @property
    def knows_state(self) -> bool:
        """Whether the state is known, and not only what single records say."""
        return self._begins is None and self._coverage.is_known

    def batch(self, batch: RecordBatch, records: tuple[DecodedRecord, ...]) -> None:
        """Takes the next batch of the log and its records. Also accepts a batch after a gap:
        the caller reports the gap."""
        header, cause = batch.header, cause_in(records[0].record) if records else None
        last, moment = self.moment, self.trackers.clock.moment(header.base_offset, header.max_timestamp_ms)
        moment = self.moment = moment._replace(cause=cause)
        self._engine.builder.offset = header.base_offset
        self._note_begin(moment)
        idle = header.records_count == 1 and len(records) == 1 and type(records[0].record) is NoOpRecord
        self.trackers.time_passes(last, moment, idle=idle)
        self._coverage.batch(header.records_count, moment.time_ms)
        if cause is not None:
            self.trackers.audit_trail.batch(cause, records, moment, header.leader_epoch)
        elects = header.is_control and any(isinstance(at.record, LeaderChangeMessage) for at in records)
        self._quorum.batch(header.leader_epoch, header.records_count, moment, elects=elects)
        if header.is_control:
            self.trackers.voters.control(header.leader_epoch, records, moment)
            for decoded in records:
                self._quorum.control(decoded.record)
                if isinstance(decoded.record, LeaderChangeMessage):
                    level = self._engine.builder.finalized.get(METADATA_VERSION, MIN_METADATA_VERSION)
                    self.trackers.elected(decoded.record, header.leader_epoch, last, moment, level)
            self._engine.apply_batch(batch)
        else:
            kinds = {type(at.record) for at in records}
            self._apply_judged(batch, records, kinds, moment)
            if kinds == _CHANGES:
                self._touched.add_changes(records)
            else:
                self._touched.add(records)
            if not self._touched.is_open:
                self._differences.compare(moment, header.leader_epoch)
        self._note_resume(header.next_offset)

    def window(self, window: BatchWindow) -> int:
        """Takes the next batches of the log, whose records all change partitions, are idle or about brokers.
        Returns how many it took (see `Together`)."""
        engine, trackers = self._engine, self.trackers
        first, last = window.batches[0].header, window.batches[-1].header
        if (
            self._touched.is_open
            or not self.knows_state
            or first.base_offset != engine.end_offset
            or not first.leader_epoch == last.leader_epoch == self._quorum.epoch
            or (len(window.batches) > 1 and self._may_remember(last.next_offset))
        ):
            return 0
        kinds = kinds_of(window)
        times = None if kinds is None else times_of(window, kinds.idle, trackers.clock, trackers.silence)
        if kinds is None or times is None:
            return 0
        others = decoded(window, kinds.others)
        if others is None:
            return 0
        turns = None
        if len(window.batches) > 1:
            turns = self._differences.turns(zip(window.batches_of(kinds.others), others, strict=True))
            if turns.alone:
                return self._until(window, min(turns.alone))
        changes = changes_of(engine.builder, window, kinds.changes, times.moments)
        numbers = None if changes is None else self._partitions.numbers_of(changes)
        if changes is None or numbers is None:
            return self._until_unusual(window, kinds.changes)
        alone = changes.twice.tolist() if turns is None else self._differences.alone(changes, turns)
        if alone:
            return self._until(window, min(alone))
        self._take(window, times, others)
        store(engine.builder, changes.versions)
        self._reached(last)
        if turns is not None:
            self._differences.compare_together(times.moments, last.leader_epoch, changes, numbers, turns)
        else:
            self._touched.add(others)
            self._differences.compare(self.moment, last.leader_epoch, changes, numbers)
        trackers.time_advances(self.moment)
        self._note_resume(last.next_offset)
        return len(window.batches)

    def _until(self, window: BatchWindow, batch: int) -> int:
        """Takes the batches before one that must be judged at its end; if that one is first, only it."""
        if batch or (len(window.batches) > 1 and window.part(0, 1).records >= MIN_TOGETHER):
            return self.window(window.part(0, batch or 1))
        return NOT_THE_FIRST

    def _until_unusual(self, window: BatchWindow, changes: Places) -> int:
        """Does the same if one of the changes cannot be replayed in columns."""
        usual = first_unusual(window, changes)
        if usual is None or len(window.batches) == 1:
            return 0
        return self.window(window.part(0, usual)) if usual else NOT_THE_FIRST

    def _take(self, window: BatchWindow, times: Times, others: Sequence[DecodedRecord]) -> None:
        """Counts the batches, and applies everything except changes of partitions."""
        trackers, header = self.trackers, window.batches[-1].header
        trackers.clock, trackers.silence = times.clock, times.silence
        trackers.time_advances(times.moments[0])
        for moment, count in zip(times.moments, window.counts.tolist(), strict=True):
            self._coverage.batch(count, moment.time_ms)
        self._quorum.batch(header.leader_epoch, window.records, times.moments[0], elects=False)
        self.moment = times.moments[-1]
        for at in others:
            self._engine.apply(at.record, at.offset, header.leader_epoch, header.max_timestamp_ms)

    def _reached(self, header: BatchHeader) -> None:
        builder = self._engine.builder
        builder.offset, builder.epoch = header.next_offset, header.leader_epoch
        builder.timestamp_ms = header.max_timestamp_ms

    def _may_remember(self, offset: int) -> bool:
        """Whether the resume point may be at or before `offset`."""
        return offset >= self._next_resume and _next_resume(offset) > self._log_end

    def _note_resume(self, offset: int) -> None:
        """A batch ended at `offset`: maybe this is the resume point."""
        if offset >= self._next_resume and not self._touched.is_open:
            self._next_resume = _next_resume(self._engine.end_offset)
            if self._next_resume > self._log_end and self._coverage.is_known:
                self._remember()

    def _apply_judged(
        self, batch: RecordBatch, records: tuple[DecodedRecord, ...], kinds: set[type], moment: Moment
    ) -> None:
        """Applies a batch. One with a record that could decrease a value is judged separately."""
        could_turn_back = not kinds.isdisjoint(_COULD_TURN_BACK) or (
            PartitionRecord in kinds and any(self._is_there_already(at.record) for at in records)
        )
        if not (could_turn_back and self._coverage.is_known):
            self._apply(batch, records, kinds)
            return
        before = self._engine.state().image
        self._apply(batch, records, kinds)
        self._violations.step(before, self._engine.state().image, moment)

    def _is_there_already(self, record: object) -> bool:
        return isinstance(record, PartitionRecord) and self._partitions.is_there(
            record.topic_id, record.partition_id
        )

    def _apply(self, batch: RecordBatch, records: tuple[DecodedRecord, ...], kinds: set[type]) -> None:
        header, engine = batch.header, self._engine
        if len(records) >= COLUMN_RECORDS and kinds.isdisjoint(_UNKNOWN):
            engine.apply_batch(batch)
            return
        for at in records:
            if type(at.record) not in _UNKNOWN:
                engine.apply(at.record, at.offset, header.leader_epoch, header.max_timestamp_ms)
        self._reached(header)

    def _refuse(self, error: ReplayError) -> None:
        if self._coverage.is_known:
            self._violations.refused(error, self.moment)
        else:
            self._coverage.left_out()

    def final_rows(self) -> Taken:
        """Rows since the last call that no later run changes: those before the resume point. They are only
        valid if there is a `saved_state` in the end; otherwise all rows are provisional."""
        if self._final is None:
            return self.trackers.take()
        taken, self._final = self._final, {}
        return taken

    def provisional_rows(self) -> Taken:
        """The remaining rows. Call it once, at the log's end and after `final_rows`."""
        if self._coverage.is_known:
            self._violations.finish(self._engine.state().image, self.moment)
        rows = self.trackers.take()
        for table, more in self.trackers.open_rows(self.end_offset).items():
            rows[table] = [*rows.get(table, []), *more]
        return rows

    def availability_rows(self) -> list[tuple[int, Row]]:
        """(start of the UTC day in Unix ms, row) of `availability`, for the whole log up to here."""
        rows = self.trackers.availability.rows(self._cluster, self.trackers.failovers.failing())
        return [(day * DAY_MS, row) for day, row in rows]

    def saved_here(self) -> bytes:
        """The state that a replay needs to continue here. Raises StateError if the image cannot be saved."""
        image = self._engine.state().image
        return saved_bytes(image, self.moment.offset, self.trackers.save(image.provenance.timestamp_ms))

    def _remember(self) -> None:
        """Sets the resume point here, if the image can be saved. Otherwise the next run starts over."""
        with suppress(StateError):
            self.saved_state = self.saved_here()
            provenance = self._engine.state().image.provenance
            self.resume_point = (provenance.offset, provenance.epoch)
            taken, waiting = self.trackers.take(), self._final
            if waiting:  # A snapshot behind a hole moved the point on before these rows were asked for.
                taken = {table: [*waiting[table], *rows] for table, rows in taken.items()}
            self._final = taken

    def _load(self, saved: SavedState) -> MetadataImage:
        image = decode_image(saved.image, LogPosition(max(saved.epoch, 0), saved.offset), saved.finalized)
        timestamp_ms = self.trackers.load(saved.trackers, image)
        self.moment = self.trackers.clock.moment(saved.last_offset, timestamp_ms)
        return image.with_provenance(Provenance(saved.offset, saved.epoch, timestamp_ms))


def _next_resume(offset: int) -> int:
    return (offset // RESUME_EVERY + 1) * RESUME_EVERY
