"""Real clients that append to lists and read them in transactions, and note what became of each.

A key is a partition of one topic. Each client takes the locks of its keys before it reads, and keeps them
until it knows how its transaction ended: so what a sound cluster stores has a serial order. A read takes
everything that is decided, once nothing is under way in the partition. librdkafka does the work.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.histories.list_append import Outcome, Transaction, Values

PATIENCE_S = 90.0
CALL_S = 10.0
PAUSE_S = 0.03
"""Between what a client asks: without it librdkafka spins while a broker is away."""


class ListReader:
    """The lists as they are, from their start or from where the last read ended."""

    def __init__(self, bootstrap: str, topic: str, keys: int) -> None:
        self._topic = topic
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": "lists",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "fetch.error.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
        }
        self._decided = confluent_kafka.Consumer({**config, "isolation.level": "read_committed"})
        self._written = confluent_kafka.Consumer({**config, "isolation.level": "read_uncommitted"})
        self._lists: list[tuple[int, Values]] = [(0, ())] * keys

    def read(self, key: int) -> Values:
        """All values of a key, when none is of a transaction under way. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        end = self._end(key, deadline)
        position, values = self._lists[key]
        if position < end:
            self._decided.assign([TopicPartition(self._topic, key, position)])
            while position < end:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"reading list {key} ends at {position}, before {end}")
                message = self._decided.poll(0.2)
                if message is None or message.partition() != key:
                    continue
                if message.error() is None:
                    position, values = message.offset() + 1, (*values, int(message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset())
            self._decided.unassign()  # it would go on fetching
            self._lists[key] = (position, values)
        return values

    def _end(self, key: int, deadline: float) -> int:
        """The last stable offset, when it is the high watermark. Once librdkafka has learned that a partition
        has no leader, watermarks alone never make it ask again: so it is told to."""
        place = TopicPartition(self._topic, key)
        seen: object = None
        while time.monotonic() < deadline:
            try:
                _, written = self._written.get_watermark_offsets(place, CALL_S)
                _, decided = self._decided.get_watermark_offsets(place, CALL_S)
            except KafkaException as error:
                seen = error
                self._ask_for_leaders()
                time.sleep(PAUSE_S)
                continue
            if decided >= written:
                return int(written)
            seen = f"stable to {decided} of {written}"
            time.sleep(0.01)
        raise TimeoutError(f"a transaction in list {key} does not end: {seen}")

    def _ask_for_leaders(self) -> None:
        for consumer in (self._written, self._decided):
            with suppress(KafkaException):
                consumer.list_topics(self._topic, CALL_S)

    def close(self) -> None:
        self._decided.close()
        self._written.close()


class Lists:
    """What the clients share: locks, values that are used once, and the history."""

    def __init__(self, bootstrap: str, topic: str, keys: int, until: float) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.keys = keys
        self.until = until
        self.history: list[Transaction] = []
        self.values = itertools.count(1)
        self._locks = [threading.Lock() for _ in range(keys)]

    @contextmanager
    def locked(self, keys: list[int]) -> Iterator[None]:
        with ExitStack() as stack:
            for key in sorted(keys):
                stack.enter_context(self._locks[key])
            yield


class Appender(threading.Thread):
    """One client. `problem`: what it did not expect."""

    def __init__(self, number: int, lists: Lists, seed: int) -> None:
        super().__init__(name=f"appender-{number}", daemon=True)
        self.problem: BaseException | None = None
        self._lists = lists
        self._rng = random.Random(f"{number} of {seed}")
        self._producer: confluent_kafka.Producer | None = None

    def run(self) -> None:
        reader = ListReader(self._lists.bootstrap, self._lists.topic, self._lists.keys)
        try:
            while time.time() < self._lists.until:
                self._one(reader)
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.problem = error
        finally:
            reader.close()

    def _begin(self) -> confluent_kafka.Producer:
        """A producer that has ended what the one before it left behind."""
        if self._producer is None:
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": self._lists.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 20_000,
                    "linger.ms": 0,
                    "reconnect.backoff.max.ms": 500,
                    "retry.backoff.ms": 50,
                    "log_level": 2,
                }
            )
            _repeated(lambda: producer.init_transactions(CALL_S))
            self._producer = producer
        return self._producer

    def _one(self, reader: ListReader) -> None:
        rng, lists = self._rng, self._lists
        keys = rng.sample(range(lists.keys), rng.choice((1, 2, 3)))
        with lists.locked(keys):
            producer = self._begin()
            reads = {str(key): reader.read(key) for key in keys}
            appends = [(key, next(lists.values)) for key in rng.choices(keys, k=rng.choice((0, 1, 2, 4)))]
            outcome = Outcome.COMMITTED
            if appends:
                outcome = self._appended(producer, appends, commits=rng.random() < 0.8)
            if outcome is Outcome.UNKNOWN:
                # The next producer ends it, and only then may others go on.
                self._producer = None
                self._begin()
            lists.history.append(
                Transaction(
                    name=f"{self.name}.{len(lists.history)}",
                    outcome=outcome,
                    reads=reads,
                    appends=[(str(key), value) for key, value in appends],
                )
            )

    def _appended(
        self, producer: confluent_kafka.Producer, appends: list[tuple[int, int]], *, commits: bool
    ) -> Outcome:
        try:
            producer.begin_transaction()
            for key, value in appends:
                producer.produce(self._lists.topic, str(value).encode(), partition=key)
            if commits:
                _repeated(lambda: producer.commit_transaction(CALL_S))
                return Outcome.COMMITTED
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                return Outcome.UNKNOWN
        try:
            _repeated(lambda: producer.abort_transaction(CALL_S))
        except KafkaException:
            return Outcome.UNKNOWN
        return Outcome.ABORTED


def _repeated(call: object) -> None:
    """Until it is carried out, or refused for good. Raises KafkaException."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()  # type: ignore[operator]
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def run_lists(
    bootstrap: str, topic: str, keys: int, *, clients: int, until: float, seed: int
) -> tuple[Lists, list[Appender]]:
    """Begin; `until` is a time of day. Join the threads, then read the lists."""
    lists = Lists(bootstrap, topic, keys, until)
    threads = [Appender(number, lists, seed) for number in range(clients)]
    for thread in threads:
        thread.start()
    return lists, threads


def ended(lists: Lists, threads: list[Appender]) -> dict[str, Values]:
    """The lists at the end, when all clients are done. Raises what one of them did not expect."""
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        if thread.problem is not None:
            raise thread.problem
        if thread.is_alive():
            raise TimeoutError(f"{thread.name} does not come to an end")
    reader = ListReader(lists.bootstrap, lists.topic, lists.keys)
    try:
        return {str(key): reader.read(key) for key in range(lists.keys)}
    finally:
        reader.close()
