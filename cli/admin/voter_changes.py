"""The steps from the quorum as it is to one with other voters (KIP-853), each until it is committed.

No step may leave a voter set without a live majority: it could commit nothing, not even the next step. Every
step is judged by what the leader describes, so that an interrupted command can be run again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from metaquorum.cli.client import ClientOptions, ClusterClient
from metaquorum.cli.cluster import OpenCluster
from metaquorum.cli.errors import Failure
from metaquorum.clients.admin.cluster import add_voter, describe_voters, listener_name, remove_voter
from metaquorum.clients.quorum.admin import CHANGE_TIMEOUT_MS, add_raft_voter, remove_raft_voter
from metaquorum.clients.quorum.nodes import describe_nodes
from metaquorum.clients.search import Address
from metaquorum.lines import one_line
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import GRPC_LISTENER
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    ReplicaStatus,
    runs_with_static_voters,
)
from metaquorum.storage.uuids import uuid_to_text


class StepKind(Enum):
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Member:
    """One replica: a node with one of its directories. `is_alive`: as the leader sees it."""

    node_id: int
    directory_id: bytes
    is_alive: bool

    def is_replica(self, replica: ReplicaStatus) -> bool:
        """True for the same node with the same directory."""
        return (self.node_id, self.directory_id) == (replica.node_id, replica.directory_id)

    def __str__(self) -> str:
        return f"{self.node_id} (directory {uuid_to_text(self.directory_id)})"


class VoterStep(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one voter. `voters`: the voters in force after it, sorted by id."""

    kind: StepKind
    member: Member
    voters: tuple[Member, ...]
    wait_for: Member | None = None
    """The observer that must catch up before this step."""

    @property
    def needed(self) -> int:
        """The number of `voters` that must have the record before it is committed."""
        return len(self.voters) // 2 + 1

    @property
    def alive_ids(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.voters if member.is_alive)

    @property
    def has_majority(self) -> bool:
        return len(self.alive_ids) >= self.needed


class VoterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in order; if none, `nothing_to_do` says why. `newcomer`: the voter to add. `endpoints`: its
    listeners (empty: unknown)."""

    steps: tuple[VoterStep, ...] = ()
    newcomer: Member | None = None
    endpoints: tuple[VoterEndpoint, ...] = ()
    nothing_to_do: str = ""


class VoterWish(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for. `directory_id`: of the new voter or, if there is none, of the removed one;
    None: looked up. `force`: allow steps without a live majority."""

    add_id: int | None = None
    remove_id: int | None = None
    directory_id: bytes | None = None
    force: bool = False


def make_plan(quorum: DescribeQuorumResponse, wanted: VoterWish) -> VoterPlan:
    """The remaining steps, so that an interrupted command can be run again. Raises ApiError."""
    _check_may_change(quorum)
    match wanted.add_id, wanted.remove_id:
        case int(added), None:
            return _plan_add(quorum, added, wanted)
        case None, int(removed):
            return _plan_remove(quorum, removed, wanted)
        case int(added), int(removed) if added == removed:
            return _plan_new_directory(quorum, removed, wanted)
        case int(added), int(removed):
            return _plan_other_id(quorum, removed, added, wanted)
        case _:
            raise ApiError(ErrorCode.INVALID_REQUEST, "give the id of a voter to add or to remove")


def check_step(quorum: DescribeQuorumResponse, step: VoterStep) -> None:
    """Checks the step again with the nodes that are alive now. Raises ApiError if it
    would leave no live majority."""
    after = _Steps(quorum, force=False)
    if step.kind is StepKind.ADD:
        after.add(step.member)
    else:
        after.remove(step.member)


def is_done(quorum: DescribeQuorumResponse, step: VoterStep) -> bool:
    """True if the change of the step is in force and committed."""
    votes = any(step.member.is_replica(voter) for voter in quorum.voters)
    return votes == (step.kind is StepKind.ADD) and quorum.open_change is None


def lag_of(quorum: DescribeQuorumResponse, member: Member) -> int | None:
    """The number of records by which the observer is behind the leader; None: it does not fetch,
    or no offset matched yet."""
    for observer in quorum.observers:
        if member.is_replica(observer) and observer.is_alive and observer.log_end_offset >= 0:
            return observer.lag
    return None


# ---- one plan for each command -------------------------------------------------------------------


def _plan_add(quorum: DescribeQuorumResponse, node_id: int, wanted: VoterWish) -> VoterPlan:
    voter = _voter(quorum, node_id)
    if voter is not None:
        others = [one for one in quorum.observers if one.node_id == node_id and one.is_alive]
        if wanted.directory_id == voter.directory_id or (wanted.directory_id is None and not others):
            return VoterPlan(nothing_to_do=f"{_named(voter)} is already a voter")
        text = f"{_named(voter)} is already a voter: for another directory run replace-voter {node_id}"
        raise ApiError(ErrorCode.DUPLICATE_VOTER, text)
    return _finished(quorum, wanted, _observer(quorum, node_id, wanted.directory_id))


