"""A broker's dealings with the active controller: registration, heartbeats, the lease, controlled shutdown.

Pure: time comes in as `now_ms`, requests leave as `SendToController`. KIP-631, S2.1-S2.26, K8-K10.
"""

from __future__ import annotations

from msgspec.structs import replace

from metaquorum.broker.channel import ControllerChannel, ControllerReported, NoAnswer, RequestInFlight
from metaquorum.broker.events import LifecycleEffect, LifecycleRequest, StateChanged
from metaquorum.broker.lifecycle import Trigger, next_state
from metaquorum.metadata.errors import ApiError, ErrorCode, InvariantViolation
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.status import BrokerState
from metaquorum.raft.effects import Outbox, Warn
from metaquorum.raft.events import Stop


class ControllerExchange:
    """Registration and heartbeats are one kind of request: each follows from the answer to the one before.
    `last_problem`: what holds the broker up. Sends and warnings go to `out`."""

    def __init__(
        self, config: BrokerConfig, channel: ControllerChannel, out: Outbox[LifecycleEffect]
    ) -> None:
        self._node_id = config.node_id
        self.channel = channel
        self._kind = channel.kind(config.controller_request_timeout_ms)
        self._out = out
        self.last_problem = (
            "no active controller has answered; check that the quorum runs and that the addresses are right"
        )
        self._last_heartbeat_ms: int | None = None

    @property
    def target(self) -> int:
        """The controller that the next request goes to."""
        return self.channel.current

    @property
    def failures(self) -> int:
        """Consecutive requests without a useful answer."""
        return self._kind.failures

    @property
    def in_flight(self) -> RequestInFlight | None:
        return self._kind.in_flight

    @property
    def next_send_ms(self) -> int:
        """When the next request may leave."""
        return self._kind.next_send_ms

    @next_send_ms.setter
    def next_send_ms(self, due_ms: int) -> None:
        self._kind.next_send_ms = due_ms

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, now_ms: int, request: LifecycleRequest) -> None:
        if isinstance(request, BrokerHeartbeatRequest):
            self._last_heartbeat_ms = now_ms
        self._out.append(self._kind.send(now_ms, request))

    def hasten(self, now_ms: int, pace_ms: int) -> None:
        """Lets the next request leave as soon as the last heartbeat is `pace_ms` old."""
        last_ms = self._last_heartbeat_ms
        due_ms = now_ms if last_ms is None else max(now_ms, last_ms + pace_ms)
        self.next_send_ms = min(self.next_send_ms, due_ms)

    # ---- answers and failures --------------------------------------------------------------------

    def end_request(self, report: ControllerReported) -> RequestInFlight | None:
        """The request that the report is on, which is no longer in flight; None if it is on an older one."""
        return self._kind.end(report.target, report.correlation_id)

    def time_out(self, now_ms: int) -> None:
        sent = self._kind.end_late(now_ms)
        if sent is not None:
            waited_ms = sent.deadline_ms - sent.sent_ms
            self.fail(now_ms, sent, f"controller {sent.target} did not answer within {waited_ms} ms")

    def drop_request(self) -> None:
        """An answer still in flight no longer counts."""
        self._kind.drop()

    def answered(self) -> None:
        """The controller that answered is the active one."""
        self._kind.answered()

    def succeeded(self) -> None:
        """A heartbeat was answered: earlier failures no longer count."""
        self._kind.succeeded()

    def redirect(self, now_ms: int, sent: RequestInFlight, leader_hint: int | None) -> None:
        """The controller that answered is not the active one."""
        if not self._kind.redirected(now_ms, sent, leader_hint):
            self._say(f"controller {sent.target} is not active and knows no active controller")

    def fail(self, now_ms: int, sent: RequestInFlight, reason: str) -> None:
        """No useful answer: the next request goes to another controller."""
        self._kind.unanswered(now_ms, sent)
        self._say(reason)

    def refused(self, now_ms: int, reason: str) -> None:
        """The active controller refuses what it was asked for."""
        self._kind.answered()
        self._kind.count_failure(now_ms)
        self._say(reason)

    def too_slow(self, now_ms: int, sent: RequestInFlight) -> None:
        """The lease that the answer grants has already expired."""
        took_ms = now_ms - sent.sent_ms
        self._kind.count_failure(now_ms)
        self._say(f"controller {sent.target} took {took_ms} ms, longer than the lease it gave")

    def start_over(self, now_ms: int) -> None:
        """The lease or the registration is gone: an answer still in flight no longer counts."""
        self._kind.start_over(now_ms)

    def _say(self, reason: str) -> None:
        """Warns of the first failure, and whenever the reason changes."""
        if self.failures == 1 or _without_numbers(reason) != _without_numbers(self.last_problem):
            self._out.append(Warn(message=f"broker {self._node_id}: {reason}; retrying"))
        self.last_problem = reason


