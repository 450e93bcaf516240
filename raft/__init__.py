"""Raft for a log that is pulled (KIP-595, KIP-630, KIP-996), as a pure state machine. A record is bytes here.

`RaftCore` gets inputs (a request, an answer, a completed write, a time) and returns effects; it never waits,
reads no clock and touches no file. The driver makes the effects true. `BlockingDriver` is the
plainest driver and examples/replicated_kv.py a program on it; `ReplicaStore` is a directory that survives
power loss. The rest of this text is the contract between a core and its driver. Breaking a point loses
committed records or elects two leaders; the point says which.

What the driver does with effects:

 1. **In order.** Carry effects out in the order in which they were returned, those of one input before those
    of the next. The core has already changed its own view of the log: an effect on the log that fails must
    stop the process, with everything that is still queued. Going on would acknowledge what is not there.
 2. **Persist, then speak.** `PersistQuorumState` is one atomic durable write of epoch, vote and leader.
    Report it by `on_quorum_state_persisted(token)`. An effect with `after=token` waits until that token or a
    later one is durable: `EffectGate` does this. Sent earlier, a vote can be given twice in one epoch after
    a crash.
 3. **Append, then sync, then report.** `AppendLog` writes whole batches at the log's end; any number of them
    may share one sync. Report `on_log_synced(end_offset)` only for what the finished sync covers. A sync
    that began before a `TruncateLog` says nothing about what was appended after it. A report that comes too
    early commits records that a loss of power takes away.
 4. **Never retry a failed sync.** The kernel may have dropped the pages that it could not write. Stop the
    process.
 5. **Cut durably.** `TruncateLog` and `ResetLog` are durable before the next effect. Otherwise old records
    of another leader can come back behind new ones.
 6. **Answer from the log as it is.** `RespondWithRecords` and `RespondWithSnapshotChunk` are filled when
    they are carried out, never from a copy made before a cut.
 7. **Apply what is committed.** `HighWatermarkChanged` is the only permission to apply records, in log
    order. After a restart everything from the newest snapshot on is applied again: keep no other state, or
    make applying idempotent.
 8. **Remember what was committed.** `NoteCommitted` is written down before the effects behind it reach a
    client; with `durably` the file is also replaced in the background. Without it a node cannot tell that
    its peers came back with older copies of their logs.

What the driver tells the core:

 9. **One directory, one identity.** A voter's directory is made once. A voter whose disk was emptied has
    forgotten votes and acknowledged records: under the same directory id it can elect a second leader or
    lose committed records. Pin directory ids in `Voter` so that it only observes.
10. **Time.** `now_ms` is a monotonic clock of this process in ms and never falls. `wall_ms` is Unix time,
    for record timestamps and display only. Call `tick` when `next_deadline_ms` has come and the inbox is
    empty: after a pause, messages that already arrived are heard before anything times out.
11. **Every request ends.** A request's answer is reported once by `on_response`, or its failure by
    `on_request_failed`. Both may come late or not at all: the core times requests out by itself. Requests
    and answers may be lost, repeated and reordered.
12. **Callers that leave.** `on_request_abandoned(key)` frees a parked fetch. Keys are never used twice.
13. **Leaders append.** Only while `is_leader`: batches begin at `log_end_offset` and carry `epoch`. The
    offset is the caller's ticket: it is committed when the high watermark passes it while this node still
    leads in that epoch. After `RoleChanged` its fate is unknown, and another record may be there.
14. **Snapshots.** Report `on_snapshot_written` when the file is durable under its final name, and only then
    trim the log (`on_log_trimmed`). A fetched snapshot is checked before it is put in force
    (`FinishSnapshot`), and its state is used only if the effects of `on_snapshot_loaded` contain `ResetLog`.
15. **Voters in the log** (kraft.version 1). Put what `voters_at` says of them into every snapshot, give
    what a loaded one says to `on_snapshot_loaded`, and what the newest one and the log behind it say to
    `RecoveredLog`. Otherwise the node counts the majorities of a set that is no longer in force. Find a node
    by the `endpoints` of `SendRequest`, and the bootstrap servers by their ids below 0. Before an
    `AddVoterRequest` is passed on, ask the new node for its id, directory and versions.
16. **Errors end the process.** RaftUsageError is a mistake of the caller, RaftInvariantError a broken law,
    CommittedLostError committed records that are gone. None of them leaves a core that may go on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaquorum.raft import effects, messages
    from metaquorum.raft.blocking import BlockingDriver
    from metaquorum.raft.config import Identity, RaftConfig, RecoveredLog, Voter
    from metaquorum.raft.core import RaftCore
    from metaquorum.raft.effects import RoleChanged
    from metaquorum.raft.errors import RaftInvariantError, RaftUsageError
    from metaquorum.raft.gate import EffectGate
    from metaquorum.raft.messages import RaftRequest, RaftResponse
    from metaquorum.raft.store.directory import create_directory, open_directory
    from metaquorum.raft.store.store import ReplicaStore
    from metaquorum.raft.voters.voter_set import Endpoint, VersionRange, VoterNode, VoterSet
    from metaquorum.storage.batches.parsed import Batches

__all__ = [
    "Batches",
    "BlockingDriver",
    "EffectGate",
    "Endpoint",
    "Identity",
    "RaftConfig",
    "RaftCore",
    "RaftInvariantError",
    "RaftRequest",
    "RaftResponse",
    "RaftUsageError",
    "RecoveredLog",
    "ReplicaStore",
    "RoleChanged",
    "VersionRange",
    "Voter",
    "VoterNode",
    "VoterSet",
    "create_directory",
    "effects",
    "messages",
    "open_directory",
]

_HOMES = {
    "metaquorum.raft.blocking": ("BlockingDriver",),
    "metaquorum.raft.config": ("Identity", "RaftConfig", "RecoveredLog", "Voter"),
    "metaquorum.raft.core": ("RaftCore",),
    "metaquorum.raft.store.directory": ("create_directory", "open_directory"),
    "metaquorum.raft.effects": ("RoleChanged",),
    "metaquorum.raft.errors": ("RaftInvariantError", "RaftUsageError"),
    "metaquorum.raft.gate": ("EffectGate",),
    "metaquorum.raft.messages": ("RaftRequest", "RaftResponse"),
    "metaquorum.raft.store.store": ("ReplicaStore",),
    "metaquorum.raft.voters.voter_set": ("Endpoint", "VersionRange", "VoterNode", "VoterSet"),
    "metaquorum.storage.batches.parsed": ("Batches",),
}


def __getattr__(name: str) -> Any:
    """What `__all__` names, on first use: commands that ask a cluster import messages and load no core."""
    if name in ("effects", "messages"):
        return import_module(f"metaquorum.raft.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'metaquorum.raft' has no attribute {name!r}")
