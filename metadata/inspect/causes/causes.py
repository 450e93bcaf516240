"""Why a partition changed: named rules that derive a cause from the log.

Owns the rules about partitions and their texts. Rule names are in `cause_rules` and docs/log-tools.md; rules
about brokers, elections and other records are in `broker_causes`, `election_causes` and `record_causes`. A
rule sees one step (before, record, after), what the same batch says about brokers, and what the log said
before. A controller records its decision but not the reason, so every cause is derived from records. If other
histories leave the same records, the cause says so (`cannot_tell`); if no rule fits, the change is
`unexplained`. The log does not contain heartbeats, operators' requests or the lag of followers.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED
from metaquorum.metadata.image.damaged import damaged_in, given_up_in
from metaquorum.metadata.image.types import NO_LEADER, RECOVERED, RECOVERING, PartitionInfo
from metaquorum.metadata.inspect.causes.broker_causes import broker_causes, broker_loss, fence_cause
from metaquorum.metadata.inspect.causes.cause_types import SHUTDOWN_LEVEL, Cause, Scene, cannot_tell, ids
from metaquorum.metadata.inspect.causes.election_causes import FETCH_TIMEOUT_MS, election_causes
from metaquorum.metadata.inspect.causes.record_causes import record_causes
from metaquorum.metadata.inspect.changes.changes import MIN_INSYNC_REPLICAS, UNCLEAN_ELECTION, PartitionStep
from metaquorum.metadata.records import types as r

__all__ = [
    "FETCH_TIMEOUT_MS",
    "Cause",
    "Scene",
    "broker_causes",
    "election_causes",
    "fence_cause",
    "partition_causes",
    "reassignment",
    "record_causes",
    "was_unclean",
]


def partition_causes(step: PartitionStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a partition, the most specific cause first. Never empty."""
    before, after = step.before, step.after
    if after is None:
        return (Cause(rule="deleted", text=f"topic {step.topic} was deleted", offset=step.offset),)
    if before is None:
        return (_created(step, after, scene),)
    # Run a rule only if the fields that it compares differ: most changes are of one kind.
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
        found += _directories(before, after, scene)
    found += _epochs(before, after, step)
    if not found:
        return (Cause(rule="unexplained", text="nothing in the log says why"),)
    return tuple(found)


def _created(step: PartitionStep, after: PartitionInfo, scene: Scene) -> Cause:
    topic = any(info.name == step.topic for _, info in scene.batch.created)
    what = f"created with topic {step.topic}" if topic else f"added to topic {step.topic}"
    return Cause(rule="created", text=f"{what}: replicas {ids(after.replicas)}, ISR {ids(after.isr)}")


def was_unclean(before: PartitionInfo, after: PartitionInfo) -> bool:
    """Whether the new leader is from outside the ISR. The end of a reassignment grows the ISR, too."""
    if after.leader in (before.leader, NO_LEADER) or after.leader in before.isr + before.elr:
        return False
    recovering = after.leader_recovery_state == RECOVERING and before.leader_recovery_state == RECOVERED
    ended = bool(before.adding or before.removing) and not (after.adding or after.removing)
    return recovering or (after.isr == (after.leader,) and not ended)


def is_last_known(before: PartitionInfo, leader: int) -> bool:
    """Whether a controller with eligible leaders elects this one regardless of the setting."""
    return not before.isr and not before.elr and before.last_known_elr == (leader,)


def _unclean(
    before: PartitionInfo, after: PartitionInfo, scene: Scene, step: PartitionStep
) -> Iterator[Cause]:
    if was_unclean(before, after):
        if is_last_known(before, after.leader):
            text = (
                f"broker {after.leader} was elected as the last known leader, because no one was in the ISR"
                " or eligible (KIP-966): it may have lost records when it stopped uncleanly"
            )
            yield Cause(rule="unclean-election", text=text, broker_id=after.leader)
            return
        allowed, asked = _who_allowed(scene, step.topic)
        text = (
            f"broker {after.leader} was elected although the ISR was {ids(before.isr)}: records that it"
            f" did not have are lost; {asked}"
        )
        yield Cause(rule="unclean-election", text=text, broker_id=after.leader, certain=allowed)


