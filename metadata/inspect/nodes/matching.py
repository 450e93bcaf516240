"""Whether the logs of a quorum's nodes are one log, and their snapshots agree (Raft paper 5.3, KIP-595)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from metaquorum.metadata.errors import InspectError, RecordDecodeError
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.checks.check import LogReport, check_log
from metaquorum.metadata.inspect.checks.node_files import faults_between
from metaquorum.metadata.inspect.entities.diff import state_differences
from metaquorum.metadata.inspect.entities.views import touched
from metaquorum.metadata.inspect.log.log import MetadataLog, require_one_cluster
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.nodes.lost import Holding, LostCommitted, find_losses, holding
from metaquorum.metadata.inspect.nodes.merge import NodesReport, Parting, compare_nodes
from metaquorum.metadata.inspect.walk.states import OnProblem, state_at
from metaquorum.metadata.records.batch_cause import cause_in
from metaquorum.metadata.records.batches import DecodedRecord, decode_batch, decode_readable
from metaquorum.metadata.records.control import Voter
from metaquorum.metadata.text.cause_text import asked_text
from metaquorum.metadata.text.dump import payload_json
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.errors import BatchError
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text

SNAPSHOT = "snapshots differ"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place at which `path` differs from `other`. `entity` is what the first differing record is
    about. `kind` is BYTES (same epoch: Raft rules it out), EPOCHS (`path` holds records that were never
    committed, if both are of one quorum) or SNAPSHOT. `undone` are the voter sets lost with the records of
    the earlier epoch in `path`."""

    kind: str
    path: str
    other: str
    offset: int
    epoch: int
    other_epoch: int
    entity: str
    text: str
    undone: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class QuorumReport:
    """The logs one by one, and together.

    `lags` is how many offsets before the longest log each one ends. `compared` counts batches that at least
    two logs have; `not_compared` says why nothing was compared. `voters` is the voter set at the end of the
    longest log (kraft.version 1). `nodes` is the whole comparison; None if nothing was compared.
    `not_voting` are lines about directories with a voter's id that do not belong to the voter."""

    logs: list[LogReport] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    losses: list[LostCommitted] = field(default_factory=list)
    voters: tuple[Voter, ...] = ()
    not_voting: list[str] = field(default_factory=list)
    nodes: NodesReport | None = None
    lags: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    snapshots_compared: int = 0
    not_compared: str | None = None

    @property
    def is_sound(self) -> bool:
        """Every log is sound, no two differ, and if there are several, all were compared."""
        compared = self.not_compared is None and not self.is_damaged
        return not self.has_errors and compared and all(one.is_sound for one in self.logs)

    @property
    def is_damaged(self) -> bool:
        """Whether a node's log has damage that only the others' logs show."""
        nodes = () if self.nodes is None else self.nodes.nodes
        return any(node.lost or node.problems for node in nodes)

    @property
    def has_errors(self) -> bool:
        """A rule of severity error is broken, two logs differ, or committed records were lost."""
        lost = any(loss.certain for loss in self.losses)
        return lost or bool(self.divergences) or any(report.errors for report in self.logs)


def check_quorum(
    logs: Sequence[MetadataLog],
    on_problem: Callable[[MetadataLog], OnProblem] | None = None,
    *,
    past_corruption: bool = False,
) -> QuorumReport:
    """Checks every log by itself and, if they are of one cluster, against the others."""
    report = QuorumReport()
    try:
        require_one_cluster(logs)
    except InspectError as error:
        report.not_compared = str(error)
    comparable = report.not_compared is None and len(logs) > 1
    for at, log in enumerate(logs):
        also = _untested(logs, at) if comparable else ()
        on_log_problem = None if on_problem is None else on_problem(log)
        report.logs.append(check_log(log, on_log_problem, past_corruption=past_corruption, also=also))
    if comparable:
        compare_logs(logs, report)
        by_path = {one.files.path: one for one in report.logs if one.files is not None}
        for files, fault in faults_between([one.files for one in by_path.values() if one.files is not None]):
            by_path[files.path].add_fault(fault, files.last_ms)
    elif len(logs) == 1 and not logs[0].is_checkpoint:
        report.losses = _own_loss(logs[0], report.logs[0].end_offset)
    return report


def _own_loss(log: MetadataLog, end_offset: int) -> list[LostCommitted]:
    """For a single log: whether it still reaches what its own node knew to be committed."""
    return find_losses([holding(log, end_offset, EpochTable())])


def compare_logs(logs: Sequence[MetadataLog], report: QuorumReport | None = None) -> QuorumReport:
    """Only the comparison: log matching and snapshots of the same name, added to `report`."""
    report = QuorumReport() if report is None else report
    _match(report, [log for log in logs if not log.is_checkpoint])
    _match_snapshots(report, logs)
    return report


def _untested(logs: Sequence[MetadataLog], index: int) -> list[MetadataLog]:
    """Snapshots from before their node's log, or without one: the first other log checks them."""
    own = logs[index]
    if own.is_checkpoint or index != next(i for i, log in enumerate(logs) if not log.is_checkpoint):
        return []
    untested = []
    for log in logs:
        if log.is_checkpoint:
            untested.append(log)
        elif log is not own:
            start = log.start_offset
            untested += [log.snapshot(position) for position in log.snapshots() if position.offset <= start]
    return untested


