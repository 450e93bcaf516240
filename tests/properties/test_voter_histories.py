"""Random histories of voters that are added, removed, moved and replaced, among crashes, truncations and lost
messages.

One to four voters at first, six nodes, kraft.version 1 by formatting or by upgrade. The world checks the laws
after every step: one leader per epoch, one committed log, one pending change, sets that differ by one voter,
commits on the disks of a majority of the voters in force. Then all faults end: a record is committed
everywhere, and every pending change is committed or undone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.raft import messages as ms
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.roles import Leader
from metaquorum.raft.voters import VoterNode, VoterSet
from tests.properties.test_raft_schedules import Chaos, heal, one_due
from tests.raft.world import ADMIN, BOOTSTRAP, CLUSTER_ID, Message, World, directory

CONFIG = RaftConfig(
    snapshot_chunk_bytes=40,
    fetch_max_bytes=400,
    new_voter_lag_max=6,
    bootstrap_ids=tuple(BOOTSTRAP - i for i in range(1, 7)),
)
NODES = 6


class Membership(Chaos):
    """Chaos that also requests voter changes, empties disks and renames hosts."""

    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.steps |= {"add": 4, "remove": 3, "upgrade": 1, "rename": 1, "empty": 1, "cut": 1, "mend": 2}
        self.steps["calm"] = 3
        self.last_directory = 100

    def calm(self) -> None:
        """Some time in which nothing is lost: without it hardly anything is ever committed."""
        for _ in range(self.rng.randint(1, 150)):
            if not one_due(self.world):
                self.world.now += 10
                for node in self.world.live:
                    self.world.input(node.node_id, lambda core: core.tick(now_ms=self.world.now))

    def _ask(self, leader: int, request: ms.RaftRequest) -> None:
        self.world.deliver(Message(ADMIN, leader, -1, request, True))

    def add(self) -> None:
        for leader in self._leaders():
            core = self.world.core(leader)
            others = [i for i in self.world.nodes if i not in core.voters]
            if others:
                voter = self.world.as_voter(self.rng.choice(others))
                request = ms.AddVoterRequest(cluster_id=CLUSTER_ID, voter=voter, timeout_ms=400)
                self._ask(leader, request)
                self._mark(leader, "added")

    def remove(self) -> None:
        for leader in self._leaders():
            voters = self.world.core(leader).voters
            voter = self.rng.choice(voters.nodes)
            left = [one for one in voters.nodes if one != voter]
            if 2 * len([one for one in left if _is_well(self.world, one)]) <= len(left):
                continue  # nothing could be committed after it, this change included
            request = ms.RemoveVoterRequest(
                cluster_id=CLUSTER_ID,
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id or b"",
                timeout_ms=400,
            )
            self._ask(leader, request)
            self._mark(leader, "removed itself" if voter.node_id == leader else "removed")

    def upgrade(self) -> None:
        for leader in self._leaders():
            voters = VoterSet(self.world.as_voter(i) for i in self.world.core(leader).voters)
            request = ms.UpgradeRequest(cluster_id=CLUSTER_ID, kraft_version=1, voters=voters, timeout_ms=400)
            self._ask(leader, request)
            self._mark(leader, "upgraded")

    def _mark(self, leader: int, what: str) -> None:
        role = self.world.core(leader).state.role
        if isinstance(role, Leader) and role.view.change is not None:
            self.world.marks.add(what)

    def rename(self) -> None:
        """Renames a host, if every set that any log knows has a majority without it."""
        node_id = self.rng.choice(list(self.world.nodes))
        if all(self._spares(voters, node_id) for voters in _known_sets(self.world)):
            self.last_directory += 1
            self.world.marks.add("renamed a voter" if self._votes(node_id) else "renamed")
            self.world.rename(node_id, f"host{node_id}-{self.last_directory}")
            self.world.start(node_id)

    def _spares(self, voters: VoterSet, node_id: int) -> bool:
        """Whether a majority works without this one: on its own disk, and at the address in its record."""
        well = [one for one in voters.nodes if one.node_id != node_id and _is_well(self.world, one)]
        return node_id not in voters or 2 * len(well) > len(voters)

    def empty(self) -> None:
        """Empties a disk, if every set that any log knows has a majority without it."""
        node_id = self.rng.choice(list(self.world.nodes))
        if all(self._spares(voters, node_id) for voters in _known_sets(self.world)):
            self.last_directory += 1
            self.world.marks.add("emptied a voter" if self._votes(node_id) else "emptied")
            self.world.replace_disk(node_id, directory(self.last_directory % 256))
            self.world.start(node_id)

    def _votes(self, node_id: int) -> bool:
        own = self.world.nodes[node_id].identity
        return any(voters.is_voter(node_id, own.directory_id) for voters in _known_sets(self.world))

    def cut(self) -> None:
        a, b = self.rng.sample(list(self.world.nodes), 2)
        self.world.cuts |= {(a, b), (b, a)}

    def mend(self) -> None:
        self.world.cuts.clear()

    def crash(self) -> None:
        if len(self.world.live) > NODES // 2:
            self.world.crash(self.rng.choice(self.world.live).node_id)


def _known_sets(world: World) -> Iterable[VoterSet]:
    """Every set that may still count: those of all logs, and the configured one."""
    configured = VoterSet(
        VoterNode(node_id=one.node_id, directory_id=one.directory_id) for one in world.voters
    )
    yield configured
    for node in world.nodes.values():
        for change in node.disk.recovered().voter_changes:
            if change.voters is not None:
                yield change.voters


def _is_well(world: World, voter: VoterNode) -> bool:
    own = world.nodes[voter.node_id].identity
    is_found = voter.endpoints in ((), own.endpoints)
    return is_found and voter.is_replica(voter.node_id, own.directory_id)


def run(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    dynamic = seed % 3 != 0
    first = rng.randint(1, 4)
    world = World(first, NODES - first, seed=seed, pinned=seed % 6 != 0, dynamic=dynamic, config=CONFIG)
    for node_id in world.nodes:
        world.start(node_id)
    chaos = Membership(world, rng)
    for _ in range(steps):
        chaos.step()
    world.cuts.clear()
    heal(world)
    _check_settled(world)
    return world


def _check_settled(world: World) -> None:
    for node in world.live:
        core = node.core
        assert core is not None
        newest = core.state.voter_history.newest_offset
        assert newest is None or newest < core.high_watermark, "every change is committed or undone"
        if isinstance(core.state.role, Leader):
            assert core.state.role.view.change is None, "whoever asked was answered"


@pytest.mark.parametrize("seed", range(5))
def test_long_history(seed: int) -> None:
    world = run(seed, 500)
    assert world.acknowledged > 0


def test_histories_reach_the_rare_states() -> None:
    marks: set[str] = set()
    sizes: set[int] = set()
    for seed in range(100, 105):
        world = run(seed, 500)
        marks |= world.marks
        sizes |= {len(voters) for voters in world.history.voters.values()}
    assert marks >= {"added", "removed", "removed itself", "upgraded", "emptied a voter", "renamed a voter"}
    assert sizes >= {1, 2, 3, 4}


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 300))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_short_history(seed: int, steps: int) -> None:
    run(seed, steps)