def _who_allowed(scene: Scene, topic: str) -> tuple[bool, str]:
    """Whether the log shows what permitted an unclean election, and what that was. Unprompted, a controller
    elects when a broker's state or the setting changes, in the same batch."""
    setting = scene.feed.topic_config(topic, UNCLEAN_ELECTION)
    if setting is None and not scene.feed.is_known:
        return False, f"the value of {UNCLEAN_ELECTION} is unknown here"
    is_set = setting == "true"
    changed = any(key == UNCLEAN_ELECTION for _, _, key, _, _ in scene.batch.configs)
    by_itself = bool(scene.batch.brokers) or changed
    if is_set and by_itself:
        return True, f"{UNCLEAN_ELECTION} is true"
    if by_itself:
        return (
            True,
            f"{UNCLEAN_ELECTION} must be true in the controllers' own configuration, because the log does "
            "not set it",
        )
    asked = ("someone requested it", "the controller's log has the request to elect leaders")
    if is_set:
        return False, cannot_tell(
            (f"{UNCLEAN_ELECTION} is true", "the controller runs Kafka 3.9 or later"), asked
        )
    own = ("the controllers' own configuration allows it", f"it has {UNCLEAN_ELECTION}=true")
    return False, cannot_tell(asked, own)


def _unclean_text(scene: Scene, topic: str) -> str:
    value = scene.feed.topic_config(topic, UNCLEAN_ELECTION)
    if value == "true":
        return f"{UNCLEAN_ELECTION} is true, but no replica was active (or Kafka is older than 3.9)"
    if value is not None:
        return f"{UNCLEAN_ELECTION} is {value}"
    if not scene.feed.is_known:
        return f"the value of {UNCLEAN_ELECTION} is unknown here"
    return (
        f"{UNCLEAN_ELECTION} is not set in the log, so false unless the controllers' own configuration has it"
    )


def _losses(before: PartitionInfo, after: PartitionInfo, scene: Scene) -> Iterator[Cause]:
    """A cause for every broker that left the ISR or lost leadership."""
    losers = [broker for broker in before.isr if broker not in after.isr]
    if after.leader != before.leader != NO_LEADER and before.leader not in losers:
        losers.insert(0, before.leader)
    for broker in losers:
        if broker not in after.replicas:
            continue  # removed by the reassignment, which has its own cause
        if _is_damaged(broker, after, scene):
            continue  # its directory explains it
        cause = broker_loss(broker, before, scene)
        if cause is not None:
            yield cause
        elif broker != before.leader:
            yield _left_isr(broker, scene)
        elif after.leader == after.replicas[0] and broker in after.isr:
            text = (
                f"broker {after.leader} is the preferred (first) replica; broker {broker} was active; the "
                "controller balanced the leaders, or someone requested it"
            )
            yield Cause(rule="preferred-election", text=text, broker_id=after.leader)
        elif not _reassignment_ended(before, after):
            yield _gave_up(broker, scene)


_HIDDEN_SHUTDOWN = (
    "it began a controlled shutdown, which the log does not record below metadata.version 3.3-IV3",
    "its own log says so, and a fence follows soon",
)


def _left_isr(broker: int, scene: Scene) -> Cause:
    """An active follower left the ISR: removed by its leader, unless the log lacks its shutdown."""
    if scene.metadata_version >= SHUTDOWN_LEVEL:
        text = f"broker {broker} left the ISR while it was active: its replica fell behind"
        return Cause(rule="replica-lagged", text=text, broker_id=broker)
    lagged = ("its replica fell behind", "the leader's log says that it shrinks the ISR")
    text = f"broker {broker} left the ISR while it was active; {cannot_tell(lagged, _HIDDEN_SHUTDOWN)}"
    return Cause(rule="lagged-or-stopping", text=text, broker_id=broker, certain=False)


