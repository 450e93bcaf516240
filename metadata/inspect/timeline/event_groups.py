"""Many changes of one batch as few events: everything that changed the same way is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from metaquorum.metadata.image.types import NO_LEADER, Acl, ConfigResource
from metaquorum.metadata.inspect.causes.losses import LOSSES
from metaquorum.metadata.inspect.causes.partitions import CHANGES, MOVES
from metaquorum.metadata.inspect.causes.rule import Cause
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE, of_leader, severity_of
from metaquorum.metadata.inspect.changes.changes import BatchChanges, BrokerStep, PartitionStep
from metaquorum.metadata.inspect.changes.leaderships import is_last_known, reassignment
from metaquorum.metadata.inspect.changes.record_texts import acl_text, quota_text, scram_text
from metaquorum.metadata.inspect.timeline.span import bound_of
from metaquorum.metadata.inspect.timeline.spans import SpanChanges
from metaquorum.metadata.records import types as r
from metaquorum.metadata.secrets import setting_shown
from metaquorum.metadata.text.tree import DEFAULT_ENTITY, config_kind

NAMED = 3
"""How many partitions an event's text names before it counts the rest."""

_REASSIGNMENTS = {
    "reassignment-started": "reassignment started",
    "reassignment-changed": "reassignment changed",
    "reassignment-completed": "reassignment completed",
    "reassignment-cancelled": "reassignment cancelled",
    "replicas-changed": "replicas changed",
}
_PLACES = {
    "directory-assigned": ("directory assigned", "placed"),
    "directory-moved": ("directory moved", "moved"),
    "replica-damaged": ("replica damaged", "cannot read its replica of"),
    "replica-whole": ("replica whole again", "again reads its replica of"),
    "replica-given-up": ("replica given up", "recreates its replica of"),
}
"""Rules about a replica's directory: kind and what the broker did."""


class Grouped(NamedTuple):
    """An event in preparation: its place and content. `span_ms` is how long what ends here lasted."""

    offset: int
    kind: str
    entity: str
    text: str
    severity: str
    rule: str | None
    entities: tuple[str, ...]
    suspect: int | None = None
    """The broker whose fence may explain this event, if its record follows later (`split_fences`)."""
    span_ms: int | None = None
    bound: str = ""
    """Precedes `span_ms`: `at least `, `at most ` (see `span`)."""
    is_doubtful: bool = False
    """Whether the log leaves open that `rule` is the cause."""


def config_events(batch: BatchChanges, *, is_known: bool) -> Iterator[Grouped]:
    """Settings that changed, one event per resource. Old values count only if the state is known."""
    by_resource: dict[str, list[tuple[int, str]]] = {}
    for offset, resource, key, old, new in batch.configs:
        if old == new and (is_known or new is not None):
            continue
        text = f"{key} removed" if new is None else f"{key}={setting_shown(key, new)}"
        by_resource.setdefault(config_path(resource), []).append((offset, text))
    for path, found in by_resource.items():
        name = path.removeprefix("config/")
        text = f"{name}: {listed([text for _, text in found])}"
        yield Grouped(found[0][0], "config changed", path, text, "info", None, (name,))


def refused_events(batch: BatchChanges) -> Iterator[Grouped]:
    """The first record of a batch that does not apply, and how many more there are."""
    if batch.refused:
        error, more = batch.refused[0], len(batch.refused) - 1
        text = f"{error.reason}" + (f", and {more} more" if more else "")
        yield Grouped(error.offset, "record does not apply", "quorum", text, "warning", None, ())


def topic_events(batch: BatchChanges) -> Iterator[Grouped]:
    """Topics created and deleted, and partitions added to existing topics."""
    made: dict[str, int] = {}
    first: dict[str, int] = {}
    for step in batch.partitions:
        if step.before is None and step.after is not None:
            made[step.topic] = made.get(step.topic, 0) + 1
            first.setdefault(step.topic, step.offset)
    for offset, name, number in batch.made:
        made[name] = number
        first[name] = offset
    created = {topic.name for _, topic in batch.created}
    for offset, topic in batch.created:
        text = f"{topic.name}, {count(made.get(topic.name, 0), 'partition')}"
        yield _of_topic(offset, "topic created", topic.name, text)
    for name, offset in first.items():
        if name not in created:
            yield _of_topic(offset, "partitions added", name, f"{name}, {made[name]} more")
    for offset, topic in batch.removed:
        yield _of_topic(offset, "topic deleted", topic.name, topic.name)


