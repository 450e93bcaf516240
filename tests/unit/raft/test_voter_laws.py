"""Each law about voters notices the state that breaks it, and allows what comes next to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from metaquorum import raft
from metaquorum.raft.core import RaftCore
from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.invariants import ClusterHistory, CoreSnapshot, check_cluster, check_core, check_input
from metaquorum.raft.roles import Leader, ReplicaProgress
from metaquorum.raft.voters import VoterChange, VoterNode, VoterSet
from metaquorum.storage.types import LogPosition
from tests.raft.world import directory
from tests.unit.raft.test_core import sole_leader
from tests.unit.raft.test_timers_and_replicas import leading as leading_of_three
from tests.unit.raft.test_voters import voters


def leading(*sets: Sequence[int]) -> RaftCore:
    """The only configured voter leads, its first record is committed, and its log names these sets."""
    core = sole_leader()
    core.on_log_synced(1, now_ms=0)
    core.state.voter_history.note_all(
        VoterChange(offset=1 + number, voters=voters(*ids)) for number, ids in enumerate(sets)
    )
    return core


def view_of(core: RaftCore) -> dict[int, ReplicaProgress]:
    assert isinstance(core.state.role, Leader)
    return core.state.role.view.voters


def test_voters_change_one_at_a_time() -> None:
    with pytest.raises(RaftInvariantError, match=r"voters change one at a time, not {1:.*} to {1:.*, 3:.*}"):
        check_core(leading([1], [1, 2, 3]))


def test_sets_are_compared_when_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every input: a log can name many sets."""
    compared: list[VoterSet] = []
    said: list[VoterNode] = []
    compare = VoterSet.majorities_meet

    def counted(one: VoterSet, other: VoterSet) -> bool:
        compared.append(other)
        return compare(one, other)

    monkeypatch.setattr(VoterSet, "majorities_meet", counted)
    monkeypatch.setattr(VoterNode, "__str__", lambda voter: said.append(voter) or "")
    core = sole_leader()
    core.on_log_synced(1, now_ms=0)
    core.state.log.end_offset = core.state.log.synced_offset = core.state.log.high_watermark = 5
    core.state.voter_history.note_all(VoterChange(offset=at, voters=voters(1)) for at in (1, 2, 3))
    for now_ms in range(10):
        core.tick(now_ms=now_ms)
    assert len(compared) == 2
    core.state.voter_history.note_all([VoterChange(offset=5, voters=voters(1))])
    for now_ms in range(10, 20):
        core.tick(now_ms=now_ms)
    assert len(compared) == 2 + 3 and not said


def test_one_change_is_open_at_a_time() -> None:
    with pytest.raises(RaftInvariantError, match="one voter change at a time is not committed"):
        check_core(leading([1], [1, 2]))


def forget(core: RaftCore) -> None:
    del view_of(core)[2]


def count_a_stranger(core: RaftCore) -> None:
    view_of(core)[7] = ReplicaProgress(node_id=7, directory_id=directory(7))


def count_itself(core: RaftCore) -> None:
    view_of(core)[1] = ReplicaProgress(node_id=1, directory_id=directory(1))


def count_another_directory(core: RaftCore) -> None:
    view_of(core)[2].directory_id = directory(9)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (forget, "a leader counts the voters in force"),
        (count_a_stranger, "a leader counts the voters in force"),
        (count_itself, "a leader counts the voters in force"),
        (count_another_directory, "a voter is counted by its directory"),
    ],
)
def test_a_leader_counts_the_voters_in_force_by_their_directories(
    change: Callable[[RaftCore], None], law: str
) -> None:
    _, core = leading_of_three()
    check_core(core)
    change(core)
    with pytest.raises(RaftInvariantError, match=law):
        check_core(core)


def test_a_leader_whose_removal_is_committed_leads_no_more() -> None:
    core = leading([2])
    view_of(core)[2] = ReplicaProgress(node_id=2, directory_id=voters(2)[2].directory_id or b"")
    check_core(core)
    core.state.log.end_offset = core.state.log.synced_offset = core.state.log.high_watermark = 2
    with pytest.raises(RaftInvariantError, match="an observer never leads"):
        check_core(core)


def test_a_commit_counts_a_majority_of_the_voters_in_force() -> None:
    _, core = leading_of_three()
    before = replace(CoreSnapshot.of(core), high_watermark=core.high_watermark - 1)
    check_input(before, core)
    for node_id, holds in ((2, True), (3, False)):
        view_of(core)[node_id].acked_offset = None
        if holds:
            check_input(before, core)
            continue
        with pytest.raises(RaftInvariantError, match=r"a commit counts a majority .* \[1\] are none of"):
            check_input(before, core)
        # Nothing new was committed, or by another leadership.
        check_input(CoreSnapshot.of(core), core)
        check_input(replace(before, was_leader=False), core)
        check_input(replace(before, epoch=before.epoch - 1), core)
    core.state.log.synced_offset = 0
    view_of(core)[2].acked_offset = view_of(core)[3].acked_offset = core.high_watermark
    check_input(before, core)


def committed(core: RaftCore, offset: int, voter_set: VoterSet) -> None:
    core.state.voter_history.note_all([VoterChange(offset=offset, voters=voter_set)])


def test_committed_voters_are_the_same_on_every_node() -> None:
    core = sole_leader()
    committed(core, 0, voters(1))
    history = ClusterHistory()
    check_cluster([core], history)
    assert history.voters == {0: voters(1)}
    check_cluster([core], history)
    with pytest.raises(RaftInvariantError, match="the voters at offset 0 are committed as"):
        check_cluster([core], ClusterHistory(voters={0: voters(2)}))
    core.state.voter_history.truncate(0)
    committed(core, 1, voters(2))
    check_cluster([core], ClusterHistory(voters={1: voters(3)}))  # not committed: it may be undone


@pytest.mark.parametrize(
    ("known", "sound"), [({}, True), ({5: (1, 2)}, True), ({5: (1, 2, 3)}, False), ({5: (2,)}, False)]
)
def test_committed_voters_follow_one_another_by_one(known: dict[int, tuple[int, ...]], sound: bool) -> None:
    """Wherever the set that came in between was seen."""
    core = sole_leader()
    committed(core, 0, voters(1))
    history = ClusterHistory(voters={offset: voters(*ids) for offset, ids in known.items()})
    if sound:
        check_cluster([core], history)
        return
    with pytest.raises(RaftInvariantError, match="voters change one at a time"):
        check_cluster([core], history)


def test_a_snapshot_without_the_voters_that_are_committed_is_a_mistake() -> None:
    core = leading([1])
    core.state.voter_history.note_all([VoterChange(offset=0, kraft_version=1)])
    assert core.voters_at(1).kraft_version == 1 and core.kraft_version == 1
    core.resign(now_ms=0)
    with pytest.raises(raft.RaftUsageError, match="was loaded without the voters"):
        core.on_snapshot_loaded(LogPosition(1, 9), now_ms=0)
