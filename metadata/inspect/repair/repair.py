"""A new log without what makes the old one unusable: a poison record, lost bytes, a bad end.

The original is only read. Offsets stay the same (see `rewrite`), and so do leader epochs and times; whatever
the repair does not change is the same, byte for byte. The same log and request produce the same bytes, so the
directories of several voters can be repaired one by one. `metadata.replay` owns what a record means: a repair
replays what it writes and reports what cannot be applied.
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
"""What a voter must not forget; a repaired directory belongs to the same voter."""


def plan_repair(source: NodeFiles, request: RepairRequest) -> RepairReport:
    """What `write_repair` would do, without writing.

    Raises InspectError if it cannot be done, naming the alternative, or if nothing would change.
    """
    return RepairPass(source, request, None).run()


def write_repair(source: NodeFiles, request: RepairRequest, target: str) -> RepairReport:
    """Writes the new directory `target`. Raises InspectError as `plan_repair` does, and if `target` exists
    and is not empty; StorageError if the disk fails."""
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
    """The new directory's meta.properties: the old one's bytes or, if damaged, what is known of it."""
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