def _of_topic(offset: int, kind: str, name: str, text: str) -> Grouped:
    return Grouped(offset, kind, f"topic/{name}", text, "info", None, ())


def count(number: int, one: str) -> str:
    """`1 partition`, `2 partitions`, `2 batches`, `2 log directories`."""
    if number == 1:
        return f"1 {one}"
    if one.endswith("y"):
        return f"{number} {one[:-1]}ies"
    return f"{number} {one}es" if one.endswith("ch") else f"{number} {one}s"


def listed(names: list[str]) -> str:
    """The first few names and how many more there are."""
    shown = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def duration(ms: int) -> str:
    """`340 ms`, `8.9 s`, `4 min 12 s`, `3 h 5 min`, `2 d 4 h`."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def _paths(steps: list[PartitionStep]) -> tuple[str, ...]:
    return tuple(f"topic/{step.topic}/{step.index}" for step in steps)


def _leader(node: int) -> str:
    return "none" if node == NO_LEADER else str(node)


def broker_word(step: BrokerStep) -> str:
    """The broker's state before a record."""
    before = step.before
    if before is None:
        return "unknown"
    if before.fenced:
        return "fenced"
    return "in controlled shutdown" if before.in_controlled_shutdown else "unfenced"


def _leader_rule(causes: tuple[Cause, ...], step: PartitionStep) -> str | None:
    """The rule for a step that changes a partition's leader."""
    old, new = (NO_LEADER if at is None else at.leader for at in (step.before, step.after))
    cause = of_leader(causes, old, new)
    return None if cause is None else cause.rule


def leader_events(
    batch: BatchChanges, causes: Mapping[int, tuple[Cause, ...]], spans: SpanChanges
) -> Iterator[Grouped]:
    """Changes of leader: one event for all partitions of the batch that moved the same way."""
    moved: dict[tuple[int, int, str | None], list[PartitionStep]] = {}
    for step in batch.partitions:
        if step.before is None or step.after is None or step.before.leader == step.after.leader:
            continue
        rule = _leader_rule(causes.get(step.offset, ()), step)
        moved.setdefault((step.before.leader, step.after.leader, rule), []).append(step)
    for (old, new, rule), steps in moved.items():
        text = f"{listed([step.name for step in steps])}: {_leader(old)} -> {_leader(new)}"
        span_ms = None
        begun = [spans.led_again[step.key] for step in steps if step.key in spans.led_again]
        bound = ""
        if begun and new != NO_LEADER:
            span_ms, bound = spans.time_ms - min(begun).time_ms, bound_of(begun)
            text += f", {bound}{duration(span_ms)} without a leader"
        kind, severity = "leader changed", "info"
        if rule == "unclean-election":
            kind, severity = "unclean election", "critical"
            isr = steps[0].before.isr if steps[0].before is not None else ()
            known = any(step.before is not None and is_last_known(step.before, new) for step in steps)
            who = "the last known leader, not in" if known else "in" if new in isr else "not in"
            text += f"; broker {new} was {who} the ISR [{','.join(map(str, isr))}]"
            text += ", without a complete log" if new in isr else ""
        elif new == NO_LEADER:
            kind, severity = "leaderless", "critical"
        entity = f"broker/{new}" if new >= 0 else f"broker/{old}"
        suspect = old if (rule is None or rule in MAY_BE_FENCE) and old >= 0 else None
        yield Grouped(
            steps[0].offset, kind, entity, text, severity, rule, _paths(steps), suspect, span_ms, bound
        )


