"""Rules about partitions: elections, brokers that lost a leadership or left an ISR, reassignments,
directories.

A rule sees one step (before, record, after), what the same batch says about brokers, and what the log said
before. One record may move the leader for one reason and remove another broker from the ISR for another:
`explains` says which field a rule is about.
"""

from __future__ import annotations

from typing import NamedTuple

from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED
from metaquorum.metadata.image.directories import damaged_in, given_up_in
from metaquorum.metadata.image.types import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    BrokerRegistration,
    PartitionInfo,
)
from metaquorum.metadata.inspect.causes.rule import (
    CRITICAL,
    DETAIL,
    DIRECTORIES,
    ELIGIBLE,
    EPOCH,
    ISR,
    LEADER,
    RECOVERY,
    REPLICAS,
    WARNING,
    Alternative,
    CauseRules,
    Reason,
    Scene,
    ids,
)
from metaquorum.metadata.inspect.changes.change_steps import Place, is_last_known, reassignment, was_unclean
from metaquorum.metadata.inspect.changes.changes import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION
from metaquorum.metadata.records import types as r


class PartitionChange(NamedTuple):
    """One record that changed a partition."""

    before: PartitionInfo
    after: PartitionInfo
    topic: str
    record: object
    scene: Scene


class DirectoryChange(NamedTuple):
    """A replica in another log directory than before."""

    broker: int
    old: bytes
    new: bytes
    change: PartitionChange

    @property
    def known(self) -> BrokerRegistration | None:
        return self.change.scene.feed.brokers.get(self.broker)


CHANGES: CauseRules[PartitionChange] = CauseRules("partitions")
MOVES: CauseRules[DirectoryChange] = CauseRules("partitions: a replica in another log directory")


# -- elections -----------------------------------------------------------------------------------------------

_REQUESTED = Alternative("someone requested it", "the controller's log has the request to elect leaders")
_ALLOWED = Alternative(f"{UNCLEAN_ELECTION} is true", "the controller runs Kafka 3.9 or later")
_OWN_SETTING = Alternative("the controllers' own configuration allows it", f"it has {UNCLEAN_ELECTION}=true")


@CHANGES.rule(
    "unclean-election",
    "the new leader was neither in the ISR nor eligible, or its log was not complete: records may be lost. "
    "The last "
    "known leader is elected whatever the setting is, when no one is left (KIP-966). If else a broker's "
    "state changed "
    "in the same batch, the setting allowed it; otherwise the batch's cause says so, or the log does not "
    "distinguish "
    "that from a request",
    precedence=10,
    needs=LEADER,
    explains=LEADER | ISR | RECOVERY,
    severity=CRITICAL,
    readings=(_ALLOWED, _REQUESTED, _OWN_SETTING),
)
def unclean(change: PartitionChange) -> Reason | None:
    before, leader = change.before, change.after.leader
    if not was_unclean(before, change.after):
        return None
    if is_last_known(before, leader):
        text = (
            f"broker {leader} was elected as the last known leader, because no one was in the ISR"
            " or eligible (KIP-966): it may have lost records when it stopped uncleanly"
        )
        return Reason(text, broker_id=leader)
    isr, allowed = ids(before.isr), _who_allowed(change)
    text = f"broker {leader} was elected although the ISR was {isr}: records that it did not have are lost"
    if leader in before.isr:
        text = f"broker {leader} of the ISR {isr} was elected without a complete log: records may be lost"
    text += f"; {allowed.text}" if allowed.text else ""
    return allowed._replace(text=text, broker_id=leader)


def _who_allowed(change: PartitionChange) -> Reason:
    """What permitted an unclean election. Unprompted, a controller elects when a broker's state or the
    setting changes, in the same batch."""
    scene = change.scene
    setting = scene.feed.topic_config(change.topic, UNCLEAN_ELECTION)
    if scene.request == "ElectLeaders":
        return Reason("someone requested it")
    if setting is None and not scene.feed.is_known:
        return Reason(f"the value of {UNCLEAN_ELECTION} is unknown here", is_certain=False)
    is_set = setting == "true"
    changed = any(key == UNCLEAN_ELECTION for _, _, key, _, _ in scene.batch.configs)
    by_itself = bool(scene.batch.brokers) or changed or scene.batch.asked is not None
    if is_set and by_itself:
        return Reason(f"{UNCLEAN_ELECTION} is true")
    if by_itself:
        return Reason(
            f"{UNCLEAN_ELECTION} must be true in the controllers' own configuration, because the log does "
            "not set it"
        )
    return Reason("", readings=(_ALLOWED, _REQUESTED) if is_set else (_REQUESTED, _OWN_SETTING))


