"""Every rule of cause, and the causes of a partition's change, which several kinds of rules find.

`log why --rules`, the words of a summary and the page come from here. The modules of the rules add theirs to
the lists: a new rule needs no line here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from metaquorum.metadata.image.types import NO_LEADER, PartitionInfo
from metaquorum.metadata.inspect.causes.brokers import BROKERS, FENCES, STATES
from metaquorum.metadata.inspect.causes.elections import ELECTIONS
from metaquorum.metadata.inspect.causes.losses import LOSSES, ReplicaLoss
from metaquorum.metadata.inspect.causes.partitions import CHANGES, MOVES, DirectoryChange, PartitionChange
from metaquorum.metadata.inspect.causes.records import RECORDS
from metaquorum.metadata.inspect.causes.rule import (
    DIRECTORIES,
    ELIGIBLE,
    EPOCH,
    FIELDS,
    INFO,
    ISR,
    LEADER,
    RECOVERY,
    REPLICAS,
    WARNING,
    Cause,
    CauseRule,
    CauseRules,
    Reason,
    Scene,
    ids,
)
from metaquorum.metadata.inspect.changes.change_steps import PartitionStep
from metaquorum.metadata.records.batch_cause import BatchCause

WRITTEN: CauseRules[BatchCause] = CauseRules("asked: the controller itself (written in the batch)")


def _wrote(name: str, when: str) -> None:
    """Why the active controller wrote records on its own initiative, as its batches say (docs/adr/0015)."""

    def find(cause: BatchCause) -> Reason | None:
        return Reason(when) if cause.rule == name else None

    WRITTEN.rule(name, when, precedence=len(WRITTEN.rules))(find)


_wrote("session-expired", "a broker sent no heartbeat in time")
_wrote("metadata-lag", "a broker applied nothing for too long")
_wrote("fence-requested", "a broker asked to be fenced")
_wrote("controlled-shutdown", "a broker asked to shut down")
_wrote("directory-failed", "a broker reported failed log directories")
_wrote("new-incarnation", "a broker registered while its earlier process was unfenced")
_wrote("fenced-broker-leads", "a fenced broker led partitions when the leadership of the quorum began")
_wrote("leadership-began", "a new active controller checked leaderless partitions")
_wrote("leader-balance", "leaderships returned to preferred replicas, or a leaderless partition got a leader")
_wrote("eligible-leaders-off", "eligible leader replicas were switched off")
_wrote("token-expired", "a delegation token expired")
_wrote("broker-id-unused", "a binding or claim of a broker id was obsolete")
_wrote("controller-registered", "a new active controller published the levels that it supports")
_wrote("transaction-abandoned", "an earlier active controller left a metadata transaction open")


TABLE: tuple[CauseRules[Any], ...] = (CHANGES, LOSSES, MOVES, BROKERS, FENCES, STATES, ELECTIONS, RECORDS)
"""The rules that derive causes from records."""

MAY_BE_FENCE = frozenset(rule.name for rule in LOSSES.rules if rule.may_be_fence)
"""Rules that match a split fence before its own record arrives."""


PRECEDENCE: dict[str, int] = {}
EXPLAINS: dict[str, int] = {}
"""Of the rules about partitions by name: several kinds of changes may have one of the same name."""
for _rules in (CHANGES, LOSSES, MOVES):
    for _rule in _rules.rules:
        PRECEDENCE[_rule.name] = min(_rule.precedence, PRECEDENCE.get(_rule.name, _rule.precedence))
        EXPLAINS[_rule.name] = _rule.explains | EXPLAINS.get(_rule.name, 0)


def partition_causes(step: PartitionStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a partition, the most specific cause first. Never empty."""
    before, after = step.before, step.after
    if after is None:
        return (Cause(rule="deleted", text=f"topic {step.topic} was deleted", offset=step.offset),)
    if before is None:
        return (_created(step, after, scene),)
    change = PartitionChange(before, after, step.topic, step.record, scene)
    differing = _differing(change)
    causes = list(CHANGES.all(change, differing))
    if differing & (LEADER | ISR):
        losses = (_loss_cause(loss) for loss in _losses(change))
        causes += [cause for cause in losses if cause is not None]
    if differing & DIRECTORIES:
        named = {(cause.rule, cause.broker_id) for cause in causes}
        moves = map(MOVES.first, _moves(change))
        causes += [one for one in moves if one is not None and (one.rule, one.broker_id) not in named]
    if not causes:
        return (Cause(rule="unexplained", text="nothing in the log says why"),)
    if len(causes) > 1:
        causes.sort(key=lambda cause: PRECEDENCE[cause.rule])
    return tuple(causes)


def loss_cause(
    broker: int, before: PartitionInfo, after: PartitionInfo, topic: str, scene: Scene
) -> Cause | None:
    """Why a broker stopped leading a partition; None if a reassignment ended that."""
    return _loss_cause(ReplicaLoss.of(broker, PartitionChange(before, after, topic, None, scene)))


def _loss_cause(loss: ReplicaLoss) -> Cause | None:
    return LOSSES.first_about(loss.broker, loss, loss.scene.losses)


