"""What one record did to a broker, as events.

Owns which changes of a broker are events, and their texts. Knows no files; keeps nothing between batches, as
`broker_spans` does.
"""

from __future__ import annotations

from collections.abc import Iterator

from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.metadata.inspect.causes.causes import Scene, fence_cause
from metaquorum.metadata.inspect.changes.changes import BrokerStep
from metaquorum.metadata.inspect.timeline.event_groups import Grouped, broker_word, count


def broker_events(step: BrokerStep, scene: Scene) -> Iterator[Grouped]:
    """Registered, fenced, unfenced, shutting down, unregistered, and changes of its log directories."""
    node, was = step.broker_id, broker_word(step)

    def told(kind: str, text: str, severity: str = "info", rule: str | None = None) -> Grouped:
        entity = f"broker/{node}"
        return Grouped(step.offset, kind, entity, text, severity, rule, (entity,))

    if step.after is None:
        yield told("broker unregistered", f"broker {node}")
        return
    if step.is_registration:
        again = " again" if step.before is not None else ""
        text = f"broker {node}{again}, broker epoch {step.after.epoch}"
        if step.was_fenced:
            text += " (was unfenced)"
        yield told("broker registered", text, "warning" if step.was_fenced else "info")
        return
    if step.was_fenced:
        cause = fence_cause(step, scene)
        text = f"broker {node} (was {was})"
        if not cause.certain:
            text += "; it shut down cleanly or sent no heartbeat; the log does not show which"
        is_odd = cause.rule == "session-expired" or not (cause.certain or scene.feed.is_known)
        severity = "warning" if is_odd else "info"
        yield told("broker fenced", text, severity, cause.rule)
    if step.was_unfenced:
        yield told("broker unfenced", f"broker {node} (was {was})", rule="caught-up")
    if step.began_shutdown:
        yield told("broker in controlled shutdown", f"broker {node} (was {was})")
    if step.lost_directories:
        yield told("directory failed", _directories_lost(step, scene), "warning", "directory-failed")
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
    text = f"broker {step.broker_id} lost {count(len(lost), 'log directory')}, {left} left online"
    if hurt:
        text += f"; {count(len(hurt), 'partition')} affected, {leaderless} without a leader"
    return text
