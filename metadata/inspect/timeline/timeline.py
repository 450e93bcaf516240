"""What happened according to a log: one event per line, for the things that people care about.

Needs the memory of one image; events are not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions
from metaquorum.metadata.features import METADATA_VERSION, is_known, metadata_version_name
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import (
    FLAGS,
    LEADER,
    LISTS,
    N_ISR,
    N_REPLICAS,
    PADDING,
    RECOVERING_FLAG,
    TOPIC,
    IntArray,
)
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.causes.records import controller_restarted, record_causes
from metaquorum.metadata.inspect.causes.rule import CRITICAL, DETAIL, INFO, SEVERITIES, WARNING, Cause, Scene
from metaquorum.metadata.inspect.causes.split_fences import HeldEvents
from metaquorum.metadata.inspect.causes.table import partition_causes
from metaquorum.metadata.inspect.changes.change_steps import BatchChanges, was_unclean
from metaquorum.metadata.inspect.changes.changes import IF_ACTIVE, IF_ASKED, WANTED, ChangeFeed
from metaquorum.metadata.inspect.log.clock import LogClock, Longs, RunningClock
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.timeline import event_groups as groups
from metaquorum.metadata.inspect.timeline.broker_spans import BrokerSpans
from metaquorum.metadata.inspect.timeline.event import TimelineEvent
from metaquorum.metadata.inspect.timeline.event_groups import QuorumEvents, broker_events
from metaquorum.metadata.inspect.timeline.spans import PartitionSpans
from metaquorum.metadata.inspect.timeline.time_events import GAP_MS, TimeEvents
from metaquorum.metadata.inspect.timeline.unknown_state import UnknownState, learned_events, still_open
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter, RunPart
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.records.types import BeginTransactionRecord
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.runs import BatchRun

# Holds back events of an open metadata transaction (KIP-868) until its end: aborted records have no effect.
#
# The wait, and which events are about the log instead of the cluster: an election or a jump of the clock
# happened regardless of the transaction's outcome.


class HeldBack(Protocol):
    """What an event provides."""

    @property
    def offset(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def entity(self) -> str: ...


E = TypeVar("E", bound=HeldBack)

OF_THE_LOG = ("quorum", "transaction")
"""Entities of events that are about the log and not about the cluster; elections are, too."""


class HeldTransaction(Generic[E]):
    """Mark where a transaction begins and ends, then pass each batch's events to `through`; it returns
    those that are final."""

    def __init__(self) -> None:
        self.begun: int | None = None
        """Where the open transaction began."""
        self._name: str  # the name of the open one
        self._held: list[E] = []
        self._marks: list[tuple[int, bool | None]] = []

    def begin(self, offset: int, name: str) -> None:
        self.begun, self._name = offset, name
        self._marks.append((offset, None))

    def end(self, offset: int, *, takes_effect: bool) -> None:
        self.begun = None
        self._marks.append((offset, takes_effect))

    @property
    def still_open(self) -> str:
        return f"{self._name}, since {self.begun}; its records have no effect yet"

    @property
    def unclear(self) -> str:
        return (
            f"{self._name}, since {self.begun}; its end is lost: whether later events took effect is unknown"
        )

    def through(self, events: list[E]) -> list[E]:
        """`events` is ordered by offset, and so is the result."""
        marks, self._marks = self._marks, []
        if self.begun is None and not marks and not self._held:
            return events
        is_open = (self.begun is not None) if not marks else marks[0][1] is not None
        happened: list[E] = []
        for event in events:
            while marks and marks[0][0] <= event.offset:
                is_open = self._pass(marks.pop(0), happened)
            (self._held if is_open else happened).append(event)
        for mark in marks:
            self._pass(mark, happened)
        return happened

    def _pass(self, mark: tuple[int, bool | None], happened: list[E]) -> bool:
        """Whether a transaction is open after the mark."""
        takes_effect = mark[1]
        if takes_effect is None:
            return True
        held, self._held = self._held, []
        happened += held if takes_effect else _of_the_log(held)
        return False

    def rest(self) -> list[E]:
        """What must be reported of a transaction that is still open at the end."""
        held, self._held = self._held, []
        return _of_the_log(held)


def begins_transaction(batch: BatchChanges) -> bool:
    return any(isinstance(record, BeginTransactionRecord) for _, record in batch.records)


def _of_the_log(events: list[E]) -> list[E]:
    return [event for event in events if event.entity in OF_THE_LOG or event.kind == "election"]


class SpanCounts(NamedTuple):
    """What holds after the batch that begins at `offset`, at `time_ms` (Unix ms): how many partitions are
    without a leader, and how many are under min ISR; both None while the state is unknown."""

    offset: int
    time_ms: int
    leaderless: int | None
    under_min_isr: int | None


class Timeline:
    """Feed it every batch in log order; it returns the batch's events."""

    def __init__(
        self,
        image: MetadataImage | None = None,
        *,
        gap_ms: int = GAP_MS,
        shown: frozenset[str] = frozenset(SEVERITIES),
        moves: bool = True,
        start: Point | None = None,
        is_known: bool = True,
        names: Mapping[bytes, str] | None = None,
        quorum: QuorumView | None = None,
        clock: Callable[[], LogClock] | None = None,
    ) -> None:
        """`image` is the state at the log's start, if that is not offset 0. With `is_known` False it is
        empty, and records are taken only for what they say on their own until `learn`. `names` are topic
        names from a later snapshot. Events with a severity that is not `shown` are left out; without `moves`,
        most leaders that other leaders replace are, too, and before `start` what only leads to events there.
        `clock` reads the log's clock."""
        known_names = {} if image is None else {topic.topic_id: topic.name for topic in image.topics.all()}
        self._namer = EntityNamer({**(names or {}), **known_names})
        self._feed = ChangeFeed(image, is_known=is_known, names=names)
        self._unknown_state = UnknownState(self._namer.topic_name)
        self._spans = PartitionSpans(self._feed, image)
        self._brokers = BrokerSpans(image if is_known else None)
        self._gap_ms = gap_ms
        self._shown = shown
        self._may_show = partial(may_show, shown=shown, least_isr=self._spans.least_isr, moves=moves)
        self._may_span = partial(may_show, shown=frozenset({CRITICAL}), least_isr=self._spans.least_isr)
        self._start = start
        self._clock = RunningClock(clock)
        self._stamp_ms: int | None = None
        last_ms = image.provenance.timestamp_ms if image is not None and is_known else None
        self._times = TimeEvents(gap_ms, last_ms)
        self._quorum = QuorumEvents(quorum)
        place = None if image is None else image.provenance
        self._begin = (0, 0, 0) if place is None else (place.offset, place.epoch, place.timestamp_ms)
        self._end = (0, 0, 0)
        self._events: list[TimelineEvent] = []
        self._held: HeldEvents[TimelineEvent] = HeldEvents()
        self._transaction: HeldTransaction[TimelineEvent] = HeldTransaction()
        self._suspects: dict[TimelineEvent, int] = {}
        self._batch = BatchChanges(base_offset=-1, epoch=-1, time_ms=-1)

    @property
    def is_known(self) -> bool:
        """Whether the state is known here."""
        return self._feed.is_known

    def span_counts(self) -> SpanCounts:
        """What holds after the last batch with events."""
        batch = self._batch
        if not self.is_known:
            return SpanCounts(batch.base_offset, batch.time_ms, None, None)
        spans = self._spans
        return SpanCounts(batch.base_offset, batch.time_ms, len(spans.leaderless), len(spans.under_min))

    def note_before(self, records: Iterable[tuple[int, object]], time_ms: int) -> None:
        """Takes a batch from just before the state at the start, for what it says of brokers."""
        self._feed.note_alone(records, time_ms)

    def learn(self, image: MetadataImage, quorum: QuorumView | None = None) -> list[TimelineEvent]:
        """Takes the state from a snapshot; it was unknown so far. Returns events for what already holds, or
        no longer does, according to the snapshot."""
        self._feed.learn(image)
        for topic in image.topics.all():
            self._namer.learn(topic.topic_id, topic.name)
        if quorum is not None:
            self._quorum.learn(quorum)
        provenance = image.provenance
        position = (provenance.offset, max(provenance.timestamp_ms, self._end[2]))
        self._spans.leaderless |= self._unknown_state.leaderless
        self._spans.learn(position)
        self._brokers.learn(image, position)
        if provenance.offset > self._end[0]:
            self._end = (provenance.offset, provenance.epoch, position[1])
        return self.already((provenance.offset, provenance.epoch, position[1]))

    def already(self, position: tuple[int, int, int] | None = None) -> list[TimelineEvent]:
        """Events for what the last snapshot shows, without a record of it."""
        offset, epoch, time_ms = position or self._begin
        final, self._events = self._held.rest(), []
        self._batch = BatchChanges(base_offset=offset, epoch=epoch, time_ms=time_ms)
        self._stamp_ms = time_ms
        self._add_grouped(learned_events(self._spans, (offset, time_ms)))
        self._add_grouped(self._brokers.learned)
        return [*self._shown_of(final), *self._events]

    def lose(self, offset: int, ends_behind: Callable[[], bool]) -> list[TimelineEvent]:
        """Records from `offset` on are lost: the leader and the time of the last write are unknown. An open
        transaction that does not end after them takes effect; its events are returned."""
        self._quorum.forget()
        self._times.lose()
        self._spans.lose()
        self._brokers.lose()
        self._events = []
        if self._transaction.begun is not None and not ends_behind():
            self._add_event(
                offset, "transaction unclear", "transaction", self._transaction.unclear, severity=WARNING
            )
            self._transaction.end(offset, takes_effect=True)
            self._feed.batch(-1, -1, [(offset, r.EndTransactionRecord())])
            return [*self._held.rest(), *self._shown_of(self._transaction.through(self._events))]
        return []

    def forget(self) -> None:
        """Records are lost: later ones are taken only for what they say on their own, until `learn`."""
        self._feed.forget()
        self._unknown_state = UnknownState(self._namer.topic_name, self._spans.forget())

    def batch(self, epoch: int, time_ms: int, records: Iterable[tuple[int, object]]) -> list[TimelineEvent]:
        """Events of one batch, by offset: `records` are (offset, decoded record)."""
        self._events = []
        listed = list(records)
        stamp_ms, time_ms = time_ms, self._clock.time_ms(listed[0][0], time_ms) if listed else time_ms
        changes = self._batch = self._feed.batch(epoch, time_ms, listed)
        self._spans.forget_settings()
        if not changes.records:
            return []
        self._note_time(changes, stamp_ms)
        if self._transaction.begun is None and begins_transaction(changes):
            self._spans.note()
            self._brokers.note()
        scene = Scene(batch=changes, feed=self._feed)
        if changes.brokers:
            self._broker_steps(changes, scene)
        self._partitions(scene)
        self._add_alone(self._unknown_state.events(changes))
        self._add_grouped(groups.topic_events(changes))
        refused = {error.offset for error in changes.refused}
        for offset, record in changes.records:
            if offset not in refused:
                self._single(offset, record)
        self._add_grouped(groups.config_events(changes, is_known=self._feed.is_known))
        self._add_grouped(groups.refused_events(changes))
        self._end = (changes.records[-1][0] + 1, epoch, time_ms)
        return self._through()

    def creations(self, batch: RecordBatch) -> list[TimelineEvent] | None:
        """Events of a batch that only creates topics and partitions. None, with nothing done, for any other
        batch, and if a partition has no leader or too small an ISR from the start."""
        changes = self._feed.created(batch, self._spans.all_fine) if self._feed.is_known else None
        if changes is None:
            return None
        self._spans.forget_settings()
        self._events = []
        stamp_ms = changes.time_ms
        changes.time_ms = self._clock.time_ms(changes.base_offset, stamp_ms)
        self._batch = changes
        self._note_time(changes, stamp_ms)
        self._add_grouped(groups.topic_events(changes))
        for offset, record in changes.records:
            self._single(offset, record)
        self._add_grouped(groups.config_events(changes, is_known=self._feed.is_known))
        self._end = (batch.header.next_offset, changes.epoch, changes.time_ms)
        return self._through()

    def pieces(self, run: BatchRun) -> Iterator[RecordBatch | RunPart]:
        """The next run in pieces: batches for `batch`, parts for `part`."""
        known = self._feed.is_known
        stops = self._clock.turns(run.base_offset, run.next_offset, self._gap_ms)
        return self._feed.pieces(run, BatchFilter(stops=stops, together=known, along=known))

    def part(self, part: RunPart) -> Iterator[list[TimelineEvent]]:
        """Events, batch by batch, of batches that are idle or change partitions and brokers."""
        run = part.as_run()
        bases, stamps = run.offsets[:-1], run.timestamps_ms()
        times = self._clock.times_ms(bases, stamps)
        gaps = deque(self._times.batches(run, times, part.first_no_op))
        if part.records is not None:
            stamp_of = dict(zip(bases.tolist(), stamps.tolist(), strict=True))
            time_of = dict(zip(bases.tolist(), times.tolist(), strict=True))
            wanted = self._may_span if self._is_before(part) else self._may_show
            for changes in self._feed.changed(part, wanted, lambda offset, _: time_of[offset]):
                while gaps and gaps[0][1].offset < changes.base_offset:
                    yield self._gap(run, times, *gaps.popleft())
                self._events, self._batch = [], changes
                self._stamp_ms = stamp_of[changes.base_offset]
                if gaps and gaps[0][1].offset == changes.base_offset:
                    self._add_grouped((gaps.popleft()[1],))
                scene = Scene(batch=changes, feed=self._feed)
                if changes.brokers:
                    self._broker_steps(changes, scene)
                self._partitions(scene)
                self._add_grouped(groups.refused_events(changes))
                if self._events or changes.brokers:
                    yield self._through()
        else:
            self._feed.pass_over(part)
        while gaps:
            yield self._gap(run, times, *gaps.popleft())
        self._end = (part.next_offset, part.epoch, int(times[-1]))

    def _gap(self, run: BatchRun, times: Longs, number: int, event: groups.Grouped) -> list[TimelineEvent]:
        """The event of a batch of which only the time is one."""
        batch = next(run.part(number, number + 1).batches())
        records = decode_readable(batch)
        header, asked = batch.header, cause_in(records[0].record) if records else None
        changes = BatchChanges(
            base_offset=header.base_offset, epoch=header.leader_epoch, time_ms=int(times[number]), asked=asked
        )
        self._events, self._batch, self._stamp_ms = [], changes, header.max_timestamp_ms
        self._add_grouped((event,))
        return self._through()

    def _is_before(self, part: RunPart) -> bool:
        """Whether a part is before the start, so that only what lasts beyond it matters."""
        start = self._start
        if start is None:
            return False
        if start.offset is not None:
            return part.next_offset <= start.offset
        last_ms = int(part.as_run().timestamps_ms().max())
        return start.time_ms is not None and last_ms < start.time_ms

    def _is_early(self, batch: BatchChanges) -> bool:
        """The same for one batch."""
        start = self._start
        if start is None or not batch.records:
            return False
        if start.offset is not None:
            return batch.records[-1][0] < start.offset
        return start.time_ms is not None and batch.time_ms < start.time_ms

    def _through(self) -> list[TimelineEvent]:
        """The batch's events by offset, and earlier ones that need not wait any longer."""
        suspects, self._suspects = self._suspects, {}
        ordered = self._transaction.through(sorted(self._events, key=lambda event: event.offset))
        return self._shown_of(self._held.through(ordered, suspects, self._batch))

    def _shown_of(self, events: list[TimelineEvent]) -> list[TimelineEvent]:
        return [event for event in events if event.severity in self._shown]

    @property
    def holds_back(self) -> bool:
        """Whether events wait for what later records say about them."""
        return self._held.waits or self._transaction.begun is not None

    def release(self) -> list[TimelineEvent]:
        """The events that wait for a fence, if none comes."""
        return self._shown_of(self._held.rest())

    def finish(self) -> list[TimelineEvent]:
        """Events for what is still open at the end of the log."""
        self._events = self._shown_of([*self._held.rest(), *self._transaction.rest()])
        offset, epoch, time_ms = max(self._end, self._begin)
        self._batch = BatchChanges(base_offset=offset, epoch=epoch, time_ms=time_ms)
        self._stamp_ms = time_ms
        if self._transaction.begun is not None:
            self._add_event(offset, "transaction still open", "transaction", self._transaction.still_open)
            self._feed.learn(self._feed.replayed().image)
            self._take_back()
        if not self._feed.is_known:
            self._spans.forget_lost(self._unknown_state.leaderless)
            self._brokers.forget_lost()
        image = self._feed.replayed().image if self._feed.is_known else None
        self._add_grouped(still_open(self._spans, offset, time_ms, image))
        self._add_grouped(self._brokers.finish(offset, time_ms))
        return self._events

    def _add_event(
        self,
        offset: int,
        kind: str,
        entity: str,
        text: str,
        *,
        severity: str = INFO,
        rule: str | None = None,
        entities: Iterable[str] = (),
        span_ms: int | None = None,
        bound: str = "",
    ) -> None:
        if severity not in self._shown:
            return
        self._events.append(
            TimelineEvent(
                offset=offset,
                epoch=self._batch.epoch,
                time_ms=self._batch.time_ms,
                kind=kind,
                entity=entity,
                text=text,
                severity=severity,
                rule=rule,
                entities=tuple(dict.fromkeys((entity, *entities))),
                span_ms=span_ms,
                bound=bound,
                stamp_ms=None if self._stamp_ms == self._batch.time_ms else self._stamp_ms,
                asked=self._batch.asked,
            )
        )

    def _add_grouped(self, events: Iterable[groups.Grouped]) -> None:
        for event in events:
            self._add_event(
                event.offset,
                event.kind,
                event.entity,
                event.text,
                severity=event.severity,
                rule=event.rule,
                entities=event.entities,
                span_ms=event.span_ms,
                bound=event.bound,
            )

    def _add_alone(self, events: Iterable[groups.Grouped]) -> None:
        listed = list(events)
        of_brokers = [event for event in listed if event.kind.startswith("broker ")]
        self._add_grouped((*self._brokers.alone(of_brokers, self._batch.time_ms), *listed))

    def _note_time(self, changes: BatchChanges, stamp_ms: int) -> None:
        self._stamp_ms = stamp_ms
        self._add_grouped(self._times.batch(changes, stamp_ms))

    def _broker_steps(self, changes: BatchChanges, scene: Scene) -> None:
        if not self._feed.is_known:
            for step in changes.brokers:
                self._add_alone(self._unknown_state.known_again(step, broker_events(step, scene)))
            return  # whether other brokers are unfenced is unknown
        events = [event for step in changes.brokers for event in broker_events(step, scene)]
        fences = {event.offset: event for event in events if event.kind == "broker fenced"}
        self._add_grouped((*events, *self._brokers.batch(changes, fences)))

    def _partitions(self, scene: Scene) -> None:
        is_early = self._is_early(scene.batch)
        # Nothing else about partitions is critical, or lasts.
        only_leaders = is_early or self._shown == {CRITICAL}
        causes: dict[int, tuple[Cause, ...]] = {
            step.offset: partition_causes(step, scene)
            for step in scene.batch.partitions
            if step.before is not None
            and step.after is not None
            and (
                not only_leaders
                or step.after.leader == NO_LEADER
                or (is_early and step.before.leader == NO_LEADER)
                or was_unclean(step.before, step.after)
            )
        }
        spans = self._spans.batch(scene.batch)
        events = list(groups.unled_events(scene.batch))
        events += groups.leader_events(scene.batch, causes, spans) if causes else ()
        if not only_leaders:
            events += groups.isr_events(scene.batch, causes)
            events += groups.directory_events(scene.batch, causes)
            events += groups.cleared_events(scene.batch)
        if is_early or not only_leaders:
            events += groups.reassignment_events(scene.batch)
            events += groups.span_events(spans)
        for event in events:
            self._add_grouped((event,))
            if event.suspect is not None and scene.batch.is_slice and event.severity in self._shown:
                self._suspects[self._events[-1]] = event.suspect

    def _single(self, offset: int, record: object) -> None:
        if isinstance(record, r.PartitionChangeRecord | r.PartitionRecord | r.NoOpRecord | r.ClearElrRecord):
            return  # most records; their changes are the events
        names = self._namer.entities(record)
        entity = names[0] if names else "quorum"
        match record:
            case control.LeaderChangeMessage() | control.VotersRecord() | control.KRaftVersionRecord():
                self._add_grouped([self._of_quorum(offset, record)])
            case r.FeatureLevelRecord(name=name, feature_level=level):
                release = metadata_version_name(level) if is_known(level) else "newer than this release knows"
                release = f" ({release})" if name == METADATA_VERSION else ""
                self._add_event(offset, "feature", entity, f"{name} is at level {level}{release}")
            case r.ControllerRecord() | r.UnregisterControllerRecord():
                self._controller(offset, record)
            case r.BeginTransactionRecord(name=named):
                self._transaction.begin(offset, named or "no name")
                self._add_event(offset, "transaction begun", entity, named or "no name", severity=DETAIL)
            case r.EndTransactionRecord():
                self._transaction.end(offset, takes_effect=True)
                text = "its records take effect now"
                self._add_event(offset, "transaction ended", entity, text, severity=DETAIL)
            case r.AbortTransactionRecord(reason=reason):
                self._transaction.end(offset, takes_effect=False)
                self._take_back()
                text = f"{reason or 'no reason given'}; its records have no effect"
                self._add_event(offset, "transaction aborted", entity, text, severity=WARNING)
            case r.UnknownRecord(api_key=number, version=version):
                text = f"record type {number} version {version}"
                self._add_event(offset, "unknown record", "quorum", text, severity=WARNING)
            case control.UnknownControlRecord(control_type=number):
                text = f"control record type {number}"
                self._add_event(offset, "unknown record", "quorum", text, severity=WARNING)
            case _:
                security = groups.security_event(record, entity, self._batch.before.get(offset))
                if security is not None:
                    kind, text, severity = security
                    if offset in self._batch.idle:
                        text, severity = f"{text}, which changed nothing", DETAIL
                    self._add_event(offset, kind, entity, text, severity=severity, entities=names)

    def _controller(self, offset: int, record: r.ControllerRecord | r.UnregisterControllerRecord) -> None:
        verb = "registered" if isinstance(record, r.ControllerRecord) else "unregistered"
        cause = record_causes(record, before=self._batch.before.get(offset))[0]
        is_new = cause.rule == controller_restarted.name
        text = f"controller {record.controller_id}" + ", a new process" * is_new
        entity = f"controller/{record.controller_id}"
        self._add_event(offset, f"controller {verb}", entity, text, rule=cause.rule if is_new else None)

    def _take_back(self) -> None:
        """Resets the spans to the visible state, without the records of a transaction."""
        if self._feed.is_known:
            image = self._feed.replayed().image
            place = (self._batch.base_offset, self._batch.time_ms)
            self._spans.take_back(place)
            self._brokers.take_back(image, place)

    def _of_quorum(self, offset: int, record: control.QuorumRecord) -> groups.Grouped:
        match record:
            case control.VotersRecord():
                return self._quorum.voters(offset, record)
            case control.KRaftVersionRecord():
                return self._quorum.kraft_version(offset, record)
        if self._times.silence_ms is not None and self._end[0]:
            self._quorum.follows(self._end[1])  # that of the previous batch
        return self._quorum.election(
            offset, record, self._batch.epoch, self._times.silence_ms, self._feed.metadata_version
        )


