"""One cluster's log, replayed once, as rows of all tables that need a state.

Owns the order in which the parts hear of a batch, and the resume point: the last batch boundary at or after a
multiple of RESUME_EVERY before the log's end. Rows that ended before it are final; rows after it,
and what is still open, are provisional: a later run begins at the resume point and says them again. So a
tail of the log that was never committed, and is replaced later, leaves nothing behind.
"""

from __future__ import annotations

from contextlib import suppress

from metaquorum.metadata.errors import ReplayError
from metaquorum.metadata.features import METADATA_VERSION, MIN_METADATA_VERSION
from metaquorum.metadata.image import TOPIC_RESOURCE, MetadataImage, Provenance
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
from metaquorum.pipeline.intervals.audit_trail import actor_of
from metaquorum.pipeline.intervals.moments import DAY_MS, Moment, Row
from metaquorum.pipeline.intervals.state import (
    SavedState,
    StateError,
    decode_image,
    decode_state,
    saved_bytes,
)
from metaquorum.pipeline.intervals.tables.brokers import SHUTDOWN, state_of
from metaquorum.pipeline.intervals.tables.questions import (
    ActiveBrokers,
    Question,
    is_plainly_sound,
    topic_is_plainly_sound,
)
from metaquorum.pipeline.intervals.touched import Touched
from metaquorum.pipeline.intervals.trackers import RowsByTable, Trackers
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.types import LogPosition

_COULD_TURN_BACK = frozenset({BrokerRecord, ProducerIdsRecord, FeatureLevelRecord})
_UNKNOWN = frozenset({UnknownRecord, UnknownControlRecord})
_CHANGES = {PartitionChangeRecord}
RESUME_EVERY = 2_000
"""Offsets between places where a later run can go on."""
COLUMN_RECORDS = 24
"""From this many records on batches are replayed in columns, smaller ones record by record."""


