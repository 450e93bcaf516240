"""What the active controller does without a request: when its leadership begins, and when time has passed.

Each step is decided like a request and changes nothing: a step of an interval says in its outcome when it is
due again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from metaquorum.controller.active.outcome import (
    NOTHING,
    BalanceLeaders,
    Batch,
    ElectLeaders,
    ForgetEligible,
    Outcome,
    Step,
    Work,
    batch_of,
)
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.brokers import broker_ids
from metaquorum.controller.brokers.brokers import controller_record, own_registration
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.features import LEVEL_NO_OP, LEVEL_TRANSACTIONS, LEVEL_ZK_MIGRATION_STATE
from metaquorum.controller.partitions.partitions import eligible_anywhere, leaders_of
from metaquorum.controller.partitions.rules import elr_enabled, safety_records
from metaquorum.controller.settings.access import expired_tokens
from metaquorum.metadata import broker_ids as ids
from metaquorum.metadata.features import DEFAULT_METADATA_VERSION, ELR_VERSION
from metaquorum.metadata.image import METADATA_VERSION, MetadataImage, images_equal
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    Record,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.replay import OpenTransaction, ReplayState, replay_records

EXPIRIES_PER_STEP_MAX = 100
"""Sessions that one step may expire; their work is sliced further."""

PENDING_APPENDS_MAX = 16
"""Work in slices waits while this many appends are uncommitted: its own slices, or steps with requests."""

FIRST_STEPS = (
    Step.END_TRANSACTION,
    Step.BOOTSTRAP,
    Step.REGISTER_CONTROLLER,
    Step.OPEN_SESSIONS,
    Step.FORGET_ELIGIBLE,
    Step.ELECT_LEADERS,
)
"""Everything before this leadership is applied: end open transactions, and begin the soft state (K11)."""

TIMED_STEPS = (
    Step.REMOVE_TOKENS,
    Step.EXPIRE_SESSIONS,
    Step.COLLECT_BROKER_IDS,
    Step.BALANCE_LEADERS,
    Step.WORK,
    Step.NO_OP,
)
"""Time has passed: each step does what is due, if anything is."""


class Steps:
    """Times are monotonic ms."""

    def __init__(self, state: ActiveState, now_ms: int) -> None:
        self._state = state
        self._config = state.config
        self._began_ms = now_ms
        self._seen: MetadataImage | None = None
        """The image for which `_collects` and `_sweeps` tell whether ids or tokens have a deadline."""
        self._collects = self._sweeps = False
        self._steps: dict[Step, Callable[[int, int], Outcome]] = {
            Step.END_TRANSACTION: lambda now_ms, wall_ms: self._end_transaction(),
            Step.BOOTSTRAP: lambda now_ms, wall_ms: self._bootstrap(),
            Step.REGISTER_CONTROLLER: lambda now_ms, wall_ms: self._register_controller(),
            Step.OPEN_SESSIONS: lambda now_ms, wall_ms: self._open_sessions(now_ms),
            Step.FORGET_ELIGIBLE: lambda now_ms, wall_ms: self._forget_eligible(),
            Step.ELECT_LEADERS: lambda now_ms, wall_ms: self._elect_leaders(),
            Step.REMOVE_TOKENS: self._remove_tokens,
            Step.EXPIRE_SESSIONS: lambda now_ms, wall_ms: self._expire_sessions(now_ms),
            Step.COLLECT_BROKER_IDS: lambda now_ms, wall_ms: self._collect_broker_ids(now_ms),
            Step.BALANCE_LEADERS: lambda now_ms, wall_ms: self._balance_leaders(now_ms),
            Step.WORK: lambda now_ms, wall_ms: self._work(now_ms),
            Step.NO_OP: lambda now_ms, wall_ms: self._no_op(now_ms),
        }

    def take(self, step: Step, *, now_ms: int, wall_ms: int) -> Outcome:
        """Decides one step; NOTHING if it is not due. `wall_ms` is Unix time."""
        return self._steps[step](now_ms, wall_ms)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When a timed step has something to do."""
        if self._may_slice():
            return now_ms
        state = self._state
        image, session_ms = state.image, state.sessions.next_deadline_ms()
        if image is not self._seen:
            self._seen = image
            self._collects = self._config.broker_id_gc_interval_ms > 0 and bool(ids.remembered(image))
            self._sweeps = len(image.delegation_tokens) > 0
        waits = [] if session_ms is None else [session_ms]
        if self._config.leader_imbalance_check_interval_ms > 0:
            waits.append(self._due_ms(Step.BALANCE_LEADERS))
        if self._collects:
            waits.append(self._due_ms(Step.COLLECT_BROKER_IDS))
        if self._sweeps:
            waits.append(self._due_ms(Step.REMOVE_TOKENS))
        if self._writes_no_ops():
            waits.append(state.appended_ms + self._config.metadata_max_idle_interval_ms)
        return min(waits, default=None)

    def _due_ms(self, step: Step) -> int:
        """When a step of an interval is due: first one interval from the beginning of the leadership, when
        brokers have come back (S4.13); expired tokens are removed at once."""
        first_ms = {
            Step.COLLECT_BROKER_IDS: self._config.broker_id_gc_interval_ms,
            Step.BALANCE_LEADERS: self._config.leader_imbalance_check_interval_ms,
        }
        known_ms = self._state.next_ms.get(step)
        return self._began_ms + first_ms.get(step, 0) if known_ms is None else known_ms

    # ---- a leadership begins

    def _end_transaction(self) -> Outcome:
        transaction = self._state.ledger.newest_state.transaction
        return NOTHING if transaction is None else _written(abort_record(transaction))

    def _bootstrap(self) -> Outcome:
        """The first records, as long as none in the log has taken effect: those of an earlier leader's may
        have been in a transaction that it did not end (KIP-868)."""
        if not images_equal(self._state.image, MetadataImage(), provenance=False):
            return NOTHING
        return _written(*first_records(self._config.bootstrap, self._config.min_insync_replicas))

    def _register_controller(self) -> Outcome:
        """As soon as the log can hold it: which levels this controller supports (KIP-919)."""
        state = self._state
        registration = own_registration(state.image, self._config, state.incarnation_id)
        return NOTHING if registration is None else _written(controller_record(registration))

    def _open_sessions(self, now_ms: int) -> Outcome:
        image = self._state.image
        leading = leaders_of(image)
        opened: list[tuple[int, BrokerHeartbeatState]] = []
        removals: list[Work] = []
        for broker_id, registration in image.brokers.items():
            if not registration.fenced:
                opened.append((broker_id, self._state.sessions.unheard(registration.epoch, now_ms)))
            elif broker_id in leading:
                # Never in a log written here (S4.16), but possible in Kafka's: a broker that was killed and
                # came back before its session ended is fenced by its registration, and leads until it is
                # moved.
                removals.append(self._state.removal(broker_id, registration.epoch))
        return Outcome(sessions=tuple(opened), work=tuple(removals))

    def _forget_eligible(self) -> Outcome:
        """Removes, in slices, eligible leader replicas that are left when the feature is off."""
        image = self._state.image
        if elr_enabled(image) or not eligible_anywhere(image):
            return NOTHING
        return Outcome(work=self._state.new_work(ForgetEligible()))

    def _elect_leaders(self) -> Outcome:
        """Checks leaderless partitions: an election may have become possible meanwhile."""
        if not self._state.image.topics.rows_without_leader().size:
            return NOTHING
        return Outcome(work=self._state.new_work(ElectLeaders(broker_id=None)))

    # ---- time has passed

    def _remove_tokens(self, now_ms: int, wall_ms: int) -> Outcome:
        """Removes expired tokens, once per interval, and again at once if one batch was not enough."""
        if now_ms < self._due_ms(Step.REMOVE_TOKENS):
            return NOTHING
        limit = self._config.records_per_slice_max
        records = expired_tokens(self._state.image, wall_ms, limit)
        rest_ms = 0 if len(records) == limit else self._config.delegation_token_expiry_check_interval_ms
        return Outcome(batch=batch_of(records), next_ms=((Step.REMOVE_TOKENS, now_ms + rest_ms),))

    def _expire_sessions(self, now_ms: int) -> Outcome:
        """Begins to fence brokers whose lease has expired."""
        brokers, sessions = self._state.image.brokers, self._state.sessions
        due = sessions.overdue(now_ms, EXPIRIES_PER_STEP_MAX)
        if not due:
            return NOTHING
        warnings: list[str] = []
        removals: list[Work] = []
        for broker_id in due:
            registration = brokers.get(broker_id)
            if registration is None or registration.fenced or broker_id in sessions.fencing:
                continue
            session = sessions.get(broker_id)
            silent_ms = now_ms - session.contact_ms if session is not None else 0
            warnings.append(
                f"broker {broker_id} sent no heartbeat for {silent_ms} ms and is being fenced: "
                "look at its log, and at the network between it and the controllers"
            )
            removals.append(self._state.removal(broker_id, registration.epoch))
        return Outcome(warnings=tuple(warnings), expired=tuple(due), work=tuple(removals))

    def _collect_broker_ids(self, now_ms: int) -> Outcome:
        """Once per interval: removes what is remembered of broker ids and has become garbage."""
        interval_ms = self._config.broker_id_gc_interval_ms
        if interval_ms <= 0 or now_ms < self._due_ms(Step.COLLECT_BROKER_IDS):
            return NOTHING
        state = self._state
        records = broker_ids.collect(state.image, state.presence.lapsed_claims(now_ms))
        again = (Step.COLLECT_BROKER_IDS, now_ms + interval_ms)
        return Outcome(batch=batch_of(records), next_ms=(again,))

    def _balance_leaders(self, now_ms: int) -> Outcome:
        """Once per interval: checks leaderless partitions again (an unclean election may have been allowed
        meanwhile), and returns leadership to preferred replicas that can take it."""
        interval_ms = self._config.leader_imbalance_check_interval_ms
        if interval_ms <= 0 or now_ms < self._due_ms(Step.BALANCE_LEADERS):
            return NOTHING
        work = self._elect_leaders().work
        if self._config.auto_leader_rebalance_enable:
            work = (*work, *self._state.new_work(BalanceLeaders()))
        return Outcome(work=work, next_ms=((Step.BALANCE_LEADERS, now_ms + interval_ms),))

    def _work(self, now_ms: int) -> Outcome:
        """One slice of the oldest work."""
        if not self._may_slice():
            return NOTHING
        return self._state.next_slice(next(iter(self._state.work.values())), now_ms)

    def _may_slice(self) -> bool:
        """Whether there is work, and commits keep up with what was written: slices must not outrun the
        quorum."""
        return bool(self._state.work) and self._state.ledger.appends_waiting < PENDING_APPENDS_MAX

    def _no_op(self, now_ms: int) -> Outcome:
        """Keeps the log moving when nothing happens (KIP-835). Observers need not be woken for it."""
        idle_ms = now_ms - self._state.appended_ms
        if not self._writes_no_ops() or idle_ms < self._config.metadata_max_idle_interval_ms:
            return NOTHING
        return Outcome(batch=Batch(records=(NoOpRecord(),), wake_observers=False))

    def _writes_no_ops(self) -> bool:
        level = self._state.image.features.metadata_version
        return self._config.metadata_max_idle_interval_ms > 0 and level >= LEVEL_NO_OP


