"""Rules of `check` for the files beside a node's log: its vote, its epochs, its identity.

A node writes its epoch to `quorum-state` before it appends a record of that epoch, and never forgets either;
`leader-epoch-checkpoint` has where each epoch of the log begins, and a follower truncates by it (KIP-101).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from metaquorum.metadata.inspect.checks.record_checks import Fault
from metaquorum.metadata.inspect.log.coverage import Uncovered, offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.invariants import ERROR, WARNING
from metaquorum.metadata.records.batches import decode_readable
from metaquorum.metadata.records.control import LeaderChangeMessage
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, parent_of, read_file
from metaquorum.storage.errors import CorruptFileError, DiskError, StorageError
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state
from metaquorum.storage.log.epochs import FILE_NAME as EPOCHS
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.runs import BatchRun
from metaquorum.storage.uuids import uuid_to_text

FILE_RULES = {
    "files-are-readable": "meta.properties, quorum-state and leader-epoch-checkpoint are what a node writes",
    "vote-is-kept": "quorum-state is not older than the log, or than a vote that an election in another"
    " node's log names",
    "vote-is-of-the-quorum": "quorum-state agrees with the log about the voters and an epoch's leader",
    "epochs-agree": "leader-epoch-checkpoint has the epochs of the log, each from its first offset on",
    "log-reaches-its-snapshots": "no snapshot ends after the log: its records were committed",
    "nodes-are-distinct": "each node id and each directory id is in the meta.properties of one directory",
}
"""What `check` requires of the files beside a log, in addition to the rules of docs/invariants.md."""

_TRUNCATES = (
    "a follower truncates by it; remove the file while the node is stopped: the node rebuilds it from the log"
)


class FilesOfNode(msgspec.Struct, kw_only=True):
    """What the files beside a log and its elections say. `elections` are by leader epoch; `epochs` is the
    table that the log's batches lead to, None if they run backwards. `last_ms` is the time of the log's last
    batch, Unix ms. None is a file that is absent or unreadable."""

    path: str
    epochs: EpochTable | None
    end_offset: int
    last_ms: int
    elections: dict[int, LeaderChangeMessage]
    stored: QuorumState | None = None
    identity: MetaProperties | None = None

    def fault(self, rule: str, severity: str, where: str, text: str) -> Fault:
        """About a file: at the log's last offset."""
        return Fault(rule, severity, max(0, self.end_offset - 1), where, text)


def read_node_files(log: MetadataLog) -> FilesOfNode:
    """Reads the headers and the control batches of a log."""
    table: EpochTable | None = EpochTable()
    elections: dict[int, LeaderChangeMessage] = {}
    end_offset, last_ms = log.start_offset, -1
    for item in log.runs():
        if isinstance(item, Damage):
            continue
        for epoch, start in _epochs_of(item):
            table = _with_epoch(table, epoch, start)
        if isinstance(item, BatchRun):
            end_offset, last_ms = item.next_offset, int(item.timestamps_ms()[-1])
            continue
        end_offset, last_ms = item.header.next_offset, item.header.max_timestamp_ms
        for decoded in decode_readable(item) if item.header.is_control else ():
            if isinstance(decoded.record, LeaderChangeMessage):
                elections[item.header.leader_epoch] = decoded.record
    return FilesOfNode(
        path=log.path, epochs=table, end_offset=end_offset, last_ms=last_ms, elections=elections
    )


def _with_epoch(table: EpochTable | None, epoch: int, start: int) -> EpochTable | None:
    """The table with a batch's epoch; None once epochs or offsets have run backwards."""
    if table is None:
        return None
    try:
        return table.append(epoch, start)
    except StorageError:
        return None


def _epochs_of(item: RecordBatch | BatchRun) -> Iterator[tuple[int, int]]:
    """The epochs of an item, each with the first offset of a batch of it."""
    if isinstance(item, RecordBatch):
        yield item.header.leader_epoch, item.header.base_offset
        return
    before = None
    epochs = item.epochs()
    if epochs[0] == epochs[-1]:
        yield int(epochs[0]), item.base_offset
        return
    for epoch, start in zip(epochs.tolist(), item.offsets.tolist(), strict=False):
        if epoch != before:
            before = epoch
            yield epoch, start


def file_faults(log: MetadataLog, files: FilesOfNode) -> Iterator[Fault]:
    """Broken rules of the files beside one log. Adds what it read to `files`."""
    try:
        files.stored = load_quorum_state(log.disk, log.directory)
    except (CorruptFileError, DiskError) as error:
        yield files.fault("files-are-readable", ERROR, QUORUM_STATE, str(error))
    yield from _identity_faults(log, files)
    if files.stored is not None:
        yield from _vote_faults(files, files.stored)
    path = join(log.directory, EPOCHS)
    if log.disk.exists(path):
        try:
            written = EpochTable.decode(read_file(log.disk, path), path)
        except (CorruptFileError, DiskError) as error:
            yield files.fault("files-are-readable", ERROR, EPOCHS, str(error))
        else:
            yield from _epoch_faults(log, files, written)


def lost_behind(behind: Uncovered) -> Fault:
    """The broken rule of a log that ends before a snapshot."""
    text = f"{offsets_text(behind.from_offset, behind.to_offset)}: {behind.text}"
    offset = max(0, behind.from_offset - 1)
    return Fault("log-reaches-its-snapshots", ERROR, offset, "log", text)


def _identity_faults(log: MetadataLog, files: FilesOfNode) -> Iterator[Fault]:
    for directory in (log.directory, parent_of(log.directory)):
        if log.disk.exists(join(directory, META_PROPERTIES)):
            try:
                files.identity = load_meta_properties(log.disk, directory)
            except (CorruptFileError, DiskError) as error:
                yield files.fault("files-are-readable", ERROR, META_PROPERTIES, str(error))
            return


