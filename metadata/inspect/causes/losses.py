"""Rules about a broker that lost the leadership of a partition or left its ISR, but kept its replica.

For each such broker the first rule that fits counts.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from metaquorum.metadata.image.directories import is_mark
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.metadata.inspect.causes.brokers import FENCES, fence_text
from metaquorum.metadata.inspect.causes.partitions import PartitionChange, is_damaged, offline
from metaquorum.metadata.inspect.causes.rule import (
    DETAIL,
    DIRECTORIES,
    ELIGIBLE,
    EPOCH,
    ISR,
    LEADER,
    RECOVERY,
    REPLICAS,
    SHUTDOWN_LEVEL,
    WARNING,
    Alternative,
    CauseRules,
    Reason,
    Scene,
)
from metaquorum.metadata.inspect.changes.change_steps import BrokerStep, Place


class ReplicaLoss(NamedTuple):
    """A broker that lost the leadership of a partition or left its ISR, but kept its replica."""

    broker: int
    change: PartitionChange
    scene: Scene
    registration: BrokerRegistration | None
    """Its registration after the batch."""

    @classmethod
    def of(cls, broker: int, change: PartitionChange) -> Self:
        return cls(broker, change, change.scene, change.scene.feed.brokers.get(broker))

    @property
    def led(self) -> bool:
        """Whether it lost the leadership."""
        return self.change.before.leader == self.broker != self.change.after.leader

    @property
    def leads(self) -> bool:
        """Whether it left an ISR that it still leads, which no controller writes."""
        return self.change.after.leader == self.broker

    def steps(self) -> list[BrokerStep]:
        """What the batch says about it."""
        return self.scene.batch.steps_of(self.broker)


LOSSES: CauseRules[ReplicaLoss] = CauseRules(
    "partitions: a broker lost the leadership or left the ISR",
    of_broker=frozenset(
        (
            "broker-unregistered",
            "broker-restarted",
            "registered-again",
            "controlled-shutdown",
            "broker-fenced",
        )
    ),
)


@LOSSES.rule(
    "replica-damaged",
    "a broker reported the log of its replica as damaged",
    precedence=30,
    severity=DETAIL,
    explains=LEADER | ISR,
)
def damaged(loss: ReplicaLoss) -> Reason | None:
    if is_damaged(loss.registration, loss.change.after.directory_of(loss.broker)):
        text = (
            f"broker {loss.broker} cannot read its replica, whose log is damaged (its own log names the file)"
        )
        return Reason(text, broker_id=loss.broker)
    known, directory = loss.registration, loss.change.before.directory_of(loss.broker)
    if known is None or directory is None or not known.is_active or not is_mark(known, directory):
        return None
    text = f"broker {loss.broker} cannot read its replica, whose log is damaged"
    return Reason(text, broker_id=loss.broker)


@LOSSES.rule(
    "broker-unregistered",
    "the same batch removes the broker's registration, or the broker has none",
    precedence=31,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="unregistered",
)
def unregistered(loss: ReplicaLoss) -> Reason | None:
    for step in loss.steps():
        if step.after is None:
            return _at(loss, "was unregistered", step)
    if loss.registration is not None or not loss.scene.feed.is_known:
        return None
    return _since(loss, "is not registered", loss.scene.story(loss.broker).unregistered)


@LOSSES.rule(
    "broker-restarted",
    "the same batch registers a new incarnation of the broker",
    precedence=32,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="restarted",
)
def restarted(loss: ReplicaLoss) -> Reason | None:
    for step in loss.steps():
        before, after = step.before, step.after
        if step.was_fenced and not step.is_registration:
            return None  # it was fenced before it registered
        if not step.is_registration or before is None or after is None:
            continue
        if before.incarnation_id != after.incarnation_id:
            return _at(loss, "restarted", step)
    return None


@LOSSES.rule(
    "registered-again",
    "the same incarnation of the broker registered again in the same batch, which fenced it",
    precedence=33,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="registered again",
)
def registered_again(loss: ReplicaLoss) -> Reason | None:
    for step in loss.steps():
        if step.is_registration and step.was_fenced:
            text = f"broker {loss.broker} registered again at {step.offset}, which fenced it"
            return Reason(text, offset=step.offset, broker_id=loss.broker)
    return None


@LOSSES.rule(
    "controlled-shutdown",
    "the same batch, or an earlier one, puts the broker in controlled shutdown, or the batch says that it is "
    "in one",
    precedence=34,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="controlled shutdown",
)
def stopping(loss: ReplicaLoss) -> Reason | None:
    for step in loss.steps():
        if step.began_shutdown:
            return _at(loss, "began its controlled shutdown", step)
    known = loss.registration
    if known is None or known.fenced:
        return None
    if known.in_controlled_shutdown:
        return _since(loss, "is in controlled shutdown", loss.scene.story(loss.broker).shutdown)
    if loss.scene.asked_rule == "controlled-shutdown" and not loss.scene.batch.brokers:
        return Reason(f"broker {loss.broker} asked to shut down", broker_id=loss.broker)
    return None


@LOSSES.rule(
    "broker-fenced",
    "the same batch, an earlier one, or one up to a second later fences the broker (a fence of many "
    "partitions takes "
    "several batches; the last one has the broker's own record), or the batch says that it is being fenced",
    precedence=35,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="fenced",
)
def fenced(loss: ReplicaLoss) -> Reason | None:
    broker, scene, registration = loss.broker, loss.scene, loss.registration
    for step in loss.steps():
        if step.was_fenced and step.after is not None and not step.is_registration:
            return _at(loss, "was fenced", step, f" ({fence_text(step, scene)})")
    if registration is None:
        return None
    if registration.fenced:
        return _since(loss, "is fenced", scene.story(broker).fenced)
    word = _FENCED_IN_SLICES.get(scene.asked_rule or "")
    if word is not None and not scene.batch.brokers:
        return Reason(f"broker {broker} was being fenced ({word})", broker_id=broker)
    return None


_FENCED_IN_SLICES = {
    rule.name: rule.word
    for rule in FENCES.rules
    if rule.name in ("session-expired", "fence-requested", "metadata-lag")
}


@LOSSES.rule(
    "directory-failed",
    "the same batch, or an earlier one, removes the replica's log directory from the broker's registration",
    precedence=36,
    severity=DETAIL,
    explains=LEADER | ISR,
    word="log directory failed",
)
def directory_failed(loss: ReplicaLoss) -> Reason | None:
    directory = loss.change.before.directory_of(loss.broker)
    for step in loss.steps():
        if directory in step.lost_directories:
            return _at(loss, "lost this log directory", step)
    known = loss.registration
    text = None if known is None else offline(loss.broker, loss.change.before, known)
    if text is None:
        return None
    story = loss.scene.story(loss.broker)
    if story.directory_lost is not None:
        return _since(loss, "has this log directory offline", story.directory_lost)
    return _since(loss, text, story.registered)


@LOSSES.rule(
    "preferred-election",
    "the first replica became the leader while the old leader was active: leaders were balanced, or someone "
    "requested "
    "the election",
    precedence=63,
    explains=LEADER,
)
def preferred(loss: ReplicaLoss) -> Reason | None:
    after = loss.change.after
    if not loss.led or after.leader != after.replicas[0] or loss.broker not in after.isr:
        return None
    if loss.registration is None:
        return None
    how = "the controller balanced the leaders, or someone requested it"
    if loss.scene.asked_rule == "leader-balance":
        how = "the controller balanced the leaders"
    elif loss.scene.request == "ElectLeaders":
        how = "someone requested it"
    text = f"broker {after.leader} is the preferred (first) replica; broker {loss.broker} was active; {how}"
    return Reason(text, broker_id=after.leader)


_LAGGED = Alternative("its replica fell behind", "the leader's log says that it shrinks the ISR")
_HIDDEN_SHUTDOWN = Alternative(
    "it began a controlled shutdown, which the log does not record below metadata.version 3.3-IV3",
    "its own log says so, and a fence follows soon",
)
_BEING_FENCED = Alternative("it was being fenced", "its fence follows within a second")


@LOSSES.rule(
    "replica-lagged",
    "a replica left the ISR while its broker was active and the leader stayed",
    precedence=64,
    severity=WARNING,
    explains=ISR,
    may_be_fence=True,
)
def lagged(loss: ReplicaLoss) -> Reason | None:
    is_known = loss.scene.metadata_version >= SHUTDOWN_LEVEL or loss.scene.request == "AlterPartition"
    if loss.led or loss.leads or loss.registration is None or not is_known:
        return None
    text = f"broker {loss.broker} left the ISR while it was active: its replica fell behind"
    return Reason(text, broker_id=loss.broker)


@LOSSES.rule(
    "lagged-or-stopping",
    "the same below metadata.version 3.3-IV3, which does not record controlled shutdowns: the log does not "
    "show which",
    precedence=65,
    severity=WARNING,
    explains=ISR,
    readings=(_LAGGED, _HIDDEN_SHUTDOWN),
    may_be_fence=True,
)
def lagged_or_stopping(loss: ReplicaLoss) -> Reason | None:
    if loss.led or loss.leads or loss.registration is None:
        return None
    text = f"broker {loss.broker} left the ISR while it was active"
    return Reason(text, broker_id=loss.broker, readings=(_LAGGED, _HIDDEN_SHUTDOWN))


@LOSSES.rule(
    "stopping-or-fenced",
    "an active broker lost the leadership below metadata.version 3.3-IV3: the log does not show whether it "
    "was "
    "stopping or being fenced",
    precedence=66,
    severity=DETAIL,
    explains=LEADER | ISR,
    readings=(_HIDDEN_SHUTDOWN, _BEING_FENCED),
    may_be_fence=True,
)
def stopping_or_fenced(loss: ReplicaLoss) -> Reason | None:
    if not loss.led or loss.registration is None or _ends_reassignment(loss.change):
        return None
    if loss.scene.metadata_version >= SHUTDOWN_LEVEL:
        return None
    text = f"broker {loss.broker} gave up the leadership"
    return Reason(text, broker_id=loss.broker, readings=(_HIDDEN_SHUTDOWN, _BEING_FENCED))


@LOSSES.rule(
    "unexplained",
    "no other rule fits",
    precedence=67,
    severity=DETAIL,
    explains=LEADER | ISR | REPLICAS | DIRECTORIES | ELIGIBLE | EPOCH | RECOVERY,
    word="unexplained",
    may_be_fence=True,
)
def unexplained(loss: ReplicaLoss) -> Reason | None:
    if loss.registration is None:
        text = (
            f"the earlier state of broker {loss.broker} is unknown: no snapshot has the state before this log"
        )
        return Reason(text, broker_id=loss.broker, is_certain=False)
    if loss.leads:
        text = f"broker {loss.broker} left the ISR, and leads the partition; nothing in the log says why"
        return Reason(text, broker_id=loss.broker)
    if not loss.led or _ends_reassignment(loss.change):
        return None
    text = f"broker {loss.broker} gave up the leadership; nothing in the log says why"
    return Reason(text, broker_id=loss.broker)


def _at(loss: ReplicaLoss, text: str, step: BrokerStep, more: str = "") -> Reason:
    text = f"broker {loss.broker} {text} at {step.offset}{more}"
    return Reason(text, offset=step.offset, broker_id=loss.broker)


def _since(loss: ReplicaLoss, text: str, moment: Place | None) -> Reason:
    since = loss.scene.since(moment)
    text = f"broker {loss.broker} {text}" + (f" since {since}" if since else "")
    return Reason(text, offset=moment[0] if moment else None, broker_id=loss.broker)


def _ends_reassignment(change: PartitionChange) -> bool:
    before, after = change.before, change.after
    return bool(before.adding or before.removing) and not (after.adding or after.removing)
