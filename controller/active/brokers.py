"""Brokers at the active controller: registration, heartbeats and the states that they cause, removal (K9,
K10).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec
from msgspec.structs import replace

from metaquorum.controller.active.outcome import (
    ElectLeaders,
    FailDirectories,
    MoveLeaders,
    Outcome,
    RemoveBroker,
    Resumed,
    Work,
    answer_of,
    batch_of,
    outcome_of,
    refused,
)
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.brokers import brokers as decide
from metaquorum.controller.brokers.broker_ids import remember_registration
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.partitions.partitions import election_slice, leads_any, removal_slice, with_broker
from metaquorum.controller.result import ControllerAnswer, ControllerResult, epoch_refusal
from metaquorum.metadata.errors import ApiError, ErrorCode, InvariantViolation, busy
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from metaquorum.metadata.requests.status import BrokerControlState

_UP = (BrokerControlState.ACTIVE, BrokerControlState.CONTROLLED_SHUTDOWN)


def decide_heartbeat(
    state: ActiveState, arrived: RequestArrived, request: BrokerHeartbeatRequest, now_ms: int
) -> Outcome:
    """`arrived` has the time at which the heartbeat arrived; `now_ms` is when it is handled."""
    broker_id, sessions = request.broker_id, state.sessions
    brokers = state.image.brokers
    refusal = epoch_refusal(brokers, broker_id, request.broker_epoch)
    if refusal is not None:
        answer = ControllerAnswer(key=arrived.key, response=refusal, depends_on_broker=broker_id)
        return Outcome(answers=(answer,))
    beat = _Heartbeat(state, arrived, request, decide.is_caught_up(brokers, request))
    if broker_id in sessions.fencing:
        # Its lease is over and stays so until the last batch of its fencing is written.
        return Outcome(answers=(beat.answer(BrokerControlState.FENCED),))
    failing, none_left = _dead_directories(state, request)
    if failing is not None:
        # The rest is decided on the image in which the directories have begun to fail.
        return replace(state.next_slice(failing, now_ms), then=(Resumed(arrived=arrived),))
    known = sessions.get(broker_id)
    should_shut_down = known is not None and known.should_shut_down
    before = decide.broker_state(brokers, broker_id, fencing=False, should_shut_down=should_shut_down)
    session = sessions.touched(broker_id, request.broker_epoch, arrived.arrived_ms).with_applied(
        request.applied_offset, state.ledger.committed_offset, arrived.arrived_ms
    )
    if session.min_insync_replicas != request.min_insync_replicas:
        session = replace(session, min_insync_replicas=request.min_insync_replicas)
    event = beat.event(before, session, none_left=none_left)
    if event is BrokerEvent.MOVES_SEEN or event is BrokerEvent.MOVES_UNSEEN:
        session = replace(session, moves_end_offset=_moves_end_offset(state, session))
    after = transition(before, event)
    if after is BrokerControlState.ACTIVE and after is not before:
        return beat.admit(session)
    if after is BrokerControlState.CONTROLLED_SHUTDOWN and after is not before:
        return beat.let_leave(session, now_ms)
    if after is not before and before in _UP:
        return beat.removed(session, after, now_ms)
    moving: tuple[Work, ...] = ()
    if event is BrokerEvent.LEADERS_REMAIN:
        moving = state.new_work(MoveLeaders(broker_id=broker_id, epoch=request.broker_epoch))
    return Outcome(
        sessions=((broker_id, _released(session) if after is BrokerControlState.SHUTDOWN else session),),
        work=moving,
        answers=(beat.answer(after),),
    )


class _Heartbeat(msgspec.Struct, frozen=True):
    """A heartbeat of the registered incarnation, and the outcomes that it can have."""

    state: ActiveState
    arrived: RequestArrived
    request: BrokerHeartbeatRequest
    caught_up: bool

    def event(
        self, before: BrokerControlState, session: BrokerHeartbeatState, *, none_left: bool
    ) -> BrokerEvent:
        """The event that it causes in state `before`, with the session as updated by it."""
        state, request, broker_id = self.state, self.request, self.request.broker_id
        if before in _UP and state.sessions.is_paused(session, self.arrived.arrived_ms):
            return BrokerEvent.LEASE_LOST
        # No heartbeat takes back a controlled shutdown, because it may be old: only a registration does.
        leaving = state.image.brokers[broker_id].in_controlled_shutdown
        caught_up = self.caught_up and request.applied_offset >= session.unfence_from_offset and not leaving
        return heartbeat_event(
            before,
            want_fence=request.want_fence or none_left,
            want_shutdown=request.want_shutdown,
            caught_up=caught_up,
            leads=lambda: leads_any(state.image, broker_id),
            moves_seen=lambda: _moves_seen(state, broker_id, _moves_end_offset(state, session)),
        )

    def answer(self, after: BrokerControlState) -> ControllerAnswer:
        """The answer to a broker that is now in state `after`."""
        return ControllerAnswer(
            key=self.arrived.key,
            response=decide.heartbeat_response(
                after, self.caught_up, self.state.config.broker_session_timeout_ms
            ),
            depends_on_broker=self.request.broker_id,
        )

    def admit(self, session: BrokerHeartbeatState) -> Outcome:
        """Unfences it, and gives it the leaderships that this makes possible."""
        state, broker_id = self.state, self.request.broker_id
        batch = election_slice(
            state.image,
            broker_id,
            with_broker(state.rules(), broker_id),
            state.config.records_per_slice_max,
            first=decide.unfence_record(broker_id, self.request.broker_epoch),
        )
        rest = () if batch.done else state.new_work(ElectLeaders(broker_id=broker_id))
        return Outcome(
            batch=batch_of(batch.records),
            sessions=((broker_id, session),),
            work=rest,
            answers=(replace(self.answer(BrokerControlState.ACTIVE), depends_on_broker=None),),
        )

    def let_leave(self, session: BrokerHeartbeatState, now_ms: int) -> Outcome:
        """Puts it in controlled shutdown: others take over what it leads."""
        state, broker_id, epoch = self.state, self.request.broker_id, self.request.broker_epoch
        if not decide.knows_controlled_shutdown(state.image):
            return self.removed(session, BrokerControlState.FENCED, now_ms)
        batch = removal_slice(
            state.image,
            broker_id,
            state.rules(),
            state.config.records_per_slice_max,
            first=decide.shutdown_record(broker_id, epoch),
        )
        rest = () if batch.done else state.new_work(MoveLeaders(broker_id=broker_id, epoch=epoch))
        return Outcome(
            batch=batch_of(batch.records),
            sessions=((broker_id, session),),
            work=rest,
            answers=(replace(self.answer(BrokerControlState.CONTROLLED_SHUTDOWN), depends_on_broker=None),),
        )

    def removed(self, session: BrokerHeartbeatState, after: BrokerControlState, now_ms: int) -> Outcome:
        """Fences it from now on. It may stop only if one slice did everything."""
        state, broker_id = self.state, self.request.broker_id
        work = state.removal(broker_id, self.request.broker_epoch)
        outcome = state.next_slice(work, now_ms, session)
        if after is BrokerControlState.SHUTDOWN and outcome.ended:
            changed = tuple(
                [
                    (each, None if reported is None else _released(reported))
                    for each, reported in outcome.sessions
                ]
            )
            outcome = replace(outcome, sessions=changed)
        else:
            after = BrokerControlState.FENCED
        return replace(outcome, answers=(*outcome.answers, self.answer(after)))


def _released(session: BrokerHeartbeatState) -> BrokerHeartbeatState:
    """The answer lets it stop: its next process need not wait for the lease to end."""
    return replace(session, should_shut_down=True, expires=False)


def _dead_directories(
    state: ActiveState, request: BrokerHeartbeatRequest
) -> tuple[FailDirectories | None, bool]:
    """Begins to declare registered directories offline that the broker reports as dead (KIP-858); a report
    without news changes nothing (S3.14). True: no good directory is left, which no record can express, and
    such a broker can serve nothing: it has to be fenced (S3.3)."""
    image, broker_id, epoch = state.image, request.broker_id, request.broker_epoch
    if not request.offline_directories or image.features.metadata_version < LEVEL_DIRECTORIES:
        return None, False
    registered = frozenset(image.brokers[broker_id].directories)
    failing = state.sessions.failing.get(broker_id, frozenset[bytes]())
    dead = registered & frozenset(request.offline_directories)
    if not dead or dead | failing == registered:
        return None, bool(dead)
    if dead <= failing:
        return None, False
    work = state.work.get((FailDirectories, broker_id))
    if isinstance(work, FailDirectories) and work.epoch == epoch:
        return replace(work, directories=work.directories | dead), False
    return FailDirectories(broker_id=broker_id, epoch=epoch, directories=dead), False


def _moves_end_offset(state: ActiveState, session: BrokerHeartbeatState) -> int:
    """The offset at which its leaders' moves ended: taken here, at the first heartbeat at which it leads
    nothing."""
    return state.next_offset if session.moves_end_offset is None else session.moves_end_offset


def _moves_seen(state: ActiveState, broker_id: int, moves_end_offset: int) -> bool:
    """Whether every active broker has applied the moves of this broker's leaders (K9)."""
    may_lead, sessions = state.may_lead(), state.sessions
    return all(
        sessions.applied_offset(other) >= moves_end_offset
        for other in state.image.brokers
        if other != broker_id and may_lead(other)
    )