def _plan_remove(quorum: DescribeQuorumResponse, node_id: int, wanted: VoterWish) -> VoterPlan:
    voter = _voter(quorum, node_id)
    if voter is None and any(one.node_id == node_id for one in quorum.observers):
        return VoterPlan(nothing_to_do=f"node {node_id} only observes, it is not a voter")
    if voter is None or wanted.directory_id not in (None, voter.directory_id):
        raise _not_a_voter(quorum, node_id, wanted.directory_id)
    if len(quorum.voters) == 1:
        text = f"node {node_id} is the last voter: add another one first"
        raise ApiError(ErrorCode.VOTER_NOT_FOUND, text)
    steps = _Steps(quorum, force=wanted.force)
    steps.remove(_member(voter))
    return VoterPlan(steps=tuple(steps.taken))


def _plan_new_directory(quorum: DescribeQuorumResponse, node_id: int, wanted: VoterWish) -> VoterPlan:
    """The same id with another directory. Two voters cannot have one id, so the old one is removed first."""
    voter = _voter(quorum, node_id)
    candidates = [one for one in quorum.observers if one.node_id == node_id and one.is_alive]
    if voter is not None and voter.is_alive and not candidates:
        text = f"{_named(voter)} is a live voter, and none of its other directories is an observer"
        return VoterPlan(nothing_to_do=text)
    if voter is None:
        if not any(one.node_id == node_id for one in quorum.observers):
            raise _not_a_voter(quorum, node_id, None)
        return _finished(quorum, wanted, _observer(quorum, node_id, wanted.directory_id))
    newcomer = _observer(quorum, node_id, wanted.directory_id)
    if voter.is_alive:
        text = f"{_named(voter)} is still running with the directory that is being replaced: stop it first"
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)
    return _finished(quorum, wanted, newcomer, remove_first=_member(voter))


def _plan_other_id(quorum: DescribeQuorumResponse, removed: int, added: int, wanted: VoterWish) -> VoterPlan:
    """Another id. The new voter is added first, so that there are never fewer voters than before."""
    leaves, joins = _voter(quorum, removed), _voter(quorum, added)
    if leaves is None and joins is None:
        raise _not_a_voter(quorum, removed, None)
    if joins is None:
        newcomer = _observer(quorum, added, wanted.directory_id)
        last = _member(leaves) if leaves is not None else None
        return _finished(quorum, wanted, newcomer, remove_last=last)
    if wanted.directory_id not in (None, joins.directory_id):
        text = f"{_named(joins)} is already a voter, with a directory id other than the given one"
        raise ApiError(ErrorCode.DUPLICATE_VOTER, text)
    if leaves is None:
        return VoterPlan(nothing_to_do=f"node {removed} is not a voter, and {_named(joins)} is one")
    steps = _Steps(quorum, force=wanted.force)
    steps.remove(_member(leaves))
    return VoterPlan(steps=tuple(steps.taken))


def _finished(
    quorum: DescribeQuorumResponse,
    wanted: VoterWish,
    newcomer: ReplicaStatus,
    *,
    remove_first: Member | None = None,
    remove_last: Member | None = None,
) -> VoterPlan:
    _check_versions(quorum, newcomer)
    steps, member = _Steps(quorum, force=wanted.force), _member(newcomer)
    if remove_first is not None:
        steps.remove(remove_first, wait_for=member)
    steps.add(member)
    if remove_last is not None:
        steps.remove(remove_last)
    return VoterPlan(steps=tuple(steps.taken), newcomer=member, endpoints=newcomer.endpoints)


class _Steps:
    """Builds steps, each on the voters that the step before leaves."""

    def __init__(self, quorum: DescribeQuorumResponse, *, force: bool) -> None:
        self._voters = {voter.node_id: _member(voter) for voter in quorum.voters}
        self._force = force
        self.taken: list[VoterStep] = []

    def add(self, member: Member) -> None:
        self._voters[member.node_id] = member
        self._take(StepKind.ADD, member, wait_for=member)

    def remove(self, member: Member, wait_for: Member | None = None) -> None:
        self._voters.pop(member.node_id, None)
        self._take(StepKind.REMOVE, member, wait_for)

    def _take(self, kind: StepKind, member: Member, wait_for: Member | None) -> None:
        voters = tuple(self._voters[node_id] for node_id in sorted(self._voters))
        step = VoterStep(kind=kind, member=member, voters=voters, wait_for=wait_for)
        if not step.has_majority and not self._force:
            dead = ", ".join(str(one.node_id) for one in voters if not one.is_alive)
            verb = "adding" if kind is StepKind.ADD else "removing"
            text = (
                f"{verb} node {member.node_id} would leave {len(voters)} voters, of which {step.needed} are"
                f" needed and {len(step.alive_ids)} are alive: start node {dead} first, or give --force"
            )
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        self.taken.append(step)


