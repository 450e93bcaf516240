"""Laws of the broker's lifecycle under any order of events, and of two processes with one broker id."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.broker.channel import ChannelResponse
from metaquorum.broker.events import (
    LifecycleEffect,
    LifecycleRequest,
    SendToController,
    StateChanged,
    Stop,
)
from metaquorum.broker.lifecycle import TRANSITIONS
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
from tests.controllers import channel, reported, unanswered

ENDPOINT = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=40000, security_protocol=0)
CONFIG = BrokerConfig(
    node_id=4,
    cluster_id="c",
    endpoints=(ENDPOINT,),
    controller_request_timeout_ms=3_000,
    initial_broker_registration_timeout_ms=600_000,
)
SESSION_MS = 9_000
LEASE_MS = min(SESSION_MS, CONFIG.registration_lease_timeout_ms)
ERRORS = [
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.BROKER_ID_NOT_REGISTERED,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
]


@dataclass
class Watched:
    """A session with a second, naive record of what it may do, checked after every event."""

    session: BrokerSession
    now_ms: int = 0
    requests: list[tuple[int, SendToController]] = field(default_factory=list)
    open_request: SendToController | None = None
    admitted_until_ms: int | None = None
    epoch: int = -1
    state: BrokerState = BrokerState.NOT_RUNNING
    stopped: bool = False

    def take(self, effects: list[LifecycleEffect]) -> None:
        assert not (self.stopped and effects), f"effects after the last one: {effects}"
        for effect in effects:
            assert not self.stopped, f"{effect} after Stop"
            if isinstance(effect, SendToController):
                self.requests.append((self.now_ms, effect))
                self.open_request = effect
                if isinstance(effect.request, BrokerHeartbeatRequest):
                    assert effect.request.broker_epoch == self.session.broker_epoch
                    assert effect.request.applied_offset == self.session.applied_offset
                    assert effect.request.want_shutdown == self.session.state.wants_shutdown
            elif isinstance(effect, StateChanged):
                assert effect.old is self.state
                assert effect.new in TRANSITIONS[effect.old].values()
                self.state = effect.new
            elif isinstance(effect, Stop):
                self.stopped = True
        self.check()

    def check(self) -> None:
        session, now_ms = self.session, self.now_ms
        assert session.state is self.state
        assert self.stopped == self.state.ended
        epoch = -1 if session.broker_epoch is None else session.broker_epoch
        assert epoch >= self.epoch, "a broker epoch fell"
        self.epoch = epoch
        lease = self.admitted_until_ms
        if session.state.serves or session.serves_before_ms > now_ms:
            assert lease is not None and now_ms < lease, "serves, or says RUNNING, without a lease"
        if session.serves_before_ms > now_ms:
            assert session.applied_offset > epoch, "serves metadata older than its registration"
            assert session.serves_before_ms <= (lease or 0), "would serve at the end of its lease"
        deadline = session.next_deadline_ms()
        assert self.stopped == (deadline is None) or self.state is BrokerState.NOT_RUNNING
        assert deadline is None or deadline > now_ms, f"{deadline} is due, and was not acted on at {now_ms}"

    def note_answer(self, sent_ms: int, request: SendToController, response: object) -> None:
        """The effect of a response on the lease, computed without the session."""
        if request is not self.open_request or self.now_ms >= sent_ms + CONFIG.controller_request_timeout_ms:
            return
        self.open_request = None
        match response:
            case BrokerHeartbeatResponse(is_fenced=False):
                self.admitted_until_ms = sent_ms + LEASE_MS
            case BrokerHeartbeatResponse():
                self.admitted_until_ms = None
            case ApiError(code=ErrorCode.STALE_BROKER_EPOCH | ErrorCode.BROKER_ID_NOT_REGISTERED):
                self.admitted_until_ms = None
            case _:
                pass


def watched(seed: int) -> Watched:
    session = BrokerSession(CONFIG, incarnation_id=b"i" * 16, channel=channel(seed=seed))
    return Watched(session)


steps = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 500, 1_999, 2_000, 3_000, 8_999, 9_000, 20_000])),
    st.tuples(st.just("deadline"), st.just(0)),
    st.tuples(st.just("applied"), st.integers(0, 60)),
    st.tuples(st.just("leader"), st.sampled_from([None, 1, 2, 3, 9])),
    st.tuples(st.just("high watermark"), st.integers(0, 20)),
    st.tuples(st.just("admit"), st.integers(0, 2)),
    st.tuples(st.just("admit"), st.just(0)),
    st.tuples(st.just("fence"), st.integers(0, 2)),
    st.tuples(st.just("grant"), st.integers(0, 2)),
    st.tuples(st.just("register"), st.integers(0, 50)),
    st.tuples(st.just("error"), st.sampled_from(ERRORS)),
    st.tuples(st.just("fail"), st.integers(0, 2)),
    st.tuples(st.just("shut down"), st.just(0)),
)


def step(at: Watched, action: str, value: object) -> None:
    session = at.session
    match action, value:
        case "wait", int():
            at.now_ms += value
            at.take(session.tick(at.now_ms))
        case "deadline", _:
            at.now_ms = max(at.now_ms, session.next_deadline_ms() or 0)
            at.take(session.tick(at.now_ms))
        case "applied", int():
            at.take(session.applied(at.now_ms, value))
        case "leader", None | int():
            at.take(session.leader_known(at.now_ms, value))
        case "high watermark", int():
            at.take(session.high_watermark_known(at.now_ms, value))
        case "shut down", _:
            at.take(session.shut_down(at.now_ms))
        case _ if at.requests:
            answer(at, action, value)


def answer(at: Watched, action: str, value: object) -> None:
    """Answers the newest request, or an older one that may have been given up."""
    age = value if isinstance(value, int) and action not in ("register", "error") else 0
    sent_ms, request = at.requests[-1 - min(int(age), len(at.requests) - 1)]
    if action == "fail":
        at.open_request = None if request is at.open_request else at.open_request
        at.take(at.session.reported(at.now_ms, unanswered(request)))
        return
    response = response_for(request.request, action, value)
    at.note_answer(sent_ms, request, response)
    at.take(at.session.reported(at.now_ms, reported(request, response)))


def response_for(request: LifecycleRequest, action: str, value: object) -> ChannelResponse | ApiError:
    if action == "error" or (action == "register") != isinstance(request, RegisterBrokerRequest):
        code = value if isinstance(value, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
        return ApiError(code, "scripted", 2 if code is ErrorCode.NOT_CONTROLLER else None)
    if action == "register":
        return RegisterBrokerResponse(broker_epoch=int(str(value)), session_timeout_ms=SESSION_MS)
    return BrokerHeartbeatResponse(
        is_caught_up=action == "admit",
        is_fenced=action != "admit",
        should_shut_down=action == "grant",
        in_controlled_shutdown=False,
        session_timeout_ms=SESSION_MS,
    )


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 3), st.booleans(), st.lists(steps, max_size=60))
def test_no_order_of_events_breaks_the_laws(
    seed: int, begin_running: bool, script: list[tuple[str, object]]
) -> None:
    at = watched(seed)
    at.take(at.session.start(0))
    if begin_running:
        opening = [("high watermark", 5), ("applied", 20), ("register", 10), ("admit", 0)]
        script = [*opening, *script]
    for action, value in script:
        step(at, action, value)
    heal(at)


def heal(at: Watched) -> None:
    """With a controller that answers every request, a broker that was not stopped reaches the serving
    state."""
    step(at, "high watermark", 0)
    step(at, "applied", 1_000)
    for _ in range(40):
        if at.stopped or at.state is BrokerState.RUNNING:
            return
        step(at, "deadline", 0)
        if at.open_request is not None and not at.stopped:
            assert at.open_request is at.requests[-1][1]
            asked = at.open_request.request
            action = "grant" if at.state.wants_shutdown else "admit"
            step(at, *(("register", 500) if isinstance(asked, RegisterBrokerRequest) else (action, 0)))
    raise AssertionError(f"{at.state} after 40 deadlines: {at.session.exchange.last_problem}")


# ---- two processes, one id -----------------------------------------------------------------------


@dataclass
class Registry:
    """One broker id at an active controller, according to K7-K9; requests renew its session when they
    arrive."""

    epoch: int = -1
    incarnation: bytes | None = None
    session_end_ms: int = -1
    fenced: bool = True
    log_end: int = 10
    granted: set[int] = field(default_factory=set)

    def expire(self, now_ms: int) -> None:
        if now_ms >= self.session_end_ms and not self.fenced:
            self.fenced = True
            self.log_end += 1

    def handle(self, now_ms: int, request: LifecycleRequest) -> ChannelResponse | ApiError:
        self.expire(now_ms)
        match request:
            case RegisterBrokerRequest(incarnation_id=incarnation):
                if incarnation != self.incarnation:
                    if now_ms < self.session_end_ms and self.incarnation is not None:
                        return ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "alive")
                    self.incarnation, self.epoch, self.fenced = incarnation, self.log_end, True
                    self.log_end += 1
                self.session_end_ms = now_ms + SESSION_MS
                return RegisterBrokerResponse(broker_epoch=self.epoch, session_timeout_ms=SESSION_MS)
            case BrokerHeartbeatRequest():
                return self._heartbeat(now_ms, request)

    def _heartbeat(self, now_ms: int, request: BrokerHeartbeatRequest) -> ChannelResponse | ApiError:
        if request.broker_epoch != self.epoch:
            return ApiError(ErrorCode.STALE_BROKER_EPOCH, "stale")
        caught_up = request.applied_offset > self.epoch
        down = request.want_shutdown
        if down:
            self.granted.add(self.epoch)
        if down or (self.fenced and caught_up):
            self.fenced = down
            self.log_end += 1
        self.session_end_ms = -1 if down else now_ms + SESSION_MS
        return BrokerHeartbeatResponse(
            is_caught_up=caught_up,
            is_fenced=self.fenced,
            should_shut_down=down,
            in_controlled_shutdown=False,
            session_timeout_ms=SESSION_MS,
        )


@dataclass
class Duel:
    """Two incarnations of one broker id, one controller, and a network that delays and loses."""

    rng: random.Random
    registry: Registry = field(default_factory=Registry)
    now_ms: int = 0
    mail: list[tuple[int, int, object]] = field(default_factory=list)
    served: set[int] = field(default_factory=set)
    epochs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions = [
            BrokerSession(
                CONFIG, incarnation_id=bytes([n]) * 16, channel=channel(1, seed=n), applied_offset=10
            )
            for n in range(2)
        ]
        for n, session in enumerate(self.sessions):
            self.send(n, session.start(0))
            self.send(n, session.high_watermark_known(0, 10))

    def send(self, n: int, effects: list[LifecycleEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToController) and self.rng.random() > 0.1:
                self.mail.append((self.now_ms + self.rng.choice([1, 5, 400, 4_000]), n, effect))

    def deliver(self, n: int, item: object) -> None:
        session = self.sessions[n]
        if isinstance(item, SendToController):
            response = self.registry.handle(self.now_ms, item.request)
            if isinstance(response, RegisterBrokerResponse):
                self.epochs.append(response.broker_epoch)
            if self.rng.random() > 0.1:
                self.mail.append((self.now_ms + self.rng.choice([1, 5, 400]), n, (item, response)))
        elif isinstance(item, tuple):
            sent, response = item
            answer = session.reported(self.now_ms, reported(sent, response))
            self.send(n, answer)

    def run_one(self) -> None:
        """To the next arrival or deadline; a process may be paused and miss its deadline."""
        due = [at for at, _, _ in self.mail]
        awake = [n for n in range(2) if self.rng.random() > 0.3]
        due += [deadline for n in awake if (deadline := self.sessions[n].next_deadline_ms()) is not None]
        self.now_ms = max(self.now_ms, min(due, default=self.now_ms + 500))
        arrived = [mail for mail in self.mail if mail[0] <= self.now_ms]
        self.mail = [mail for mail in self.mail if mail[0] > self.now_ms]
        for _, n, item in arrived:
            self.deliver(n, item)
        for n in awake:
            self.send(n, self.sessions[n].tick(self.now_ms))
            self.send(n, self.sessions[n].applied(self.now_ms, self.registry.log_end))

    def check(self) -> None:
        # The response that permits a shutdown may be in flight or lost: the broker continues to serve until
        # it learns of it or its lease ends (S2.26), and the controller may accept the next incarnation at
        # once.
        serving = [
            n
            for n, session in enumerate(self.sessions)
            if session.serves_before_ms > self.now_ms
            and not (session.state.wants_shutdown and session.broker_epoch in self.registry.granted)
        ]
        assert len(serving) < 2, f"both incarnations serve at {self.now_ms}"
        assert self.epochs == sorted(self.epochs), "broker epochs fell"
        for n in serving:
            assert self.sessions[n].broker_epoch == self.registry.epoch, "an older generation serves"
        self.served |= set(serving)


@pytest.mark.parametrize("seed", range(60))
def test_two_processes_with_one_id_never_serve_together(seed: int) -> None:
    duel = Duel(random.Random(seed))
    for turn in range(400):
        duel.run_one()
        duel.check()
        if turn == 250:
            for n in duel.served:
                duel.send(n, duel.sessions[n].shut_down(duel.now_ms))
    assert duel.served, "nobody ever served: the scenario proves nothing"


def test_the_second_process_takes_over_when_the_first_has_left() -> None:
    """A fast restart: after a controlled shutdown the next incarnation gets a higher epoch without a wait."""
    registry = Registry()

    def talk(session: BrokerSession, now_ms: int, effects: list[LifecycleEffect]) -> None:
        while sends := [effect for effect in effects if isinstance(effect, SendToController)]:
            response = registry.handle(now_ms, sends[0].request)
            effects = session.reported(now_ms, reported(sends[0], response))
            effects += session.applied(now_ms, registry.log_end)

    epochs = []
    for generation in range(3):
        session = BrokerSession(
            CONFIG,
            incarnation_id=bytes([generation]) * 16,
            channel=channel(1, seed=generation),
            applied_offset=registry.log_end,
        )
        session.start(100)
        talk(session, 100, session.high_watermark_known(100, registry.log_end))
        assert session.serves_before_ms > 100
        epochs.append(session.broker_epoch)
        talk(session, 100, session.shut_down(100))
        assert session.state is BrokerState.SHUTTING_DOWN
    assert epochs == sorted(set(epochs))
