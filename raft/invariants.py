"""Every law of Raft that this implementation relies on, in one place.

`check_core` holds for one replica at any moment (the core calls it after every input), `check_step` between
two moments of one replica, `check_cluster` across replicas (for tests and the simulator, which see all of
them). All raise RaftInvariantError and also run under `python -O`. Sources: Raft paper figure 3; KIP-595;
KIP-630; KIP-853.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec

from metaquorum.raft.errors import RaftInvariantError
from metaquorum.raft.roles import Candidate, Follower, Leader, Prospective, Resigned
from metaquorum.raft.state import RaftState
from metaquorum.raft.voters import VoterSet
from metaquorum.storage.types import LogPosition


class Replica(Protocol):
    """What the laws read of a core. `sound_voters`: the voter sets in the log that were checked before."""

    state: RaftState
    sound_voters: tuple[tuple[int, VoterSet], ...]


def _require(holds: bool, law: str, core: Replica) -> None:
    if not holds:
        raise _broken(law, core)


def _broken(law: str, core: Replica) -> RaftInvariantError:
    state = core.state
    return RaftInvariantError(
        f"node {state.node_id} ({state.role.role}, epoch {state.epoch}, log {state.log.start_offset}.."
        f"{state.log.end_offset}, synced {state.log.synced_offset}, high watermark "
        f"{state.log.high_watermark}): {law}"
    )


def check_core(core: Replica) -> None:
    """The state of one replica is well formed. Runs after every input, so it makes few calls while all is
    well."""
    state = core.state
    _check_log(core)
    entries = state.voter_history.entries
    if entries is not core.sound_voters:
        _check_changes(core)
        core.sound_voters = entries
    match state.role:
        case Leader() as leader:
            _check_leader(core, leader)
        case Follower(leader_id=leader_id):
            if leader_id == state.node_id:
                raise _broken("no node follows itself", core)
            if state.known_leader_id != leader_id:
                raise _broken("a follower's leader is the one on record", core)
        case Candidate():
            _require(state.may_stand, "an observer never stands for election", core)
            _require(_voted_for_itself(core), "a candidate voted for itself", core)
            _require(state.known_leader_id is None, "a candidate's epoch has no leader that it knows", core)
        case Prospective():
            _require(state.may_stand, "an observer never stands for election", core)
        case Resigned():
            _require(
                state.known_leader_id == state.node_id, "only the leader of an epoch resigns from it", core
            )
        case _:
            pass


def _check_log(core: Replica) -> None:
    state, log = core.state, core.state.log
    start, end, high_watermark = log.start_offset, log.end_offset, log.high_watermark
    if not 0 <= start <= end:
        raise _broken("a log starts at or before its end", core)
    if not start <= log.synced_offset <= end:
        raise _broken("only what is in the log is synced", core)
    if high_watermark > end:
        raise _broken("only what is in the log is known to be committed", core)
    if high_watermark < start != 0:
        raise _broken("what is missing at the start of the log was committed", core)
    if log.epochs.last_epoch > state.epoch:
        raise _broken("no record is of an epoch that has not begun", core)


def _check_changes(core: Replica) -> None:
    """Each voter set in a log differs from the previous one by one voter, except in a salvaged log."""
    history, epochs = core.state.voter_history, core.state.log.epochs
    for (_, before), (offset, after) in pairwise(history.entries):
        if not (before.majorities_meet(after) or history.is_salvaged(offset, epochs)):
            raise _broken(f"voters change one at a time, not {before} to {after}", core)


def _voted_for_itself(core: Replica) -> bool:
    vote = core.state.vote
    return vote is not None and vote.node_id == core.state.node_id


def _check_leader(core: Replica, leader: Leader) -> None:
    state, log = core.state, core.state.log
    if not _voted_for_itself(core):
        raise _broken("a leader voted for itself", core)
    if state.known_leader_id != state.node_id:
        raise _broken("a leader knows itself as the leader", core)
    begin, high_watermark = leader.epoch_start_offset, log.high_watermark
    if begin >= log.end_offset:
        raise _broken("a leader's epoch begins with a record", core)
    if log.epochs.last_epoch != state.epoch:
        raise _broken("a leader's last record is of its epoch", core)
    if log.epochs.entries[-1] != (state.epoch, begin) and log.start_offset <= begin:
        raise _broken("a leader's first record is where its epoch begins", core)
    newest = state.voter_history.newest_offset
    if state.is_observer and (newest is None or newest < high_watermark):
        raise _broken("an observer never leads, but until its removal as a voter is committed", core)
    if high_watermark > begin:
        uncommitted = [offset for offset, _ in state.voter_history.entries if offset >= high_watermark]
        if len(uncommitted) > 1:
            raise _broken("one voter change at a time is not committed", core)
    counted = leader.view.voters
    if list(counted) != state.other_voters:
        raise _broken("a leader counts the voters in force", core)
    for voter in state.voters.nodes:
        one = counted.get(voter.node_id)
        if one is not None and voter.directory_id not in (None, one.directory_id):
            raise _broken("a voter is counted by its directory", core)


class CoreSnapshot(msgspec.Struct, frozen=True):
    """The state of one replica that `check_step` compares."""

    epoch: int
    voted_id: int | None
    known_leader_id: int | None
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    was_leader: bool

    @staticmethod
    def of(core: Replica) -> CoreSnapshot:
        state = core.state
        return CoreSnapshot(
            epoch=state.epoch,
            voted_id=None if state.vote is None else state.vote.node_id,
            known_leader_id=state.known_leader_id,
            high_watermark=state.log.high_watermark,
            log_start_offset=state.log.start_offset,
            log_end_offset=state.log.end_offset,
            was_leader=isinstance(state.role, Leader),
        )


def check_step(before: CoreSnapshot, core: Replica) -> None:
    """From one moment to a later one, without a restart in between, no promise is taken back."""
    after = CoreSnapshot.of(core)
    _require(after.epoch >= before.epoch, f"the epoch never falls (it was {before.epoch})", core)
    _require(
        after.high_watermark >= before.high_watermark,
        f"the high watermark never falls (it was {before.high_watermark})",
        core,
    )
    _require(after.log_start_offset >= before.log_start_offset, "the log's start never falls", core)
    if after.epoch == before.epoch:
        _require(
            before.voted_id in (None, after.voted_id),
            f"one vote in an epoch, never taken back (it was for {before.voted_id})",
            core,
        )
        _require(
            before.known_leader_id in (None, after.known_leader_id),
            f"one leader in an epoch (it was {before.known_leader_id})",
            core,
        )
        if before.was_leader:
            _require(after.log_end_offset >= before.log_end_offset, "a leader only appends", core)


def check_input(before: CoreSnapshot, core: Replica) -> None:
    """`check_step` over exactly one input. Over several, a late repeated fetch may have lowered what a
    voter had acknowledged when the commit was counted."""
    check_step(before, core)
    after = CoreSnapshot.of(core)
    leads_on = before.was_leader and after.was_leader and after.epoch == before.epoch
    if leads_on and after.high_watermark > before.high_watermark:
        _check_counted(core)


def _check_counted(core: Replica) -> None:
    """More than half of the voters in force hold what a leader has just committed."""
    state = core.state
    view = state.leader_view()
    ends = {one.node_id: one.acked_offset or 0 for one in view.voters.values()}
    ends[state.node_id] = state.log.synced_offset
    holders = [node_id for node_id in state.voters if ends[node_id] >= state.log.high_watermark]
    _require(
        2 * len(holders) > len(state.voters),
        f"a commit counts a majority of the voters in force, and {holders} are none of {state.voters}",
        core,
    )


@dataclass(slots=True)
class ClusterHistory:
    """What `check_cluster` remembers between calls: the leader of every epoch, and the epochs of the
    committed log (`committed` maps an offset to the epoch of its record, as far as any call has seen it)."""

    leaders: dict[int, int] = field(default_factory=dict)
    epoch_starts: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    committed_end: int = 0
    voters: dict[int, VoterSet] = field(default_factory=dict)
    """Committed voter sets by the offset of their record."""
    compared: dict[int, tuple[Replica, int]] = field(default_factory=dict)
    """By node: its core, and how far that core's committed log has been compared. Committed records never
    change (`check_step` verifies that), so they are compared once."""


def check_cluster(cores: Iterable[Replica], history: ClusterHistory) -> None:
    """Across replicas: one leader per epoch (election safety), equal logs where they share an epoch (log
    matching), and one committed log that no replica contradicts and every new leader holds."""
    for core in cores:
        _check_leader_of_epoch(core, history)
        _check_epoch_starts(core, history)
        _check_committed(core, history)
        _check_committed_voters(core, history)


def _check_leader_of_epoch(core: Replica, history: ClusterHistory) -> None:
    state = core.state
    if isinstance(state.role, Leader):
        leader = history.leaders.setdefault(state.epoch, state.node_id)
        _require(leader == state.node_id, f"epoch {state.epoch} has one leader: node {leader}", core)
        end = history.committed_end
        _require(
            state.log.end_offset >= end or state.epoch < max(history.leaders),
            "a leader holds all that is committed",
            core,
        )
    if state.known_leader_id is not None:
        leader = history.leaders.setdefault(state.epoch, state.known_leader_id)
        _require(leader == state.known_leader_id, f"epoch {state.epoch} has one leader: node {leader}", core)


def _check_epoch_starts(core: Replica, history: ClusterHistory) -> None:
    """One leader writes an epoch's records in one run, so they begin at the same offset everywhere."""
    log = core.state.log
    for epoch, start in log.epochs.entries:
        if start > log.start_offset or start == 0:
            known = history.epoch_starts.setdefault(epoch, start)
            _require(known == start, f"epoch {epoch} begins at {known} everywhere, not at {start}", core)


