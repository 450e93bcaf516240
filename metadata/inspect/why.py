"""Why an entity is as it is: the chain of records that made it so, with derived causes.

Owns which records count for an entity (or one field of it), and the wait for a fence that was split over
several batches. The causes come from `causes`. Reads a log once, from the earliest state that is known to the
place asked about; memory is that of the state and of the entity's own links.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metadata import control_records as control
from metadata import records as r
from metadata.errors import ReplayError
from metadata.image import Acl, ConfigResource, MetadataImage
from metadata.inspect.cause_types import SPLIT_MS
from metadata.inspect.causes import (
    Cause,
    Scene,
    broker_causes,
    election_causes,
    partition_causes,
    record_causes,
)
from metadata.inspect.changes import BatchChanges, ChangeFeed
from metadata.inspect.concern import Concern, Stretch
from metadata.inspect.entities import EntityNamer, is_below
from metadata.inspect.log import InspectError, MetadataLog, ReadBatch, damage_line, decode_item
from metadata.inspect.places import Limits
from metadata.inspect.points import END, Point, utc_text
from metadata.inspect.record_texts import acl_text, quota_who
from metadata.inspect.split_fences import LIKE_A_SPLIT_FENCE
from metadata.inspect.states import OnProblem, earliest, inside_transaction, settle, state_at
from metadata.inspect.targets import Target
from metadata.inspect.views import Wanted, config_path, entities_below, scram_path
from metadata.tree import broker_tree, partition_tree
from storage.batch import RecordBatch
from storage.reader import Damage
from storage.runs import BatchRun

_QUORUM_RECORDS = (control.LeaderChangeMessage, control.VotersRecord, control.KRaftVersionRecord)

MAX_LINKS = 100_000
"""Links that are kept; older ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One record of the chain. `changes` are (field, before, after) as plain data; times are Unix ms."""

    offset: int
    epoch: int
    time_ms: int
    type_name: str
    changes: tuple[tuple[str, Any, Any], ...]
    causes: tuple[Cause, ...]


@dataclass(slots=True, kw_only=True)
class Explanation:
    """The chain, oldest first, and how the target stands at its end. `exists` is False for an entity that was
    deleted or never was; `value` is the field's, or all fields'. `dropped` links were too many to keep;
    `unknown` records of the log are from the future; `limits` has what the chain does not cover."""

    target: Target
    end_offset: int
    exists: bool
    value: Any
    links: list[Link] = field(default_factory=list)
    dropped: int = 0
    unknown: int = 0
    base_offset: int = 0
    limits: Limits = field(default_factory=Limits, compare=False)

    @property
    def last(self) -> Link | None:
        """The newest link that changed something; the newest where none did."""
        changed = (link for link in reversed(self.links) if link.causes[0].rule != "changed-nothing")
        return next(changed, self.links[-1] if self.links else None)


def explain(
    log: MetadataLog,
    target: Target,
    point: Point = END,
    on_problem: OnProblem | None = None,
    *,
    past_corruption: bool = False,
) -> Explanation:
    """The chain of records up to `point` that made `target` what it is there.

    Stops where records are missing, after telling `on_problem`, unless `past_corruption`. Raises InspectError
    for a target that no record is about.
    """
    image = None
    point, shown = settle(log, point)
    if log.start_offset and not log.is_checkpoint:
        image = state_at(log, earliest(log), on_problem, past_corruption=past_corruption).image
    chain = Chain(target, image)
    chain.limits.place(shown)
    for item in batches_until(log, image, point, on_problem, past_corruption, chain.pieces, chain.is_passed):
        if not isinstance(item, ReadBatch):
            for error in chain.pass_over(item):
                if on_problem is not None:
                    on_problem(f"skipped: {error}")
            continue
        header = item.batch.header
        records = [(decoded.offset, decoded.record) for decoded in item.records]
        chain.batch(header.leader_epoch, header.max_timestamp_ms, records)
    return chain.result()


def batches_until(
    log: MetadataLog,
    image: MetadataImage | None,
    point: Point,
    on_problem: OnProblem | None,
    past_corruption: bool,
    split: Callable[[BatchRun], Iterator[RecordBatch | Stretch]],
    is_passed: Callable[[RecordBatch], bool],
) -> Iterator[ReadBatch | RecordBatch | Stretch]:
    """Batches behind `image` and before `point`, as `decoded_runs` gives them; damage is told, and is the end
    unless `past_corruption`."""
    first = expected = log.start_offset if image is None else image.provenance.offset
    damaged = False
    for item in decoded_runs(log, expected, point, split, is_passed):
        if isinstance(item, Damage):
            damaged = True
            if (point.offset is None or item.offset < point.offset) and on_problem is not None:
                on_problem(damage_line(item))
            continue
        base_offset, next_offset, time_ms = _place(item)
        if next_offset <= expected:
            continue
        if point.offset is not None and next_offset > point.offset:
            return
        if point.time_ms is not None and not isinstance(item, Stretch) and time_ms > point.time_ms:
            if expected == first and image is None:
                raise InspectError(
                    f"{log.path} begins at {utc_text(time_ms)}, after"
                    f" {utc_text(point.time_ms)}; give a later time, or an offset from {first} on"
                )
            return
        if base_offset > expected and not past_corruption:
            if on_problem is not None:
                on_problem(
                    f"stopped at offset {expected}: the next batch that can be read is at offset"
                    f" {base_offset}; go on past it with --past-corruption"
                )
            return
        expected = next_offset
        yield item
    if point.offset is not None and point.offset > expected and not damaged:
        raise InspectError(
            f"{log.path} ends at offset {expected}, before {point.offset}; give {expected} or less"
        )


def _place(item: ReadBatch | RecordBatch | Stretch) -> tuple[int, int, int]:
    """First offset, offset after the last one, time."""
    if isinstance(item, Stretch):
        return item.base_offset, item.next_offset, item.time_ms
    header = item.batch.header if isinstance(item, ReadBatch) else item.header
    return header.base_offset, header.next_offset, header.max_timestamp_ms


def decoded_runs(
    log: MetadataLog,
    start: int,
    point: Point,
    split: Callable[[BatchRun], Iterator[RecordBatch | Stretch]],
    is_passed: Callable[[RecordBatch], bool] | None = None,
) -> Iterator[ReadBatch | RecordBatch | Stretch | Damage]:
    """What `log.items` gives from `start` on, but for runs of batches that follow what was read and that end
    before `point`: `split` says which of them come decoded. A batch alone that `is_passed` comes as it is."""
    if log.is_checkpoint:
        yield from log.items(start or None)
        return
    expected = start
    for found in log.runs(start or None):
        parts: Iterable[RecordBatch | Stretch | Damage]
        if not isinstance(found, BatchRun):
            parts = (found,)
        elif found.base_offset == expected and is_before(found, point):
            parts = split(found)
        else:
            parts = found.batches()
        for part in parts:
            if isinstance(part, Stretch):
                expected = part.next_offset
                yield part
            elif is_passed is not None and isinstance(part, RecordBatch) and is_passed(part):
                expected = part.header.next_offset
                yield part
            else:
                for item in decode_item(part):
                    if isinstance(item, ReadBatch):
                        expected = item.batch.header.next_offset
                    yield item


def is_before(run: BatchRun, point: Point) -> bool:
    """Whether all of a run lies before a place."""
    if point.offset is not None:
        return run.next_offset <= point.offset
    return point.time_ms is None or int(run.timestamps_ms().max()) <= point.time_ms


class Chain:
    """Collects the links of one target. Feed it every batch in log order, then ask for the result."""

    def __init__(self, target: Target, image: MetadataImage | None = None) -> None:
        self._target = target
        self._feed = ChangeFeed(image)
        known = {} if image is None else {topic.topic_id: topic.name for topic in image.topics.all()}
        self._namer = EntityNamer(known)
        self._links: deque[Link] = deque(maxlen=MAX_LINKS)
        self._visible: tuple[deque[Link], int] | None = None
        self.limits = Limits()
        self._count = 0
        self._unknown = 0
        self._base_offset = self._end = 0 if image is None else image.provenance.offset
        self._quorum: dict[str, Any] = {}
        self._election: tuple[int, int] | None = None
        self._last_ms: int | None = None
        self._kind = target.entity.partition("/")[0]
        self._quorum_before: dict[str, Any] = {}
        self._settings: set[tuple[str, str]] = set()
        self._concern = self._concern_of()
        self._begin(image)

    def _concern_of(self) -> Concern:
        """Which batches may hold a link, or a fence that tells of one."""
        if self._kind == "topic":
            wanted = (self._partition_of() or (self._target.entity.partition("/")[2],))[0]
            by_name = wanted and self._partition_of() is not None
            return Concern(topics=frozenset({wanted}) if by_name else None)
        return Concern(topics=frozenset())

    def pieces(self, run: BatchRun) -> Iterator[RecordBatch | Stretch]:
        """A run that comes next: batches for `batch`, stretches for `pass_over`."""
        return self._feed.pieces(run, self._concern)

    def is_passed(self, batch: RecordBatch) -> bool:
        """Whether a batch that comes next is one for `pass_over`."""
        return self._feed.is_passed(batch, self._concern)

    def pass_over(self, stretch: Stretch | RecordBatch) -> list[ReplayError]:
        """Batches that are not about the target; which of their records cannot be read."""
        _, self._end, self._last_ms = _place(stretch)
        return self._feed.pass_over(stretch)

    def _begin(self, image: MetadataImage | None) -> None:
        """Notes that the entity is there from the start on, where a snapshot says so."""
        there = None if image is None else self._now()
        if image is None or there is None:
            return
        if self._kind == "config":
            found = entities_below(image, Wanted(self._target.entity))
            self._settings = {(path, key) for path, fields in found for key in fields}
        place = image.provenance
        text = f"it is in the snapshot that ends at offset {place.offset}; what was before is not in this log"
        self._add(
            Link(
                offset=place.offset,
                epoch=place.epoch,
                time_ms=place.timestamp_ms,
                type_name="SNAPSHOT",
                changes=(),
                causes=(Cause(rule="created", text=text),),
            )
        )

    def batch(self, epoch: int, time_ms: int, records: Sequence[tuple[int, object]]) -> None:
        """One batch: `records` are (offset, decoded record)."""
        changes = self._feed.batch(epoch, time_ms, records)
        scene = Scene(batch=changes, feed=self._feed)
        self._transaction(changes)
        self._fences(changes)
        self._unknown += sum(
            isinstance(one, r.UnknownRecord | control.UnknownControlRecord) for _, one in changes.records
        )
        match self._kind:
            case "topic" if self._partition_of() is not None:
                self._partition_steps(changes, scene)
            case "broker" if self._target.entity.partition("/")[2].isdigit():
                self._broker_steps(changes, scene)
            case _:
                self._plain(changes)
        if changes.records:
            self._end = changes.records[-1][0] + 1
        self._last_ms = time_ms

    def _transaction(self, changes: BatchChanges) -> None:
        """Keeps the chain as it was before an open transaction: nothing in one holds before its end."""
        for _, record in changes.records:
            match record:
                case r.BeginTransactionRecord():
                    self._visible = (self._links.copy(), self._count)
                case r.AbortTransactionRecord() if self._visible is not None:
                    (self._links, self._count), self._visible = self._visible, None
                case r.EndTransactionRecord():
                    self._visible = None

    def _partition_of(self) -> tuple[str, int] | None:
        head, _, index = self._target.entity.rpartition("/")
        if head.startswith("topic/") and index.isdigit():
            return head.removeprefix("topic/"), int(index)
        return None

    def _partition_steps(self, changes: BatchChanges, scene: Scene) -> None:
        wanted = self._partition_of()
        for step in changes.partitions:
            if (step.topic, step.index) != wanted:
                continue
            before = {} if step.before is None else partition_tree(step.before)
            after = {} if step.after is None else partition_tree(step.after)
            if step.before is None:
                self._links.clear()
                self._count = 0
            self._changed(changes, step.offset, step.record, (before, after), partition_causes(step, scene))

    def _broker_steps(self, changes: BatchChanges, scene: Scene) -> None:
        for step in changes.brokers:
            if f"broker/{step.broker_id}" != self._target.entity:
                continue
            before = {} if step.before is None else broker_tree(step.before)
            after = {} if step.after is None else broker_tree(step.after)
            self._changed(changes, step.offset, step.record, (before, after), broker_causes(step, scene))

    def _changed(
        self,
        batch: BatchChanges,
        offset: int,
        record: object,
        trees: tuple[dict[str, Any], dict[str, Any]],
        causes: tuple[Cause, ...],
    ) -> None:
        before, after = trees
        found = tuple(
            (name, before.get(name), after.get(name))
            for name in dict.fromkeys((*before, *after))
            if before.get(name) != after.get(name)
        )
        if self._target.field is not None:
            found = tuple(one for one in found if one[0] == self._target.field)
            if not found and before and after:
                return
        self._add(
            Link(
                offset=offset,
                epoch=batch.epoch,
                time_ms=batch.time_ms,
                type_name=getattr(record, "type_name", "?"),
                changes=found,
                causes=causes,
            )
        )

    def _plain(self, changes: BatchChanges) -> None:
        """Entities without a history of fields here: each record about them is a link."""
        refused = {error.offset for error in changes.refused}
        for offset, record in changes.records:
            names = (*self._namer.entities(record), *_other_names(record))
            # Every election is followed, also those of others: the next one's cause is told by them.
            causes = self._causes_of(changes, record, offset) if isinstance(record, _QUORUM_RECORDS) else None
            if offset in refused or not self._concerns(record, names):
                continue
            if isinstance(record, r.PartitionChangeRecord):
                continue
            causes = self._causes_of(changes, record, offset) if causes is None else causes
            if self._target.field is not None:
                before = self._quorum_before
                if before.get(self._target.field) == self._quorum.get(self._target.field):
                    continue
                pair = (before.get(self._target.field), self._quorum.get(self._target.field))
                found: tuple[tuple[str, Any, Any], ...] = ((self._target.field, *pair),)
            else:
                found = ()
            if isinstance(record, r.TopicRecord):
                self._links.clear()
                self._count = 0
            self._note_setting(record)
            self._add(
                Link(
                    offset=offset,
                    epoch=changes.epoch,
                    time_ms=changes.time_ms,
                    type_name=getattr(record, "type_name", "?"),
                    changes=found,
                    causes=causes,
                )
            )

    def _concerns(self, record: object, names: tuple[str, ...]) -> bool:
        entity = self._target.entity
        if any(is_below(name, entity) for name in names):
            return True
        if isinstance(record, r.RemoveTopicRecord) and entity.startswith("config/topic/"):
            topic = entity.split("/")[2]
            return f"topic/{topic}" in names
        return False

    def _causes_of(self, changes: BatchChanges, record: object, offset: int) -> tuple[Cause, ...]:
        self._quorum_before = dict(self._quorum)
        match record:
            case control.LeaderChangeMessage():
                leader, epoch = self._election or (None, None)
                silence_ms = None if self._last_ms is None else changes.time_ms - self._last_ms
                level = self._feed.metadata_version
                found = election_causes(record, changes.epoch, leader, epoch, silence_ms, level)
                self._election = (record.leader_id, changes.epoch)
                self._quorum |= {"leader": record.leader_id, "epoch": changes.epoch}
                self._quorum["voters"] = sorted(voter.voter_id for voter in record.voters)
                return found
            case control.VotersRecord(voters=voters):
                self._quorum["voters"] = sorted(voter.voter_id for voter in voters)
                return (Cause(rule="set", text=f"the voters are {self._quorum['voters']}"),)
            case control.KRaftVersionRecord(kraft_version=version):
                self._quorum["kraftVersion"] = version
                return (Cause(rule="set", text=f"kraft.version is {version}"),)
            case r.PartitionRecord(partition_id=index, replicas=replicas):
                return (Cause(rule="created", text=f"partition {index} on {list(replicas)}"),)
        found_there = changes.found.get(offset)
        said = acl_text(found_there) if isinstance(found_there, Acl) else ""
        return record_causes(record, said=said, is_idle=offset in changes.idle or self._took_nothing(record))

    def _took_nothing(self, record: object) -> bool:
        """Whether a topic's removal found nothing of the settings that were asked about."""
        if not isinstance(record, r.RemoveTopicRecord) or self._kind != "config":
            return False
        name = self._feed.topic_name(record.topic_id)
        gone = {one for one in self._settings if one[0] == f"config/topic/{name}"}
        self._settings -= gone
        return not gone

    def _note_setting(self, record: object) -> None:
        if isinstance(record, r.ConfigRecord):
            one = (config_path(ConfigResource(record.resource_type, record.resource_name)), record.name)
            (self._settings.discard if record.value is None else self._settings.add)(one)

    def _fences(self, changes: BatchChanges) -> None:
        """Gives links of just before the cause that a split fence (or shutdown) writes last."""
        gone = {step.broker_id: step for step in changes.brokers if step.was_fenced or step.began_shutdown}
        if not gone:
            return
        for at in range(len(self._links) - 1, -1, -1):
            link = self._links[at]
            if changes.time_ms - link.time_ms > SPLIT_MS:
                return
            told = tuple(
                _split_fence(cause, gone[cause.broker_id].offset)
                if cause.broker_id in gone and cause.rule in LIKE_A_SPLIT_FENCE
                else cause
                for cause in link.causes
            )
            self._links[at] = replace(link, causes=told)

    def _add(self, link: Link) -> None:
        self._links.append(link)
        self._count += 1

    def _now(self) -> dict[str, Any] | None:
        """The target as it stands, as plain data; None if it is not there."""
        entity = self._target.entity
        if self._kind == "quorum":
            return self._quorum or None
        if self._kind == "transaction":
            return {}
        image = self._feed.replayed().image
        found = dict(entities_below(image, Wanted(entity)))
        if self._target.field is not None or (len(found) == 1 and entity in found):
            return found.get(entity)
        return found or None

    def result(self) -> Explanation:
        """Raises InspectError if no record was about the target."""
        if self._visible is not None:
            self._links, self._count = self._visible
            self.limits.place(inside_transaction(self._feed.replayed()))
        now = self._now()
        if not self._links:
            raise InspectError(
                f"no record below offset {self._end} is about {self._target.entity}{self._hint()}"
            )
        value = now if self._target.field is None or now is None else now.get(self._target.field)
        return Explanation(
            target=self._target,
            end_offset=self._end,
            exists=now is not None,
            value=value,
            links=list(self._links),
            dropped=self._count - len(self._links),
            unknown=self._unknown,
            base_offset=self._base_offset,
            limits=self.limits,
        )

    def _hint(self) -> str:
        if self._kind == "broker":
            return f"; brokers in it are {sorted(self._feed.stories) or 'none'}"
        if self._kind != "topic":
            return ""
        names = [topic.name for topic in self._feed.state.topics.freeze().all()]
        wanted = (self._partition_of() or (self._target.entity.partition("/")[2],))[0]
        if wanted in names:
            return f"; topic {wanted} has no such partition"
        close = difflib.get_close_matches(wanted, names, n=1)
        return f"; did you mean topic/{close[0]}?" if close else ""


def _other_names(record: object) -> tuple[str, ...]:
    """Canonical paths of what users and clients have (see `views`), besides those that EntityNamer gives."""
    match record:
        case r.ClientQuotaRecord():
            return (f"quota/{quota_who(record)}",)
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            return (scram_path(record.mechanism, record.name),)
    return ()


def _split_fence(cause: Cause, offset: int) -> Cause:
    text = f"broker {cause.broker_id} was being fenced, its record stands at {offset}"
    return Cause(rule="broker-fenced", text=text, offset=offset, broker_id=cause.broker_id)