def _vote_faults(files: FilesOfNode, stored: QuorumState) -> Iterator[Fault]:
    # An epoch in the middle of a log without an election may be a damaged header.
    begins = files.epochs.first_epoch if files.epochs is not None else None
    last = max([*files.elections, begins or 0]) if files.epochs is not None else 0
    if stored.epoch < last:
        text = (
            f"its epoch is {stored.epoch}, but the log has records of epoch {last}: it was replaced by an"
            " older copy, and the node may vote twice in one epoch"
        )
        yield files.fault("vote-is-kept", ERROR, QUORUM_STATE, text)
        return
    voters = set(stored.voters)
    newest = files.elections.get(max(files.elections, default=-1))
    wrong = []
    if newest is not None and voters:
        elected = {voter.voter_id for voter in newest.voters}
        is_same_epoch = stored.epoch in files.elections
        if voters != elected and (is_same_epoch or not voters & elected):
            wrong.append(f"its voters are {_ids(voters)}, but those of the log are {_ids(elected)}")
    election = files.elections.get(stored.epoch)
    if election is not None and stored.leader_id not in (None, election.leader_id):
        wrong.append(
            f"in epoch {stored.epoch} its leader is {stored.leader_id}, but the log has {election.leader_id}"
        )
    for what, node in (("leader", stored.leader_id), ("vote", stored.voted_id)):
        if voters and node is not None and node not in voters:
            wrong.append(f"its {what} is {node}, which is not one of its voters {_ids(voters)}")
    if wrong:
        text = f"{'; '.join(wrong)}: the file is another quorum's, or was changed"
        yield files.fault("vote-is-of-the-quorum", ERROR, QUORUM_STATE, text)


def _epoch_faults(log: MetadataLog, files: FilesOfNode, written: EpochTable) -> Iterator[Fault]:
    if files.epochs is None or not files.epochs.entries:
        return
    own, end_offset = files.epochs, files.end_offset
    begins = own.entries[0][1]
    if begins == log.start_offset:
        written = written.truncate_start(begins)
    # Kafka moves a log's start to its oldest snapshot's end, and the file with it, before segments go.
    first = written.entries[0][1] if written.entries else begins
    if first > begins and first in {position.offset for position in log.snapshots()}:
        own = own.truncate_start(first)
    # A leader adds an epoch before its first record: the file may be one entry ahead of the log.
    entries = [entry for entry in written.entries if entry[1] != end_offset]
    for mine, filed in zip(own.entries, [*entries, None], strict=False):
        if mine != filed:
            yield _epoch_fault(mine, filed)
            return
    for epoch, start in entries[len(own.entries) :]:
        text = f"it has epoch {epoch} from offset {start} on, but the log ends at {end_offset}: {_TRUNCATES}"
        yield Fault("epochs-agree", ERROR, end_offset - 1, EPOCHS, text)
        return


def _epoch_fault(own: tuple[int, int], other: tuple[int, int] | None) -> Fault:
    has = "nothing there" if other is None else f"epoch {other[0]} from offset {other[1]} on"
    text = f"the log has epoch {own[0]} from offset {own[1]} on, but the file has {has}: {_TRUNCATES}"
    return Fault("epochs-agree", ERROR, own[1], EPOCHS, text)


def faults_between(nodes: Sequence[FilesOfNode]) -> Iterator[tuple[FilesOfNode, Fault]]:
    """Broken rules of several nodes' files, each with the node that it is about."""
    votes: dict[int, int] = {}
    for node in nodes:
        for epoch, election in node.elections.items() if node.epochs is not None else ():
            for voter in election.granting_voters:
                votes[voter.voter_id] = max(epoch, votes.get(voter.voter_id, 0))
    for number, node in enumerate(nodes):
        own = node.identity
        if own is None or own.node_id is None:
            continue
        same = (
            _same_identity(node, own, other, other.identity)
            for other in nodes[:number]
            if other.identity is not None
        )
        fault = next(filter(None, same), None)
        if fault is not None:
            yield node, fault
        epoch = votes.get(own.node_id, 0)
        last = max(node.elections, default=0)
        if node.stored is not None and last <= node.stored.epoch < epoch:
            text = (
                f"its epoch is {node.stored.epoch}, but node {own.node_id} voted in the election of epoch"
                f" {epoch}: it was replaced by an older copy, and the node may vote twice in one epoch"
            )
            yield node, node.fault("vote-is-kept", ERROR, QUORUM_STATE, text)


def _same_identity(
    node: FilesOfNode, own: MetaProperties, other: FilesOfNode, others: MetaProperties
) -> Fault | None:
    same_node = own.node_id == others.node_id
    directory = own.directory_id
    same_directory = directory is not None and directory == others.directory_id
    if same_node and same_directory:
        text = f"the same node and directory as {other.path}: one is a copy, and only one of them may run"
        return node.fault("nodes-are-distinct", WARNING, META_PROPERTIES, text)
    if same_node:
        text = f"node {own.node_id} is also that of {other.path}"
        return node.fault("nodes-are-distinct", ERROR, META_PROPERTIES, text)
    if same_directory and directory is not None:
        text = f"directory {uuid_to_text(directory)} is also that of node {others.node_id}, {other.path}"
        return node.fault("nodes-are-distinct", ERROR, META_PROPERTIES, text)
    return None


def _ids(voters: set[int]) -> str:
    return ",".join(map(str, sorted(voters)))
