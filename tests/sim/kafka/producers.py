"""Simulated transactional producers: writers of several partitions, and copiers that also commit offsets.

Like client libraries, a producer repeats a request until it gets a response: it ends a transaction only when
every batch was acknowledged. Now and then it sends nothing for a while, or another process takes over its id;
the first one continues nonetheless, and must find that it is fenced. Source: KIP-98, KIP-360, KIP-447.
"""

from __future__ import annotations

from typing import Any

from metaquorum.broker.server.kafka.groups import GROUP, TRANSACTION
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import ACKS_ALL
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.batches.format import TRANSACTIONAL
from metaquorum.wire import messages
from tests.sim.errors import SafetyError
from tests.sim.kafka.clients import RETRIABLE, Connection, KafkaClients
from tests.sim.kafka.history import Place, Producer, TransactionHistory, Txn
from tests.sim.kafka.loop import sleep_ms
from tests.sim.kafka.plan import KEYED, SOURCE, TARGET, KafkaLoad

COPIES = "copiers"
KEYS = 6
_INIT, _ADD, _OFFSETS, _END, _PRODUCE, _COMMIT = 4, 3, 3, 3, 9, 3
"""Versions of the requests: those of clients of Kafka 3.7."""
_FENCES = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)


class FencedError(Exception):
    """Another producer has this transactional id, or the coordinator aborted the transaction."""


class AbortableError(Exception):
    """The transaction cannot continue, and can be aborted."""


