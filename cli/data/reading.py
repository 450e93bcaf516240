"""Reads the partitions of `metaquorum consume` with librdkafka.

Owns where each partition starts, which errors are transient, and when the command ends. Does not format
records (`printing`) and knows no options (`consume`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from metaquorum.cli.data.cluster import KafkaCluster, text_of
from metaquorum.cli.data.consume_plan import ConsumeOptions, ConsumeTotals, RangePolicy, ReadFromKind
from metaquorum.cli.data.printing import look_for_reader, place_of, print_records
from metaquorum.cli.data.rates import Progress, rate_text
from metaquorum.cli.errors import Failure

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
        known = sorted(cluster.topic(consumer, plan.topic).partitions)
        missing = [each for each in plan.partitions if each not in known]
        if missing:
            raise Failure(
                f"{plan.topic} has {len(known)} partitions, numbered from 0, and no partition {missing[0]}"
            )
        chosen = list(plan.partitions or known)
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
    for place in places:
        at = place.offset
        if account.ends is not None and at < 0:
            low, high = _marks(cluster, consumer, plan, place.partition)
            at = low if at == OFFSET_BEGINNING else high
        account.positions[place.partition] = at
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


def _taken(plan: ConsumeOptions, account: ConsumeTotals, found: Sequence[Message]) -> list[Message]:
    """The records to print. Raises Failure for an error that is not transient."""
    messages: list[Message] = []
    for each in found:
        error = each.error()
        if error is not None:
            _judge(plan, account, each, error)
            continue
        partition, offset = place_of(each)
        if plan.max_messages is not None and account.messages + len(messages) >= plan.max_messages:
            break
        account.positions[partition] = offset + 1
        if account.ends is None or offset < account.ends.get(partition, offset + 1):
            messages.append(each)
    return messages


def _judge(plan: ConsumeOptions, account: ConsumeTotals, message: Message, error: KafkaError) -> None:
    code = error.code()
    if code in _PASSING or (code == KafkaError._LOG_TRUNCATION and plan.skip_cut):
        return
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
    for each in (*consumer.position(places), *_committed(consumer, plan, account, places)):
        account.reached(each.partition, each.offset)
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