# A broker's states as the active controller sees them, and the transitions between them, as a table.
# The table: every possible change of a broker's state is a row of `TRANSITIONS` (S2.37, K9); anything
# else is refused.


class BrokerEvent(Enum):
    """The meaning of a request, a heartbeat or the clock for one broker."""

    REGISTERED = "a new incarnation registered"
    AMENDED = "the same incarnation registered again"
    UNREGISTERED = "an operator removed the registration"
    LEASE_LOST = "no heartbeat for the session timeout, or no progress for the lag timeout"
    CAUGHT_UP = "heartbeat: has applied its own registration, wants to run"
    BEHIND = "heartbeat: has not applied its own registration, wants to run"
    WANTS_FENCE = "heartbeat: wants to be fenced"
    WANTS_SHUTDOWN_LEADING = "heartbeat: wants to shut down, leads partitions"
    WANTS_SHUTDOWN_LEADERLESS = "heartbeat: wants to shut down, leads nothing"
    WANTS_IMMEDIATE_SHUTDOWN = "heartbeat: wants to be fenced and to shut down"
    LEADERS_REMAIN = "heartbeat: still leads partitions"
    MOVES_UNSEEN = "heartbeat: leads nothing, but an active broker has not applied the moves yet"
    MOVES_SEEN = "heartbeat: leads nothing, and every active broker has applied the moves"