def unled_events(batch: BatchChanges) -> Iterator[Grouped]:
    """Partitions that had no leader from the start."""
    steps = [
        step
        for step in batch.partitions
        if step.before is None and step.after is not None and step.after.leader == NO_LEADER
    ]
    if steps:
        paths = _paths(steps)
        text = f"{listed([step.name for step in steps])}: created without a leader"
        yield Grouped(steps[0].offset, "leaderless", paths[0], text, "critical", "created", paths)


def isr_events(batch: BatchChanges, causes: Mapping[int, tuple[Cause, ...]]) -> Iterator[Grouped]:
    """ISRs that shrank (by broker and cause) and grew (by broker)."""
    left: dict[tuple[int, str | None], list[PartitionStep]] = {}
    joined: dict[tuple[int, str | None], list[PartitionStep]] = {}
    for step in batch.partitions:
        if step.before is None or step.after is None or step.before.isr == step.after.isr:
            continue
        own = {cause.broker_id: cause.rule for cause in reversed(causes[step.offset])}
        for broker in step.before.isr:
            if broker not in step.after.isr:
                left.setdefault((broker, own.get(broker)), []).append(step)
        for broker in step.after.isr:
            if broker not in step.before.isr:
                joined.setdefault((broker, _joined_by(broker, step, causes[step.offset])), []).append(step)
    for (broker, rule), steps in left.items():
        text = f"broker {broker} left {_isr_of(steps)}"
        severity = severity_of(LOSSES, rule, "detail")
        suspect = broker if rule in MAY_BE_FENCE else None
        entity = f"broker/{broker}"
        yield Grouped(steps[0].offset, "isr shrank", entity, text, severity, rule, _paths(steps), suspect)
    for (broker, rule), steps in joined.items():
        text = f"broker {broker} joined {_isr_of(steps)}"
        yield Grouped(steps[0].offset, "isr grew", f"broker/{broker}", text, "detail", rule, _paths(steps))


def _joined_by(broker: int, step: PartitionStep, causes: tuple[Cause, ...]) -> str | None:
    """Why a new leader from outside the ISR joins it without having caught up."""
    before, after = step.before, step.after
    elected = before is not None and after is not None and before.leader != broker == after.leader
    if elected and all(cause.rule != "replica-caught-up" for cause in causes):
        return _leader_rule(causes, step)
    return "replica-caught-up"


def _isr_of(steps: list[PartitionStep]) -> str:
    return f"the ISR of {listed([step.name for step in steps])}"


def reassignment_events(batch: BatchChanges) -> Iterator[Grouped]:
    """Reassignments begun, changed, completed or cancelled, and replica lists that changed at once."""
    found: dict[str, list[PartitionStep]] = {}
    for step in batch.partitions:
        if step.before is None or step.after is None:
            continue
        rule = reassignment(step.before, step.after)
        if rule is not None:
            found.setdefault(rule, []).append(step)
        if step.before.leader_recovery_state > step.after.leader_recovery_state:
            found.setdefault("recovery-finished", []).append(step)
    for rule, steps in found.items():
        kind, severity = _REASSIGNMENTS.get(rule, "recovery finished"), severity_of(CHANGES, rule, "info")
        text = listed([step.name for step in steps])
        first = steps[0]
        if (
            len(steps) == 1
            and first.before is not None
            and first.after is not None
            and rule in _REASSIGNMENTS
        ):
            lists = [",".join(map(str, at.replicas)) for at in (first.before, first.after)]
            text += f": replicas [{lists[0]}] -> [{lists[1]}]"
        yield Grouped(
            first.offset, kind, f"topic/{first.topic}/{first.index}", text, severity, rule, _paths(steps)
        )