def offline(broker: int, info: PartitionInfo, registration: BrokerRegistration) -> str | None:
    """What keeps a broker from its replica's log directory; None if nothing does."""
    directory = info.directory_of(broker)
    is_named = directory not in (None, LOST, UNASSIGNED, MIGRATING)
    if directory == LOST or (
        is_named and registration.directories and directory not in registration.directories
    ):
        return "is registered without this log directory (it failed, left log.dirs, or was reformatted)"
    return None


@CHANGES.rule(
    "no-eligible-leader",
    "no member of the ISR is active, and there was no unclean election",
    precedence=50,
    needs=LEADER,
    severity=CRITICAL,
)
def no_eligible_leader(change: PartitionChange) -> Reason | None:
    before, after, brokers = change.before, change.after, change.scene.feed.brokers
    if after.leader != NO_LEADER:
        return None
    active = [
        broker for broker in before.isr if (known := brokers.get(broker)) is not None and known.is_active
    ]
    # A member without its log cannot lead although its broker is active.
    able = [one for one in active if offline(one, after, brokers[one]) is None and one in after.isr]
    if able and change.scene.feed.is_known:
        return None
    text = f"the ISR was {ids(before.isr)}, and none of it is active; {_unclean_text(change)}"
    if active:
        text = f"the ISR was {ids(before.isr)}, and none of it can lead; {_unclean_text(change)}"
    return Reason(text)


def _unclean_text(change: PartitionChange) -> str:
    feed = change.scene.feed
    value = feed.topic_config(change.topic, UNCLEAN_ELECTION)
    if value == "true":
        return f"{UNCLEAN_ELECTION} is true, but no replica was active (or Kafka is older than 3.9)"
    if value is not None:
        return f"{UNCLEAN_ELECTION} is {value}"
    if not feed.is_known:
        return f"the value of {UNCLEAN_ELECTION} is unknown here"
    return (
        f"{UNCLEAN_ELECTION} is not set in the log, so false unless the controllers' own configuration has it"
    )


def _is_elected(change: PartitionChange) -> bool:
    """Whether an eligible broker leads now. One that joins the ISR with this record is not: what let it join
    is the cause."""
    before, leader = change.before, change.after.leader
    if leader in (before.leader, NO_LEADER) or was_unclean(before, change.after):
        return False
    return leader in before.isr or leader in before.elr


def _unfenced_at(change: PartitionChange) -> Place | None:
    scene, leader = change.scene, change.after.leader
    here = (step.offset for step in scene.batch.steps_of(leader) if step.was_unfenced)
    offset = next(here, None)
    return scene.story(leader).unfenced if offset is None else (offset, scene.batch.time_ms)


def _eligible(change: PartitionChange) -> str:
    before = change.before
    return f"ISR {ids(before.isr)}" if change.after.leader in before.isr else f"ELR {ids(before.elr)}"


@CHANGES.rule(
    "broker-returned",
    "the partition had no leader, and the new leader's broker was unfenced in the same batch or up to a "
    "second before",
    precedence=60,
    needs=LEADER,
)
def returned(change: PartitionChange) -> Reason | None:
    if change.before.leader != NO_LEADER or not _is_elected(change):
        return None
    leader, unfenced_at = change.after.leader, _unfenced_at(change)
    if unfenced_at is None or not change.scene.is_just_before(unfenced_at):
        return None
    text = f"broker {leader} was unfenced at {unfenced_at[0]} and is in the {_eligible(change)}"
    return Reason(text, offset=unfenced_at[0], broker_id=leader)


_ASKED_ELECTION = Alternative(
    "someone requested an election", "the controller's log has the request to elect leaders"
)
_NEW_CONTROLLER = Alternative(
    "a new controller found it without a leader", "a controller election precedes it closely"
)


@CHANGES.rule(
    "led-again",
    "the partition had no leader, and the new leader's broker was active all the time: someone requested an "
    "election, "
    "or a new controller held one; without a cause the log does not show which",
    precedence=61,
    needs=LEADER,
    readings=(_ASKED_ELECTION, _NEW_CONTROLLER),
)
def led_again(change: PartitionChange) -> Reason | None:
    if change.before.leader != NO_LEADER or not _is_elected(change):
        return None
    leader, scene, place = change.after.leader, change.scene, _unfenced_at(change)
    if place is not None and scene.is_just_before(place):
        return None
    unfenced = scene.since(place)
    since = f" (unfenced since {unfenced})" if unfenced else ""
    text = f"broker {leader}{since} is in the {_eligible(change)}"
    if scene.request == "ElectLeaders":
        return Reason(f"{text}; someone requested an election", broker_id=leader)
    if scene.asked_rule == "leadership-began":
        return Reason(f"{text}; a new controller found it without a leader", broker_id=leader)
    if scene.batch.asked is not None:
        return Reason(f"{text}; the controller found it without a leader", broker_id=leader)
    return Reason(text, broker_id=leader, readings=(_ASKED_ELECTION, _NEW_CONTROLLER))


