"""A broker's requests to the controllers: one at a time, where each goes, when the next is due.

Owns the request in flight, the number of failures and the resulting waits. Knows no lifecycle: `session`
decides what a request is and what its answer means.
"""

from __future__ import annotations

import random

import msgspec

from metaquorum.broker.events import LifecycleEffect, LifecycleRequest, SendToController
from metaquorum.broker.targets import ControllerTargets, backoff_ms
from metaquorum.metadata.node_configs.broker import BrokerConfig
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest
from metaquorum.raft.effects import Warn
from metaquorum.raft.outbox import Outbox


class RequestInFlight(msgspec.Struct, frozen=True, kw_only=True):
    target: int
    correlation_id: int
    request: LifecycleRequest
    sent_ms: int
    deadline_ms: int


class ControllerExchange:
    """`next_send_ms`: when the next request may leave. `failures`: consecutive requests without a useful
    answer. `last_problem`: for operators, what holds the broker up. Sends and warnings go to `out`."""

    def __init__(
        self,
        config: BrokerConfig,
        voters: tuple[int, ...],
        rng: random.Random,
        out: Outbox[LifecycleEffect],
    ) -> None:
        self._config = config
        self._targets = ControllerTargets(voters, rng)
        self._rng = rng
        self._out = out
        self.in_flight: RequestInFlight | None = None
        self.next_send_ms = 0
        self.failures = 0
        self.last_problem = (
            "no active controller has answered; check that the quorum runs and that the addresses are right"
        )
        self._correlation_id = 0
        self._last_heartbeat_ms: int | None = None

    @property
    def target(self) -> int:
        """The controller that the next request goes to."""
        return self._targets.current

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, now_ms: int, request: LifecycleRequest) -> None:
        self._correlation_id += 1
        timeout_ms = self._config.controller_request_timeout_ms
        if isinstance(request, BrokerHeartbeatRequest):
            self._last_heartbeat_ms = now_ms
        self.in_flight = RequestInFlight(
            target=self.target,
            correlation_id=self._correlation_id,
            request=request,
            sent_ms=now_ms,
            deadline_ms=now_ms + timeout_ms,
        )
        self._out.append(
            SendToController(
                target=self.target,
                correlation_id=self._correlation_id,
                request=request,
                timeout_ms=timeout_ms,
                attempt=self.failures + 1,
            )
        )

    def hasten(self, now_ms: int, pace_ms: int) -> None:
        """Lets the next request leave as soon as the last heartbeat is `pace_ms` old."""
        last_ms = self._last_heartbeat_ms
        due_ms = now_ms if last_ms is None else max(now_ms, last_ms + pace_ms)
        self.next_send_ms = min(self.next_send_ms, due_ms)

    def voters_are(self, voters: tuple[int, ...]) -> None:
        """The set of voters changed."""
        self._targets.voters_are(voters)

    def leader_known(self, now_ms: int, leader_id: int | None) -> None:
        """The quorum has this leader: after failures, send it a request soon."""
        if self._targets.leader_known(leader_id) and self.failures > 0:
            self.next_send_ms = min(self.next_send_ms, now_ms + self._backoff_ms(1))

    # ---- answers and failures --------------------------------------------------------------------

    def end_request(self, target: int, correlation_id: int) -> RequestInFlight | None:
        """The request that was just answered or failed; it is no longer in flight. None if the report is on
        an older one."""
        sent = self.in_flight
        if sent is None or (sent.target, sent.correlation_id) != (target, correlation_id):
            return None
        self.in_flight = None
        return sent

    def time_out(self, now_ms: int) -> None:
        sent = self.in_flight
        if sent is not None and now_ms >= sent.deadline_ms:
            self.in_flight = None
            waited_ms = sent.deadline_ms - sent.sent_ms
            self.fail(now_ms, sent, f"controller {sent.target} did not answer within {waited_ms} ms")

    def answered(self) -> None:
        """The controller that answered is the active one."""
        self._targets.answered()

    def succeeded(self) -> None:
        """A heartbeat was answered: earlier failures no longer count."""
        self.failures = 0
        self.answered()

    def redirect(self, now_ms: int, sent: RequestInFlight, leader_hint: int | None) -> None:
        """The controller that answered is not the active one."""
        if self._targets.redirect(sent.target, leader_hint):
            self.next_send_ms = now_ms
        else:
            self.count_failure(
                now_ms, f"controller {sent.target} is not active and knows no active controller"
            )

    def fail(self, now_ms: int, sent: RequestInFlight, reason: str) -> None:
        """No useful answer: the next request goes to another controller."""
        self._targets.failed(sent.target)
        self.count_failure(now_ms, reason)

    def too_slow(self, now_ms: int, sent: RequestInFlight) -> None:
        """The lease that the answer grants has already expired."""
        took_ms = now_ms - sent.sent_ms
        reason = f"controller {sent.target} took {took_ms} ms, longer than the lease it gave"
        self.count_failure(now_ms, reason)

    def count_failure(self, now_ms: int, reason: str) -> None:
        """Waits longer after each consecutive failure; warns of the first, and whenever the reason
        changes."""
        self.failures += 1
        if self.failures == 1 or _without_numbers(reason) != _without_numbers(self.last_problem):
            self._out.append(Warn(message=f"broker {self._config.node_id}: {reason}; retrying"))
        self.last_problem = reason
        self.next_send_ms = now_ms + self._backoff_ms(self.failures)

    def start_over(self, now_ms: int) -> None:
        """The lease or the registration is gone: an answer still in flight no longer counts."""
        self.in_flight = None
        self.next_send_ms = now_ms if self.failures == 0 else now_ms + self._backoff_ms(self.failures)
        self.failures += 1

    def _backoff_ms(self, failures: int) -> int:
        config = self._config
        return backoff_ms(
            failures, base_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, rng=self._rng
        )


def _without_numbers(text: str) -> str:
    """A refusal that counts down milliseconds stays the same refusal: one warning is enough."""
    return "".join(character for character in text if not character.isdigit())