_S, _E = BrokerControlState, BrokerEvent

TRANSITIONS: dict[tuple[BrokerControlState, BrokerEvent], BrokerControlState] = {
    (_S.UNREGISTERED, _E.REGISTERED): _S.FENCED,
    (_S.FENCED, _E.REGISTERED): _S.FENCED,
    (_S.ACTIVE, _E.REGISTERED): _S.FENCED,
    (_S.CONTROLLED_SHUTDOWN, _E.REGISTERED): _S.FENCED,
    (_S.SHUTDOWN, _E.REGISTERED): _S.FENCED,
    (_S.FENCED, _E.AMENDED): _S.FENCED,
    (_S.ACTIVE, _E.AMENDED): _S.ACTIVE,
    (_S.CONTROLLED_SHUTDOWN, _E.AMENDED): _S.ACTIVE,
    (_S.SHUTDOWN, _E.AMENDED): _S.FENCED,
    (_S.FENCED, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.ACTIVE, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.CONTROLLED_SHUTDOWN, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.SHUTDOWN, _E.UNREGISTERED): _S.UNREGISTERED,
    (_S.ACTIVE, _E.LEASE_LOST): _S.FENCED,
    (_S.CONTROLLED_SHUTDOWN, _E.LEASE_LOST): _S.FENCED,
    (_S.FENCED, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.FENCED, _E.BEHIND): _S.FENCED,
    (_S.FENCED, _E.WANTS_FENCE): _S.FENCED,
    (_S.FENCED, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
    (_S.ACTIVE, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.ACTIVE, _E.BEHIND): _S.ACTIVE,
    (_S.ACTIVE, _E.WANTS_FENCE): _S.FENCED,
    (_S.ACTIVE, _E.WANTS_SHUTDOWN_LEADING): _S.CONTROLLED_SHUTDOWN,
    (_S.ACTIVE, _E.WANTS_SHUTDOWN_LEADERLESS): _S.SHUTDOWN,
    (_S.ACTIVE, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.LEADERS_REMAIN): _S.CONTROLLED_SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.MOVES_UNSEEN): _S.CONTROLLED_SHUTDOWN,
    (_S.CONTROLLED_SHUTDOWN, _E.MOVES_SEEN): _S.SHUTDOWN,
    (_S.SHUTDOWN, _E.CAUGHT_UP): _S.ACTIVE,
    (_S.SHUTDOWN, _E.BEHIND): _S.FENCED,
    (_S.SHUTDOWN, _E.WANTS_FENCE): _S.FENCED,
    (_S.SHUTDOWN, _E.WANTS_IMMEDIATE_SHUTDOWN): _S.SHUTDOWN,
}
"""SHUTDOWN is FENCED with a promise: a broker that keeps sending heartbeats, instead of stopping, is fenced
as before."""