def _created(step: PartitionStep, after: PartitionInfo, scene: Scene) -> Cause:
    topic = any(info.name == step.topic for _, info in scene.batch.created)
    what = f"created with topic {step.topic}" if topic else f"added to topic {step.topic}"
    return Cause(rule="created", text=f"{what}: replicas {ids(after.replicas)}, ISR {ids(after.isr)}")


def _differing(change: PartitionChange) -> int:
    before, after = change.before, change.after
    differing = LEADER if before.leader != after.leader else 0
    if before.isr != after.isr:
        differing |= ISR
    if before.replicas != after.replicas:
        differing |= REPLICAS | DIRECTORIES
    elif before.adding != after.adding or before.removing != after.removing:
        differing |= REPLICAS
    if before.directories != after.directories:
        differing |= DIRECTORIES
    if before.elr != after.elr or before.last_known_elr != after.last_known_elr:
        differing |= ELIGIBLE
    if before.leader_epoch != after.leader_epoch:
        differing |= EPOCH
    if before.leader_recovery_state != after.leader_recovery_state:
        differing |= RECOVERY
    return differing


def _losses(change: PartitionChange) -> Iterator[ReplicaLoss]:
    before, after = change.before, change.after
    losers = [broker for broker in before.isr if broker not in after.isr]
    if after.leader != before.leader != NO_LEADER and before.leader not in losers:
        losers.insert(0, before.leader)
    for broker in losers:
        if broker in after.replicas:  # otherwise removed by the reassignment, which has its own rule
            yield ReplicaLoss.of(broker, change)


def _moves(change: PartitionChange) -> Iterator[DirectoryChange]:
    for broker in change.after.replicas:
        old, new = change.before.directory_of(broker), change.after.directory_of(broker)
        if old is not None and new is not None and old != new:
            yield DirectoryChange(broker, old, new, change)


_FIELDS = {"leader": LEADER, "leaderEpoch": LEADER | EPOCH, "isr": ISR}


def causes_of_field(field: str | None, step: PartitionStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a field of a partition, or the partition as a whole (None). Never empty."""
    causes = partition_causes(step, scene)
    before, after, bits = step.before, step.after, _FIELDS.get(field or "", 0)
    if before is None or after is None or not bits:
        return causes
    if field != "isr" and (after.leader == before.leader or after.leader not in before.isr):
        return causes  # why no broker of the ISR leads is of interest, too
    moved = {*before.isr} ^ {*after.isr} if field == "isr" else {before.leader, after.leader}
    own = tuple(cause for cause in causes if _is_about(cause, bits, moved))
    return own or causes


def of_leader(causes: Iterable[Cause], old: int, new: int) -> Cause | None:
    """The cause that names a change of leader; None if none explains it."""
    return next((cause for cause in causes if _is_about(cause, LEADER, {old, new})), None)


def _is_about(cause: Cause, bits: int, brokers: set[int]) -> bool:
    return bool(EXPLAINS[cause.rule] & bits) and (cause.broker_id is None or cause.broker_id in brokers)


def word_of(rule: str | None) -> str:
    """A rule in a summary: one or two words."""
    name = rule or ""
    return _WORDS.get(name, name or "of unknown cause")


def severity_of(rules: CauseRules[Any], name: str | None, otherwise: str) -> str:
    """The severity of what a rule of one kind explains."""
    for rule in rules.rules:
        if rule.name == name:
            return str(rule.severity)
    return otherwise


def is_orderly(rule: str | None) -> bool:
    """Whether a fence by this rule is no fault."""
    return rule is not None and severity_of(FENCES, rule, severity_of(STATES, rule, WARNING)) == INFO


_WORDS: dict[str, str] = {
    rule.name: rule.word for rules in reversed(TABLE) for rule in reversed(rules.rules) if rule.word
}


def rule_lines() -> list[str]:
    """The table for a terminal."""
    lines: list[str] = []
    for rules in (*TABLE, WRITTEN):
        lines += ["", f"{rules.about}:"] if lines else [f"{rules.about}:"]
        for rule in rules.rules:
            lines.append(f"{rule.name:24}  {rule.when}")
            lines += [f"{'':24}  {what}? to confirm: {proof}" for what, proof in rule.readings]
    return lines


def render_document() -> str:
    """The table as a section of docs/log-tools.md."""
    lines: list[str] = []
    for rules in (*TABLE, WRITTEN):
        lines += ["", f"**{rules.about[0].upper()}{rules.about[1:]}**", ""]
        for rule in rules.rules:
            lines += textwrap.wrap(_row(rule), 120, subsequent_indent="  ", break_on_hyphens=False)
            for what, proof in rule.readings:
                text = f"  - {what}? To confirm: {proof}"
                lines += textwrap.wrap(text, 120, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines) + "\n\n"


def _row(rule: CauseRule[Any]) -> str:
    about = ", ".join(name for bit, name in FIELDS.items() if rule.explains & bit)
    notes = [part for part in (rule.severity if rule.severity != INFO else "", about) if part]
    return f"- `{rule.name}`" + (f" ({'; '.join(notes)})" if notes else "") + f": {rule.when}"
