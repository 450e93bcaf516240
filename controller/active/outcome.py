"""The result of one turn of the active controller, as a value that the node carries out: with what is left to
do, and the cause.

A decision must not change state: everything that it wants written, answered, remembered and done next is in
its `Outcome`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import assert_never

import msgspec
from msgspec.structs import replace

from metaquorum.controller.brokers.brokers import directories_record, fence_record, unregister_record
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.features import LEVEL_NO_OP
from metaquorum.controller.partitions.partition_change import Rules
from metaquorum.controller.partitions.partitions import (
    Scan,
    counting_on,
    election_slice,
    failed_directories_slice,
    forgetting_slice,
    leads_any,
    listing_rare,
    lying_in,
    naming,
    preferred_slice,
    removal_slice,
)
from metaquorum.controller.partitions.rules import elr_enabled
from metaquorum.controller.result import ControllerAnswer, ControllerResult, Slice
from metaquorum.metadata.columnar.encode import Bulk, RecordPieces, in_pieces
from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.image import METADATA_VERSION, BrokerRegistration, MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.types import FeatureLevelRecord, Record
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    ControllerResponse,
    Mutator,
    RegisterBrokerRequest,
)

# Work of the active controller that is longer than one batch: done in slices, each valid alone.
#
# Soft state: a new active controller finds interrupted work in the image. A broker that is still unfenced
# gets a new session; a broker in controlled shutdown or with dead directories keeps sending heartbeats; and
# leaderless partitions, and eligible leaders left from before the feature was switched off, are searched for
# once.

ELECTIONS_PER_IMBALANCE_MAX = 1_000
"""Preferred leaders elected in one batch of the balancer (MAX_ELECTIONS_PER_IMBALANCE)."""


BROKER_REPORT_MS = 100
"""While a broker is being removed in slices, committed slices are reported to the others this often, and
after the last slice: hundreds of answers for each slice would take longer than the slices."""


class RemoveBroker(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker out of leaderships and ISRs, then fence it or remove its registration.

    `parked`: registrations to decide when it is done (a new incarnation starts after the old one failed).
    `unregister_keys`: requests that the last batch answers. `unclean`: its data may be lost, so that it is no
    longer an eligible leader either (K8, KIP-966). `reported_ms`: when a slice was last reported to the other
    brokers; at first, when the work began.
    """

    broker_id: int
    epoch: int
    unregister: bool = False
    unregister_keys: tuple[int, ...] = ()
    parked: tuple[RequestArrived, ...] = ()
    unclean: bool = False
    reported_ms: int | None = None

    @property
    def from_eligible(self) -> bool:
        """Whether it is also removed from the eligible leaders."""
        return self.unclean or self.unregister

    def after_batch(self, now_ms: int, *, is_last: bool) -> tuple[RemoveBroker, bool]:
        """The work after one more batch is written, and whether that is reported to the other brokers at
        once."""
        reported_ms = now_ms if self.reported_ms is None else self.reported_ms
        reports = is_last or now_ms - reported_ms >= BROKER_REPORT_MS
        return replace(self, reported_ms=now_ms if reports else reported_ms), reports


class MoveLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker in controlled shutdown out of leaderships and ISRs."""

    broker_id: int
    epoch: int


class ElectLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Give leaderless partitions a leader: those with `broker_id` in sync, or all (None)."""

    broker_id: int | None


class FailDirectories(msgspec.Struct, frozen=True, kw_only=True):
    """Take a broker's replicas in dead directories out of leaderships and ISRs, then list the remaining
    directories in its registration."""

    broker_id: int
    epoch: int
    directories: frozenset[bytes]


class BalanceLeaders(msgspec.Struct, frozen=True, kw_only=True):
    """Return partitions to their preferred leaders where these may lead."""

    broker_id: None = None


class ForgetEligible(msgspec.Struct, frozen=True, kw_only=True):
    """Take the eligible leader replicas out of partitions after the feature was switched off."""

    broker_id: None = None