def _gave_up(broker: int, scene: Scene) -> Cause:
    if scene.metadata_version >= SHUTDOWN_LEVEL:
        text = f"broker {broker} gave up the leadership; nothing in the log says why"
        return Cause(rule="unexplained", text=text, broker_id=broker)
    fenced = ("it was being fenced", "its fence follows within a second")
    text = f"broker {broker} gave up the leadership; {cannot_tell(_HIDDEN_SHUTDOWN, fenced)}"
    return Cause(rule="stopping-or-fenced", text=text, broker_id=broker, certain=False)


def _no_leader(
    before: PartitionInfo, after: PartitionInfo, scene: Scene, step: PartitionStep
) -> Iterator[Cause]:
    if after.leader == NO_LEADER != before.leader:
        text = f"the ISR was {ids(before.isr)}, and none of it is active; {_unclean_text(scene, step.topic)}"
        yield Cause(rule="no-eligible-leader", text=text)


def _elected(before: PartitionInfo, after: PartitionInfo, scene: Scene) -> Iterator[Cause]:
    leader = after.leader
    if leader in (before.leader, NO_LEADER) or was_unclean(before, after):
        return
    if before.leader == NO_LEADER:
        yield _led_again(leader, before, scene)
    elif leader in before.isr:
        text = f"broker {leader} was in the ISR {ids(before.isr)}"
        yield Cause(rule="elected-from-isr", text=text, broker_id=leader)
    elif leader in before.elr:
        text = f"broker {leader} was eligible (ELR {ids(before.elr)})"
        yield Cause(rule="elected-from-elr", text=text, broker_id=leader)


def _led_again(leader: int, before: PartitionInfo, scene: Scene) -> Cause:
    """A partition has a leader again: its broker was unfenced, in this batch or in those right after."""
    place = next(
        ((step.offset, scene.batch.time_ms) for step in scene.batch.steps_of(leader) if step.was_unfenced),
        scene.story(leader).unfenced,
    )
    eligible = f"ISR {ids(before.isr)}" if leader in before.isr else f"ELR {ids(before.elr)}"
    if scene.is_just_before(place) and place is not None:
        text = f"broker {leader} was unfenced at {place[0]} and is in the {eligible}"
        return Cause(rule="broker-returned", text=text, offset=place[0], broker_id=leader)
    unfenced = scene.since(place)
    since = f" (unfenced since {unfenced})" if unfenced else ""
    text = f"broker {leader}{since} is in the {eligible}; " + cannot_tell(
        ("someone requested an election", "the controller's log has the request to elect leaders"),
        ("a new controller found it without a leader", "a controller election precedes it closely"),
    )
    return Cause(rule="led-again", text=text, broker_id=leader, certain=False)


def _reassignment_ended(before: PartitionInfo, after: PartitionInfo) -> bool:
    return bool(before.adding or before.removing) and not (after.adding or after.removing)


def _reassigned(before: PartitionInfo, after: PartitionInfo) -> Iterator[Cause]:
    rule = reassignment(before, after)
    if rule is None:
        return
    change = f"replicas {ids(before.replicas)} -> {ids(after.replicas)}"
    if after.adding or after.removing:
        change += f" (adding {ids(after.adding)}, removing {ids(after.removing)})"
    verb = {
        "replicas-changed": "the replicas were changed at once",
        "reassignment-cancelled": "the reassignment was cancelled or reversed",
    }.get(rule, f"the reassignment was {rule.partition('-')[2]}")
    yield Cause(rule=rule, text=f"{verb}: {change}")


def reassignment(before: PartitionInfo, after: PartitionInfo) -> str | None:
    """The reassignment rule that a change matches; None if there is none."""
    moving, was_moving = bool(after.adding or after.removing), bool(before.adding or before.removing)
    same = (before.adding, before.removing) == (after.adding, after.removing)
    match was_moving, moving:
        case False, True:
            return "reassignment-started"
        case True, True:
            return None if same else "reassignment-changed"
        case True, False:
            if set(after.replicas) == set(before.replicas) - set(before.removing):
                return "reassignment-completed"
            back = set(after.replicas) == set(before.replicas) - set(before.adding)
            return "reassignment-cancelled" if back else "reassignment-changed"
    return None if before.replicas == after.replicas else "replicas-changed"


