"""The groups of one partition of `__consumer_offsets`: a coordinator's state machine.

Source: KIP-62, KIP-211, KIP-345, KIP-394, KIP-496.
"""

from __future__ import annotations

import random
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import (
    CONSUMER_RECORDS,
    ConsumerGroup,
    group_tombstones,
)
from metaquorum.broker.coordinator.groups.consumer.groups import CONSUMER_TIMERS, ConsumerGroups
from metaquorum.broker.coordinator.groups.consumer.members import (
    ClassicMembers,
    ConsumerHeartbeats,
    heartbeat_refused,
    too_many_groups,
)
from metaquorum.broker.coordinator.groups.consumer.migration import upgrade_records
from metaquorum.broker.coordinator.groups.group import (
    DeleteGroup,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    Group,
    ListGroups,
    Phase,
    Work,
    group_of,
    group_tombstone,
    offset_tombstone,
)
from metaquorum.broker.coordinator.groups.offsets import Commits, OffsetTable
from metaquorum.broker.coordinator.groups.rebalance import (
    ClassicRequests,
    Rebalances,
    Timer,
    described,
    listed,
    member_of,
    not_joined,
    not_synced,
)
from metaquorum.broker.coordinator.shard import RETRY_MS
from metaquorum.broker.coordinator.state import (
    NOTHING,
    Ask,
    BatchOrigin,
    Decision,
    Now,
    Reply,
    coordinator_error,
)
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.wire import messages
from metaquorum.wire.stored import StoredRecord

CLEANED_MAX = 1_000
"""Records of expired offsets and groups in one batch."""
DUE_MAX = 100
"""Timers that are handled at once."""

_READS = (FetchOffsets, DescribeGroup, DescribeConsumerGroup, ListGroups, messages.HeartbeatRequest)
_CLEANING: Timer = ("cleaning", "", "")
_DELETED_TOPICS: Timer = ("deleted topics", "", "")