def transition(state: BrokerControlState, event: BrokerEvent) -> BrokerControlState:
    """The state after `event`. Raises InvariantViolation if the table has no such edge."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise InvariantViolation(f"a broker in state '{state.value}' cannot take the event: {event.value}")
    return after


def heartbeat_event(
    state: BrokerControlState,
    *,
    want_fence: bool,
    want_shutdown: bool,
    caught_up: bool,
    leads: Callable[[], bool],
    moves_seen: Callable[[], bool],
) -> BrokerEvent:
    """What a heartbeat means in `state` (K9). `leads` and `moves_seen` are called only where they decide."""
    if state is BrokerControlState.CONTROLLED_SHUTDOWN:
        # Its request is known; a delayed heartbeat from before must not change it.
        if leads():
            return BrokerEvent.LEADERS_REMAIN
        return BrokerEvent.MOVES_SEEN if moves_seen() else BrokerEvent.MOVES_UNSEEN
    if want_shutdown:
        if want_fence or state is not BrokerControlState.ACTIVE:
            return BrokerEvent.WANTS_IMMEDIATE_SHUTDOWN
        return BrokerEvent.WANTS_SHUTDOWN_LEADING if leads() else BrokerEvent.WANTS_SHUTDOWN_LEADERLESS
    if want_fence:
        return BrokerEvent.WANTS_FENCE
    return BrokerEvent.CAUGHT_UP if caught_up else BrokerEvent.BEHIND


# Registration and removal of brokers at the active controller: which requests wait for what, and
# sessions.
#
# Decides what is written, answered and remembered, and does not change state: `state` does. The
# conditions for a registration are in `brokers`, what is remembered beside it is in `broker_ids`.

PARKED_PER_BROKER_MAX = 4
"""Registrations that wait for the earlier incarnation's fencing; more are refused as retriable."""


def decide_register_broker(
    state: ActiveState,
    arrived: RequestArrived,
    request: RegisterBrokerRequest,
    now_ms: int,
    *,
    waited: bool = False,
) -> Outcome:
    """`waited`: the earlier incarnation has been fenced for this registration."""
    image, broker_id = state.image, request.broker_id
    remaining_ms = _lease_of_another_ms(state, request, arrived.arrived_ms)
    unclean = not waited and decide.must_drop_first(image, request)
    must_end = (unclean or decide.must_fence_first(image, request)) and not decide.refuses_registration(
        image,
        request,
        cluster_id=state.config.cluster_id,
        session_remaining_ms=remaining_ms,
        kraft_version=state.kraft_version,
    )
    if must_end or (RemoveBroker, broker_id) in state.work:
        return _park(state, arrived, broker_id, now_ms, unclean=unclean)
    result = decide.decide_registration(
        image,
        request,
        cluster_id=state.config.cluster_id,
        next_offset=state.next_offset,
        session_remaining_ms=remaining_ms,
        session_timeout_ms=state.config.broker_session_timeout_ms,
        kraft_version=state.kraft_version,
    )
    if not isinstance(result.response, RegisterBrokerResponse):
        return outcome_of(arrived.key, result)
    epoch = result.response.broker_epoch
    more = remember_registration(image, request, _is_live(state, arrived.arrived_ms))
    return _registered(state, arrived, broker_id, replace(result, records=(*result.records, *more)), epoch)


