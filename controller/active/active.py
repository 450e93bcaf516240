"""The active controller: decides requests on the newest image, keeps sessions, and works in slices.

Lives as long as one leadership, and only while everything before it is applied. Owns the soft state; the log,
Raft and who is told when belong to the node, which brings `Port`.
"""

from __future__ import annotations

from collections.abc import Container
from random import Random
from typing import assert_never

from metaquorum.controller.active.bootstrap import abort_record, first_records
from metaquorum.controller.active.heartbeats import Heartbeats
from metaquorum.controller.active.id_keeper import IdKeeper
from metaquorum.controller.active.partition_keeper import PartitionKeeper
from metaquorum.controller.active.work import ElectLeaders, ForgetEligible, RemoveBroker, Work
from metaquorum.controller.active.workbench import Port, Workbench, busy
from metaquorum.controller.brokers import brokers as decide
from metaquorum.controller.brokers.registrations import controller_record, own_registration
from metaquorum.controller.brokers.sessions import Session, Sessions
from metaquorum.controller.config import ControllerConfig
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.features import LEVEL_NO_OP
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.partitions.effective import elr_enabled
from metaquorum.controller.partitions.partitions import eligible_anywhere, leaders_of
from metaquorum.controller.partitions.placement import Candidate
from metaquorum.controller.partitions.reassignments import decide_reassignments, refuse_reassignments
from metaquorum.controller.partitions.topics import decide_create_topics, decide_delete_topics, refuse_all
from metaquorum.controller.result import ControllerResult
from metaquorum.controller.settings.settings import Surroundings, decide_settings
from metaquorum.controller.settings.tokens import expired_tokens
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import BrokersImage, MetadataImage
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.metadata.requests.broker_ids import BROKER_ID_REQUESTS, BrokerIdRequest
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.partitions import PARTITIONS_REQUESTS, PartitionsRequest
from metaquorum.metadata.requests.reassignments import AlterReassignmentsRequest
from metaquorum.metadata.requests.settings import SETTINGS_REQUESTS, SettingsRequest, UpdateFeaturesRequest
from metaquorum.storage.uuids import random_uuid

EXPIRIES_PER_STEP_MAX = 100
"""Sessions that one step may call expired; their work is sliced further."""

PARKED_PER_BROKER_MAX = 4
"""Registrations that wait for the earlier incarnation's fencing; more are told to come back."""

WriteRequest = (
    RegisterBrokerRequest
    | BrokerHeartbeatRequest
    | UnregisterBrokerRequest
    | CreateTopicsRequest
    | DeleteTopicsRequest
    | SettingsRequest
    | PartitionsRequest
    | BrokerIdRequest
    | AlterReassignmentsRequest
)
WRITE_REQUESTS = (
    RegisterBrokerRequest,
    BrokerHeartbeatRequest,
    UnregisterBrokerRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    *SETTINGS_REQUESTS,
    *PARTITIONS_REQUESTS,
    *BROKER_ID_REQUESTS,
    AlterReassignmentsRequest,
)


