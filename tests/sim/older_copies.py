"""A cluster in which a controller's directory is replaced with an older copy of itself, under all other
faults.

That fault and its two laws: a node keeps what it knew to be committed, or stops; and if a committed
record is overwritten, a node that knew of it reports that, and the run ends with this instead of recovering.
Not included: a copy that forgets a vote, and a copy together with the loss of every other node's memory of a
record, because then no node is left that could know (docs/raft.md, Older copies).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from metaquorum.raft.errors import RaftInvariantError
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import StorageError
from metaquorum.storage.files.known_committed import load_known_committed
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.sim.checks import Checks
from tests.sim.errors import SafetyError
from tests.sim.host import Host, Process
from tests.sim.processes import DATA_DIRECTORY, BrokerProcess, ControllerProcess, format_host
from tests.sim.profile import FaultProfile
from tests.sim.world import FORGETFUL, World

COPIES_FROM = 3_000
"""Seeds from here on run with this fault."""

SAID = ("committed records were lost", "committed records are missing")
LOG_DIRECTORY = join(DATA_DIRECTORY, METADATA_DIRECTORY)
PAUSE_MS = (1_000, 3_000)
TOGETHER_EVERY = 3


class OlderCopyWorld(World):
    """Repeatedly: a copy of one controller, writes that it acknowledges while others are down, kill -9 of
    all, and the copy restored in its place."""

    def __init__(
        self, seed: int, on_line: Callable[[str], None] | None = None, profile: FaultProfile | None = None
    ) -> None:
        super().__init__(seed, on_line, profile)
        self.lost_from: int | None = None
        """The first offset of which a committed record was overwritten."""
        self._was_known = False
        """Whether somebody knew then that it was committed. Later all know offsets of the next leader."""
        self._committed: dict[int, tuple[int, bytes]] = {}
        """What was committed before that."""
        self.said: list[str] = []
        self.replaced: set[int] = set()
        self._reformatted: set[int] = set()
        self._noted: dict[int, int] = {}
        self._held: set[int] = set()
        self.engine.after(self.engine.rng.randint(*PAUSE_MS), self._copy)

    # ---- the fault -------------------------------------------------------------------------------

    def _copy(self) -> None:
        """Copies one controller; then others stay down, so that it must acknowledge what is written."""
        if not self.faults_on or self.lost_from is not None or self._reformatted:
            return
        rng = self.engine.rng
        ids = list(self.controller_ids)
        rng.shuffle(ids)
        active = self._active()
        if active is not None:  # without an election in between no vote is forgotten
            ids.remove(active.node_id)
            ids.append(active.node_id)
        if 2 * len(self.replaced) >= len(ids) - 1:  # a majority has all its data, and so could continue alone
            ids.sort(key=lambda node_id: node_id not in self.replaced)
        one, absent = ids[0], ids[1 : 1 + len(ids) // 2]
        self.crash(one, power_loss=rng.random() < 0.3)
        host = self.directory[one]
        if not host.disk.exists(join(LOG_DIRECTORY, QUORUM_STATE)):
            self.engine.after(rng.randint(*PAUSE_MS), self._copy)
            return
        backup = host.disk.copy()
        self.engine.trace(host.name, "is copied")
        self.engine.after(300, lambda: self.boot(one))

        def leave() -> None:
            self._held.update(absent)
            for node_id in absent:
                self.crash(node_id, power_loss=False)

        self.engine.after(rng.randint(500, 1_500), leave)
        self.engine.after(rng.randint(2_000, 4_500), lambda: self._replace(one, absent, backup))

    def _replace(self, one: int, absent: list[int], backup: FaultyDisk) -> None:
        rng = self.engine.rng
        power_loss = rng.random() < 0.3
        others = [node_id for node_id in self.controller_ids if node_id != one and node_id not in absent]
        for node_id in (one, *others):
            self.crash(node_id, power_loss=power_loss)
        host = self.directory[one]
        self._held = set(others) if self.faults_on else set()
        if self.faults_on and _hard_state(host.disk) == _hard_state(backup):
            host.disk = backup
            self.replaced.add(one)
            self.checks.disks_keep = False
            self._noted.pop(one, None)
            self.marks.add("directory replaced by an older copy")
            self.engine.trace(host.name, "is replaced by its older copy")
        for node_id in (one, *absent):
            self.engine.after(rng.randint(1, 300), lambda node_id=node_id: self.boot(node_id))

        def release() -> None:
            self._held.clear()
            for node_id in others:
                self.boot(node_id)

        held_ms = rng.randint(500, 4_000)
        # In some seeds those that know better run when the older copy and what lags can elect each other.
        self.engine.after(1 if self.seed % TOGETHER_EVERY == 0 else held_ms, release)
        self.engine.after(rng.randint(*PAUSE_MS), self._copy)

    def boot(self, node_id: int) -> None:
        if node_id not in self._held:
            super().boot(node_id)

    def crash(self, node_id: int, *, power_loss: bool) -> None:
        super().crash(node_id, power_loss=power_loss)
        if self.directory[node_id].process is None:
            self._noted[node_id] = self._known(node_id)

    def _heal(self) -> None:
        self._held.clear()
        super()._heal()

    # ---- the laws --------------------------------------------------------------------------------

    def _after_step(self) -> None:
        try:
            super()._after_step()
        except (SafetyError, RaftInvariantError) as error:
            if not self.replaced or self.lost_from is not None:
                raise
            self._lost(error)
        for process in (*self.controllers(), *self.brokers()):
            self._keeps_what_it_noted(process)
            if self.lost_from is not None and any(text in process.warned_of_loss for text in SAID):
                self.said.append(f"{process.host.name}: {process.warned_of_loss}")
                process.warned_of_loss = ""

    def _lost(self, error: Exception) -> None:
        """The laws across nodes no longer hold. From here on those of this module are checked."""
        self.lost_from = self._overwritten_from()
        if self.lost_from is None:
            raise error
        self.engine.trace("world", f"committed records from offset {self.lost_from} on are lost: {error}")
        self._was_known = self._somebody_knows(self.lost_from)
        self.marks.add("committed records overwritten")
        self._committed = self.checks.committed_batches()
        self.checks = _NoChecks()

    def _overwritten_from(self) -> int | None:
        """Where the log of the newest leader first differs from what was committed."""
        leaders = [process for process in self.controllers() if process.core.is_leader]
        leader = max(leaders, key=lambda process: process.core.epoch, default=None)
        if leader is None:
            return None
        committed = self._committed or self.checks.committed_batches()
        start, end = leader.core.log_start_offset, leader.core.log_end_offset
        held = {} if start == end else _batches(leader, start, end)
        for base, (_, data) in sorted(committed.items()):
            if base >= start and held.get(base) != data:
                return base
        return None

    def _keeps_what_it_noted(self, process: ControllerProcess | BrokerProcess) -> None:
        log = process.core.state.log
        noted = max(self._noted.get(process.node_id, 0), log.noted.offset)
        self._noted[process.node_id] = noted
        if log.end_offset < noted or max(log.high_watermark, 0) < noted:
            raise SafetyError(
                f"{process.host.name} knew everything below {noted} to be committed, and its log ends at"
                f" {log.end_offset}, high watermark {log.high_watermark}"
            )

    def _known(self, node_id: int) -> int:
        disk = self.directory[node_id].disk
        try:
            return load_known_committed(disk, LOG_DIRECTORY).offset
        except StorageError as error:
            raise SafetyError(f"node {node_id}: a crash spoiled what it knew: {error}") from error

    def _ended(self, node_id: int, host: Host, process: Process) -> None:
        stopped = process.stopped
        super()._ended(node_id, host, process)
        if stopped is not None and FORGETFUL in stopped.reason and self.lost_from is None:
            self._reformatted.add(node_id)
            self._noted.pop(node_id, None)
            host.disk = FaultyDisk(random.Random(host.rng.getrandbits(64)))
            format_host(host, node_id, bytes([9] * 12) + node_id.to_bytes(4, "big"))
            self.marks.add("forgetful directory found out and replaced")
            self.engine.trace(host.name, "is reformatted, and only observes")

    def may_fail(self, node_id: int, reason: str) -> bool:
        if FORGETFUL in reason:
            # After a loss, other directories have dropped committed records too.
            return node_id in self.replaced or self.lost_from is not None
        if self.replaced and any(text in reason for text in SAID):
            self.said.append(f"{self.directory[node_id].name}: {reason}")
            self.marks.add("node stopped over lost committed records")
            return True
        return super().may_fail(node_id, reason)

    # ---- the end ---------------------------------------------------------------------------------

    def _is_well(self) -> bool:
        if self.lost_from is not None:
            return bool(self.said) or not self._was_known or self._is_back()
        return not self.said and super()._is_well()

    def _what_is_unwell(self) -> str:
        if self.lost_from is not None:
            return f"offset {self.lost_from} was overwritten, and no node that knows of it says so"
        return f"nothing was lost, and {self.said[0]}" if self.said else super()._what_is_unwell()

    def _is_back(self) -> bool:
        """Whether a node that has all that was committed leads again: the one that lacked it had no majority
        for what it wrote."""
        is_back = not super()._what_is_unwell() and self._overwritten_from() is None
        if is_back:
            self.marks.add("what was overwritten is there again")
        return is_back

    def _somebody_knows(self, offset: int) -> bool:
        """Whether a node that was not replaced knows a record at or after this offset to be committed."""
        found = [
            node_id
            for node_id in (*self.controller_ids, *self.broker_ids)
            if node_id not in self.replaced and self._known(node_id) > offset
        ]
        if not found:
            self.marks.add("nobody is left who knew what was lost")
        return bool(found)

    def _last_words(self) -> None:
        if self.lost_from is None:
            super()._last_words()


class _NoChecks(Checks):
    """After a loss nodes may differ."""

    def after_event(self, controllers: object, brokers: object) -> None:
        pass


def _hard_state(disk: FaultyDisk) -> bytes:
    path = join(LOG_DIRECTORY, QUORUM_STATE)
    return read_file(disk, path) if disk.exists(path) else b""


def _batches(process: ControllerProcess, start: int, end: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while start < end:
        for batch in iter_batches(process.store.read_log(start, end, 1 << 20).data):
            found[batch.header.base_offset] = bytes(batch.data)
            start = batch.header.next_offset
    return found
