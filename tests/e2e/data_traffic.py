"""A producer and a consumer that run while faults hit a cluster, and the account of what they wrote and read.

Every message is `partition:number`, numbered from 0 in each partition, with acks=all from librdkafka's
idempotent producer. `finish` is the check of KIP-112's system tests: everything that was acknowledged is read
once and in order (S3.31). Each of the two has its own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tests.e2e.cluster import HOST, Cluster
from tests.e2e.processes import wait_until

PROGRESS_S = 60.0
IN_FLIGHT_MAX = 2_000
_POLL_S = 0.05
_QUICK = {
    # Brokers are killed and restarted within seconds: librdkafka would wait longer between its attempts.
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
}


@dataclass(slots=True)
class Passed:
    """Messages by partition: passed to the producer, acknowledged, and read."""

    sent: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of messages read so far."""
        return sum(self.read.values())


class Traffic:
    """From `start` to `finish`. `every_s`: how often each partition gets a message."""

    def __init__(self, cluster: Cluster, topic: str, *, partitions: int = 1, every_s: float = 0.005) -> None:
        self.passed = Passed()
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._every_s = every_s
        self._writes = True
        self._running = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._write, self._read)
        ]

    def start(self) -> Traffic:
        for thread in self._running:
            thread.start()
        self.flows()
        return self

    def flows(self, messages: int = 20) -> None:
        """Waits until this many more messages were acknowledged and read."""
        before = self.passed.total
        wait_until(
            lambda: self._alive() and self.passed.total >= before + messages,
            f"{messages} more messages of {self._topic} to pass",
            timeout_s=PROGRESS_S,
            details=lambda: self._cluster.report([str(self.passed)]),
        )

    def finish(self) -> Passed:
        """Stops, and compares: nothing that was acknowledged is missing, nothing was read twice or in another
        order, and no send failed."""
        self._writes = False
        for thread in self._running:
            thread.join(2 * PROGRESS_S)
        passed = self.passed
        assert not passed.problems, passed.problems
        assert passed.sent == passed.acknowledged == passed.read, passed
        return passed

    def _alive(self) -> bool:
        assert not self.passed.problems, self.passed.problems
        return True

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.passed.problems.append(f"{work.__name__}: {error!r}")

    def _client(self, kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
        servers = ",".join(f"{HOST}:{broker.kafka_port}" for broker in self._cluster.brokers)
        return kind({"bootstrap.servers": servers, **_QUICK, **settings})

    def _write(self) -> None:
        passed = self.passed

        def settle(error: KafkaError | None, message: Any) -> None:
            partition = message.partition()
            if error is None:
                passed.acknowledged[partition] = passed.acknowledged.get(partition, 0) + 1
            else:
                passed.problems.append(f"a message of partition {partition}: {error}")

        settings = {"enable.idempotence": True, "linger.ms": 2, "delivery.timeout.ms": 120_000}
        producer = self._client(Producer, settings)
        while self._writes:
            for partition in range(self._partitions):
                number = passed.sent.get(partition, 0)
                value = f"{partition}:{number}".encode()
                producer.produce(self._topic, value, partition=partition, on_delivery=settle)
                passed.sent[partition] = number + 1
            producer.poll(0)
            time.sleep(self._every_s)
            while len(producer) > IN_FLIGHT_MAX and self._writes:
                producer.poll(_POLL_S)
        producer.flush(PROGRESS_S)

    def _read(self) -> None:
        settings = {
            "group.id": "traffic",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 200,
        }
        consumer = self._client(Consumer, settings)
        places = [TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in range(self._partitions)]
        consumer.assign(places)
        writing, until_s = self._running[0], None
        # Once writing has ended and every response is in, everything that was acknowledged must arrive.
        while writing.is_alive() or self.passed.read != self.passed.acknowledged:
            for message in consumer.consume(500, timeout=_POLL_S):
                self._take(message)
            if not writing.is_alive():
                until_s = until_s or time.monotonic() + PROGRESS_S
                if self.passed.problems or time.monotonic() > until_s:
                    break
        consumer.close()

    def _take(self, message: Any) -> None:
        passed, error = self.passed, message.error()
        if error is not None:
            if not error.retriable() and error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                passed.problems.append(f"the consumer: {error}")
            return
        expected = passed.read.get(message.partition(), 0)
        value = (message.value() or b"").decode()
        if value != f"{message.partition()}:{expected}":
            passed.problems.append(
                f"offset {message.offset()} of partition {message.partition()} holds {value!r}, and"
                f" {message.partition()}:{expected} was to come"
            )
        passed.read[message.partition()] = expected + 1
