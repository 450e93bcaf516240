"""`metaquorum produce`: writes lines of standard input, or generated messages, to a topic.

An interruption flushes what was taken, and reports how much was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from metaquorum.cli.cluster import ClusterOptions, cluster_options
from metaquorum.cli.data.cluster import KafkaCluster, property_option, text_of
from metaquorum.cli.data.rates import Latencies, Progress, progress_option, rate_text, rates_json
from metaquorum.cli.errors import EXIT_INTERRUPTED, Failure, print_problem
from metaquorum.cli.given import FiniteRange
from metaquorum.cli.interrupts import EXIT_TERMINATED
from metaquorum.cli.text.output import echo_json
from metaquorum.platforms import handle_signal, run_loop

_ACKS = ("all", "1", "0")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_QUEUE_MESSAGES = 100_000
_QUEUE_KBYTES = 256 * 1024
_PAUSE_S = 0.002
"""Wait between two looks for acknowledgements, in seconds."""
_TICK_S = 0.02
_UNKNOWN_FATE = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._TRANSPORT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
_ENDINGS = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


@dataclass(slots=True)
class ProduceOptions:
    """What the user asked for."""

    topic: str
    partition: int | None
    key_separator: bytes | None
    per_second: float | None
    generate: tuple[int, int] | None
    acks: str
    settings: dict[str, Any]


@dataclass(slots=True)
class ProduceTotals:
    """What happened to the messages. `ended_by`: the signal that ended the command."""

    acknowledged: int = 0
    failed: int = 0
    size_bytes: int = 0
    taken: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    problem: str | None = None
    maybe_stored: bool = False
    first: float | None = None
    last: float = 0.0
    ended_by: signal.Signals | None = None
    fatal: str | None = None
    """The error after which the client gave up all its messages, without a reason for each."""

    @property
    def seconds(self) -> float:
        """Seconds from the first message that was taken to the last acknowledgement."""
        return 0.0 if self.first is None else max(0.0, self.last - self.first)

    def settled(self, error: KafkaError | None, message: Message) -> None:
        """Takes librdkafka's report on one message."""
        self.last = time.monotonic()
        if error is not None:
            self.failed += 1
            self.problem = self.problem or text_of(error)
            self.maybe_stored = self.maybe_stored or error.code() in _UNKNOWN_FATE
            return
        self.acknowledged += 1
        self.size_bytes += len(message)
        self.latencies.note(message.latency() or 0.0)


@click.command()
@cluster_options
@click.argument("topic")
@click.option(
    "--partition",
    metavar="N",
    type=click.IntRange(min=0),
    help="Partition to write to. Default: by key, or batch by batch.",
)
@click.option("--key-separator", metavar="TEXT", help="Split each line into key and value at TEXT.")
@click.option(
    "--acks",
    type=click.Choice(_ACKS),
    default="all",
    show_default=True,
    help="Replicas that must acknowledge: all in sync, the leader (1), none (0).",
)
@click.option(
    "--batch-bytes",
    metavar="BYTES",
    type=click.IntRange(1, 4 * 1024 * 1024),
    default=65536,
    show_default=True,
    help="Maximum bytes per batch.",
)
@click.option(
    "--linger-ms",
    metavar="MS",
    type=click.IntRange(0, 60_000),
    default=5,
    show_default=True,
    help="Maximum time to wait for a batch to fill.",
)
@click.option(
    "--compression", type=click.Choice(_CODECS), default="none", show_default=True, help="Codec of batches."
)
@click.option(
    "--rate", metavar="N", type=FiniteRange(min=0, min_open=True), help="Maximum messages per second."
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=1),
    help="Generate this many messages instead of reading input.",
)
@click.option(
    "--size",
    metavar="BYTES",
    type=click.IntRange(0, 1024 * 1024),
    help="Bytes per generated message. Default: 100.",
)
@click.option(
    "--delivery-timeout",
    metavar="SECONDS",
    type=FiniteRange(min=0.1),
    default=120.0,
    show_default=True,
    help="Time limit in seconds for the acknowledgement of a message.",
)
@property_option
@progress_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def produce(  # noqa: PLR0913
    options: ClusterOptions,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    acks: str,
    batch_bytes: int,
    linger_ms: int,
    compression: str,
    rate: float | None,
    count: int | None,
    size: int | None,
    delivery_timeout: float,
    properties: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
) -> int:
    """Write lines or generated messages to a topic. Lines come from standard input.

    With --acks all, messages are stored once and in order, even after retries. The summary counts
    acknowledged messages. Exit code 1 if any message was not acknowledged.
    """
    if size is not None and count is None:
        raise click.UsageError("--size is for generated messages; add --count")
    if key_separator is not None and count is not None:
        raise click.UsageError("generated messages have no keys; leave out --key-separator or --count")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty; give the text between key and value")
    plan = ProduceOptions(
        topic=topic,
        partition=partition,
        key_separator=None if key_separator is None else key_separator.encode(),
        per_second=rate,
        generate=None if count is None else (count, 100 if size is None else size),
        acks=acks,
        settings=_settings(acks, batch_bytes, linger_ms, compression, int(delivery_timeout * 1000)),
    )
    account = ProduceTotals()
    shown = Progress(progress)
    cluster = KafkaCluster(options, properties)
    producer = cluster.make(Producer, plan.settings)
    partitions = cluster.topic(producer, topic).partitions
    if partition is not None and partition not in partitions:
        raise Failure(
            f"{topic} has {len(partitions)} partitions, numbered from 0, and no partition {partition}"
        )
    problem = run_loop(_produce(producer, plan, account, shown))
    shown.clear()
    if problem is not None and not account.taken:
        raise problem
    _report(plan, account, as_json)
    if problem is not None:
        raise problem
    if account.failed:
        they = "it" if account.failed == 1 else "they"
        doubt = f"; {they} may still be stored" if account.maybe_stored else ""
        were = "message was" if account.failed == 1 else "messages were"
        raise Failure(f"{account.failed} {were} not acknowledged: {account.fatal or account.problem}{doubt}")
    return 0 if account.ended_by is None else _ENDINGS[account.ended_by]