def _without_numbers(text: str) -> str:
    """A refusal that counts down milliseconds stays the same refusal: one warning is enough."""
    return "".join(character for character in text if not character.isdigit())


FATAL_REFUSALS = frozenset(
    {ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION}
)
LOST_REGISTRATION = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})


class BrokerSession:
    """The lifecycle of one incarnation. Every input returns its effects in order; at most one request is in
    flight. Each input looks at the clock first, so a late timer cannot keep a broker alive."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        incarnation_id: bytes,
        channel: ControllerChannel,
        applied_offset: int = 0,
        previous_broker_epoch: int | None = None,
        offline_directories: tuple[bytes, ...] = (),
    ) -> None:
        self._config = config
        self._out: Outbox[LifecycleEffect] = Outbox()
        self.exchange = ControllerExchange(config, channel, self._out)
        self.lease = Lease(config)
        self.startup = StartUp(config.initial_broker_registration_timeout_ms)
        self._incarnation = Incarnation(config, incarnation_id, previous_broker_epoch, offline_directories)
        self._amendment = Amendment()
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch: int | None = None
        self.registered = False
        self.applied_offset = applied_offset
        self._awaits_admission = False
        self._is_waited_for = False
        self._waiting = WaitingLine()
        self._shutdown = ControlledShutdown(config.controlled_shutdown_timeout_ms)
        self._ended_serving = False

    # ---- inputs ----------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[LifecycleEffect]:
        """Starts. Nothing is sent before the log is caught up (`high_watermark_known`, `applied`)."""
        self.startup.begin(now_ms)
        self.exchange.next_send_ms = now_ms
        self._move(Trigger.STARTED, "following the metadata log")
        return self._finish(now_ms)

    def tick(self, now_ms: int) -> list[LifecycleEffect]:
        self._look_at_clock(now_ms)
        return self._finish(now_ms)

    def high_watermark_known(self, now_ms: int, high_watermark: int) -> list[LifecycleEffect]:
        """The leader's high watermark. The first one is what this start has to catch up with (S2.3)."""
        self._look_at_clock(now_ms)
        if self.startup.learn(high_watermark):
            self.exchange.last_problem = f"the metadata log is not caught up (needs offset {high_watermark})"
            self._note_catch_up(now_ms)
        return self._finish(now_ms)

    def applied(self, now_ms: int, offset: int) -> list[LifecycleEffect]:
        """Everything below `offset` is in the image. Heartbeats report this offset (K10)."""
        self._look_at_clock(now_ms)
        if offset > self.applied_offset:
            self.applied_offset = offset
            self.startup.progressed(now_ms)
            self._note_catch_up(now_ms)
            if self._awaits_admission and self.has_applied_registration():
                self.exchange.hasten(now_ms, self._config.retry_backoff_ms)
        return self._finish(now_ms)

    def waited_for(self, now_ms: int) -> list[LifecycleEffect]:
        """The controller waits for what this broker has just applied before it lets another broker stop (K9),
        so the next heartbeat, which reports it, need not wait for its interval."""
        self._look_at_clock(now_ms)
        if self.registered:
            self._is_waited_for = True
            self.exchange.hasten(now_ms, self._config.controlled_shutdown_poll_ms)
        return self._finish(now_ms)

    def registration_read(
        self, now_ms: int, *, directories: frozenset[bytes] | None, leaving: bool
    ) -> list[LifecycleEffect]:
        """What the log says about this broker under its current epoch: whether it is `leaving`, and its
        `directories` (None if the log cannot carry them). While the log is wrong, whatever the controller
        received, the same registration is sent again between heartbeats; it keeps the epoch (K8)."""
        self._look_at_clock(now_ms)
        untold = directories is not None and not directories.issuperset(self._incarnation.usable_directories)
        wrong = self.registered and (untold or (leaving and not self.state.wants_shutdown))
        if not wrong:
            self._amendment.end()
        elif self._amendment.begin():
            self.exchange.hasten(now_ms, self._config.controlled_shutdown_poll_ms)
            what = "that it is stopping, which it is not" if leaving else "not all of its log directories"
            self._warn(f"its registration says {what}; it registers again")
        return self._finish(now_ms)

    def directories_failed(self, now_ms: int, offline: tuple[bytes, ...]) -> list[LifecycleEffect]:
        """`offline` are all failed directories: a heartbeat reports them at once, every later one repeats
        them, and later registrations leave them out (KIP-858, S3.14)."""
        self._look_at_clock(now_ms)
        if set(offline) != set(self._incarnation.offline_directories):
            self._incarnation.offline_directories = offline
            if self.registered:
                self.exchange.next_send_ms = now_ms
        return self._finish(now_ms)

    def leader_known(self, now_ms: int, leader_id: int | None) -> list[LifecycleEffect]:
        """The quorum's leader as the metadata fetcher sees it: the next request goes there."""
        self._look_at_clock(now_ms)
        self.exchange.channel.leader_known(now_ms, leader_id)
        return self._finish(now_ms)

    def waits_for(self, report: ControllerReported) -> bool:
        """Whether the report is on the request in flight."""
        sent = self.exchange.in_flight
        return sent is not None and sent.correlation_id == report.correlation_id

    def reported(self, now_ms: int, report: ControllerReported) -> list[LifecycleEffect]:
        """What came of a request. A report on an older one changes nothing."""
        self._look_at_clock(now_ms)
        sent = self.exchange.end_request(report)
        if sent is not None:
            match sent.request, report.outcome:
                case RegisterBrokerRequest(), RegisterBrokerResponse() as response:
                    self._on_registered(now_ms, sent, response)
                case BrokerHeartbeatRequest() as beat, BrokerHeartbeatResponse() as response:
                    self._on_heartbeat(now_ms, sent, beat, response)
                case _, ApiError() as error:
                    self._on_error(now_ms, sent, error)
                case _, NoAnswer(reason=reason):
                    self.exchange.fail(now_ms, sent, f"controller {sent.target}: {reason}")
                case _, response:
                    reason = f"controller {sent.target} answered with {type(response).__name__}"
                    self.exchange.fail(now_ms, sent, reason)
        return self._finish(now_ms)

    def shut_down(self, now_ms: int) -> list[LifecycleEffect]:
        """SIGTERM. A serving broker requests a controlled shutdown, any other stops at once (S2.23)."""
        self._look_at_clock(now_ms)
        if self.state.ended:
            return self._finish(now_ms)
        self._move(Trigger.SHUTDOWN_REQUESTED, "asked to stop")
        if self.state.ended:
            self._out.append(Stop(reason="stopped: the broker was not serving", failed=False))
        elif self._shutdown.begin(now_ms):
            self.exchange.next_send_ms = now_ms
        return self._finish(now_ms)

    def fail(self, now_ms: int, reason: str) -> list[LifecycleEffect]:
        """The node cannot continue (a record that does not apply, a disk error): stops serving and exits."""
        if not self.state.ended:
            self._end(Trigger.FAILED, reason, failed=True)
        return self._finish(now_ms)

    def refuse(self, now_ms: int, reason: str) -> list[LifecycleEffect]:
        """The quorum refuses this broker before it could register (controllers of another cluster)."""
        if self.state is BrokerState.STARTING:
            self._end(Trigger.REFUSED, reason, failed=True)
        return self._finish(now_ms)

    def refused_rights(self, controller: int, refusal: str) -> None:
        """A controller does not let this broker follow the metadata log, or its configuration names another
        kind of node. Either may be corrected at any time: it retries, and this is what it waits for."""
        if not self.startup.is_caught_up and not self.registered:
            self.exchange.last_problem = f"controller {controller} cannot be followed: {refusal}"

    # ---- questions -------------------------------------------------------------------------------

    @property
    def serves_before_ms(self) -> int:
        """The time until which clients may be answered: unfenced, within the lease, registration applied."""
        return self.lease.serves_before_ms if self.state.serves and self.has_applied_registration() else 0

    def next_deadline_ms(self) -> int | None:
        """The time by which `tick` must be called; None if it waits for nothing."""
        if self.state.ended or self.state is BrokerState.NOT_RUNNING:
            return None
        dues_ms = [self.lease.end_ms, self._waiting.due_ms]
        dues_ms += [self.startup.give_up_ms, self._shutdown.give_up_ms]
        if self.exchange.in_flight is not None:
            dues_ms.append(self.exchange.in_flight.deadline_ms)
        elif self.registered or self.startup.is_caught_up:
            dues_ms.append(self.exchange.next_send_ms)
        return min((due_ms for due_ms in dues_ms if due_ms is not None), default=None)

    @property
    def vouched_epoch(self) -> int | None:
        """See `Incarnation.vouched_epoch`."""
        return self._incarnation.vouched_epoch(self.broker_epoch)

    def farewell(self) -> BrokerHeartbeatRequest | None:
        """The last heartbeat of a process that cannot continue: its leaders move now and not when its session
        ends. None if it was not serving: it has no leaders to move."""
        serving = self.state.serves and self.registered
        if self.broker_epoch is None or not (serving or self._ended_serving):
            return None
        return replace(self._heartbeat(), want_fence=True, want_shutdown=True)

    def has_applied_registration(self) -> bool:
        """Whether the image is at least as new as the current registration (S1.13)."""
        return self.broker_epoch is not None and self.applied_offset > self.broker_epoch

    # ---- clock -----------------------------------------------------------------------------------

    def _look_at_clock(self, now_ms: int) -> None:
        if self.state.ended or self.state is BrokerState.NOT_RUNNING:
            return
        self.exchange.time_out(now_ms)
        if self.lease.has_ended(now_ms):
            self._lease_ended(now_ms)
        ungranted = self._shutdown.failure(now_ms)
        unregistered = self.startup.failure(now_ms, self.exchange.last_problem)
        if ungranted is not None:
            self._end(Trigger.SHUTDOWN_TIMED_OUT, ungranted, failed=False)
        elif unregistered is not None:
            self._end(Trigger.REFUSED, unregistered, failed=True)

    # ---- answers ---------------------------------------------------------------------------------

    def _on_registered(self, now_ms: int, sent: RequestInFlight, response: RegisterBrokerResponse) -> None:
        if self.registered and response.broker_epoch == self.broker_epoch:
            if self._renew(now_ms, sent, response.session_timeout_ms):
                self.exchange.answered()
                self.exchange.next_send_ms = now_ms
            return
        if self.registered:
            text = f"controller {sent.target} no longer knew broker epoch {self.broker_epoch}"
            self._lose(Trigger.REGISTRATION_LOST, now_ms, text)
        if self.broker_epoch is not None and response.broker_epoch < self.broker_epoch:
            text = f"registered with epoch {response.broker_epoch}, older than {self.broker_epoch}: ignored"
            self.exchange.fail(now_ms, sent, text)
            return
        if not self._renew(now_ms, sent, response.session_timeout_ms):
            return
        self.broker_epoch = response.broker_epoch
        self.registered = True
        self.startup.registered()
        self.exchange.answered()
        self._awaits_admission = True
        self.exchange.last_problem = "it is registered, and no heartbeat has been answered since"
        self._move(Trigger.REGISTERED, f"controller {sent.target} assigned broker epoch {self.broker_epoch}")
        wait_ms = 0 if self.has_applied_registration() else self._config.broker_heartbeat_interval_ms
        self.exchange.next_send_ms = now_ms + wait_ms

    def _on_heartbeat(
        self,
        now_ms: int,
        sent: RequestInFlight,
        beat: BrokerHeartbeatRequest,
        response: BrokerHeartbeatResponse,
    ) -> None:
        if not self._renew(now_ms, sent, response.session_timeout_ms):
            return
        self.exchange.succeeded()
        answered = f"controller {sent.target} answered the last one"
        self.exchange.last_problem = f"{answered}, this process was paused since"
        self._awaits_admission = response.is_fenced and not response.is_caught_up
        if response.should_shut_down and self.state.wants_shutdown:
            reason = f"stopped: controller {sent.target} granted the shutdown"
            self._end(Trigger.SHUTDOWN_GRANTED, reason, failed=False)
            return
        if response.is_fenced:
            state = "caught up" if response.is_caught_up else f"not caught up at offset {self.applied_offset}"
            self.exchange.last_problem = f"controller {sent.target} says fenced ({state})"
            self._move(Trigger.FENCED_BY_ANSWER, self.exchange.last_problem)
        elif self.has_applied_registration():
            self._move(Trigger.ADMITTED, f"controller {sent.target} says unfenced")
        else:
            self._awaits_admission = True
        interval_ms = self._config.broker_heartbeat_interval_ms
        if self.state.wants_shutdown:
            poll_ms = min(interval_ms, self._config.controlled_shutdown_poll_ms)
            wait_ms = poll_ms if beat.want_shutdown else 0
            self.exchange.next_send_ms = now_ms + wait_ms
        else:
            self.exchange.next_send_ms = max(now_ms, sent.sent_ms + interval_ms)
            if self._is_waited_for:
                self.exchange.hasten(now_ms, self._config.controlled_shutdown_poll_ms)
            self._amendment.beat()
        if beat.offline_directories != self._incarnation.offline_directories:
            self.exchange.next_send_ms = now_ms  # a directory failed while the heartbeat was in flight

    def _on_error(self, now_ms: int, sent: RequestInFlight, error: ApiError) -> None:
        registering = isinstance(sent.request, RegisterBrokerRequest) and not self.registered
        if error.code is ErrorCode.NOT_CONTROLLER:
            self.exchange.redirect(now_ms, sent, error.leader_hint)
        elif not registering and error.code in LOST_REGISTRATION:
            self._lose(Trigger.REGISTRATION_LOST, now_ms, str(error))
        elif registering and error.code in FATAL_REFUSALS:
            reason = f"the controller refuses broker {self._config.node_id}: {error}"
            self._end(Trigger.REFUSED, reason, failed=True)
        else:
            duplicate = error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
            if registering and duplicate and self.startup.give_up_ms is None:
                self.startup.begin(now_ms)
            self.exchange.refused(now_ms, f"controller {sent.target}: {error}")

    def _renew(self, now_ms: int, sent: RequestInFlight, session_timeout_ms: int) -> bool:
        """Takes the lease that an answer grants. Returns False if it has expired: the answer was too slow."""
        if self.lease.renew(now_ms, sent_ms=sent.sent_ms, session_timeout_ms=session_timeout_ms):
            return True
        self.exchange.too_slow(now_ms, sent)
        return False

    # ---- parts -----------------------------------------------------------------------------------

    def _note_catch_up(self, now_ms: int) -> None:
        if self.startup.reaches(self.applied_offset):
            self.exchange.last_problem = "no controller has answered the registration"
            self.exchange.next_send_ms = now_ms

    def _lease_ended(self, now_ms: int) -> None:
        if self._config.self_fencing_enable or not self.state.serves:
            text = f"no heartbeat was answered in time: {self.exchange.last_problem}"
            self._lose(Trigger.LEASE_ENDED, now_ms, text)
            return
        # As in Kafka, it continues under its epoch until a controller says otherwise.
        self.lease.drop()
        why = f"no heartbeat was answered in time ({self.exchange.last_problem})"
        self._warn(f"{why}; still serving, because broker.self.fencing.enable is false")

    def _warn(self, text: str) -> None:
        self._out.append(Warn(message=f"broker {self._config.node_id}: {text}"))

    def _lose(self, trigger: Trigger, now_ms: int, reason: str) -> None:
        """The lease or the registration is gone: answers in flight no longer count, register again."""
        self.registered = False
        self._amendment.end()
        self.lease.drop()
        self._awaits_admission = False
        self.exchange.start_over(now_ms)
        self._move(trigger, reason)

    def _end(self, trigger: Trigger, reason: str, *, failed: bool) -> None:
        self._move(trigger, reason)
        self._out.append(Stop(reason=reason, failed=failed))

    def _move(self, trigger: Trigger, reason: str) -> None:
        old, new = self.state, next_state(self.state, trigger)
        self.state = new
        if new.ended:
            self._ended_serving = old.serves and self.registered
            self.registered = False
            self.lease.drop()
            self.exchange.drop_request()
        if new is not old:
            self._out.append(StateChanged(old=old, new=new, reason=reason))

    def _finish(self, now_ms: int) -> list[LifecycleEffect]:
        waited = self._waiting.look(now_ms, self.state)
        if waited is not None:
            give_up_ms = self.startup.give_up_ms
            ends = "" if give_up_ms is None else f"; gives up in {(give_up_ms - now_ms) // 1000} s"
            where = f"at offset {self.applied_offset} of the metadata log"
            text = f"broker {self._config.node_id} {waited}, {where}: {self.exchange.last_problem}{ends}"
            self._out.append(Warn(message=text))
        self._send_if_due(now_ms)
        return self._out.take()

    def _send_if_due(self, now_ms: int) -> None:
        if self.state.ended or self.state is BrokerState.NOT_RUNNING or self.exchange.in_flight is not None:
            return
        if now_ms < self.exchange.next_send_ms or not (self.registered or self.startup.is_caught_up):
            return
        if self.registered and not self._amendment.is_due:
            self._is_waited_for = False
            self.exchange.send(now_ms, self._heartbeat())
        else:
            self._amendment.is_due = False
            self.exchange.send(now_ms, self._incarnation.registration(self.broker_epoch))

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return self._incarnation.heartbeat(self.broker_epoch, self.applied_offset, self.state.wants_shutdown)


