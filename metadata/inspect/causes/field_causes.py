"""Which causes of a partition change explain one of its fields.

One record may move the leader for one reason and remove another broker from the ISR for another. Owns that
choice. Does not find causes: `causes` does. If no broker of the ISR leads, causes of the whole ISR count.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.metadata.inspect.causes.cause_types import Cause, Scene
from metaquorum.metadata.inspect.causes.causes import partition_causes
from metaquorum.metadata.inspect.changes.change_steps import PartitionStep

_OF_LEADERS = ("preferred-election", "elected-from-isr", "elected-from-elr", "no-eligible-leader")
"""Rules that do not concern the ISR."""


def causes_of_field(field: str | None, step: PartitionStep, scene: Scene) -> tuple[Cause, ...]:
    """Why one record changed a field of a partition, or the partition as a whole (None). Never empty."""
    causes = partition_causes(step, scene)
    before, after = step.before, step.after
    if before is None or after is None:
        return causes
    if field in ("leader", "leaderEpoch") and after.leader != before.leader and after.leader in before.isr:
        return tuple(of_leaders(causes, before.leader, after.leader)) or causes
    if field == "isr":
        moved = {*before.isr} ^ {*after.isr}
        own = (one for one in causes if one.rule not in _OF_LEADERS and one.broker_id in (None, *moved))
        return tuple(own) or causes
    return causes


def of_leaders(causes: Iterable[Cause], old: int, new: int) -> Iterable[Cause]:
    """Causes that explain a change of leader; those about a third broker are left out."""
    return (cause for cause in causes if cause.broker_id in (None, old, new))
