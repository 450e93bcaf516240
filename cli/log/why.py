"""`metaquorum log why`: the records that put an entity into its state, with their causes."""

from __future__ import annotations

from typing import Any

import click

from metaquorum.cli.errors import log_exit_code
from metaquorum.cli.log.input.live import LiveCommand
from metaquorum.cli.log.input.options import (
    PATH,
    POINT,
    TARGET,
    Complaints,
    clear_progress,
    past_corruption_option,
    report_limits,
    report_unknown,
)
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.text.output import (
    json_line,
    json_option,
    secrets_option,
    shows_secrets,
    utc_text,
)
from metaquorum.metadata.inspect.answers import explanation_json, headline, plain_text, who_asked
from metaquorum.metadata.inspect.causes.table import rule_lines
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.explanation import Explanation, Link
from metaquorum.metadata.text.cause_text import asked_text


def _list_rules(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        for line in rule_lines():
            click.echo(line)
        context.exit()


@click.command(cls=LiveCommand)
@click.argument("path", type=PATH)
@click.argument("target", metavar="ENTITY[.FIELD]", type=TARGET)
@click.option(
    "--at",
    type=POINT,
    metavar="OFFSET|OFFSET+|TIME",
    help="Explain the state before this offset, after this record (4321+), or at this time.",
)
@click.option("--newest-first", is_flag=True, help="Show the last record first.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Show only the last N records.")
@click.option(
    "--rules",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_rules,
    help="List the rules behind causes, and exit.",
)
@past_corruption_option
@secrets_option
@json_option
def why(
    path: str,
    target: EntityTarget,
    at: Point | None,
    newest_first: bool,
    last: int | None,
    past_corruption: bool,
    as_json: bool,
) -> int:
    """Explain the state of ENTITY by records and their causes.

    ENTITY is topic/orders/7.leader, broker/3, config/topic/orders, quorum...
    """
    complaints = Complaints()
    log = open_path(path)
    try:
        explanation = explain(
            log,
            target,
            at or END,
            complaints,
            past_corruption=past_corruption,
            secrets=shows_secrets(),
            last=last,
        )
    finally:
        clear_progress(log)
    links = explanation.links[-last:] if last else explanation.links
    if newest_first:
        links = links[::-1]
    if as_json:
        click.echo(json_line(explanation_json(explanation, links)))
    else:
        for line in explanation_lines(explanation, links):
            click.echo(line)
    report_limits(explanation.limits.coverage, explanation.limits.shown)
    report_unknown(explanation.unknown)
    return log_exit_code(
        damaged=bool(complaints.count),
        uncovered=bool(explanation.limits.coverage),
        unknown=bool(explanation.unknown),
    )


def explanation_lines(explanation: Explanation, links: list[Link]) -> list[str]:
    """A headline with the newest causes, then each record with what it changed and why."""
    lines = [headline(explanation, secrets=shows_secrets())]
    hidden = len(explanation.links) - len(links) + explanation.dropped
    for link in links:
        place = f"{link.offset:>8}  {utc_text(link.time_ms)}  epoch {link.epoch:<3} {link.type_name}"
        stamped = "" if link.stamp_ms is None else f" (stamped {utc_text(link.stamp_ms)})"
        lines.append(f"{place}{stamped}  {_changes(link)}".rstrip())
        lines += [f"{'':10}{cause.rule}: {cause.text}" for cause in link.causes]
        if link.asked is not None:
            lines.append(f"{'':10}asked: {asked_text(link.asked)}")
    if explanation.read_from is not None:
        lines.append(
            f"earlier records are not shown: the log was read from offset {explanation.read_from} on"
        )
    elif hidden:
        lines.append(f"{count(hidden, 'earlier record')} {'is' if hidden == 1 else 'are'} not shown")
    if (said := who_asked(explanation)) is not None:
        lines.append(said)
    return lines


def _changes(link: Link) -> str:
    return ", ".join(_change(*change) for change in link.changes)


def _change(name: str, old: Any, new: Any) -> str:
    before, after = (plain_text(value, secrets=shows_secrets()) for value in (old, new))
    return f"{name} {after}" if old is None else f"{name} {before} -> {after}"
