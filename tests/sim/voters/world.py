"""A cluster whose voters change while everything else fails: added, removed, replaced, moved, upgraded.

Adds to `World` an operator that changes the voters, disks that are emptied or rolled back to an older copy,
and hosts that are renamed. A quorum survives all three losses as long as every set of voters that may still
count keeps a majority of directories that have all their data; the faults respect exactly that. After healing
every pending change is committed or undone, and the operator can repair what is left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metaquorum.metadata.image import images_equal
from metaquorum.raft.config import Voter
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.voters import VoterNode, VoterSet
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.errors import LivenessError
from tests.sim.host import Host
from tests.sim.processes import BrokerProcess, ControllerProcess, directory_id, format_host
from tests.sim.profile import FaultProfile
from tests.sim.voters.nodes import (
    PORT,
    Addresses,
    VoterBroker,
    VoterController,
    as_voter,
    write_first_checkpoint,
)
from tests.sim.voters.operator import SeenLeader, VoterOperator
from tests.sim.voters.plan import VoterPlan, draw_faults, draw_plan
from tests.sim.world import FORGETFUL, LIVENESS_MS, STEP_MS, World

REPAIR_PAUSE_MS = 200


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of a controller's disk, and the directory on it."""

    directory_id: bytes
    disk: FaultyDisk
    end_offset: int