def _match(report: QuorumReport, logs: Sequence[MetadataLog]) -> None:
    """Compares batches of the same offset."""
    if not logs:
        return
    nodes = report.nodes = compare_nodes(logs, refuse_strangers=False)
    report.compared = nodes.batches_compared
    report.divergences += [_divergence(one) for one in nodes.partings]
    longest = max(node.end_offset for node in nodes.nodes)
    report.lags = {node.path: longest - node.end_offset for node in nodes.nodes}
    report.losses, report.voters = nodes.losses, nodes.voters
    report.not_voting = [line for one in nodes.holdings for line in _not_voting(one, report.voters)]


def _not_voting(holding: Holding, voters: Sequence[Voter]) -> list[str]:
    """A directory that replaced a voter's under the same id."""
    own = uuid_to_text(holding.directory_id or ZERO_UUID)
    return [
        f"{holding.path} is of node {holding.node_id}, but its directory {own} is not voter"
        f" {voter.voter_id}'s ({uuid_to_text(voter.voter_directory_id)}): it only observes"
        for voter in voters
        if voter.voter_id == holding.node_id and not holding.is_voter(voter)
    ]


def _divergence(parting: Parting) -> Divergence:
    node, departure = parting.node, parting.departure
    image = state_at(parting.other_log, Point(offset=departure.offset), past_corruption=True).image
    offset, entity, text = _first_difference(parting.own, parting.other, image)
    return Divergence(
        kind=departure.kind,
        path=node.path,
        other=parting.other_log.path,
        offset=offset,
        epoch=departure.epoch,
        other_epoch=departure.other_epoch,
        entity=entity,
        text=text,
        undone=departure.undone,
    )


def _first_difference(own: RecordBatch, other: RecordBatch, image: MetadataImage) -> tuple[int, str, str]:
    """(offset, entity, difference) of the first record that differs; of the batch if none does."""
    base = own.header.base_offset
    try:
        mine, theirs = list(own.records()), list(other.records())
    except BatchError as error:
        return base, "batch", f"one of them cannot be read: {error}"
    for one, two in zip(mine, theirs, strict=False):
        if one != two:
            return _of_record(_decoded(own, one.offset), _decoded(other, two.offset), one.offset, image)
    if len(mine) != len(theirs):
        text = f"{len(mine)} and {len(theirs)} records in the batch"
        return base + min(len(mine), len(theirs)), "batch", text
    return base, "batch", "the records are the same, but the headers of the batch differ"


def _decoded(batch: RecordBatch, offset: int) -> DecodedRecord | str:
    """One record of a batch, or why it cannot be decoded."""
    for record in decode_readable(batch):
        if record.offset == offset:
            return record
    try:
        decode_batch(batch, tolerant=True)
    except (RecordDecodeError, BatchError) as error:
        return str(error)
    return "is not in the batch"


def _of_record(
    first: DecodedRecord | str, second: DecodedRecord | str, offset: int, image: MetadataImage
) -> tuple[int, str, str]:
    paths: tuple[str, ...] = ()
    for decoded in (second, first):
        if isinstance(decoded, DecodedRecord):
            paths = paths or touched(decoded.record, image, image)
    entity = paths[0] if paths else "no entity"
    if isinstance(first, str) or isinstance(second, str):
        return offset, entity, f"one of them cannot be read: {first if isinstance(first, str) else second}"
    return offset, entity, _record_difference(first, second)


def _record_difference(first: DecodedRecord, second: DecodedRecord) -> str:
    if first.record.type_name != second.record.type_name:
        return f"{first.record.type_name} and {second.record.type_name}"
    mine, theirs = (payload_json(each.record, each.version, secrets=True)["data"] for each in (first, second))
    shown = [payload_json(each.record, each.version)["data"] for each in (first, second)]
    fields = [
        f"{name} {shown[0].get(name)} and {shown[1].get(name)}"
        for name in dict.fromkeys((*mine, *theirs))
        if mine.get(name) != theirs.get(name)
    ]
    causes = [cause_in(each.record) for each in (first, second)]
    if causes[0] != causes[1]:
        who = ["none" if cause is None else asked_text(cause) for cause in causes]
        fields.append(f"cause {who[0]} and {who[1]}")
    if first.version != second.version:
        fields.append(f"version {first.version} and {second.version}")
    if first.timestamp_ms != second.timestamp_ms:
        fields.append(f"time {first.timestamp_ms} and {second.timestamp_ms}")
    return f"{first.record.type_name}: " + (", ".join(fields) or "bytes outside the fields")


def _match_snapshots(report: QuorumReport, logs: Sequence[MetadataLog]) -> None:
    """Snapshots of the same name hold the same state, whatever the order of their records."""
    seen: dict[LogPosition, list[MetadataLog]] = {}
    for log in logs:
        position = log.snapshot_position()
        own = [log] if position is not None else [log.snapshot(at) for at in log.snapshots()]
        for snapshot in own:
            end = snapshot.snapshot_position()
            if end is not None:
                seen.setdefault(end, []).append(snapshot)
    for end, snapshots in sorted(seen.items(), key=lambda item: (item[0].offset, item[0].epoch)):
        if len(snapshots) < 2:
            continue
        first = state_at(snapshots[0]).image
        for snapshot in snapshots[1:]:
            report.snapshots_compared += 1
            for where, text in state_differences(first, state_at(snapshot).image):
                report.divergences.append(
                    Divergence(
                        kind=SNAPSHOT,
                        path=snapshot.path,
                        other=snapshots[0].path,
                        offset=end.offset,
                        epoch=end.epoch,
                        other_epoch=end.epoch,
                        entity=where,
                        text=text,
                    )
                )
