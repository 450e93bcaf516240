"""Which replicas a broker holds and which of them run: compares the image with what is local, step by step.

`reconcile.decide` gives the next step for one partition; here it is carried out, a bounded number at a time.
A delta between images only says where to look.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

from metaquorum.broker.replica.controller_requests import Assignments
from metaquorum.broker.replica.disk_work import (
    AbandonDirectory,
    FoundDirectory,
    RemoveReplica,
    ReplicaCreated,
    ReplicaLog,
    ReplicaPromoted,
    ReplicaRemoved,
)
from metaquorum.broker.replica.events import DataEffect
from metaquorum.broker.replica.fetchers import Fetchers
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.partition.values import Brokers
from metaquorum.broker.replica.placement.directories import Copies, Copy, Directories, Room, Stage
from metaquorum.broker.replica.placement.moves import Moves
from metaquorum.broker.replica.placement.reconcile import (
    CANNOT_BE_REPORTED,
    Assign,
    Create,
    Damaged,
    DamagedCopies,
    Offline,
    Remove,
    Run,
    Wait,
    decide,
    found_again,
)
from metaquorum.broker.replica.topic_settings import SettingsOfTopics, TopicSettings
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import (
    LOST,
    MIGRATING,
    NO_LEADER,
    UNASSIGNED,
    MetadataImage,
    PartitionInfo,
    partition_changes,
)
from metaquorum.metadata.image.directories import NOT_FOUND
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.data import PartitionKey
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.raft.events import Stop

RECONCILED_PER_STEP_MAX = 500
"""Partitions looked at before other events get their turn."""

_UNCOMMITTED = frozenset({UNASSIGNED, MIGRATING, LOST})


class Placement:
    """`running`: partitions that lead or follow; `offline`: why a replica of this broker cannot be served.
    `touched`: a partition has a new role or new settings; `partition_changed`: one began, ended or was
    replaced."""

    def __init__(
        self,
        config: ReplicaConfig,
        opened: Sequence[FoundDirectory],
        *,
        assignments: Assignments,
        fetchers: Fetchers,
        brokers: Brokers,
        touched: Callable[[Partition], None],
        partition_changed: Callable[[PartitionKey], None],
        out: Outbox[DataEffect],
    ) -> None:
        self._config = config
        self._me = config.broker_id
        self._assignments = assignments
        self._fetchers = fetchers
        self._brokers = brokers
        self._touched = touched
        self._partition_changed = partition_changed
        self._out = out
        self.next_token = count(1).__next__
        self.directories = Directories(opened)
        self.image: MetadataImage | None = None
        self.running: dict[PartitionKey, Partition] = {}
        self.offline: dict[PartitionKey, str] = {}
        self.copies = Copies(self.directories, opened)
        self.damaged = DamagedCopies(opened)
        self._room = Room(self.directories, self.copies)
        self._starved: dict[PartitionKey, None] = {}
        self._nameless: dict[PartitionKey, None] = {}
        self.pending = PendingChanges(self._me, assignments, self.copies, self.damaged, self.offline)
        self._settings = SettingsOfTopics(config)
        self.moves = Moves(
            config,
            self.directories,
            self.copies,
            self.damaged,
            self.running,
            assignments=assignments,
            next_token=self.next_token,
            look=self.pending.add,
            out=out,
        )

    def __len__(self) -> int:
        """Partitions still to look at."""
        return len(self.pending)

    # ---- the image ---------------------------------------------------------------------------

    def publish(self, image: MetadataImage, previous: MetadataImage, *, new_epoch: bool, now_ms: int) -> None:
        """Notes what to look at. `new_epoch`: the registration changed, everything is looked at."""
        first = self.image is None
        self.image = image
        self.moves.limit(image)
        self.pending.publish(image, previous, first=first, new_epoch=new_epoch)

    def change_settings(self, image: MetadataImage, previous: MetadataImage, *, now_ms: int) -> None:
        """Passes changed topic settings to their partitions."""
        changed = self._settings.changed(image, previous)
        for key in list(self.running) if changed is None else changed:
            partition = self.running.get(key)
            if partition is not None:
                partition.change_settings(self.settings_of(partition.topic), now_ms=now_ms)
                self._touched(partition)

    def settings_of(self, topic: str) -> TopicSettings:
        return self._settings.of(topic, self.image or MetadataImage())

    # ---- step by step ------------------------------------------------------------------------

    def step(self, now_ms: int, wall_ms: int) -> None:
        """Looks at some of the pending partitions."""
        if self.pending.keys and self.image is not None:
            self._room.look_again()
            for _ in range(RECONCILED_PER_STEP_MAX):
                if not self.pending.keys:
                    break
                self._reconcile(self.image, self.pending.take(), now_ms)
        if self.moves.ready:
            self.moves.settle(now_ms=now_ms, wall_ms=wall_ms)

    def _is_found_again(self, info: PartitionInfo | None, copy: Copy) -> bool:
        """The log says that the replica was not found, and here it is."""
        return info is not None and info.directory_of(self._me) == NOT_FOUND and copy.had_data

    def _reconcile(self, image: MetadataImage, key: PartitionKey, now_ms: int) -> None:
        info = image.topics.partition(*key)
        copies = self.copies.of(key)
        usable = self.copies.replicas_of(key)
        can_assign = image.features.metadata_version >= LEVEL_DIRECTORIES
        decision = decide(
            info,
            broker_id=self._me,
            copies=[copy.directory_id for copy in usable],
            directories=self.directories,
            damaged=list(self.damaged.of(key)),
            future=self.moves.target(key, None if info is None else info.directory_of(self._me)),
            is_new=self.pending.is_new(key),
            owes_lost=self._assignments.owes_lost(key),
            can_assign=can_assign,
        )
        if isinstance(decision, Assign) and self._is_found_again(info, copies[decision.directory_id]):
            decision = found_again(decision.directory_id)
        if not isinstance(decision, Offline | Damaged):
            self.offline.pop(key, None)
        match decision:
            case Run(directory_id=directory_id, leaves=leaves):
                self._run(copies[directory_id], info, now_ms)
                self.moves.runs(copies[directory_id], leaves=leaves or not can_assign)
            case Assign(directory_id=directory_id):
                self._assign(copies[directory_id], info, now_ms)
            case Create():
                self._create(image, key, decision, copies)
            case Remove(reason=reason):
                self._remove_all(key, usable, reason)
            case Offline(reason=reason, report=report):
                self._set_offline(key, reason)
                if report is not None:
                    self._assignments.want(key, report)
            case Damaged():
                self._set_damaged(image, key, decision)
            case Wait():
                self._stop(key, ErrorCode.KAFKA_STORAGE_ERROR, decision.reason)

    def _run(self, copy: Copy, info: PartitionInfo | None, now_ms: int, *, settled: bool = True) -> None:
        if settled:
            self._assignments.settle(copy.key)
            self.pending.settle(copy.key)
        if copy.stage is not Stage.OPEN or copy.log is None or info is None:
            return
        partition = copy.partition
        if partition is None:
            partition = copy.partition = Partition(
                self._config,
                key=copy.key,
                topic=copy.topic,
                directory_id=copy.directory_id,
                incarnation=copy.incarnation,
                log=copy.log,
                settings=self.settings_of(copy.topic),
                brokers=self._brokers,
                out=self._out,
            )
            if copy.was_found:
                partition.was_found()
        running = self.running.get(copy.key)
        self.running[copy.key] = partition
        if info.leader == self._me:
            self._fetchers.leave(copy.key)
            partition.lead(info, now_ms=now_ms)
        else:
            partition.follow(info, now_ms=now_ms)
            if info.leader == NO_LEADER:
                self._fetchers.leave(copy.key)
            else:
                self._fetchers.follow(partition, info.leader)
        self._touched(partition)
        if running is not partition:
            self._partition_changed(copy.key)
        if settled:
            left_over = "the metadata log assigns the replica to another directory"
            for each in list(self.copies.of(copy.key).values()):
                if each is not copy and not each.future:
                    self._remove(each, left_over)
            self._remove_damaged(copy.key, left_over)

    def _assign(self, copy: Copy, info: PartitionInfo | None, now_ms: int) -> None:
        """It neither leads nor follows before the image shows its directory (S3.6); a replica that served
        before directories had ids continues."""
        if copy.stage is not Stage.OPEN or info is None:
            return
        self._assignments.want(copy.key, copy.directory_id)
        if copy.was_found and info.directory_of(self._me) == MIGRATING:
            self._run(copy, info, now_ms, settled=False)
        else:
            text = "its directory assignment is not committed yet: try again"
            self._stop(copy.key, ErrorCode.NOT_LEADER_OR_FOLLOWER, text)

    def _create(
        self, image: MetadataImage, key: PartitionKey, decision: Create, copies: dict[bytes, Copy]
    ) -> None:
        topic = image.topics.topic(key[0])
        self.moves.cancel(key, "the original replica is gone")
        if copies or topic is None:
            return  # one is being removed: looked at again when it is gone
        size, directory_id = 0, decision.directory_id or self.moves.take_preferred(topic.name, key[1])
        if decision.replaces:
            size = max(
                self._room.usual_size(),
                0 if directory_id is None else self.damaged.size_of(key, directory_id),
            )
        if directory_id is None or decision.replaces:
            directory_id = self._room.place_for(size, directory_id)
        if directory_id is None:
            self._starve(key, topic.name, size)
            return
        if decision.replaces:
            self._room.promise(key, directory_id, size)
        self._starved.pop(key, None)
        if self._shares_a_name(key, topic.name, directory_id):
            return
        # What is in the way there is kept under another name.
        self.damaged.forget(key, directory_id)
        namesake = self.copies.named(directory_id, topic.name, key[1])
        if namesake is not None:
            self._remove(namesake, "its topic was deleted, and a new topic has its name")
        self.moves.create(key, topic.name, directory_id, self.settings_of(topic.name).log)

    def _shares_a_name(self, key: PartitionKey, topic: str, directory_id: bytes) -> bool:
        """Whether the replica's directory would be that of another topic, because the file system ignores
        case. The first topic keeps it; the second has no replica until the first is gone."""
        text = self.moves.name_taken(directory_id, topic, key[1])
        if text is None:
            self._nameless.pop(key, None)
            return False
        if self.offline.get(key) != text:
            self._out.append(Warn(message=f"replica {topic}-{key[1]} is not created: {text}"))
        self._set_offline(key, text)
        self._nameless[key] = None
        return True

    def _starve(self, key: PartitionKey, topic: str, size: int) -> None:
        text = (
            f"no log directory has room for another {size} bytes, the usual size of a replica: free some "
            "space, or add a directory to log.dirs"
        )
        self._set_offline(key, text)
        if not self._starved:
            self._out.append(Warn(message=f"replica {topic}-{key[1]} is not recreated: {text}"))
        self._starved[key] = None

    def _set_offline(self, key: PartitionKey, reason: str) -> None:
        self._stop(key, ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.offline[key] = reason
        # The report is superseded: the heartbeat reports the failure of a committed directory.
        self._assignments.settle(key)

    def unreported(self) -> str | None:
        """Why the broker has to stop, in one line: below metadata.version 3.7-IV2 no record can take the
        replicas of a bad directory out of their ISRs, but fencing the broker does (KIP-858). Else None."""
        image, bad = self.image, self.directories.bad()
        if image is None or image.features.metadata_version >= LEVEL_DIRECTORIES or not bad:
            return None
        known = image.brokers.get(self._me)
        if known is not None and known.directories:
            return None
        lines = ", ".join(f"{directory.path} ({directory.problem})" for directory in bad)
        return (
            f"stopped: a log directory is offline: {lines}; before metadata.version 3.7-IV2 the log cannot "
            "say so of one directory, so the whole broker is fenced: repair it or remove it from log.dirs, "
            "and restart; or upgrade first, with metaquorum features upgrade metadata.version=3.7"
        )

    def _set_damaged(self, image: MetadataImage, key: PartitionKey, decision: Damaged) -> None:
        topic = image.topics.topic(key[0])
        text = self.moves.problem_of(key, decision.directory_id)
        if text is None:
            text = self.damaged.text_of(key, "" if topic is None else topic.name, decision)
        if image.features.metadata_version < LEVEL_DIRECTORIES:
            self._out.append(Stop(reason=f"stopped: {text}; {CANNOT_BE_REPORTED}", failed=True))
            return
        self._stop(key, ErrorCode.KAFKA_STORAGE_ERROR, text)
        self.offline[key] = text
        if decision.report is None:
            self._assignments.settle(key)
        else:
            self._assignments.want(key, decision.report)
        if self.damaged.is_news(key, text):
            self._out.append(Warn(message=text))

    def _stop(self, key: PartitionKey, error: ErrorCode, message: str) -> None:
        """It no longer leads or follows."""
        partition = self.running.pop(key, None)
        if partition is None:
            return
        self._fetchers.leave(key)
        partition.idle(error, message)
        self._partition_changed(key)

    def _remove_all(self, key: PartitionKey, usable: list[Copy], reason: str) -> None:
        topics = (self.image or MetadataImage()).topics
        gone = topics.topic(key[0]) is None
        error = ErrorCode.UNKNOWN_TOPIC_ID if gone else ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._stop(key, error, f"{reason}: refresh the metadata")
        self._assignments.settle(key)
        self.pending.settle(key)
        self._starved.pop(key, None)
        self._nameless.pop(key, None)
        for copy in usable:
            self._remove(copy, reason)
        self.moves.cancel(key, reason)
        self._remove_damaged(key, reason)

    def _remove_damaged(self, key: PartitionKey, reason: str) -> None:
        for place in self.damaged.take(key):
            self._out.append(RemoveReplica(directory_id=place, key=key, incarnation=0, reason=reason))
            self.pending.add_all(self._nameless)

    def _remove(self, copy: Copy, reason: str) -> None:
        if copy.stage is Stage.REMOVING:
            return
        if self.running.get(copy.key) is copy.partition and copy.partition is not None:
            self._stop(copy.key, ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
        self.moves.remove(copy, reason)
        self.pending.add_all(self._nameless)

    # ---- what the disks did ------------------------------------------------------------------

    def replica_changed(
        self, event: ReplicaCreated | ReplicaPromoted | ReplicaRemoved, *, now_ms: int
    ) -> None:
        """A copy was created, promoted or removed."""
        if isinstance(event, ReplicaCreated):
            self._created(event)
        elif isinstance(event, ReplicaRemoved):
            self._removed(event)
        elif self.moves.promoted(event, now_ms=now_ms):
            self._fetchers.leave(event.key)

    def _created(self, event: ReplicaCreated) -> None:
        copy = self.copies.at(event.directory_id, event.key)
        if copy is not None and copy.incarnation == event.incarnation and copy.stage is Stage.CREATING:
            copy.stage = Stage.OPEN
            copy.log = ReplicaLog()
            self.pending.add(event.key)

    def _removed(self, event: ReplicaRemoved) -> None:
        copy = self.copies.at(event.directory_id, event.key)
        if copy is not None and copy.stage is Stage.REMOVING:
            self.copies.drop(copy)
            self.pending.add(event.key)

    def loss_acknowledged(self, key: PartitionKey) -> None:
        """The controller knows that the copy is lost: another may be made (S3.6)."""
        self.pending.add(key)

    def directory_failed(self, directory_id: bytes, reason: str, *, now_ms: int) -> bool:
        """Its replicas, and no others, go offline (S3.1, S3.35). Returns False if it was already bad."""
        if not self.directories.fail(directory_id, reason):
            return False
        self._out.append(AbandonDirectory(directory_id=directory_id))
        self._fetchers.directory_failed(directory_id)
        text = f"its log directory failed: {reason}"
        for copy in self.copies.in_directory(directory_id):
            self.copies.drop(copy)
            runs = copy.partition is not None and self.running.get(copy.key) is copy.partition
            if runs or (copy.future and self._place_of(copy.key) == directory_id):
                self._stop(copy.key, ErrorCode.KAFKA_STORAGE_ERROR, text)
            if self._was_uncommitted(copy):
                self._assignments.lose(copy.key, now_ms)
            elif self._place_of(copy.key) == directory_id:
                self.offline[copy.key] = text
            self.pending.add(copy.key)
        self.moves.directory_failed(directory_id)
        self.pending.add_all(self.damaged.leave(directory_id))
        self.pending.add_all(self._starved)
        return True

    def measured(self, directory_id: bytes, total_bytes: int, usable_bytes: int) -> None:
        """A directory's space was measured again: replicas that had no room may be made now."""
        self._room.measured(directory_id, total_bytes, usable_bytes)
        self.pending.add_all(self._starved)

    def _was_uncommitted(self, copy: Copy) -> bool:
        knows = self.image is not None and self.image.features.metadata_version >= LEVEL_DIRECTORIES
        counts = copy.stage is not Stage.REMOVING and not copy.future
        return knows and counts and self._place_of(copy.key) in _UNCOMMITTED

    def _place_of(self, key: PartitionKey) -> bytes | None:
        """Where the image places this broker's replica; None if it has none, or there is no image."""
        info = None if self.image is None else self.image.topics.partition(*key)
        return None if info is None else info.directory_of(self._me)

    # ---- parts -------------------------------------------------------------------------------

    def partition_at(self, directory_id: bytes, key: PartitionKey) -> Partition | None:
        """The partition whose log in `directory_id` a report is about; None if it is gone, or never ran."""
        copy = self.copies.at(directory_id, key)
        return None if copy is None or copy.stage is Stage.REMOVING else copy.partition


