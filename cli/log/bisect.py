"""`metaquorum log bisect`: finds the first record at which a check or a predicate turns false.

Options, output and exit codes: 0 found, 12 it never turns false.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from metaquorum.cli.errors import (
    EXIT_FAILED,
    EXIT_NEVER_FALSE,
    EXIT_NOT_COVERED,
    EXIT_USAGE,
    log_exit_code,
    print_problem,
)
from metaquorum.cli.log.input.live import LiveCommand
from metaquorum.cli.log.input.options import (
    PATH,
    POINT,
    Checked,
    Complaints,
    clear_progress,
    complete_checks,
    offsets_text,
    past_corruption_option,
    report_limits,
    report_unknown,
)
from metaquorum.cli.log.input.source import MetadataLog, open_path
from metaquorum.cli.log.time_text import fields_text, value_text
from metaquorum.cli.text.output import json_line, json_option, secrets_option, shows_secrets, utc_text
from metaquorum.metadata.inspect.answers import bisection_json
from metaquorum.metadata.inspect.checks.bisect import BINARY, Bisection, bisect
from metaquorum.metadata.inspect.checks.checks import HEALTH, STEP_RULES, Check, named_check, predicate_check
from metaquorum.metadata.inspect.checks.predicate import PredicateError, compile_predicate
from metaquorum.metadata.inspect.checks.predicate_names import HELPERS, IMAGE_RULES
from metaquorum.metadata.inspect.entities.diff import ADDED, CHANGED, EntityChange
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.text.dump import payload_json

_SHOWN_CHANGES = 20
CHECK = Checked("check", str, complete_checks)


@click.command(cls=LiveCommand, name="bisect")
@click.argument("path", type=PATH, required=False)
@click.option("--check", "check_name", type=CHECK, metavar="NAME", help="A named check; see --list.")
@click.option(
    "--predicate", metavar="EXPR", help="A Python expression that is true while the state is correct."
)
@click.option(
    "--monotone",
    is_flag=True,
    help="Once false, EXPR stays false; allows a binary search over the snapshots.",
)
@click.option(
    "--from",
    "start",
    type=POINT,
    metavar="OFFSET|OFFSET+|TIME",
    help="Start with the state at this position.",
)
@click.option("--to", "end", type=POINT, metavar="OFFSET|OFFSET+|TIME", help="Stop at this position.")
@click.option("--all-changes", is_flag=True, help="Show the whole state diff, regardless of its length.")
@click.option("--list", "list_names", is_flag=True, help="List the checks and the names that EXPR may use.")
@past_corruption_option
@secrets_option
@json_option
def bisect_command(  # noqa: PLR0913
    path: str | None,
    check_name: str | None,
    predicate: str | None,
    monotone: bool,
    start: Point | None,
    end: Point | None,
    all_changes: bool,
    list_names: bool,
    past_corruption: bool,
    as_json: bool,
) -> int:
    """Find the first offset at which a check turns false. Shows the record and what it changed.

    Exit code 0: found. 12: the check never turns false, and the whole log was read and understood.
    """
    if list_names:
        _list()
        return 0
    if path is None:
        raise click.UsageError("give the PATH of a log, or --bootstrap")
    complaints = Complaints()
    try:
        check = _check(check_name, predicate, monotone)
        log = open_path(path)
        try:
            bisection = bisect(log, check, start, end or END, complaints, past_corruption=past_corruption)
        finally:
            clear_progress(log)
    except PredicateError as error:
        print_problem(f"--predicate: {error}")
        return EXIT_USAGE
    if as_json:
        click.echo(json_line(bisection_json(bisection, secrets=shows_secrets())))
    else:
        for line in bisection_lines(bisection, None if all_changes else _SHOWN_CHANGES):
            click.echo(line)
    report_limits(bisection.limits.coverage, bisection.limits.shown)
    uncovered = bool(bisection.limits.coverage)
    if bisection.is_found:
        return EXIT_NOT_COVERED if uncovered else 0
    for line in _unreached(log, bisection, end):
        print_problem(line)
    if complaints.count or bisection.never_defined:
        return EXIT_FAILED
    report_unknown(bisection.unknown)
    unsure = log_exit_code(damaged=False, uncovered=uncovered, unknown=bool(bisection.unknown))
    return unsure or EXIT_NEVER_FALSE


def _unreached(log: MetadataLog, bisection: Bisection, end: Point | None) -> Iterator[str]:
    """If nothing was found, whether the search ended before --to."""
    if end is None:
        return
    if end.offset is not None and end.offset > bisection.end_offset and log.end_offset < end.offset:
        yield f"{log.name} ends at offset {log.end_offset}, before {end.offset}"
    elif not bisection.batches and bisection.method != BINARY:
        yield "no batch is between --from and --to: only the state at --from was checked"


def _check(name: str | None, predicate: str | None, monotone: bool) -> Check:
    if (name is None) == (predicate is None):
        raise click.UsageError("give either --check NAME or --predicate EXPR; see --list")
    if name is not None:
        if monotone:
            raise click.UsageError("--monotone needs --predicate: named checks can turn true again")
        try:
            return named_check(name)
        except ValueError as error:
            raise click.UsageError(f"--check: {error}") from error
    return predicate_check(compile_predicate(predicate or ""), vouched=monotone)


def _list() -> None:
    click.echo("checks:")
    for name, text in HEALTH.items():
        click.echo(f"  {name:28} {text}")
    click.echo(f"  and each rule of docs/invariants.md: {', '.join((*IMAGE_RULES, *STEP_RULES))}")
    click.echo("names in EXPR:")
    for name, text in HELPERS.items():
        click.echo(f"  {name:28} {text}")


def bisection_lines(bisection: Bisection, limit: int | None) -> list[str]:
    """The search method, the record, and what its batch changed (at most `limit` entities)."""
    lines = [_method(bisection)]
    step = bisection.step
    if step is None:
        if bisection.always_false:
            return [
                *lines,
                f"false from the first state, at offset {bisection.from_offset}: {bisection.check}",
            ]
        if bisection.never_defined:
            asks = "never true nor false, because it refers to something that does not exist"
            return [*lines, f"{asks}: {bisection.check}"]
        return [*lines, f"never turns false up to offset {bisection.end_offset - 1}: {bisection.check}"]
    offset = step.offset if bisection.record is None else bisection.record.offset
    lines.append(
        f"turned false at offset {offset} ({utc_text(step.time_ms)}, epoch {step.epoch}): {bisection.check}"
    )
    if bisection.record is not None:
        payload = payload_json(bisection.record.record, bisection.record.version, secrets=shows_secrets())
        lines.append(f"  {payload['type']} v{payload['version']} {json_line(payload['data'])}")
    if len(step.records) > 1:
        records = count(len(step.records), "record")
        lines.append(f"  in the batch of offsets {step.offset} to {step.next_offset - 1}, {records}")
    changes = bisection.changes()
    lines.append(f"what the batch changed ({count(len(changes), 'entity')}):")
    lines += [f"  {_change_line(change)}" for change in (changes if limit is None else changes[:limit])]
    if limit is not None and len(changes) > limit:
        lines.append(f"  and {len(changes) - limit} more; see them with --all-changes")
    return lines


def _change_line(change: EntityChange) -> str:
    """An entity on one line, without its cause: the batch is the cause of every change."""
    if change.kind == CHANGED:
        fields = ", ".join(f"{at.name} {value_text(at.old)} -> {value_text(at.new)}" for at in change.fields)
        return f"~ {change.entity}: {fields}"
    if change.kind == ADDED:
        return f"+ {change.entity}: {fields_text({at.name: at.new for at in change.fields})}"
    return f"- {change.entity}: {fields_text({at.name: at.old for at in change.fields})}"


def _method(bisection: Bisection) -> str:
    where = offsets_text(bisection.from_offset, bisection.end_offset)
    looked = f"{count(bisection.batches, 'batch')} checked"
    if bisection.method == BINARY:
        return (
            f"{bisection.method} over {count(bisection.snapshots, 'snapshot')} ({bisection.loaded} loaded),"
            f" then {looked}; {bisection.reason}"
        )
    return f"{bisection.method} of {where}, {looked}; {bisection.reason}"