def _settings(
    acks: str, batch_bytes: int, linger_ms: int, compression: str, delivery_timeout_ms: int
) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "acks": acks,
        "enable.idempotence": acks == "all",
        # Without idempotence, order needs one request in flight at most.
        **({} if acks == "all" else {"max.in.flight.requests.per.connection": 1}),
        "batch.size": batch_bytes,
        "message.max.bytes": LINE_MAX_BYTES + 1024,
        "linger.ms": linger_ms,
        "compression.type": compression,
        "delivery.timeout.ms": delivery_timeout_ms,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
    }


async def _produce(
    producer: Producer, plan: ProduceOptions, account: ProduceTotals, progress: Progress
) -> Exception | None:
    """Returns the error that stopped it; None: the end of the input, or a signal."""
    ticking = asyncio.ensure_future(_tick(producer, account, progress))
    with _Interruptions(account) as interruptions:
        problem = await interruptions.run(_feed(producer, plan, account), feeding=True)
        await interruptions.run(_flush(producer, account), feeding=False)
    ticking.cancel()
    if len(producer):
        producer.purge()
        producer.flush(1.0)
    return problem


def _poll(producer: Producer, account: ProduceTotals) -> int:
    """The number of reports. librdkafka raises a fatal error once, from any call."""
    try:
        return int(producer.poll(0))
    except Exception as error:  # includes KafkaError
        account.fatal = text_of(error)
        return 0


async def _flush(producer: Producer, account: ProduceTotals) -> None:
    while len(producer):
        if not _poll(producer, account):
            await asyncio.sleep(_PAUSE_S)


async def _put(
    producer: Producer, plan: ProduceOptions, account: ProduceTotals, key: bytes | None, value: bytes
) -> None:
    """Waits while librdkafka's queue is full. Raises Failure for a message that it refuses."""
    while True:
        try:
            producer.produce(
                plan.topic,
                value,
                key,
                partition=-1 if plan.partition is None else plan.partition,
                on_delivery=account.settled,
            )
        except BufferError:
            if not _poll(producer, account):
                await asyncio.sleep(_PAUSE_S)
        except KafkaException as error:
            _poll(producer, account)
            why = account.fatal or text_of(error)
            raise Failure(f"message {account.taken + 1} was refused: {why}") from error
        else:
            account.taken += 1
            return


class _Interruptions:
    """While entered, handles SIGINT and SIGTERM: the first ends the input, the second also the
    wait for acknowledgements."""

    def __init__(self, account: ProduceTotals) -> None:
        self._account = account
        self._task: asyncio.Future[None] | None = None
        self._feeding = True
        self._given_up = False
        self._loop = asyncio.get_running_loop()
        self._handled: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        for which in _ENDINGS:
            self._handled.append(handle_signal(self._loop, which, self._arrived, which))
        return self

    def __exit__(self, *exception: object) -> None:
        for end in self._handled:
            end()

    async def run(self, work: Coroutine[Any, Any, None], *, feeding: bool) -> Exception | None:
        """The error that ended it; None: it completed, or a signal ended it."""
        self._feeding = feeding
        self._task = asyncio.ensure_future(work)
        if self._given_up:  # the second signal came while the input was being closed
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            return None
        except Exception as error:
            return error
        return None

    def _arrived(self, which: signal.Signals) -> None:
        first = self._account.ended_by is None
        self._given_up = not first
        self._account.ended_by = which
        if first and self._account.taken:
            print_problem("waiting for acknowledgements; interrupt again to stop waiting")
        if self._task is not None and (self._feeding or not first):
            self._task.cancel()