class GroupState:
    """See the module and `CoordinatorState`. `authorizer` None: every client may describe every topic."""

    def __init__(self, config: GroupConfig, rng: random.Random, authorizer: Authorizer | None = None) -> None:
        self._config = config
        self._timers: Deadlines[Timer] = Deadlines()
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetTable()
        self._rebalances = Rebalances(config, self._timers, rng)
        self._commits = Commits(config, self.offsets, self._rebalances, self._is_full)
        self.consumers = ConsumerGroups(config, self._timers, authorizer)
        self._heartbeats = ConsumerHeartbeats(config, self.consumers, rng)
        self._classic = ClassicRequests(config, self._rebalances)
        self._mixed = ClassicMembers(config, self.consumers, rng)
        self._is_loaded = False
        self._deleted_topics: set[str] = set()

    # ---- records ---------------------------------------------------------------------------------

    def replay(self, record: StoredRecord, origin: BatchOrigin) -> None:
        key = record.key
        if isinstance(key, messages.OffsetCommitKey):
            self.offsets.replay(key, record.value, origin)
            if self._is_loaded and record.value is not None and key.group not in self.consumers.groups:
                self._group_or_new(key.group)
        elif isinstance(key, CONSUMER_RECORDS):
            self.consumers.replay(record)
        elif isinstance(key, messages.GroupMetadataKey):
            current = self.groups.get(key.group)
            if record.value is None:
                if current is not None:
                    self._remove(current)
            elif self._is_loaded and current is not None:
                self._rebalances.stored(current, record.value)
            else:
                group = self.groups[key.group] = group_of(key.group, record.value)
                if group.phase is Phase.PREPARING:
                    self._timers.arm(("rejoin", key.group, ""), 0)

    def replay_marker(self, origin: BatchOrigin, *, committed: bool) -> None:
        for group_id in self.offsets.marker(origin.producer_id, committed=committed):
            if group_id not in self.consumers.groups:
                self._group_or_new(group_id)

    def loaded(self, image: MetadataImage, now: Now) -> Decision:
        self._is_loaded = True
        work = Work(now)
        self.consumers.published(image)
        for group_id in self.offsets.groups:
            if group_id not in self.consumers.groups:
                self._group_or_new(group_id)
        self.consumers.begin(work)
        for group in self.groups.values():
            self._rebalances.begin(work, group)
        self._timers.arm(_CLEANING, now.ms + self._config.offsets_retention_check_interval_ms)
        return work.decision()

    def _group_or_new(self, group_id: str) -> Group:
        return self.groups.setdefault(group_id, Group(group_id=group_id))

    def _is_full(self) -> bool:
        """Whether no other group may begin here."""
        return len(self.groups) + len(self.consumers.groups) >= self._config.group_coordinator_max_groups

    def _remove(self, group: Group) -> None:
        self._rebalances.end(group)
        self.groups.pop(group.group_id, None)

    # ---- requests --------------------------------------------------------------------------------

    def only_reads(self, body: Any) -> bool:
        return isinstance(body, _READS)

    def decide(self, ask: Ask, now: Now) -> Decision:
        work = Work(now)
        match ask.body:
            case messages.HeartbeatRequest() as body:
                work.reply(ask.key, messages.HeartbeatResponse(error_code=self._heartbeat(work, body)))
                return work.decision(at_once=True)
            case messages.ConsumerGroupHeartbeatRequest():
                self._consumer_heartbeat(work, ask)
            case messages.JoinGroupRequest():
                self._join(work, ask)
            case messages.SyncGroupRequest():
                self._sync(work, ask)
            case messages.LeaveGroupRequest() as body:
                self._leave(work, ask.key, body)
            case messages.OffsetCommitRequest() as body:
                self._commits.commit(work, ask.key, self._any(body.group_id), body)
            case messages.OffsetDeleteRequest() as body:
                self._commits.delete(work, ask.key, self._any(body.group_id), body)
            case _:
                self._answer_query(work, ask)
        return work.decision()

    def _answer_query(self, work: Work, ask: Ask) -> None:
        """Answers operators' queries and queries for committed offsets."""
        match ask.body:
            case messages.TxnOffsetCommitRequest() as body:
                self._commits.commit_in_transaction(work, ask.key, self._any(body.group_id), body)
            case FetchOffsets() as body:
                work.reply(ask.key, self.offsets.fetch(body))
            case DescribeGroup(group_id=group_id):
                work.reply(ask.key, described(group_id, self.groups.get(group_id)))
            case DescribeConsumerGroup(group_id=group_id):
                work.reply(ask.key, self.consumers.described(group_id))
            case ListGroups() as body:
                found = (group for group in self.groups.values() if _is_asked(group, body))
                work.reply(ask.key, (*(listed(group) for group in found), *self.consumers.listed(body)))
            case DeleteGroup(group_id=group_id):
                work.reply(ask.key, self._delete(work, group_id))
            case _:
                raise TypeError(f"a group coordinator has no answer to {type(ask.body).__name__}")

    def _any(self, group_id: str) -> Group | ConsumerGroup | None:
        return self.groups.get(group_id) or self.consumers.groups.get(group_id)

    def _consumer_heartbeat(self, work: Work, ask: Ask) -> None:
        """A classic group becomes one of the new protocol, with its members if that is allowed."""
        body: messages.ConsumerGroupHeartbeatRequest = ask.body
        classic = self.groups.get(body.group_id)
        first: tuple[StoredRecord, ...] = ()
        if classic is not None and classic.members:
            problem = self._upgrade_problem(classic)
            upgrade = upgrade_records(classic, self.consumers.image)
            if problem is None and upgrade is None:
                problem = "has members other than consumers, or their metadata cannot be read"
            if problem is not None or upgrade is None:
                text = f"group {body.group_id} has members of the classic protocol, and {problem}"
                work.reply(ask.key, heartbeat_refused(ErrorCode.GROUP_ID_NOT_FOUND, text))
                return
            first = upgrade
        elif classic is not None and classic.generation > 0:
            first = (group_tombstone(body.group_id),)
        if self._any(body.group_id) is None and body.member_epoch == 0 and self._is_full():
            work.reply(ask.key, too_many_groups())
        elif self._heartbeats.handle(work, ask, first) and classic is not None:
            self._replaced(work, classic, ask)

    def _upgrade_problem(self, group: Group) -> str | None:
        if not self._config.group_consumer_migration_policy.upgrades:
            return "group.consumer.migration.policy does not allow it to change its protocol: stop them first"
        if len(group.members) > self._config.group_consumer_max_size:
            return "they exceed group.consumer.max.size"
        return None

    def _replaced(self, work: Work, classic: Group, ask: Ask) -> None:
        """A classic group became one of the new protocol: members that wait in it must join again."""
        if not classic.members and classic.generation == 0:
            self._remove(classic)
        for member in classic.members.values():
            work.reply(member.join_key, not_joined(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
            work.reply(member.sync_key, not_synced(ErrorCode.REBALANCE_IN_PROGRESS))

        def refused(again: Work, error: ErrorCode) -> None:
            text = "the group coordinator could not store the change: try again"
            again.reply(ask.key, ApiError(coordinator_error(error), text))

        work.if_refused(refused)

    def _join(self, work: Work, ask: Ask) -> None:
        body: messages.JoinGroupRequest = ask.body
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= body.session_timeout_ms <= high:
            work.reply(ask.key, not_joined(body.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
            return
        consumers = self.consumers.groups.get(body.group_id)
        if consumers is not None and consumers.members:
            self._mixed.join(work, ask, member_of(ask))
            return
        group = self.groups.get(body.group_id)
        if group is None and body.member_id:
            work.reply(ask.key, not_joined(body.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if group is None and consumers is None and self._is_full():
            work.reply(ask.key, not_joined("", ErrorCode.GROUP_MAX_SIZE_REACHED))
            return
        if consumers is not None:
            work.records += group_tombstones(consumers)
        group = self._group_or_new(body.group_id) if group is None else group
        self._classic.join(work, ask, group, member_of(ask))

    def _sync(self, work: Work, ask: Ask) -> None:
        body: messages.SyncGroupRequest = ask.body
        group = self.groups.get(body.group_id)
        if body.group_id in self.consumers.groups:
            self._mixed.sync(work, ask.key, body)
        elif group is None:
            work.reply(ask.key, not_synced(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._classic.sync(work, ask.key, group, body)

    def _heartbeat(self, work: Work, body: messages.HeartbeatRequest) -> ErrorCode:
        if body.group_id in self.consumers.groups:
            return self._mixed.heartbeat(work, body)
        group = self.groups.get(body.group_id)
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._classic.heartbeat(work, group, body)

    def _leave(self, work: Work, key: object, body: messages.LeaveGroupRequest) -> None:
        if body.group_id in self.consumers.groups:
            codes = self._mixed.leave(work, body)
        else:
            group = self.groups.get(body.group_id)
            codes = tuple(
                ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._classic.leave(work, group, each)
                for each in body.members
            )
        kinds = messages.LeaveGroupResponse.MemberResponse
        results = tuple(
            kinds(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code)
            for each, code in zip(body.members, codes, strict=True)
        )
        work.reply(key, messages.LeaveGroupResponse(members=results))

    def _delete(self, work: Work, group_id: str) -> ErrorCode:
        group = self.groups.get(group_id)
        consumers = self.consumers.groups.get(group_id)
        if group is None and consumers is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if any(each is not None and each.phase is not Phase.EMPTY for each in (group, consumers)):
            return ErrorCode.NON_EMPTY_GROUP
        for at in self.offsets.known_of(group_id):
            work.store(offset_tombstone(group_id, at))
        if group is not None:
            self._bury(work, group)
        if consumers is not None:
            work.records += group_tombstones(consumers)
        return ErrorCode.NONE

    def _bury(self, work: Work, group: Group) -> None:
        """A group that only stored offsets has no record."""
        if group.generation > 0:
            work.store(group_tombstone(group.group_id))
        else:
            self._remove(group)

    # ---- time ------------------------------------------------------------------------------------

    def image_moved(self, image: MetadataImage, previous: MetadataImage, now: Now) -> Decision:
        self.consumers.published(image)
        if image.topics is not previous.topics:
            for name in self.offsets.topics:
                before, after = previous.topics.topic_named(name), image.topics.topic_named(name)
                if before is not None and (after is None or after.topic_id != before.topic_id):
                    self._deleted_topics.add(name)
                    self._timers.arm(_DELETED_TOPICS, now.ms)
        return NOTHING

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    def tick(self, now: Now) -> Decision:
        work, due = Work(now), self._timers.take_due(now.ms, DUE_MAX)
        for timer in due:
            name, group_id, member_id = timer
            group = self.groups.get(group_id)
            if timer == _CLEANING:
                self._clean(work)
            elif timer == _DELETED_TOPICS:
                self._forget_topics(work)
            elif name in CONSUMER_TIMERS:
                self.consumers.is_due(work, timer)
            elif group is None:
                continue
            elif name == "join":
                self._rebalances.join_is_due(work, group)
            elif name == "rejoin":
                self._rebalances.rejoin(work, group)
            elif name == "sync":
                self._rebalances.sync_is_due(work, group)
            elif name == "pending":
                self._rebalances.pending_is_due(work, group, member_id)
            else:
                self._rebalances.session_is_due(work, group, member_id)
        if work.records:
            replies = work.replies
            work.if_refused(lambda again, error: self._due_again(again, error, due, replies))
        return work.decision()

    def _due_again(self, work: Work, error: ErrorCode, due: list[Timer], replies: tuple[Reply, ...]) -> None:
        """The log refused what was due: what only records would have changed becomes due again."""
        for timer in due:
            if timer[0] in CONSUMER_TIMERS or timer in (_CLEANING, _DELETED_TOPICS):
                self._timers.arm(timer, work.now.ms + RETRY_MS)
        text = "the group coordinator could not store the change: try again"
        for reply in replies:
            work.reply(reply.key, ApiError(coordinator_error(error), text))

    def _clean(self, work: Work) -> None:
        """Removes expired offsets, and groups without members that have none left."""
        next_ms = work.now.ms + self._config.offsets_retention_check_interval_ms
        found: list[Group | ConsumerGroup] = [*self.groups.values(), *self.consumers.groups.values()]
        for group in found:
            if len(work.records) >= CLEANED_MAX:
                next_ms = work.now.ms
                break
            expired = self.offsets.expired(group, work.now.wall_ms, self._config.offsets_retention_ms)
            for at in expired:
                work.store(offset_tombstone(group.group_id, at))
            all_expired = len(expired) == len(self.offsets.of(group.group_id))
            if group.phase is not Phase.EMPTY or not all_expired or self.offsets.is_held(group.group_id):
                continue
            if isinstance(group, ConsumerGroup):
                work.records += group_tombstones(group)
            elif not group.pending:
                self._bury(work, group)
        self._timers.arm(_CLEANING, next_ms)

    def _forget_topics(self, work: Work) -> None:
        """Removes offsets of deleted topics, so that a new topic of the same name starts without them."""
        for group_id in self.offsets.groups:
            for at in self.offsets.known_of(group_id):
                if at[0] in self._deleted_topics:
                    work.store(offset_tombstone(group_id, at))
        names, self._deleted_topics = self._deleted_topics, set()
        work.if_refused(lambda again, error: self._deleted_topics.update(names))


def _is_asked(group: Group, asked: ListGroups) -> bool:
    return (not asked.states or group.phase.value.lower() in asked.states) and (
        not asked.types or "classic" in asked.types
    )