def _check_committed(core: Replica, history: ClusterHistory) -> None:
    log = core.state.log
    known_core, compared = history.compared.get(core.state.node_id, (core, 0))
    start = max(log.start_offset, compared if known_core is core else 0)
    history.compared[core.state.node_id] = (core, max(start, log.high_watermark))
    for offset in range(start, log.high_watermark):
        epoch = log.epochs.epoch_at(offset)
        if epoch is None:
            continue
        known = history.committed.setdefault(offset, epoch)
        _require(known == epoch, f"offset {offset} was committed with epoch {known}, not {epoch}", core)
    history.committed_end = max(history.committed_end, log.high_watermark)


def _check_committed_voters(core: Replica, history: ClusterHistory) -> None:
    """Committed voter sets are at the same offsets in every log, and each differs from the previous by one
    voter."""
    log = core.state.log
    for offset, voters in core.state.voter_history.entries:
        if offset >= log.high_watermark:
            continue
        known = history.voters.get(offset)
        if known is not None:
            if known is not voters and known != voters:
                raise _broken(f"the voters at offset {offset} are committed as {known}, not {voters}", core)
            continue
        history.voters[offset] = voters
        for before, after in pairwise(history.voters[at] for at in sorted(history.voters)):
            if not before.majorities_meet(after):
                raise _broken(f"voters change one at a time, not {before} to {after}", core)


def check_snapshot(position: LogPosition, history: ClusterHistory) -> None:
    """A snapshot ends right after a committed record of its epoch."""
    committed_epoch = history.committed.get(position.offset - 1)
    if position.offset > history.committed_end or committed_epoch not in (None, position.epoch):
        raise RaftInvariantError(
            f"snapshot {position} is not a prefix of the committed log "
            f"(end {history.committed_end}, epoch there {committed_epoch})"
        )
