"""The consumer groups of one partition: their members' timers, and what happens when a member leaves.

Owns the groups of the new protocol by id. Does not answer requests of members: `heartbeat` and `classic` do.
"""

from __future__ import annotations

from metaquorum.broker.coordinator.groups.consumer.change import GroupChange
from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState
from metaquorum.broker.coordinator.groups.consumer.migration import downgrade_records
from metaquorum.broker.coordinator.groups.consumer.patterns import Patterns
from metaquorum.broker.coordinator.groups.consumer.replies import consumer_described, consumer_listed
from metaquorum.broker.coordinator.groups.rebalance import Timer
from metaquorum.broker.coordinator.groups.requests import ListGroups
from metaquorum.broker.coordinator.groups.work import Work
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.metadata.access.authorizer import Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.groups import GroupConfig
from metaquorum.metadata.settings.effective import group_setting
from metaquorum.metadata.settings.group_keys import HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from metaquorum.wire.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupMetadataKey,
    ListGroupsResponse,
)
from metaquorum.wire.stored import StoredRecord

_SESSION, _REVOCATION, _JOIN, _SYNC = "consumer session", "revocation", "classic join", "classic sync"
_DOWNGRADE, _PATTERNS = "downgrade", "patterns"
CONSUMER_TIMERS = (_SESSION, _REVOCATION, _JOIN, _SYNC, _DOWNGRADE, _PATTERNS)
"""Of a member: it was silent, has not given up what it must, or, if classic, has not joined again or not
requested its assignment. Of a group: only classic members are left in it. Of all: patterns are looked up."""