class VoterWorld(World):
    """Controllers are `plan.voters` first voters and `plan.spares` observers."""

    def __init__(
        self,
        seed: int,
        on_line: Callable[[str], None] | None = None,
        profile: FaultProfile | None = None,
        plan: VoterPlan | None = None,
    ) -> None:
        self.plan = plan or draw_plan(seed)
        super().__init__(seed, on_line, profile or draw_faults(seed, self.plan))
        self.addresses = Addresses(Host("nowhere", self.engine, self.network, self.profile))
        self.directory_ids = {node_id: directory_id(node_id) for node_id in self.controller_ids}
        self.rolled_back: dict[int, Backup] = {}
        self.lost: set[bytes] = set()
        """Directories that are lost, or that know that they have forgotten something."""
        self._replaced: set[int] = set()
        self._backups: dict[int, Backup] = {}
        self._known_sets: dict[int, list[tuple[int, VoterSet]]] = {}
        self._wanted: list[Callable[[], bool]] = []
        self._drawn_ids = 0
        self._committed_sets = 0
        first = self.controller_ids[: self.plan.voters]
        self.configured = VoterSet(
            () if self.plan.formatted else (VoterNode(node_id=i, directory_id=directory_id(i)) for i in first)
        )
        for node_id, host in self.directory.hosts.items():
            self.addresses.add(node_id, host, f"{host.name}.0")
        self.addresses.bootstrap = {-1 - i: node_id for i, node_id in enumerate(self.controller_ids)}
        for node_id, host in self.directory.hosts.items():
            format_host(host, node_id)
            if self.plan.formatted and node_id in first:
                write_first_checkpoint(host, self._voters_of(first))
        self.operator = VoterOperator(self)
        self.operator.begin()

    def prepare(self, host: Host, node_id: int) -> None:
        """Once it is known where the others listen."""

    def make_process(self, host: Host, node_id: int) -> ControllerProcess | BrokerProcess:
        voters = tuple(
            Voter(
                node_id=one.node_id,
                host=self.addresses.names[one.node_id],
                port=PORT,
                directory_id=one.directory_id,
            )
            for one in self.configured.nodes
        )
        parts = (host, node_id, voters, self.calls, self.directory, self.marks)
        if node_id in self.controller_ids:
            return VoterController(self.addresses, self.plan.lag_max, self._mark_standing, *parts)
        return VoterBroker(self.addresses, self.controller_ids, *parts, self.registrations)

    # ---- who is well -----------------------------------------------------------------------------

    def _voters_of(self, ids: Iterable[int]) -> VoterSet:
        return VoterSet(as_voter(one, self.directory_ids[one], self.addresses) for one in ids)

    def leader(self) -> SeenLeader | None:
        return max(self.leaders(), key=lambda leader: leader.epoch, default=None)

    def leaders(self) -> list[SeenLeader]:
        """All nodes that take themselves for leaders."""
        return [
            SeenLeader(
                process.node_id,
                process.core.epoch,
                process.core.voters,
                process.core.kraft_version,
                process.core.epochs.epoch_at,
            )
            for process in self.controllers()
            if process.core.is_leader
        ]

    def running(self) -> list[int]:
        """The ids of the controllers that run."""
        return [process.node_id for process in self.controllers()]

    def may_remove(self, leader: SeenLeader, node_id: int) -> bool:
        """Whether an operator who needs no other change may remove this voter."""
        return node_id in leader.voters

    def is_well(self, voter: VoterNode) -> bool:
        """Its directory exists and has again what it forgot, and its host is where its entry says."""
        node_id = voter.node_id
        is_found = voter.endpoints in ((), self.addresses.endpoints(node_id))
        own = voter.directory_id == self.directory_ids[node_id] and voter.directory_id not in self.lost
        return is_found and own and not self._lags_behind_itself(node_id)

    def is_lost(self, voter: VoterNode) -> bool:
        """An operator has to replace it."""
        return not self.is_well(voter)

    def _lags_behind_itself(self, node_id: int) -> bool:
        rolled = self.rolled_back.get(node_id)
        if rolled is None or rolled.directory_id != self.directory_ids[node_id]:
            return False
        process = self.directory[node_id].process
        held = process.store.log.synced_offset if process is not None else 0
        return held < rolled.end_offset

    def replaced(self, voters: VoterSet) -> list[int]:
        """Nodes that voted before their directory was replaced, and do not vote again yet."""
        return [node_id for node_id in sorted(self._replaced) if node_id not in voters]

    def _sets_that_count(self) -> list[VoterSet]:
        """The newest committed set, and all that come after it in any log."""
        committed = self.checks.history.voters
        last = max(committed, default=-2)
        found = [committed[last]] if committed else []
        for node_id in self.controller_ids:
            found += [voters for offset, voters in self._sets_of(node_id) if offset > last]
        return [voters for voters in found if len(voters)]

    def _counts(self, node_id: int) -> bool:
        """Whether one of them names the directory of the node, so that it may hold what others need."""
        directory_id = self.directory_ids[node_id]
        return any(voters.is_voter(node_id, directory_id) for voters in self._sets_that_count())

    def _sets_of(self, node_id: int) -> list[tuple[int, VoterSet]]:
        process = self.directory[node_id].process
        if isinstance(process, VoterController) and process.alive:
            return process.known_sets(self.configured)
        return self._known_sets.get(node_id, [(-1, self.configured)])

    def _spared(self, node_id: int) -> bool:
        """Whether every set that counts has a working majority without this node."""

        def has_majority(voters: VoterSet) -> bool:
            well = [one for one in voters.nodes if one.node_id != node_id and self.is_well(one)]
            return node_id not in voters or 2 * len(well) > len(voters)

        return all(has_majority(voters) for voters in self._sets_that_count())

    def _may_lose(self) -> bool:
        """No request is in flight that was sent when more voters worked."""
        paused = any(
            host.process is not None and host.process.paused for host in self.directory.hosts.values()
        )
        return self.operator.is_quiet and not paused

    # ---- faults ----------------------------------------------------------------------------------

    def _throw_faults(self) -> None:
        super()._throw_faults()
        if not self.faults_on:
            return
        rng, plan, seconds = self.engine.rng, self.plan, STEP_MS / 1000
        for fault, rate in (
            (self._maybe_empty, plan.empty_rate),
            (self._maybe_rename, plan.rename_rate),
            (self._maybe_roll_back, plan.rollback_rate),
        ):
            if rng.random() < rate * seconds and fault not in self._wanted:
                self._wanted.append(fault)
        if plan.rollback_rate and rng.random() < 0.1:
            self._back_up(rng.choice(self.controller_ids))
        if self._wanted and self._may_lose() and self._wanted[0]():
            self._wanted.pop(0)
        elif self._wanted and rng.random() < 0.03:
            self._wanted.clear()

    @property
    def wants_quiet(self) -> bool:
        """A fault waits until no request is in flight."""
        return bool(self._wanted)

    def _maybe_empty(self) -> bool:
        chosen = self.engine.rng.choice(self.controller_ids)
        spared = self._spared(chosen)
        if spared:
            self.empty(chosen)
        return spared

    def _maybe_rename(self) -> bool:
        chosen = self.engine.rng.choice(self.controller_ids)
        spared = self._spared(chosen)
        if spared:
            self._rename(chosen)
        return spared

    def empty(self, node_id: int) -> None:
        """A new disk, formatted without voters: another directory under the same id."""
        self.crash(node_id, power_loss=False)
        self._format_again(node_id)
        self.marks.add("disk emptied")

    def _format_again(self, node_id: int) -> None:
        host = self.directory[node_id]
        if self._counts(node_id):
            self._replaced.add(node_id)
            self.marks.add("disk of a voter emptied")
        self.lost.add(self.directory_ids[node_id])
        self._drawn_ids += 1
        self.directory_ids[node_id] = bytes([8] * 12) + self._drawn_ids.to_bytes(4, "big")
        self._known_sets.pop(node_id, None)
        host.disk = FaultyDisk(random.Random(host.rng.getrandbits(64)))
        format_host(host, node_id, self.directory_ids[node_id])
        self.engine.trace(host.name, f"has an empty disk, directory {self.directory_ids[node_id].hex()[-4:]}")

    def _rename(self, node_id: int) -> None:
        host = self.directory[node_id]
        self.crash(node_id, power_loss=False)
        self._drawn_ids += 1
        self.addresses.names[node_id] = f"{host.name}.{self._drawn_ids}"
        self.engine.trace(host.name, f"is called {self.addresses.names[node_id]} now")
        self.marks.add("host renamed")

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        host = self.directory[node_id]
        process = host.process
        if isinstance(process, VoterController) and process.alive:
            self._note(node_id, process)
        super().crash(node_id, power_loss=power_loss)

    def _back_up(self, node_id: int) -> None:
        host, process = self.directory[node_id], self.directory[node_id].process
        if not isinstance(process, VoterController) or not process.alive:
            return
        sets = process.known_sets(self.configured)
        # A set of one voter elects its only member, which asks no other node.
        if all(len(voters) > 1 for _, voters in sets):
            end = process.core.log_end_offset
            self._backups[node_id] = Backup(process.directory_id, host.disk.copy(), end)

    def _note(self, node_id: int, process: VoterController) -> None:
        self._known_sets[node_id] = process.known_sets(self.configured)

    def _maybe_roll_back(self) -> bool:
        """Restores the copy of one controller, once everything that it forgets is in every other directory:
        so nothing that it may do wrong loses a commit or elects a second leader."""
        for node_id in self.controller_ids:
            backup, process = self._backups.get(node_id), self.directory[node_id].process
            if backup is None or not isinstance(process, VoterController) or not process.alive:
                continue
            if backup.directory_id != process.directory_id or not self._spared(node_id):
                continue
            core = process.core
            others = [self.directory[one].process for one in self.controller_ids if one != node_id]
            if core.log_end_offset > backup.end_offset and all(_holds_all(one, process) for one in others):
                self._roll_back(node_id, process, backup)
                return True
        return False

    def _roll_back(self, node_id: int, process: VoterController, backup: Backup) -> None:
        host, end = self.directory[node_id], process.core.log_end_offset
        del self._backups[node_id]
        self.crash(node_id, power_loss=False)
        host.disk = backup.disk
        self.rolled_back[node_id] = Backup(backup.directory_id, backup.disk, end)
        self._known_sets.pop(node_id, None)
        self.marks.add("directory rolled back to an older copy")
        self.engine.trace(host.name, f"is rolled back from {end} to {backup.end_offset}")

    def _ended(self, node_id: int, host: Host, process: object) -> None:
        stopped = getattr(process, "stopped", None)
        if isinstance(process, VoterController):
            self._note(node_id, process)
        super()._ended(node_id, host, process)  # type: ignore[arg-type]
        if stopped is not None and stopped.failed and FORGETFUL in stopped.reason:
            self.marks.add("forgetful directory found out and replaced")
            self._format_again(node_id)

    def may_fail(self, node_id: int, reason: str) -> bool:
        """A directory that forgot something is detected; one that did not must never be accused."""
        if FORGETFUL in reason:
            rolled = self.rolled_back.get(node_id)
            return rolled is not None and rolled.directory_id == self.directory_ids[node_id]
        return super().may_fail(node_id, reason)

    # ---- what is seen ----------------------------------------------------------------------------

    def _after_step(self) -> None:
        super()._after_step()
        if len(self.checks.history.voters) != self._committed_sets:
            self._mark_committed()

    def _mark_committed(self) -> None:
        """Marks which kind of change was committed, and by which leader."""
        committed = self.checks.history.voters
        offsets = sorted(committed)
        for offset in offsets[self._committed_sets :]:
            index = offsets.index(offset)
            after = committed[offset]
            self.marks.add(f"{len(after)} voters in force")
            before = committed[offsets[index - 1]] if index else None
            if before is None:
                continue
            kind = _kind(before, after)
            self.marks.add(f"voter {kind}")
            came = [one for one in after.nodes if one.node_id not in before]
            if any(one.node_id in self._replaced for one in came):
                self.marks.add("directory of a voter replaced")
                self._replaced -= {one.node_id for one in came}
            leader = self.leader()
            written = None if leader is None else leader.epoch_at(offset)
            if leader is not None and written is not None and written < leader.epoch:
                self.marks.add(f"voter {kind} while the leader changes")
        self._committed_sets = len(committed)

    def _mark_standing(self, process: VoterController) -> None:
        committed = self.checks.history.voters
        if not committed:
            return
        newest = committed[max(committed)]
        core = process.core
        if not newest.is_voter(core.node_id, core.state.identity.directory_id):
            self.marks.add("removed voter that did not hear of it asked for votes")
        if core.voters != newest:
            self.marks.add("candidate with another set than the committed one")

    # ---- after healing ---------------------------------------------------------------------------

    def _heal(self) -> None:
        self.operator.running = False
        super()._heal()

    def _what_is_unwell(self) -> str:
        problem = super()._what_is_unwell()
        if problem:
            return problem
        if not self.operator.is_quiet:
            return "the operator waits for an answer"
        for process in self.controllers():
            newest = process.core.state.voter_history.newest_offset
            if newest is not None and newest >= process.core.high_watermark:
                return f"the voters at offset {newest} are neither committed nor undone on {process.node_id}"
            if (
                isinstance(process.core.state.role, Leader)
                and process.core.state.role.view.change is not None
            ):
                return "whoever asked for a change was not answered"
        return ""

    def _last_words(self) -> None:
        self._repair()
        super()._last_words()

    def _same_offsets(self) -> bool:
        """Observers are not woken for a NoOp: they may lack the newest one, and have the same image
        nonetheless."""
        active = self._active()
        if active is None or active.node.ledger.pending:
            return False
        newest = active.node.ledger.committed
        return all(
            process.node.ledger.committed_offset == active.node.ledger.committed_offset
            or (
                process.node_id not in active.core.voters
                and images_equal(process.node.ledger.committed.image, newest.image, provenance=False)
            )
            for process in self.controllers()
        )

    def _repair(self) -> None:
        """The operator can still replace every lost directory."""
        deadline_us = self.engine.now_us + LIVENESS_MS * 1_000
        while True:
            leader = self.leader()
            if leader is not None and leader.kraft_version >= 1 and self._is_well():
                request = self.operator.repair(leader)
                if request is None:
                    return
                self.marks.add("repaired after healing")
                self.operator.ask(leader.node_id, request, lambda: None)
            elif leader is not None and self._is_well():
                return
            if self.engine.now_us > deadline_us:
                raise LivenessError("the operator cannot repair the voters of the healed cluster")
            self.engine.run_for(REPAIR_PAUSE_MS, self._after_event)


def _holds_all(other: object, process: VoterController) -> bool:
    """Whether a controller runs, follows the newest leader, and has all records of this one on its disk, or
    will never stand for election."""
    if not isinstance(other, VoterController) or not other.alive:
        return False
    if not other.core.state.may_stand:
        return True
    mine, theirs = process.core, other.core
    follows = isinstance(theirs.state.role, Leader | Follower) and isinstance(mine.state.role, Follower)
    end = mine.log_end_offset
    same = mine.epochs.epoch_at(end - 1) in (None, theirs.epochs.epoch_at(end - 1))
    return follows and theirs.epoch == mine.epoch and other.store.log.synced_offset >= end and same


def _kind(before: VoterSet, after: VoterSet) -> str:
    if len(after) == len(before):
        return "updated"
    return "added" if len(after) > len(before) else "removed"
