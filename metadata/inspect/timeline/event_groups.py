"""What a batch changed as few events: everything that changed the same way is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from metaquorum.metadata.image.types import NO_LEADER, Acl, ConfigResource
from metaquorum.metadata.inspect.causes.brokers import BROKERS, FENCES, STATES, broker_causes
from metaquorum.metadata.inspect.causes.elections import CHANGED_LEADER, ELECTIONS, election_causes
from metaquorum.metadata.inspect.causes.losses import LOSSES
from metaquorum.metadata.inspect.causes.partitions import CHANGES, MOVES
from metaquorum.metadata.inspect.causes.rule import DETAIL, INFO, Cause, Scene
from metaquorum.metadata.inspect.causes.table import MAY_BE_FENCE, of_leader, severity_of
from metaquorum.metadata.inspect.changes.change_steps import is_last_known, reassignment
from metaquorum.metadata.inspect.changes.changes import BatchChanges, BrokerStep, PartitionStep
from metaquorum.metadata.inspect.log.quorum import QuorumView, changes_text, ids_text, voter_ids
from metaquorum.metadata.inspect.timeline.spans import SpanChanges, bound_of
from metaquorum.metadata.records import control
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.secrets import setting_shown
from metaquorum.metadata.text.tree import DEFAULT_ENTITY, acl_text, config_kind, quota_text, scram_text
from metaquorum.storage.uuids import uuid_to_text

WAS_UNFENCED = " (was unfenced)"
"""Ends what is said about a registration that fenced its broker."""
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
    """Settings that changed, one event per resource, which is also about each of them. Old values count only
    if the state is known."""
    by_resource: dict[str, list[tuple[int, str, str]]] = {}
    for offset, resource, key, old, new in batch.configs:
        if old == new and (is_known or new is not None):
            continue
        text = _setting_text(key, old if is_known else None, new)
        by_resource.setdefault(config_path(resource), []).append((offset, key, text))
    for path, settings in by_resource.items():
        name = path.removeprefix("config/")
        text = f"{name}: {listed([text for _, _, text in settings])}"
        entities = name, *(f"{path}/{key}" for _, key, _ in settings)
        yield Grouped(settings[0][0], "config changed", path, text, "info", None, entities)


def _setting_text(key: str, old: str | None, new: str | None) -> str:
    """`retention.ms=1`, `retention.ms 1 -> 2`, `retention.ms removed (was 2)`; None: not set, or unknown."""
    before, after = (None if value is None else setting_shown(key, value) for value in (old, new))
    if after is None:
        return f"{key} removed" + ("" if before is None else f" (was {before})")
    return f"{key}={after}" if before is None else f"{key} {before} -> {after}"


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


def count(number: int, singular: str) -> str:
    """`1 partition`, `2 partitions`, `2 batches`, `2 log directories`."""
    if number == 1:
        return f"1 {singular}"
    if singular.endswith("y"):
        return f"{number} {singular[:-1]}ies"
    return f"{number} {singular}es" if singular.endswith("ch") else f"{number} {singular}s"


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
    steps_by_text: dict[str, list[PartitionStep]] = {}
    for step in batch.partitions:
        if step.before is None or step.after is None:
            continue
        rule = reassignment(step.before, step.after)
        if rule is not None:
            steps_by_text.setdefault(rule, []).append(step)
        if step.before.leader_recovery_state > step.after.leader_recovery_state:
            steps_by_text.setdefault("recovery-finished", []).append(step)
    for rule, steps in steps_by_text.items():
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
    steps_by_event: dict[tuple[str, int | None], list[PartitionStep]] = {}
    for step in batch.partitions:
        # The removal of a replica from the ISR may have such a rule too; the directory's own cause is the
        # last one.
        own = {cause.broker_id: cause.rule for cause in causes.get(step.offset, ()) if cause.rule in _PLACES}
        for broker, rule in own.items():
            if _is_moved(step, broker):
                steps_by_event.setdefault((rule, broker), []).append(step)
    for (rule, broker), steps in steps_by_event.items():
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
    steps_by_broker: dict[int, list[PartitionStep]] = {}
    for step in batch.partitions:
        if isinstance(step.record, r.ClearElrRecord):
            steps_by_broker.setdefault(step.offset, []).append(step)
    for offset, steps in steps_by_broker.items():
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


def broker_events(step: BrokerStep, scene: Scene) -> Iterator[Grouped]:
    """Registered, fenced, unfenced, shutting down, unregistered, and changes of its log directories."""
    node, was = step.broker_id, broker_word(step)

    def event(kind: str, text: str, severity: str = "info", rule: str | None = None) -> Grouped:
        entity = f"broker/{node}"
        return Grouped(step.offset, kind, entity, text, severity, rule, (entity,))

    causes = broker_causes(step, scene)
    rules = [cause.rule for cause in causes]
    if step.after is None:
        yield event("broker unregistered", f"broker {node}", rule=rules[0])
        return
    if step.is_registration:
        again = " again" if step.before is not None else ""
        text = f"broker {node}{again}, broker epoch {step.after.epoch}"
        severity = INFO
        if step.was_fenced:
            text, severity = text + WAS_UNFENCED, severity_of(BROKERS, rules[0], INFO)
        yield event("broker registered", text, severity, rules[0])
        return
    if step.was_fenced:
        text = f"broker {node} (was {was})"
        if not causes[0].certain:
            text += f"; {causes[0].doubt or 'the log does not show why'}"
        fenced = event("broker fenced", text, severity_of(FENCES, rules[0], INFO), rules[0])
        yield fenced._replace(is_doubtful=not causes[0].certain)
    if step.was_unfenced:
        yield event("broker unfenced", f"broker {node} (was {was})", rule="caught-up")
    if step.began_shutdown:
        yield event("broker in controlled shutdown", f"broker {node} (was {was})", rule="controlled-shutdown")
    if step.lost_directories:
        severity = severity_of(STATES, "directory-failed", INFO)
        yield event("directory failed", _directories_lost(step, scene), severity, "directory-failed")
    elif step.before is not None and step.after.directories != step.before.directories:
        text = f"broker {node} has {count(len(step.after.directories), 'log directory')} online"
        yield event("directories changed", text)


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


class QuorumEvents:
    """Follows the quorum; every record produces one event."""

    def __init__(self, quorum: QuorumView | None) -> None:
        """`quorum` is the state before the first record; None if unknown."""
        self._leader: int | None = None
        self._epoch: int | None = None
        self._voters: tuple[Voter, ...] | None = None
        self._kraft_version: int | None = None
        if quorum is not None:
            self.learn(quorum)

    def learn(self, quorum: QuorumView) -> None:
        """Takes the quorum's state from a snapshot, or from the log before the first event."""
        if quorum.has_leader:
            self._leader, self._epoch = quorum.leader_id, quorum.epoch
        if quorum.voter_set:
            self._voters, self._kraft_version = quorum.voter_set, quorum.kraft_version

    def forget(self) -> None:
        """Forgets the state: the lost records may include an election or a voter set."""
        self._leader = self._epoch = self._voters = None

    def follows(self, epoch: int) -> None:
        """The records before the first election were of `epoch`."""
        if self._epoch is None:
            self._epoch = epoch

    def election(
        self, offset: int, record: control.LeaderChangeMessage, epoch: int, silence_ms: int | None, level: int
    ) -> Grouped:
        """`silence_ms` and the metadata.version are the arguments of `election_causes`. Up to Kafka 3.5, a
        cluster's first records precede the election of the controller that wrote them."""
        leader = record.leader_id
        ids = ",".join(str(voter.voter_id) for voter in record.voters)
        causes = election_causes(record, epoch, self._leader, self._epoch, silence_ms, level)
        rules = [cause.rule for cause in causes]
        rule = next((one for one in rules if one in CHANGED_LEADER), rules[-1])
        text = f"controller {leader} leads (voters {ids})"
        for cause in causes[1:]:
            text += f"; {cause.fact}" + (f"; {cause.doubt}" if cause.doubt else "")
        wrote_before = self._epoch == epoch
        self._leader, self._epoch = leader, epoch
        if not self._kraft_version:
            self._voters = tuple(
                Voter(voter_id=one.voter_id, voter_directory_id=one.voter_directory_id)
                for one in record.voters
            )
        return Grouped(
            offset=offset,
            kind="election",
            entity=f"controller/{leader}",
            text=text,
            severity=severity_of(ELECTIONS, rule, INFO),
            rule=rule,
            entities=("quorum",),
            span_ms=None if silence_ms == -1 or wrote_before else silence_ms,
        )

    def voters(self, offset: int, record: control.VotersRecord) -> Grouped:
        """A leader writes the set again when its epoch begins; then nothing changed."""
        before, self._voters = self._voters, record.voters
        was_static, self._kraft_version = not self._kraft_version, max(self._kraft_version or 0, 1)
        changed = changes_text(before, record.voters)
        text = f"voters are {ids_text(record.voters)}"
        if changed:
            text += f": {changed}"
        elif before is not None and not was_static:
            return _of_quorum(offset, "voters repeated", f"{text}, as before", severity=DETAIL)
        affected = set(voter_ids(before or ())) ^ set(voter_ids(record.voters))
        entities = tuple(f"controller/{one}" for one in sorted(affected))
        return _of_quorum(offset, "voters changed", text, entities=entities)

    def kraft_version(self, offset: int, record: control.KRaftVersionRecord) -> Grouped:
        """A leader writes kraft.version again, too."""
        before, self._kraft_version = self._kraft_version, record.kraft_version
        severity = DETAIL if before == record.kraft_version else INFO
        return _of_quorum(
            offset, "feature", f"kraft.version is at level {record.kraft_version}", severity=severity
        )


def _of_quorum(
    offset: int, kind: str, text: str, *, severity: str = INFO, entities: tuple[str, ...] = ()
) -> Grouped:
    return Grouped(offset, kind, "quorum", text, severity, None, entities)