class ConsumerGroups:
    """See the module. `image`: the newest metadata."""

    def __init__(self, config: GroupConfig, timers: Deadlines[Timer], authorizer: Authorizer | None) -> None:
        self._config = config
        self._timers = timers
        self._patterns = Patterns(config, authorizer)
        self.image = MetadataImage()
        self.groups: dict[str, ConsumerGroup] = {}

    def replay(self, record: StoredRecord) -> None:
        group_id = record.key.group_id
        if isinstance(record.key, ConsumerGroupMetadataKey) and record.value is None:
            self.groups.pop(group_id, None)
            return
        group = self.groups.get(group_id)
        if group is None and record.value is not None:
            group = self.groups[group_id] = ConsumerGroup(group_id=group_id)
        if group is not None:
            group.replay(record)

    def published(self, image: MetadataImage) -> None:
        self.image = image
        self._patterns.published(image)

    def begin(self, work: Work) -> None:
        """The log was read: members have a session timeout in which to send a heartbeat."""
        for group in self.groups.values():
            for member in group.members.values():
                self.heard(work, group, member, is_new_step=True)
            self.settle(work, group)

    def change(self, work: Work, group_id: str) -> GroupChange:
        """A change of a group, which may be new."""
        group = self.groups.get(group_id)
        draft = ConsumerGroup(group_id=group_id) if group is None else group.draft()
        return GroupChange(work, draft, self.image)

    # ---- leaving members -------------------------------------------------------------------------

    def expel(self, change: GroupChange, member_id: str) -> None:
        """A member leaves, or is removed. When the last member of the new protocol leaves, the group becomes
        a classic one."""
        if change.group.members[member_id].classic is None and self._downgrade(change, member_id):
            return
        change.remove(member_id)
        self.forget(change.group, member_id)
        change.raise_epoch(must=True)

    def settle(self, work: Work, group: ConsumerGroup) -> None:
        """A group that all members of the new protocol have left becomes a classic one, soon."""
        if group.is_all_classic and self._config.group_consumer_migration_policy.downgrades:
            self._timers.arm((_DOWNGRADE, group.group_id, ""), work.now.ms)

    def _downgrade(self, change: GroupChange, leaving: str | None = None) -> bool:
        group = change.group
        rest = [each for each in group.members.values() if each.member_id != leaving]
        if (
            not self._config.group_consumer_migration_policy.downgrades
            or not 0 < len(rest) <= self._config.group_max_size
            or any(each.classic is None for each in rest)
        ):
            return False
        records = downgrade_records(group, leaving, self.image, change.work.now.wall_ms)
        if records is None:
            return False
        for member_id in group.members:
            self.forget(group, member_id)
        for record in records:
            change.put(record)
        return True

    def is_due(self, work: Work, timer: Timer) -> None:
        """A member was silent, or has not done in time what it must: it is removed."""
        name, group_id, member_id = timer
        if name == _PATTERNS:
            self._look_on(work)
        if group_id not in self.groups:
            return
        change = self._draft(work, group_id)
        if name == _DOWNGRADE:
            self._downgrade(change)
        elif member_id in change.group.members:
            self.expel(change, member_id)

    # ---- timers ----------------------------------------------------------------------------------

    def heard(self, work: Work, group: ConsumerGroup, member: ConsumerMember, *, is_new_step: bool) -> None:
        """A member sent a request. `is_new_step`: what it must do now began with this one."""
        at = (group.group_id, member.member_id)
        timeout_ms = group_setting(self.image, group.group_id, SESSION_TIMEOUT)
        if timeout_ms is None:
            timeout_ms = self._config.group_consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            self._timers.disarm((_JOIN, *at))
            self._timers.disarm((_SYNC, *at))
        self._timers.arm((_SESSION, *at), work.now.ms + timeout_ms)
        if member.state is not MemberState.UNREVOKED or member.classic is not None:
            self._timers.disarm((_REVOCATION, *at))
        elif is_new_step:
            self._timers.arm((_REVOCATION, *at), work.now.ms + max(0, member.rebalance_timeout_ms))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own_ms = group_setting(self.image, group_id, HEARTBEAT_INTERVAL)
        return self._config.group_consumer_heartbeat_interval_ms if own_ms is None else own_ms

    def look_up(self, work: Work, group: ConsumerGroup, caller: Caller) -> None:
        """A member sent a request: the topics that match the group's patterns may have changed."""
        if self._patterns.heard(group, caller, work.now.wall_ms):
            self._timers.arm((_PATTERNS, "", ""), work.now.ms)

    def _look_on(self, work: Work) -> None:
        group_id, found = self._patterns.go_on(work.now.wall_ms)
        if self._patterns.is_looking:
            self._timers.arm((_PATTERNS, "", ""), work.now.ms)
        if found and group_id in self.groups:
            self._draft(work, group_id).resolved(found)

    def _draft(self, work: Work, group_id: str) -> GroupChange:
        draft: GroupChange = work.drafts.setdefault(group_id, self.change(work, group_id))
        return draft

    def must_join(self, work: Work, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member is asked to join again."""
        timer = (_JOIN, group.group_id, member.member_id)
        if timer not in self._timers:
            self._timers.arm(timer, work.now.ms + member.rebalance_timeout_ms)

    def must_sync(self, work: Work, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A classic member has joined, and must now request its assignment."""
        at = (group.group_id, member.member_id)
        self._timers.disarm((_JOIN, *at))
        self._timers.arm((_SYNC, *at), work.now.ms + member.rebalance_timeout_ms)

    def has_synced(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._timers.disarm((_SYNC, group.group_id, member.member_id))

    def forget(self, group: ConsumerGroup, member_id: str) -> None:
        for name in CONSUMER_TIMERS:
            self._timers.disarm((name, group.group_id, member_id))

    # ---- operators -------------------------------------------------------------------------------

    def listed(self, asked: ListGroups) -> list[ListGroupsResponse.ListedGroup]:
        if asked.types and "consumer" not in asked.types:
            return []
        found = self.groups.values()
        return [
            consumer_listed(each)
            for each in found
            if not asked.states or each.state_name.lower() in asked.states
        ]

    def described(self, group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
        return consumer_described(group_id, self.groups.get(group_id), self.image)
