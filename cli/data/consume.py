"""`metaquorum consume`: reads the partitions of a topic with librdkafka, and prints their records."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import click
import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.data.cluster import KafkaCluster, property_option, text_of
from metaquorum.cli.data.rates import Progress, progress_option, rate_text
from metaquorum.cli.errors import Failure
from metaquorum.cli.given import FiniteRange
from metaquorum.cli.text.output import json_line, text_or_base64
from metaquorum.metadata.inspect.log.points import parse_point
from metaquorum.platforms import reader_is_gone


class ReadFromKind(Enum):
    """Where to start in a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


class RangePolicy(Enum):
    """What to do with a position that is not in the log."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class ReadFrom(msgspec.Struct, frozen=True):
    """Where to start. `value`: the offset, or Unix ms."""

    kind: ReadFromKind
    value: int = 0


@dataclass(slots=True)
class ConsumeOptions:
    """What the user asked for."""

    topic: str
    partitions: tuple[int, ...]
    start: ReadFrom
    group: str | None
    out_of_range: RangePolicy
    max_messages: int | None
    until_end: bool
    idle_timeout_s: float | None
    with_key: bool
    with_offsets: bool
    skip_cut: bool
    as_json: bool


@dataclass(slots=True)
class ConsumeTotals:
    """`ends`: the end offsets when the command started, where it stops. `positions`: the next offset of
    each partition that is read."""

    messages: int = 0
    size_bytes: int = 0
    began: float = 0.0
    ends: dict[int, int] | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def reached(self, partition: int, offset: int) -> None:
        """Notes the offset up to which a partition was read. Negative: unknown."""
        if offset >= 0:
            self.positions[partition] = max(offset, self.positions.get(partition, 0))


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
    type=FiniteRange(min=0.1),
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


def look_for_reader() -> None:
    """Raises BrokenPipeError if the reader of the pipe is gone, which otherwise only a write would show."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return
    if reader_is_gone(descriptor):
        raise BrokenPipeError


def print_records(plan: ConsumeOptions, records: Sequence[Message]) -> None:
    """Writes records to standard output without delay: the reader of a pipe sees each at once."""
    if plan.as_json:
        text = "".join(json_line(_as_json(each)) + "\n" for each in records).encode()
    elif plan.with_key or plan.with_offsets:
        text = b"".join(_line(plan, each) for each in records)
    else:
        text = b"\n".join([_shown(_bytes(each.value())) for each in records]) + b"\n"
    out = sys.stdout.buffer
    out.write(text)
    out.flush()


def _line(plan: ConsumeOptions, record: Message) -> bytes:
    parts: list[bytes] = []
    if plan.with_offsets:
        parts.append(b"%d:%d" % place_of(record))
    if plan.with_key:
        parts.append(_shown(_bytes(record.key())))
    parts.append(_shown(_bytes(record.value())))
    return b"\t".join(parts) + b"\n"


def _bytes(content: Any) -> bytes | None:
    return cast("bytes | None", content)


def _shown(content: bytes | None) -> bytes:
    return b"null" if content is None else content


def _as_json(record: Message) -> dict[str, Any]:
    kind, timestamp_ms = record.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    return {
        "partition": place_of(record)[0],
        "offset": place_of(record)[1],
        "timestampMs": -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **text_or_base64("key", _bytes(record.key())),
        **text_or_base64("value", _bytes(record.value())),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in headers],
    }


def place_of(record: Message) -> tuple[int, int]:
    """(partition, offset)."""
    return cast("tuple[int, int]", (record.partition(), record.offset()))