def _registered(
    state: ActiveState, arrived: RequestArrived, broker_id: int, result: ControllerResult, epoch: int
) -> Outcome:
    """The lease begins, or starts over. A broker that was considered stopping no longer is: it may lead
    leaderless partitions, and the next time that it leaves, its moves are waited for again."""
    registration = state.image.brokers.get(broker_id)
    if registration is None or registration.epoch != epoch:
        fresh = state.sessions.fresh(epoch, arrived.arrived_ms)
        return replace(outcome_of(arrived.key, result), sessions=((broker_id, None), (broker_id, fresh)))
    session = state.sessions.touched(broker_id, epoch, arrived.arrived_ms)
    stays = registration.in_controlled_shutdown
    if stays:
        session = replace(session, moves_end_offset=None)
    return Outcome(
        batch=batch_of(result.records),
        sessions=((broker_id, session),),
        work=state.new_work(ElectLeaders(broker_id=broker_id)) if stays and not registration.fenced else (),
        answers=(answer_of(arrived.key, result),),
    )


def _lease_of_another_ms(state: ActiveState, request: RegisterBrokerRequest, at_ms: int) -> int:
    """How long another incarnation's lease runs; one that is shutting down has given it up (K12)."""
    known = state.image.brokers.get(request.broker_id)
    if known is None or known.incarnation_id == request.incarnation_id or known.in_controlled_shutdown:
        return 0
    return state.sessions.remaining_ms(request.broker_id, at_ms)


def _is_live(state: ActiveState, now_ms: int) -> Callable[[int], bool]:
    def live(broker_id: int) -> bool:
        known = state.image.brokers.get(broker_id)
        return known is not None and (not known.fenced or state.sessions.remaining_ms(broker_id, now_ms) > 0)

    return live


def _park(
    state: ActiveState, arrived: RequestArrived, broker_id: int, now_ms: int, *, unclean: bool
) -> Outcome:
    """A restarted broker: the earlier incarnation fails first, then the new one starts (S1.14-S1.16)."""
    registration = state.image.brokers.get(broker_id)
    work = state.work.get((RemoveBroker, broker_id))
    if not isinstance(work, RemoveBroker):
        if registration is None:
            raise ValueError(f"broker {broker_id} is not registered: there is nothing to fence first")
        work = state.removal(broker_id, registration.epoch)
    if len(work.parked) >= PARKED_PER_BROKER_MAX:
        return refused(arrived.key, busy("a registration of this broker is already waiting"))
    parked = replace(work, parked=(*work.parked, arrived), unclean=work.unclean or unclean)
    return state.next_slice(parked, now_ms)


def decide_unregister_broker(
    state: ActiveState, arrived: RequestArrived, request: UnregisterBrokerRequest, now_ms: int
) -> Outcome:
    """An operator removes a broker that is gone: first from its partitions, then its registration."""
    broker_id = request.broker_id
    registration = state.image.brokers.get(broker_id)
    if registration is None:
        text = f"broker {broker_id} is not registered: list the registered brokers"
        error = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
        return outcome_of(arrived.key, ControllerResult(response=error, depends_on_broker=broker_id))
    work = state.removal(broker_id, registration.epoch)
    if len(work.unregister_keys) >= PARKED_PER_BROKER_MAX:
        return refused(arrived.key, busy("this broker is already being unregistered"))
    keys = (*work.unregister_keys, arrived.key)
    return state.next_slice(replace(work, unregister=True, unregister_keys=keys), now_ms)