Work = RemoveBroker | MoveLeaders | ElectLeaders | FailDirectories | BalanceLeaders | ForgetEligible

WorkKey = tuple[type[Work], int | None]


def key_of(work: Work) -> WorkKey:
    """There is at most one piece of work of a kind per broker."""
    return type(work), work.broker_id


class Scans:
    """What the slices of each piece of work have found settled. A cache: without it a slice looks at every
    chunk again, with the same result."""

    def __init__(self) -> None:
        self._kept: dict[WorkKey, tuple[object, Scan]] = {}

    def of(self, work: Work, image: MetadataImage) -> Scan | None:
        """The scan for the next slice; None: this kind of work has none."""
        sought: object
        match work:
            case RemoveBroker(broker_id=broker_id, from_eligible=from_eligible):
                sought, find = from_eligible, counting_on(broker_id) if from_eligible else naming(broker_id)
            case MoveLeaders(broker_id=broker_id):
                sought, find = None, naming(broker_id)
            case FailDirectories(broker_id=broker_id, epoch=epoch):
                known = _registered(image, broker_id, epoch)
                dead = frozenset[bytes]() if known is None else work.directories & {*known.directories}
                sought, find = dead, lying_in(image, broker_id, dead)
            case ForgetEligible():
                sought, find = None, listing_rare
            case ElectLeaders() | BalanceLeaders():
                return None
            case _:
                assert_never(work)
        kept = self._kept.get(key_of(work))
        if kept is None or kept[0] != sought:
            kept = self._kept[key_of(work)] = sought, Scan(find)
        return kept[1]

    def forget(self, key: WorkKey) -> None:
        """The work has ended."""
        self._kept.pop(key, None)


def next_slice(
    work: Work, image: MetadataImage, rules: Rules, at_most: int, *, scan: Scan | None = None
) -> Slice:
    """The next batch of `work` on `image`; empty and done if there is nothing left to do."""
    match work:
        case RemoveBroker():
            return _removing_slice(work, image, rules, at_most, scan)
        case MoveLeaders(broker_id=broker_id, epoch=epoch):
            known = _registered(image, broker_id, epoch)
            if known is None or known.fenced or not known.in_controlled_shutdown:
                return Slice(records=(), done=True)
            return removal_slice(image, broker_id, rules, at_most, scan=scan)
        case ElectLeaders(broker_id=broker_id):
            return election_slice(image, broker_id, rules, at_most)
        case FailDirectories():
            return _failing_slice(work, image, rules, at_most, scan)
        case ForgetEligible():
            if elr_enabled(image):
                return Slice(records=(), done=True)
            return forgetting_slice(image, rules, at_most, scan=scan)
        case BalanceLeaders():
            return preferred_slice(image, rules, min(at_most, ELECTIONS_PER_IMBALANCE_MAX))
        case _:
            assert_never(work)


def _removing_slice(
    work: RemoveBroker, image: MetadataImage, rules: Rules, at_most: int, scan: Scan | None
) -> Slice:
    broker_id, epoch, unclean = work.broker_id, work.epoch, work.from_eligible
    known = _registered(image, broker_id, epoch)
    if known is None or not (unclean or not known.fenced or leads_any(image, broker_id)):
        return Slice(records=(), done=True)
    final = None if known.fenced else fence_record(broker_id, epoch)
    if work.unregister:
        final = unregister_record(broker_id, epoch)
    return removal_slice(image, broker_id, rules, at_most, final=final, scan=scan, unclean=unclean)


def _failing_slice(
    work: FailDirectories, image: MetadataImage, rules: Rules, at_most: int, scan: Scan | None
) -> Slice:
    registration = _registered(image, work.broker_id, work.epoch)
    dead = (
        []
        if registration is None
        else [lost for lost in registration.directories if lost in work.directories]
    )
    if registration is None or not dead:
        return Slice(records=(), done=True)
    left = tuple([directory for directory in registration.directories if directory not in work.directories])
    if not left:
        return Slice(records=(), done=True)  # re-registered meanwhile: its heartbeat fences it
    final = directories_record(work.broker_id, work.epoch, left)
    return failed_directories_slice(image, work.broker_id, dead, rules, at_most, final=final, scan=scan)


