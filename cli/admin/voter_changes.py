"""Performs a plan for voters: one step after another, each until it is committed.

Every step is judged by what the leader describes, so that an interrupted command can be run again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from metaquorum.cli.admin.voter_plan import (
    Member,
    StepKind,
    VoterPlan,
    VoterStep,
    VoterWish,
    check_step,
    is_done,
    lag_of,
    make_plan,
)
from metaquorum.cli.client import ClientOptions, ClusterClient
from metaquorum.cli.cluster import OpenCluster
from metaquorum.cli.errors import Failure
from metaquorum.clients.admin.voters import add_voter, describe_voters, listener_name, remove_voter
from metaquorum.clients.quorum.nodes import describe_nodes
from metaquorum.clients.quorum.voters import CHANGE_TIMEOUT_MS, add_raft_voter, remove_raft_voter
from metaquorum.clients.search import Address
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    runs_with_static_voters,
)

POLL_S = 0.05
PATIENCE_S = 5.0
"""Seconds for which a refusal because of a silent node is retried: a new leader has not
heard from all nodes yet."""
SAY_EVERY_S = 1.0

_UNLESS_DONE = frozenset({ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND})
_LATER = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
)
_WHEN_HEARD = frozenset({ErrorCode.POLICY_VIOLATION, ErrorCode.REQUEST_TIMED_OUT})


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """A wish and how to perform it. `endpoint` None: where the new voter registered its listener. `wait_s`:
    limit for all steps. `patience_s`: how long a node may be silent before that is a refusal."""

    wish: VoterWish
    endpoint: Address | None = None
    wait_s: float = 300.0
    patience_s: float = msgspec.field(default_factory=lambda: PATIENCE_S)


class ChangesVoters(Protocol):
    """One cluster, over one protocol. Each raises ApiError if it is refused, Failure if no controller
    answers."""

    def quorum(self) -> DescribeQuorumResponse: ...

    def add(self, request: AddRaftVoterRequest) -> None: ...

    def remove(self, request: RemoveRaftVoterRequest) -> None: ...

    def listeners_at(self, address: Address, node_id: int) -> tuple[VoterEndpoint, ...]:
        """The endpoints of the new voter that has a listener at this address."""


class ByGrpc:
    """Controllers over gRPC, which say more."""

    def __init__(self, cluster: ClusterClient, options: ClientOptions) -> None:
        self._cluster = cluster
        self._options = options

    def quorum(self) -> DescribeQuorumResponse:
        return self._cluster.quorum()

    def add(self, request: AddRaftVoterRequest) -> None:
        self._cluster.call(lambda client: add_raft_voter(client, request))

    def remove(self, request: RemoveRaftVoterRequest) -> None:
        self._cluster.call(lambda client: remove_raft_voter(client, request))

    def listeners_at(self, address: Address, node_id: int) -> tuple[VoterEndpoint, ...]:
        """The endpoints that the node itself reports, that of gRPC at this address. Raises ApiError if no
        node answers, or one that can never observe this quorum."""
        asked = describe_nodes(
            (address,), timeout_ms=self._options.timeout_ms, tls=self._options.tls.material()
        )
        (answer,) = asyncio.run(asked)
        if answer.report is None:
            text = f"{address[0]}:{address[1]} does not answer: {answer.problem}: correct --endpoint"
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
        status = answer.report.status
        if status.node_id == node_id and status.votes_by_configuration:
            raise runs_with_static_voters(node_id, f"{address[0]}:{address[1]}")
        if not status.endpoints:
            text = (
                f"{address[0]}:{address[1]} advertises no listener of its own: set advertised.listeners there"
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        return tuple(
            VoterEndpoint(each.name, *address) if each.name.upper().startswith(GRPC_LISTENER) else each
            for each in status.endpoints
        )


class ByKafka:
    """Controllers over Kafka's protocol, ours or Apache Kafka's."""

    def __init__(self, cluster: OpenCluster) -> None:
        self._cluster = cluster

    def quorum(self) -> DescribeQuorumResponse:
        return self._cluster.call(describe_voters)

    def add(self, request: AddRaftVoterRequest) -> None:
        self._cluster.call(lambda client: add_voter(client, request))

    def remove(self, request: RemoveRaftVoterRequest) -> None:
        self._cluster.call(lambda client: remove_voter(client, request))

    def listeners_at(self, address: Address, node_id: int) -> tuple[VoterEndpoint, ...]:
        name = listener_name(self.quorum())
        if not name:
            text = "no voter names its listener: the quorum must be at kraft.version 1"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
        return (VoterEndpoint(name, *address),)


class VoterChanger:
    """Plans and performs on one cluster. `say` gets lines of progress."""

    def __init__(self, cluster: ChangesVoters, ordered: Ordered, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._ordered = ordered
        self._say = say
        self._deadline = time.monotonic() + ordered.wait_s
        self._said_s = 0.0
        self._new_endpoints: tuple[VoterEndpoint, ...] = ()
        self._fetched_ms: int | None = None

    def plan(self) -> VoterPlan:
        """The steps. Retries a refusal that only says that a node is silent, within
        `patience_s`. Raises ApiError."""
        endpoint = self._ordered.endpoint
        if endpoint is not None and self._ordered.wish.add_id is not None:
            self._new_endpoints = self._cluster.listeners_at(endpoint, self._ordered.wish.add_id)
        patience = min(time.monotonic() + self._ordered.patience_s, self._deadline)
        while True:
            try:
                quorum = self._quorum()
                found = make_plan(quorum, self._ordered.wish)
                settled = self._is_registered(found) and self._is_certain(quorum, found)
                if settled or time.monotonic() >= patience:
                    return found
            except ApiError as error:
                if error.code not in _WHEN_HEARD or time.monotonic() >= patience:
                    raise
            time.sleep(POLL_S)

    def _is_registered(self, plan: VoterPlan) -> bool:
        """False for a new voter whose endpoint is unknown: it may have started just now."""
        return plan.newcomer is None or bool(plan.endpoints) or bool(self._new_endpoints)

    def _is_certain(self, quorum: DescribeQuorumResponse, plan: VoterPlan) -> bool:
        """False for a voter that the leader considers alive and that has not fetched since the first look:
        the leader notices a failure only after a while."""
        wish = self._ordered.wish
        if plan.steps or wish.add_id is None or wish.add_id != wish.remove_id:
            return True
        fetched_ms = next((one.last_fetch_ms for one in quorum.voters if one.node_id == wish.add_id), None)
        if fetched_ms is None:  # the leader itself
            return True
        if self._fetched_ms is None:
            self._fetched_ms = fetched_ms
        return fetched_ms != self._fetched_ms

    def perform(self, plan: VoterPlan) -> None:
        """Performs every step. Raises ApiError if one is refused, Failure at the timeout."""
        # Before the old voter is removed: else, if the new one did not answer, a voter would be missing.
        new = None if plan.newcomer is None else self._answering_voter(plan.newcomer, plan.endpoints)
        for step in plan.steps:
            self._take(step, new)

    # ---- one step

    def _take(self, step: VoterStep, new: AddRaftVoterRequest | None) -> None:
        problem = "the leader has not answered"
        patience: float | None = None
        while True:
            try:
                quorum = self._quorum()
                if is_done(quorum, step):
                    self._say_done(step)
                    return
                if problem_now := self._not_ready(quorum, step):
                    problem = problem_now
                else:
                    if not self._ordered.wish.force:
                        check_step(quorum, step)
                    self._change(quorum, step, new)
                    continue
            except ApiError as error:
                problem = one_line(error)
                if error.code is ErrorCode.POLICY_VIOLATION:
                    patience = patience or time.monotonic() + self._ordered.patience_s
                    if time.monotonic() > patience:
                        raise
                elif error.code not in _LATER:
                    raise
            if time.monotonic() >= self._deadline:
                raise Failure(
                    f"waited {self._ordered.wait_s:g} s to {step.kind.value} voter {step.member.node_id}:"
                    f" {problem}; run the command again to continue"
                )
            time.sleep(POLL_S)

    def _not_ready(self, quorum: DescribeQuorumResponse, step: VoterStep) -> str:
        """Why the step has to wait; empty: it does not."""
        if quorum.open_change is not None:
            return f"the voter change at offset {quorum.open_change} is not committed"
        if step.wait_for is None:
            return ""
        lag = lag_of(quorum, step.wait_for)
        if lag is None:
            return f"node {step.wait_for} does not fetch from the leader"
        if lag <= quorum.new_voter_lag_max:
            return ""
        text = f"node {step.wait_for.node_id} is catching up: {lag} records behind"
        if time.monotonic() - self._said_s >= SAY_EVERY_S:
            self._said_s = time.monotonic()
            self._say(text)
        return text

    def _change(
        self, quorum: DescribeQuorumResponse, step: VoterStep, new: AddRaftVoterRequest | None
    ) -> None:
        """Sends the step to the leader. An answer that the change was already made is as good as success: the
        quorum is read again in any case."""
        try:
            if step.kind is StepKind.ADD and new is not None:
                self._cluster.add(new)
                return
            request = RemoveRaftVoterRequest(
                cluster_id=quorum.cluster_id,
                voter_id=step.member.node_id,
                voter_directory_id=step.member.directory_id,
                timeout_ms=CHANGE_TIMEOUT_MS,
            )
            self._cluster.remove(request)
        except Failure as error:
            # No answer: the leader may have failed meanwhile.
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, one_line(error)) from error
        except ApiError as error:
            if error.code not in _UNLESS_DONE or not is_done(self._quorum(), step):
                raise

    def _say_done(self, step: VoterStep) -> None:
        done = "is a voter" if step.kind is StepKind.ADD else "is no longer a voter"
        self._say(f"node {step.member} {done}")

    # ---- the new voter

    def _answering_voter(self, member: Member, endpoints: tuple[VoterEndpoint, ...]) -> AddRaftVoterRequest:
        """The new voter, after the leader has asked for its identity. A node that just started may
        still be registered with its old endpoint, so the request is sent again to the newly
        registered one. Raises ApiError."""
        patience = min(time.monotonic() + self._ordered.patience_s, self._deadline)
        while True:
            new = self._new_voter(member, endpoints)
            asked = replace(new, validate_only=True)
            try:
                self._cluster.add(asked)
                return new
            except ApiError as error:
                if error.code not in _LATER or time.monotonic() >= patience:
                    raise
            time.sleep(POLL_S)
            endpoints = self._registered(member) or endpoints

    def _registered(self, member: Member) -> tuple[VoterEndpoint, ...]:
        """The endpoints that an observer registered; empty if the leader does not know them."""
        try:
            observers = self._quorum().observers
        except ApiError:
            return ()
        return next((one.endpoints for one in observers if member.is_replica(one)), ())

    def _new_voter(self, member: Member, endpoints: tuple[VoterEndpoint, ...]) -> AddRaftVoterRequest:
        endpoints = self._new_endpoints or endpoints
        if not endpoints:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"node {member.node_id} has not registered a controller listener: if it is a controller,"
                " give --endpoint HOST:PORT",
            )
        return AddRaftVoterRequest(
            voter=Voter(member.node_id, member.directory_id, endpoints),
            cluster_id=self._quorum().cluster_id,
            timeout_ms=CHANGE_TIMEOUT_MS,
        )

    def _quorum(self) -> DescribeQuorumResponse:
        try:
            return self._cluster.quorum()
        except Failure as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, one_line(error)) from error
