"""Turns the wanted state of a partition into the smallest record that reaches it, elections included.

The PartitionChangeRecord for one partition: fencing, unfencing, controlled shutdown, AlterPartition,
elections, failed directories and reassignments state a `Target`, and `build_change` finds the leader, ends a
reassignment that is complete, keeps the eligible leader replicas (KIP-966) and leaves out what does not
change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import MIGRATING, RECOVERING, UNASSIGNED, BrokersImage, PartitionInfo
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import LEADER_RECOVERING, NO_LEADER, PartitionChangeRecord

LEVEL_LEADER_RECOVERY = 3
"""metadata.version 3.2-IV0: a partition can record that its leader is recovering (KIP-704)."""
LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK = 12
"""metadata.version 3.6-IV0; below it a smaller ISR needs a new leader epoch (KAFKA-15021)."""

MayLead = Callable[[int], bool]
"""Whether a broker, by its state, may lead and join an ISR: unfenced, not shutting down, not being fenced."""


class Election(Enum):
    """How a leader is found. ONLINE: the present one, else the first in sync, in the preferred order.
    PREFERRED: the first replica, if it is in sync. UNCLEAN: as ONLINE, else any live replica (S4.5)."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for every change that is decided on one image.

    `unclean_allowed` and `min_isr` take a topic id. `failing` are directories that are being declared
    offline: a replica there already counts as offline. `recreated` has the directory in which a broker has
    recreated a replica, by topic id, partition and broker: the log still names the directory that is gone,
    because only this replica was in sync.
    """

    brokers: BrokersImage
    may_lead: MayLead
    metadata_version: int
    unclean_allowed: Callable[[bytes], bool]
    elr: bool = False
    min_isr: Callable[[bytes], int] = lambda topic_id: 1
    failing: frozenset[bytes] = msgspec.field(default_factory=frozenset)
    recreated: Mapping[tuple[bytes, int, int], bytes] = msgspec.field(default_factory=dict)

    def accepts(self, replica: int, directory: bytes) -> bool:
        """Whether the replica of this broker in this directory is online and may lead."""
        return (
            self.may_lead(replica)
            and directory not in self.failing
            and directory_online(self.brokers, replica, directory)
        )

    def election(self, topic_id: bytes) -> Election:
        """How to find a leader unless a request asks for another election."""
        return Election.UNCLEAN if self.unclean_allowed(topic_id) else Election.ONLINE


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted state of a partition; None: unchanged. `directories` has a directory per broker."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: int | None = None
    directories: Mapping[int, bytes] | None = None
    unclean_shutdown: frozenset[int] = frozenset()
    """Brokers that may have lost their data: they also leave the eligible leader replicas."""
    emptied: int | None = None
    """A broker whose replica starts over: no longer in sync, and the last choice of an unclean election."""


def default_directory(brokers: BrokersImage, broker_id: int) -> bytes:
    """A broker with one directory has a new replica there; one with several will report which (KIP-858)."""
    registration = brokers.get(broker_id)
    if registration is None or not registration.directories:
        return MIGRATING
    return registration.directories[0] if len(registration.directories) == 1 else UNASSIGNED


def build_change(
    partition: PartitionInfo, target: Target, rules: Rules, election: Election | None = None
) -> PartitionChangeRecord | None:
    """The record that takes `partition` to `target`; None if nothing changes.

    `election` None: ONLINE, or UNCLEAN if the topic allows it.
    """
    if election is None:
        election = rules.election(partition.topic_id)
    draft = _Draft(partition, target, rules)
    draft.end_reassignment()
    draft.note_eligible()
    draft.elect(election)
    return draft.record()


class _Draft:
    """The future state of the partition, while it is computed."""

    __slots__ = (
        "adding",
        "directories",
        "elr",
        "isr",
        "last_known_elr",
        "leader",
        "partition",
        "recovery_state",
        "removing",
        "replicas",
        "rules",
        "target",
    )

    def __init__(self, partition: PartitionInfo, target: Target, rules: Rules) -> None:
        self.partition = partition
        self.target = target
        self.rules = rules
        self.isr = partition.isr if target.isr is None else target.isr
        self.replicas = partition.replicas if target.replicas is None else target.replicas
        self.removing = partition.removing if target.removing is None else target.removing
        self.adding = partition.adding if target.adding is None else target.adding
        self.elr = partition.elr
        self.last_known_elr = partition.last_known_elr
        self.leader = partition.leader
        self.recovery_state = (
            partition.leader_recovery_state if target.recovery_state is None else target.recovery_state
        )
        self.directories = dict(zip(partition.replicas, partition.directories, strict=True))
        if target.directories is not None:
            self.directories.update(target.directories)

    def end_reassignment(self) -> None:
        """A reassignment is complete when every replica that stays is in sync (KIP-455)."""
        if not self.removing and not self.adding:
            return
        isr = tuple([replica for replica in self.isr if replica not in self.removing])
        replicas = tuple([replica for replica in self.replicas if replica not in self.removing])
        if not isr or not replicas or not set(replicas) <= set(isr):
            return
        self.isr, self.replicas, self.removing, self.adding = isr, replicas, (), ()

    def note_eligible(self) -> None:
        """A replica that leaves an ISR below min.insync.replicas still has everything that is committed
        (KIP-966)."""
        if not self.rules.elr:
            self._leave_eligible()
            return
        if len(self.isr) >= self.rules.min_isr(self.partition.topic_id):
            self.elr = ()
            return
        known = {*self.elr, *self.partition.isr} - set(self.isr) - self.target.unclean_shutdown
        self.elr = tuple(sorted(known & set(self.replicas)))

    def _leave_eligible(self) -> None:
        """The feature was switched off: a partition without an ISR gets one member that has all the data, or
        that led it last and has to recover, so that it can be led again without an unclean election."""
        if not self.isr and self.elr:
            first_online = sorted(
                self.elr, key=lambda each: (not self._accepts(each), each not in self.last_known_elr)
            )
            self.isr = (first_online[0],)
        elif not self.isr and self.last_known_elr:
            known = [broker_id for broker_id in self.last_known_elr if broker_id in self.replicas]
            self.isr = tuple(known[:1] or self.replicas[:1])
            self.recovery_state = LEADER_RECOVERING
        self.elr, self.last_known_elr = (), ()

    def elect(self, election: Election) -> None:
        node, unclean = self._choose(election)
        if unclean:
            # The new leader may lack what others acknowledged: a replica that follows it starts from what the
            # leader has.
            self.isr, self.elr = (node,), ()
            if self.rules.metadata_version >= LEVEL_LEADER_RECOVERY:
                self.recovery_state = LEADER_RECOVERING
        elif node in self.elr:
            self.isr = (node,)
            # One is enough if min.insync.replicas was lowered meanwhile: from now on it may get ahead.
            small = self.rules.min_isr(self.partition.topic_id) > 1
            self.elr = tuple([replica for replica in self.elr if replica != node and small])
        self.leader = node
        if not self.isr and not self.rules.elr:
            # The last in-sync replica stays in the ISR, leaderless: only it has all the data (S4.5).
            self.isr = self.partition.isr

    def _choose(self, election: Election) -> tuple[int, bool]:
        """(leader, whether it was elected uncleanly); NO_LEADER if none can lead."""
        preferred = self.replicas[:1] if election is Election.PREFERRED else ()
        for replica in (*preferred, self.partition.leader, *self.replicas):
            if self._in_sync(replica) and self._accepts(replica):
                return replica, False
        if self.rules.elr and not self.isr and not self.elr and len(self.last_known_elr) == 1:
            last = self.last_known_elr[0]
            if last in self.replicas and last != self.target.emptied and self._may_recover(last):
                return last, True
        if election is Election.UNCLEAN:
            for replica in sorted(self.replicas, key=lambda each: each == self.target.emptied):
                if self._may_recover(replica):
                    return replica, True
        return NO_LEADER, False

    def _may_recover(self, replica: int) -> bool:
        """Whether it may lead without being in sync. A replica without a directory has no data at all, and
        all others would be truncated to that; the assignment looks for a leader again (S3.6)."""
        nowhere = self.directories.get(replica, UNASSIGNED) == UNASSIGNED
        is_known = self.rules.metadata_version >= LEVEL_DIRECTORIES
        return self._accepts(replica) and not (nowhere and is_known)

    def _in_sync(self, replica: int) -> bool:
        if replica == self.target.emptied:
            return False
        return replica in self.isr or (not self.isr and replica in self.elr)

    def _accepts(self, replica: int) -> bool:
        return self.rules.accepts(replica, self.directories.get(replica, UNASSIGNED))

    # ---- the record

    def record(self) -> PartitionChangeRecord | None:
        before = self.partition
        self._note_last_leader()
        leaves_replicas = not set(before.replicas) <= set(self.replicas)
        shrinks = self.rules.metadata_version < LEVEL_WITHOUT_EPOCH_BUMP_ON_SHRINK and not set(
            before.isr
        ) <= set(self.isr)
        names_leader = self.leader != before.leader or leaves_replicas or shrinks
        change = PartitionChangeRecord(
            partition_id=before.index,
            topic_id=before.topic_id,
            isr=_changed(self.isr, before.isr),
            leader=self.leader if names_leader else None,
            replicas=_changed(self.replicas, before.replicas),
            removing_replicas=_changed(self.removing, before.removing),
            adding_replicas=_changed(self.adding, before.adding),
            leader_recovery_state=(
                None if self.recovery_state == before.leader_recovery_state else self.recovery_state
            ),
            directories=self._directories_changed(),
            eligible_leader_replicas=_changed(self.elr, before.elr),
            last_known_elr=_changed(self.last_known_elr, before.last_known_elr),
        )
        empty = PartitionChangeRecord(partition_id=before.index, topic_id=before.topic_id)
        return None if change == empty else change

    def _note_last_leader(self) -> None:
        """The leader under which a partition lost its last in-sync replica is kept until there is a new
        one."""
        if not self.rules.elr:
            return
        if self.leader != NO_LEADER:
            self.last_known_elr = ()
        elif not self.isr and self.partition.leader != NO_LEADER:
            self.last_known_elr = (self.partition.leader,)
        elif not self.isr and not self.elr and not self.last_known_elr:
            # It had no leader even before: it waits for the last replica that had all the data.
            self.last_known_elr = (self.partition.isr or self.partition.elr or self.replicas)[:1]

    def _directories_changed(self) -> tuple[bytes, ...] | None:
        if self.rules.metadata_version < LEVEL_DIRECTORIES:
            return None
        wanted = tuple(
            [
                self.directories[replica]
                if replica in self.directories
                else default_directory(self.rules.brokers, replica)
                for replica in self.replicas
            ]
        )
        return None if wanted == self.partition.directories else wanted


def _changed(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if after == before else after


def forget_eligible(partition: PartitionInfo) -> PartitionChangeRecord:
    """The record after which no replica outside the ISR may lead: min.insync.replicas was lowered to the size
    of the ISR, so its members may get ahead of replicas that left it (KIP-966)."""
    return PartitionChangeRecord(
        partition_id=partition.index, topic_id=partition.topic_id, eligible_leader_replicas=()
    )


def is_recovering(partition: PartitionInfo) -> bool:
    """Whether the leader was elected uncleanly and has not finished recovering (KIP-704)."""
    return partition.leader_recovery_state == RECOVERING