def directory_events(batch: BatchChanges, causes: Mapping[int, tuple[Cause, ...]]) -> Iterator[Grouped]:
    """Replicas whose log directory became known or changed."""
    found: dict[tuple[str, int | None], list[PartitionStep]] = {}
    for step in batch.partitions:
        # The removal of a replica from the ISR may have such a rule too; the directory's own cause is the
        # last one.
        own = {cause.broker_id: cause.rule for cause in causes.get(step.offset, ()) if cause.rule in _PLACES}
        for broker, rule in own.items():
            if _is_moved(step, broker):
                found.setdefault((rule, broker), []).append(step)
    for (rule, broker), steps in found.items():
        kind, verb = _PLACES[rule]
        text = f"broker {broker} {verb} {listed([step.name for step in steps])}"
        severity = severity_of(MOVES, rule, "info")
        yield Grouped(steps[0].offset, kind, f"broker/{broker}", text, severity, rule, _paths(steps))


def _is_moved(step: PartitionStep, broker: int | None) -> bool:
    """Whether the record moves the broker's replica to another directory."""
    before, after = step.before, step.after
    if before is None or after is None or broker is None:
        return False
    return before.directory_of(broker) != after.directory_of(broker)


def cleared_events(batch: BatchChanges) -> Iterator[Grouped]:
    """Partitions whose eligible leaders a ClearElrRecord removed."""
    found: dict[int, list[PartitionStep]] = {}
    for step in batch.partitions:
        if isinstance(step.record, r.ClearElrRecord):
            found.setdefault(step.offset, []).append(step)
    for offset, steps in found.items():
        text, paths = listed([step.name for step in steps]), _paths(steps)
        yield Grouped(offset, "eligible leaders cleared", paths[0], text, "info", None, paths)


def span_events(spans: SpanChanges) -> Iterator[Grouped]:
    """Partitions that fell under min ISR or recovered from it."""
    if spans.under:
        steps = [step for step, _ in spans.under]
        first, wanted = spans.under[0]
        size = 0 if first.after is None else len(first.after.isr)
        text = f"{listed([step.name for step in steps])}: ISR {size} of min {wanted}"
        path = f"topic/{first.topic}/{first.index}"
        yield Grouped(first.offset, "under min isr", path, text, "warning", None, _paths(steps))
    if spans.restored:
        steps = [step for step, _ in spans.restored]
        begun = [span for _, span in spans.restored]
        span_ms, bound = spans.time_ms - min(begun).time_ms, bound_of(begun)
        text = f"{listed([step.name for step in steps])}, after {bound}{duration(span_ms)}"
        paths = _paths(steps)
        yield Grouped(
            steps[0].offset,
            "min isr restored",
            paths[0],
            text,
            "info",
            None,
            paths,
            span_ms=span_ms,
            bound=bound,
        )


def config_path(resource: ConfigResource) -> str:
    """`config/topic/orders`."""
    return f"config/{config_kind(resource)}/{resource.name or DEFAULT_ENTITY}"


def security_event(record: object, entity: str, gone: object = None) -> tuple[str, str, str] | None:  # noqa: PLR0911
    """(kind, text, severity) for users, quotas, ACLs, tokens, producer ids and the migration. `gone` is
    what a removal removed."""
    name = entity.partition("/")[2]
    match record:
        case r.AccessControlEntryRecord():
            return "acl added", f"{acl_text(record)} ({name})", "info"
        case r.RemoveAccessControlEntryRecord():
            return "acl removed", f"{acl_text(gone)} ({name})" if isinstance(gone, Acl) else name, "info"
        case r.UserScramCredentialRecord() | r.RemoveUserScramCredentialRecord():
            verb = "set" if isinstance(record, r.UserScramCredentialRecord) else "removed"
            return "user changed", f"{scram_text(record)} {verb}", "info"
        case r.DelegationTokenRecord(owner=owner):
            return "token set", f"{name} of {owner}", "info"
        case r.RemoveDelegationTokenRecord():
            return "token removed", name, "info"
        case r.ClientQuotaRecord():
            return "quota changed", quota_text(record), "info"
        case r.ProducerIdsRecord(broker_id=broker, next_producer_id=following):
            return "producer ids", f"broker {broker} was given ids below {following}", "detail"
        case r.ZkMigrationStateRecord(zk_migration_state=state):
            return "migration", f"ZooKeeper migration state {state}", "info"
    return None
