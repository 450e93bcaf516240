"""The one committed log, replayed once, batch by batch, with the laws of what may follow what.

Nodes may apply many batches at once, so a law about two consecutive batches cannot be checked on their
images. Raises SafetyError.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.controller.partitions.rules import unclean_allowed
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.broker_ids import IdSource
from metaquorum.metadata.delta import MetadataDelta, diff
from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED, MetadataImage, PartitionInfo
from metaquorum.metadata.image.directories import damaged_in
from metaquorum.metadata.invariants import ERROR, check_image
from metaquorum.metadata.offline import directory_online
from metaquorum.metadata.records.types import LEADER_RECOVERING, NO_LEADER
from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.storage.batches.batch import RecordBatch
from tests.sim.errors import SafetyError
from tests.sim.marks import Marks
from tests.sim.promises import GivesUp, PartitionKey

MissingIdTaken = Callable[[int], str | None]
"""Why no broker may take over this id now, from what the simulator sees of the whole world; None if it is
free."""


class CommittedLog:
    """`image` is the visible image after all batches seen so far."""

    def __init__(self, marks: Marks, promises: GivesUp, id_taken: MissingIdTaken) -> None:
        self._state = ReplayState()
        self._marks = marks
        self._promises = promises
        self._id_taken = id_taken
        self._epochs: dict[int, int] = {}
        self._used_ids: set[int] = set()
        self._left: dict[tuple[PartitionKey, int], int] = {}
        self.unclean_asked: set[tuple[str, int] | None] = set()

    @property
    def image(self) -> MetadataImage:
        return self._state.image

    @property
    def end_offset(self) -> int:
        return self._state.end_offset

    def apply(self, batch: RecordBatch) -> MetadataImage:
        """Applies the next committed batch; returns the image after it."""
        before = self._state.image
        self._state = replay(self._state, batch)
        after = self._state.image
        try:
            if after is not before:
                self._judge(before, after)
        except SafetyError as error:
            header = batch.header
            where = f"the batch {header.base_offset}..{header.last_offset} of epoch {header.leader_epoch}"
            raise SafetyError(f"{where}: {error}") from error
        return after

    def _judge(self, before: MetadataImage, after: MetadataImage) -> None:
        changes = diff(before, after)
        if changes.is_empty:
            return
        for violation in check_image(after):
            if violation.severity == ERROR:
                raise SafetyError(str(violation))
        if changes.partitions.removed and any(
            after.topics.topic(topic_id) is not None for topic_id, _ in changes.partitions.removed
        ):
            raise SafetyError("a partition went without its topic")
        for key in (*changes.partitions.added, *changes.partitions.changed):
            old, new = before.topics.partition(*key), after.topics.partition(*key)
            if new is not None and old != new:
                self._judge_partition(before, after, old, new)
        if not changes.brokers.is_empty:
            self._judge_brokers(before, after, changes)
        self._judge_ids(before, after)
        self._note(before, after, changes)

    # ---- partitions ------------------------------------------------------------------------------

    def _judge_partition(
        self, before: MetadataImage, after: MetadataImage, old: PartitionInfo | None, new: PartitionInfo
    ) -> None:
        name = self.name_of(after, new)
        require_led_rightly(after, new, name)
        joined = set(new.isr) - set(() if old is None else old.isr)
        for member in sorted(joined):
            known = before.brokers.get(member) if old is not None else after.brokers.get(member)
            now = after.brokers.get(member)
            if now is None or not now.is_active or known is None:
                raise SafetyError(f"{name}: broker {member} joined the ISR and is not active (KIP-841)")
        if old is None:
            return
        _judge_epochs(old, new, name)
        if new.leader not in (NO_LEADER, old.leader):
            known = after.brokers.get(new.leader)
            if known is None or not known.is_active:
                raise SafetyError(f"{name}: broker {new.leader} became the leader and is not active")
            is_new_work = _begins_anew(before, old, new)
            has_all = new.leader in {*old.isr, *old.elr}
            if has_all and new.leader not in old.isr:
                self._marks.add("eligible leader elected")
            if (is_new_work or not has_all) and not _completed_under_its_leader(old, new):
                self._judge_unclean(before, old, new, name)
        _judge_replicas(old, new, name)

    def _judge_unclean(
        self, before: MetadataImage, old: PartitionInfo, new: PartitionInfo, name: str
    ) -> None:
        topic, index = name.rsplit("-", 1)
        asked = None in self.unclean_asked or (topic, int(index)) in self.unclean_asked
        if not old.isr and old.last_known_elr == (new.leader,):
            self._marks.add("last known leader elected")  # it led last, and no eligible replica is left
            asked = asked or not _begins_anew(before, old, new)
        if not asked and not unclean_allowed(before, old.topic_id):
            raise SafetyError(
                f"{name}: broker {new.leader} leads, was not in the ISR {old.isr}, and nobody allowed that:"
                f" {old} became {new}"
            )
        if new.leader_recovery_state != LEADER_RECOVERING or new.isr != (new.leader,):
            raise SafetyError(
                f"{name}: elected uncleanly, and neither alone in the ISR nor recovering: {new}"
            )
        self._promises.given_up((new.topic_id, new.index), new.leader_epoch)
        self._marks.add("unclean election")

    @staticmethod
    def name_of(image: MetadataImage, partition: PartitionInfo) -> str:
        info = image.topics.topic(partition.topic_id)
        return f"{'?' if info is None else info.name}-{partition.index}"

    # ---- brokers ---------------------------------------------------------------------------------

    def _judge_brokers(self, before: MetadataImage, after: MetadataImage, changes: MetadataDelta) -> None:
        for broker_id in (*changes.brokers.added, *changes.brokers.changed):
            known, old = after.brokers[broker_id], before.brokers.get(broker_id)
            last = self._epochs.get(broker_id, -1)
            if known.epoch < last or (old is None and known.epoch == last):
                raise SafetyError(f"broker {broker_id} has epoch {known.epoch}, and had {last} before")
            self._epochs[broker_id] = known.epoch
            if old is not None and old.epoch != known.epoch and not old.fenced:
                raise SafetyError(
                    f"broker {broker_id} registered anew before its earlier incarnation was fenced"
                )
        topics = after.topics
        for broker_id in (*changes.brokers.changed, *changes.brokers.removed):
            rows = {*topics.rows_led_by(broker_id).tolist(), *topics.rows_with_isr(broker_id).tolist()}
            for row in sorted(rows):
                partition = topics.at(row)
                require_led_rightly(after, partition, self.name_of(after, partition))

    # ---- broker ids ------------------------------------------------------------------------------

    def _judge_ids(self, before: MetadataImage, after: MetadataImage) -> None:
        """Allocations: no new id was ever used before, and no broker holds an id that is taken over."""
        old, new = ids.remembered(before), ids.remembered(after)
        if old is not new:
            if ids.next_id(new) < ids.next_id(old):
                raise SafetyError(f"the next broker id went from {ids.next_id(old)} to {ids.next_id(new)}")
            claimed = ids.claims(old)
            for broker_id, claim in ids.claims(new).items():
                if claimed.get(broker_id) == claim:
                    continue
                if claim.source is IdSource.NEW and broker_id in self._used_ids:
                    raise SafetyError(f"broker id {broker_id} was handed out as new and is not")
                taken = self._id_taken(broker_id) if claim.source is IdSource.MISSING else None
                if taken is not None:
                    raise SafetyError(f"broker id {broker_id} was handed out as missing, and {taken}")
                self._marks.add(f"broker id handed out: {claim.source.value}")
                self._used_ids.add(broker_id)
        if after.brokers is not before.brokers:
            self._used_ids.update(after.brokers)

    # ---- what was reached ------------------------------------------------------------------------

    def _note(self, before: MetadataImage, after: MetadataImage, changes: MetadataDelta) -> None:
        marks = self._marks
        fenced = [one for one, known in after.brokers.items() if known.fenced]
        if changes.brokers.removed:
            marks.add("broker unregistered")
        for broker_id in changes.brokers.changed:
            was, now = before.brokers[broker_id], after.brokers[broker_id]
            if was.epoch == now.epoch and len(now.directories) < len(was.directories):
                marks.add("directory death written")
        for key in changes.partitions.changed:
            old, new = before.topics.partition(*key), after.topics.partition(*key)
            if old is not None and new is not None:
                self._note_partition(before, after, key, old, new, failure=bool(fenced))
        if any(key[1] and before.topics.topic(key[0]) is not None for key in changes.partitions.added):
            marks.add("partitions added")

    def _note_partition(
        self,
        before: MetadataImage,
        after: MetadataImage,
        key: PartitionKey,
        old: PartitionInfo,
        new: PartitionInfo,
        *,
        failure: bool,
    ) -> None:
        marks = self._marks
        for member in set(old.isr) - set(new.isr):
            known = before.brokers.get(member)
            self._left[key, member] = -1 if known is None else known.epoch
        for member in sorted(set(new.isr) - set(old.isr)):
            left = self._left.get((key, member), -1)
            if 0 <= left < after.brokers[member].epoch:
                marks.add("ISR grew after a bounce")
        if set(new.isr) < set(old.isr) and new.leader == old.leader and new.leader_epoch == old.leader_epoch:
            gone = [after.brokers.get(member) for member in set(old.isr) - set(new.isr)]
            if all(known is not None and known.is_active for known in gone):
                marks.add("ISR shrunk by its leader")
        online_before = [each for each in old.directories if each in self._online(before)]
        if new.replicas == old.replicas and any(
            was != now and now in self._online(after) and was in online_before
            for was, now in zip(old.directories, new.directories, strict=True)
        ):
            marks.add("replica moved to another directory")
        if old.leader == NO_LEADER and new.leader != NO_LEADER:
            marks.add("leaderless partition led again")
        if new.leader == NO_LEADER and old.leader != NO_LEADER:
            marks.add("last in-sync replica kept without a leader")
        if old.leader_recovery_state and not new.leader_recovery_state:
            marks.add("leader recovered")
        if new.leader != old.leader and old.leader in after.brokers and old.leader in new.replicas:
            directory = new.directory_of(old.leader) or b""
            if after.brokers[old.leader].is_active and not directory_online(
                after.brokers, old.leader, directory
            ):
                marks.add("directory death moved a leader")
        self._note_reassignment(old, new, " under failure" if failure else "")

    @staticmethod
    def _online(image: MetadataImage) -> set[bytes]:
        return {directory for _, known in image.brokers.items() for directory in known.directories}

    def _note_reassignment(self, old: PartitionInfo, new: PartitionInfo, how: str) -> None:
        was, now = (old.adding, old.removing), (new.adding, new.removing)
        if was == now:
            return
        if was == ((), ()):
            self._marks.add("reassignment started")
        elif now != ((), ()):
            self._marks.add(f"reassignment replaced{how}")
        elif set(new.replicas) == set(old.replicas) - set(old.adding):
            self._marks.add(f"reassignment cancelled{how}")
        else:
            self._marks.add(f"reassignment completed{how}")


def _begins_anew(before: MetadataImage, old: PartitionInfo, new: PartitionInfo) -> bool:
    """Whether the broker no longer has the directory that its replica was in. A damaged replica that is
    readable again has the data that it had; whether that is true is for the data laws to detect."""
    leader = new.leader
    directory = old.directory_of(leader)
    if directory in {None, UNASSIGNED, MIGRATING, LOST}:
        return False
    if directory == damaged_in(new.directory_of(leader) or b""):
        return False
    return not directory_online(before.brokers, leader, directory)


def _completed_under_its_leader(old: PartitionInfo, new: PartitionInfo) -> bool:
    """The leader reported the last missing replica and is itself being removed: one record lets the new
    replica join the ISR and lead."""
    moving = bool(old.adding or old.removing) and not (new.adding or new.removing)
    return moving and old.leader != NO_LEADER and old.leader in old.removing and new.leader in new.isr


def require_led_rightly(image: MetadataImage, partition: PartitionInfo, name: str) -> None:
    """After every batch: no leader is fenced or has a dead directory, and neither has any member of an ISR of
    several (the last member stays: it alone has the data)."""
    for member in {partition.leader, *(partition.isr if len(partition.isr) > 1 else ())} - {NO_LEADER}:
        what = "leads" if member == partition.leader else "is in the ISR"
        known = image.brokers.get(member)
        if known is None or known.fenced:
            state = "not registered" if known is None else "fenced"
            raise SafetyError(f"{name}: broker {member} {what} and is {state}: {partition}")
        if not directory_online(image.brokers, member, partition.directory_of(member) or b""):
            raise SafetyError(
                f"{name}: broker {member} {what} with its replica in a dead directory: {partition}"
            )


def _judge_epochs(old: PartitionInfo, new: PartitionInfo, name: str) -> None:
    """One record raises the partition epoch by one; a new leader raises the leader epoch (S2.33)."""
    if new.partition_epoch != old.partition_epoch + 1:
        raise SafetyError(f"{name}: partition epoch {old.partition_epoch} -> {new.partition_epoch}")
    raised = new.leader_epoch - old.leader_epoch
    if raised not in (0, 1) or (new.leader != old.leader and raised != 1):
        raise SafetyError(
            f"{name}: leader {old.leader} -> {new.leader}, epoch {old.leader_epoch} -> {new.leader_epoch}"
        )


def _judge_replicas(old: PartitionInfo, new: PartitionInfo, name: str) -> None:
    """A reassignment ends with every replica in sync, or with the replicas from before it began (KIP-455)."""
    before, after = set(old.replicas), set(new.replicas)
    if (old.adding or old.removing) and not (new.adding or new.removing):
        cancelled = after == before - set(old.adding)
        completed = after == before - set(old.removing) and after <= set(new.isr)
        redirected = after <= set(new.isr) and not after & (set(old.adding) - set(new.isr))
        if not cancelled and not completed and not redirected:
            raise SafetyError(f"{name}: a reassignment ended neither complete nor cancelled: {old} -> {new}")
    elif before - after and not (old.adding or old.removing) and not after <= set(new.isr):
        raise SafetyError(f"{name}: replicas were dropped before the others were in sync: {old} -> {new}")
    staying = after - set(new.adding)
    lost = before - set(old.adding) - after
    if lost and not (after - set(new.removing)) <= set(new.isr):
        raise SafetyError(f"{name}: {sorted(lost)} left before the target was in sync: {old} -> {new}")
    if not staying:
        raise SafetyError(f"{name}: no original replica is left: {new}")
