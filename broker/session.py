"""A broker's dealings with the active controller: registration, heartbeats, the lease, controlled shutdown.

Pure: time comes in as `now_ms`, requests leave as `SendToController`. Decides which `Trigger` an answer or
a deadline is; what follows from it is `broker.lifecycle`'s table. Knows no log and no image, only how far
the image has been applied. Sources: KIP-631, S2.1-S2.26, K8-K10.

The lease: the broker counts its lease from the time at which it *sent* the last heartbeat that was answered,
the controller counts its session from the time at which that heartbeat *arrived*. The first is never later,
so with clocks of equal speed a broker has stopped serving before the controller fences it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from metaquorum.broker.config import BrokerConfig
from metaquorum.broker.events import (
    LifecycleEffect,
    LifecycleRequest,
    LifecycleResponse,
    SendToController,
    StateChanged,
)
from metaquorum.broker.lifecycle import Trigger, next_state
from metaquorum.broker.registration import Amendment, Incarnation
from metaquorum.broker.targets import ControllerTargets, backoff_ms
from metaquorum.broker.waiting import WaitingLine
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.broker_status import BrokerState
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.raft.effects import Warn
from metaquorum.raft.events import Stop
from metaquorum.raft.outbox import Outbox

FATAL_REFUSALS = frozenset(
    {ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION}
)
_WAITS = frozenset({BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.FENCED})
LOST_REGISTRATION = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    target: int
    correlation_id: int
    request: LifecycleRequest
    sent_ms: int
    deadline_ms: int


class BrokerSession:
    """One incarnation's lifecycle. Every input returns what is due, in order; at most one request is
    in flight. Each input looks at the clock first, so a late timer cannot keep a broker alive."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        incarnation_id: bytes,
        voters: tuple[int, ...],
        rng: random.Random,
        applied_offset: int = 0,
        previous_broker_epoch: int | None = None,
        offline_directories: tuple[bytes, ...] = (),
    ) -> None:
        self._config = config
        self._incarnation = Incarnation(config, incarnation_id, previous_broker_epoch, offline_directories)
        self._amendment = Amendment()
        self._targets = ControllerTargets(voters, rng)
        self._rng = rng
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch: int | None = None
        self.registered = False
        self.applied_offset = applied_offset
        self.lease_end_ms: int | None = None
        self.catch_up_offset: int | None = None
        self.caught_up = False
        self._awaits_admission = False
        self._is_waited_for = False
        self._in_flight: _InFlight | None = None
        self._correlation_id = 0
        self._failures = 0
        self._last_problem = (
            "no active controller of controller.quorum.voters has answered; check that the quorum runs"
            " and that the addresses are right"
        )
        self._last_heartbeat_ms: int | None = None
        self._next_send_ms = 0
        self._waiting = WaitingLine()
        self._give_up_ms: int | None = None
        self._shutdown_deadline_ms: int | None = None
        self._ended_serving = False
        self._out: Outbox[LifecycleEffect] = Outbox()

    # ---- inputs ----------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[LifecycleEffect]:
        """Begin. Nothing is sent before the log is caught up (`high_watermark_known`, `applied`)."""
        self._give_up_ms = now_ms + self._config.initial_broker_registration_timeout_ms
        self._next_send_ms = now_ms
        self._move(Trigger.STARTED, "following the metadata log")
        return self._finish(now_ms)

    def tick(self, now_ms: int) -> list[LifecycleEffect]:
        self._look_at_clock(now_ms)
        return self._finish(now_ms)

    def high_watermark_known(self, now_ms: int, high_watermark: int) -> list[LifecycleEffect]:
        """The leader's high watermark; the first one is what this start has to catch up with (S2.3)."""
        self._look_at_clock(now_ms)
        if self.catch_up_offset is None:
            self.catch_up_offset = high_watermark
            self._last_problem = f"the metadata log is not caught up (needs offset {high_watermark})"
            self._note_catch_up(now_ms)
        return self._finish(now_ms)

    def applied(self, now_ms: int, offset: int) -> list[LifecycleEffect]:
        """Everything below `offset` is in the image. The offset that heartbeats report (K10)."""
        self._look_at_clock(now_ms)
        if offset > self.applied_offset:
            self.applied_offset = offset
            self.progressed(now_ms)
            self._note_catch_up(now_ms)
            if self._awaits_admission and self._applied_registration():
                last_ms, pace_ms = self._last_heartbeat_ms, self._config.retry_backoff_ms
                due_ms = now_ms if last_ms is None else max(now_ms, last_ms + pace_ms)
                self._next_send_ms = min(self._next_send_ms, due_ms)
        return self._finish(now_ms)

    def waited_for(self, now_ms: int) -> list[LifecycleEffect]:
        """The controller waits for what this broker has applied now, before it lets another one stop (K9):
        the next heartbeat, which says so, need not wait for its interval."""
        self._look_at_clock(now_ms)
        if self.registered:
            self._is_waited_for = True
            self._hasten(now_ms)
        return self._finish(now_ms)

    def registration_read(
        self, now_ms: int, *, directories: frozenset[bytes] | None, leaving: bool
    ) -> list[LifecycleEffect]:
        """What the log says of this broker under its current epoch: it is `leaving`, and has these
        `directories` (None: the log cannot carry them). While that is not so, whatever the controller heard,
        the same registration is sent again between two heartbeats; it keeps the epoch (K8)."""
        self._look_at_clock(now_ms)
        untold = directories is not None and not directories.issuperset(self._incarnation.usable_directories)
        wrong = self.registered and (untold or (leaving and not self.state.wants_shutdown))
        if not wrong:
            self._amendment.end()
        elif self._amendment.begin():
            self._hasten(now_ms)
            what = "that it is stopping, and it is not" if leaving else "not all of its log directories"
            text = f"broker {self._config.node_id}: its registration says {what}; it registers again"
            self._out.append(Warn(message=text))
        return self._finish(now_ms)

    def directories_failed(self, now_ms: int, offline: tuple[bytes, ...]) -> list[LifecycleEffect]:
        """`offline` are all bad directories now: a heartbeat says so at once, every later one repeats it, and
        no later registration names them (KIP-858, S3.14)."""
        self._look_at_clock(now_ms)
        if set(offline) != set(self._incarnation.offline_directories):
            self._incarnation.offline_directories = offline
            if self.registered:
                self._next_send_ms = now_ms
        return self._finish(now_ms)

    def _hasten(self, now_ms: int) -> None:
        last_ms, pace_ms = self._last_heartbeat_ms, self._config.controlled_shutdown_poll_ms
        due_ms = now_ms if last_ms is None else max(now_ms, last_ms + pace_ms)
        self._next_send_ms = min(self._next_send_ms, due_ms)

    def progressed(self, now_ms: int) -> None:
        """The log or a snapshot is coming in: a long catch-up is no reason to give up the start."""
        if not self.caught_up and self._give_up_ms is not None:
            self._give_up_ms = now_ms + self._config.initial_broker_registration_timeout_ms

    def leader_known(self, now_ms: int, leader_id: int | None) -> list[LifecycleEffect]:
        """The quorum's leader as the metadata fetcher sees it: where the next request goes."""
        self._look_at_clock(now_ms)
        if self._targets.leader_known(leader_id) and self._failures > 0:
            self._next_send_ms = min(self._next_send_ms, now_ms + self._backoff(1))
        return self._finish(now_ms)

    def answered(
        self, now_ms: int, source: int, correlation_id: int, response: LifecycleResponse | ApiError
    ) -> list[LifecycleEffect]:
        self._look_at_clock(now_ms)
        sent = self._in_flight
        if sent is not None and (sent.target, sent.correlation_id) == (source, correlation_id):
            self._in_flight = None
            match sent.request, response:
                case RegisterBrokerRequest(), RegisterBrokerResponse():
                    self._on_registered(now_ms, sent, response)
                case BrokerHeartbeatRequest(), BrokerHeartbeatResponse():
                    self._on_heartbeat(now_ms, sent, response)
                case _, ApiError():
                    self._on_error(now_ms, sent, response)
                case _:
                    self._failed(now_ms, sent, f"controller {source} answered with {type(response).__name__}")
        return self._finish(now_ms)

    def failed(self, now_ms: int, target: int, correlation_id: int, reason: str) -> list[LifecycleEffect]:
        self._look_at_clock(now_ms)
        sent = self._in_flight
        if sent is not None and (sent.target, sent.correlation_id) == (target, correlation_id):
            self._in_flight = None
            self._failed(now_ms, sent, f"controller {target}: {reason}")
        return self._finish(now_ms)

    def shut_down(self, now_ms: int) -> list[LifecycleEffect]:
        """SIGTERM. A broker that serves asks for a controlled shutdown, any other ends at once (S2.23)."""
        self._look_at_clock(now_ms)
        if self.state.ended:
            return self._finish(now_ms)
        self._move(Trigger.SHUTDOWN_REQUESTED, "asked to stop")
        if self.state.ended:
            self._out.append(Stop(reason="stopped: the broker was not serving", failed=False))
        elif self._shutdown_deadline_ms is None:
            self._shutdown_deadline_ms = now_ms + self._config.controlled_shutdown_timeout_ms
            self._next_send_ms = now_ms
        return self._finish(now_ms)

    def fail(self, now_ms: int, reason: str) -> list[LifecycleEffect]:
        """The node cannot go on (a record that does not apply, a disk error): stop serving and end."""
        if not self.state.ended:
            self._end(Trigger.FAILED, reason, failed=True)
        return self._finish(now_ms)

    def refuse(self, now_ms: int, reason: str) -> list[LifecycleEffect]:
        """The quorum refuses this broker before it could register (another cluster's controllers)."""
        if self.state is BrokerState.STARTING:
            self._end(Trigger.REFUSED, reason, failed=True)
        return self._finish(now_ms)

    # ---- questions -------------------------------------------------------------------------------

    def serves(self, now_ms: int) -> bool:
        """Whether clients may be answered at `now_ms`: unfenced, within the lease (if the broker fences
        itself), and with an image that is not older than the own registration. True between two inputs too,
        without a tick in between."""
        lease = self.lease_end_ms
        leased = not self._config.self_fencing_enable or (lease is not None and now_ms < lease)
        return self.state.serves and leased and self._applied_registration()

    def next_deadline_ms(self) -> int | None:
        """When `tick` must be called at the latest; None: never, nothing is waited for."""
        if self.state.ended or self.state is BrokerState.NOT_RUNNING:
            return None
        waits = [self.lease_end_ms, self._give_up_ms, self._shutdown_deadline_ms, self._waiting.due_ms]
        if self._in_flight is not None:
            waits.append(self._in_flight.deadline_ms)
        elif self.registered or self.caught_up:
            waits.append(self._next_send_ms)
        return min((wait for wait in waits if wait is not None), default=None)

    @property
    def vouched_epoch(self) -> int | None:
        """See `Incarnation.vouched_epoch`."""
        return self._incarnation.vouched_epoch(self.broker_epoch)

    def farewell(self) -> BrokerHeartbeatRequest | None:
        """The last word of a process that cannot go on: its leaders are to be moved now, and not when its
        session ends. None: it was not serving, there is nothing to be moved."""
        serving = self.state.serves and self.registered
        if self.broker_epoch is None or not (serving or self._ended_serving):
            return None
        return replace(self._heartbeat(), want_fence=True, want_shutdown=True)

    def may_publish(self) -> bool:
        """Whether the image is at least as new as the registration in force (S1.13)."""
        return self.broker_epoch is not None and self._applied_registration()

    @property
    def target(self) -> int:
        return self._targets.current

    @property
    def last_problem(self) -> str:
        return self._last_problem

    @property
    def failures(self) -> int:
        """Requests in a row without a useful answer."""
        return self._failures

    # ---- clock -----------------------------------------------------------------------------------

    def _look_at_clock(self, now_ms: int) -> None:
        if self.state.ended or self.state is BrokerState.NOT_RUNNING:
            return
        if self._in_flight is not None and now_ms >= self._in_flight.deadline_ms:
            sent, self._in_flight = self._in_flight, None
            waited_ms = sent.deadline_ms - sent.sent_ms
            self._failed(now_ms, sent, f"controller {sent.target} did not answer within {waited_ms} ms")
        if self.lease_end_ms is not None and now_ms >= self.lease_end_ms:
            self._lease_ended(now_ms)
        if self._shutdown_deadline_ms is not None and now_ms >= self._shutdown_deadline_ms:
            limit_ms = self._config.controlled_shutdown_timeout_ms
            reason = (
                f"stopped: the controller did not grant the shutdown within {limit_ms} ms "
                "(controlled.shutdown.timeout.ms); leaderships may not have been moved"
            )
            self._end(Trigger.SHUTDOWN_TIMED_OUT, reason, failed=False)
        elif self._give_up_ms is not None and now_ms >= self._give_up_ms:
            limit_ms = self._config.initial_broker_registration_timeout_ms
            reason = (
                f"could not register within {limit_ms} ms"
                f" (initial.broker.registration.timeout.ms): {self._last_problem}"
            )
            self._end(Trigger.REFUSED, reason, failed=True)

    def _say_what_is_waited_for(self, now_ms: int) -> None:
        waited_ms = self._waiting.look(now_ms, waits=self.state in _WAITS)
        if waited_ms is None:
            return
        limit_ms = self._give_up_ms
        ends = "" if limit_ms is None else f"; gives up in {(limit_ms - now_ms) // 1000} s"
        text = (
            f"broker {self._config.node_id} has been waiting ({self.state.name}) for {waited_ms // 1000} "
            f"s, at offset {self.applied_offset} of the metadata log: {self._last_problem}{ends}"
        )
        self._out.append(Warn(message=text))

    # ---- answers ---------------------------------------------------------------------------------

    def _on_registered(self, now_ms: int, sent: _InFlight, response: RegisterBrokerResponse) -> None:
        if self.registered and response.broker_epoch == self.broker_epoch:
            if self._renew(now_ms, sent, response.session_timeout_ms):
                self._targets.answered()
                self._next_send_ms = now_ms
            return
        if self.registered:
            text = f"controller {sent.target} had forgotten broker epoch {self.broker_epoch}"
            self._lose(Trigger.REGISTRATION_LOST, now_ms, text)
        if self.broker_epoch is not None and response.broker_epoch < self.broker_epoch:
            text = f"registered with epoch {response.broker_epoch}, older than {self.broker_epoch}: ignored"
            self._failed(now_ms, sent, text)
            return
        if not self._renew(now_ms, sent, response.session_timeout_ms):
            return
        self.broker_epoch = response.broker_epoch
        self.registered = True
        self._give_up_ms = None
        self._targets.answered()
        self._awaits_admission = True
        self._last_problem = "it is registered, and no heartbeat has been answered since"
        self._move(
            Trigger.REGISTERED, (f"controller {sent.target} assigned broker epoch {response.broker_epoch}")
        )
        wait_ms = 0 if self._applied_registration() else self._config.broker_heartbeat_interval_ms
        self._next_send_ms = now_ms + wait_ms

    def _on_heartbeat(self, now_ms: int, sent: _InFlight, response: BrokerHeartbeatResponse) -> None:
        if not self._renew(now_ms, sent, response.session_timeout_ms):
            return
        self._failures = 0
        self._last_problem = f"controller {sent.target} answered the last one, this process was held up since"
        self._targets.answered()
        self._awaits_admission = response.is_fenced and not response.is_caught_up
        if response.should_shut_down and self.state.wants_shutdown:
            reason = f"stopped: controller {sent.target} granted the shutdown"
            self._end(Trigger.SHUTDOWN_GRANTED, reason, failed=False)
            return
        if response.is_fenced:
            state = "caught up" if response.is_caught_up else f"not caught up at offset {self.applied_offset}"
            self._last_problem = f"controller {sent.target} says fenced ({state})"
            self._move(Trigger.FENCED_BY_ANSWER, self._last_problem)
        elif self._applied_registration():
            self._move(Trigger.ADMITTED, f"controller {sent.target} says unfenced")
        else:
            self._awaits_admission = True
        interval_ms = self._config.broker_heartbeat_interval_ms
        if self.state.wants_shutdown:
            asked = isinstance(sent.request, BrokerHeartbeatRequest) and sent.request.want_shutdown
            wait_ms = min(interval_ms, self._config.controlled_shutdown_poll_ms) if asked else 0
            self._next_send_ms = now_ms + wait_ms
        else:
            self._next_send_ms = max(now_ms, sent.sent_ms + interval_ms)
            if self._is_waited_for:
                self._hasten(now_ms)
        self._tell_directories(now_ms, sent.request)
        if not self.state.wants_shutdown:
            self._amendment.beat()

    def _tell_directories(self, now_ms: int, sent: LifecycleRequest) -> None:
        """A directory failed while the heartbeat was under way: the next one goes at once."""
        untold = isinstance(sent, BrokerHeartbeatRequest) and (
            sent.offline_directories != self._incarnation.offline_directories
        )
        if untold:
            self._next_send_ms = now_ms

    def _on_error(self, now_ms: int, sent: _InFlight, error: ApiError) -> None:
        registering = isinstance(sent.request, RegisterBrokerRequest) and not self.registered
        if error.code is ErrorCode.NOT_CONTROLLER:
            if self._targets.redirect(sent.target, error.leader_hint):
                self._next_send_ms = now_ms
            else:
                self._count_failure(now_ms, f"controller {sent.target} is not active and knows no other")
        elif not registering and error.code in LOST_REGISTRATION:
            self._lose(Trigger.REGISTRATION_LOST, now_ms, str(error))
        elif registering and error.code in FATAL_REFUSALS:
            self._end(
                Trigger.REFUSED, f"the controller refuses broker {self._config.node_id}: {error}", failed=True
            )
        else:
            if (
                registering
                and error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
                and self._give_up_ms is None
            ):
                self._give_up_ms = now_ms + self._config.initial_broker_registration_timeout_ms
            self._targets.answered()
            self._count_failure(now_ms, f"controller {sent.target}: {error}")

    def _renew(self, now_ms: int, sent: _InFlight, session_timeout_ms: int) -> bool:
        """Take the lease that an answer gives; False: it is over already, the answer was too slow."""
        end_ms = sent.sent_ms + min(session_timeout_ms, self._config.registration_lease_timeout_ms)
        if end_ms <= now_ms and not self._config.self_fencing_enable:
            self.lease_end_ms = None  # late, and as good as any other answer for a broker without a lease
            return True
        if end_ms <= now_ms:
            took_ms = now_ms - sent.sent_ms
            self._count_failure(
                now_ms, f"controller {sent.target} took {took_ms} ms, longer than the lease it gave"
            )
            return False
        self.lease_end_ms = end_ms
        return True

    # ---- parts -----------------------------------------------------------------------------------

    def _applied_registration(self) -> bool:
        return self.broker_epoch is not None and self.applied_offset > self.broker_epoch

    def _note_catch_up(self, now_ms: int) -> None:
        if (
            not self.caught_up
            and self.catch_up_offset is not None
            and self.applied_offset >= self.catch_up_offset
        ):
            self.caught_up = True
            self._last_problem = "no controller has answered the registration"
            self._next_send_ms = now_ms

    def _lease_ended(self, now_ms: int) -> None:
        if self._config.self_fencing_enable or not self.state.serves:
            text = f"no heartbeat was answered in time: {self._last_problem}"
            self._lose(Trigger.LEASE_ENDED, now_ms, text)
            return
        # As in Kafka: it goes on under its epoch until a controller says otherwise.
        self.lease_end_ms = None
        why = f"no heartbeat was answered in time ({self._last_problem})"
        text = (
            f"broker {self._config.node_id}: {why}; still serving, because broker.self.fencing.enable "
            "is false"
        )
        self._out.append(Warn(message=text))

    def _lose(self, trigger: Trigger, now_ms: int, reason: str) -> None:
        """The lease or the registration is gone: answers still under way no longer count, register again."""
        self.registered = False
        self._amendment.end()
        self.lease_end_ms = None
        self._in_flight = None
        self._awaits_admission = False
        self._next_send_ms = now_ms if self._failures == 0 else now_ms + self._backoff(self._failures)
        self._failures += 1
        self._move(trigger, reason)

    def _failed(self, now_ms: int, sent: _InFlight, reason: str) -> None:
        self._targets.failed(sent.target)
        self._count_failure(now_ms, reason)

    def _count_failure(self, now_ms: int, reason: str) -> None:
        self._failures += 1
        if self._failures == 1 or _without_numbers(reason) != _without_numbers(self._last_problem):
            self._out.append(Warn(message=f"broker {self._config.node_id}: {reason}; retrying"))
        self._last_problem = reason
        self._next_send_ms = now_ms + self._backoff(self._failures)

    def _backoff(self, failures: int) -> int:
        config = self._config
        return backoff_ms(
            failures, base_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, rng=self._rng
        )

    def _end(self, trigger: Trigger, reason: str, *, failed: bool) -> None:
        self._move(trigger, reason)
        self._out.append(Stop(reason=reason, failed=failed))

    def _move(self, trigger: Trigger, reason: str) -> None:
        old, new = self.state, next_state(self.state, trigger)
        self.state = new
        if new.ended:
            self._ended_serving = old.serves and self.registered
            self.registered = False
            self.lease_end_ms = None
            self._in_flight = None
        if new is not old:
            self._out.append(StateChanged(old=old, new=new, reason=reason))

    def _finish(self, now_ms: int) -> list[LifecycleEffect]:
        self._say_what_is_waited_for(now_ms)
        self._send_if_due(now_ms)
        return self._out.take()

    def _send_if_due(self, now_ms: int) -> None:
        if self.state.ended or self.state is BrokerState.NOT_RUNNING or self._in_flight is not None:
            return
        if now_ms < self._next_send_ms or not (self.registered or self.caught_up):
            return
        beats = self.registered and not self._amendment.is_due
        request: LifecycleRequest = (
            self._heartbeat() if beats else self._incarnation.registration(self.broker_epoch)
        )
        self._amendment.is_due = False
        self._correlation_id += 1
        timeout_ms = self._config.controller_request_timeout_ms
        if beats:
            self._last_heartbeat_ms = now_ms
            self._is_waited_for = False
        self._in_flight = _InFlight(
            target=self._targets.current,
            correlation_id=self._correlation_id,
            request=request,
            sent_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
        )
        self._out.append(
            SendToController(
                target=self._targets.current,
                correlation_id=self._correlation_id,
                request=request,
                timeout_ms=timeout_ms,
                attempt=self._failures + 1,
            )
        )

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return self._incarnation.heartbeat(self.broker_epoch, self.applied_offset, self.state.wants_shutdown)


def _without_numbers(text: str) -> str:
    """A refusal that counts milliseconds down is the same refusal: one warning is enough."""
    return "".join(each for each in text if not each.isdigit())
