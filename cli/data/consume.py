"""`metaquorum consume`: prints the records of a topic.

Owns the command line and the summary. Does not read (`reading`) and does not print records (`printing`).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from confluent_kafka import KafkaException

from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.data.cluster import KafkaCluster, property_option, text_of
from metaquorum.cli.data.consume_plan import (
    ConsumeOptions,
    ConsumeTotals,
    RangePolicy,
    ReadFrom,
    ReadFromKind,
)
from metaquorum.cli.data.rates import Progress, progress_option, rate_text
from metaquorum.cli.data.reading import read
from metaquorum.cli.errors import Failure
from metaquorum.metadata.inspect.log.points import parse_point


class StartType(click.ParamType):  # type: ignore[type-arg]
    name = "earliest|latest|OFFSET|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ReadFrom:
        if isinstance(value, ReadFrom):
            return value
        if value in ("earliest", "latest"):
            return ReadFrom(ReadFromKind(value))
        try:
            point = parse_point(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a position in a topic; write earliest, latest, an offset such as 4321, or "
                "a time such as 2026-11-21T03:07:57Z, 2026-11-21 or @ followed by milliseconds since "
                "1970",
                param,
                ctx,
            )
        if point.offset is not None:
            return ReadFrom(ReadFromKind.OFFSET, point.offset)
        return (
            ReadFrom(ReadFromKind.LATEST)
            if point.time_ms is None
            else ReadFrom(ReadFromKind.TIME, point.time_ms)
        )


@click.command()
@cluster_options
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=StartType(),
    default="earliest",
    show_default=True,
    help="Where to start reading each partition.",
)
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read only this partition; may be repeated.",
)
@click.option(
    "--max-messages", metavar="N", type=click.IntRange(min=1), help="Stop after this many messages."
)
@click.option(
    "--until-end/--follow",
    default=False,
    help="Stop at the current end of the topic, or wait for more (the default).",
)
@click.option(
    "--idle-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="Stop after this many seconds without a message.",
)
@click.option("--key", "with_key", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "--offsets", "with_offsets", is_flag=True, help="Print partition:offset and a tab before each line."
)
@click.option(
    "--out-of-range",
    type=click.Choice([each.value for each in RangePolicy]),
    default="fail",
    show_default=True,
    help="Where to continue when the position is out of range.",
)
@click.option(
    "--skip-cut",
    is_flag=True,
    help="Continue when an unclean election truncated the log, instead of stopping.",
)
@click.option(
    "--group", metavar="NAME", help="Read as a member of this consumer group, and commit what was printed."
)
@property_option
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def consume(  # noqa: PLR0913
    options: ClusterOptions,
    topic: str,
    start: ReadFrom,
    partitions: tuple[int, ...],
    max_messages: int | None,
    until_end: bool,
    idle_timeout: float | None,
    with_key: bool,
    with_offsets: bool,
    out_of_range: str,
    skip_cut: bool,
    group: str | None,
    properties: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
) -> None:
    """Print the records of a topic. One value per line, null for a null value; each partition in order.

    Waits for new records until interrupted, unless an option says when to stop.
    """
    if group is not None and partitions:
        raise click.UsageError("members of a group share the partitions; leave out --partition or --group")
    if group is not None and start.kind in (ReadFromKind.OFFSET, ReadFromKind.TIME):
        raise click.UsageError("a group continues where it committed; give --from earliest or latest")
    if progress is None and sys.stdout.isatty():
        progress = False
    plan = ConsumeOptions(
        topic=topic,
        partitions=tuple(dict.fromkeys(partitions)),
        start=start,
        max_messages=max_messages,
        until_end=until_end,
        idle_timeout_s=idle_timeout,
        with_key=with_key,
        with_offsets=with_offsets,
        as_json=as_json,
        group=group,
        out_of_range=RangePolicy(out_of_range),
        skip_cut=skip_cut,
    )
    account = ConsumeTotals(began=time.monotonic())
    shown = Progress(progress)
    try:
        read(KafkaCluster(options, properties), plan, account, shown)
    except KafkaException as error:
        raise Failure(text_of(error)) from error
    finally:
        shown.clear()
    if shown.shown:
        seconds = time.monotonic() - account.began
        rate = rate_text(account.messages, account.size_bytes, seconds)
        click.echo(f"{account.messages:,} messages in {seconds:.3g} s: {rate}", err=True)
