"""Members of classic groups: joining, synchronizing, leaving, and the effects of their silence.

Nothing of an open rebalance is stored: a group is stored when its leader has assigned, and when it has become
empty (KIP-62, KIP-345, KIP-394).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable

from metaquorum.broker.coordinator.groups.group import Group, GroupMember, Phase, Work, group_record
from metaquorum.broker.coordinator.state import Ask, coordinator_error
from metaquorum.broker.replica.deadlines import Deadlines
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.storage.uuids import random_uuid
from metaquorum.wire import messages

NEW_MEMBER_TIMEOUT_MS = 5 * 60_000
"""How long the JoinGroup of a member without an id waits (Kafka's bound)."""

MEMBER_ID_REQUIRED, _SKIPS_ASSIGNMENT = 4, 9
"""The first versions of JoinGroup that support these."""

Timer = tuple[str, str, str]
"""(what is due, group, member): `session` and `pending` of a member, `join`, `sync`, `rejoin` of a group."""


def new_member_id(rng: random.Random, member: GroupMember) -> str:
    begin = member.client_id if member.instance_id is None else member.instance_id
    return f"{begin}-{uuid.UUID(bytes=random_uuid(rng))}"


class Rebalances:
    """See the module. `timers` is shared with the rest of the state machine."""

    def __init__(self, config: GroupConfig, timers: Deadlines[Timer], rng: random.Random) -> None:
        self._config = config
        self._timers = timers
        self._rng = rng

    # ---- joining ---------------------------------------------------------------------------------

    def join_new(self, work: Work, group: Group, member: GroupMember, ask: Ask) -> None:
        """A JoinGroup without a member id, for which `member` was made. From version 4 on a new member gets
        its id first, and must join with it (KIP-394)."""
        member.member_id = new_member_id(self._rng, member)
        known = group.static_id(member.instance_id)
        if known is not None:
            self._replace_static(work, group, known, member, ask.request.version)
        elif member.instance_id is None and ask.request.version >= MEMBER_ID_REQUIRED:
            group.pending.add(member.member_id)
            self._arm(work, "pending", group, member.member_id, member.session_timeout_ms)
            work.reply(ask.key, not_joined(member.member_id, ErrorCode.MEMBER_ID_REQUIRED))
        else:
            self._add(work, group, member, ask.body.protocol_type)
        self._after_join(work, group)

    def join_known(self, work: Work, group: Group, member: GroupMember, ask: Ask) -> None:
        """A JoinGroup of a member that has an id, and may be in the group."""
        key = ask.key
        if member.member_id in group.pending:
            self._add(work, group, member, ask.body.protocol_type)
            self._after_join(work, group)
            return
        error = self.stranger(group, member.member_id, member.instance_id)
        if error is None and group.phase is Phase.EMPTY:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not None:
            work.reply(key, not_joined(member.member_id, error))
            return
        present = group.members[member.member_id]
        changed = present.protocols != member.protocols
        leads_on = group.phase is Phase.STABLE and group.leader == present.member_id
        if group.phase is Phase.PREPARING or changed or leads_on:
            self._rejoin(work, present, member)
            self._maybe_prepare(work, group)
        else:
            work.reply(key, joined(group, present))
        self._after_join(work, group)

    def stranger(self, group: Group, member_id: str, instance_id: str | None) -> ErrorCode | None:
        """Why the member's ids are wrong; None if they are right."""
        if instance_id is not None:
            current = group.static_id(instance_id)
            if current is not None and current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return None if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _add(self, work: Work, group: Group, member: GroupMember, protocol_type: str) -> None:
        member.is_new = True
        if group.phase is Phase.PREPARING and group.generation == 0:
            group.someone_joined = True
        group.add(member, protocol_type)
        self._timers.disarm(("pending", group.group_id, member.member_id))
        self._arm(work, "session", group, member.member_id, NEW_MEMBER_TIMEOUT_MS)
        self._maybe_prepare(work, group)

    def drop(self, group: Group, member_id: str) -> None:
        """There is no room for the member."""
        self._forget(group, member_id)

    @staticmethod
    def _rejoin(work: Work, present: GroupMember, member: GroupMember) -> None:
        # A client that sends the request again does not read the answer to its first one.
        work.reply(present.join_key, not_joined(present.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        present.protocols = member.protocols
        present.rebalance_timeout_ms = member.rebalance_timeout_ms
        present.session_timeout_ms = member.session_timeout_ms
        present.join_key = member.join_key

    def _replace_static(
        self, work: Work, group: Group, old_id: str, member: GroupMember, version: int
    ) -> None:
        """A static member came back without its id: it takes its old place, under a new id. If there is
        nothing to assign, a leader learns that from version 9 on (KIP-814); older versions get the old id as
        the leader's."""
        old = group.members[old_id]
        work.reply(old.join_key, not_joined(old_id, ErrorCode.FENCED_INSTANCE_ID))
        work.reply(old.sync_key, not_synced(ErrorCode.FENCED_INSTANCE_ID))
        old.join_key = old.sync_key = None
        leader = group.leader
        renamed = group.rename(old_id, member.member_id)
        self._timers.disarm(("session", group.group_id, old_id))
        self._arm_session(work, group, renamed)
        self._rejoin(work, renamed, member)
        if group.phase is Phase.COMPLETING:
            self._prepare(work, group)
        elif group.phase is Phase.STABLE and group.select_protocol() != group.protocol:
            self._maybe_prepare(work, group)
        elif group.phase is Phase.STABLE:
            key, renamed.join_key = renamed.join_key, None
            assignments = {each.member_id: each.assignment for each in group.members.values()}
            record = group_record(group, assignments, group.state_since_ms)

            def refused(again: Work, error: ErrorCode) -> None:
                again.reply(key, not_joined("", coordinator_error(error)))
                self._maybe_prepare(again, group)

            work.store(record, refused)
            old_leader = leader if version < _SKIPS_ASSIGNMENT else None
            work.reply(key, joined(group, renamed, has_rejoined=True, old_leader=old_leader))

    def _after_join(self, work: Work, group: Group) -> None:
        if group.phase is Phase.PREPARING and not group.is_first_join and group.has_all_joined:
            self._complete_join(work, group)

    # ---- the join phase --------------------------------------------------------------------------

    def _maybe_prepare(self, work: Work, group: Group) -> None:
        if group.phase is not Phase.PREPARING:
            self._prepare(work, group)

    def _prepare(self, work: Work, group: Group) -> None:
        """All members must join again; those that wait for an assignment get that as their answer now."""
        if group.phase is Phase.COMPLETING:
            self._end_sync(work, group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.not_synced.clear()
        self._timers.disarm(("sync", group.group_id, ""))
        group.is_first_join = group.phase is Phase.EMPTY
        delay_ms = group.rebalance_timeout_ms
        if group.is_first_join:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.someone_joined = False
        self._enter(work, group, Phase.PREPARING)
        self._arm(work, "join", group, "", delay_ms)

    def join_is_due(self, work: Work, group: Group) -> None:
        """The time to join is over. A first join is extended while members arrive."""
        if group.phase is not Phase.PREPARING:
            return
        if group.is_first_join and group.someone_joined and group.delay_left_ms > 0:
            group.someone_joined = False
            delay_ms = min(self._config.group_initial_rebalance_delay_ms, group.delay_left_ms)
            group.delay_left_ms -= delay_ms
            self._arm(work, "join", group, "", delay_ms)
            return
        self._complete_join(work, group)

    def _complete_join(self, work: Work, group: Group) -> None:
        """A new generation of the members that have joined; static members that have not joined stay in
        it."""
        for member in list(group.members.values()):
            if member.join_key is None and member.instance_id is None:
                self._forget(group, member.member_id)
        group.is_first_join = group.someone_joined = False
        group.delay_left_ms = 0
        if not group.elect():
            self._arm(work, "join", group, "", group.rebalance_timeout_ms)
            return
        self._timers.disarm(("join", group.group_id, ""))
        group.generation += 1
        group.not_synced.clear()
        group.protocol = group.select_protocol()
        if not group.members:
            self._enter(work, group, Phase.EMPTY)
            work.store(group_record(group, {}, group.state_since_ms))
            return
        self._enter(work, group, Phase.COMPLETING)
        for member in group.members.values():
            key, member.join_key = member.join_key, None
            work.reply(key, joined(group, member))
            member.is_new = False
            self._arm_session(work, group, member)
            group.not_synced.add(member.member_id)
        self._arm(work, "sync", group, "", group.rebalance_timeout_ms)

    # ---- synchronizing ---------------------------------------------------------------------------

    def sync(self, work: Work, group: Group, key: object, member_id: str, given: dict[str, bytes]) -> None:
        """A SyncGroup of a member in the current generation; the leader's has the assignment."""
        if group.phase is Phase.EMPTY:
            work.reply(key, not_synced(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        if group.phase is Phase.PREPARING:
            work.reply(key, not_synced(ErrorCode.REBALANCE_IN_PROGRESS))
            return
        member = group.members[member_id]
        group.not_synced.discard(member_id)
        if not group.not_synced:
            self._timers.disarm(("sync", group.group_id, ""))
        if group.phase is Phase.STABLE:
            work.reply(key, synced(group, member.assignment))
            self._arm_session(work, group, member)
            return
        work.reply(member.sync_key, not_synced(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_key = key
        if member_id == group.leader:
            self._assign(work, group, given)

    def _assign(self, work: Work, group: Group, given: dict[str, bytes]) -> None:
        waiting = []
        for member in group.members.values():
            key, member.sync_key = member.sync_key, None
            if key is not None:
                waiting.append(key)
                work.reply(key, synced(group, given.get(member.member_id, b"")))
                self._arm_session(work, group, member)

        def refused(again: Work, error: ErrorCode) -> None:
            for key in waiting:
                again.reply(key, not_synced(coordinator_error(error)))
            self._end_sync(again, group, coordinator_error(error))
            self._maybe_prepare(again, group)

        work.store(group_record(group, given, work.now.wall_ms), refused)

    def stored(self, group: Group, value: messages.GroupMetadataValue) -> None:
        """The leader's assignment is in the log."""
        if value.generation != group.generation:
            return
        for each in value.members:
            member = group.members.get(each.member_id)
            if member is not None:
                member.assignment = each.assignment
        if group.phase is Phase.COMPLETING:
            group.phase = Phase.STABLE
            group.state_since_ms = value.current_state_timestamp

    def sync_is_due(self, work: Work, group: Group) -> None:
        """Members that have not requested their assignment in time are dropped."""
        if group.phase in (Phase.COMPLETING, Phase.STABLE) and group.not_synced:
            for member_id in sorted(group.not_synced):
                self._forget(group, member_id)
            self._prepare(work, group)
            self._after_leave(work, group)

    def _end_sync(self, work: Work, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            key, member.sync_key = member.sync_key, None
            if key is not None:
                work.reply(key, not_synced(error))
                self._arm_session(work, group, member)

    # ---- heartbeats and leaving ------------------------------------------------------------------

    def alive(self, work: Work, group: Group, member_id: str) -> None:
        """The member sent a request: its session continues."""
        member = group.members.get(member_id)
        if member is not None:
            self._arm_session(work, group, member)

    def session_is_due(self, work: Work, group: Group, member_id: str) -> None:
        """A member was silent. While it waits for an answer it cannot send anything."""
        member = group.members.get(member_id)
        if member is None:
            return
        waits = member.join_key is not None or member.sync_key is not None
        if member.is_new or not waits:
            self.leave(work, group, member_id)

    def pending_is_due(self, work: Work, group: Group, member_id: str) -> None:
        """A member that got an id did not join with it."""
        if member_id in group.pending:
            self.leave(work, group, member_id)

    def leave(self, work: Work, group: Group, member_id: str) -> None:
        """Removes a member, or an id that was given out."""
        member = group.members.get(member_id)
        if member is not None:
            work.reply(member.join_key, not_joined("", ErrorCode.UNKNOWN_MEMBER_ID))
            work.reply(member.sync_key, not_synced(ErrorCode.UNKNOWN_MEMBER_ID))
        self._forget(group, member_id)
        if member is not None and group.phase in (Phase.STABLE, Phase.COMPLETING):
            self._maybe_prepare(work, group)
        self._after_leave(work, group)

    def _after_leave(self, work: Work, group: Group) -> None:
        """A group that all have left waits for no more members."""
        if group.phase is Phase.PREPARING and group.is_first_join and not group.members and not group.pending:
            self._complete_join(work, group)
        self._after_join(work, group)

    def begin(self, work: Work, group: Group) -> None:
        """A group that was read from the log: its members have a session timeout in which to send a
        heartbeat."""
        for member in group.members.values():
            self._arm_session(work, group, member)
        if len(group.members) > self._config.group_max_size:
            self._maybe_prepare(work, group)

    def rejoin(self, work: Work, group: Group) -> None:
        """A group was stored while all members had to join again: they have the rebalance timeout for it."""
        if group.phase is Phase.PREPARING and ("join", group.group_id, "") not in self._timers:
            for member in group.members.values():
                self._arm_session(work, group, member)
            self._arm(work, "join", group, "", group.rebalance_timeout_ms)

    def end(self, group: Group) -> None:
        """The group was removed."""
        for name in ("join", "sync"):
            self._timers.disarm((name, group.group_id, ""))
        self._disarm(group.group_id, (*group.members, *group.pending))

    # ---- timers ----------------------------------------------------------------------------------

    def _forget(self, group: Group, member_id: str) -> None:
        group.remove(member_id)
        self._disarm(group.group_id, (member_id,))

    def _disarm(self, group_id: str, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            self._timers.disarm(("session", group_id, member_id))
            self._timers.disarm(("pending", group_id, member_id))

    def _arm_session(self, work: Work, group: Group, member: GroupMember) -> None:
        self._arm(work, "session", group, member.member_id, member.session_timeout_ms)

    def _arm(self, work: Work, name: str, group: Group, member_id: str, after_ms: int) -> None:
        self._timers.arm((name, group.group_id, member_id), work.now.ms + after_ms)

    @staticmethod
    def _enter(work: Work, group: Group, phase: Phase) -> None:
        group.phase = phase
        group.state_since_ms = work.now.wall_ms


# Answers of the classic group protocol that do not depend on the version of the request.


def joined(
    group: Group, member: GroupMember, *, has_rejoined: bool = False, old_leader: str | None = None
) -> messages.JoinGroupResponse:
    """A member is in the generation; the leader's answer lists the others. `has_rejoined`: a static member
    is in a stable group again, and there is nothing to assign."""
    leads = group.leader == member.member_id and old_leader is None
    return messages.JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=old_leader or group.leader or "",
        skip_assignment=leads and has_rejoined,
        member_id=member.member_id,
        members=tuple(
            messages.JoinGroupResponse.JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.protocol),
            )
            for other in (group.members.values() if leads else ())
        ),
    )


def not_joined(member_id: str, error: ErrorCode) -> messages.JoinGroupResponse:
    return messages.JoinGroupResponse(error_code=error, member_id=member_id, protocol_name=None)


def synced(group: Group, assignment: bytes) -> messages.SyncGroupResponse:
    return messages.SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def not_synced(error: ErrorCode) -> messages.SyncGroupResponse:
    return messages.SyncGroupResponse(error_code=error)


def listed(group: Group) -> messages.ListGroupsResponse.ListedGroup:
    return messages.ListGroupsResponse.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.phase.value,
        group_type="classic",
    )


def described(group_id: str, group: Group | None) -> messages.DescribeGroupsResponse.DescribedGroup:
    """A group for an operator; members' metadata is shown while it is stable, as in Kafka. A group that does
    not exist is dead."""
    if group is None:
        return messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state="Dead")
    stable = group.phase is Phase.STABLE
    return messages.DescribeGroupsResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.phase.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=tuple(
            messages.DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ),
    )


class ClassicRequests:
    """Requests of a classic group's members: whether they are allowed, before `Rebalances` does them."""

    def __init__(self, config: GroupConfig, rebalances: Rebalances) -> None:
        self._config = config
        self._rebalances = rebalances

    def join(self, work: Work, ask: Ask, group: Group, member: GroupMember) -> None:
        """`member`: the member that the JoinGroup describes."""
        body: messages.JoinGroupRequest = ask.body
        if not group.accepts(body.member_id, self._config.group_max_size):
            self._rebalances.drop(group, body.member_id)
            work.reply(ask.key, not_joined("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(body.protocol_type, (each.name for each in body.protocols)):
            work.reply(ask.key, not_joined(body.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif body.member_id:
            self._rebalances.join_known(work, group, member, ask)
        else:
            self._rebalances.join_new(work, group, member, ask)

    def sync(self, work: Work, key: object, group: Group, body: messages.SyncGroupRequest) -> None:
        error = self._rebalances.stranger(group, body.member_id, body.group_instance_id)
        if error is None and body.generation_id != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is None:
            said = ((body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol))
            if any(theirs is not None and theirs != ours for theirs, ours in said):
                error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not None:
            work.reply(key, not_synced(error))
            return
        given = {each.member_id: each.assignment for each in body.assignments}
        self._rebalances.sync(work, group, key, body.member_id, given)

    def heartbeat(self, work: Work, group: Group, body: messages.HeartbeatRequest) -> ErrorCode:
        error = self._rebalances.stranger(group, body.member_id, body.group_instance_id)
        if error is not None:
            return error
        if body.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.phase is Phase.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._rebalances.alive(work, group, body.member_id)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.phase is Phase.PREPARING else ErrorCode.NONE

    def leave(self, work: Work, group: Group, who: messages.LeaveGroupRequest.MemberIdentity) -> ErrorCode:
        """An operator may name a static member by its instance id alone."""
        member_id = who.member_id
        if not member_id:
            member_id = group.static_id(who.group_instance_id) or ""
        error = None
        if member_id not in group.pending:
            error = self._rebalances.stranger(group, member_id, who.group_instance_id)
        if error is not None:
            return error
        self._rebalances.leave(work, group, member_id)
        return ErrorCode.NONE


def member_of(ask: Ask) -> GroupMember:
    """The member that a JoinGroup describes. Version 0 has no rebalance timeout: the session timeout is used
    instead."""
    body: messages.JoinGroupRequest = ask.body
    rebalance_ms = body.rebalance_timeout_ms
    return GroupMember(
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=ask.request.client_id,
        client_host=ask.request.client_host,
        rebalance_timeout_ms=body.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=body.session_timeout_ms,
        protocols=tuple((each.name, each.metadata) for each in body.protocols),
        join_key=ask.key,
    )
