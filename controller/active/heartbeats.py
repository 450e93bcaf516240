"""Heartbeats at the active controller: leases, and the changes of state that they cause (K9, K10).

Owns what a heartbeat leads to: what is written, answered and remembered. Does not change state: `state` does.
The edges are in `lifecycle`, the records in `brokers` and `partitions`.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from metaquorum.controller.active.outcome import Outcome, Resumed, batch_of
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.active.work import ElectLeaders, FailDirectories, MoveLeaders, Work
from metaquorum.controller.brokers import brokers as decide
from metaquorum.controller.brokers.lifecycle import BrokerEvent, heartbeat_event, transition
from metaquorum.controller.brokers.sessions import BrokerHeartbeatState
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.partitions.partitions import election_slice, leads_any, removal_slice, with_broker
from metaquorum.controller.request_checks import epoch_refusal
from metaquorum.controller.result import ControllerAnswer
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.metadata.requests.controller_status import BrokerControlState

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
    told_to_stop = known is not None and known.told_to_stop
    before = decide.broker_state(brokers, broker_id, fencing=False, told_to_stop=told_to_stop)
    session = sessions.touched(broker_id, request.broker_epoch, arrived.arrived_ms).with_applied(
        request.applied_offset, state.ledger.committed_offset, arrived.arrived_ms
    )
    event = beat.event(before, session, none_left=none_left)
    if event is BrokerEvent.MOVES_SEEN or event is BrokerEvent.MOVES_UNSEEN:
        session = replace(session, moves_end_offset=_moves_end_offset(state, session))
    after = transition(before, event)
    if after is BrokerControlState.ACTIVE and after is not before:
        return beat.let_in(session)
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
        if before in _UP and state.sessions.stands_still(session, self.arrived.arrived_ms):
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
        # Whether all moves are seen was read from partitions and not only from the registration.
        whole = after is BrokerControlState.SHUTDOWN
        return ControllerAnswer(
            key=self.arrived.key,
            response=decide.heartbeat_response(
                after, self.caught_up, self.state.config.broker_session_timeout_ms
            ),
            depends_on_broker=None if whole else self.request.broker_id,
        )

    def let_in(self, session: BrokerHeartbeatState) -> Outcome:
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
                [(each, None if told is None else _released(told)) for each, told in outcome.sessions]
            )
            outcome = replace(outcome, sessions=changed)
        else:
            after = BrokerControlState.FENCED
        return replace(outcome, answers=(*outcome.answers, self.answer(after)))


def _released(session: BrokerHeartbeatState) -> BrokerHeartbeatState:
    """The answer lets it stop: its next process need not wait for the lease to end."""
    return replace(session, told_to_stop=True, expires=False)


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
    known = state.sessions.failing.get(broker_id, frozenset[bytes]())
    dead = registered & frozenset(request.offline_directories)
    if not dead or dead | known == registered:
        return None, bool(dead)
    if dead <= known:
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
