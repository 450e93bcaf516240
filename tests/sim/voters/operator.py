"""The operator of a quorum: adds, removes and replaces voters, upgrades kraft.version, one step at a time.

Requests no change after which no majority could commit it: the commands of the program check this before they
send one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    Done,
    RemoveRaftVoterRequest,
    UpgradeKRaftVersionRequest,
)
from metaquorum.raft.voters import VoterSet
from tests.sim.voters.nodes import as_record, as_voter

if TYPE_CHECKING:
    from tests.sim.voters.world import VoterWorld

VoterChangeRequest = AddRaftVoterRequest | RemoveRaftVoterRequest | UpgradeKRaftVersionRequest

CHANGE_TIMEOUT_MS = 1_000
CALL_TIMEOUT_MS = 1_500
ARRIVES_WITHIN_MS = 600
"""A request that was sent this long ago has arrived, or never will."""


class SeenLeader(NamedTuple):
    """What an operator sees of the node that leads. `epoch_at`: the epoch of a record in its log."""

    node_id: int
    epoch: int
    voters: VoterSet
    kraft_version: int
    epoch_at: Callable[[int], int | None]


class VoterOperator:
    """One thread of changes. `world` knows which voters work; everything else is read from the leader, as a
    command does."""

    def __init__(self, world: VoterWorld) -> None:
        self._world = world
        self._engine = world.engine
        self._waiting = False
        self._sent_us = -ARRIVES_WITHIN_MS * 1_000
        self.running = True

    @property
    def is_quiet(self) -> bool:
        """None of its requests is still on its way to a leader."""
        return not self._waiting and self._engine.now_us - self._sent_us > ARRIVES_WITHIN_MS * 1_000

    def begin(self) -> None:
        if self.running:
            self._engine.after(self._engine.rng.randint(*self._world.plan.operator_pause_ms), self._next)

    def _next(self) -> None:
        if not self.running:
            return
        leader, request = self._world.leader(), None
        if self._world.wants_quiet:
            leader = None
        if leader is not None and leader.kraft_version == 0:
            request = self._upgrade(leader) if self._world.plan.upgrade else None
        elif leader is not None:
            request = self._change(leader)
        if leader is None or request is None:
            self.begin()
        else:
            self.ask(leader.node_id, request, self.begin)

    def ask(self, node_id: int, request: VoterChangeRequest, then: Callable[[], None]) -> None:
        """One request to one controller, and what follows its response, or its loss."""
        self._waiting, self._sent_us = True, self._engine.now_us
        self._engine.trace("admin", f"asks {node_id}: {told(request)}")

        def finish(response: Any, _outright: bool) -> None:
            self._waiting = False
            if isinstance(response, Done):
                if isinstance(request, UpgradeKRaftVersionRequest):
                    self._world.marks.add("kraft.version upgraded")
            elif isinstance(response, ApiError):
                self._world.marks.add(f"change of voters refused: {response.code.name}")
                self._engine.trace("admin", f"is told {response}")
            then()

        def fail(_reason: str) -> None:
            self._waiting = False
            then()

        host = self._world.directory[node_id]
        self._world.calls.client("admin", host, request, CALL_TIMEOUT_MS, finish, fail, once=True)

    # ---- which change ----------------------------------------------------------------------------

    def _change(self, leader: SeenLeader) -> VoterChangeRequest | None:
        rng, plan = self._engine.rng, self._world.plan
        repair = self.repair(leader)
        if repair is not None and rng.random() < 0.7:
            return repair
        if not plan.remove or rng.random() < 0.5:
            return self._add(leader)
        voters = [one for one in leader.voters if plan.remove_leader or one != leader.node_id]
        voters = [one for one in voters if self._world.may_remove(leader, one)]
        return self._remove(leader, rng.choice(voters)) if voters else None

    def repair(self, leader: SeenLeader) -> VoterChangeRequest | None:
        """The next step that replaces a lost directory: first it is removed, then the new one is added. None:
        every voter works."""
        dead = [one for one in leader.voters.nodes if self._world.is_lost(one)]
        for voter in dead:
            request = self._remove(leader, voter.node_id)
            if request is not None:
                return request
        return self._add(leader) if dead or self._world.replaced(leader.voters) else None

    def _add(self, leader: SeenLeader) -> VoterChangeRequest | None:
        world = self._world
        others = [each for each in world.running() if each not in leader.voters]
        replaced = [one for one in others if one in world.replaced(leader.voters)]
        if not others:
            return None
        chosen = self._engine.rng.choice(replaced or others)
        voter = as_record(as_voter(chosen, world.directory_ids[chosen], world.addresses))
        return AddRaftVoterRequest(voter=voter, timeout_ms=CHANGE_TIMEOUT_MS)

    def _remove(self, leader: SeenLeader, node_id: int) -> VoterChangeRequest | None:
        voters = leader.voters
        left = voters.without(node_id)
        well = [one for one in left.nodes if self._world.is_well(one)]
        if 2 * len(well) <= len(left):
            return None  # nothing could be committed after it, this change included
        directory_id = voters[node_id].directory_id or b""
        return RemoveRaftVoterRequest(
            voter_id=node_id, voter_directory_id=directory_id, timeout_ms=CHANGE_TIMEOUT_MS
        )

    def _upgrade(self, leader: SeenLeader) -> VoterChangeRequest:
        voters = VoterSet(
            as_voter(one.node_id, one.directory_id or b"", self._world.addresses)
            for one in leader.voters.nodes
        )
        records = tuple(as_record(one) for one in voters.nodes)
        return UpgradeKRaftVersionRequest(kraft_version=1, voters=records, timeout_ms=CHANGE_TIMEOUT_MS)


def told(request: VoterChangeRequest) -> str:
    """A request in a few words."""
    match request:
        case AddRaftVoterRequest(voter=voter):
            return f"add {voter.voter_id}:{voter.voter_directory_id.hex()[-4:]}"
        case RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory_id):
            return f"remove {voter_id}:{directory_id.hex()[-4:]}"
        case UpgradeKRaftVersionRequest():
            return "upgrade kraft.version"
