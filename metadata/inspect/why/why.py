"""Why an entity has its current state: the chain of records that led to it, with derived causes.

Memory is that of the state and of the entity's own links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.columnar.apply import Versions
from metaquorum.metadata.errors import InspectError, RecordDecodeError, ReplayError
from metaquorum.metadata.features import is_newer
from metaquorum.metadata.image import Acl, ConfigResource, MetadataImage, Provenance
from metaquorum.metadata.image.chunk import IntArray
from metaquorum.metadata.inspect.causes.brokers import broker_causes
from metaquorum.metadata.inspect.causes.elections import election_causes
from metaquorum.metadata.inspect.causes.records import record_causes
from metaquorum.metadata.inspect.causes.rule import Cause, Scene
from metaquorum.metadata.inspect.causes.table import causes_of_field
from metaquorum.metadata.inspect.changes.changes import WANTED, BatchChanges, ChangeFeed, nothing
from metaquorum.metadata.inspect.entities.targets import EntityTarget, suggestion
from metaquorum.metadata.inspect.entities.views import Wanted, config_path, entities_below, scram_path
from metaquorum.metadata.inspect.log.clock import LogClock, RunningClock
from metaquorum.metadata.inspect.log.coverage import Limits
from metaquorum.metadata.inspect.log.entities import EntityNamer, broker_of, is_below
from metaquorum.metadata.inspect.log.quorum import QuorumView, changes_text, voter_ids, voter_set_texts
from metaquorum.metadata.inspect.timeline.unknown_state import said_fields
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter, RunPart
from metaquorum.metadata.inspect.walk.mentions import BrokerMention
from metaquorum.metadata.inspect.walk.reader import place_of
from metaquorum.metadata.inspect.walk.states import inside_transaction
from metaquorum.metadata.inspect.why.explanation import (
    SNAPSHOT,
    Explanation,
    Link,
    Links,
    differences,
    exists,
)
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    QuorumRecord,
    Voter,
    VotersRecord,
)
from metaquorum.metadata.text.tree import acl_text, broker_tree, partition_tree, quota_who
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.uuids import uuid_from_text


class Chain:
    """Collects the links of one target. Feed it every batch in log order, then call `result`."""

    def __init__(
        self,
        target: EntityTarget,
        image: MetadataImage | None = None,
        *,
        is_known: bool = True,
        names: Mapping[bytes, str] | None = None,
        secrets: bool = False,
        clock: Callable[[], LogClock] | None = None,
        is_middle: bool = False,
    ) -> None:
        """`image` is the state at the log's start or (with `is_middle`) further on. With `is_known` False it
        is empty, and records are taken only for what they say on their own until `learn`. `names` are topic
        names from a later snapshot. With `secrets`, causes show the values of secret settings. `clock` reads
        the log's clock."""
        self._target = target
        self._secrets = secrets
        self._clock = RunningClock(clock)
        self._stamp_ms: int | None = None
        self._is_moved, self._is_silence_sure = False, True
        self._feed = ChangeFeed(image, is_known=is_known, names=names, is_middle=is_middle)
        known = {} if image is None else {topic.topic_id: topic.name for topic in image.topics.all()}
        self._namer = EntityNamer({**(names or {}), **known})
        self._said: dict[str, Any] = {}
        self._links = Links(has_begun=not is_middle)
        self.unsure: set[int] = set()
        self.limits = Limits()
        self._unknown = 0
        self._base_offset = self._end = 0 if image is None else image.provenance.offset
        self._alone_from = self._base_offset
        self._kept: dict[str, Any] | None = None
        self._quorum = QuorumFields()
        self._last_ms: int | None = None
        self._kind = target.entity.partition("/")[0]
        self._settings = KeptSettings()
        self._batch_filter = self._filter_of_target()
        if image is not None and is_known:
            self._begin(image, is_middle=is_middle)

    def _filter_of_target(self) -> BatchFilter:
        """Which batches may hold a link, or a fence that explains one."""
        if not self._feed.is_known:
            return BatchFilter()  # the partition's topic is unknown
        if self._kind == "topic":
            wanted = self._target.partition
            if wanted is None:  # whose chain has its partitions only as they are created
                topics = _named_topics(self._target.entity)
                return BatchFilter(topics=topics, creations_only=True, together=True, along=True)
            return BatchFilter(topics=frozenset({wanted[0]}), together=True, along=True)
        number = self._target.entity.partition("/")[2]
        if self._kind == "broker" and not number.isdigit():
            return BatchFilter(topics=frozenset(), together=True)
        brokers = frozenset({int(number)} if self._kind == "broker" else ())
        return BatchFilter(topics=frozenset(), brokers=brokers, together=True, along=True)

    def pieces(self, run: BatchRun) -> Iterator[RecordBatch | RunPart]:
        """The next run in pieces: batches for `batch`, parts for `pass_over`."""
        return self._feed.pieces(run, self._batch_filter)

    def is_passed(self, batch: RecordBatch) -> bool:
        """Whether the next batch is one for `pass_over`."""
        return self._feed.is_passed(batch, self._batch_filter)

    def pass_over(self, part: RunPart | RecordBatch) -> list[ReplayError]:
        """Applies batches of which at most changes of the partition are links. Returns the records that
        cannot be read."""
        if isinstance(part, RunPart) and part.records is not None:
            errors: list[ReplayError] = []
            for changes in self._feed.changed(part, self._of_target, self._time_of):
                self._take(changes)
                errors += changes.refused
        else:
            errors = self._feed.pass_over(part)
        _, self._end, stamp_ms = place_of(part)
        self._last_ms = self._time_of(self._end - 1, stamp_ms)
        self._is_moved = self._stamp_ms is not None
        return [error for error in errors if isinstance(error.__cause__, RecordDecodeError)]

    def _time_of(self, offset: int, stamp_ms: int) -> int:
        """The time of the batch that is taken next, which holds an offset and has this timestamp."""
        time_ms = self._clock.time_ms(offset, stamp_ms)
        self._stamp_ms = None if stamp_ms == time_ms else stamp_ms
        return time_ms

    def _of_target(self, versions: Versions, before: IntArray) -> npt.NDArray[np.int8]:
        """Of changes taken together, those of the partition."""
        if self._target.partition is None:
            return nothing(versions, before)
        topic, index = self._target.partition
        topics = self._feed.state.topics
        topic_id = topics.by_name.get(topic)
        row = -1 if topic_id is None else topics.row_of(topic_id, index)
        return np.where(versions.rows == row, np.int8(WANTED), np.int8(0))

    def skip_to(self, image: MetadataImage, brokers: Iterable[BrokerMention]) -> None:
        """Goes on at a later state: no record up to it is about the target, and no transaction is open.
        `brokers` are the records about brokers in between."""
        if image.provenance.offset <= self._end:
            return
        for offset, stamp_ms, record in brokers:
            self._feed.batch(-1, self._clock.time_ms(offset, stamp_ms), [(offset, record)])
        if not self._end:
            self._base_offset = image.provenance.offset
        self._feed.learn(image)
        self._end = image.provenance.offset

    def lose(self, ends_behind: Callable[[], bool]) -> None:
        """Records are lost, so the leader and the time of the last write are unknown. An open transaction
        that does not end after them takes effect."""
        self._quorum.lose()
        self._last_ms = None
        if self._links.is_in_transaction and not ends_behind():
            self._links.batch(self._feed.batch(-1, -1, [(self._end, r.EndTransactionRecord())]))

    def forget(self, offset: int) -> None:
        """The records before `offset` are lost: later ones are taken only for what they say by
        themselves, until `learn`."""
        self._kept, self._alone_from, self._said = self._now(), offset, {}
        for topic in self._feed.state.topics.freeze().all():
            self._namer.learn(topic.topic_id, topic.name)
        self._feed.forget()
        self._batch_filter = self._filter_of_target()

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return self._end

    def so_far(self) -> tuple[list[Link], bool]:
        """The links as they are now, and whether they can include all that exist."""
        return self._links.so_far()

    @property
    def is_plain(self) -> bool:
        """Whether its own batches suffice: no clock that jumps, and no transaction that began before them."""
        return not self._clock.has_jumps and not self._feed.begins_inside

    def is_whole(self, first_known: int | None) -> bool:
        """Whether the chain needs nothing that a trimmed log lacks before the offset `first_known`: elections
        are records of their own, and a topic's chain begins with the topic."""
        first = self._links.first
        if self._kind == "quorum" or first is None or first_known is None:
            return self._kind == "quorum"
        return first.type_name in ("TOPIC_RECORD", "PARTITION_RECORD") and first.offset >= first_known

    def learn_quorum(self, quorum: QuorumView, provenance: Provenance) -> None:
        """Takes the voters from a snapshot at `provenance` (KIP-853)."""
        self._quorum.learn(quorum)
        name = self._target.field
        if self._kind == "quorum" and not self._links and (name is None or name in self._quorum.now):
            text = f"the snapshot that ends at offset {provenance.offset} has it"
            changes = () if name is None else ((name, None, self._quorum.now[name]),)
            self._add_snapshot(provenance, Cause(rule="set", text=text), changes)

    def learn(self, image: MetadataImage) -> None:
        """Takes the state from a snapshot; it was unknown so far."""
        before = self._now()
        self._feed.learn(image)
        self._links.keep()
        for topic in image.topics.all():
            self._namer.learn(topic.topic_id, topic.name)
        self._batch_filter = self._filter_of_target()
        self._end = max(self._end, image.provenance.offset)
        now, name = self._now(), self._target.field
        kept, self._kept = self._kept, None
        if kept is not None and self._kind != "quorum":
            if found := differences({**kept, **(before or {})}, now or {}, name):
                at = image.provenance
                text = f"the snapshot that ends at offset {at.offset} has this value: lost records set it"
                self._add_snapshot(at, Cause(rule="unexplained", text=text, certain=False), found)
            return
        is_same = before == now if name is None else (before or {}).get(name) == (now or {}).get(name)
        if not (self._links and is_same) and self._kind != "quorum":
            self._begin(image)

    def _begin(self, image: MetadataImage, *, is_middle: bool = False) -> None:
        """If a snapshot contains the entity, adds a link that says that it existed from the start."""
        is_there = self._now() is not None
        if is_there and self._kind == "config":
            self._settings.learn(image, self._target.entity)
        if is_middle or not is_there:
            return
        place = image.provenance
        before = "anything that the records above do not show" if self._links else "the earlier state"
        text = f"it is in the snapshot that ends at offset {place.offset}; {before} is not in this log"
        self._add_snapshot(place, Cause(rule="created", text=text))

    def _add_snapshot(
        self, provenance: Provenance, cause: Cause, changes: tuple[tuple[str, Any, Any], ...] = ()
    ) -> None:
        self._add(
            Link(
                offset=provenance.offset,
                epoch=provenance.epoch,
                time_ms=provenance.timestamp_ms,
                type_name=SNAPSHOT,
                changes=changes,
                causes=(cause,),
            )
        )

    def batch(self, epoch: int, time_ms: int, records: Sequence[tuple[int, object]]) -> None:
        """Takes one batch; `records` are (offset, decoded record)."""
        self._stamp_ms = None
        if records:
            time_ms = self._time_of(records[0][0], time_ms)
        was_moved, self._is_moved = self._is_moved, self._stamp_ms is not None
        self._is_silence_sure = not (was_moved or self._is_moved)
        self._take(self._feed.batch(epoch, time_ms, records))
        if records:
            self._end = records[-1][0] + 1
        self._last_ms = time_ms

    def _take(self, changes: BatchChanges) -> None:
        """Takes what a batch did, of which `_stamp_ms` is the timestamp."""
        scene = Scene(batch=changes, feed=self._feed)
        self._links.batch(changes)
        for _, topic in changes.removed:  # whose creation may have been passed over
            self._namer.learn(topic.topic_id, topic.name)
        self._unknown += sum(is_newer(one) for _, one in changes.records)
        match self._kind:
            case "topic" if self._target.partition is not None:
                self._partition_steps(changes, scene)
            case "broker" if self._target.entity.partition("/")[2].isdigit():
                self._broker_steps(changes, scene)
            case _:
                self._plain(changes)

    def _partition_steps(self, changes: BatchChanges, scene: Scene) -> None:
        wanted = self._target.partition
        for step in changes.partitions:
            if (step.topic, step.index) != wanted:
                continue
            if changes.is_slice:
                self._links.note_slice(step.offset)
            before = {} if step.before is None else partition_tree(step.before)
            after = {} if step.after is None else partition_tree(step.after)
            if step.before is None:
                self._links.clear()
            causes = causes_of_field(self._target.field, step, scene)
            self._changed(changes, step.offset, step.record, (before, after), causes)
        for offset, record in changes.unplaced:
            own = False
            match record:
                case r.PartitionRecord() | r.PartitionChangeRecord():
                    own = (self._namer.topic_name(record.topic_id), record.partition_id) == wanted
                case r.RemoveTopicRecord(topic_id=topic_id):
                    own = wanted is not None and self._namer.topic_name(topic_id) == wanted[0]
            if own:
                self._alone(changes, offset, record)

    def _alone(self, changes: BatchChanges, offset: int, record: object) -> None:
        """A record about something from before the log began: only what the record says is known."""
        is_end = isinstance(record, r.RemoveTopicRecord | r.UnregisterBrokerRecord)
        own = said_fields(record)
        if not is_end and own and self._target.field not in (None, *own):
            return
        said = {} if is_end else {**self._said, **own}
        text = f"the state before offset {self._alone_from} is unknown, and so is the cause"
        cause = record_causes(record)[0] if is_end else Cause(rule="unexplained", text=text, certain=False)
        self._changed(changes, offset, record, (self._said, said), (cause,))
        self._said = said

    def _broker_steps(self, changes: BatchChanges, scene: Scene) -> None:
        for step in changes.brokers:
            if f"broker/{step.broker_id}" != self._target.entity:
                continue
            before = {} if step.before is None else broker_tree(step.before)
            after = {} if step.after is None else broker_tree(step.after)
            self._changed(changes, step.offset, step.record, (before, after), broker_causes(step, scene))
        broker_id = int(self._target.entity.partition("/")[2])
        for offset, record in changes.unplaced:
            if broker_of(record) == broker_id:
                self._alone(changes, offset, record)

    def _changed(
        self,
        batch: BatchChanges,
        offset: int,
        record: object,
        trees: tuple[dict[str, Any], dict[str, Any]],
        causes: tuple[Cause, ...],
    ) -> None:
        before, after = trees
        found = differences(before, after, self._target.field)
        if self._target.field is not None and not found and before and after:
            return
        self._add_record(batch, offset, record, found, causes)

    def _plain(self, changes: BatchChanges) -> None:
        """Entities without a history of fields here: each record about them is a link."""
        refused = {error.offset for error in changes.refused}
        for offset, record in changes.records:
            names = (*self._namer.entities(record), *other_names(record))
            # Follow every election, even of others: the cause of the next one depends on it.
            causes = (
                self._causes_of(changes, record, offset) if isinstance(record, control.QuorumRecord) else None
            )
            if offset in refused or isinstance(record, r.PartitionChangeRecord | r.ClearElrRecord):
                continue
            if not is_link_of(self._target.entity, record, names):
                continue
            causes = self._causes_of(changes, record, offset) if causes is None else causes
            changed: tuple[tuple[str, Any, Any], ...] = ()
            if self._target.field is not None:
                name = self._target.field
                changed = ((name, self._quorum.before.get(name), self._quorum.now.get(name)),)
                if changed[0][1] == changed[0][2]:
                    continue
            if isinstance(record, r.TopicRecord):
                self._links.clear()
            self._settings.note(record)
            self._add_record(changes, offset, record, changed, causes)

    def _causes_of(self, changes: BatchChanges, record: object, offset: int) -> tuple[Cause, ...]:
        if isinstance(record, control.QuorumRecord):
            silence_ms = None if self._last_ms is None else changes.time_ms - self._last_ms
            sure_ms = silence_ms if silence_ms is None or self._is_silence_sure else -1
            return self._quorum.noted(record, changes.epoch, sure_ms, self._feed.metadata_version)
        found_there = changes.before.get(offset)
        said = acl_text(found_there) if isinstance(found_there, Acl) else ""
        is_idle = offset in changes.idle
        if isinstance(record, r.RemoveTopicRecord) and self._kind == "config":
            is_idle |= not self._settings.take(self._feed.topic_name(record.topic_id))
        return record_causes(record, said=said, before=found_there, is_idle=is_idle, secrets=self._secrets)

    def _add_record(
        self,
        batch: BatchChanges,
        offset: int,
        record: object,
        changes: tuple[tuple[str, Any, Any], ...],
        causes: tuple[Cause, ...],
    ) -> None:
        self._add(
            Link(
                offset=offset,
                epoch=batch.epoch,
                time_ms=batch.time_ms,
                type_name=getattr(record, "type_name", "?"),
                changes=changes,
                causes=causes,
                stamp_ms=self._stamp_ms,
                asked=batch.asked,
            )
        )

    def _add(self, link: Link) -> None:
        if self._feed.asked_before:
            self.unsure.add(link.offset)
        self._links.add(link)

    def _now(self) -> dict[str, Any] | None:
        """The target's state as plain data; None if it does not exist."""
        entity = self._target.entity
        if self._kind == "quorum":
            return self._quorum.now or None
        if self._kind == "transaction":
            return {}
        image = self._feed.replayed().image
        values = dict(entities_below(image, Wanted(entity)))
        if not values and self._said:
            return self._said
        if self._target.field is not None or (len(values) == 1 and entity in values):
            return values.get(entity)
        return values or None

    def result(self) -> Explanation:
        """The explanation. Raises InspectError if no record was about the target."""
        if self._links.is_in_transaction:
            self._links.take_back()
            self.limits.place(inside_transaction(self._feed.replayed()))
        now = self._now()
        if not self._links and not self._feed.is_known:
            raise InspectError(
                f"the state of {self._target} at offset {self._end} is unknown: no record from offset "
                f"{self._base_offset} on shows it, and no snapshot has the earlier state; give a later place"
            )
        if not self._links:
            raise InspectError(
                f"no record below offset {self._end} is about {self._target.entity}{self._hint()}"
            )
        value = now if self._target.field is None or now is None else now.get(self._target.field)
        return Explanation(
            target=self._target,
            end_offset=self._end,
            exists=exists(self._target.entity, now, is_known=self._feed.is_known),
            value=value,
            links=self._links.all(),
            dropped=self._links.dropped,
            unknown=self._unknown,
            read_from=None if self._links.has_begun else self._base_offset,
            limits=self.limits,
        )

    def _hint(self) -> str:
        names = [f"topic/{one}" for one in self._namer.topic_names()]
        names += [f"broker/{one}" for one in self._feed.stories]
        similar = suggestion(self._target.entity, self._feed.state.freeze(), names)
        return similar + "".join(f" ({place.text})" for place in self.limits.shown)


