"""A new log without what keeps the old one from being used: a poison record, lost bytes, a bad end.

Owns what a repair does to each batch, from where the new log can begin, and which snapshots go with it. The
original is only read. Every offset stays what it is (see `rewrite`), and so do leader epochs and times; what
no one touched is the same, byte for byte. The same log and the same request give the same bytes, so the
directories of several voters can be repaired one by one. What a record means is `metadata.replay`'s
business: a repair replays what it writes and says what cannot be applied.
"""

from __future__ import annotations

from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, NodeWriter, stored_epochs
from metaquorum.metadata.inspect.repair.repair_pass import RepairPass
from metaquorum.metadata.inspect.repair.repair_plan import RepairedRange, RepairReport, RepairRequest
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.files.meta_properties import FILE_NAME as META_PROPERTIES
from metaquorum.storage.files.quorum_state import FILE_NAME as QUORUM_STATE
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition

__all__ = ["RepairReport", "RepairRequest", "RepairedRange", "plan_repair", "write_repair"]

VOTER_FILES = (QUORUM_STATE, "configured-voters")
"""What a voter must not forget; a repaired directory is the same voter's."""


def plan_repair(source: NodeFiles, request: RepairRequest) -> RepairReport:
    """What `write_repair` would do, without writing.

    Raises InspectError when it cannot be done, saying which other way there is, or when nothing would change.
    """
    return RepairPass(source, request, None).run()


def write_repair(source: NodeFiles, request: RepairRequest, target: str) -> RepairReport:
    """Writes the new directory `target`. Raises InspectError as `plan_repair`, and when `target` is there and
    not empty; StorageError when the disk fails."""
    plan = plan_repair(source, request)
    writer = NodeWriter(source.log.disk, target, _first_epochs(source.log, plan))
    try:
        report = RepairPass(source, request, writer).run()
        for position in report.kept_snapshots:
            writer.copy_snapshot(source.log, position)
        writer.copy_beside(source, VOTER_FILES)
        writer.finish(_identity(source))
    finally:
        writer.close()
    return report


def _identity(source: NodeFiles) -> bytes | None:
    """The new directory's meta.properties: the old one's bytes, or what is known where those are damaged."""
    if source.identity is None:
        return None
    if source.identity_problem is None:
        return read_file(source.log.disk, join(source.home, META_PROPERTIES))
    if source.identity.cluster_id is None or source.identity.node_id is None:
        return None
    return source.identity.encode()


def _first_epochs(log: MetadataLog, plan: RepairReport) -> EpochTable:
    if plan.start_offset == 0:
        return EpochTable()
    base = plan.base
    if base is not None and base.offset == plan.start_offset:
        return EpochTable.reset(base)
    epoch = stored_epochs(log).epoch_at(plan.start_offset)
    return EpochTable() if epoch is None else EpochTable.reset(LogPosition(epoch, plan.start_offset))