async def _feed(producer: Producer, plan: ProduceOptions, account: ProduceTotals) -> None:
    source: AsyncIterator[list[bytes]]
    source = lines(sys.stdin.fileno()) if plan.generate is None else generated(*plan.generate)
    async with contextlib.aclosing(paced(source, plan.per_second)) as runs:  # type: ignore[type-var]
        async for run in runs:
            if account.first is None:
                account.first = time.monotonic()
            for line in run:
                if account.failed:
                    return  # must not store what follows as if nothing were missing
                if plan.key_separator is None:
                    await _put(producer, plan, account, None, line)
                    continue
                key, separator, value = line.partition(plan.key_separator)
                if not separator:
                    raise Failure(
                        f"line {account.taken + 1} of the input has no key separator"
                        f" {plan.key_separator.decode()!r}; correct it, or leave out --key-separator"
                    )
                await _put(producer, plan, account, key, value)
            _poll(producer, account)
            await asyncio.sleep(0)


async def _tick(producer: Producer, account: ProduceTotals, progress: Progress) -> None:
    """Takes reports while there is no input, and shows the progress."""
    before, bytes_before, before_s = 0, 0, time.monotonic()
    while True:
        await asyncio.sleep(_TICK_S)
        _poll(producer, account)
        if not progress.due():
            continue
        now = time.monotonic()
        rate = rate_text(account.acknowledged - before, account.size_bytes - bytes_before, now - before_s)
        before, bytes_before, before_s = account.acknowledged, account.size_bytes, now
        progress.show(f"{account.acknowledged:,} messages acknowledged, {rate}")


def _report(plan: ProduceOptions, account: ProduceTotals, as_json: bool) -> None:
    if as_json:
        echo_json(
            {
                "topic": plan.topic,
                **rates_json(account.acknowledged, account.size_bytes, account.seconds),
                "failed": account.failed,
                "problem": account.problem,
                "interrupted": account.ended_by is not None,
                "latencyMs": account.latencies.as_json(),
            }
        )
        return
    of = f" of {account.acknowledged + account.failed:,}" if account.failed or account.ended_by else ""
    done = "sent" if plan.acks == "0" else "acknowledged"
    noun = "message" if account.acknowledged == 1 and not of else "messages"
    text = f"{account.acknowledged:,}{of} {noun} ({account.size_bytes:,} bytes) {done}"
    if account.acknowledged:
        rate = rate_text(account.acknowledged, account.size_bytes, account.seconds)
        text += f" in {account.seconds:.3g} s: {rate}; latency {account.latencies.text()}"
    click.echo(text)


READ_BYTES = 256 * 1024
LINE_MAX_BYTES = 7 * 1024 * 1024
"""The longest line: a message must fit into a batch."""
RUN_MAX = 4096
PACE_S = 0.005
"""With a rate, messages pass in groups of about this many seconds."""


async def lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Lines without their line ends, in groups as they arrive. The last one needs no line end. Raises Failure
    for a line that is too long."""
    rest = b""
    number = 0
    async for piece in _pieces(descriptor):
        parts = (rest + piece).split(b"\n")
        rest = parts.pop()
        if len(rest) > LINE_MAX_BYTES or any(len(line) > LINE_MAX_BYTES for line in parts):
            line_number = (
                number
                + 1
                + next((i for i, line in enumerate(parts) if len(line) > LINE_MAX_BYTES), len(parts))
            )
            raise Failure(f"line {line_number} of the input is longer than {LINE_MAX_BYTES} bytes; split it")
        number += len(parts)
        for start in range(0, len(parts), RUN_MAX):
            yield parts[start : start + RUN_MAX]
    if rest:
        yield [rest]


async def _pieces(descriptor: int) -> AsyncIterator[bytes]:
    """Pieces of bytes from the descriptor, until its end."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        while piece := os.read(descriptor, READ_BYTES):
            yield piece
            await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:
        # A file that cannot be watched (/dev/null) never blocks.
        while piece := os.read(descriptor, READ_BYTES):
            yield piece
        return
    try:
        while True:
            await readable.wait()
            readable.clear()
            piece = os.read(descriptor, READ_BYTES)
            if not piece:
                return
            yield piece
    finally:
        loop.remove_reader(descriptor)


async def generated(count: int, size_bytes: int) -> AsyncIterator[list[bytes]]:
    """`count` messages of `size_bytes`: a number, as far as it fits, and padding."""
    filling = b"." * max(0, size_bytes - 12)
    digits = min(12, size_bytes)
    modulus = 10**digits
    for start in range(0, count, RUN_MAX):
        numbers = range(start, min(start + RUN_MAX, count))
        yield [b"%0*d%b" % (digits, number % modulus, filling) if digits else b"" for number in numbers]


async def paced(runs: AsyncIterator[list[bytes]], per_second: float | None) -> AsyncIterator[list[bytes]]:
    """The same messages, at most `per_second`; None: as they arrive."""
    loop = asyncio.get_running_loop()
    group = len_max = RUN_MAX if per_second is None else max(1, round(per_second * PACE_S))
    due = loop.time()
    async for run in runs:
        for start in range(0, len(run), len_max):
            part = run[start : start + group]
            if per_second is not None:
                now = loop.time()
                # After a pause of the input, keep the rate instead of catching up.
                due = max(due, now - 1.0)
                if due > now:
                    await asyncio.sleep(due - now)
                due += len(part) / per_second
            yield part