def _written(*records: Record) -> Outcome:
    """One batch without a request."""
    return Outcome(batch=Batch(records=records))


# The records that a new active controller writes before it serves: the end of an interrupted transaction,
# and a cluster's first records, as Kafka 3.7 writes them.

TRANSACTION_NAME = "Bootstrap records"


def first_records(bootstrap: Sequence[Record], min_isr: int | None = None) -> tuple[Record, ...]:
    """The first batch of a cluster: the formatted records, in one transaction if the level supports those.
    `min_isr`: min.insync.replicas of this controller's file.

    Without a formatted metadata.version the default level is finalized first.
    """
    levels = [
        record.feature_level
        for record in bootstrap
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION
    ]
    records: list[Record] = list(bootstrap)
    if not levels:
        records.insert(0, FeatureLevelRecord(name=METADATA_VERSION, feature_level=DEFAULT_METADATA_VERSION))
    level = levels[-1] if levels else DEFAULT_METADATA_VERSION
    says_migration = any(isinstance(record, ZkMigrationStateRecord) for record in records)
    if level >= LEVEL_ZK_MIGRATION_STATE and not says_migration:
        records.append(ZkMigrationStateRecord(zk_migration_state=0))
    if any(isinstance(each, FeatureLevelRecord) and each.name == ELR_VERSION for each in records):
        records += _missing_safety_records(records, min_isr)
    if level >= LEVEL_TRANSACTIONS:
        return (BeginTransactionRecord(name=TRANSACTION_NAME), *records, EndTransactionRecord())
    return tuple(records)


def _missing_safety_records(records: Sequence[Record], min_isr: int | None) -> list[Record]:
    """Eligible leader replicas require a min.insync.replicas of the cluster (KIP-966)."""
    image = replay_records(
        ReplayState(), base_offset=0, epoch=0, timestamp_ms=0, records=list(records)
    ).newest
    return safety_records(image, min_isr)


def abort_record(transaction: OpenTransaction) -> Record:
    """Ends a transaction that an earlier active controller left open."""
    name = transaction.name or "unnamed"
    return AbortTransactionRecord(
        reason=f"the controller that began '{name}' at offset {transaction.begin_offset} did not end it"
    )
