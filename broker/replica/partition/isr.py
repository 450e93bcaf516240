"""Followers as their leader sees them, and the ISR changes that the leader proposes (KIP-497, KIP-903).

Until the outcome of a proposal is known, the high watermark waits for every replica that may be in the ISR:
the committed members and the proposed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metaquorum.broker.replica.partition.values import Brokers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import RECOVERED, RECOVERING, PartitionInfo
from metaquorum.metadata.node_configs import ReplicaConfig
from metaquorum.metadata.requests.partitions import AlteredPartition, IsrMember, PartitionAlteration

NEVER_MS = -(2**62)
NOT_ACKNOWLEDGED = -1

_NOT_APPLIED = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller knows this partition epoch and has not changed anything: the proposal is dropped."""
_METADATA_IS_NEWER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The partition changed in a way that this broker has yet to read: it may have been this very proposal."""


@dataclass(slots=True)
class FollowerProgress:
    """`acknowledged`: the follower holds everything below it. `caught_up_ms`: the last time at which it held
    everything that the leader had then. `leader_end` and `fetched_ms` are of its last fetch; `epoch` is its
    broker epoch in that fetch (-1: it gave none; None: it has not fetched from this leader). `left_ms`: when
    it last left the ISR."""

    acknowledged: int = NOT_ACKNOWLEDGED
    caught_up_ms: int = NEVER_MS
    leader_end: int = -1
    fetched_ms: int = NEVER_MS
    left_ms: int = NEVER_MS
    epoch: int | None = None

    def fetched(self, offset: int, *, leader_end: int, epoch: int, now_ms: int) -> None:
        """A fetch from `offset` on. A follower that is always a little behind a busy leader is caught up as
        of its previous fetch if it has reached the end that the leader had then."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.acknowledged = offset
        self.leader_end = max(leader_end, self.leader_end)
        self.fetched_ms = now_ms
        self.epoch = epoch

    def held_all(self, at_ms: int) -> None:
        """Its fetch at `at_ms`, which did not name the partition, means that it still held everything."""
        if self.epoch is not None and at_ms > self.left_ms:
            self.caught_up_ms = max(self.caught_up_ms, at_ms)

    def left_isr(self, now_ms: int) -> None:
        """What it did before no longer counts: it may have lost its directory, and nothing may wait for it
        before it has caught up again."""
        self.caught_up_ms = self.fetched_ms = NEVER_MS
        self.left_ms = now_ms


@dataclass(slots=True)
class _Proposal:
    sent: PartitionAlteration
    times_sent: int = 1
    repeat: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return tuple([member.broker_id for member in self.sent.isr])