def _named_topics(entity: str) -> frozenset[str] | None:
    """The topic that an entity is or belongs to; None if it is not known by its name: all topics, or an id,
    which a record may have whose topic's name is not known before it."""
    name = entity.split("/")[1] if "/" in entity else ""
    try:
        uuid_from_text(name)
    except ValueError:
        return frozenset({name}) if name else None
    return None


class KeptSettings:
    """Feed it the records of settings, and call `take` when a topic is removed: that removes its settings,
    and its record does not say whether there were any."""

    def __init__(self) -> None:
        self._kept: set[tuple[str, str]] = set()

    def learn(self, image: MetadataImage, entity: str) -> None:
        """Takes the settings of a snapshot."""
        found = entities_below(image, Wanted(entity))
        self._kept = {(path, key) for path, fields in found for key in fields}

    def note(self, record: object) -> None:
        """Takes a setting's record; other records have no effect."""
        if isinstance(record, r.ConfigRecord):
            one = (config_path(ConfigResource(record.resource_type, record.resource_name)), record.name)
            (self._kept.discard if record.value is None else self._kept.add)(one)

    def take(self, topic: str | None) -> bool:
        """Removes a topic's settings. Returns whether it had any."""
        gone = {one for one in self._kept if one[0] == f"config/topic/{topic}"}
        self._kept -= gone
        return bool(gone)


