"""Raft for a log that replicas pull (KIP-595, KIP-630, KIP-996), as a pure state machine; a record is bytes.

`RaftCore` takes inputs (a request, a response, a completed write, the time) and returns effects; it never
blocks, reads no clock and touches no file. The driver carries the effects out. `BlockingDriver` is the
simplest driver, and examples/replicated_kv.py is a program built on it; `ReplicaStore` is a directory that
survives power loss. The rest of this text is the contract between a core and its driver. Breaking a point
loses committed records or elects two leaders; each point says which.

What the driver does with effects:

 1. **In order.** Carry out effects in the order in which they were returned, all effects of one input before
    those of the next. The core has already changed its own view of the log, so if an effect on the log
    fails, stop the process and drop everything that is still queued. Continuing would acknowledge records
    that are not there.
 2. **Persist, then send.** `PersistQuorumState` is one atomic, durable write of epoch, vote and leader.
    Report it with `on_quorum_state_persisted(token)`. An effect with `after=token` waits until that token or
    a later one is durable: `EffectGate` does this. If it is sent earlier, a node can vote twice in one epoch
    after a crash.
 3. **Append, then sync, then report.** `AppendLog` writes whole batches at the end of the log; any number of
    them may share one sync. Report `on_log_synced(end_offset)` only for what the finished sync covers. A
    sync that began before a `TruncateLog` does not cover anything appended after it. A report that is too
    early commits records that a power loss can take away.
 4. **Never retry a failed sync.** The kernel may have dropped the pages that it could not write. Stop the
    process.
 5. **Truncate durably.** `TruncateLog` and `ResetLog` are durable before the next effect. Otherwise another
    leader's old records can reappear after new ones.
 6. **Respond from the current log.** Fill `RespondWithRecords` and `RespondWithSnapshotChunk` when they are
    carried out, never from a copy made before a truncation.
 7. **Apply what is committed.** `HighWatermarkChanged` is the only permission to apply records, in log
    order. After a restart, everything after the newest snapshot is applied again: keep no other state, or
    make applying idempotent.
 8. **Remember what was committed.** Write `NoteCommitted` down before any later effect reaches a client;
    with `durably`, also replace the file in the background. Without it, a node cannot detect that its peers
    came back with older copies of their logs.

What the driver tells the core:

 9. **One directory, one identity.** A voter's directory is created once. A voter whose disk was emptied has
    forgotten its votes and the records it acknowledged: with the same directory id it can elect a second
    leader or lose committed records. Pin directory ids in `Voter` so that such a node only observes.
10. **Time.** `now_ms`, a keyword of every input, is a monotonic clock of this process in ms and never goes
    back. `wall_ms` is Unix time, for record timestamps and display only. Call `tick` when `next_deadline_ms`
    is reached and the inbox is empty: after a pause, messages that have already arrived are handled before
    anything times out.
11. **Every request ends.** Report the response to a request once with `on_response`, or its failure with
    `on_request_failed`. Either may be late or missing: the core times requests out by itself. Requests and
    responses may be lost, repeated and reordered.
12. **Callers that leave.** `on_request_abandoned(key)` frees a parked fetch. Keys are never reused.
13. **Leaders append.** Append only while `is_leader`: batches begin at `log_end_offset` and carry `epoch`.
    The offset is the caller's ticket: the record is committed when the high watermark passes it while this
    node still leads in that epoch. After `RoleChanged` its fate is unknown, and another record may be at
    that offset.
14. **Snapshots.** Report `on_snapshot_written` when the file is durable under its final name, and only then
    trim the log (`on_log_trimmed`). Check a fetched snapshot before you put its file in force
    (`FinishSnapshot`), then ask: its state replaces yours only if the effects of `on_snapshot_loaded` contain
    `ResetLog`. Otherwise the log has passed it, and what it covers is applied from the log.
15. **Voters in the log** (kraft.version 1). Put what `voters_at` returns into every snapshot, pass the
    voters of a loaded snapshot to `on_snapshot_loaded`, and pass those of the newest snapshot and of the log
    after it to `RecoveredLog`. Otherwise the node counts majorities of a set that is no longer in force.
    Find a node by the `endpoints` of `SendRequest`, and the bootstrap servers by their ids below 0. Before
    you pass an `AddVoterRequest` on, ask the new node for its id, directory and versions.
16. **Errors end the process.** RaftUsageError is a mistake of the caller, RaftInvariantError a broken law of
    Raft, CommittedLostError a loss of committed records, DiskError a failed read or write (of the store).
    After any of them the core must not be used again.
"""

from __future__ import annotations

if __name__ == "raft":
    raise ImportError("import metaquorum.raft: this folder is a part of the package metaquorum")

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaquorum.raft import effects, messages
    from metaquorum.raft.blocking import BlockingDriver
    from metaquorum.raft.config import Identity, RaftConfig, RaftConfigError, RecoveredLog, Voter
    from metaquorum.raft.core import RaftCore
    from metaquorum.raft.effects import EffectGate, RoleChanged
    from metaquorum.raft.errors import RaftInvariantError, RaftUsageError
    from metaquorum.raft.messages import RaftRequest, RaftResponse
    from metaquorum.raft.store import ReplicaStore, create_directory, open_directory
    from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode, VoterSet
    from metaquorum.storage.batches.batch import Batches, iter_batches
    from metaquorum.storage.batches.encode import encode_batch
    from metaquorum.storage.disk.posix import PosixDisk
    from metaquorum.storage.errors import CommittedLostError, DiskError
    from metaquorum.storage.log.config import LogConfig
    from metaquorum.storage.types import LogPosition

__all__ = [
    "Batches",
    "BlockingDriver",
    "CommittedLostError",
    "DiskError",
    "EffectGate",
    "Endpoint",
    "Identity",
    "LogConfig",
    "LogPosition",
    "PosixDisk",
    "RaftConfig",
    "RaftConfigError",
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
    "encode_batch",
    "iter_batches",
    "messages",
    "open_directory",
]

_HOMES = {
    "metaquorum.raft.blocking": ("BlockingDriver",),
    "metaquorum.raft.config": ("Identity", "RaftConfig", "RaftConfigError", "RecoveredLog", "Voter"),
    "metaquorum.raft.core": ("RaftCore",),
    "metaquorum.raft.errors": ("RaftInvariantError", "RaftUsageError"),
    "metaquorum.raft.effects": ("EffectGate", "RoleChanged"),
    "metaquorum.raft.messages": ("RaftRequest", "RaftResponse"),
    "metaquorum.raft.store": ("ReplicaStore", "create_directory", "open_directory"),
    "metaquorum.raft.voters": ("Endpoint", "VersionRange", "VoterNode", "VoterSet"),
    "metaquorum.storage.batches.batch": ("Batches", "iter_batches"),
    "metaquorum.storage.batches.encode": ("encode_batch",),
    "metaquorum.storage.disk.posix": ("PosixDisk",),
    "metaquorum.storage.errors": ("CommittedLostError", "DiskError"),
    "metaquorum.storage.log.log": ("LogConfig",),
    "metaquorum.storage.types": ("LogPosition",),
}


def __getattr__(name: str) -> Any:
    """The names in `__all__`, loaded on first use: commands that query a cluster import messages and load
    no core."""
    if name in ("effects", "messages"):
        return import_module(f"metaquorum.raft.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'metaquorum.raft' has no attribute {name!r}")
