"""`metaquorum consume`: records of a topic to standard output.

Owns the forms in which records are printed and when the command ends. The output may be closed at any time.
"""

from __future__ import annotations

import base64
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import uvloop

from metaquorum.cli.client import ClientOptions, client_options
from metaquorum.cli.data.rates import Progress, progress_option, rate_text
from metaquorum.cli.errors import Failure, one_line
from metaquorum.cli.text.output import json_line
from metaquorum.metadata.inspect.log.points import parse_point
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.data_client.connections import GrpcConnections
from metaquorum.runtime.data_client.consumer import (
    Consumer,
    ConsumerConfig,
    OutOfRange,
    PolledRecords,
    Start,
    StartKind,
)
from metaquorum.runtime.data_client.consuming.records import Record

_POLL_MS = 500


@dataclass(slots=True)
class ConsumeOptions:
    """What the user asked for."""

    topic: str
    partitions: tuple[int, ...]
    start: Start
    max_messages: int | None
    until_end: bool
    idle_timeout_s: float | None
    with_key: bool
    with_offsets: bool
    as_json: bool
    config: ConsumerConfig


@dataclass(slots=True)
class ConsumeTotals:
    messages: int = 0
    size_bytes: int = 0
    began: float = 0.0


class StartType(click.ParamType):  # type: ignore[type-arg]
    name = "earliest|latest|OFFSET|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        if value in ("earliest", "latest"):
            return Start(StartKind(value))
        try:
            point = parse_point(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a place in a topic; write earliest, latest, an offset such as 4321, or "
                "a time such as 2026-11-21T03:07:57Z, 2026-11-21 or @ followed by milliseconds since "
                "1970",
                param,
                ctx,
            )
        if point.offset is not None:
            return Start(StartKind.OFFSET, point.offset)
        return Start(StartKind.LATEST) if point.time_ms is None else Start(StartKind.TIME, point.time_ms)


