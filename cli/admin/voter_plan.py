"""The steps from the quorum as it is to one with other voters, and whether each is safe (KIP-853).

Pure: from what the leader describes to a plan, or to a refusal with Kafka's error code. No step may leave a
voter set without a live majority: it could commit nothing, not even the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import VoterEndpoint
from metaquorum.metadata.requests.common import DescribeQuorumResponse, ReplicaStatus
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
