"""`metaquorum log check`: checks the invariants over logs, and whether the logs of a quorum agree.

Options, output and exit codes: 0 no errors (warnings are printed), 11 a rule of severity error is broken or
two logs differ, 1 damage, 3 records that this release does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from metaquorum.cli.errors import EXIT_VIOLATIONS, Failure, log_exit_code, print_problem
from metaquorum.cli.log.input.live import VOTERS, LiveCommand
from metaquorum.cli.log.input.nodes import nodes_json, nodes_lines
from metaquorum.cli.log.input.options import (
    PATH,
    clear_progress,
    offsets_text,
    past_corruption_option,
    report_unknown,
)
from metaquorum.cli.log.input.source import MetadataLog, open_paths
from metaquorum.cli.text.output import json_line, json_option, utc_text
from metaquorum.metadata.inspect.checks.check import Finding, LogReport, check_log
from metaquorum.metadata.inspect.log.quorum import voter_set_texts
from metaquorum.metadata.inspect.nodes.matching import Divergence, QuorumReport, check_quorum
from metaquorum.metadata.inspect.nodes.merge import EPOCHS, NodesReport
from metaquorum.metadata.inspect.nodes.merged_log import MergedLog
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.walk.states import OnProblem
from metaquorum.metadata.invariants import ERROR
from metaquorum.metadata.text.addresses import address_text

if TYPE_CHECKING:
    from metaquorum.clients.kafka.quorum import VoterReport

_SHOWN_OF_A_RULE = 5


@click.command(cls=LiveCommand)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option("--all", "show_all", is_flag=True, help="Show every finding of every rule.")
@past_corruption_option
@json_option
def check(paths: tuple[str, ...], strict: bool, show_all: bool, past_corruption: bool, as_json: bool) -> int:
    """Check every invariant, and the log against its snapshots.

    Given the logs of several nodes of one quorum, also checks that they are one log (same offset and epoch,
    same bytes) and that their snapshots agree. Names the first difference by offset and entity, and any node
    that knows of committed records that the others lost. With --bootstrap it reads the leader's log, and says
    of each voter whether it follows that leader, and how far behind it is.
    """
    logs = open_paths(paths)
    seen: set[str] = set()
    try:
        report = check_quorum(logs, lambda log: _warner(log, seen), past_corruption=past_corruption)
        nodes = _as_one(logs, report, seen)
    finally:
        for log in logs:
            clear_progress(log)
    voters = _voters()
    if as_json:
        more = {"nodes": None if nodes is None else nodes_json(nodes), **voters_json(voters)}
        click.echo(json_line({**report_json(report), **more}))
    else:
        for line in (*report_lines(report, show_all), *(() if nodes is None else nodes_lines(nodes))):
            click.echo(line)
        for line in voters_lines(voters):
            click.echo(line)
    if report.not_compared is not None:
        print_problem(f"not compared: {report.not_compared}")
    return _exit_code(report, strict)


def _voters() -> list[VoterReport] | None:
    """The voters of a running quorum; None for files, and if no controller names them, which it reports."""
    ask = click.get_current_context().meta.get(VOTERS)
    try:
        return None if ask is None else ask()
    except Failure as error:
        print_problem(f"the voters are unknown: {error.format_message()}")
        return None


def voters_lines(voters: list[VoterReport] | None) -> Iterator[str]:
    """One line per voter, and how to compare what could not be read."""
    yield from (f"  {each.line}" for each in voters or ())
    if any(not each.was_read for each in voters or ()):
        yield (
            "  whether the voters hold the same records, only their files show, as controllers hand out their"
            " log while they lead: metaquorum log check DIRECTORY..., with the log directories of all of them"
        )


def voters_json(voters: list[VoterReport] | None) -> dict[str, Any]:
    """`clusterVoters`; nothing for files."""
    if voters is None:
        return {}
    return {
        "clusterVoters": [
            {
                "nodeId": voter.node_id,
                "address": None if voter.address is None else address_text(*voter.address),
                "recordsCompared": voter.was_read,
                "inOrder": voter.is_in_order,
                "endOffset": voter.end_offset if voter.end_offset >= 0 else None,
                "behind": voter.behind,
                "text": voter.text,
            }
            for voter in voters
        ]
    }


def _as_one(logs: list[MetadataLog], report: QuorumReport, seen: set[str]) -> NodesReport | None:
    """If some of several nodes' logs are damaged: what the other nodes replace, and a check of all of them as
    one log, which is added to the report."""
    whole, nodes = [log for log in logs if not log.is_checkpoint], report.nodes
    if nodes is None or len(whole) < 2 or not (report.is_damaged or any(one.problems for one in report.logs)):
        return None
    merged = MergedLog(whole, nodes, f"{len(whole)} nodes as one log")
    report.logs.append(check_log(merged, _warner(merged, seen)))
    return nodes


def _warner(log: MetadataLog, seen: set[str]) -> OnProblem:
    def warn_once(line: str) -> None:
        if line not in seen:
            seen.add(line)
            clear_progress(log)
            print_problem(line)

    return warn_once


def _exit_code(report: QuorumReport, strict: bool) -> int:
    if report.has_errors or (strict and any(one.findings for one in report.logs)):
        return EXIT_VIOLATIONS
    unknown = sum(one.unknown for one in report.logs)
    report_unknown(unknown)
    return log_exit_code(
        damaged=report.not_compared is not None
        or report.is_damaged
        or any(one.problems for one in report.logs),
        uncovered=any(one.coverage for one in report.logs),
        unknown=bool(unknown),
    )


def report_lines(report: QuorumReport, show_all: bool) -> Iterator[str]:
    """A summary per log with its findings, then how the logs compare."""
    for one in report.logs:
        yield _log_line(one)
        yield from _findings(one, show_all)
        yield from (f"  not covered: {uncovered.line}" for uncovered in one.coverage)
    if len(report.lags) > 1:
        yield (
            f"{len(report.lags)} logs side by side: {count(report.compared, 'batch')} compared,"
            f" {count(report.snapshots_compared, 'snapshot')} compared,"
            f" {count(len(report.divergences), 'difference')}"
        )
        longest = next(path for path, lag in report.lags.items() if lag == 0)
        yield from (
            f"  {path} ends {count(lag, 'offset')} before {longest}"
            for path, lag in report.lags.items()
            if lag
        )
    if report.voters:
        yield f"voters at the end: {', '.join(voter_set_texts(report.voters))}"
    yield from report.not_voting
    for divergence in report.divergences:
        yield from _divergence_lines(divergence, is_lost=bool(report.losses))
    yield from map(str, report.losses)


def _log_line(report: LogReport) -> str:
    errors = len(report.errors)
    warnings = len(report.findings) - errors
    parts = [offsets_text(report.start_offset, report.end_offset), f"epoch {report.epoch}"]
    if not report.log.is_checkpoint:
        parts += [count(report.batches, "batch"), count(report.records, "record")]
        older = f", {report.older_snapshots} older read" if report.older_snapshots else ""
        parts.append(f"{count(report.snapshots, 'snapshot')} compared{older}")
    counts = [count(errors, "error"), count(warnings, "warning")]
    if report.problems:
        counts.append(count(len(report.problems), "problem"))
    if report.dropped:
        counts.append(count(report.dropped, "more finding"))
    return f"{report.log.name}: {', '.join(parts)}: {', '.join(counts)}"


def _findings(report: LogReport, show_all: bool) -> Iterator[str]:
    by_rule: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, of_rule in by_rule.items():
        shown = of_rule if show_all else of_rule[:_SHOWN_OF_A_RULE]
        for finding in shown:
            still = ", and still at the end" if (rule, finding.where) in report.lasting else ""
            yield (
                f"  offset {finding.offset}  {utc_text(finding.time_ms)}  {finding.severity} {rule} at"
                f" {finding.where}: {finding.text}{still}"
            )
        if len(shown) < len(of_rule):
            yield f"  and {len(of_rule) - len(shown)} more of {rule}; see them with --all"


def _divergence_lines(divergence: Divergence, *, is_lost: bool) -> Iterator[str]:
    pair = f"{divergence.path} and {divergence.other}"
    yield f"{divergence.kind}: {pair} first at offset {divergence.offset}, {divergence.entity}"
    yield f"  {divergence.text}"
    if divergence.kind == EPOCHS and not is_lost:  # otherwise the lines below say what was committed
        low, high = sorted((divergence.epoch, divergence.other_epoch))
        yield (
            f"  epochs {divergence.epoch} and {divergence.other_epoch}: if epoch {high} was committed"
            f" here, epoch {low} was not; its node truncates it when it rejoins"
        )
        yield from (f"  with it goes {undone}" for undone in divergence.undone)


def report_json(report: QuorumReport) -> dict[str, Any]:
    """One object: the logs and how they compare."""
    return {
        "sound": report.is_sound,
        "logs": [_log_json(one) for one in report.logs],
        "batchesCompared": report.compared,
        "snapshotsCompared": report.snapshots_compared,
        "lags": report.lags,
        "differences": [
            {
                "kind": divergence.kind,
                "path": divergence.path,
                "other": divergence.other,
                "offset": divergence.offset,
                "leaderEpoch": divergence.epoch,
                "otherLeaderEpoch": divergence.other_epoch,
                "entity": divergence.entity,
                "text": divergence.text,
                "undoneVoterSets": divergence.undone,
            }
            for divergence in report.divergences
        ],
        "voterSet": voter_set_texts(report.voters),
        "notVoting": report.not_voting,
        "lostCommitted": [{**structs.asdict(one), "text": str(one)} for one in report.losses],
        "notCompared": report.not_compared,
        "uncovered": [range_ for one in report.logs for range_ in one.coverage.tree()],
    }


def _log_json(report: LogReport) -> dict[str, Any]:
    return {
        "path": report.log.path,
        "startOffset": report.start_offset,
        "endOffset": report.end_offset,
        "leaderEpoch": report.epoch,
        "batches": report.batches,
        "records": report.records,
        "snapshots": report.snapshots,
        "unknownRecords": report.unknown,
        "errors": len([finding for finding in report.findings if finding.severity == ERROR]),
        "findings": [
            {**structs.asdict(finding), "lasting": (finding.rule, finding.where) in report.lasting}
            for finding in report.findings
        ],
        "findingsDropped": report.dropped,
        "problems": report.problems,
        "sound": report.is_sound,
        "uncovered": report.coverage.tree(),
    }