_RUN_MAX = 1000
_POLL_S = 0.2
_COMMITTED_S = 1.0
_NEW_PARTITIONS_S = 10.0
"""How often to look for partitions that were added, in seconds."""
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""Errors after which librdkafka continues by itself."""


def read(cluster: KafkaCluster, plan: ConsumeOptions, account: ConsumeTotals, progress: Progress) -> None:
    """Copies records to standard output until the plan is fulfilled. Raises Failure."""
    consumer = cluster.make(Consumer, _settings(plan))
    try:
        partitions = sorted(cluster.topic(consumer, plan.topic).partitions)
        missing = [each for each in plan.partitions if each not in partitions]
        if missing:
            raise Failure(
                f"{plan.topic} has {len(partitions)} partitions, numbered from 0,"
                f" and no partition {missing[0]}"
            )
        chosen = list(plan.partitions or partitions)
        if plan.until_end:
            marks = {each: _marks(cluster, consumer, plan, each) for each in chosen}
            account.ends = {each: high if low < high else 0 for each, (low, high) in marks.items()}
        if plan.group is not None:
            cluster.look_for_coordinator(consumer, plan.group, TopicPartition(plan.topic, chosen[0]))
            consumer.subscribe([plan.topic])
        else:
            _assign(cluster, consumer, plan, account, chosen)
        _copy(cluster, consumer, plan, account, progress)
    finally:
        consumer.close()


def _settings(plan: ConsumeOptions) -> dict[str, Any]:
    """Settings of librdkafka."""
    reset = {RangePolicy.FAIL: "error"}.get(plan.out_of_range, plan.out_of_range.value)
    if plan.group is not None and plan.out_of_range is RangePolicy.FAIL:
        # In a group, the start applies to partitions without a committed offset.
        reset = plan.start.kind.value
    return {
        "group.id": plan.group or f"metaquorum-consume-{random.SystemRandom().getrandbits(64):016x}",
        "enable.auto.commit": plan.group is not None,
        "enable.auto.offset.store": False,
        "auto.offset.reset": reset,
        "allow.auto.create.topics": False,
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
    }


def _marks(
    cluster: KafkaCluster, consumer: Consumer, plan: ConsumeOptions, partition: int
) -> tuple[int, int]:
    """(log start, end) of a partition now."""
    place = TopicPartition(plan.topic, partition)
    found: tuple[int, int] = cluster.asked(
        lambda s: consumer.get_watermark_offsets(place, timeout=s), lambda found: found, consumer
    )
    return found


def _assign(
    cluster: KafkaCluster,
    consumer: Consumer,
    plan: ConsumeOptions,
    account: ConsumeTotals,
    partitions: Sequence[int],
) -> None:
    """Starts partitions where the user asked for. Raises Failure for an offset that is out of range."""
    places = [TopicPartition(plan.topic, each, _begin(cluster, consumer, plan, each)) for each in partitions]
    if plan.start.kind is ReadFromKind.TIME:
        timed = [TopicPartition(plan.topic, each, plan.start.value) for each in partitions]
        places = cluster.asked(
            lambda s: consumer.offsets_for_times(timed, timeout=s), lambda found: found, consumer
        )
    for partition in places:
        offset = partition.offset
        if account.ends is not None and offset < 0:
            low, high = _marks(cluster, consumer, plan, partition.partition)
            offset = low if offset == OFFSET_BEGINNING else high
        account.positions[partition.partition] = offset
    consumer.incremental_assign(places)


def _begin(cluster: KafkaCluster, consumer: Consumer, plan: ConsumeOptions, partition: int) -> int:
    """The offset to start at, or librdkafka's constant for an end of the log."""
    match plan.start.kind:
        case ReadFromKind.EARLIEST:
            return OFFSET_BEGINNING
        case ReadFromKind.LATEST | ReadFromKind.TIME:
            return OFFSET_END
        case ReadFromKind.OFFSET:
            low, high = _marks(cluster, consumer, plan, partition)
            if low <= plan.start.value <= high:
                return plan.start.value
            if plan.out_of_range is RangePolicy.FAIL:
                raise Failure(
                    f"OFFSET_OUT_OF_RANGE: offset {plan.start.value} is not in the log of "
                    f"{plan.topic}-{partition}, which has {low} to {high}; start at one of these, at "
                    "earliest or at latest"
                )
            return OFFSET_BEGINNING if plan.out_of_range is RangePolicy.EARLIEST else OFFSET_END