def other_names(record: object) -> tuple[str, ...]:
    """Canonical paths of what users and clients have (see `views`), in addition to those of EntityNamer."""
    match record:
        case r.ClientQuotaRecord():
            return (f"quota/{quota_who(record)}",)
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return (scram_path(record.mechanism, record.name),)
    return ()


def is_link_of(entity: str, record: object, names: tuple[str, ...]) -> bool:
    """Whether a record with these names is a link of `entity`: a topic's removal is also a
    link of its settings."""
    if any(is_below(name, entity) for name in names):
        return True
    if isinstance(record, r.RemoveTopicRecord) and entity.startswith("config/topic/"):
        return f"topic/{entity.split('/')[2]}" in names
    return False


class QuorumFields:
    """`now` and `before` have the known fields, named as in `QuorumView.tree`."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        self._voters: tuple[Voter, ...] | None = None

    def lose(self) -> None:
        """Forgets the fields: the lost records may include an election or a voter set."""
        self._voters = None
        self.now = {name: value for name, value in self.now.items() if name == "kraftVersion"}

    def learn(self, quorum: QuorumView) -> None:
        """Takes the voters from a snapshot (KIP-853)."""
        if quorum.voter_set:
            self.now["kraftVersion"] = quorum.kraft_version
            self._set(quorum.voter_set)

    def noted(
        self, record: QuorumRecord, epoch: int, silence_ms: int | None, level: int
    ) -> tuple[Cause, ...]:
        """Takes the next record and returns its causes; for the last two arguments, see `election_causes`."""
        match record:
            case LeaderChangeMessage():
                return self._elected(record, epoch, silence_ms, level)
            case VotersRecord():
                return self._voters_set(record)
        return self._version_set(record)

    def _elected(
        self, record: LeaderChangeMessage, epoch: int, silence_ms: int | None, level: int
    ) -> tuple[Cause, ...]:
        """A leader's first record; see `election_causes`."""
        self.before = dict(self.now)
        causes = election_causes(
            record, epoch, self.now.get("leader"), self.now.get("epoch"), silence_ms, level
        )
        self.now |= {"leader": record.leader_id, "epoch": epoch}
        if not self.now.get("kraftVersion"):
            self._voters = tuple(
                Voter(voter_id=one.voter_id, voter_directory_id=one.voter_directory_id)
                for one in record.voters
            )
            self.now["voters"] = list(voter_ids(self._voters))
        return causes

    def _voters_set(self, record: VotersRecord) -> tuple[Cause, ...]:
        """The whole voter set. The log shows which leader wrote it, not which client requested the change."""
        self.before = dict(self.now)
        differences = changes_text(self._voters, record.voters)
        self._set(record.voters)
        text = f"the voters are {self.now['voters']}"
        if self.before.get("voterSet") == self.now["voterSet"]:
            return (Cause(rule="changed-nothing", text=f"{text}, which changed nothing"),)
        return (Cause(rule="set", text=f"{text}: {differences}" if differences else text),)

    def _version_set(self, record: KRaftVersionRecord) -> tuple[Cause, ...]:
        """The finalized kraft.version."""
        self.before = dict(self.now)
        self.now["kraftVersion"] = record.kraft_version
        text = f"kraft.version is {record.kraft_version}"
        if self.before.get("kraftVersion") == record.kraft_version:
            return (Cause(rule="changed-nothing", text=f"{text}, which changed nothing"),)
        return (Cause(rule="set", text=text),)

    def _set(self, voters: tuple[Voter, ...]) -> None:
        self._voters = voters
        self.now |= {"voters": list(voter_ids(voters)), "voterSet": voter_set_texts(voters)}
