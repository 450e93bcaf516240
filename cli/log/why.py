"""`metaquorum log why`: the records that put an entity into its state, with their causes.

Owns options and output. Does not build the chain (`metadata.inspect.why` does) and knows no rules of causes
(`metadata.inspect.causes`).
"""

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
    tell_limits,
    tell_unknown,
)
from metaquorum.cli.log.input.source import open_path
from metaquorum.cli.text.output import (
    json_line,
    json_option,
    secret_text,
    secrets_option,
    shows_secrets,
    utc_text,
)
from metaquorum.metadata.inspect.causes.cause_rules import ASKED_RULES, RULES
from metaquorum.metadata.inspect.entities.targets import EntityTarget
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.timeline.event_groups import count
from metaquorum.metadata.inspect.why.explain import explain
from metaquorum.metadata.inspect.why.explanation import Explanation, Link
from metaquorum.metadata.secrets import Redacted
from metaquorum.metadata.text.cause_text import asked_by, asked_json, asked_text

NOBODY_NAMED = "no record says who asked for it: see the request and authorizer logs of the active controller"
"""For Kafka's logs, and with `metadata.log.causes.enable=false`. Shown with every chain of such a log,
since people look for it next."""


def _list_rules(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        for name, what in RULES.items():
            click.echo(f"{name:24}  {what}")
        click.echo("\nasked: the controller itself:")
        for name, what in ASKED_RULES.items():
            click.echo(f"{name:24}  {what}")
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
        found = explain(
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
    links = found.links[-last:] if last else found.links
    if newest_first:
        links = links[::-1]
    if as_json:
        click.echo(json_line(explanation_json(found, links)))
    else:
        for line in explanation_lines(found, links):
            click.echo(line)
    tell_limits(found.limits.coverage, found.limits.shown)
    tell_unknown(found.unknown)
    return log_exit_code(
        damaged=bool(complaints.count), uncovered=bool(found.limits.coverage), unknown=bool(found.unknown)
    )


def explanation_lines(found: Explanation, links: list[Link]) -> list[str]:
    """A headline with the newest causes, then each record with what it changed and why."""
    lines = [headline(found)]
    hidden = len(found.links) - len(links) + found.dropped
    for link in links:
        place = f"{link.offset:>8}  {utc_text(link.time_ms)}  epoch {link.epoch:<3} {link.type_name}"
        stamped = "" if link.stamp_ms is None else f" (stamped {utc_text(link.stamp_ms)})"
        lines.append(f"{place}{stamped}  {_changes(link)}".rstrip())
        lines += [f"{'':10}{cause.rule}: {cause.text}" for cause in link.causes]
        if link.asked is not None:
            lines.append(f"{'':10}asked: {asked_text(link.asked)}")
    if found.read_from is not None:
        lines.append(f"earlier records are not shown: the log was read from offset {found.read_from} on")
    elif hidden:
        lines.append(f"{count(hidden, 'earlier record')} {'is' if hidden == 1 else 'are'} not shown")
    if (said := _who_asked(found)) is not None:
        lines.append(said)
    return lines


def _who_asked(found: Explanation) -> str | None:
    """The last line: which request caused the newest change. None: a link above says so."""
    if found.last is None:
        return None
    if found.last.asked is not None:
        return f"asked: {asked_text(found.last.asked)}"
    return None if any(link.asked is not None for link in found.links) else NOBODY_NAMED


def headline(found: Explanation) -> str:
    """`topic/orders/7.leader is -1 since 838 (2026-...): broker 1 was fenced at 889 ..., the ISR was [1]`."""
    link = found.last
    if link is None:
        return f"no record is about {found.target}"
    if found.exists is None and found.target.entity.startswith("controller/"):
        state = "has no registration in this log; the last record about it is"
    elif found.exists is None:
        state = "is only partly known here; the last record about it is"
    elif not found.exists:
        state = "does not exist since"
    elif found.target.field is not None:
        state = f"is {_text(found.value)} since"
    else:
        state = "was last changed at"
    causes = ", ".join(cause.text for cause in link.causes)
    return f"{found.target} {state} {link.offset} ({utc_text(link.time_ms)}): {causes}"


def explanation_json(found: Explanation, links: list[Link]) -> dict[str, Any]:
    """One object: the target, its value, and the chain in display order."""
    return {
        "entity": found.target.entity,
        "field": found.target.field,
        "endOffset": found.end_offset,
        "exists": found.exists,
        "value": found.value,
        "records": [_link_json(link) for link in links],
        "askedBy": None if found.last is None else asked_json(found.last.asked),
        "askedByText": _who_asked(found),
        "earlierRecords": None
        if found.read_from is not None
        else len(found.links) - len(links) + found.dropped,
        **({} if found.read_from is None else {"readFrom": found.read_from}),
        "shownAs": [place.tree() for place in found.limits.shown],
        "uncovered": found.limits.coverage.tree(),
    }


def _link_json(link: Link) -> dict[str, Any]:
    return {
        "offset": link.offset,
        "leaderEpoch": link.epoch,
        "createTime": link.time_ms,
        **({} if link.stamp_ms is None else {"stampedTime": link.stamp_ms}),
        "type": link.type_name,
        **asked_by(link.asked),
        "changes": [{"field": name, "before": old, "after": new} for name, old, new in link.changes],
        "causes": [
            {
                "rule": cause.rule,
                "text": cause.text,
                "offset": cause.offset,
                "broker": cause.broker_id,
                "certain": cause.certain,
            }
            for cause in link.causes
        ],
    }


def _changes(link: Link) -> str:
    return ", ".join(
        f"{name} {_text(new)}" if old is None else f"{name} {_text(old)} -> {_text(new)}"
        for name, old, new in link.changes
    )


def _text(value: Any) -> str:
    if isinstance(value, Redacted):
        return secret_text(value)
    if isinstance(value, list):
        return "[" + ",".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json_line(value)
    return "none" if value is None else str(value)