class ActiveController:
    """See the module. `now_ms` is the time of the step, `arrived_ms` that of a request's arrival."""

    def __init__(
        self, config: ControllerConfig, ledger: Ledger, sessions: Sessions, rng: Random, port: Port
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.sessions = sessions
        self._rng = rng
        self._bench = Workbench(config, ledger, sessions, port, self._register_again)
        self._heartbeats = Heartbeats(self._bench)
        self._ids = IdKeeper(self._bench)
        self._partitions = PartitionKeeper(self._bench, self._candidates, rng)
        self._next_sweep_ms = 0
        self._candidates_of: BrokersImage | None = None
        self._candidates_kept: tuple[Candidate, ...] = ()

    @property
    def work(self) -> dict[tuple[type[Work], int | None], Work]:
        """What is being done in slices, oldest first."""
        return self._bench.work

    # ---- beginning and end

    def activate(self, now_ms: int, *, log_is_empty: bool) -> None:
        """Everything before this leadership is applied: end what is open, and start the sessions (K11)."""
        self._bench.last_append_ms = now_ms
        self._ids.begin(now_ms)
        self._partitions.begin(now_ms)
        transaction = self.ledger.newest_state.transaction
        if transaction is not None:
            self._bench.append((abort_record(transaction),), [], now_ms)
        if log_is_empty:
            self._bench.append(first_records(self.config.bootstrap), [], now_ms)
        self._register_self(now_ms)
        image = self.ledger.newest
        leading = leaders_of(image)
        for broker_id, registration in image.brokers.items():
            if not registration.fenced:
                self.sessions.open(broker_id, registration.epoch, now_ms)
            elif broker_id in leading:
                # Never in a log of ours (S4.16), but Kafka's may say so: a broker that was killed and came
                # back before its session ended is fenced by its registration, and leads until it is moved.
                self._bench.start_removal(broker_id, registration.epoch)
        self._forget_eligible()
        if image.topics.rows_without_leader().size:
            self._bench.add(ElectLeaders(broker_id=None))

    def parked_keys(self) -> list[int]:
        """Keys of requests that wait for work of this node, which it will not end."""
        keys: list[int] = []
        for work in self._bench.work.values():
            if isinstance(work, RemoveBroker):
                keys += [request.key for request in work.parked]
                keys += work.unregister_keys
        return keys

    # ---- requests

    def handle(self, arrived: RequestArrived, request: WriteRequest, now_ms: int) -> None:
        """Decides one request; its answer goes out now or with a commit."""
        if isinstance(request, BROKER_ID_REQUESTS):
            self._ids.handle(arrived, request, now_ms)
            return
        if isinstance(request, PARTITIONS_REQUESTS):
            self._partitions.handle(arrived.key, request, now_ms)
            return
        if isinstance(request, SETTINGS_REQUESTS):
            self._settings(arrived.key, request, now_ms)
            return
        match request:
            case BrokerHeartbeatRequest():
                self._heartbeats.handle(arrived.key, arrived.arrived_ms, request, now_ms)
            case AlterReassignmentsRequest():
                self._reassign(arrived.key, request, now_ms)
            case CreateTopicsRequest():
                self._create_topics(arrived.key, request, now_ms)
            case DeleteTopicsRequest():
                result = decide_delete_topics(self.ledger.newest, request, self.config)
                self._bench.finish(arrived.key, result, now_ms)
            case RegisterBrokerRequest():
                self._register(arrived, request, now_ms)
            case UnregisterBrokerRequest():
                self._unregister(arrived.key, request.broker_id, now_ms)
            case _:
                assert_never(request)

    def _settings(self, key: int, request: SettingsRequest, now_ms: int) -> None:
        port = self._bench.port
        around = Surroundings(
            config=self.config,
            voters=port.voters,
            wall_ms=port.wall_ms,
            new_id=lambda: random_uuid(self._rng),
        )
        self._bench.finish(key, decide_settings(self.ledger.newest, request, around), now_ms)
        if isinstance(request, UpdateFeaturesRequest):
            self._register_self(now_ms)
            self._forget_eligible()

    def _forget_eligible(self) -> None:
        """Eligible leader replicas that are left when the feature is off are removed in slices."""
        image = self.ledger.newest
        if not elr_enabled(image) and eligible_anywhere(image):
            self._bench.add(ForgetEligible())

    def _register_self(self, now_ms: int) -> None:
        """As soon as the log can carry it, it says which levels this controller can work at (KIP-919)."""
        port = self._bench.port
        registration = own_registration(self.ledger.newest, self.config, port.incarnation_id)
        if registration is not None:
            self._bench.append((controller_record(registration),), [], now_ms)

    def _reassign(self, key: int, request: AlterReassignmentsRequest, now_ms: int) -> None:
        image, most = self.ledger.newest, self.config.records_per_request_max
        result = decide_reassignments(image, request, self._bench.rules(image), records_max=most)
        self._bench.finish(key, result, now_ms, lambda: refuse_reassignments(request, most))

    def _create_topics(self, key: int, request: CreateTopicsRequest, now_ms: int) -> None:
        image = self.ledger.newest
        result = decide_create_topics(
            image,
            request,
            self.config,
            candidates=self._candidates(image),
            new_topic_id=lambda: random_uuid(self._rng),
            rng=self._rng,
        )
        names, most = [topic.name for topic in request.topics], self.config.records_per_request_max
        self._bench.finish(key, result, now_ms, lambda: refuse_all(names, most))

    def _candidates(self, image: MetadataImage) -> tuple[Candidate, ...]:
        """Brokers that may hold new replicas. Brokers change rarely: the last answer is kept."""
        fencing = self.sessions.fencing
        if fencing:
            return _candidates_on(image.brokers, fencing)
        if self._candidates_of is not image.brokers:
            self._candidates_of = image.brokers
            self._candidates_kept = _candidates_on(image.brokers, fencing)
        return self._candidates_kept

    def _register(
        self, arrived: RequestArrived, request: RegisterBrokerRequest, now_ms: int, *, waited: bool = False
    ) -> None:
        image = self.ledger.newest
        broker_id = request.broker_id
        work = self._bench.work.get((RemoveBroker, broker_id))
        remaining_ms = self._lease_of_another_ms(image, request, arrived.arrived_ms)
        unclean = not waited and decide.must_drop_first(image, request)
        must_end = (unclean or decide.must_fence_first(image, request)) and not decide.refuses_registration(
            image, request, cluster_id=self.config.cluster_id, session_remaining_ms=remaining_ms
        )
        if must_end or isinstance(work, RemoveBroker):
            self._park(arrived, image, now_ms, unclean=unclean)
            return
        result = decide.decide_registration(
            image,
            request,
            cluster_id=self.config.cluster_id,
            next_offset=self.ledger.newest_state.end_offset,
            session_remaining_ms=remaining_ms,
            session_timeout_ms=self.config.broker_session_timeout_ms,
        )
        result = self._ids.registered(request, result, arrived.arrived_ms)
        known = image.brokers.get(broker_id)
        if self._bench.finish(arrived.key, result, now_ms) and not isinstance(result.response, ApiError):
            epoch = self.ledger.newest.brokers[broker_id].epoch
            if known is None or known.epoch != epoch:
                self.sessions.forget(broker_id)
            session = self.sessions.touch(broker_id, epoch, arrived.arrived_ms)
            if known is not None and known.epoch == epoch and known.in_controlled_shutdown:
                self._stays(broker_id, session, fenced=known.fenced)

    def _stays(self, broker_id: int, session: Session, *, fenced: bool) -> None:
        """A broker that was taken for one that stops does not: it may lead what nobody leads, and the next
        time that it leaves, its moves are waited for anew."""
        session.moves_end_offset = None
        if not fenced:
            self._bench.add(ElectLeaders(broker_id=broker_id))

    def _register_again(self, arrived: RequestArrived, now_ms: int) -> None:
        """A registration that waited for the earlier incarnation's fencing."""
        if isinstance(arrived.request, RegisterBrokerRequest):
            self._register(arrived, arrived.request, now_ms, waited=True)

    def _lease_of_another_ms(self, image: MetadataImage, request: RegisterBrokerRequest, at_ms: int) -> int:
        """How long another incarnation's lease runs; one that is shutting down has given it up (K12)."""
        known = image.brokers.get(request.broker_id)
        if known is None or known.incarnation_id == request.incarnation_id or known.in_controlled_shutdown:
            return 0
        return self.sessions.remaining_ms(request.broker_id, at_ms)

    def _park(self, arrived: RequestArrived, image: MetadataImage, now_ms: int, *, unclean: bool) -> None:
        """A bounced broker: the earlier incarnation fails first, then the new one starts (S1.14-S1.16)."""
        request = arrived.request
        if not isinstance(request, RegisterBrokerRequest):
            raise TypeError(f"only registrations are parked, not {type(request).__name__}")
        known = image.brokers.get(request.broker_id)
        work = self._bench.work.get((RemoveBroker, request.broker_id))
        if not isinstance(work, RemoveBroker):
            if known is None:
                raise ValueError(
                    f"broker {request.broker_id} is not registered: there is nothing to fence first"
                )
            work = self._bench.start_removal(request.broker_id, known.epoch)
        if len(work.parked) >= PARKED_PER_BROKER_MAX:
            self._bench.port.reply(arrived.key, busy("registrations of this broker wait already"))
            return
        if unclean:
            work.make_unclean()
        work.parked.append(arrived)
        self._bench.step(work, now_ms)

    def _unregister(self, key: int, broker_id: int, now_ms: int) -> None:
        known = self.ledger.newest.brokers.get(broker_id)
        if known is None:
            text = f"broker {broker_id} is not registered: list the brokers to see which are"
            error = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
            self._bench.finish(key, ControllerResult(response=error, depends_on_broker=broker_id), now_ms)
            return
        work = self._bench.start_removal(broker_id, known.epoch)
        if len(work.unregister_keys) >= PARKED_PER_BROKER_MAX:
            self._bench.port.reply(key, busy("this broker is being unregistered already"))
            return
        work.unregister = True
        work.unregister_keys.append(key)
        self._bench.step(work, now_ms)

    # ---- time

    def expire(self, now_ms: int) -> None:
        """Brokers whose lease ran out are being fenced from now on; tokens that are over are removed."""
        self._sweep_tokens(now_ms)
        image = self.ledger.newest
        for broker_id in self.sessions.expired(now_ms, EXPIRIES_PER_STEP_MAX):
            known = image.brokers.get(broker_id)
            if known is not None and not known.fenced and broker_id not in self.sessions.fencing:
                self.sessions.expired_count += 1
                session = self.sessions.get(broker_id)
                silent_ms = now_ms - session.contact_ms if session is not None else 0
                self._bench.port.warn(
                    f"broker {broker_id} sent no heartbeat for {silent_ms} ms and is being fenced: "
                    "look at its log, and at the network between it and the controllers"
                )
                self._bench.start_removal(broker_id, known.epoch)

    def _sweep_tokens(self, now_ms: int) -> None:
        if now_ms < self._next_sweep_ms:
            return
        self._next_sweep_ms = now_ms + self.config.delegation_token_expiry_check_interval_ms
        limit = self.config.records_per_slice_max
        records = expired_tokens(self.ledger.newest, self._bench.port.wall_ms, limit)
        if records:
            self._bench.append(records, [], now_ms)
        if len(records) == limit:
            self._next_sweep_ms = now_ms

    def step(self, now_ms: int) -> None:
        """One slice of the oldest work, if there is any; what is remembered of broker ids is looked after."""
        self._ids.tick(now_ms)
        self._partitions.balance(now_ms)
        if self._bench.may_step():
            self._bench.step(next(iter(self._bench.work.values())), now_ms)

    def write_no_op(self, now_ms: int) -> None:
        """Keeps the log moving when nothing happens (KIP-835). Observers need not be woken for it."""
        interval_ms = self.config.metadata_max_idle_interval_ms
        if interval_ms <= 0 or now_ms - self._bench.last_append_ms < interval_ms:
            return
        self._bench.last_append_ms = now_ms
        if self.ledger.newest.features.metadata_version >= LEVEL_NO_OP:
            self._bench.port.append((NoOpRecord(),), [], wake_observers=False)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When there is something to do without an input."""
        if self._bench.may_step():
            return now_ms
        waits = (
            self.sessions.next_deadline_ms(),
            self._ids.next_deadline_ms(),
            self._partitions.next_deadline_ms(),
        )
        due = min((wait for wait in waits if wait is not None), default=None)
        if len(self.ledger.newest.delegation_tokens):
            due = self._next_sweep_ms if due is None else min(due, self._next_sweep_ms)
        if self.config.metadata_max_idle_interval_ms > 0:
            idle = self._bench.last_append_ms + self.config.metadata_max_idle_interval_ms
            due = idle if due is None else min(due, idle)
        return due


def _candidates_on(brokers: BrokersImage, fencing: Container[int]) -> tuple[Candidate, ...]:
    """Registered brokers that are not shutting down (K12)."""
    return tuple(
        [
            Candidate(broker_id, known.rack, known.fenced or broker_id in fencing)
            for broker_id, known in brokers.items()
            if not known.in_controlled_shutdown
        ]
    )