# ---- replicas ------------------------------------------------------------------------------------


def _check_may_change(quorum: DescribeQuorumResponse) -> None:
    if quorum.kraft_version == 0:
        text = (
            "the voters are configured while kraft.version is 0: run metaquorum features upgrade"
            " kraft.version=1 first"
        )
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    if quorum.open_change is not None:
        text = (
            f"another voter change, at offset {quorum.open_change}, is not committed yet: run the command"
            " again when it is; metaquorum quorum describe shows it"
        )
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)


def _check_versions(quorum: DescribeQuorumResponse, newcomer: ReplicaStatus) -> None:
    """Checks only a node that has registered its versions; the leader asks the node as well."""
    lowest, highest = newcomer.min_kraft_version, newcomer.max_kraft_version
    if newcomer.endpoints and not lowest <= quorum.kraft_version <= highest:
        text = (
            f"node {newcomer.node_id} supports kraft.version {lowest} to {highest}, and this quorum is at"
            f" {quorum.kraft_version}: install a release there that supports it"
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


def _voter(quorum: DescribeQuorumResponse, node_id: int) -> ReplicaStatus | None:
    return next((voter for voter in quorum.voters if voter.node_id == node_id), None)


def _observer(quorum: DescribeQuorumResponse, node_id: int, directory_id: bytes | None) -> ReplicaStatus:
    """The replica of this id that observes now. Raises ApiError."""
    observers = [one for one in quorum.observers if one.node_id == node_id]
    alive = [one for one in observers if one.is_alive]
    if directory_id is None and len(alive) == 1:
        return alive[0]
    if directory_id is None and alive:
        text = f"several directories of node {node_id} observe, {_directories(alive)}: give --directory-id"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    found = next((one for one in alive if one.directory_id == directory_id), None)
    if found is not None:
        return found
    if directory_id is not None and alive:
        text = (
            f"node {node_id} observes with directory {_directories(alive)}, not with"
            f" {uuid_to_text(directory_id)}: correct --directory-id, or leave it out"
        )
        raise ApiError(ErrorCode.INVALID_VOTER_KEY, text)
    problem = "has not fetched from the leader recently" if observers else "does not fetch from the leader"
    text = f"node {node_id} {problem}: start it, formatted with --no-initial-controllers, and try again"
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text)


def _not_a_voter(quorum: DescribeQuorumResponse, node_id: int, directory_id: bytes | None) -> ApiError:
    directory = "" if directory_id is None else f" with directory {uuid_to_text(directory_id)}"
    voters = ", ".join(map(_named, sorted(quorum.voters, key=lambda voter: voter.node_id)))
    text = f"node {node_id}{directory} is not a voter: the voters are {voters}"
    return ApiError(ErrorCode.VOTER_NOT_FOUND, text)


def _member(replica: ReplicaStatus) -> Member:
    return Member(replica.node_id, replica.directory_id, bool(replica.is_alive))


def _named(replica: ReplicaStatus) -> str:
    return f"node {_member(replica)}"


def _directories(replicas: Iterable[ReplicaStatus]) -> str:
    return " and ".join(uuid_to_text(one.directory_id) for one in replicas)


def plan_lines(plan: VoterPlan) -> Iterator[str]:
    """One line per step, or the reason why there is none."""
    if not plan.steps:
        yield f"{plan.nothing_to_do}: nothing to do"
    for number, step in enumerate(plan.steps, start=1):
        yield f"{number}. {step.kind.value} voter {step.member}{_condition(step)}"
        yield f"   then {_majority(step)}"


def _condition(step: VoterStep) -> str:
    if step.wait_for is None:
        return ""
    who = (
        "it" if step.kind is StepKind.ADD else f"its new directory {uuid_to_text(step.wait_for.directory_id)}"
    )
    return f" once {who} has caught up"


def _majority(step: VoterStep) -> str:
    ids = ", ".join(str(member.node_id) for member in step.voters)
    alive = ", ".join(map(str, step.alive_ids)) or "none"
    spare = len(step.alive_ids) - step.needed
    more = "" if spare > 0 else "; no other voter may fail" if spare == 0 else "; NOTHING CAN BE COMMITTED"
    noun = "voter" if len(step.voters) == 1 else "voters"
    return f"{len(step.voters)} {noun} ({ids}), of which {step.needed} are needed; alive: {alive}{more}"


def plan_json(plan: VoterPlan) -> dict[str, Any]:
    """The plan as JSON."""
    return {
        "steps": [
            {
                "step": step.kind.value,
                "nodeId": step.member.node_id,
                "directoryId": uuid_to_text(step.member.directory_id),
                "votersAfter": [member.node_id for member in step.voters],
                "needed": step.needed,
                "alive": list(step.alive_ids),
                "hasMajority": step.has_majority,
            }
            for step in plan.steps
        ],
        "nothingToDo": plan.nothing_to_do or None,
    }


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