class TransactionalProducer:
    """One process with a transactional id."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        clients: KafkaClients,
        history: TransactionHistory,
        timeout_ms: int,
    ) -> None:
        self.connection = Connection(name, clients)
        self.transactional_id = transactional_id
        self._history = history
        self._timeout_ms = timeout_ms
        self._rng = clients.engine.rng
        self._marks = clients.marks
        self._clients = clients
        self._coordinator: int | None = None
        self.producer: Producer = (-1, -1)
        self._sequences: dict[Place, int] = {}
        self._txn: Txn | None = None

    @property
    def is_fenced(self) -> bool:
        return self._history.is_fenced(self.transactional_id, self.producer)

    # ---- asking the coordinator ------------------------------------------------------------------

    async def _ask(self, key_type: int, key: str, body: Any, version: int, code: Any) -> Any:
        """The first response whose error code means neither 'later' nor another coordinator."""
        known = self._coordinator if key_type == TRANSACTION else None
        while True:
            if known is None:
                known = await self.connection.coordinator(key_type, key)
            answer = await self.connection.ask(known, body, version)
            error = None if answer is None else ErrorCode(code(answer.body))
            if error is not None and error not in RETRIABLE:
                self._marks.add(f"{type(body).__name__} answered {error.name}")
                if key_type == TRANSACTION:
                    self._coordinator = known
                return self._settled(error, answer.body if answer is not None else None)
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                known = None
            await self.connection.pause()

    def _settled(self, error: ErrorCode, body: Any) -> Any:
        if error in _FENCES:
            self._marks.add("producer fenced")
            raise FencedError(error.name)
        if error is ErrorCode.INVALID_TXN_STATE:
            raise AbortableError(error.name)
        if error is not ErrorCode.NONE:
            raise SafetyError(f"{self.connection.name} is refused: {error.name} for {self._txn}")
        return body

    async def init(self) -> None:
        """Fences any earlier producer of the id, and ends its transaction."""
        body = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms
        )
        answer = await self._ask(
            TRANSACTION, self.transactional_id, body, _INIT, lambda found: found.error_code
        )
        self.producer = (answer.producer_id, answer.producer_epoch)
        self._history.initialized(self.transactional_id, self.producer)
        self._clients.engine.trace(self.connection.name, f"is producer {self.producer}")

    def begin(self) -> Txn:
        self._txn = self._history.begun(self.transactional_id, self.producer)
        return self._txn

    # ---- writing ---------------------------------------------------------------------------------

    async def add(self, places: list[Place]) -> None:
        """Adds the partitions to the transaction."""
        kinds = messages.AddPartitionsToTxnRequest
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        body = kinds(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=tuple(
                kinds.AddPartitionsToTxnTopic(name=name, partitions=tuple(indexes))
                for name, indexes in topics.items()
            ),
        )
        await self._ask(TRANSACTION, self.transactional_id, body, _ADD, _worst_of_partitions)

    async def write(self, txn: Txn, place: Place, records: list[tuple[bytes | None, bytes | None]]) -> None:
        """Sends one batch until its leader has accepted it."""
        values = [value or b"" for _, value in records]
        txn.records.setdefault(place, []).extend(values)
        sequence = self._sequences.get(place, 0)
        data = encode_batch(
            base_offset=0,
            leader_epoch=-1,
            timestamp_ms=self._clients.cluster.wall_ms(),
            keys=[key for key, _ in records],
            values=[value for _, value in records],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        kinds = messages.ProduceRequest
        part = kinds.PartitionProduceData(index=place[1], records=data)
        body = kinds(
            transactional_id=self.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=800,
            topic_data=(kinds.TopicProduceData(name=place[0], partition_data=(part,)),),
        )
        tries = 0
        while True:
            leader = (await self.connection.place(*place)).leader
            was_fenced, tries = self.is_fenced, tries + 1
            answer = await self.connection.ask(leader, body, _PRODUCE)
            error = None
            if answer is not None:
                error = ErrorCode(answer.body.responses[0].partition_responses[0].error_code)
            if error is ErrorCode.NONE:
                self._history.wrote(txn, place, was_fenced=was_fenced and tries == 1)
                self._sequences[place] = sequence + len(records)
                return
            if error is not None and error not in RETRIABLE:
                self._settled(error, None)
            await self.connection.pause()

    async def commit_offset(self, txn: Txn, group: str, place: Place, offset: int) -> None:
        """Commits offsets with the transaction."""
        producer_id, epoch = self.producer
        body: Any = messages.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        await self._ask(TRANSACTION, self.transactional_id, body, _OFFSETS, lambda found: found.error_code)
        kinds = messages.TxnOffsetCommitRequest
        part = kinds.TxnOffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=offset, committed_metadata=txn.name
        )
        body = kinds(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=(kinds.TxnOffsetCommitRequestTopic(name=place[0], partitions=(part,)),),
        )
        txn.offsets[group, place] = offset
        await self._ask(GROUP, group, body, _COMMIT, lambda found: found.topics[0].partitions[0].error_code)

    async def end(self, txn: Txn, *, committed: bool) -> None:
        body = messages.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=committed,
        )
        was_fenced = self.is_fenced
        txn.commit_asked = committed
        await self._ask(TRANSACTION, self.transactional_id, body, _END, lambda found: found.error_code)
        self._history.ended(txn, committed=committed, was_fenced=was_fenced)
        self._marks.add("transaction committed" if committed else "transaction aborted")
        self._clients.engine.trace(
            self.connection.name, f"{'committed' if committed else 'aborted'} {txn.name}"
        )


def _worst_of_partitions(found: Any) -> int:
    codes = [
        part.partition_error_code
        for topic in found.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
    return next(
        (code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)), 0
    )


class Worker:
    """Runs transactions under one id, one process after the other. Subclasses define their contents."""

    def __init__(
        self, transactional_id: str, clients: KafkaClients, history: TransactionHistory, load: KafkaLoad
    ) -> None:
        self.transactional_id = transactional_id
        self.clients = clients
        self.history = history
        self.load = load
        self.rng = clients.engine.rng
        self._processes = 0
        self._running = 0

    def begin(self) -> None:
        """Starts another process of this id."""
        self._processes += 1
        name = f"{self.transactional_id}#{self._processes}"
        self.clients.begin(name, self._run(name))

    async def _run(self, name: str) -> None:
        """Runs transactions until another process has the id. If there is no other process, it starts over
        after it was fenced: its transaction took too long."""
        producer = TransactionalProducer(
            name, self.transactional_id, self.clients, self.history, self.load.transaction_timeout_ms
        )
        self._running += 1
        try:
            while self.clients.running:
                await producer.init()
                await self.started(producer)
                while self.clients.running:
                    await producer.connection.pause(*self.load.pause_ms)
                    await self._one(producer)
        except FencedError:
            self.clients.engine.trace(name, "is fenced")
            if self._running == 1 and self.clients.running:
                self.clients.marks.add("transaction ended by its coordinator")
                self.begin()
        finally:
            self._running -= 1

    async def _one(self, producer: TransactionalProducer) -> None:
        txn = producer.begin()
        committed = self.rng.random() < self.load.commit_chance
        try:
            if not await self.fill(producer, txn):
                return
            await self._maybe_odd(producer)
            await producer.end(txn, committed=committed)
        except AbortableError:
            self.clients.marks.add("transaction that could not go on")
            await producer.end(txn, committed=False)
            committed = False
        self.ended(producer, committed=committed)

    async def _maybe_odd(self, producer: TransactionalProducer) -> None:
        """Before the end of a transaction: silence for longer than its timeout, or another process."""
        if self.rng.random() < self.load.replace_chance and self._running == 1:
            self.clients.marks.add("producer replaced")
            self.begin()
            await producer.connection.pause(100, 1_500)
        elif self.rng.random() < self.load.silence_chance:
            await sleep_ms(self.load.transaction_timeout_ms * 1.3 + 700)

    async def started(self, producer: TransactionalProducer) -> None:
        """A process has its epoch."""

    async def fill(self, producer: TransactionalProducer, txn: Txn) -> bool:
        """Everything but the end of a transaction; False: there is nothing to do."""
        raise NotImplementedError

    def ended(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """A transaction was ended by its own producer."""


class Writer(Worker):
    """Writes to several partitions, including keyed records; a null value removes its key."""

    async def fill(self, producer: TransactionalProducer, txn: Txn) -> bool:
        places = [(topic, index) for topic in (TARGET, KEYED) for index in range(2)]
        chosen = self.rng.sample(places, self.rng.choice((1, 2, 3)))
        await producer.add(chosen)
        for number, place in enumerate(chosen):
            records: list[tuple[bytes | None, bytes | None]] = []
            for at in range(self.rng.choice((1, 1, 3))):
                value = f"{txn.name}|{number}.{at}|{'x' * self.rng.choice((0, 40, 150))}".encode()
                if place[0] == TARGET:
                    records.append((None, value))
                else:
                    key = b"k%d" % self.rng.randrange(KEYS)
                    records.append((key, None if self.rng.random() < 0.2 else value))
            await producer.write(txn, place, records)
        return True


class Copier(Worker):
    """Copies one partition, each record once: the copies and the offset are one transaction."""

    def __init__(self, index: int, *parts: Any) -> None:
        super().__init__(f"copier{index}", *parts)
        self._place = (SOURCE, index)
        self._positions: dict[TransactionalProducer, int] = {}
        self._next: dict[TransactionalProducer, int] = {}

    async def started(self, producer: TransactionalProducer) -> None:
        """Where the previous process stopped."""
        connection = producer.connection
        while True:
            coordinator = await connection.coordinator(GROUP, COPIES)
            found = await connection.committed_offset(COPIES, *self._place, coordinator)
            if found is not None:
                self._positions[producer] = max(found, 0)
                return
            await connection.pause()

    async def fill(self, producer: TransactionalProducer, txn: Txn) -> bool:
        position = self._positions[producer]
        found = await producer.connection.read(*self._place, position, max_bytes=self.rng.choice((1, 600)))
        if found is None or found[0] == position:
            return False
        next_position, records = found
        target = (TARGET, self.rng.randrange(2))
        copies = [(None, f"{txn.name}|copy|{self._place[1]}@{each.offset}".encode()) for each in records]
        if copies:
            await producer.add([target])
            await producer.write(txn, target, list(copies))
        await producer.commit_offset(txn, COPIES, self._place, next_position)
        self._next[producer] = next_position
        return True

    def ended(self, producer: TransactionalProducer, *, committed: bool) -> None:
        if committed:
            self._positions[producer] = self._next[producer]
