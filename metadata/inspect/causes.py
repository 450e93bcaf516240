"""Why a partition or a broker is as it is: named rules that derive a cause from what stands in the log.

Owns the rules and their texts; their names are in `cause_rules` and docs/log-tools.md. A rule sees one step
(before, record, after), what the same batch says about brokers, and what the log said before: a controller
writes what it decided, not why, so every cause is derived and none is invented. Where no rule fits, the cause
is `unexplained`. Heartbeats, requests of operators and the lag of followers are in no log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from metadata import control_records as control
from metadata import records as r
from metadata.image import LOST, MIGRATING, UNASSIGNED
from metadata.image.types import NO_LEADER, RECOVERED, RECOVERING, PartitionInfo
from metadata.inspect.changes import (
    UNCLEAN_ELECTION,
    BatchChanges,
    BrokerStep,
    ChangeFeed,
    PartitionStep,
)
from metadata.inspect.points import utc_text

FETCH_TIMEOUT_MS = 2_000
"""The default of controller.quorum.fetch.timeout.ms: before it has passed in silence no voter stands for
election, unless the leader told it to (KIP-595)."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One derived cause. `rule` is a key of `cause_rules.RULES`; `offset` is that of the record that
    is the cause, if it is another one; `broker_id` the broker that it is about."""

    rule: str
    text: str
    offset: int | None = None
    broker_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a rule may look at besides the step: the batch, and the feed that has just applied it."""

    batch: BatchChanges
    feed: ChangeFeed

    def since(self, place: tuple[int, int] | None) -> str:
        return "" if place is None else f"{place[0]} ({utc_text(place[1])})"


