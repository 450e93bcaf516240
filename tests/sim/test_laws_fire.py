"""Each law of the simulator that looks across nodes detects the state that breaks it.

A calm cluster is brought to rest; then one thing is changed directly.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.common import RemoveRaftVoterRequest
from metaquorum.raft.roles import Leader, PendingChange
from metaquorum.raft.voters import VoterChange
from tests.sim.errors import LivenessError, SafetyError
from tests.sim.older_copies import OlderCopyWorld
from tests.sim.processes import ControllerProcess
from tests.sim.profile import calm_profile
from tests.sim.test_scenarios import Story
from tests.sim.voters import world as voters_world
from tests.sim.voters.plan import VoterPlan
from tests.sim.voters.world import Backup, VoterWorld
from tests.sim.world import FORGETFUL

STILL = VoterPlan(
    voters=3,
    spares=1,
    formatted=True,
    operator_pause_ms=(10**7, 10**7),
    upgrade=False,
    remove=False,
    remove_leader=False,
    empty_rate=0.0,
    rename_rate=0.0,
    rollback_rate=0.0,
    lag_max=20,
)


@pytest.fixture(scope="module")
def story() -> Story:
    """Three controllers and two brokers at rest; each test restores what it changes."""
    made = Story(7)
    made.until(made.world._same_offsets)
    return made


def still_voters() -> VoterWorld:
    world = VoterWorld(9, profile=calm_profile(controllers=4, brokers=1), plan=STILL)
    for node_id in world.directory.hosts:
        world.boot(node_id)
    world.operator.running = False
    assert world.engine.run_until(world._is_well, 30_000, world._after_event), world._what_is_unwell()
    return world


@pytest.fixture
def voters() -> VoterWorld:
    return still_voters()


def leader_of(world: VoterWorld) -> ControllerProcess:
    (leader,) = [process for process in world.controllers() if process.core.is_leader]
    return leader


# ---- one committed log ----------------------------------------------------------------------------


def test_what_is_called_committed_is_durable_on_a_majority(story: Story) -> None:
    checks, leader = story.world.checks, story.active()
    own = (leader.node_id, leader.core.state.identity.directory_id)
    kept = dict(checks._durable_ends)

    def look(ends: dict[tuple[int, bytes], int]) -> None:
        checks._durable_ends, checks._durable_to = dict(ends), {}
        checks._check_durable_on_a_majority(leader)

    look(kept)
    one_more = next(key for key in kept if key != own)
    look({one_more: kept[one_more]})
    for ends in ({}, {one_more: leader.core.high_watermark - 1}, {(99, b"x" * 16): kept[one_more]}):
        with pytest.raises(SafetyError, match="and no majority of"):
            look(ends)
    checks._durable_ends, checks._durable_to = kept, {}
    checks.disks_keep = False
    look({})
    checks.disks_keep = True
    checks._durable_ends = kept


def test_one_committed_log(story: Story) -> None:
    checks, leader = story.world.checks, story.active()
    seen = dict(checks._committed)
    for base, (end, data) in (min(seen.items()), max(seen.items())):
        checks._checked_to = {}
        checks._check_committed_bytes(leader)
        checks._committed[base] = (end, data[:-1] + b"?")
        checks._checked_to = {}
        with pytest.raises(SafetyError, match=f"committed another batch at offset {base} "):
            checks._check_committed_bytes(leader)
        checks._committed = dict(seen)
    inside = next(base for base, (end, _) in seen.items() if end > base + 1)
    checks._checked_to = {(leader.node_id, leader.host.boot): inside + 1}
    with pytest.raises(SafetyError, match="lies inside the batch"):
        checks._check_committed_bytes(leader)
    checks._checked_to = {}


def test_equal_offset_equal_image(story: Story) -> None:
    checks, leader = story.world.checks, story.active()
    image = leader.node.ledger.committed.image
    other = MetadataImage().with_provenance(image.provenance)
    checks._seen.clear()
    checks._images[image.provenance.offset] = other
    with pytest.raises(SafetyError, match="reached another image at offset"):
        checks._check_image(image, leader)
    checks._images[image.provenance.offset] = image
    checks._seen.clear()
    checks._check_image(image, leader)


def test_no_epoch_of_a_broker_is_given_out_twice(story: Story) -> None:
    checks, broker = story.world.checks, story.broker(story.world.broker_ids[0])
    epoch, incarnation = checks._epochs[broker.node_id]
    checks._check_broker(broker)
    for before in ((epoch + 1, incarnation), (epoch, b"another incarnat")):
        checks._epochs[broker.node_id] = before
        with pytest.raises(SafetyError, match=f"and epoch {before[0]} was given out"):
            checks._check_broker(broker)
    checks._epochs[broker.node_id] = (epoch, incarnation)


def test_no_service_without_a_lease(story: Story) -> None:
    broker = story.broker(story.world.broker_ids[0])
    broker.fences_itself = True
    with pytest.raises(SafetyError, match="serves without a lease"):
        broker.serves_without_lease()


def test_everyone_comes_to_one_image(story: Story) -> None:
    checks, world = story.world.checks, story.world
    checks.at_end(world.controllers(), world.brokers(), {}, {})
    state = SimpleNamespace(committed=SimpleNamespace(image=MetadataImage()))
    other = SimpleNamespace(node_id=99, node=SimpleNamespace(ledger=state))
    with pytest.raises(SafetyError, match="after healing node 99 has another image"):
        checks.at_end([*world.controllers(), cast(ControllerProcess, other)], [], {}, {})


# ---- voters that come and go ----------------------------------------------------------------------


def open_change(world: VoterWorld) -> None:
    core = leader_of(world).core
    core.state.voter_history.note_all([VoterChange(offset=core.log_end_offset, voters=core.voters)])


def unanswered(world: VoterWorld) -> None:
    role = leader_of(world).core.state.role
    assert isinstance(role, Leader)
    role.view.change = PendingChange(key=1, epoch=1, offset=10**6, deadline_ms=10**9)


def still_asking(world: VoterWorld) -> None:
    world.operator._waiting = True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (open_change, "are neither committed nor undone on"),
        (unanswered, "whoever asked for a change was not answered"),
        (still_asking, "the operator waits for an answer"),
    ],
)
def test_every_open_change_ends(voters: VoterWorld, change: Callable[[VoterWorld], None], words: str) -> None:
    assert voters._what_is_unwell() == ""
    change(voters)
    assert words in voters._what_is_unwell()


def test_a_sound_directory_is_never_accused(voters: VoterWorld) -> None:
    node_id = voters.controller_ids[0]
    reason = f"its directory {FORGETFUL}"
    assert not voters.may_fail(node_id, reason)
    host = voters.directory[node_id]
    voters.rolled_back[node_id] = Backup(voters.directory_ids[node_id], host.disk, 1)
    assert voters.may_fail(node_id, reason)
    voters.rolled_back[node_id] = Backup(b"another" * 2 + b"..", host.disk, 1)
    assert not voters.may_fail(node_id, reason)


def test_a_cluster_that_cannot_be_repaired_is_not_well(
    voters: VoterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    voters._repair()
    monkeypatch.setattr(voters_world, "LIVENESS_MS", 900)
    nobody = RemoveRaftVoterRequest(voter_id=99, voter_directory_id=b"n" * 16, timeout_ms=1_000)
    monkeypatch.setattr(voters.operator, "repair", lambda leader: nobody)
    with pytest.raises(LivenessError, match="cannot repair the voters"):
        voters._repair()


# ---- older copies ---------------------------------------------------------------------------------


def test_a_node_keeps_what_it_knew_to_be_committed() -> None:
    world = OlderCopyWorld(3_000, profile=calm_profile())
    world.faults_on = False
    for node_id in world.directory.hosts:
        world.boot(node_id)
    assert world.engine.run_until(world._is_well, 30_000, world._after_event), world._what_is_unwell()
    process = world.controllers()[0]
    world._keeps_what_it_noted(process)
    world._noted[process.node_id] = process.core.log_end_offset + 1
    with pytest.raises(SafetyError, match="knew everything below"):
        world._keeps_what_it_noted(process)
    world._noted.pop(process.node_id)
    world.lost_from, world._was_known = 1, world._somebody_knows(1)
    assert world._is_well(), "the leader has all that was committed"
    world._committed = {0: (1, b"another batch")}
    assert not world._is_well() and "no node that knows of it says so" in world._what_is_unwell()
    world.said.append("node 0: records are lost")
    assert world._is_well()
    world.lost_from = None
    assert not world._is_well() and "nothing was lost, and" in world._what_is_unwell()
