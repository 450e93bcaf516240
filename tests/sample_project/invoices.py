"""Orders become invoices: a producer of orders, and a service that invoices each of them exactly once."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

ORDERS, INVOICES = "orders", "invoices"


class OrderDesk:
    """Takes orders. An order that was placed is stored once."""

    def __init__(self, config: dict[str, str]) -> None:
        self._producer = Producer(
            {
                **config,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "client.id": "desk",
            }
        )

    def place(self, order: str) -> None:
        """Returns once the order is stored. Raises KafkaException."""
        problems: list[KafkaException] = []

        def done(error: object, message: Message) -> None:
            if error is not None:
                problems.append(KafkaException(error))

        self._producer.produce(ORDERS, order.encode(), on_delivery=done)
        self._producer.flush(30)
        if problems:
            raise problems[0]


class InvoiceService:
    """Reads orders and writes invoices, with its progress in the same transaction."""

    def __init__(self, config: dict[str, str], name: str = "invoices-1") -> None:
        self._consumer = Consumer(
            {
                **config,
                "group.id": "invoices",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "client.id": name,
            }
        )
        self._consumer.subscribe([ORDERS])
        self._producer = Producer(
            {**config, "transactional.id": name, "reconnect.backoff.max.ms": 200, "client.id": name}
        )
        self._producer.init_transactions(30)

    def run(self, stop: threading.Event) -> None:
        """Works until it must stop."""
        while not stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._invoice(message)
        self._consumer.close()

    def _invoice(self, order: Message) -> None:
        producer = self._producer
        place = TopicPartition(str(order.topic()), int(order.partition() or 0), int(order.offset() or 0))
        progress = TopicPartition(place.topic, place.partition, place.offset + 1)
        try:
            producer.begin_transaction()
            producer.produce(INVOICES, b"invoice of " + (order.value() or b""))
            producer.send_offsets_to_transaction([progress], self._consumer.consumer_group_metadata(), 30)
            self._commit()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            self._consumer.seek(place)

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(30)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return
