"""Opens the logs of several nodes as one, and prints how they compare, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from metaquorum.cli.log.input.options import offsets_text
from metaquorum.cli.log.input.source import MetadataLog, open_paths
from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.nodes.merge import EPOCHS, Departure, NodesReport, NodeView, compare_nodes
from metaquorum.metadata.inspect.nodes.merged_log import MergedLog
from metaquorum.metadata.inspect.nodes.nodes import require_one_quorum


def open_merged(paths: Sequence[str]) -> tuple[MetadataLog, NodesReport | None]:
    """The log at the paths. If they hold the logs of several nodes, all of them as one, and how they compare.

    Raises InspectError for nodes of two clusters or quorums, and for a checkpoint beside another log.
    """
    logs = open_paths(paths)
    if len(logs) == 1:
        return logs[0], None
    single = next((log for log in logs if log.is_checkpoint), None)
    if single is not None:
        raise InspectError(
            f"{single.path} is a single state, not a history; leave it out, or give only this path"
        )
    where = ", ".join(paths)
    require_one_quorum(logs, where)
    report = compare_nodes(logs)
    return MergedLog(logs, report, f"{len(logs)} nodes in {where}"), report


def report_nodes(report: NodesReport, complain: Callable[[str], None]) -> None:
    """Prints the comparison to standard error: one line, and one for each node with records that are left
    out. Problems also go to `complain`, which counts them."""
    first, *_ = nodes_lines(report, faults=False)
    click.echo(f"metaquorum: {first}{_behind(report)}", err=True)
    for node in report.nodes:
        if node.departure is not None:
            click.echo(f"metaquorum:   {_named(node)}: {_held(node)}", err=True)
    for line in fault_lines(report):
        complain(line)


def nodes_lines(report: NodesReport, *, faults: bool = True) -> Iterator[str]:
    """What the nodes have in common, then one line per node."""
    whole = offsets_text(report.start_offset, report.end_offset)
    yield f"{len(report.nodes)} nodes as one log: {whole}; all of them reach offset {report.common_end - 1}"
    for node in report.nodes:
        yield f"  {_named(node)}: {_held(node)}"
    if faults:
        yield from (f"  {line}" for line in fault_lines(report))


def _behind(report: NodesReport) -> str:
    """Which node is the most records behind the others."""
    behind = [node for node in report.nodes if node.behind and node.departure is None]
    if not behind:
        return ""
    last = max(behind, key=lambda node: node.behind)
    if len(behind) == 1:
        return f"; {_named(last)} is {last.behind} behind"
    return f"; {len(behind)} are behind, {_named(last)} the most: {last.behind}"


def _named(node: NodeView) -> str:
    return (
        node.name
        if node.node_id is None or str(node.node_id) in node.name
        else f"{node.name} (node {node.node_id})"
    )


def _held(node: NodeView) -> str:
    held = f"{offsets_text(node.start_offset, node.end_offset)}, epoch {node.epoch}"
    if node.departure is not None:
        return f"{held}; {_departure(node.departure)}"
    return f"{held}, {node.behind} behind" if node.behind else held


def _departure(departure: Departure) -> str:
    own = offsets_text(departure.offset, departure.end_offset)
    if departure.kind == EPOCHS:
        theirs = f"those of {departure.other} (epoch {departure.other_epoch})"
        differs = f"{own} of epoch {departure.epoch} are not {theirs}"
        if departure.committed:
            return f"{differs}: left out, although records below offset {departure.committed} were committed"
        undone = f"; with them {', and '.join(departure.undone)}" if departure.undone else ""
        return f"{differs} and were never committed: left out{undone}"
    return (
        f"from offset {departure.offset} on it differs from {departure.other} in epoch {departure.epoch},"
        " which two nodes of one quorum cannot do: left out"
    )


def _fault(name: str, departure: Departure) -> str:
    if departure.committed:
        return (
            f"committed records were lost: {name} knew offsets {departure.offset} to"
            f" {departure.committed - 1} to be committed, but {departure.other} has other"
            " records there, which are shown here; see metaquorum log check"
        )
    return f"{name} differs from {departure.other} at offset {departure.offset}"


def fault_lines(report: NodesReport) -> Iterator[str]:
    """What is damaged, and which nodes replace it."""
    for node in report.nodes:
        for lost in node.lost:
            by = f"read from {lost.by}" if lost.by is not None else "no node has all of them"
            yield f"{node.name} has no {offsets_text(lost.start, lost.end)}: {by}"
        yield from node.problems
        if node.departure is not None and node.departure.is_fault:
            yield _fault(node.name, node.departure)
    for start, end in report.holes:
        yield f"no node has {offsets_text(start, end)}"


def nodes_json(report: NodesReport) -> dict[str, Any]:
    """The comparison as one object."""
    return {
        "startOffset": report.start_offset,
        "endOffset": report.end_offset,
        "commonEndOffset": report.common_end,
        "holes": [{"fromOffset": start, "toOffset": end} for start, end in report.holes],
        "nodes": [
            {
                "name": node.name,
                "path": node.path,
                "nodeId": node.node_id,
                "startOffset": node.start_offset,
                "endOffset": node.end_offset,
                "leaderEpoch": node.epoch,
                "behind": node.behind,
                "lost": [{"fromOffset": at.start, "toOffset": at.end, "by": at.by} for at in node.lost],
                "departure": None if node.departure is None else _departure_json(node.departure),
                "problems": node.problems,
            }
            for node in report.nodes
        ],
    }


def _departure_json(departure: Departure) -> dict[str, Any]:
    return {
        "kind": departure.kind,
        "offset": departure.offset,
        "endOffset": departure.end_offset,
        "leaderEpoch": departure.epoch,
        "other": departure.other,
        "otherLeaderEpoch": departure.other_epoch,
        "lostCommittedBelow": departure.committed or None,
        "undoneVoterSets": departure.undone,
    }
