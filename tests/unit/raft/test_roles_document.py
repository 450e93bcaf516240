"""The table of roles makes its part of the page, and says how a node may start."""

from __future__ import annotations

import itertools
from itertools import product

import pytest

from metaquorum.raft import roles
from metaquorum.raft.config import RecoveredLog
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.roles import (
    OBSERVER_STARTS,
    OBSERVER_TRANSITIONS,
    VOTER_STARTS,
    VOTER_TRANSITIONS,
    AtStart,
    Role,
    check_start,
    check_transition,
    first_role,
)
from tests.unit.generated import keep_generated
from tests.unit.raft.test_core import make


def test_the_page_is_what_the_table_makes() -> None:
    keep_generated("raft.md", roles.render_document())


@pytest.mark.parametrize(
    ("starts", "table", "roles"),
    [
        (VOTER_STARTS, VOTER_TRANSITIONS, set(Role)),
        (OBSERVER_STARTS, OBSERVER_TRANSITIONS, {Role.UNATTACHED, Role.FOLLOWER}),
    ],
)
def test_every_role_is_reached_from_a_start(
    starts: dict[Role, str], table: dict[tuple[Role, Role], object], roles: set[Role]
) -> None:
    reached = set(starts)
    while more := {target for source, target in table if source in reached} - reached:
        reached |= more
    assert reached == roles


@pytest.mark.parametrize("facts", [*itertools.product([False, True], repeat=4)])
def test_every_node_has_a_first_role_that_its_table_allows(facts: tuple[bool, bool, bool, bool]) -> None:
    at = AtStart(*facts)
    role = first_role(at)
    check_start(role, observer=not at.may_stand)
    assert (role is Role.RESIGNED) == (at.led_itself and at.may_stand and not at.is_alone)


@pytest.mark.parametrize(
    ("node_id", "voters", "leader_id", "role"),
    [
        (1, 3, None, "unattached"),
        (1, 3, 1, "resigned"),
        (1, 3, 2, "follower"),
        (1, 3, 9, "unattached"),
        (1, 1, 1, "leader"),
        (4, 3, 2, "follower"),
        (4, 3, 4, "unattached"),
    ],
)
def test_the_recorded_leader_decides_the_first_role(
    node_id: int, voters: int, leader_id: int | None, role: str
) -> None:
    """The only voter is elected at once."""
    core = make(node_id, voters, RecoveredLog(epoch=4, leader_id=leader_id))
    core.start(now_ms=0)
    assert core.role == role


@pytest.mark.parametrize("role", [Role.CANDIDATE, Role.LEADER, Role.PROSPECTIVE])
def test_nobody_starts_as_a_candidate_or_leader(role: Role) -> None:
    with pytest.raises(RaftInvariantError, match=f"a voter must not start as {role}"):
        check_start(role, observer=False)


def test_an_observer_does_not_start_as_resigned() -> None:
    check_start(Role.RESIGNED, observer=False)
    with pytest.raises(RaftInvariantError, match="an observer must not start as resigned"):
        check_start(Role.RESIGNED, observer=True)


# The table of role changes: every edge and every non-edge, for each change of epoch.


# Written out a second time, by hand from KIP-996 and docs/raft.md: same epoch (=), higher (+), both (*).
VOTER = {
    "unattached": {"unattached": "*", "prospective": "=", "follower": "*"},
    "prospective": {"unattached": "*", "candidate": "+", "follower": "*"},
    "candidate": {"unattached": "+", "prospective": "=", "leader": "=", "follower": "*"},
    "leader": {"unattached": "+", "follower": "+", "resigned": "="},
    "follower": {"unattached": "+", "prospective": "=", "candidate": "+", "follower": "+"},
    "resigned": {"unattached": "*", "follower": "+"},
}
OBSERVER = {
    "unattached": {"unattached": "*", "follower": "*"},
    "follower": {"unattached": "*", "follower": "+"},
    # A voter that was removed leaves the role that it has (KIP-853).
    "prospective": {"unattached": "*"},
    "candidate": {"unattached": "*"},
    "leader": {"unattached": "+", "follower": "+", "resigned": "="},
    "resigned": {"unattached": "*", "follower": "+"},
}
ALLOWED = {"=": {0}, "+": {1}, "*": {0, 1}}


@pytest.mark.parametrize("observer", [False, True])
@pytest.mark.parametrize("step", [-1, 0, 1])
@pytest.mark.parametrize(("source", "target"), list(product(Role, Role)))
def test_every_pair_of_roles(source: Role, target: Role, step: int, observer: bool) -> None:
    table = OBSERVER if observer else VOTER
    edge = table.get(source.value, {}).get(target.value)
    legal = edge is not None and step in ALLOWED[edge]
    if legal:
        check_transition(source, target, epoch=5, new_epoch=5 + step, observer=observer)
        return
    kind = "an observer" if observer else "a voter"
    with pytest.raises(RaftInvariantError, match=f"{kind} must not go from {source} in epoch 5 to {target}"):
        check_transition(source, target, epoch=5, new_epoch=5 + step, observer=observer)


def test_every_edge_says_why() -> None:
    for _, why in [*VOTER_TRANSITIONS.values(), *OBSERVER_TRANSITIONS.values()]:
        assert len(why) > 15