WAITING_LINE_MS = 10_000
_WAITS = frozenset({BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.FENCED})


class StartUp:
    """`catch_up_offset`: the first high watermark that was learned; None if none yet. `is_caught_up`: the
    image has reached it. `give_up_ms`: when the broker stops if it is not registered by then; None once it
    is."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.catch_up_offset: int | None = None
        self.is_caught_up = False
        self.give_up_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        self.give_up_ms = now_ms + self._timeout_ms

    def progressed(self, now_ms: int) -> None:
        """The log or a snapshot is arriving: a long catch-up is no reason to stop."""
        if not self.is_caught_up and self.give_up_ms is not None:
            self.begin(now_ms)

    def registered(self) -> None:
        self.give_up_ms = None

    def learn(self, high_watermark: int) -> bool:
        """A leader's high watermark. Returns True if it is the first one, the goal of this start."""
        if self.catch_up_offset is not None:
            return False
        self.catch_up_offset = high_watermark
        return True

    def reaches(self, applied_offset: int) -> bool:
        """Whether the image has just caught up: it was behind before."""
        goal = self.catch_up_offset
        if self.is_caught_up or goal is None or applied_offset < goal:
            return False
        self.is_caught_up = True
        return True

    def failure(self, now_ms: int, problem: str) -> str | None:
        """Why the start has failed, if its time is up; else None."""
        if self.give_up_ms is None or now_ms < self.give_up_ms:
            return None
        return (
            f"could not register within {self._timeout_ms} ms"
            f" (initial.broker.registration.timeout.ms): {problem}"
        )