@click.command()
@client_options
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
    type=click.IntRange(min=0),
    multiple=True,
    help="Read only this partition; may be repeated.",
)
@click.option("--max-messages", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option(
    "--until-end/--follow",
    default=False,
    help="Stop at the current end of the topic, or wait for more (the default).",
)
@click.option(
    "--idle-timeout", type=click.FloatRange(min=0.1), help="Stop after this many seconds without a message."
)
@click.option("--key", "with_key", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "--offsets", "with_offsets", is_flag=True, help="Print partition:offset and a tab before each line."
)
@click.option(
    "--out-of-range",
    type=click.Choice([each.value for each in OutOfRange]),
    default="fail",
    show_default=True,
    help="Where to continue when the position is not in the log.",
)
@click.option(
    "--skip-cut",
    is_flag=True,
    help="Continue when an unclean election truncated the log, instead of stopping.",
)
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def consume(  # noqa: PLR0913
    options: ClientOptions,
    topic: str,
    start: Start,
    partitions: tuple[int, ...],
    max_messages: int | None,
    until_end: bool,
    idle_timeout: float | None,
    with_key: bool,
    with_offsets: bool,
    out_of_range: str,
    skip_cut: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Print the records of TOPIC, one value per line. Records of one partition stay in order.

    Waits for new records until interrupted, unless an option says when to stop. A null value is printed as
    null.
    """
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
        config=ConsumerConfig(
            metadata_timeout_ms=options.timeout_ms,
            out_of_range=OutOfRange(out_of_range),
            go_on_after_cut=skip_cut,
        ),
    )
    account = ConsumeTotals(began=time.monotonic())
    shown = Progress(progress)
    try:
        uvloop.run(_consume(options, plan, account, shown))
    except ClientError as error:
        raise Failure(one_line(error)) from error
    finally:
        shown.clear()
    if shown.shown:
        seconds = time.monotonic() - account.began
        rate = rate_text(account.messages, account.size_bytes, seconds)
        click.echo(f"{account.messages:,} messages in {seconds:.3g} s: {rate}", err=True)


async def _consume(
    options: ClientOptions, plan: ConsumeOptions, account: ConsumeTotals, progress: Progress
) -> None:
    connections = GrpcConnections(options.tls.material())
    try:
        async with Consumer(connections, options.addresses(), plan.config) as consumer:
            count = await consumer.partitions(plan.topic)
            chosen = plan.partitions or range(count)
            await consumer.assign({(plan.topic, each): plan.start for each in chosen})
            ends = await _ends(consumer, plan) if plan.until_end else None
            await _copy(consumer, plan, account, progress, ends)
    finally:
        await connections.close()


async def _ends(consumer: Consumer, plan: ConsumeOptions) -> dict[tuple[str, int], int]:
    """Where each partition ends now. A start behind that is refused or moved here as a leader would have it,
    for no leader will be asked. Raises Failure."""
    ends = await consumer.end_offsets()
    beyond = {name: at for name, at in consumer.positions().items() if at > ends[name]}
    if beyond and plan.config.out_of_range is OutOfRange.FAIL:
        (topic, partition), at = min(beyond.items())
        raise Failure(
            f"OFFSET_OUT_OF_RANGE: offset {at} is not in the log of {topic}-{partition}, which ends at "
            f"{ends[topic, partition]}; start there or before, at earliest or at latest"
        )
    if beyond:
        moved = Start(StartKind(plan.config.out_of_range.value))
        await consumer.assign(dict.fromkeys(beyond, moved))
    return ends


async def _read_new_partitions(consumer: Consumer, plan: ConsumeOptions) -> None:
    """Partitions that were added since, from their beginning; where only some are wanted, none."""
    count = await consumer.partitions(plan.topic)
    assigned = consumer.positions()
    new = [(plan.topic, index) for index in range(count) if (plan.topic, index) not in assigned]
    if new and not plan.partitions:
        await consumer.assign(dict.fromkeys(new, Start(StartKind.EARLIEST)))


async def _copy(
    consumer: Consumer,
    plan: ConsumeOptions,
    account: ConsumeTotals,
    progress: Progress,
    ends: dict[tuple[str, int], int] | None,
) -> None:
    idle_since = time.monotonic()
    while not _finished(consumer, plan, account, ends):
        if ends is None:
            await _read_new_partitions(consumer, plan)
        chunk = await consumer.poll(_POLL_MS)
        if chunk is None:
            _look_for_reader()
            if plan.idle_timeout_s is not None and time.monotonic() - idle_since >= plan.idle_timeout_s:
                return
        else:
            records = chunk.records
            if ends is not None:
                end = ends[chunk.topic, chunk.partition]
                if chunk.next_offset > end:
                    records = [each for each in records if each.offset < end]
            if plan.max_messages is not None:
                records = records[: plan.max_messages - account.messages]
            _print(plan, chunk, records)
            account.messages += len(records)
            account.size_bytes += sum(len(each.value or b"") for each in records)
            idle_since = time.monotonic()
        if progress.due():
            seconds = time.monotonic() - account.began
            progress.show(
                f"{account.messages:,} messages, {rate_text(account.messages, account.size_bytes, seconds)}"
            )


def _look_for_reader() -> None:
    """While nothing is written no one says that the pipe's reader went away. Raises BrokenPipeError."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return
    watch = select.poll()
    watch.register(descriptor, 0)
    if any(events & select.POLLERR for _, events in watch.poll(0)):
        raise BrokenPipeError


def _finished(
    consumer: Consumer, plan: ConsumeOptions, account: ConsumeTotals, ends: dict[tuple[str, int], int] | None
) -> bool:
    if plan.max_messages is not None and account.messages >= plan.max_messages:
        return True
    if ends is None:
        return False
    return all(offset >= ends[name] for name, offset in consumer.positions().items())


def _print(plan: ConsumeOptions, chunk: PolledRecords, records: Sequence[Record]) -> None:
    """To standard output at once: who reads a pipe sees every record as soon as it is here."""
    if not records:
        return
    if plan.as_json:
        text = "".join(json_line(_as_json(chunk, each)) + "\n" for each in records).encode()
    elif plan.with_key or plan.with_offsets:
        text = b"".join(_line(plan, chunk, each) for each in records)
    else:
        text = b"\n".join([b"null" if each.value is None else each.value for each in records]) + b"\n"
    out = sys.stdout.buffer
    out.write(text)
    out.flush()


def _line(plan: ConsumeOptions, chunk: PolledRecords, record: Record) -> bytes:
    parts: list[bytes] = []
    if plan.with_offsets:
        parts.append(b"%d:%d" % (chunk.partition, record.offset))
    if plan.with_key:
        parts.append(b"null" if record.key is None else record.key)
    parts.append(b"null" if record.value is None else record.value)
    return b"\t".join(parts) + b"\n"


def _as_json(chunk: PolledRecords, record: Record) -> dict[str, Any]:
    return {
        "partition": chunk.partition,
        "offset": record.offset,
        "timestampMs": record.timestamp_ms,
        **_named("key", record.key),
        **_named("value", record.value),
        "headers": [{**_named("name", name), **_named("value", value)} for name, value in record.headers],
    }


def _named(name: str, content: bytes | None) -> dict[str, str | None]:
    """Text as it is; what is no UTF-8 in base64, under a name that says so."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(content).decode()}