def _read_new_partitions(
    cluster: KafkaCluster, consumer: Consumer, plan: ConsumeOptions, account: ConsumeTotals
) -> None:
    """Starts new partitions at their beginning. If the cluster does not answer, the next look finds them."""
    known = cluster.partitions_now(consumer, plan.topic) or ()
    new = [each for each in known if each not in account.positions]
    if new:
        consumer.incremental_assign([TopicPartition(plan.topic, each, OFFSET_BEGINNING) for each in new])
        account.positions |= dict.fromkeys(new, 0)


def _copy(
    cluster: KafkaCluster,
    consumer: Consumer,
    plan: ConsumeOptions,
    account: ConsumeTotals,
    progress: Progress,
) -> None:
    idle_since = looked = time.monotonic()
    grows = plan.group is None and not plan.partitions and not plan.until_end
    while not _finished(consumer, plan, account):
        messages = _taken(plan, account, consumer.consume(_RUN_MAX, _POLL_S))
        now = time.monotonic()
        if messages:
            print_records(plan, messages)
            account.messages += len(messages)
            account.size_bytes += sum(len(each.value() or b"") for each in messages)
            if plan.group is not None:
                for each in _last_of_each(messages):
                    consumer.store_offsets(each)
            idle_since = now
        else:
            cluster.check_login()
            look_for_reader()
            if plan.idle_timeout_s is not None and now - idle_since >= plan.idle_timeout_s:
                return
        if grows and now - looked >= _NEW_PARTITIONS_S:
            looked = now
            _read_new_partitions(cluster, consumer, plan, account)
        if progress.due():
            seconds = time.monotonic() - account.began
            progress.show(
                f"{account.messages:,} messages, {rate_text(account.messages, account.size_bytes, seconds)}"
            )


def _taken(plan: ConsumeOptions, account: ConsumeTotals, received: Sequence[Message]) -> list[Message]:
    """The records to print. Raises Failure for an error that is not transient."""
    messages: list[Message] = []
    for message in received:
        error = message.error()
        if error is not None:
            _judge(plan, account, message, error)
            continue
        partition, offset = place_of(message)
        if plan.max_messages is not None and account.messages + len(messages) >= plan.max_messages:
            break
        account.positions[partition] = offset + 1
        if account.ends is None or offset < account.ends.get(partition, offset + 1):
            messages.append(message)
    return messages


def _judge(plan: ConsumeOptions, account: ConsumeTotals, message: Message, error: KafkaError) -> None:
    code = error.code()
    if code in _PASSING or (code == KafkaError._LOG_TRUNCATION and plan.skip_cut):
        return
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED and plan.group is None:
        return  # librdkafka looks for the coordinator of its group even if nothing is committed
    if code == KafkaError._LOG_TRUNCATION:
        at = message.offset()
        raise Failure(
            f"the log of {plan.topic}-{message.partition()} was truncated: records already printed from "
            f"offset {at} on are lost ({error.str()}); --skip-cut continues"
        )
    raise Failure(text_of(error))


def _last_of_each(messages: Sequence[Message]) -> list[Message]:
    """The last record of each partition."""
    return list({place_of(each)[0]: each for each in messages}.values())


def _finished(consumer: Consumer, plan: ConsumeOptions, account: ConsumeTotals) -> bool:
    if plan.max_messages is not None and account.messages >= plan.max_messages:
        return True
    if account.ends is None:
        return False
    places = [TopicPartition(plan.topic, each.partition) for each in consumer.assignment()]
    if not places:
        return False
    # The end of a log may have only transaction markers and no records: librdkafka knows the position.
    for partition in (*consumer.position(places), *_committed(consumer, plan, account, places)):
        account.reached(partition.partition, partition.offset)
    return all(account.positions.get(each.partition, 0) >= account.ends[each.partition] for each in places)


def _committed(
    consumer: Consumer, plan: ConsumeOptions, account: ConsumeTotals, places: Sequence[TopicPartition]
) -> Sequence[TopicPartition]:
    """The committed positions of partitions from which nothing was read yet."""
    unread = [each for each in places if each.partition not in account.positions]
    if plan.group is None or not unread:
        return ()
    try:
        return consumer.committed(unread, timeout=_COMMITTED_S)
    except KafkaException:  # no coordinator now: ask again with the next look
        return ()
