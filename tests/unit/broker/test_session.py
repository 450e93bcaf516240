"""The broker's dealings with the controller, one scripted answer at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from msgspec.structs import replace

from metaquorum.broker.channel import ChannelResponse
from metaquorum.broker.events import LifecycleEffect, SendToController, StateChanged, Stop
from metaquorum.broker.session import BrokerSession
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.records.types import BrokerEndpoint
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft.effects import Warn
from tests.controllers import channel, reported, unanswered

INCARNATION = b"i" * 16
DIRECTORY = b"d" * 16
ENDPOINT = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=40000, security_protocol=0)
CONFIG = BrokerConfig(node_id=4, cluster_id="c", endpoints=(ENDPOINT,), directories=(DIRECTORY,), rack="r1")
VOTERS = (1, 2, 3)
SESSION_MS = 9_000
EPOCH = 100


@dataclass
class Desk:
    """A session, the clock, and everything that it asked for."""

    session: BrokerSession
    now_ms: int = 1_000
    log: list[LifecycleEffect] = field(default_factory=list)

    def take(self, effects: list[LifecycleEffect]) -> list[LifecycleEffect]:
        self.log += effects
        return effects

    def after(self, ms: int) -> list[LifecycleEffect]:
        self.now_ms += ms
        return self.take(self.session.tick(self.now_ms))

    def until_sent(self) -> SendToController:
        """Let time pass, deadline by deadline, until a request leaves."""
        for _ in range(50):
            deadline = self.session.next_deadline_ms()
            assert deadline is not None, "nothing is waited for"
            self.now_ms = max(self.now_ms, deadline)
            sends = sent(self.take(self.session.tick(self.now_ms)))
            if sends:
                return sends[-1]
        raise AssertionError("no request in 50 deadlines")

    def request(self) -> SendToController:
        return sent(self.log)[-1]

    def answer(self, response: ChannelResponse | ApiError, *, after_ms: int = 1) -> list[LifecycleEffect]:
        request = self.request()
        self.now_ms += after_ms
        effects = self.session.reported(self.now_ms, reported(request, response))
        return self.take(effects)

    def fail(self, *, after_ms: int = 1) -> list[LifecycleEffect]:
        request = self.request()
        self.now_ms += after_ms
        effects = self.session.reported(self.now_ms, unanswered(request, "refused"))
        return self.take(effects)

    def apply(self, offset: int) -> list[LifecycleEffect]:
        return self.take(self.session.applied(self.now_ms, offset))

    @property
    def state(self) -> BrokerState:
        return self.session.state


def sent(effects: list[LifecycleEffect]) -> list[SendToController]:
    return [effect for effect in effects if isinstance(effect, SendToController)]


def stops(effects: list[LifecycleEffect]) -> list[Stop]:
    return [effect for effect in effects if isinstance(effect, Stop)]


def moves(effects: list[LifecycleEffect]) -> list[tuple[BrokerState, BrokerState]]:
    return [(effect.old, effect.new) for effect in effects if isinstance(effect, StateChanged)]


def registered(epoch: int = EPOCH) -> RegisterBrokerResponse:
    return RegisterBrokerResponse(broker_epoch=epoch, session_timeout_ms=SESSION_MS)


def beat(
    *, fenced: bool = False, caught_up: bool = True, down: bool = False, session_ms: int = SESSION_MS
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        is_caught_up=caught_up,
        is_fenced=fenced,
        should_shut_down=down,
        in_controlled_shutdown=False,
        session_timeout_ms=session_ms,
    )


def error(code: ErrorCode, hint: int | None = None) -> ApiError:
    return ApiError(code, "as scripted", hint)


def desk(config: BrokerConfig = CONFIG, *, seed: int = 0) -> Desk:
    session = BrokerSession(config, incarnation_id=INCARNATION, channel=channel(*VOTERS, seed=seed))
    made = Desk(session)
    made.take(session.start(made.now_ms))
    return made


def started(config: BrokerConfig = CONFIG) -> Desk:
    """Caught up at offset 50; the registration has been sent to controller 2, the leader."""
    at = desk(config)
    at.take(at.session.leader_known(at.now_ms, 2))
    at.take(at.session.high_watermark_known(at.now_ms, 50))
    at.apply(50)
    return at


def running(config: BrokerConfig = CONFIG) -> Desk:
    at = started(config)
    at.answer(registered())
    at.apply(EPOCH + 1)
    at.answer(beat())
    assert at.state is BrokerState.RUNNING
    return at


# ---- start ---------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_log_is_caught_up() -> None:
    at = desk()
    assert moves(at.log) == [(BrokerState.NOT_RUNNING, BrokerState.STARTING)]
    at.after(5_000)
    at.apply(49)
    at.take(at.session.high_watermark_known(at.now_ms, 50))
    at.after(5_000)
    assert sent(at.log) == []
    assert len(sent(at.apply(50))) == 1


def test_the_first_high_watermark_counts_and_later_ones_do_not_move_the_goal() -> None:
    at = desk()
    at.take(at.session.high_watermark_known(at.now_ms, 50))
    at.take(at.session.high_watermark_known(at.now_ms, 5_000))
    assert len(sent(at.apply(50))) == 1


def test_the_registration_says_who_the_broker_is() -> None:
    at = started()
    assert at.request() == SendToController(
        target=2,
        correlation_id=1,
        request=RegisterBrokerRequest(
            broker_id=4,
            cluster_id="c",
            incarnation_id=INCARNATION,
            endpoints=(ENDPOINT,),
            features=(),
            rack="r1",
            directories=(DIRECTORY,),
            previous_broker_epoch=None,
        ),
        timeout_ms=1_000,
    )


def test_from_registration_to_running() -> None:
    at = started()
    assert moves(at.answer(registered())) == [(BrokerState.STARTING, BrokerState.RECOVERY)]
    assert at.session.broker_epoch == EPOCH
    assert at.session.serves_before_ms <= at.now_ms
    # The record at the broker's epoch is applied once everything below EPOCH + 1 is: then, and at once.
    assert sent(at.apply(EPOCH)) == []
    heartbeat = sent(at.apply(EPOCH + 1))
    assert [send.request for send in heartbeat] == [
        BrokerHeartbeatRequest(
            broker_id=4, broker_epoch=EPOCH, applied_offset=EPOCH + 1, min_insync_replicas=1
        )
    ]
    assert moves(at.answer(beat())) == [(BrokerState.RECOVERY, BrokerState.RUNNING)]
    assert at.session.serves_before_ms > at.now_ms


def test_a_heartbeat_every_interval_with_the_applied_offset() -> None:
    at = running()
    times = []
    for step in range(3):
        at.apply(200 + step)
        request = at.until_sent()
        assert isinstance(request.request, BrokerHeartbeatRequest)
        assert request.request.applied_offset == 200 + step
        times.append(at.now_ms)
        at.answer(beat(), after_ms=7)
    assert [after - before for before, after in pairwise(times)] == [2_000, 2_000]


def test_no_answer_in_the_initial_time_ends_the_process_with_the_reason() -> None:
    at = desk()
    at.after(CONFIG.initial_broker_registration_timeout_ms - 1)
    assert stops(at.log) == []
    at.after(1)
    (stop,) = stops(at.log)
    assert stop.failed
    assert "initial.broker.registration.timeout.ms" in stop.reason
    assert "no active controller has answered" in stop.reason
    assert at.state is BrokerState.SHUTTING_DOWN
    assert at.session.next_deadline_ms() is None


def test_a_broker_without_a_quorum_says_every_ten_seconds_what_it_waits_for() -> None:
    at = desk()
    while not stops(at.log):
        deadline = at.session.next_deadline_ms()
        assert deadline is not None
        at.after(deadline - at.now_ms)
    lines = [effect.message for effect in at.log if isinstance(effect, Warn)]
    assert len(lines) == 5  # at the end of the minute the broker stops, and says that instead
    assert lines[0].startswith(
        "broker 4 has been waiting (STARTING) for 10 s, at offset 0 of the metadata log: no active controller"
    )
    assert [line.rpartition("; ")[2] for line in lines] == [
        f"gives up in {n} s" for n in (50, 40, 30, 20, 10)
    ]


def test_a_fenced_broker_says_it_too_and_a_serving_one_does_not() -> None:
    at = running()
    for _ in range(8):
        at.until_sent()
        at.answer(beat())
    assert not [effect for effect in at.log if isinstance(effect, Warn)]
    fenced_ms = at.now_ms
    while at.now_ms < fenced_ms + 45_000:
        at.until_sent()
        at.answer(beat(fenced=True))
    lines = [effect.message for effect in at.log if isinstance(effect, Warn)]
    assert len(lines) == 4 and all(" has been waiting (FENCED) for " in line for line in lines)
    assert lines[0].endswith("controller 2 says fenced (caught up)")


def test_a_long_catch_up_is_no_reason_to_give_up() -> None:
    at = desk()
    at.take(at.session.high_watermark_known(at.now_ms, 10))
    for offset in range(1, 10):
        at.after(CONFIG.initial_broker_registration_timeout_ms - 1)
        at.apply(offset)
    assert stops(at.log) == []
    at.after(CONFIG.initial_broker_registration_timeout_ms)
    assert "not caught up (needs offset 10)" in stops(at.log)[0].reason


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION]
)
def test_a_final_refusal_ends_the_process_at_once(code: ErrorCode) -> None:
    at = started()
    effects = at.answer(error(code))
    (stop,) = stops(effects)
    assert stop.failed
    assert code.name in stop.reason
    assert "as scripted" in stop.reason
    assert at.after(100_000) == []


def test_a_duplicate_is_retried_until_the_initial_time_is_over() -> None:
    at = started()
    begin = at.now_ms
    attempts = 0
    while not stops(at.log):
        at.answer(error(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
        attempts += 1
        deadline = at.session.next_deadline_ms()
        if deadline is not None:
            at.after(deadline - at.now_ms)
    assert at.now_ms - begin == pytest.approx(60_000, abs=2)
    assert 60 <= attempts <= 130  # at most one a backoff maximum, no tight loop
    assert "DUPLICATE_BROKER_REGISTRATION" in stops(at.log)[0].reason


def test_a_duplicate_that_goes_away_is_forgotten() -> None:
    at = started()
    at.answer(error(ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    at.until_sent()
    at.answer(registered())
    assert at.state is BrokerState.RECOVERY
    for _ in range(60):
        at.until_sent()
        at.answer(beat(fenced=True))
    assert at.now_ms > CONFIG.initial_broker_registration_timeout_ms
    assert stops(at.log) == []


def test_a_lost_answer_repeats_the_same_registration() -> None:
    at = started()
    first = at.request().request
    at.fail()
    again = at.until_sent()
    assert again.request == first
    assert at.session.exchange.failures == 1
    at.answer(registered())
    assert at.session.broker_epoch == EPOCH


def test_an_answer_under_an_old_correlation_id_is_ignored() -> None:
    at = started()
    old = at.request()
    at.fail()
    at.until_sent()
    assert at.session.reported(at.now_ms, reported(old, registered())) == []
    assert at.state is BrokerState.STARTING


def test_an_older_epoch_is_never_taken() -> None:
    at = running()
    at.until_sent()
    at.answer(error(ErrorCode.STALE_BROKER_EPOCH))
    assert isinstance(at.request().request, RegisterBrokerRequest)
    at.answer(registered(EPOCH - 1))
    assert at.session.broker_epoch == EPOCH
    assert not at.session.registered
    at.until_sent()
    at.answer(registered(EPOCH + 50))
    assert at.session.broker_epoch == EPOCH + 50


# ---- whom to ask ---------------------------------------------------------------------------------


def test_a_hint_is_followed_at_once() -> None:
    at = started()
    (request,) = sent(at.answer(error(ErrorCode.NOT_CONTROLLER, 3)))
    assert request.target == 3


def test_hints_in_a_circle_cost_a_backoff() -> None:
    at = started()
    immediate = 0
    while effects := sent(at.answer(error(ErrorCode.NOT_CONTROLLER, 3 if at.request().target == 1 else 1))):
        immediate += len(effects)
    assert immediate == len(VOTERS)
    assert at.session.next_deadline_ms() is not None
    at.until_sent()
    assert at.session.exchange.failures == 1


@pytest.mark.parametrize("hint", [None, 99])
def test_without_a_useful_hint_the_voters_are_asked_in_turn(hint: int | None) -> None:
    at = started()
    asked = [at.request().target]
    for _ in range(5):
        at.answer(error(ErrorCode.NOT_CONTROLLER, hint))
        asked.append(at.until_sent().target)
    assert asked == [2, 3, 1, 2, 3, 1]


def test_a_silent_controller_is_left_and_the_wait_grows_with_jitter() -> None:
    at = started()
    waits = []
    targets = []
    for _ in range(8):
        at.fail(after_ms=0)
        before = at.now_ms
        targets.append(at.until_sent().target)
        waits.append(at.now_ms - before)
    bounds = [min(1_000, 50 << step) for step in range(8)]
    assert all(bound // 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert targets[:3] == [3, 1, 2]


def test_two_brokers_do_not_come_back_together() -> None:
    waits = set()
    for seed in range(8):
        at = desk(seed=seed)
        at.take(at.session.high_watermark_known(at.now_ms, 0))
        for _ in range(5):
            at.fail(after_ms=0)
            at.until_sent()
        waits.add(at.now_ms)
    assert len(waits) > 4


def test_a_new_leader_hastens_the_next_attempt() -> None:
    at = running()
    for _ in range(8):
        at.until_sent()
        at.fail()
    at.take(at.session.leader_known(at.now_ms, 2 if at.session.exchange.target != 2 else 3))
    before = at.now_ms
    request = at.until_sent()
    assert at.now_ms - before <= CONFIG.retry_backoff_ms
    assert request.target == at.session.exchange.target


def test_the_session_gives_a_request_up_by_itself() -> None:
    at = started()
    at.after(CONFIG.controller_request_timeout_ms)
    (warning,) = [effect for effect in at.log if isinstance(effect, Warn)]
    assert "did not answer within 1000 ms" in warning.message
    assert at.until_sent().target == 3


def test_the_same_failure_warns_once() -> None:
    at = running()
    at.log.clear()
    for _ in range(6):
        at.until_sent()
        at.answer(error(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert len([effect for effect in at.log if isinstance(effect, Warn)]) == 1


# ---- the lease -----------------------------------------------------------------------------------


def test_the_lease_counts_from_sending() -> None:
    at = running()
    at.until_sent()
    sent_ms = at.now_ms
    at.answer(beat(), after_ms=900)
    assert at.session.lease.end_ms == sent_ms + SESSION_MS
    assert at.session.serves_before_ms > sent_ms + SESSION_MS - 1
    assert at.session.serves_before_ms <= sent_ms + SESSION_MS


def test_the_shorter_of_the_told_and_the_configured_time_is_the_lease() -> None:
    at = running(replace(CONFIG, registration_lease_timeout_ms=5_000))
    at.until_sent()
    sent_ms = at.now_ms
    at.answer(beat())
    assert at.session.lease.end_ms == sent_ms + 5_000


def test_without_a_controller_the_broker_fences_itself_and_registers_again() -> None:
    at = running()
    lease_end_ms = at.session.lease.end_ms
    assert lease_end_ms is not None
    while at.state is BrokerState.RUNNING:
        at.until_sent()
        assert at.now_ms < lease_end_ms or at.state is BrokerState.FENCED
        if at.state is BrokerState.RUNNING:
            at.fail()
    assert at.now_ms == lease_end_ms or at.request().request is not None
    assert moves(at.log)[-1] == (BrokerState.RUNNING, BrokerState.FENCED)
    request = at.request().request if isinstance(at.request().request, RegisterBrokerRequest) else None
    request = request or at.until_sent().request
    assert isinstance(request, RegisterBrokerRequest)
    assert request.incarnation_id == INCARNATION
    assert request.previous_broker_epoch == EPOCH


GOES_ON = replace(CONFIG, self_fencing_enable=False)


def alone_for(at: Desk, ms: int) -> list[LifecycleEffect]:
    """Nobody answers for so long."""
    begin = len(at.log)
    end_ms = at.now_ms + ms
    while at.now_ms < end_ms:
        at.until_sent()
        at.fail()
    return at.log[begin:]


def test_without_self_fencing_a_broker_that_nobody_answers_serves_on_under_its_epoch() -> None:
    at = running(GOES_ON)
    effects = alone_for(at, 5 * SESSION_MS)
    assert (
        at.state is BrokerState.RUNNING and at.session.serves_before_ms > at.now_ms and moves(effects) == []
    )
    assert at.session.serves_before_ms > at.now_ms + 10**9, "also after a pause, without a tick"
    assert at.session.lease.end_ms is None
    assert all(isinstance(one.request, BrokerHeartbeatRequest) for one in sent(effects))
    said = [one.message for one in effects if isinstance(one, Warn) and "still serving" in one.message]
    assert len(said) == 1 and "broker.self.fencing.enable" in said[0]
    # The quorum is back: a new lease, and nothing has moved.
    at.until_sent()
    at.answer(beat())
    assert at.session.lease.end_ms is not None and at.state is BrokerState.RUNNING


def test_without_self_fencing_what_a_controller_says_counts() -> None:
    at = running(GOES_ON)
    alone_for(at, 2 * SESSION_MS)
    at.until_sent()
    at.answer(beat(fenced=True))
    assert at.state is BrokerState.FENCED and at.session.serves_before_ms <= at.now_ms
    at = running(GOES_ON)
    alone_for(at, 2 * SESSION_MS)
    at.until_sent()
    at.answer(error(ErrorCode.STALE_BROKER_EPOCH))
    assert at.state is BrokerState.FENCED and at.session.serves_before_ms <= at.now_ms
    # It is not let in by the clock, and loses its lease as any broker that does not serve.
    alone_for(at, 2 * SESSION_MS)
    assert at.state is BrokerState.FENCED


def test_without_self_fencing_a_late_answer_is_an_answer() -> None:
    at = running(replace(GOES_ON, controller_request_timeout_ms=10 * SESSION_MS))
    at.until_sent()
    at.answer(beat(), after_ms=3 * SESSION_MS)
    assert at.state is BrokerState.RUNNING and at.session.serves_before_ms > at.now_ms
    at.until_sent()
    at.answer(beat(fenced=True), after_ms=3 * SESSION_MS)
    assert at.state is BrokerState.FENCED


def test_without_self_fencing_nobody_serves_before_the_first_admission() -> None:
    at = started(GOES_ON)
    at.answer(registered())
    at.after(SESSION_MS)
    assert moves(at.log)[-1] == (BrokerState.RECOVERY, BrokerState.STARTING)
    assert at.session.serves_before_ms <= at.now_ms


def test_without_self_fencing_a_controlled_shutdown_goes_on_and_ends() -> None:
    at = running(GOES_ON)
    at.take(at.session.shut_down(at.now_ms))
    alone_for(at, 2 * SESSION_MS)
    assert at.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN or at.state.ended


def test_a_heartbeat_answer_that_outlives_the_lease_does_not_revive_it() -> None:
    at = running(replace(CONFIG, controller_request_timeout_ms=60_000))
    at.until_sent()
    old = at.request()
    at.after(SESSION_MS)
    assert at.state is BrokerState.FENCED
    before = len(at.log)
    at.take(at.session.reported(at.now_ms, reported(old, beat())))
    assert at.state is BrokerState.FENCED
    assert moves(at.log[before:]) == []


def test_a_lease_that_is_shorter_than_its_answer_took_is_not_taken() -> None:
    at = started()
    at.answer(registered())
    at.apply(EPOCH + 1)
    at.until_sent()
    at.answer(beat(session_ms=200), after_ms=200)
    assert at.state is BrokerState.RECOVERY
    assert at.session.serves_before_ms <= at.now_ms


def test_fenced_brokers_lease_ends_too() -> None:
    at = started()
    at.answer(registered())
    at.after(SESSION_MS)
    assert moves(at.log)[-1] == (BrokerState.RECOVERY, BrokerState.STARTING)
    assert stops(at.log) == []


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_lost_registration_fences_and_registers_again_at_once(code: ErrorCode) -> None:
    at = running()
    at.until_sent()
    effects = at.answer(error(code))
    assert moves(effects) == [(BrokerState.RUNNING, BrokerState.FENCED)]
    assert isinstance(sent(effects)[0].request, RegisterBrokerRequest)
    assert at.session.serves_before_ms <= at.now_ms
    at.answer(registered(EPOCH + 100))
    # Its image is older than the new registration: an admission does not make it serve yet.
    at.until_sent()
    at.answer(beat())
    assert at.state is BrokerState.FENCED
    assert not at.session.has_applied_registration()
    at.apply(EPOCH + 101)
    at.until_sent()
    at.answer(beat())
    assert at.state is BrokerState.RUNNING


def test_registrations_that_are_lost_again_and_again_are_paced() -> None:
    at = running()
    at.until_sent()
    begin, count = at.now_ms, 0
    while at.now_ms - begin < 10_000:
        at.answer(error(ErrorCode.STALE_BROKER_EPOCH))
        if not isinstance(at.request().request, RegisterBrokerRequest):
            at.until_sent()
        at.answer(registered())
        count += 1
        if isinstance(at.request().request, RegisterBrokerRequest):
            at.until_sent()
    assert count < 40


def test_fenced_by_answer_keeps_the_registration_and_comes_back() -> None:
    at = running()
    at.until_sent()
    assert moves(at.answer(beat(fenced=True))) == [(BrokerState.RUNNING, BrokerState.FENCED)]
    assert at.session.registered
    at.until_sent()
    assert isinstance(at.request().request, BrokerHeartbeatRequest)
    assert moves(at.answer(beat())) == [(BrokerState.FENCED, BrokerState.RUNNING)]


def test_a_fenced_broker_that_lags_asks_as_soon_as_it_has_applied_more() -> None:
    at = running()
    at.until_sent()
    at.answer(beat(fenced=True, caught_up=False))
    at.after(CONFIG.retry_backoff_ms)
    assert len(sent(at.apply(EPOCH + 500))) == 1


# ---- stopping ------------------------------------------------------------------------------------


def test_controlled_shutdown_serves_until_it_is_granted() -> None:
    at = running()
    effects = at.take(at.session.shut_down(at.now_ms))
    assert moves(effects) == [(BrokerState.RUNNING, BrokerState.PENDING_CONTROLLED_SHUTDOWN)]
    request = sent(effects)[0].request
    assert isinstance(request, BrokerHeartbeatRequest)
    assert request.want_shutdown
    assert request.broker_epoch == EPOCH
    for _ in range(4):
        at.answer(beat())
        assert at.session.serves_before_ms > at.now_ms
        before = at.now_ms
        at.until_sent()
        assert at.now_ms - before == CONFIG.controlled_shutdown_poll_ms
    effects = at.answer(beat(fenced=True, down=True))
    assert moves(effects) == [(BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.SHUTTING_DOWN)]
    assert [stop.failed for stop in stops(effects)] == [False]
    assert at.session.serves_before_ms <= at.now_ms


def test_a_shutdown_waits_for_the_heartbeat_under_way_and_follows_it_at_once() -> None:
    at = running()
    at.until_sent()
    assert sent(at.take(at.session.shut_down(at.now_ms))) == []
    (send,) = sent(at.answer(beat()))
    assert isinstance(send.request, BrokerHeartbeatRequest)
    assert send.request.want_shutdown


@pytest.mark.parametrize("state", ["starting", "recovery", "fenced"])
def test_a_broker_that_does_not_serve_stops_at_once(state: str) -> None:
    at = running() if state == "fenced" else started()
    if state == "recovery":
        at.answer(registered())
    if state == "fenced":
        at.until_sent()
        at.answer(beat(fenced=True))
    effects = at.take(at.session.shut_down(at.now_ms))
    assert [stop.failed for stop in stops(effects)] == [False]
    assert at.state is BrokerState.SHUTTING_DOWN


def test_a_shutdown_is_bounded() -> None:
    at = running()
    begin = at.now_ms
    at.take(at.session.shut_down(at.now_ms))
    while not stops(at.log):
        at.answer(beat())
        deadline = at.session.next_deadline_ms()
        assert deadline is not None
        at.after(deadline - at.now_ms)
    assert at.now_ms - begin == CONFIG.controlled_shutdown_timeout_ms
    assert "controlled.shutdown.timeout.ms" in stops(at.log)[0].reason


def test_a_second_request_to_stop_changes_nothing() -> None:
    at = running()
    at.take(at.session.shut_down(at.now_ms))
    deadline = at.session.next_deadline_ms()
    at.now_ms += 10
    assert at.session.shut_down(at.now_ms) == []
    assert at.session.next_deadline_ms() == deadline


def test_a_session_lost_during_shutdown_is_asked_for_again_with_the_newer_epoch() -> None:
    at = running()
    at.take(at.session.shut_down(at.now_ms))
    at.answer(error(ErrorCode.STALE_BROKER_EPOCH))
    assert at.state is BrokerState.PENDING_SHUTDOWN_FENCED
    assert at.session.serves_before_ms <= at.now_ms
    at.answer(registered(EPOCH + 7))
    at.until_sent()
    request = at.request().request
    assert isinstance(request, BrokerHeartbeatRequest)
    assert (request.broker_epoch, request.want_shutdown) == (EPOCH + 7, True)
    assert [stop.failed for stop in stops(at.answer(beat(fenced=True, down=True)))] == [False]


def test_the_lease_ends_a_controlled_shutdown_service_too() -> None:
    at = running()
    at.take(at.session.shut_down(at.now_ms))
    end_ms = at.session.lease.end_ms
    assert end_ms is not None
    at.after(end_ms - at.now_ms)
    assert at.state is BrokerState.PENDING_SHUTDOWN_FENCED
    assert at.session.serves_before_ms <= at.now_ms


def test_an_unasked_shutdown_flag_does_not_stop_a_broker() -> None:
    at = running()
    at.until_sent()
    at.answer(beat(down=True))
    assert at.state is BrokerState.RUNNING


def test_a_failure_stops_the_broker_and_is_its_last_word() -> None:
    at = running()
    effects = at.take(at.session.fail(at.now_ms, "record 7 does not apply"))
    assert stops(effects) == [Stop(reason="record 7 does not apply", failed=True)]
    assert at.session.shut_down(at.now_ms) == []
    assert at.after(100_000) == []


def test_a_registration_without_a_dead_directory_is_right_and_one_without_a_good_one_is_not() -> None:
    at = running()
    at.take(at.session.directories_failed(at.now_ms, (DIRECTORY,)))
    at.answer(beat())
    at.take(at.session.registration_read(at.now_ms, directories=frozenset(), leaving=False))
    assert isinstance(at.until_sent().request, BrokerHeartbeatRequest)
    at = running()
    at.take(at.session.registration_read(at.now_ms, directories=frozenset(), leaving=False))
    assert isinstance(at.until_sent().request, RegisterBrokerRequest)
    at.answer(registered())
    at.take(at.session.registration_read(at.now_ms, directories=frozenset((DIRECTORY,)), leaving=False))
    at.answer(beat())
    assert isinstance(at.until_sent().request, BrokerHeartbeatRequest)


def test_a_directory_that_failed_is_told_at_once_and_in_every_later_heartbeat() -> None:
    at = running()
    (first,) = sent(at.take(at.session.directories_failed(at.now_ms, (DIRECTORY,))))
    at.answer(beat())
    assert at.take(at.session.directories_failed(at.now_ms, (DIRECTORY,))) == [], "that is no news"
    for each in (first, at.until_sent()):
        assert isinstance(each.request, BrokerHeartbeatRequest)
        assert each.request.offline_directories == (DIRECTORY,)


def test_the_last_word_of_a_broker_that_served_moves_its_leaders_at_once() -> None:
    at = running()
    at.take(at.session.directories_failed(at.now_ms, (b"d" * 16,)))
    before = at.session.farewell()
    at.take(at.session.fail(at.now_ms, "no log directory is online"))
    last = at.session.farewell()
    assert last is not None and last == before, "a process may end without its session knowing why"
    assert (last.broker_epoch, last.want_fence, last.want_shutdown) == (EPOCH, True, True)
    assert last.offline_directories == (b"d" * 16,)


def test_who_did_not_serve_has_nothing_to_say() -> None:
    at = running()
    end_ms = at.session.lease.end_ms
    assert end_ms is not None
    at.after(end_ms - at.now_ms)
    assert at.session.farewell() is None
    at.take(at.session.fail(at.now_ms, "no log directory is online"))
    assert at.session.farewell() is None


# ---- configuration -------------------------------------------------------------------------------


def test_the_default_configuration_is_sound() -> None:
    assert CONFIG.problems() == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"node_id": -1}, "node.id"),
        ({"endpoints": ()}, "listeners"),
        ({"broker_heartbeat_interval_ms": 0}, "broker.heartbeat.interval.ms"),
        ({"broker_heartbeat_interval_ms": 18_000}, "registration.lease.timeout.ms"),
        ({"controller_request_timeout_ms": 18_000}, "controller.request.timeout.ms"),
        ({"retry_backoff_max_ms": 1}, "retry.backoff.max.ms"),
        ({"initial_broker_registration_timeout_ms": 0}, "initial.broker.registration.timeout.ms"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, object], named: str) -> None:
    problems = replace(CONFIG, **change).problems()  # type: ignore[arg-type]
    assert len(problems) == 1
    assert named in problems[0]
