"""The one way from a broker to the active controller: who is asked, when again, one request in flight.

What one request learns about the controllers holds for all kinds, so they share the target; failures and
waits are counted per kind, so that a refused ISR change does not delay a heartbeat. The shell sends each
request once, to the controller that it names, and reports the outcome; it neither searches nor retries.
"""

from __future__ import annotations

import random

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from metaquorum.metadata.requests.settings import AllocateProducerIdsRequest, AllocateProducerIdsResponse

ChannelRequest = (
    RegisterBrokerRequest
    | BrokerHeartbeatRequest
    | AlterPartitionRequest
    | AssignReplicasToDirsRequest
    | AllocateProducerIdsRequest
)
ChannelResponse = (
    RegisterBrokerResponse
    | BrokerHeartbeatResponse
    | AlterPartitionResponse
    | AssignReplicasToDirsResponse
    | AllocateProducerIdsResponse
)


class SendToController(msgspec.Struct, frozen=True, kw_only=True):
    """Send to controller `target`, once, and report once with `ControllerReported`."""

    target: int
    correlation_id: int
    request: ChannelRequest
    timeout_ms: int


class NoAnswer(msgspec.Struct, frozen=True):
    """The request timed out, or could not be sent: whether it was carried out is unknown."""

    reason: str


class ControllerReported(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a `SendToController`: an answer, a refusal, or no answer."""

    target: int
    correlation_id: int
    outcome: ChannelResponse | ApiError | NoAnswer


class RequestInFlight(msgspec.Struct, frozen=True, kw_only=True):
    target: int
    correlation_id: int
    request: ChannelRequest
    sent_ms: int
    deadline_ms: int


class ControllerChannel:
    """`current`: the controller that is asked next: the leader as the metadata log's fetcher knows it, else
    the one that a refusal named, else the next voter. `backoff_ms`: the first wait after a failure, doubled
    up to `backoff_max_ms`."""

    def __init__(
        self,
        voters: tuple[int, ...],
        rng: random.Random,
        *,
        backoff_ms: int,
        backoff_max_ms: int,
    ) -> None:
        if not voters:
            raise ValueError(
                "no controllers are configured: set controller.quorum.voters, or "
                "controller.quorum.bootstrap.servers"
            )
        self._rng = rng
        self._backoff_ms, self._backoff_max_ms = backoff_ms, backoff_max_ms
        self._voters = voters
        self._leader: int | None = None
        self._kinds: list[RequestKind] = []
        self._correlation_id = 0
        self.current = voters[rng.randrange(len(voters))]

    def kind(self, timeout_ms: int) -> RequestKind:
        """Another kind of request. `timeout_ms`: how long each may take."""
        made = RequestKind(self, timeout_ms)
        self._kinds.append(made)
        return made

    # ---- what is known of the controllers --------------------------------------------------------

    def voters_are(self, voters: tuple[int, ...]) -> None:
        """The set of voters changed. The present target stays as long as its answers are useful."""
        self._voters = voters or self._voters

    def leader_known(self, now_ms: int, leader_id: int | None) -> None:
        """The leader as the fetcher of the metadata log knows it: what waits after a failure goes there
        soon."""
        self._leader = leader_id
        if leader_id is None or leader_id == self.current:
            return
        self.current = leader_id
        for kind in self._kinds:
            if kind.failures > 0:
                kind.next_send_ms = min(kind.next_send_ms, now_ms + self.wait_ms(1))

    def takes_hint(self, asked: int, hint: int | None) -> bool:
        """`asked` is not active and names `hint`. Returns whether `current` is now worth a request at
        once."""
        if hint is not None and hint != asked and hint in (*self._voters, self._leader):
            self.current = hint
            return True
        return self.current != asked

    def useless(self, asked: int) -> None:
        """`asked` gave no useful answer: the leader is next if that is another node, else the next voter. If
        another kind has left `asked` already, its choice stands."""
        if asked != self.current:
            return
        if self._leader is not None and self._leader != asked:
            self.current = self._leader
            return
        self._leader = None
        index = self._voters.index(asked) if asked in self._voters else -1
        self.current = self._voters[(index + 1) % len(self._voters)]

    @property
    def hints_max(self) -> int:
        """How many hints in a row a kind follows without a wait, so that two controllers that name each other
        (each behind in its own way) cost a wait and no busy loop."""
        return len(self._voters)

    def next_correlation_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def wait_ms(self, failures: int) -> int:
        """The wait after the `failures`-th consecutive failure (from 1): doubled each time, bounded, and
        spread over its upper half so that brokers that failed together do not retry together."""
        bound = min(self._backoff_max_ms, self._backoff_ms << min(failures - 1, 20))
        return max(1, bound - self._rng.randrange(bound // 2 + 1))


class RequestKind:
    """One kind of request to the active controller, of which at most one is in flight. `next_send_ms`: when
    the next may leave. `failures`: consecutive ones without a useful answer."""

    def __init__(self, channel: ControllerChannel, timeout_ms: int) -> None:
        self._channel = channel
        self._timeout_ms = timeout_ms
        self.in_flight: RequestInFlight | None = None
        self.next_send_ms = 0
        self.failures = 0
        self._hints_followed = 0

    def is_ready(self, now_ms: int) -> bool:
        """Whether a request may be sent now."""
        return self.in_flight is None and now_ms >= self.next_send_ms

    def next_deadline_ms(self, *, waits: bool) -> int | None:
        """When to look again; `waits`: there is something to send."""
        if self.in_flight is not None:
            return self.in_flight.deadline_ms
        return self.next_send_ms if waits else None

    def send(self, now_ms: int, request: ChannelRequest) -> SendToController:
        """The request, which is then in flight. Only if it `is_ready`."""
        target, correlation_id = self._channel.current, self._channel.next_correlation_id()
        self.in_flight = RequestInFlight(
            target=target,
            correlation_id=correlation_id,
            request=request,
            sent_ms=now_ms,
            deadline_ms=now_ms + self._timeout_ms,
        )
        return SendToController(
            target=target,
            correlation_id=correlation_id,
            request=request,
            timeout_ms=self._timeout_ms,
        )

    # ---- how it ends -----------------------------------------------------------------------------

    def end(self, target: int, correlation_id: int) -> RequestInFlight | None:
        """The request that was just reported on, which is no longer in flight. None if the report is on an
        older one, or on one of another kind."""
        sent = self.in_flight
        if sent is None or (sent.target, sent.correlation_id) != (target, correlation_id):
            return None
        self.in_flight = None
        return sent

    def end_late(self, now_ms: int) -> RequestInFlight | None:
        """The request whose time is up, which is no longer in flight; None if there is none."""
        sent = self.in_flight
        if sent is None or now_ms < sent.deadline_ms:
            return None
        self.in_flight = None
        return sent

    def drop(self) -> None:
        """An answer to the request in flight no longer counts."""
        self.in_flight = None

    def answered(self) -> None:
        """The controller acts as the active one, whatever it says."""
        self._hints_followed = 0

    def succeeded(self) -> None:
        """A useful answer: earlier failures no longer count, the next request may leave at once."""
        self.answered()
        self.failures = 0
        self.next_send_ms = 0

    def redirected(self, now_ms: int, sent: RequestInFlight, hint: int | None) -> bool:
        """The controller is not the active one (NOT_CONTROLLER). Returns False if no other is worth a request
        at once: the next one waits."""
        if self._hints_followed < self._channel.hints_max and self._channel.takes_hint(sent.target, hint):
            self._hints_followed += 1
            self.next_send_ms = now_ms
            return True
        self.answered()
        self.unanswered(now_ms, sent)
        return False

    def unanswered(self, now_ms: int, sent: RequestInFlight) -> None:
        """No useful answer: after a wait, another controller is asked."""
        self._channel.useless(sent.target)
        self.count_failure(now_ms)

    def count_failure(self, now_ms: int) -> None:
        """The next request waits, longer after each consecutive failure. The target stays."""
        self.failures += 1
        self.next_send_ms = now_ms + self._channel.wait_ms(self.failures)

    def fails(self, now_ms: int, sent: RequestInFlight, outcome: ApiError | NoAnswer) -> None:
        """It ended without what was asked for; the next request follows from that."""
        if isinstance(outcome, NoAnswer):
            self.unanswered(now_ms, sent)
        elif outcome.code is ErrorCode.NOT_CONTROLLER:
            self.redirected(now_ms, sent, outcome.leader_hint)
        else:
            self.answered()
            self.count_failure(now_ms)

    def start_over(self, now_ms: int) -> None:
        """What the request was about is gone: an answer still in flight no longer counts, and the next
        request waits only if it is not the first attempt."""
        self.drop()
        self.next_send_ms = now_ms if self.failures == 0 else now_ms + self._channel.wait_ms(self.failures)
        self.failures += 1


class Farewell:
    """The last heartbeat of a process that cannot continue, sent until a controller takes it or the time is
    up. The node has stopped; the shell calls `step` and `reported` in turn."""

    TRIES_MIN = 4
    """One controller that does not answer costs this part of the time."""

    def __init__(
        self, channel: ControllerChannel, request: BrokerHeartbeatRequest, *, now_ms: int, timeout_ms: int
    ) -> None:
        self._kind = channel.kind(max(1, timeout_ms // self.TRIES_MIN))
        self._request = request
        self._give_up_ms = now_ms + timeout_ms
        self._is_over = False
        self.accepted = False
        self.refusal: ApiError | None = None

    def step(self, now_ms: int) -> SendToController | int | None:
        """The request to send, or how many ms to wait before the next step; None: it is over."""
        if self._is_over or now_ms >= self._give_up_ms:
            return None
        if not self._kind.is_ready(now_ms):
            return min(self._kind.next_send_ms, self._give_up_ms) - now_ms
        return self._kind.send(now_ms, self._request)

    def reported(self, now_ms: int, report: ControllerReported) -> None:
        sent = self._kind.end(report.target, report.correlation_id)
        if sent is None:
            return
        match report.outcome:
            case ApiError(code=code) as refusal if code is not ErrorCode.NOT_CONTROLLER:
                self._is_over, self.refusal = True, refusal
            case ApiError() | NoAnswer() as outcome:
                self._kind.fails(now_ms, sent, outcome)
            case _:
                self._is_over = self.accepted = True
