"""The cause of what a turn of the active controller writes: a caller or a rule.

A request carries its cause; what the controller does by itself has a rule; work in slices keeps the cause
that began it (`ActiveState.work_causes`). Decisions do not know causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from metaquorum.controller.active.outcome import Outcome, Resumed, Step, Turn
from metaquorum.controller.active.work import (
    BalanceLeaders,
    FailDirectories,
    ForgetEligible,
    MoveLeaders,
    RemoveBroker,
    Work,
    WorkKey,
    key_of,
)
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.features import LEVEL_NO_OP
from metaquorum.metadata.columnar.encode import Bulk, RecordPieces, in_pieces
from metaquorum.metadata.image import METADATA_VERSION, MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerRequest

STEP_RULES = {
    Step.END_TRANSACTION: "transaction-abandoned",
    Step.REGISTER_CONTROLLER: "controller-registered",
    Step.OPEN_SESSIONS: "fenced-broker-leads",
    Step.FORGET_ELIGIBLE: "eligible-leaders-off",
    Step.ELECT_LEADERS: "leadership-began",
    Step.REMOVE_TOKENS: "token-expired",
    Step.EXPIRE_SESSIONS: "session-expired",
    Step.COLLECT_BROKER_IDS: "broker-id-unused",
    Step.BALANCE_LEADERS: "leader-balance",
}
"""Why a step writes or begins work. Without a rule: the first records of a cluster, whose transaction names
it; NoOps of an idle controller; slices of work, which have the rule that began the work."""

_WORK_RULES: dict[type[Work], str] = {
    MoveLeaders: "controlled-shutdown",
    FailDirectories: "directory-failed",
    BalanceLeaders: "leader-balance",
    ForgetEligible: "eligible-leaders-off",
}

RULES = frozenset(
    {*STEP_RULES.values(), *_WORK_RULES.values(), "fence-requested", "metadata-lag", "new-incarnation"}
)


def with_cause(
    turn: Turn, outcome: Outcome, work_causes: Mapping[WorkKey, BatchCause], image: MetadataImage
) -> Outcome:
    """The outcome with its cause, if there is one, and its batch after the record that names the cause."""
    cause = _cause_of(turn, outcome, work_causes)
    if cause is None:
        return outcome
    batch = outcome.batch
    if batch is not None and _may_hold(batch.records, image.features.metadata_version):
        records = in_pieces((cause_record(cause), *_pieces(batch.records)))
        batch = replace(batch, records=records)
    return replace(outcome, cause=cause, batch=batch)


def _pieces(records: Sequence[Record]) -> Sequence[Record | Bulk]:
    return records.pieces if isinstance(records, RecordPieces) else records


def _may_hold(records: Sequence[Record], level: int) -> bool:
    """Whether readers at the level, also at one to which the batch changes, know NoOpRecords."""
    for record in _pieces(records):
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
            level = record.feature_level
    return level >= LEVEL_NO_OP


def _cause_of(turn: Turn, outcome: Outcome, work_causes: Mapping[WorkKey, BatchCause]) -> BatchCause | None:
    if turn is Step.WORK:
        key = next(_keys(outcome), None)
        return None if key is None else work_causes.get(key)
    if isinstance(turn, Step):
        rule = STEP_RULES.get(turn)
        return None if rule is None else BatchCause(rule=rule)
    arrived = turn.arrived if isinstance(turn, Resumed) else turn
    if arrived.cause is None:
        return None
    rule = _rule_of(arrived, outcome)
    return arrived.cause if rule is None else replace(arrived.cause, rule=rule)


def is_new_work(before: Work | None, work: Work) -> bool:
    """Whether work is new, or does more than before: its cause is then that of this turn."""
    if isinstance(before, RemoveBroker) and isinstance(work, RemoveBroker):
        return (before.unregister, before.unclean) != (work.unregister, work.unclean)
    if isinstance(before, FailDirectories) and isinstance(work, FailDirectories):
        return before.directories != work.directories
    return before is None


def _keys(outcome: Outcome) -> Iterator[WorkKey]:
    yield from outcome.ended[:1]
    yield from map(key_of, outcome.work[:1])


def _rule_of(arrived: RequestArrived, outcome: Outcome) -> str | None:
    """Why a broker's own report takes something from it; other requests describe themselves."""
    request, kinds = arrived.request, {kind for kind, _ in _keys(outcome)}
    removes = RemoveBroker in kinds
    match request:
        case RegisterBrokerRequest() if removes:
            return "new-incarnation"
        case BrokerHeartbeatRequest(want_shutdown=True):
            return "controlled-shutdown"
        case BrokerHeartbeatRequest() if FailDirectories in kinds:
            return "directory-failed"
        case BrokerHeartbeatRequest(want_fence=True) if removes:
            return "fence-requested"
        case BrokerHeartbeatRequest(offline_directories=offline) if removes:
            return "directory-failed" if offline else "metadata-lag"
    return None
