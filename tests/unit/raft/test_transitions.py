"""The table of role changes: every edge and every non-edge, for each change of epoch."""

from __future__ import annotations

from itertools import product

import pytest

from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.roles import OBSERVER_TRANSITIONS, VOTER_TRANSITIONS, Role, check_transition

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
