"""Heartbeats at the active controller: leases, and the changes of state that they bring about (K9, K10).

Owns the step from a heartbeat to what is written and told. The edges are in `lifecycle`, the records in
`brokers` and `partitions`, the order of answers in `workbench`.
"""

from __future__ import annotations

from dataclasses import replace

from metaquorum.controller.active.work import ElectLeaders, MoveLeaders
from metaquorum.controller.active.workbench import Workbench
from metaquorum.controller.broker_epochs import epoch_refusal
from metaquorum.controller.brokers import brokers as decide
from metaquorum.controller.brokers.lifecycle import BrokerEvent, BrokerState, heartbeat_event, transition
from metaquorum.controller.brokers.sessions import Session
from metaquorum.controller.partitions.partitions import election_slice, leads_any, removal_slice
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, ControllerResponse


class Heartbeats:
    """`arrived_ms` is when a heartbeat came in, `now_ms` when it is handled."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._config = bench.config
        self._ledger = bench.ledger
        self._sessions = bench.sessions

    def handle(self, key: int, arrived_ms: int, request: BrokerHeartbeatRequest, now_ms: int) -> None:
        """Decides one heartbeat; its answer goes out now or with a commit."""
        ledger, sessions, broker_id = self._ledger, self._sessions, request.broker_id
        brokers = ledger.newest.brokers
        refusal = epoch_refusal(brokers, broker_id, request.broker_epoch)
        if refusal is not None:
            self._bench.finish(key, ControllerResult(response=refusal, depends_on_broker=broker_id), now_ms)
            return
        caught_up = decide.is_caught_up(brokers, request)
        fencing = broker_id in sessions.fencing
        if fencing:
            # Its lease is over and stays so until the last batch of its fencing is written.
            self._tell(key, broker_id, BrokerState.FENCED, caught_up, now_ms)
            return
        no_directory = bool(request.offline_directories) and self._fail_directories(request, now_ms)
        brokers = ledger.newest.brokers
        session = sessions.get(broker_id)
        told_to_stop = session is not None and session.told_to_stop
        state = decide.broker_state(brokers, broker_id, fencing=False, told_to_stop=told_to_stop)
        session = sessions.touch(broker_id, request.broker_epoch, arrived_ms)
        sessions.note_applied(session, request.applied_offset, ledger.committed_offset, arrived_ms)
        # No heartbeat takes a controlled shutdown back, it may be an old one: only a registration does.
        leaving = brokers[broker_id].in_controlled_shutdown
        up = state is BrokerState.ACTIVE or state is BrokerState.CONTROLLED_SHUTDOWN
        if up and sessions.stands_still(session, arrived_ms):
            event = BrokerEvent.LEASE_LOST
        else:
            event = heartbeat_event(
                state,
                want_fence=request.want_fence or no_directory,
                want_shutdown=request.want_shutdown,
                caught_up=caught_up and request.applied_offset >= session.unfence_from_offset and not leaving,
                leads=lambda: leads_any(ledger.newest, broker_id),
                moves_seen=lambda: self._moves_seen(session, broker_id),
            )
        after = transition(state, event)
        if after is state:
            if event is BrokerEvent.LEADERS_REMAIN:
                self._bench.add(MoveLeaders(broker_id=broker_id, epoch=request.broker_epoch))
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
            work = self._bench.start_removal(broker_id, epoch)
            self._bench.step(work, now_ms)
            ended = broker_id not in self._sessions.fencing
            if after is BrokerState.SHUTDOWN and ended:
                self._give_up_lease(broker_id, session)
            else:
                after = BrokerState.FENCED
            self._tell(key, broker_id, after, caught_up, now_ms)
        else:
            self._tell(key, broker_id, after, caught_up, now_ms)

    def _fail_directories(self, request: BrokerHeartbeatRequest, now_ms: int) -> bool:
        """Registered directories that the broker reports as dead are being declared offline from now on
        (KIP-858). A report that says nothing new changes nothing (S3.14). True: no good directory is left,
        which no record can say, and nothing of such a broker can be served: it has to be fenced (S3.3)."""
        image, broker_id, epoch = self._ledger.newest, request.broker_id, request.broker_epoch
        registered = frozenset(image.brokers[broker_id].directories)
        known = self._sessions.failing.get(broker_id, frozenset[bytes]())
        dead = registered & frozenset(request.offline_directories)
        if image.features.metadata_version < LEVEL_DIRECTORIES or not dead:
            return False
        if dead | known == registered:
            return True
        if not dead <= known:
            self._bench.step(self._bench.start_failing(broker_id, epoch, dead), now_ms)
        return False

    def _give_up_lease(self, broker_id: int, session: Session) -> None:
        """It was told that it may stop: its next process need not wait for the lease to end."""
        if broker_id not in self._sessions.fencing:
            session.told_to_stop = True
            self._sessions.close(broker_id)

    def _unfence(self, key: int, broker_id: int, epoch: int, caught_up: bool, now_ms: int) -> None:
        image = self._ledger.newest
        rules = self._bench.rules(image)
        others = rules.may_lead
        batch = election_slice(
            image,
            broker_id,
            replace(rules, may_lead=lambda replica: replica == broker_id or others(replica)),
            self._config.records_per_slice_max,
            first=decide.unfence_record(broker_id, epoch),
        )
        response = self._heartbeat_response(BrokerState.ACTIVE, caught_up)
        self._bench.append(batch.records, [(key, response)], now_ms)
        if not batch.done:
            self._bench.add(ElectLeaders(broker_id=broker_id))

    def _enter_shutdown(self, key: int, broker_id: int, epoch: int, caught_up: bool, now_ms: int) -> None:
        image = self._ledger.newest
        if not decide.knows_controlled_shutdown(image):
            work = self._bench.start_removal(broker_id, epoch)
            self._bench.step(work, now_ms)
            self._tell(key, broker_id, BrokerState.FENCED, caught_up, now_ms)
            return
        batch = removal_slice(
            image,
            broker_id,
            self._bench.rules(image),
            self._config.records_per_slice_max,
            first=decide.shutdown_record(broker_id, epoch),
        )
        response = self._heartbeat_response(BrokerState.CONTROLLED_SHUTDOWN, caught_up)
        self._bench.append(batch.records, [(key, response)], now_ms)
        if not batch.done:
            self._bench.add(MoveLeaders(broker_id=broker_id, epoch=epoch))

    def _moves_seen(self, session: Session, broker_id: int) -> bool:
        """Every active broker has applied the moves of this broker's leaders (K9)."""
        if session.moves_end_offset is None:
            session.moves_end_offset = self._ledger.newest_state.end_offset
        image = self._ledger.newest
        may_lead = self._bench.may_lead(image)
        return all(
            self._sessions.applied_offset(other) >= session.moves_end_offset
            for other in image.brokers
            if other != broker_id and may_lead(other)
        )

    def _heartbeat_response(self, state: BrokerState, caught_up: bool) -> ControllerResponse:
        return decide.heartbeat_response(state, caught_up, self._config.broker_session_timeout_ms)

    def _tell(self, key: int, broker_id: int, state: BrokerState, caught_up: bool, now_ms: int) -> None:
        response = self._heartbeat_response(state, caught_up)
        # That all moves are seen was read from partitions and not from the registration alone.
        whole = state is BrokerState.SHUTDOWN
        result = ControllerResult(response=response, depends_on_broker=None if whole else broker_id)
        self._bench.finish(key, result, now_ms)
