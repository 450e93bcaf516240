"""The session's side of the channel to the controllers: what holds the broker up, in words for operators."""

from __future__ import annotations

from metaquorum.broker.channel import (
    ControllerChannel,
    ControllerReported,
    RequestInFlight,
)
from metaquorum.broker.events import LifecycleEffect, LifecycleRequest
from metaquorum.metadata.node_configs import BrokerConfig
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.raft.effects import Outbox, Warn


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