def _isr_grew(before: PartitionInfo, after: PartitionInfo) -> Iterator[Cause]:
    joined = [broker for broker in after.isr if broker not in before.isr]
    if after.leader != before.leader and after.leader in before.elr:
        joined = [broker for broker in joined if broker != after.leader]  # it was eligible and leads now
    if joined and not was_unclean(before, after):
        which = f"broker {joined[0]}" if len(joined) == 1 else f"brokers {ids(joined)}"
        text = f"{which} caught up: ISR {ids(before.isr)} -> {ids(after.isr)}"
        yield Cause(rule="replica-caught-up", text=text, broker_id=joined[0])


def _is_damaged(replica: int, after: PartitionInfo, scene: Scene) -> bool:
    """Whether its broker reported that the replica's log is damaged (ADR 13)."""
    known, place = scene.feed.brokers.get(replica), after.directory_of(replica)
    return known is not None and place in [damaged_in(each) for each in known.directories]


def _directories(before: PartitionInfo, after: PartitionInfo, scene: Scene) -> Iterator[Cause]:
    for replica in after.replicas:
        old, new = before.directory_of(replica), after.directory_of(replica)
        if old is None or new is None or old == new:
            continue
        known = scene.feed.brokers.get(replica)
        if _is_damaged(replica, after, scene):
            text = (
                f"broker {replica} cannot read its replica, whose log is damaged (its own log names the file)"
            )
            yield Cause(rule="replica-damaged", text=text, broker_id=replica)
        elif old == damaged_in(new):
            text = f"broker {replica} reported that its damaged replica is intact again"
            yield Cause(rule="replica-whole", text=text, broker_id=replica)
        elif known is not None and new in map(given_up_in, known.directories):
            text = f"broker {replica} gave up its damaged replica, to recreate it"
            yield Cause(rule="replica-given-up", text=text, broker_id=replica)
        elif new == LOST:
            text = f"broker {replica} has its replica in a lost directory"
            yield Cause(rule="directory-failed", text=text, broker_id=replica)
        elif old in (UNASSIGNED, MIGRATING, LOST):
            text = f"broker {replica} reported the directory of its replica"
            yield Cause(rule="directory-assigned", text=text, broker_id=replica)
        elif new not in (UNASSIGNED, MIGRATING, LOST):
            text = f"broker {replica} now has its replica in another directory: it was moved or recreated"
            yield Cause(rule="directory-moved", text=text, broker_id=replica)


def _epochs(before: PartitionInfo, after: PartitionInfo, step: PartitionStep) -> Iterator[Cause]:
    if before.leader_recovery_state == RECOVERING and after.leader_recovery_state == RECOVERED:
        text = f"leader {after.leader} settled the partition after the unclean election"
        yield Cause(rule="recovery-finished", text=text)
    named = getattr(step.record, "leader", None)
    if named is not None and named == before.leader:
        who = f"leader {named}" if named != NO_LEADER else "no leader"
        text = f"{who} stays, leader epoch {before.leader_epoch} -> {after.leader_epoch}"
        yield Cause(rule="leader-epoch-raised", text=text)
    if (before.elr, before.last_known_elr) != (after.elr, after.last_known_elr):
        text = f"eligible leaders {ids(before.elr)} -> {ids(after.elr)}"
        if before.elr == after.elr:
            text = f"last known leaders {ids(before.last_known_elr)} -> {ids(after.last_known_elr)}"
        if isinstance(step.record, r.ClearElrRecord):
            text = f"{text}: cleared, because {MIN_INSYNC_REPLICAS} was set (KIP-966)"
        yield Cause(rule="eligible-leaders-changed", text=text)
