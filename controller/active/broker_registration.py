"""Registration and removal of brokers at the active controller: which requests wait for what, and sessions.

Owns the order of requests about one broker. Decides what is written, answered and remembered, and does not
change state: `state` does. The conditions for a registration are in `brokers`, what is remembered beside it
is in `broker_ids`.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from metaquorum.controller.active.outcome import Outcome, answer_of, batch_of, outcome_of, refused
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.active.work import ElectLeaders, RemoveBroker
from metaquorum.controller.brokers import brokers as decide
from metaquorum.controller.brokers.broker_ids import remember_registration
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ApiError, ErrorCode, busy
from metaquorum.metadata.requests.common import (
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)

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
        image, request, cluster_id=state.config.cluster_id, session_remaining_ms=remaining_ms
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
    known = state.image.brokers.get(broker_id)
    if known is None or known.epoch != epoch:
        fresh = state.sessions.fresh(epoch, arrived.arrived_ms)
        return replace(outcome_of(arrived.key, result), sessions=((broker_id, None), (broker_id, fresh)))
    session = state.sessions.touched(broker_id, epoch, arrived.arrived_ms)
    stays = known.in_controlled_shutdown
    if stays:
        session = replace(session, moves_end_offset=None)
    return Outcome(
        batch=batch_of(result.records),
        sessions=((broker_id, session),),
        work=state.new_work(ElectLeaders(broker_id=broker_id)) if stays and not known.fenced else (),
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
    known = state.image.brokers.get(broker_id)
    work = state.work.get((RemoveBroker, broker_id))
    if not isinstance(work, RemoveBroker):
        if known is None:
            raise ValueError(f"broker {broker_id} is not registered: there is nothing to fence first")
        work = state.removal(broker_id, known.epoch)
    if len(work.parked) >= PARKED_PER_BROKER_MAX:
        return refused(arrived.key, busy("a registration of this broker is already waiting"))
    parked = replace(work, parked=(*work.parked, arrived), unclean=work.unclean or unclean)
    return state.next_slice(parked, now_ms)


def decide_unregister_broker(
    state: ActiveState, arrived: RequestArrived, request: UnregisterBrokerRequest, now_ms: int
) -> Outcome:
    """An operator removes a broker that is gone: first from its partitions, then its registration."""
    broker_id = request.broker_id
    known = state.image.brokers.get(broker_id)
    if known is None:
        text = f"broker {broker_id} is not registered: list the registered brokers"
        error = ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
        return outcome_of(arrived.key, ControllerResult(response=error, depends_on_broker=broker_id))
    work = state.removal(broker_id, known.epoch)
    if len(work.unregister_keys) >= PARKED_PER_BROKER_MAX:
        return refused(arrived.key, busy("this broker is already being unregistered"))
    keys = (*work.unregister_keys, arrived.key)
    return state.next_slice(replace(work, unregister=True, unregister_keys=keys), now_ms)