def _registered(image: MetadataImage, broker_id: int, epoch: int) -> BrokerRegistration | None:
    known = image.brokers.get(broker_id)
    return None if known is None or known.epoch != epoch else known


class Step(Enum):
    """What the active controller does without a request."""

    END_TRANSACTION = auto()
    BOOTSTRAP = auto()
    REGISTER_CONTROLLER = auto()
    OPEN_SESSIONS = auto()
    FORGET_ELIGIBLE = auto()
    ELECT_LEADERS = auto()
    REMOVE_TOKENS = auto()
    EXPIRE_SESSIONS = auto()
    COLLECT_BROKER_IDS = auto()
    BALANCE_LEADERS = auto()
    WORK = auto()
    NO_OP = auto()


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A request that continues after something that had to come first: it was admitted before."""

    arrived: RequestArrived


Turn = RequestArrived | Resumed | Step
"""The inputs of the active controller: one at a time, each decided on the image after the previous one."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Records to append as one atomic batch. Observers need not be woken for a NoOp."""

    records: Sequence[Record]
    wake_observers: bool = True


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Carried out in the order of its fields. If the batch cannot be appended, none of it takes effect.

    `sessions`: by broker id; None: forgotten. `expired`: brokers whose overdue session has ended.
    `recreated`: see `Sessions.recreated`; None: settled. `mutations`: a client's use of its quota. `asked`:
    the id and the arrival of a request for a broker id. `next_ms`: when a step of an interval is due again.
    `work`: begun, or its state after one more slice. `ended`: work that is done. `then`: turns to take next,
    before all others. `cause`: that of what is written and begun; the batch begins with it.
    """

    warnings: tuple[str, ...] = ()
    batch: Batch | None = None
    sessions: tuple[tuple[int, BrokerHeartbeatState | None], ...] = ()
    expired: tuple[int, ...] = ()
    recreated: tuple[tuple[tuple[bytes, int, int], bytes | None], ...] = ()
    mutations: tuple[Mutator, int] | None = None
    asked: tuple[bytes, int] | None = None
    next_ms: tuple[tuple[Step, int], ...] = ()
    work: tuple[Work, ...] = ()
    ended: tuple[WorkKey, ...] = ()
    answers: tuple[ControllerAnswer, ...] = ()
    then: tuple[Turn, ...] = ()
    cause: BatchCause | None = None


NOTHING = Outcome()
"""There was nothing to do."""


def batch_of(records: Sequence[Record]) -> Batch | None:
    """None if there is nothing to write."""
    return Batch(records=records) if records else None


def answer_of(key: int, result: ControllerResult) -> ControllerAnswer:
    """What is written and answered together is true once it is committed, whatever it was read from."""
    if result.records:
        return ControllerAnswer(key=key, response=result.response)
    return ControllerAnswer(
        key=key,
        response=result.response,
        depends_on_image=result.depends_on_image,
        depends_on_broker=result.depends_on_broker,
    )


def outcome_of(key: int, result: ControllerResult) -> Outcome:
    """The outcome of a request that concerns only the log."""
    return Outcome(batch=batch_of(result.records), answers=(answer_of(key, result),))


def refused(key: int, error: ControllerResponse | ApiError) -> Outcome:
    """Answered at once: it does not depend on the cluster's state."""
    return Outcome(answers=(ControllerAnswer(key=key, response=error, depends_on_image=False),))


# The cause of what a turn of the active controller writes: a caller or a rule.
#
# A request carries its cause; what the controller does by itself has a rule; work in slices keeps the cause
# that began it (`ActiveState.work_causes`). Decisions do not know causes.

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
