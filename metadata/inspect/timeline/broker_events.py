"""What one record did to a broker, as events."""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.causes.brokers import BROKERS, FENCES, STATES, broker_causes
from metaquorum.metadata.inspect.causes.rule import INFO, Scene
from metaquorum.metadata.inspect.causes.table import severity_of
from metaquorum.metadata.inspect.changes.changes import BrokerStep
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, broker_word, count, listed
from metaquorum.storage.uuids import uuid_to_text


def broker_events(step: BrokerStep, scene: Scene) -> Iterator[Grouped]:
    """Registered, fenced, unfenced, shutting down, unregistered, and changes of its log directories."""
    node, was = step.broker_id, broker_word(step)

    def told(kind: str, text: str, severity: str = "info", rule: str | None = None) -> Grouped:
        entity = f"broker/{node}"
        return Grouped(step.offset, kind, entity, text, severity, rule, (entity,))

    causes = broker_causes(step, scene)
    rules = [cause.rule for cause in causes]
    if step.after is None:
        yield told("broker unregistered", f"broker {node}", rule=rules[0])
        return
    if step.is_registration:
        again = " again" if step.before is not None else ""
        text = f"broker {node}{again}, broker epoch {step.after.epoch}"
        severity = INFO
        if step.was_fenced:
            text, severity = f"{text} (was unfenced)", severity_of(BROKERS, rules[0], INFO)
        yield told("broker registered", text, severity, rules[0])
        return
    if step.was_fenced:
        text = f"broker {node} (was {was})"
        if not causes[0].certain:
            text += f"; {causes[0].doubt or 'the log does not show why'}"
        fenced = told("broker fenced", text, severity_of(FENCES, rules[0], INFO), rules[0])
        yield fenced._replace(is_doubtful=not causes[0].certain)
    if step.was_unfenced:
        yield told("broker unfenced", f"broker {node} (was {was})", rule="caught-up")
    if step.began_shutdown:
        yield told("broker in controlled shutdown", f"broker {node} (was {was})", rule="controlled-shutdown")
    if step.lost_directories:
        severity = severity_of(STATES, "directory-failed", INFO)
        yield told("directory failed", _directories_lost(step, scene), severity, "directory-failed")
    elif step.before is not None and step.after.directories != step.before.directories:
        text = f"broker {node} has {count(len(step.after.directories), 'log directory')} online"
        yield told("directories changed", text)


def _directories_lost(step: BrokerStep, scene: Scene) -> str:
    lost, after = step.lost_directories, step.after
    left = 0 if after is None else len(after.directories)
    hurt = [
        at
        for at in scene.batch.partitions
        if at.before is not None and at.before.directory_of(step.broker_id) in lost
    ]
    leaderless = sum(at.after is not None and at.after.leader == NO_LEADER for at in hurt)
    named = listed([uuid_to_text(one) for one in sorted(lost)])
    text = f"broker {step.broker_id} lost {count(len(lost), 'log directory')} ({named}), {left} left online"
    if hurt:
        text += f"; {count(len(hurt), 'partition')} affected, {leaderless} without a leader"
    return text