class ControlledShutdown:
    """`give_up_ms`: when the broker stops without the controller's permission; None if it was not asked to
    stop."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.give_up_ms: int | None = None

    def begin(self, now_ms: int) -> bool:
        """Returns False if it had already begun."""
        if self.give_up_ms is not None:
            return False
        self.give_up_ms = now_ms + self._timeout_ms
        return True

    def failure(self, now_ms: int) -> str | None:
        """Why it stops now, if its time is up; else None."""
        if self.give_up_ms is None or now_ms < self.give_up_ms:
            return None
        return (
            f"stopped: the controller did not grant the shutdown within {self._timeout_ms} ms "
            "(controlled.shutdown.timeout.ms); leaderships may not have been moved"
        )


class WaitingLine:
    """Call `look` after every input: a line is due every `WAITING_LINE_MS` while the broker waits."""

    __slots__ = ("_since_ms", "due_ms")

    def __init__(self) -> None:
        self._since_ms = 0
        self.due_ms: int | None = None

    def look(self, now_ms: int, state: BrokerState) -> str | None:
        """A line with the state and the time spent waiting, if one is due; else None."""
        if state not in _WAITS:
            self.due_ms = None
            return None
        if self.due_ms is None:
            self._since_ms, self.due_ms = now_ms, now_ms + WAITING_LINE_MS
        if now_ms < self.due_ms:
            return None
        self.due_ms = now_ms + WAITING_LINE_MS
        return f"has been waiting ({state.name}) for {(now_ms - self._since_ms) // 1000} s"


_BEATS_TO_AMEND = (1, 2, 4, 8, 16)
"""The heartbeats after which a registration that is wrong in the log is sent again; then every 16."""


class Incarnation:
    """One process of a broker. `previous_epoch`: that of the previous process if it shut down cleanly.
    `offline_directories`: every failed one known so far."""

    def __init__(
        self,
        config: BrokerConfig,
        incarnation_id: bytes,
        previous_epoch: int | None,
        offline_directories: tuple[bytes, ...],
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._previous_epoch = previous_epoch
        self.offline_directories = offline_directories

    @property
    def usable_directories(self) -> tuple[bytes, ...]:
        """The configured directories that can be used."""
        return tuple(
            [directory for directory in self._config.directories if directory not in self.offline_directories]
        )

    def vouched_epoch(self, epoch: int | None) -> int | None:
        """The newest epoch of this broker under which nothing was lost, as far as this process knows: its
        own, or that of the previous process if it shut down cleanly (KIP-966)."""
        return self._previous_epoch if epoch is None else epoch

    def heartbeat(
        self, epoch: int | None, applied_offset: int, want_shutdown: bool
    ) -> BrokerHeartbeatRequest:
        """Raises InvariantViolation without an epoch: only a registered broker sends heartbeats."""
        if epoch is None:
            raise InvariantViolation(
                "a broker is registered and has no epoch: report this with the broker's log"
            )
        return BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=epoch,
            applied_offset=applied_offset,
            want_shutdown=want_shutdown,
            offline_directories=self.offline_directories,
            min_insync_replicas=self._config.min_insync_replicas,
        )

    def registration(self, epoch: int | None) -> RegisterBrokerRequest:
        """`epoch`: that of this process, if it is already registered."""
        config = self._config
        return RegisterBrokerRequest(
            broker_id=config.node_id,
            cluster_id=config.cluster_id,
            incarnation_id=self._incarnation_id,
            endpoints=config.endpoints,
            features=config.features,
            rack=config.rack,
            directories=self.usable_directories,
            binding_key=config.binding_key,
            previous_broker_epoch=self.vouched_epoch(epoch),
        )


class Amendment:
    """When a registration that is wrong in the log is sent again. `is_due`: instead of the next heartbeat."""

    def __init__(self) -> None:
        self.is_due = False
        self._beats: int | None = None

    def begin(self) -> bool:
        """The log is wrong. Returns False if that was known."""
        if self._beats is not None:
            return False
        self._beats, self.is_due = 0, True
        return True

    def end(self) -> None:
        """The log is right, or there is no longer a registration."""
        self._beats, self.is_due = None, False

    def beat(self) -> None:
        """A heartbeat was answered."""
        if self._beats is not None:
            self._beats += 1
            last = _BEATS_TO_AMEND[-1]
            self.is_due = self._beats in _BEATS_TO_AMEND or self._beats % last == 0


FOREVER_MS = 2**63 - 1


class Lease:
    """Until when a broker may serve without another answer of the active controller (S2.17-S2.19).

    It counts from the time at which the broker *sent* the last heartbeat that was answered, the controller
    counts its session from the time at which that heartbeat *arrived*. The first is never later, so with
    clocks of equal speed a broker has stopped serving before the controller fences it.

    `end_ms`: when it ends. None if there is no lease: the broker is not registered, or its lease ended and
    it does not fence itself (broker.self.fencing.enable=false).
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.end_ms: int | None = None

    def renew(self, now_ms: int, *, sent_ms: int, session_timeout_ms: int) -> bool:
        """Takes the lease granted by the answer to a request sent at `sent_ms`. Returns False if it has
        expired."""
        end_ms = sent_ms + min(session_timeout_ms, self._config.registration_lease_timeout_ms)
        if end_ms > now_ms:
            self.end_ms = end_ms
            return True
        if self._config.self_fencing_enable:
            return False
        self.end_ms = None  # late, but as good as any other answer for a broker without a lease
        return True

    def drop(self) -> None:
        self.end_ms = None

    def carry(self, by_ms: int) -> None:
        """The clock was set forward by so much at once: what is left of it stays as it is."""
        if self.end_ms is not None:
            self.end_ms += by_ms

    @property
    def serves_before_ms(self) -> int:
        """The time until which it allows the broker to serve."""
        if not self._config.self_fencing_enable:
            return FOREVER_MS
        return 0 if self.end_ms is None else self.end_ms

    def has_ended(self, now_ms: int) -> bool:
        return self.end_ms is not None and now_ms >= self.end_ms