class IsrState:
    """The ISR of a partition that this broker leads, in one leader epoch after another."""

    def __init__(self, config: ReplicaConfig, brokers: Brokers) -> None:
        self._config = config
        self._brokers = brokers
        self._self = config.broker_id
        self.followers: dict[int, FollowerProgress] = {}
        self.committed: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.recovering = False
        self._key = (b"", 0)
        self._proposal: _Proposal | None = None
        self._held: tuple[int, ...] = ()
        self._held_until_ms = NEVER_MS
        self._no_join_before_ms = NEVER_MS
        self.maximal: frozenset[int] = frozenset()

    # ---- metadata ----------------------------------------------------------------------------

    def update(self, info: PartitionInfo, *, now_ms: int) -> None:
        """Newer metadata, or the same again."""
        self._key = (info.topic_id, info.index)
        if info.leader_epoch != self.leader_epoch:
            self.followers = {}
        others = [broker_id for broker_id in info.replicas if broker_id != self._self]
        new_epoch = info.leader_epoch != self.leader_epoch
        known = self.followers
        self.followers = {broker_id: known.get(broker_id) or FollowerProgress() for broker_id in others}
        if new_epoch:
            for broker_id in info.isr:
                if broker_id in self.followers:
                    self.followers[broker_id].caught_up_ms = now_ms
        if new_epoch or info.partition_epoch > self.partition_epoch:
            self._settle()
        self.leader_epoch = info.leader_epoch
        self.partition_epoch = info.partition_epoch
        self.replicas = info.replicas
        self.adding = info.adding
        self.recovering = info.leader_recovery_state == RECOVERING
        self._commit(info.isr, now_ms)

    def _settle(self) -> None:
        """The partition epoch changed: earlier proposals can no longer take effect."""
        self._proposal = None
        self._held = ()

    def _commit(self, isr: tuple[int, ...], now_ms: int) -> None:
        for broker_id in self.committed:
            if broker_id not in isr and broker_id in self.followers:
                self.followers[broker_id].left_isr(now_ms)
        self.committed = isr
        self._count_members()

    def _count_members(self) -> None:
        proposed = () if self._proposal is None else self._proposal.members
        self.maximal = frozenset((*self.committed, *proposed, *self._held))

    # ---- replicas in sync --------------------------------------------------------------------

    def awaited(self, broker_id: int, progress: FollowerProgress, *, now_ms: int) -> bool:
        """Whether the high watermark waits for this follower: a member, or a replica that is about to join
        and would never reach a high watermark that runs ahead of it."""
        if broker_id in self.maximal:
            return True
        return self._was_caught_up(progress, now_ms) and self._eligible(broker_id, progress)

    def may_join(self, broker_id: int, *, floor: int, now_ms: int) -> bool:
        """`floor`: the high watermark, or the start of the leader epoch if that is higher. A replica that has
        not reached the epoch's start may lack records that only this leader knows to be committed. One that
        is not caught up would have to leave again at once."""
        progress = self.followers.get(broker_id)
        return (
            progress is not None
            and broker_id not in self.committed
            and progress.acknowledged >= floor
            and self._was_caught_up(progress, now_ms)
            and self._eligible(broker_id, progress)
        )

    def _was_caught_up(self, progress: FollowerProgress, now_ms: int) -> bool:
        return now_ms - progress.caught_up_ms <= self._config.replica_lag_time_max_ms

    def _eligible(self, broker_id: int, progress: FollowerProgress) -> bool:
        if not self._brokers.may_join_isr(broker_id) or progress.epoch is None:
            return False
        return progress.epoch == -1 or progress.epoch == self._brokers.epoch(broker_id)

    def preferred_replica(self, offset: int, rack: str, start_of: Callable[[int], int]) -> int | None:
        """The replica that clients of this rack should read from (KIP-392): in sync, in their rack, with this
        offset; None: the leader. `start_of`: where a follower's log starts."""
        rack_of = self._brokers.rack
        if not self._config.replica_selector_is_rack_aware or rack_of(self._self) == rack:
            return None
        near = [
            (follower.acknowledged, follower.caught_up_ms, broker_id)
            for broker_id, follower in self.followers.items()
            if broker_id in self.committed
            and start_of(broker_id) <= offset <= follower.acknowledged
            and rack_of(broker_id) == rack
        ]
        return max(near)[2] if near else None

    def out_of_sync(self, *, leader_end: int, now_ms: int) -> list[int]:
        """Members to remove. A member that holds everything that the leader has may be silent forever."""
        lagging: list[int] = []
        for broker_id in self.committed:
            if broker_id == self._self:
                continue
            progress = self.followers.get(broker_id)
            if progress is None or not (
                progress.acknowledged >= leader_end or self._was_caught_up(progress, now_ms)
            ):
                lagging.append(broker_id)
        return lagging

    # ---- proposals ---------------------------------------------------------------------------

    @property
    def is_proposing(self) -> bool:
        """A proposal was sent and its outcome is unknown."""
        return self._proposal is not None

    def propose(self, *, leader_end: int, floor: int, now_ms: int) -> PartitionAlteration | None:
        """The proposal to send now; one whose outcome is unknown is repeated unchanged."""
        proposal = self._proposal
        if proposal is not None:
            if not proposal.repeat:
                return None
            proposal.repeat = False
            proposal.times_sent += 1
            return proposal.sent
        leaving = self.out_of_sync(leader_end=leader_end, now_ms=now_ms)
        joining: list[int] = []
        if now_ms >= self._no_join_before_ms:
            joining = [
                broker_id
                for broker_id in self.followers
                if self.may_join(broker_id, floor=floor, now_ms=now_ms)
            ]
        if not leaving and not joining and not self.recovering:
            return None
        stay = [broker_id for broker_id in self.committed if broker_id not in leaving]
        sent = PartitionAlteration(
            topic_id=self._key[0],
            partition=self._key[1],
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=self._members([*stay, *joining]),
            leader_recovery_state=RECOVERED,
        )
        self._proposal = _Proposal(sent)
        self._count_members()
        return sent

    def _members(self, isr: Sequence[int]) -> tuple[IsrMember, ...]:
        """With the broker epoch under which each was seen in sync (KIP-903)."""
        members: list[IsrMember] = []
        for broker_id in isr:
            if broker_id == self._self:
                epoch = self._brokers.epoch(broker_id)
            else:
                epoch = self.followers[broker_id].epoch
                epoch = None if epoch == -1 else epoch
            members.append(IsrMember(broker_id=broker_id, broker_epoch=epoch))
        return tuple(members)

    def answered(
        self, sent: PartitionAlteration, result: AlteredPartition | ApiError, *, now_ms: int
    ) -> str | None:
        """Takes up the answer to `sent`, if that is still the proposal in flight. Returns a line for the
        operator if it was refused."""
        proposal = self._proposal
        if proposal is None or proposal.sent != sent:
            return None
        if isinstance(result, ApiError):
            proposal.repeat = True
            return None
        if result.error is ErrorCode.NONE:
            self._accepted(result, now_ms)
            return None
        if result.error in _NOT_APPLIED:
            self._withdraw(proposal, result.error, now_ms)
        elif result.error not in _METADATA_IS_NEWER:
            proposal.repeat = True
        wanted = list(proposal.members)
        why = "" if result.message is None else f", {result.message}"
        return f"the ISR {wanted} was refused: {result.error.name}{why}"

    def _accepted(self, result: AlteredPartition, now_ms: int) -> None:
        stale = result.leader_epoch != self.leader_epoch or result.partition_epoch < self.partition_epoch
        if stale or result.leader != self._self:
            return
        self._settle()
        self.partition_epoch = result.partition_epoch
        self.recovering = result.leader_recovery_state == RECOVERING
        self._commit(result.isr, now_ms)

    def _withdraw(self, proposal: _Proposal, error: ErrorCode, now_ms: int) -> None:
        """A copy sent earlier may still be on its way to the controller, so its members count for a while. A
        replica that may not join (its directory may be offline) is not waited for until it has caught up
        again."""
        self._proposal = None
        if proposal.times_sent > 1:
            self._held = proposal.members
            self._held_until_ms = now_ms + 2 * self._config.controller_request_timeout_ms
        if error is ErrorCode.INELIGIBLE_REPLICA:
            self._no_join_before_ms = now_ms + self._config.replica_fetch_backoff_ms
            for broker_id in proposal.members:
                if broker_id not in self.committed and broker_id in self.followers:
                    self.followers[broker_id].left_isr(now_ms)
        self._count_members()

    def release_held(self, now_ms: int) -> bool:
        """Whether members that were waited for no longer are."""
        if not self._held or now_ms < self._held_until_ms:
            return False
        self._held = ()
        self._count_members()
        return True

    @property
    def held_until_ms(self) -> int | None:
        return self._held_until_ms if self._held else None