Bools = npt.NDArray[np.bool_]


def may_show(
    versions: Versions,
    before: IntArray,
    shown: frozenset[str],
    least_isr: Callable[[IntArray], IntArray],
    moves: bool = True,
) -> npt.NDArray[np.int8]:
    """For each change, whether it may begin or end a span, or cause an event of a severity in `shown`: the
    others are passed over in columns. May select too many, never too few.
    `least_isr` returns the min.insync.replicas of topics by their slots. Without `moves`, a leader that
    another one replaces is an event only to show who asked for it."""
    after = versions.after
    if "detail" in shown:
        return np.full(len(versions.rows), WANTED, dtype=np.int8)
    led = before[LEADER] != after[LEADER]
    is_shown: Bools = led & ((before[LEADER] == NO_LEADER) | (after[LEADER] == NO_LEADER))
    is_shown |= _under_min(before, after, least_isr)
    isr = versions.chunk(after).isr_start
    outside = (after[N_ISR] == 1) & ~(before[isr:] == after[LEADER]).any(axis=0)
    is_shown |= led & (outside | (after[FLAGS] & ~before[FLAGS] & RECOVERING_FLAG != 0))  # possibly unclean
    if shown <= {"critical"}:
        return is_shown.astype(np.int8) * WANTED
    if "info" in shown and moves:
        is_shown |= led
    is_shown |= before[FLAGS] != after[FLAGS]
    directories = slice(LISTS + versions.replica_width, isr)
    is_shown |= (before[directories] != after[directories]).any(axis=0)
    left: Bools = np.zeros_like(is_shown)
    for member in before[isr:]:
        left |= (member != PADDING) & ~(after[isr:] == member).any(axis=0)
    levels = np.where(is_shown, WANTED, left.astype(np.int8) * IF_ACTIVE).astype(np.int8)
    if "info" in shown and not moves:
        levels[led & (levels != WANTED)] |= IF_ASKED
    return levels


def _under_min(before: IntArray, after: IntArray, least_isr: Callable[[IntArray], IntArray]) -> Bools:
    """Which partitions are under min ISR before the change or after it."""
    fewest = np.minimum(before[N_ISR], after[N_ISR])
    found: Bools = fewest < after[N_REPLICAS]  # the minimum is capped at the number of replicas
    places = np.flatnonzero(found)
    found[places] = fewest[places] < np.minimum(least_isr(after[TOPIC, places]), after[N_REPLICAS, places])
    return found