def partition_causes(step: PartitionStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a partition, the most telling cause first; never empty."""
    before, after = step.before, step.after
    if after is None:
        return (Cause(rule="deleted", text=f"topic {step.topic} was deleted", offset=step.offset),)
    if before is None:
        return (_created(step, after, scene),)
    # A rule is asked only where what it compares differs: most changes are of one kind.
    led, isr = before.leader != after.leader, before.isr != after.isr
    replicas = before.replicas != after.replicas
    found: list[Cause] = []
    if led:
        found += _unclean(before, after, scene, step)
    if led or isr:
        found += _losses(before, after, scene)
    if led:
        found += _no_leader(before, after, scene, step)
        found += _elected(before, after, scene)
    if replicas or before.adding != after.adding or before.removing != after.removing:
        found += _reassigned(before, after)
    if isr:
        found += _isr_grew(before, after)
    if replicas or before.directories != after.directories:
        found += _directories(before, after)
    found += _epochs(before, after, step)
    if not found:
        return (Cause(rule="unexplained", text="nothing in the log says why"),)
    return tuple(found)


def _created(step: PartitionStep, after: PartitionInfo, scene: Scene) -> Cause:
    topic = any(info.name == step.topic for _, info in scene.batch.created)
    what = f"created with topic {step.topic}" if topic else f"added to topic {step.topic}"
    return Cause(rule="created", text=f"{what}: replicas {_ids(after.replicas)}, ISR {_ids(after.isr)}")


def was_unclean(before: PartitionInfo, after: PartitionInfo) -> bool:
    """A leader from outside the ISR. While a reassignment ends, the ISR grows in the same record."""
    if after.leader in (before.leader, NO_LEADER) or after.leader in before.isr + before.elr:
        return False
    recovering = after.leader_recovery_state == RECOVERING and before.leader_recovery_state == RECOVERED
    ended = bool(before.adding or before.removing) and not (after.adding or after.removing)
    return recovering or (after.isr == (after.leader,) and not ended)


def _unclean(
    before: PartitionInfo, after: PartitionInfo, scene: Scene, step: PartitionStep
) -> Iterator[Cause]:
    if was_unclean(before, after):
        allowed = scene.feed.topic_config(step.topic, UNCLEAN_ELECTION) == "true"
        asked = f"{UNCLEAN_ELECTION} is true" if allowed else "somebody asked for it"
        text = (
            f"broker {after.leader} was elected although the ISR was {_ids(before.isr)}: records that it"
            f" did not have are lost; {asked}"
        )
        yield Cause(rule="unclean-election", text=text, broker_id=after.leader)


def _unclean_text(scene: Scene, topic: str) -> str:
    value = scene.feed.topic_config(topic, UNCLEAN_ELECTION)
    return f"{UNCLEAN_ELECTION} is {value}" if value else f"{UNCLEAN_ELECTION} is not set, so false"


def _losses(before: PartitionInfo, after: PartitionInfo, scene: Scene) -> Iterator[Cause]:
    """A cause for every broker that left the ISR or lost the leadership."""
    losers = [broker for broker in before.isr if broker not in after.isr]
    if after.leader != before.leader != NO_LEADER and before.leader not in losers:
        losers.insert(0, before.leader)
    for broker in losers:
        if broker not in after.replicas:
            continue  # the reassignment took it; its own cause says so
        cause = broker_loss(broker, before, scene)
        if cause is not None:
            yield cause
        elif broker != before.leader:
            text = f"broker {broker} left the ISR while it was active: its replica did not keep up"
            yield Cause(rule="replica-lagged", text=text, broker_id=broker)
        elif after.leader == after.replicas[0] and broker in after.isr:
            text = f"broker {after.leader} is the preferred (first) replica; broker {broker} was active"
            yield Cause(rule="preferred-election", text=text, broker_id=after.leader)
        elif not _reassignment_ended(before, after):
            text = f"broker {broker} gave up the leadership; nothing in the log says why"
            yield Cause(rule="unexplained", text=text, broker_id=broker)


def broker_loss(broker: int, before: PartitionInfo, scene: Scene) -> Cause | None:
    """Why a broker can lead nothing and be in no ISR now; None while it can."""
    for step in scene.batch.steps_of(broker):
        if step.after is None:
            return _broker_cause("broker-unregistered", f"was unregistered at {step.offset}", step)
        if step.began_shutdown:
            return _broker_cause(
                "controlled-shutdown", f"began its controlled shutdown at {step.offset}", step
            )
        if step.was_fenced:
            if step.is_registration:
                return _broker_cause("broker-restarted", f"registered anew at {step.offset}", step)
            text = f"was fenced at {step.offset} ({_fence_reason(step, scene)})"
            return _broker_cause("broker-fenced", text, step)
        if before.directory_of(broker) in step.lost_directories:
            return _broker_cause("directory-failed", f"lost this log directory at {step.offset}", step)
    return _known_loss(broker, before, scene)


def _broker_cause(rule: str, text: str, step: BrokerStep) -> Cause:
    text = f"broker {step.broker_id} {text}"
    return Cause(rule=rule, text=text, offset=step.offset, broker_id=step.broker_id)


def _known_loss(broker: int, before: PartitionInfo, scene: Scene) -> Cause | None:
    """The same, from what was said before this batch."""
    known, story = scene.feed.brokers.get(broker), scene.feed.stories.get(broker)

    def cause(rule: str, text: str, place: tuple[int, int] | None) -> Cause:
        text = f"broker {broker} {text}" + (f" since {scene.since(place)}" if place else "")
        return Cause(rule=rule, text=text, offset=place[0] if place else None, broker_id=broker)

    if known is None:
        return cause("broker-unregistered", "is not registered", story.unregistered if story else None)
    if known.in_controlled_shutdown and not known.fenced:
        return cause("controlled-shutdown", "is in controlled shutdown", story.shutdown if story else None)
    if known.fenced:
        return cause("broker-fenced", "is fenced", story.fenced if story else None)
    directory = before.directory_of(broker)
    if directory == LOST or (
        known.directories
        and directory not in (None, UNASSIGNED, MIGRATING)
        and directory not in known.directories
    ):
        place = story.directory_lost if story else None
        return cause("directory-failed", "has this log directory offline", place)
    return None


def _fence_reason(step: BrokerStep, scene: Scene) -> str:
    story = scene.feed.stories.get(step.broker_id)
    if step.before is not None and step.before.in_controlled_shutdown:
        return "end of its controlled shutdown"
    unfenced = scene.since(story.unfenced if story else None)
    return "no heartbeat in time" + (f"; unfenced since {unfenced}" if unfenced else "")


def _no_leader(
    before: PartitionInfo, after: PartitionInfo, scene: Scene, step: PartitionStep
) -> Iterator[Cause]:
    if after.leader == NO_LEADER != before.leader:
        text = f"the ISR was {_ids(before.isr)} and none of it is left; {_unclean_text(scene, step.topic)}"
        yield Cause(rule="no-eligible-leader", text=text)


def _elected(before: PartitionInfo, after: PartitionInfo, scene: Scene) -> Iterator[Cause]:
    leader = after.leader
    if leader in (before.leader, NO_LEADER) or was_unclean(before, after):
        return
    if before.leader == NO_LEADER:
        unfenced = next((step.offset for step in scene.batch.steps_of(leader) if step.was_unfenced), None)
        story = scene.feed.stories.get(leader)
        if unfenced is None and story is not None and story.unfenced is not None:
            unfenced = story.unfenced[0]
        where = f" was unfenced at {unfenced} and" if unfenced is not None else ""
        text = f"broker {leader}{where} is in the ISR {_ids(before.isr)}"
        yield Cause(rule="broker-returned", text=text, offset=unfenced, broker_id=leader)
    elif leader in before.isr:
        text = f"broker {leader} was in the ISR {_ids(before.isr)}"
        yield Cause(rule="elected-from-isr", text=text, broker_id=leader)
    elif leader in before.elr:
        text = f"broker {leader} was eligible (ELR {_ids(before.elr)})"
        yield Cause(rule="elected-from-elr", text=text, broker_id=leader)


def _reassignment_ended(before: PartitionInfo, after: PartitionInfo) -> bool:
    return bool(before.adding or before.removing) and not (after.adding or after.removing)


def _reassigned(before: PartitionInfo, after: PartitionInfo) -> Iterator[Cause]:
    rule = reassignment(before, after)
    if rule is None:
        return
    change = f"replicas {_ids(before.replicas)} -> {_ids(after.replicas)}"
    if after.adding or after.removing:
        change += f" (adding {_ids(after.adding)}, removing {_ids(after.removing)})"
    verb = {"replicas-changed": "the replicas were changed at once"}.get(
        rule, f"the reassignment was {rule.partition('-')[2]}"
    )
    yield Cause(rule=rule, text=f"{verb}: {change}")


def reassignment(before: PartitionInfo, after: PartitionInfo) -> str | None:
    """Which reassignment rule a change fits; None if it is none."""
    moving, was_moving = bool(after.adding or after.removing), bool(before.adding or before.removing)
    same = (before.adding, before.removing) == (after.adding, after.removing)
    match was_moving, moving:
        case False, True:
            return "reassignment-started"
        case True, True:
            return None if same else "reassignment-changed"
        case True, False:
            kept = set(before.replicas) - set(before.removing)
            return "reassignment-completed" if set(after.replicas) == kept else "reassignment-cancelled"
    return None if before.replicas == after.replicas else "replicas-changed"


def _isr_grew(before: PartitionInfo, after: PartitionInfo) -> Iterator[Cause]:
    joined = [broker for broker in after.isr if broker not in before.isr]
    if after.leader != before.leader and after.leader in before.elr:
        joined = [broker for broker in joined if broker != after.leader]  # it was eligible, and leads now
    if joined and not was_unclean(before, after):
        which = f"broker {joined[0]}" if len(joined) == 1 else f"brokers {_ids(joined)}"
        text = f"{which} caught up: ISR {_ids(before.isr)} -> {_ids(after.isr)}"
        yield Cause(rule="replica-caught-up", text=text, broker_id=joined[0])


def _directories(before: PartitionInfo, after: PartitionInfo) -> Iterator[Cause]:
    for replica in after.replicas:
        old, new = before.directory_of(replica), after.directory_of(replica)
        if old is None or new is None or old == new:
            continue
        if old in (UNASSIGNED, MIGRATING, LOST):
            text = f"broker {replica} said where its replica lies"
            yield Cause(rule="directory-assigned", text=text, broker_id=replica)
        elif new not in (UNASSIGNED, MIGRATING, LOST):
            text = f"broker {replica} has its replica in another directory now"
            yield Cause(rule="directory-moved", text=text, broker_id=replica)


def _epochs(before: PartitionInfo, after: PartitionInfo, step: PartitionStep) -> Iterator[Cause]:
    if before.leader_recovery_state == RECOVERING and after.leader_recovery_state == RECOVERED:
        text = f"leader {after.leader} settled the partition after the unclean election"
        yield Cause(rule="recovery-finished", text=text)
    named = getattr(step.record, "leader", None)
    if named is not None and named == before.leader:
        text = f"leader {named} stays, leader epoch {before.leader_epoch} -> {after.leader_epoch}"
        yield Cause(rule="leader-epoch-raised", text=text)
    if (before.elr, before.last_known_elr) != (after.elr, after.last_known_elr):
        text = f"eligible leaders {_ids(before.elr)} -> {_ids(after.elr)}"
        yield Cause(rule="eligible-leaders-changed", text=text)


def broker_causes(step: BrokerStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a broker; never empty."""
    broker, before, after = step.broker_id, step.before, step.after
    if after is None:
        text = f"broker {broker} was unregistered"
        return (Cause(rule="broker-unregistered", text=text, broker_id=broker),)
    if step.is_registration:
        return (_registration(step),)
    found: list[Cause] = []
    if step.was_fenced:
        found.append(fence_cause(step, scene))
    if step.was_unfenced:
        text = f"broker {broker} sent heartbeats and had read the log up to its registration"
        found.append(Cause(rule="caught-up", text=text, broker_id=broker))
    if step.began_shutdown:
        text = f"broker {broker} asked for a controlled shutdown"
        found.append(Cause(rule="controlled-shutdown", text=text, broker_id=broker))
    if step.lost_directories:
        lost = len(step.lost_directories)
        left = len(after.directories)
        text = f"broker {broker} lost {lost} of its {lost + left} log directories"
        found.append(Cause(rule="directory-failed", text=text, broker_id=broker))
    if not found:
        rule = "unexplained" if before == after else "set"
        found.append(Cause(rule=rule, text="the registration changed", broker_id=broker))
    return tuple(found)


def _registration(step: BrokerStep) -> Cause:
    broker, before, after = step.broker_id, step.before, step.after
    if before is None or after is None:
        return Cause(rule="registered", text=f"broker {broker} registered", broker_id=broker)
    if before.incarnation_id == after.incarnation_id:
        text = f"the same process of broker {broker} registered again, broker epoch {after.epoch}"
        return Cause(rule="registered-again", text=text, broker_id=broker)
    text = f"broker {broker} was started again, broker epoch {before.epoch} -> {after.epoch}"
    return Cause(rule="broker-restarted", text=text, broker_id=broker)


def fence_cause(step: BrokerStep, scene: Scene) -> Cause:
    """Why a broker was fenced by a record that is no registration."""
    broker = step.broker_id
    if step.before is not None and step.before.in_controlled_shutdown:
        text, rule = f"the controlled shutdown of broker {broker} ended", "shutdown-finished"
    elif not _touched(broker, scene):
        rule = "stopped-idle"
        text = f"broker {broker} stopped in order while it led nothing, or no heartbeat came in time"
    else:
        text, rule = f"broker {broker}: {_fence_reason(step, scene)}", "session-expired"
    return Cause(rule=rule, text=text, broker_id=broker)


def _touched(broker: int, scene: Scene) -> bool:
    """Whether the batch took anything from the broker."""
    return any(
        step.before is not None and (step.before.leader == broker or broker in step.before.isr)
        for step in scene.batch.partitions
    )


def election_causes(
    record: control.LeaderChangeMessage,
    epoch: int,
    leader_before: int | None,
    epoch_before: int | None,
    silence_ms: int | None,
) -> tuple[Cause, ...]:
    """Why the quorum has this leader. The first record of an epoch says who voted for it (KIP-595);
    `silence_ms` is the time since the batch before it, None where that is not known."""
    granting = [voter.voter_id for voter in record.granting_voters]
    votes = f" by {_ids(granting)}" if granting else ""
    found = [Cause(rule="leader-elected", text=f"controller {record.leader_id} was elected{votes}")]
    if leader_before is not None and leader_before != record.leader_id and granting:
        who = f"controller {leader_before}, which led before,"
        if leader_before in granting:
            found.append(Cause(rule="leader-resigned", text=f"{who} voted for it"))
        elif silence_ms is not None and silence_ms < FETCH_TIMEOUT_MS:
            text = f"{who} wrote until {silence_ms} ms before: it resigned"
            found.append(Cause(rule="leader-resigned", text=text))
        else:
            found.append(Cause(rule="leader-lost", text=f"{who} fell silent and did not vote"))
    if epoch_before is not None and epoch > epoch_before + 1:
        skipped = f"{epoch_before + 1}" if epoch == epoch_before + 2 else f"{epoch_before + 1} to {epoch - 1}"
        found.append(Cause(rule="epochs-skipped", text=f"nobody won epoch {skipped}"))
    return tuple(found)


def record_causes(record: object) -> tuple[Cause, ...]:
    """Causes of records that stand for themselves: settings, features, users, topics."""
    match record:
        case r.ConfigRecord(value=None, name=name):
            return (Cause(rule="removed", text=f"{name} was removed"),)
        case r.ConfigRecord(name=name, value=value):
            return (Cause(rule="set", text=f"{name} was set to {value}"),)
        case r.ClientQuotaRecord(key=key, remove=True):
            return (Cause(rule="removed", text=f"{key} was removed"),)
        case r.ClientQuotaRecord(key=key, value=quota):
            return (Cause(rule="set", text=f"{key} was set to {quota:g}"),)
        case r.FeatureLevelRecord(name=name, feature_level=level):
            return (Cause(rule="set", text=f"{name} was set to level {level}"),)
        case r.TopicRecord(name=name):
            return (Cause(rule="created", text=f"topic {name} was created"),)
        case r.AccessControlEntryRecord(principal=principal, resource_name=resource):
            return (Cause(rule="set", text=f"{principal} on {resource}"),)
        case r.RemoveTopicRecord():
            return (Cause(rule="deleted", text="the topic was deleted"),)
        case r.ControllerRecord(controller_id=node):
            return (Cause(rule="set", text=f"controller {node} registered"),)
        case (
            r.RemoveAccessControlEntryRecord()
            | r.RemoveUserScramCredentialRecord()
            | r.RemoveDelegationTokenRecord()
        ):
            return (Cause(rule="removed", text="it was removed"),)
    return (Cause(rule="set", text="the record says so"),)


def _ids(listed: tuple[int, ...] | list[int]) -> str:
    return "[" + ",".join(map(str, listed)) + "]"