@CHANGES.rule("elected-from-isr", "the new leader was in the ISR", precedence=80, needs=LEADER)
def elected_from_isr(change: PartitionChange) -> Reason | None:
    before, leader = change.before, change.after.leader
    if before.leader == NO_LEADER or leader not in before.isr or not _is_elected(change):
        return None
    return Reason(f"broker {leader} was in the ISR {ids(before.isr)}", broker_id=leader)


@CHANGES.rule(
    "elected-from-elr", "the new leader was an eligible leader replica (KIP-966)", precedence=81, needs=LEADER
)
def elected_from_elr(change: PartitionChange) -> Reason | None:
    before, leader = change.before, change.after.leader
    if before.leader == NO_LEADER or leader in before.isr or not _is_elected(change):
        return None
    return Reason(f"broker {leader} was eligible (ELR {ids(before.elr)})", broker_id=leader)


# -- reassignments -------------------------------------------------------------------------------------------

_REASSIGNED = REPLICAS | LEADER | ISR


def _reassigned(change: PartitionChange, rule: str, verb: str) -> Reason | None:
    before, after = change.before, change.after
    if reassignment(before, after) != rule:
        return None
    text = f"{verb}: replicas {ids(before.replicas)} -> {ids(after.replicas)}"
    if after.adding or after.removing:
        text += f" (adding {ids(after.adding)}, removing {ids(after.removing)})"
    return Reason(text)


@CHANGES.rule(
    "reassignment-completed",
    "a reassignment ended without the replicas that were being removed",
    precedence=70,
    needs=REPLICAS,
    explains=_REASSIGNED,
)
def reassignment_completed(change: PartitionChange) -> Reason | None:
    return _reassigned(change, "reassignment-completed", "the reassignment was completed")


@CHANGES.rule(
    "reassignment-cancelled",
    "a reassignment ended without the replicas that were being added: it was cancelled, or the replicas were "
    "assigned "
    "back",
    precedence=71,
    needs=REPLICAS,
    explains=_REASSIGNED,
    severity=WARNING,
)
def reassignment_cancelled(change: PartitionChange) -> Reason | None:
    return _reassigned(change, "reassignment-cancelled", "the reassignment was cancelled or reversed")


@CHANGES.rule(
    "reassignment-changed",
    "an ongoing reassignment got another target, or ended with other replicas than planned",
    precedence=72,
    needs=REPLICAS,
    explains=REPLICAS | ISR,
)
def reassignment_changed(change: PartitionChange) -> Reason | None:
    return _reassigned(change, "reassignment-changed", "the reassignment was changed")


@CHANGES.rule(
    "reassignment-started",
    "replicas start to be added or removed",
    precedence=73,
    needs=REPLICAS,
    explains=REPLICAS | ISR,
)
def reassignment_started(change: PartitionChange) -> Reason | None:
    return _reassigned(change, "reassignment-started", "the reassignment was started")


@CHANGES.rule(
    "replicas-changed",
    "the replica list changed in one step, with nothing to copy",
    precedence=74,
    needs=REPLICAS,
    explains=_REASSIGNED,
)
def replicas_changed(change: PartitionChange) -> Reason | None:
    return _reassigned(change, "replicas-changed", "the replicas were changed at once")


@CHANGES.rule(
    "replica-caught-up",
    "a replica joined the ISR",
    precedence=85,
    needs=ISR,
    explains=ISR | LEADER,
    severity=DETAIL,
)
def caught_up(change: PartitionChange) -> Reason | None:
    before, after = change.before, change.after
    if was_unclean(before, after):
        return None
    joined = [broker for broker in after.isr if broker not in before.isr]
    if after.leader != before.leader and after.leader in before.elr:
        joined = [broker for broker in joined if broker != after.leader]  # it was eligible and leads now
    if not joined:
        return None
    which = f"broker {joined[0]}" if len(joined) == 1 else f"brokers {ids(joined)}"
    return Reason(f"{which} caught up: ISR {ids(before.isr)} -> {ids(after.isr)}", broker_id=joined[0])


# -- directories ---------------------------------------------------------------------------------------------