# Which of a broker's partitions have to be looked at, and which of them are new here.


class PendingChanges:
    """`copies`, `damaged` and `offline` are the placement's: what is known here of replicas."""

    def __init__(
        self,
        broker_id: int,
        assignments: Assignments,
        copies: Copies,
        damaged: DamagedCopies,
        offline: Mapping[PartitionKey, str],
    ) -> None:
        self._me = broker_id
        self._assignments = assignments
        self._copies = copies
        self._damaged = damaged
        self._offline = offline
        self.keys: OrderedDict[PartitionKey, None] = OrderedDict()
        self._new: set[PartitionKey] = set()

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: PartitionKey) -> None:
        self.keys[key] = None

    def add_all(self, keys: Iterable[PartitionKey]) -> None:
        self.keys.update(dict.fromkeys(keys))

    def take(self) -> PartitionKey:
        """Removes and returns the first one."""
        return self.keys.popitem(last=False)[0]

    def is_new(self, key: PartitionKey) -> bool:
        """The log began to place a replica here while this process was running (S3.5)."""
        return key in self._new

    def settle(self, key: PartitionKey) -> None:
        """A new replica has its copy, or is no longer wanted."""
        self._new.discard(key)

    def publish(self, image: MetadataImage, previous: MetadataImage, *, first: bool, new_epoch: bool) -> None:
        """The image moved on. `new_epoch`: the registration changed, everything is looked at."""
        related = previous.topics.columns.directories is image.topics.columns.directories
        if first or new_epoch or not related:
            self._add_all(image, previous, first=first)
        elif previous.topics is not image.topics:
            changes = partition_changes(previous.topics, image.topics)
            for key in (*changes.added, *changes.changed):
                info = image.topics.partition(*key)
                if info is not None and self._me in info.replicas:
                    self._assignments.doubt(key)
                    self._note_new(key, previous)
                    self.add(key)
                elif key in self._copies or key in self._offline:
                    self.add(key)
            for key in changes.removed:
                if key in self._copies or key in self._offline:
                    self.add(key)
        if image.features.metadata_version != previous.features.metadata_version and not first:
            self.add_all((*self._copies.keys(), *self._offline.keys()))

    def _add_all(self, image: MetadataImage, previous: MetadataImage, *, first: bool) -> None:
        mine = image.topics.keys_at(image.topics.rows_with_replica(self._me))
        for key in mine:
            self._assignments.doubt(key)
            if not first:
                self._note_new(key, previous)
        for keys in (mine, self._copies.keys(), self._damaged.keys(), self._offline):
            self.add_all(keys)

    def _note_new(self, key: PartitionKey, previous: MetadataImage) -> None:
        held = any(each.stage is not Stage.REMOVING for each in self._copies.of(key).values())
        if held or key in self._offline:
            return
        before = previous.topics.partition(*key)
        if before is None or self._me not in before.replicas:
            self._new.add(key)
