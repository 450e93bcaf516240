"""The active controller: decides requests on the newest image, keeps sessions, and works in slices.

Lives as long as one leadership, and only while everything before it is applied. Owns the soft state; the log,
Raft and who is told when belong to the node, which brings `Port`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, assert_never

from controller import brokers as decide
from controller.bootstrap import abort_record, first_records
from controller.config import ControllerConfig
from controller.events import RequestArrived
from controller.features import LEVEL_NO_OP
from controller.ledger import Ledger, Reply
from controller.lifecycle import BrokerEvent, BrokerState, heartbeat_event, transition
from controller.partitions import MayLead, election_slice, leads_any, removal_slice
from controller.result import ControllerResult
from controller.sessions import Session, Sessions
from controller.topics import decide_create_topics, decide_delete_topics, refuse_all
from controller.work import ElectLeaders, MoveLeaders, RemoveBroker, Work, next_slice
from metadata.errors import ApiError, ErrorCode, RecordEncodeError
from metadata.image import MetadataImage
from metadata.records import NoOpRecord, Record
from metadata.requests import (
    BrokerHeartbeatRequest,
    ControllerResponse,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    Done,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
)
from storage.errors import BatchError
from storage.uuids import random_uuid

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
)
WRITE_REQUESTS = (
    RegisterBrokerRequest,
    BrokerHeartbeatRequest,
    UnregisterBrokerRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)


class Port(Protocol):
    """What the active controller needs of its node."""

    def append(self, records: Sequence[Record], replies: list[Reply], *, wake_observers: bool = True) -> int:
        """Replays and appends one batch; its end offset (exclusive). Raises BatchError when too large."""

    def reply(self, key: int, response: ControllerResponse | ApiError) -> None:
        """Answers now."""


class ActiveController:
    """See the module. `now_ms` is the time of the step, `arrived_ms` that of a request's arrival."""

    def __init__(
        self, config: ControllerConfig, ledger: Ledger, sessions: Sessions, rng: Random, port: Port
    ) -> None:
        self.config = config
        self.ledger = ledger
        self.sessions = sessions
        self.work: dict[tuple[type[Work], int | None], Work] = {}
        self.last_append_ms = 0
        self._rng = rng
        self._port = port

    # ---- beginning and end

    def activate(self, now_ms: int, *, log_is_empty: bool) -> None:
        """Everything before this leadership is applied: end what is open, and start the sessions (K11)."""
        self.last_append_ms = now_ms
        transaction = self.ledger.newest_state.transaction
        if transaction is not None:
            self._append((abort_record(transaction),), [], now_ms)
        if log_is_empty:
            self._append(first_records(self.config.bootstrap), [], now_ms)
        image = self.ledger.newest
        for broker_id, registration in image.brokers.items():
            if not registration.fenced:
                self.sessions.open(broker_id, registration.epoch, now_ms)
        if image.topics.rows_without_leader().size:
            self._add(ElectLeaders(broker_id=None))

    def parked_keys(self) -> list[int]:
        """Keys of requests that wait for work of this node, which it will not end."""
        keys: list[int] = []
        for work in self.work.values():
            if isinstance(work, RemoveBroker):
                keys += [request.key for request in work.parked]
                keys += work.unregister_keys
        return keys

    # ---- requests

    def handle(self, arrived: RequestArrived, request: WriteRequest, now_ms: int) -> None:
        """Decides one request; its answer goes out now or with a commit."""
        match request:
            case BrokerHeartbeatRequest():
                self._heartbeat(arrived.key, arrived.arrived_ms, request, now_ms)
            case CreateTopicsRequest():
                self._create_topics(arrived.key, request, now_ms)
            case DeleteTopicsRequest():
                result = decide_delete_topics(self.ledger.newest, request, self.config)
                self._finish(arrived.key, result, now_ms)
            case RegisterBrokerRequest():
                self._register(arrived, request, now_ms)
            case UnregisterBrokerRequest():
                self._unregister(arrived.key, request.broker_id, now_ms)
            case _:
                assert_never(request)

    def _create_topics(self, key: int, request: CreateTopicsRequest, now_ms: int) -> None:
        image = self.ledger.newest
        may_lead = self._may_lead(image)
        result = decide_create_topics(
            image,
            request,
            self.config,
            usable=[broker_id for broker_id in image.brokers if may_lead(broker_id)],
            new_topic_id=lambda: random_uuid(self._rng),
            rng=self._rng,
        )
        try:
            self._finish(key, result, now_ms)
        except BatchError:
            names = [topic.name for topic in request.topics]
            self._finish(key, refuse_all(names, self.config.records_per_request_max), now_ms)

    def _register(self, arrived: RequestArrived, request: RegisterBrokerRequest, now_ms: int) -> None:
        image = self.ledger.newest
        broker_id = request.broker_id
        work = self.work.get((RemoveBroker, broker_id))
        remaining_ms = self._lease_of_another_ms(image, request, arrived.arrived_ms)
        must_fence = decide.must_fence_first(image, request) and not decide.refuses_registration(
            image, request, cluster_id=self.config.cluster_id, session_remaining_ms=remaining_ms
        )
        if must_fence or isinstance(work, RemoveBroker):
            self._park(arrived, image, now_ms)
            return
        result = decide.decide_registration(
            image,
            request,
            cluster_id=self.config.cluster_id,
            next_offset=self.ledger.newest_state.end_offset,
            session_remaining_ms=remaining_ms,
            session_timeout_ms=self.config.broker_session_timeout_ms,
        )
        known = image.brokers.get(broker_id)
        if self._finish(arrived.key, result, now_ms) and not isinstance(result.response, ApiError):
            epoch = self.ledger.newest.brokers[broker_id].epoch
            if known is None or known.epoch != epoch:
                self.sessions.forget(broker_id)
            self.sessions.touch(broker_id, epoch, arrived.arrived_ms)

    def _lease_of_another_ms(self, image: MetadataImage, request: RegisterBrokerRequest, at_ms: int) -> int:
        """How long another incarnation's lease runs; one that is shutting down has given it up (K12)."""
        known = image.brokers.get(request.broker_id)
        if known is None or known.incarnation_id == request.incarnation_id or known.in_controlled_shutdown:
            return 0
        return self.sessions.remaining_ms(request.broker_id, at_ms)

    def _park(self, arrived: RequestArrived, image: MetadataImage, now_ms: int) -> None:
        """A bounced broker: the earlier incarnation fails first, then the new one starts (S1.14-S1.16)."""
        request = arrived.request
        if not isinstance(request, RegisterBrokerRequest):
            raise TypeError(f"only registrations are parked, not {type(request).__name__}")
        known = image.brokers.get(request.broker_id)
        work = self.work.get((RemoveBroker, request.broker_id))
        if not isinstance(work, RemoveBroker):
            if known is None:
                raise ValueError(
                    f"broker {request.broker_id} is not registered: there is nothing to fence first"
                )
            work = self._start_removal(request.broker_id, known.epoch)
        if len(work.parked) >= PARKED_PER_BROKER_MAX:
            self._port.reply(arrived.key, busy("registrations of this broker wait already"))
            return
        work.parked.append(arrived)
        self._step(work, now_ms)

    def _unregister(self, key: int, broker_id: int, now_ms: int) -> None:
        known = self.ledger.newest.brokers.get(broker_id)
        if known is None:
            text = f"broker {broker_id} is not registered: list the brokers to see which are"
            error = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
            self._finish(key, ControllerResult(response=error, depends_on_broker=broker_id), now_ms)
            return
        work = self._start_removal(broker_id, known.epoch)
        work.unregister = True
        work.unregister_keys.append(key)
        self._step(work, now_ms)

    # ---- heartbeats

    def _heartbeat(self, key: int, arrived_ms: int, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        ledger, sessions, broker_id = self.ledger, self.sessions, request.broker_id
        brokers = ledger.newest.brokers
        refusal = decide.epoch_refusal(brokers, broker_id, request.broker_epoch)
        if refusal is not None:
            self._finish(key, ControllerResult(response=refusal, depends_on_broker=broker_id), now_ms)
            return
        caught_up = decide.is_caught_up(brokers, request)
        fencing = broker_id in sessions.fencing
        if fencing:
            # Its lease is over and stays so until the last batch of its fencing is written.
            self._tell(key, broker_id, BrokerState.FENCED, caught_up, now_ms)
            return
        session = sessions.get(broker_id)
        told_to_stop = session is not None and session.told_to_stop
        state = decide.broker_state(brokers, broker_id, fencing=False, told_to_stop=told_to_stop)
        session = sessions.touch(broker_id, request.broker_epoch, arrived_ms)
        sessions.note_applied(session, request.applied_offset, ledger.committed_offset, arrived_ms)
        up = state is BrokerState.ACTIVE or state is BrokerState.CONTROLLED_SHUTDOWN
        if up and sessions.stands_still(session, arrived_ms):
            event = BrokerEvent.LEASE_LOST
        else:
            event = heartbeat_event(
                state,
                want_fence=request.want_fence,
                want_shutdown=request.want_shutdown,
                caught_up=caught_up and request.applied_offset >= session.unfence_from_offset,
                leads=lambda: leads_any(ledger.newest, broker_id),
                moves_seen=lambda: self._moves_seen(session, broker_id),
            )
        after = transition(state, event)
        if after is state:
            if event is BrokerEvent.LEADERS_REMAIN:
                self._add(MoveLeaders(broker_id=broker_id, epoch=request.broker_epoch))
            self._tell(key, broker_id, after, caught_up, now_ms)
        else:
            self._move(key, request, session, state, after, caught_up, now_ms)
        if after is BrokerState.SHUTDOWN and not up:
            self._give_up_lease(broker_id, session)

    def _move(
        self,
        key: int,
        request: BrokerHeartbeatRequest,
        session: Session,
        state: BrokerState,
        after: BrokerState,
        caught_up: bool,
        now_ms: int,
    ) -> None:
        """Carries out a change of state that a heartbeat brought about."""
        broker_id, epoch = request.broker_id, request.broker_epoch
        was_up = state in {BrokerState.ACTIVE, BrokerState.CONTROLLED_SHUTDOWN}
        if after is BrokerState.ACTIVE:
            self._unfence(key, broker_id, epoch, caught_up, now_ms)
        elif after is BrokerState.CONTROLLED_SHUTDOWN:
            self._enter_shutdown(key, broker_id, epoch, caught_up, now_ms)
        elif was_up:
            work = self._start_removal(broker_id, epoch)
            self._step(work, now_ms)
            ended = broker_id not in self.sessions.fencing
            if after is BrokerState.SHUTDOWN and ended:
                self._give_up_lease(broker_id, session)
            else:
                after = BrokerState.FENCED
            self._tell(key, broker_id, after, caught_up, now_ms)
        else:
            self._tell(key, broker_id, after, caught_up, now_ms)

    def _give_up_lease(self, broker_id: int, session: Session) -> None:
        """It was told that it may stop: its next process need not wait for the lease to end."""
        if broker_id not in self.sessions.fencing:
            session.told_to_stop = True
            self.sessions.close(broker_id)

    def _unfence(self, key: int, broker_id: int, epoch: int, caught_up: bool, now_ms: int) -> None:
        image = self.ledger.newest
        others = self._may_lead(image)
        batch = election_slice(
            image,
            broker_id,
            lambda replica: replica == broker_id or others(replica),
            self.config.records_per_slice_max,
            first=decide.unfence_record(broker_id, epoch),
        )
        response = self._heartbeat_response(BrokerState.ACTIVE, caught_up)
        self._append(batch.records, [(key, response)], now_ms)
        if not batch.done:
            self._add(ElectLeaders(broker_id=broker_id))

    def _enter_shutdown(self, key: int, broker_id: int, epoch: int, caught_up: bool, now_ms: int) -> None:
        image = self.ledger.newest
        if not decide.knows_controlled_shutdown(image):
            work = self._start_removal(broker_id, epoch)
            self._step(work, now_ms)
            self._tell(key, broker_id, BrokerState.FENCED, caught_up, now_ms)
            return
        batch = removal_slice(
            image,
            broker_id,
            self._may_lead(image),
            self.config.records_per_slice_max,
            first=decide.shutdown_record(broker_id, epoch),
        )
        response = self._heartbeat_response(BrokerState.CONTROLLED_SHUTDOWN, caught_up)
        self._append(batch.records, [(key, response)], now_ms)
        if not batch.done:
            self._add(MoveLeaders(broker_id=broker_id, epoch=epoch))

    def _moves_seen(self, session: Session, broker_id: int) -> bool:
        """Every active broker has applied the moves of this broker's leaders (K9)."""
        if session.moves_end_offset is None:
            session.moves_end_offset = self.ledger.newest_state.end_offset
        image = self.ledger.newest
        may_lead = self._may_lead(image)
        return all(
            self.sessions.applied_offset(other) >= session.moves_end_offset
            for other in image.brokers
            if other != broker_id and may_lead(other)
        )

    def _heartbeat_response(self, state: BrokerState, caught_up: bool) -> ControllerResponse:
        return decide.heartbeat_response(state, caught_up, self.config.broker_session_timeout_ms)

    def _tell(self, key: int, broker_id: int, state: BrokerState, caught_up: bool, now_ms: int) -> None:
        response = self._heartbeat_response(state, caught_up)
        # That all moves are seen was read from partitions and not from the registration alone.
        whole = state is BrokerState.SHUTDOWN
        result = ControllerResult(response=response, depends_on_broker=None if whole else broker_id)
        self._finish(key, result, now_ms)

    # ---- time

    def expire(self, now_ms: int) -> None:
        """Brokers whose lease ran out are being fenced from now on."""
        image = self.ledger.newest
        for broker_id in self.sessions.expired(now_ms, EXPIRIES_PER_STEP_MAX):
            known = image.brokers.get(broker_id)
            if known is not None and not known.fenced and broker_id not in self.sessions.fencing:
                self.sessions.expired_count += 1
                self._start_removal(broker_id, known.epoch)

    def step(self, now_ms: int) -> None:
        """One slice of the oldest work, if there is any."""
        if self.work:
            self._step(next(iter(self.work.values())), now_ms)

    def write_no_op(self, now_ms: int) -> None:
        """Keeps the log moving when nothing happens (KIP-835). Observers need not be woken for it."""
        interval_ms = self.config.metadata_max_idle_interval_ms
        if interval_ms <= 0 or now_ms - self.last_append_ms < interval_ms:
            return
        self.last_append_ms = now_ms
        if self.ledger.newest.features.metadata_version >= LEVEL_NO_OP:
            self._port.append((NoOpRecord(),), [], wake_observers=False)

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When there is something to do without an input."""
        if self.work:
            return now_ms
        due = self.sessions.next_deadline_ms()
        if self.config.metadata_max_idle_interval_ms > 0:
            idle = self.last_append_ms + self.config.metadata_max_idle_interval_ms
            due = idle if due is None else min(due, idle)
        return due

    # ---- work

    def _start_removal(self, broker_id: int, epoch: int) -> RemoveBroker:
        self.sessions.fencing[broker_id] = epoch
        self.sessions.close(broker_id)
        self.work.pop((MoveLeaders, broker_id), None)
        work = self.work.get((RemoveBroker, broker_id))
        if not isinstance(work, RemoveBroker):
            work = RemoveBroker(broker_id=broker_id, epoch=epoch)
            self.work[RemoveBroker, broker_id] = work
        return work

    def _add(self, work: MoveLeaders | ElectLeaders) -> None:
        self.work.setdefault((type(work), work.broker_id), work)

    def _step(self, work: Work, now_ms: int) -> None:
        image = self.ledger.newest
        batch = next_slice(work, image, self._may_lead(image), self.config.records_per_slice_max)
        keys = work.unregister_keys if batch.done and isinstance(work, RemoveBroker) else []
        replies: list[Reply] = [(key, Done()) for key in keys]
        if batch.records:
            end_offset = self._append(batch.records, replies, now_ms)
        else:
            end_offset = self.ledger.newest_state.end_offset
            for key, response in replies:
                self._finish(key, ControllerResult(response=response), now_ms)
        if not batch.done:
            return
        del self.work[type(work), work.broker_id]
        if isinstance(work, RemoveBroker):
            self._end_removal(work, end_offset, now_ms)

    def _end_removal(self, work: RemoveBroker, end_offset: int, now_ms: int) -> None:
        self.sessions.fencing.pop(work.broker_id, None)
        session = self.sessions.get(work.broker_id)
        if work.unregister:
            self.sessions.forget(work.broker_id)
        elif session is not None:
            session.unfence_from_offset = end_offset
        for arrived in work.parked:
            request = arrived.request
            if isinstance(request, RegisterBrokerRequest):
                self._register(arrived, request, now_ms)

    def _may_lead(self, image: MetadataImage) -> MayLead:
        """Unfenced, not shutting down, and not being fenced."""
        is_active = image.brokers.is_active
        fencing = self.sessions.fencing
        if not fencing:
            return is_active
        return lambda broker_id: is_active(broker_id) and broker_id not in fencing

    # ---- answers

    def _append(self, records: Sequence[Record], replies: list[Reply], now_ms: int) -> int:
        self.last_append_ms = now_ms
        return self._port.append(records, replies)

    def _finish(self, key: int, result: ControllerResult, now_ms: int) -> bool:
        """Writes the records; the answer goes out when what it says is committed (DESIGN 6).

        False: the request holds a value that no record can carry, and that was the answer.
        """
        if result.records:
            try:
                self._append(result.records, [(key, result.response)], now_ms)
            except RecordEncodeError as error:
                self._port.reply(key, ApiError(ErrorCode.INVALID_REQUEST, f"{error}: correct the request"))
                return False
        elif self._holds_already(result):
            self._port.reply(key, result.response)
        else:
            self.ledger.wait((key, result.response))
        return True

    def _holds_already(self, result: ControllerResult) -> bool:
        ledger = self.ledger
        if not ledger.pending or not result.depends_on_image:
            return True
        broker_id = result.depends_on_broker
        if broker_id is None:
            return False
        newest, committed = ledger.newest.brokers, ledger.committed.image.brokers
        return newest.get(broker_id) == committed.get(broker_id) and newest.registration_offset(
            broker_id
        ) == committed.registration_offset(broker_id)


def busy(what: str) -> ApiError:
    """The request was not looked at. Kafka's retriable code whose meaning is 'later', and which never leaves
    open whether the request was carried out (REQUEST_TIMED_OUT would)."""
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"the controller is busy: {what}; retry in a moment")
