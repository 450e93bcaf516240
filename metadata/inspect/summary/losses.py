"""The summary's section about committed records that are lost, according to the nodes' own notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from metaquorum.metadata.inspect.causes.rule import CRITICAL
from metaquorum.metadata.inspect.log.coverage import offsets_text
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.nodes.lost import LostCommitted, find_losses, holding
from metaquorum.metadata.inspect.nodes.merge import NodesReport
from metaquorum.metadata.inspect.summary.sections import Row, Section
from metaquorum.storage.log.epochs import EpochTable

NAME = "committed records lost"


def lost_section(
    log: MetadataLog, report: NodesReport | None, end_offset: int, time_ms: Callable[[int], int]
) -> Section | None:
    """What some node of `report` (None: the node of this log) knew to be committed and is lost. `time_ms`
    returns the time at an offset."""
    lost = list(_of_one(log, end_offset) if report is None else _of_nodes(report))
    if not lost:
        return None
    rows = [
        Row(offset=offset, time_ms=time_ms(offset), entity="quorum", text=text, severity=CRITICAL)
        for offset, text in lost
    ]
    text = f"{len(rows)}: `metaquorum log check` compares the nodes, `metaquorum log salvage` ranks them"
    return Section(name=NAME, text=text, rows=rows, figures={"count": len(rows)})


def _of_one(log: MetadataLog, end_offset: int) -> Iterator[tuple[int, str]]:
    if not log.is_checkpoint:
        for loss in find_losses([holding(log, end_offset, EpochTable())]):
            yield end_offset, _own(loss)


def _of_nodes(report: NodesReport) -> Iterator[tuple[int, str]]:
    listed = set()
    for node in report.nodes:
        gone = node.departure
        if gone is not None and gone.committed:
            listed.add(node.path)
            knew = f"{node.name} knew {offsets_text(gone.offset, gone.committed)} to be committed"
            yield gone.offset, f"{knew}, {gone.other} has other records there"
    names = {node.path: node.name for node in report.nodes}
    for loss in report.losses:
        if loss.path in listed:
            continue
        if loss.missing == (loss.path,):
            end_offset = next(node.end_offset for node in report.nodes if node.path == loss.path)
            yield end_offset, _own(loss, names[loss.path])
        else:
            missing = ", ".join(names[path] for path in loss.missing)
            knew = f"{names[loss.path]} knew all below offset {loss.offset} to be committed"
            yield loss.offset - 1, f"{knew}, not all of it is in {missing}"


def _own(loss: LostCommitted, name: str = "its own node") -> str:
    knew = f"{name} knew all below offset {loss.offset} to be committed"
    return f"{knew}, its log ends before or has other records"