def is_damaged(registration: BrokerRegistration | None, directory_id: bytes | None) -> bool:
    """Whether a broker reported that its replica's log is damaged (ADR 13)."""
    if registration is None or directory_id in registration.directories:
        return False
    return any(directory_id == damaged_in(directory) for directory in registration.directories)


@MOVES.rule(
    "replica-damaged",
    "a broker reported the log of its replica as damaged",
    precedence=20,
    severity=WARNING,
    explains=DIRECTORIES | LEADER,
)
def replica_damaged(move: DirectoryChange) -> Reason | None:
    if not is_damaged(move.known, move.new):
        return None
    text = f"broker {move.broker} cannot read its replica, whose log is damaged (its own log names the file)"
    return Reason(text, broker_id=move.broker)


@MOVES.rule(
    "replica-whole",
    "a broker reported that the damaged log of its replica is intact again",
    precedence=90,
    explains=DIRECTORIES,
)
def replica_whole(move: DirectoryChange) -> Reason | None:
    if move.old != damaged_in(move.new):
        return None
    return Reason(
        f"broker {move.broker} reported that its damaged replica is intact again", broker_id=move.broker
    )


@MOVES.rule(
    "replica-given-up",
    "a broker gave up the damaged log of its replica, to recreate it",
    precedence=91,
    explains=DIRECTORIES,
)
def replica_given_up(move: DirectoryChange) -> Reason | None:
    if move.known is None or move.new not in map(given_up_in, move.known.directories):
        return None
    return Reason(f"broker {move.broker} gave up its damaged replica, to recreate it", broker_id=move.broker)


@MOVES.rule(
    "directory-failed",
    "the record moves the replica to the lost directory",
    precedence=92,
    explains=DIRECTORIES | LEADER,
    severity=DETAIL,
)
def directory_gone(move: DirectoryChange) -> Reason | None:
    if move.new != LOST:
        return None
    return Reason(f"broker {move.broker} has its replica in a lost directory", broker_id=move.broker)


@MOVES.rule(
    "directory-assigned",
    "a broker reported which log directory holds a replica",
    precedence=93,
    explains=DIRECTORIES,
    severity=DETAIL,
)
def directory_assigned(move: DirectoryChange) -> Reason | None:
    if move.old not in (UNASSIGNED, MIGRATING, LOST):
        return None
    return Reason(f"broker {move.broker} reported the directory of its replica", broker_id=move.broker)


@MOVES.rule(
    "directory-moved",
    "a replica is in another log directory: it was moved, or recreated there",
    precedence=94,
    explains=DIRECTORIES,
)
def directory_moved(move: DirectoryChange) -> Reason | None:
    if move.new in (UNASSIGNED, MIGRATING, LOST):
        return None
    text = f"broker {move.broker} now has its replica in another directory: it was moved or recreated"
    return Reason(text, broker_id=move.broker)


# -- the rest ------------------------------------------------------------------------------------------------


@CHANGES.rule(
    "recovery-finished",
    "the leader of an unclean election finished recovering the partition (KIP-704)",
    precedence=86,
    needs=RECOVERY,
)
def recovery_finished(change: PartitionChange) -> Reason | None:
    before, after = change.before, change.after
    if (before.leader_recovery_state, after.leader_recovery_state) != (RECOVERING, RECOVERED):
        return None
    return Reason(f"leader {after.leader} settled the partition after the unclean election")


@CHANGES.rule(
    "leader-epoch-raised",
    "the record names the current leader again, which raises the leader epoch",
    precedence=87,
    needs=EPOCH,
)
def leader_epoch_raised(change: PartitionChange) -> Reason | None:
    before, after, named = change.before, change.after, getattr(change.record, "leader", None)
    if named is None or named != before.leader:
        return None
    who = f"leader {named}" if named != NO_LEADER else "no leader"
    return Reason(f"{who} stays, leader epoch {before.leader_epoch} -> {after.leader_epoch}")


@CHANGES.rule(
    "eligible-leaders-changed",
    "the eligible leader replicas, or the last known leader, changed (KIP-966)",
    precedence=88,
    needs=ELIGIBLE,
)
def eligible_leaders_changed(change: PartitionChange) -> Reason | None:
    before, after = change.before, change.after
    text = f"eligible leaders {ids(before.elr)} -> {ids(after.elr)}"
    if before.elr == after.elr:
        text = f"last known leaders {ids(before.last_known_elr)} -> {ids(after.last_known_elr)}"
    if isinstance(change.record, r.ClearElrRecord):
        text = f"{text}: cleared, because {MIN_INSYNC_REPLICAS} was set (KIP-966)"
    return Reason(text)