class ClusterReplay:
    """Feed it the log's batches in order, then ask for `final_rows` and `provisional_rows`.

    `log_end` is the offset at which the log ends: it places the resume point. Without `saved` (the bytes of
    an earlier `saved_state`), or a `snapshot`, it begins with an empty image. A log that begins later than at
    0, or continues after records that no one has, is said so with `begins`, and its state with `learn`: until
    then only what a record tells by itself is told, and nothing is judged.
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
        self._touched = Touched()
        self._question = Question()
        self._active = ActiveBrokers()
        told = self.told = Trackers()
        """The parts that make rows."""
        self._coverage = told.coverage
        self._quorum, self._brokers, self._directories = told.quorum, told.brokers, told.directories
        self._topics, self._configs, self._partitions = told.topics, told.configs, told.partitions
        self._availability, self._failovers = told.availability, told.failovers
        self._violations = told.violations
        self.moment = Moment(0, None, -1)
        """The last batch, or the snapshot before the next one."""
        self._final: RowsByTable | None = None
        self.saved_state: bytes | None = None
        """What a later run continues from; None before the resume point, and where there is none."""
        self.is_resumed = saved is not None
        self.resume_point = (0, -1)
        """Offset at which a later run goes on, and epoch of the record before it; with `saved_state`."""
        self._begins: int | None = None
        self._go_on(self._load(decode_state(saved)) if saved is not None else MetadataImage())
        if saved is None and snapshot is not None:
            self.begins(snapshot.provenance.offset)
            self.learn(snapshot)

    def _go_on(self, image: MetadataImage) -> None:
        """The next record applies to `image`."""
        self._engine = Replayer(ReplayState(image), on_error=self._refuse)
        self._level = image.features.metadata_version
        self._next_resume = _next_resume(image.provenance.offset)
        self._active.set(self._brokers.registrations)

    def begins(self, offset: int) -> None:
        """The next record is that at `offset`. Nothing is known of the state there, and what was so where the
        records before it end has ended, no one saw how."""
        moment = self.moment.at(self.end_offset)
        if self.moment.offset or self.end_offset:
            self.told.lose(moment)
        self._touched, self._question = Touched(), Question()
        self._begins = offset
        self._go_on(MetadataImage().with_provenance(Provenance(offset, 0, 0)))

    def learn(self, image: MetadataImage, quorum: QuorumView | None = None) -> None:
        """What the state is where the next record comes: `image` is that of a snapshot that ends there, and
        `quorum` what its control records say."""
        provenance = image.provenance
        moment = self.moment = self.told.clock.moment(provenance.offset, provenance.timestamp_ms)
        self._note_begin(moment)
        self.told.learn(image, quorum or QuorumView(), moment)
        self._touched, self._question = Touched(), Question()
        self._go_on(image)
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
        """The state that was reached, or what is known of it."""
        return self._engine.state().image

    @property
    def is_inside(self) -> bool:
        """Whether a transaction is open."""
        return self._touched.is_open

    @property
    def knows_state(self) -> bool:
        """Whether the state is known, or only what records tell by themselves."""
        return self._begins is None and self._coverage.is_known

    def batch(self, batch: RecordBatch, records: tuple[DecodedRecord, ...]) -> None:
        """The next batch of the log and its records. One that does not start where the last ended is taken
        all the same: the caller tells of the gap."""
        header, cause = batch.header, cause_in(records[0].record) if records else None
        last, moment = self.moment, self.told.clock.moment(header.base_offset, header.max_timestamp_ms)
        moment = self.moment = moment._replace(actor=actor_of(cause))
        self._engine.builder.offset = header.base_offset
        self._note_begin(moment)
        idle = header.records_count == 1 and len(records) == 1 and type(records[0].record) is NoOpRecord
        self.told.time_passes(last, moment, idle=idle)
        self._coverage.batch(header.records_count, moment.time_ms)
        if cause is not None:
            self.told.audit_trail.batch(cause, records, moment, header.leader_epoch)
        elects = header.is_control and any(isinstance(at.record, LeaderChangeMessage) for at in records)
        self._quorum.batch(header.leader_epoch, header.records_count, moment, elects=elects)
        if header.is_control:
            self.told.voters.control(header.leader_epoch, records, moment)
            for at in records:
                self._quorum.control(at.record)
                if isinstance(at.record, LeaderChangeMessage):
                    level = self._engine.builder.finalized.get(METADATA_VERSION, MIN_METADATA_VERSION)
                    self.told.elected(at.record, header.leader_epoch, last, moment, level)
            self._engine.apply_batch(batch)
        else:
            kinds = {type(at.record) for at in records}
            self._apply_judged(batch, records, kinds, moment)
            if kinds == _CHANGES:
                self._touched.add_changes(records)
            else:
                self._touched.add(records)
            if not self._touched.is_open:
                self._settle(moment, header.leader_epoch)
        if header.next_offset >= self._next_resume and not self._touched.is_open:
            self._next_resume = _next_resume(self._engine.end_offset)
            if self._next_resume > self._log_end and self._coverage.is_known:
                self._remember()

    def _apply_judged(
        self, batch: RecordBatch, records: tuple[DecodedRecord, ...], kinds: set[type], moment: Moment
    ) -> None:
        """Applies a batch; one with a record that could turn something back is judged by itself."""
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
        return (
            isinstance(record, PartitionRecord)
            and self._partitions.info(record.topic_id, record.partition_id) is not None
        )

    def _apply(self, batch: RecordBatch, records: tuple[DecodedRecord, ...], kinds: set[type]) -> None:
        header, engine = batch.header, self._engine
        if len(records) >= COLUMN_RECORDS and kinds.isdisjoint(_UNKNOWN):
            engine.apply_batch(batch)
            return
        for at in records:
            if type(at.record) not in _UNKNOWN:
                engine.apply(at.record, at.offset, header.leader_epoch, header.max_timestamp_ms)
        builder = engine.builder
        builder.offset, builder.epoch = header.next_offset, header.leader_epoch
        builder.timestamp_ms = header.max_timestamp_ms

    def _refuse(self, error: ReplayError) -> None:
        if self._coverage.is_known:
            self._violations.refused(error, self.moment)
        else:
            self._coverage.left_out()

    def _settle(self, moment: Moment, epoch: int) -> None:
        """Compares what the batch touched with what is known of it."""
        touched = self._touched
        ran = frozenset[int]()
        if touched.brokers:
            ran = frozenset([at.broker_id for at in self._brokers.registrations.values() if at.is_active])
            self._settle_brokers(moment, epoch)
            self._active.set(self._brokers.registrations)
        for topic_id, (offset, name) in touched.topics.items():
            if topic_id in self._engine.builder.topics.by_id and topic_id not in self._topics.names:
                self._topics.created(topic_id, name, moment.at(offset))
            self._ask_about_topic(topic_id, name)
        if touched.configs:
            self._settle_configs(moment)
        if touched.partitions:
            self._settle_partitions(moment)
            self._directories.batch_ends(moment, epoch)
        for topic_id, offset in touched.removed.items():
            if topic_id in self._topics.names and topic_id not in self._engine.builder.topics.by_id:
                self._remove_topic(topic_id, moment.at(offset))
        if self._coverage.is_known:
            self.told.nodes_changed(self._engine.builder, touched, ran, moment)
        self._failovers.forget_late(moment.now_ms)
        touched.clear()
        level = self._engine.builder.finalized.get(METADATA_VERSION, 0)
        if level != self._level:
            self._level = level
            self._question.brokers = True
        if self._question:
            if self._coverage.is_known:
                self._violations.judge(self._question, self._engine.state().image, moment)
            self._question = Question()

    def _settle_brokers(self, moment: Moment, epoch: int) -> None:
        for broker_id, (offset, record) in self._touched.brokers.items():
            before = self._brokers.registrations.get(broker_id)
            now = self._engine.builder.brokers.get(broker_id)
            there, by = moment.at(offset), record.type_name
            if before is None and now is None and not self._coverage.is_known:
                self.told.stranger(broker_id, record, there)
                continue
            self._question.broker(broker_id, before, now)
            if self._coverage.is_known:
                self.told.broker_changed(broker_id, before, now, record, there)
            if now is not None and now.rack != self._brokers.racks.get(broker_id):
                self._availability.racks_changed(broker_id)
            if before is not None or self._coverage.is_known:
                self._directories.registered(broker_id, before, now, there, epoch, self._replicas_in)
            if self._brokers.changed(broker_id, now, there, by):
                in_order = before is not None and before.in_controlled_shutdown
                self._availability.fenced(broker_id, in_order=in_order)
            if now is None:
                self._failovers.broker_went(broker_id, "unregistered")
            elif now.fenced or state_of(now) == SHUTDOWN:
                self._failovers.broker_went(broker_id, state_of(now))
            elif before is not None and set(before.directories) - set(now.directories):
                self._failovers.broker_went(broker_id, "directory_lost")

    def _replicas_in(self, directory: bytes) -> int:
        return sum(directory in info.directories for info in self._partitions.all())

    def _settle_configs(self, moment: Moment) -> None:
        configs = self._engine.builder.configs
        for resource, names in self._touched.configs.items():
            if resource.resource_type == TOPIC_RESOURCE:
                self._question.topic_settings(resource.name)
            places = {name: moment.at(offset) for name, offset in names.items()}
            if self._configs.changed(resource, places, configs.get(resource) or {}):
                self.told.min_isr_changed()

    def _settle_partitions(self, moment: Moment) -> None:
        broken, is_known = self._violations.broken, self._coverage.is_known
        changed, time_ms, actor = self._partitions.changed, moment.time_ms, moment.actor
        name, last_id, min_isr = "", b"", 0
        touched = self._touched.partitions
        after = self._engine.builder.topics.partitions(touched)
        for (key, offset), now in zip(touched.items(), after, strict=True):
            if now is None:
                continue
            if key[0] != last_id:
                last_id, name = key[0], self._topics.name(key[0])
                min_isr = self._configs.min_isr(name)
            before = changed(name, now, offset, time_ms, actor)
            if before is now:
                continue
            if is_known:
                self.told.partition_changed(key, before, now, moment)
                sound = is_plainly_sound(now) and self._active.carry(now)
                if not sound or (broken and f"topic/{name}/{key[1]}" in broken):
                    self._question.partitions.add(key)
                self._availability.partition(key, before, now, min_isr)
            elif before is not None:
                self._availability.churn(before, now)
            if before is None:
                self._ask_about_topic(key[0], name)
                self._directories.partition(before, now, offset)
                continue
            if before.directories != now.directories:
                self._directories.partition(before, now, offset)
            if before.leader_epoch != now.leader_epoch and before.leader != now.leader:
                self.told.leader_changed(key, name, before, now, moment.at(offset))

    def _ask_about_topic(self, topic_id: bytes, name: str) -> None:
        is_sound = topic_is_plainly_sound(self._engine.builder.topics, topic_id)
        if not is_sound or f"topic/{name}" in self._violations.broken:
            self._question.topics.add(topic_id)
        if f"config/topic/{name}" in self._violations.broken:
            self._question.topic_settings(name)

    def _remove_topic(self, topic_id: bytes, moment: Moment) -> None:
        name = self._topics.name(topic_id)
        gone = self._partitions.topic_removed(topic_id, name, moment)
        for info in gone:
            self.told.partition_removed(info, moment)
        self._topics.removed(topic_id, len(gone), moment)
        if self._violations.broken:
            self._question.gone |= {f"topic/{name}", *(f"topic/{name}/{info.index}" for info in gone)}
        self._question.topic_settings(name)
        if name not in self._engine.builder.topics.by_name:
            self._configs.topic_removed(name, moment)

    def final_rows(self) -> RowsByTable:
        """Rows that no later run will say otherwise, since the last call: those before the resume point.
        They hold only if `saved_state` is there in the end; else all rows are provisional."""
        if self._final is None:
            return self.told.take()
        taken, self._final = self._final, {}
        return taken

    def provisional_rows(self) -> RowsByTable:
        """The rest, to be asked for once, at the log's end and after `final_rows`."""
        if self._coverage.is_known:
            self._violations.finish(self._engine.state().image, self.moment)
        rows = self.told.take()
        for table, more in self.told.open_rows(self.end_offset).items():
            rows[table] = [*rows.get(table, []), *more]
        return rows

    def availability_rows(self) -> list[tuple[int, Row]]:
        """(start of the UTC day in Unix ms, row) of `availability`, for the whole log up to here."""
        rows = self._availability.rows(self._cluster, self._failovers.failing())
        return [(day * DAY_MS, row) for day, row in rows]

    def saved_here(self) -> bytes:
        """What a replay needs to go on here. Raises StateError where the image cannot be said."""
        image = self._engine.state().image
        return saved_bytes(image, self.moment.offset, self.told.save(image.provenance.timestamp_ms))

    def _remember(self) -> None:
        """The resume point is here, if its image can be said: else the next run starts over."""
        with suppress(StateError):
            self.saved_state = self.saved_here()
            provenance = self._engine.state().image.provenance
            self.resume_point = (provenance.offset, provenance.epoch)
            self._final = self.told.take()

    def _load(self, saved: SavedState) -> MetadataImage:
        image = decode_image(saved.image, LogPosition(max(saved.epoch, 0), saved.offset), saved.finalized)
        timestamp_ms = self.told.load(saved.trackers, image)
        self.moment = self.told.clock.moment(saved.last_offset, timestamp_ms)
        return image.with_provenance(Provenance(saved.offset, saved.epoch, timestamp_ms))


def _next_resume(offset: int) -> int:
    return (offset // RESUME_EVERY + 1) * RESUME_EVERY
