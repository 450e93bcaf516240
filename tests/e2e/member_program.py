"""A member of a consumer group, as a program: CLIENT BOOTSTRAP TOPIC. The group has the topic's name.

group_members.py says what it prints.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

SESSION_MS, HEARTBEAT_MS = 3_000, 200
ending = False


def end(*_: Any) -> None:
    global ending  # noqa: PLW0603
    ending = True


class Events:
    def __init__(self) -> None:
        self._assigned: list[int] = []

    def assigned(self, partitions: Iterable[int]) -> None:
        found = sorted(partitions)
        if found != self._assigned:
            self._assigned = found
            self.tell(assigned=found)

    def read(self, values: Iterable[bytes]) -> None:
        self.tell(read=[value.decode() for value in values])

    @staticmethod
    def tell(**event: Any) -> None:
        print(json.dumps(event), flush=True)


def confluent_kafka_member(bootstrap: str, topic: str, events: Events) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while not ending:
        messages = [each for each in consumer.consume(100, timeout=0.1) if each.error() is None]
        events.assigned(each.partition for each in consumer.assignment())
        if messages:
            events.read(each.value() for each in messages)
            try:
                consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as error:
                print(error, file=sys.stderr)
    consumer.close()


def kafka_python_member(bootstrap: str, topic: str, events: Events) -> None:
    import kafka
    import kafka.errors

    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=topic,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    while not ending:
        try:
            found = consumer.poll(timeout_ms=100)
        except kafka.errors.KafkaConnectionError as error:  # of a broker that was killed: it raises some
            print(repr(error), file=sys.stderr)
            continue
        events.assigned(each.partition for each in consumer.assignment())
        if found:
            events.read(record.value for records in found.values() for record in records)
            try:
                consumer.commit()
            except kafka.errors.KafkaError as error:
                print(repr(error), file=sys.stderr)
    consumer.close()


def aiokafka_member(bootstrap: str, topic: str, events: Events) -> None:
    import aiokafka
    import aiokafka.errors

    async def scenario() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        while not ending:
            found = await consumer.getmany(timeout_ms=100)
            events.assigned(each.partition for each in consumer.assignment())
            if found:
                events.read(record.value for records in found.values() for record in records)
                try:
                    await consumer.commit()
                except aiokafka.errors.KafkaError as error:
                    print(repr(error), file=sys.stderr)
        await consumer.stop()

    asyncio.run(scenario())


CLIENTS: dict[str, Callable[[str, str, Events], None]] = {
    "confluent-kafka": confluent_kafka_member,
    "kafka-python": kafka_python_member,
    "aiokafka": aiokafka_member,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    CLIENTS[sys.argv[1]](*sys.argv[2:], Events())
    Events.tell(left=True)
