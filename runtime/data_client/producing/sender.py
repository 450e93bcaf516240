"""Sending: takes batches from the partitions' queues to their leaders, and answers back to the queues.

Owns the connection bookkeeping (requests in flight by broker), the producer id and its epochs, expiry, and
when metadata must be refreshed. Knows records only as payloads.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.runtime.backoff import Backoff
from metaquorum.runtime.client.admin import Address
from metaquorum.runtime.data_client.cluster_view import ClusterView, PartitionLeader
from metaquorum.runtime.data_client.connections import Connections, LinkError
from metaquorum.runtime.data_client.producing.produce_queue import (
    RETRY,
    BatchOutcome,
    OutBatch,
    PartitionQueue,
    ProducerIdentity,
)

TICK_MS = 100
"""How often expiry and slow requests are looked after."""
SLOW_MS = 1_500
"""A request that waits this long makes us ask whether its broker still leads."""
INIT_TIMEOUT_MS = 5_000
_HOP = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)


class SendError(ApiError):
    """A message was not acknowledged. `maybe_stored`: it was sent and may be stored all the same."""

    def __init__(self, code: ErrorCode, message: str, *, maybe_stored: bool = False) -> None:
        super().__init__(code, message)
        self.maybe_stored = maybe_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    acks: int
    idempotent: bool
    max_in_flight: int
    max_request_bytes: int
    request_timeout_ms: int


@dataclass(slots=True, eq=False)
class Lane:
    """One partition's way out. `has_open`: its owner has a batch that still takes records; `lingered`: that
    one may be sent as soon as there is a free place for it."""

    topic: str
    partition: int
    queue: PartitionQueue
    has_open: bool = False
    lingered: bool = False
    wake: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Request:
    """Under way to a broker since `sent_ms`, with the leader epochs that it was sent by."""

    address: Address
    broker_id: int
    batches: list[tuple[Lane, OutBatch, int]]
    sent_ms: int


@dataclass(slots=True)
class SenderCounters:
    """What happened: requests sent, batches sent again, producer epochs begun."""

    requests: int = 0
    retries: int = 0
    epochs: int = 0
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Sender:
    """`seal(lane)` closes and queues a lane's open batch; `settled(batch, base offset or error)` hears of
    every batch once.
    """

    def __init__(
        self,
        connections: Connections,
        view: ClusterView,
        limits: SendLimits,
        rng: random.Random,
        seal: Callable[[Lane], None],
        settled: Callable[[OutBatch, int | SendError], None],
    ) -> None:
        self._connections = connections
        self._view = view
        self._limits = limits
        self._rng = rng
        self._seal = seal
        self._settled = settled
        self._lanes: list[Lane] = []
        self._ready: dict[Lane, None] = {}
        self._in_flight: dict[int, dict[_Request, None]] = defaultdict(dict)
        self._identity: ProducerIdentity | None = None
        self._identity_task: asyncio.Task[None] | None = None
        self._tick_task: asyncio.Task[None] | None = None
        self._pump_due = False
        self._stopped = False
        self.counters = SenderCounters()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tick_task = self._loop.create_task(self._tick())

    def lane(self, topic: str, partition: int) -> Lane:
        """A new one."""
        idempotent = self._limits.idempotent
        # Without sequences only one at a time keeps the order; without acknowledgements nothing is repeated.
        window = self._limits.max_in_flight if idempotent or self._limits.acks == api.ACKS_NONE else 1
        lane = Lane(topic, partition, PartitionQueue(idempotent=idempotent, rng=self._rng, window=window))
        self._lanes.append(lane)
        return lane

    async def stop(self) -> None:
        """Nothing is sent any more; what is not settled ends with SendError."""
        self._stopped = True
        tasks = [task for task in (self._tick_task, self._identity_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes:
            if lane.wake is not None:
                lane.wake.cancel()
            for batch in lane.queue.clear():
                text = "the producer was closed before it was acknowledged"
                self._fail(batch, ErrorCode.REQUEST_TIMED_OUT, text)

    def ready(self, lane: Lane) -> None:
        """The lane may have something to send."""
        self._ready[lane] = None
        self._pump_soon()

    def view_changed(self) -> None:
        for lane in self._lanes:
            if len(lane.queue) or lane.lingered:
                self._ready[lane] = None
        self._give_up_deposed()
        self._pump_soon()

    # --- sending

    def _pump_soon(self) -> None:
        if not self._pump_due and not self._stopped:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Sends what can be sent now: one batch of each partition in a request, while places are free."""
        self._pump_due = False
        if self._stopped:
            return
        if self._limits.idempotent and self._identity is None:
            self._obtain_identity(None)
            return
        while True:
            requests: dict[int, tuple[PartitionLeader, list[tuple[Lane, OutBatch, int]]]] = {}
            sizes: dict[int, int] = defaultdict(int)
            for lane in list(self._ready):
                leader = self._view.leader(lane.topic, lane.partition)
                if leader is None:
                    # Stays ready: the next change of the view comes back here.
                    self._view.want_refresh()
                    continue
                is_full = sizes[leader.broker_id] >= self._limits.max_request_bytes
                if is_full or len(self._in_flight[leader.broker_id]) >= self._limits.max_in_flight:
                    continue
                batch = self._next_of(lane)
                if batch is None:
                    del self._ready[lane]
                    continue
                sizes[leader.broker_id] += batch.payload.size_bytes
                requests.setdefault(leader.broker_id, (leader, []))[1].append((lane, batch, leader.epoch))
            if not requests:
                return
            for leader, batches in requests.values():
                self._send(leader, batches)

    def _next_of(self, lane: Lane) -> OutBatch | None:
        now_ms = self._now_ms()
        if lane.lingered and not lane.queue.waiting:
            self._seal(lane)
        batch = lane.queue.next(self._identity, now_ms)
        if batch is None:
            stale = lane.queue.needs_epoch_after
            if stale is not None and stale == self._identity:
                self._obtain_identity(stale)
            hold_ms = lane.queue.hold_until_ms - now_ms
            if hold_ms > 0 and lane.wake is None:
                lane.wake = self._loop.call_later(hold_ms / 1000, self._woken, lane)
        return batch

    def _woken(self, lane: Lane) -> None:
        lane.wake = None
        self.ready(lane)

    def _send(self, leader: PartitionLeader, batches: list[tuple[Lane, OutBatch, int]]) -> None:
        partitions = []
        for lane, batch, _ in batches:
            view = self._view.topic(lane.topic)
            key = (view.topic_id if view else b"", lane.partition)
            partitions.append(api.ProducePartition(key=key, records=batch.sealed()))
        request = api.ProduceRequest(
            acks=self._limits.acks,
            timeout_ms=self._limits.request_timeout_ms,
            partitions=tuple(partitions),
        )
        sent = _Request(leader.address, leader.broker_id, batches, self._now_ms())
        self._in_flight[leader.broker_id][sent] = None
        self.counters.requests += 1
        future = self._connections.produce(
            leader.address, request, timeout_ms=self._limits.request_timeout_ms
        )
        future.add_done_callback(lambda done: self._answered(sent, done))

    # --- answers

    def _answered(self, sent: _Request, done: asyncio.Future[api.ProduceResponse | ApiError]) -> None:
        self._in_flight[sent.broker_id].pop(sent, None)
        error = LinkError("the request was cancelled") if done.cancelled() else done.exception()
        if error is not None:
            self._lost(sent, error)
        else:
            answer = done.result()
            if isinstance(answer, ApiError):
                for lane, batch, epoch in sent.batches:
                    result = api.ProduceResult(
                        key=(b"", lane.partition), error=answer.code, message=answer.message
                    )
                    self._result(lane, batch, epoch, result)
            elif self._limits.acks == api.ACKS_NONE:
                for lane, batch, epoch in sent.batches:
                    self._result(lane, batch, epoch, api.ProduceResult(key=(b"", lane.partition)))
            elif len(answer.results) != len(sent.batches):
                self._lost(sent, LinkError("it did not answer for every partition"))
            else:
                for (lane, batch, epoch), result in zip(sent.batches, answer.results, strict=True):
                    self._result(lane, batch, epoch, result)
        # A place is free: lanes that wait for it are ready still.
        self._pump_soon()

    def _lost(self, sent: _Request, error: BaseException) -> None:
        self._view.want_refresh()
        for lane, batch, _ in sent.batches:
            batch.problem = str(error)
            if self._limits.acks == api.ACKS_NONE:
                lane.queue.answered(batch, ErrorCode.NONE, self._now_ms())
                batch.maybe_stored = True
                self._fail(batch, ErrorCode.NETWORK_EXCEPTION, str(error))
            else:
                lane.queue.lost(batch, self._now_ms())
                self.counters.retries += 1
            self._ready[lane] = None

    def _result(self, lane: Lane, batch: OutBatch, epoch: int, result: api.ProduceResult) -> None:
        step = lane.queue.answered(batch, result.error, self._now_ms())
        self._ready[lane] = None
        if step is BatchOutcome.DONE:
            self._settled(batch, result.base_offset)
            return
        batch.problem = f"{result.error.name}: {result.message or 'refused'}"
        self.counters.refusals[result.error.name] += 1
        if step is BatchOutcome.FAILED:
            self._fail(batch, result.error, result.message or "the leader refused it")
            return
        self.counters.retries += 1
        if result.error in _HOP:
            if self._view.learned(lane.topic, lane.partition, result.leader, result.leader_epoch):
                lane.queue.hurry()
            known = self._view.leader(lane.topic, lane.partition)
            if known is None or known.epoch <= epoch:
                self._view.want_refresh()

    def _fail(self, batch: OutBatch, code: ErrorCode, why: str) -> None:
        error = SendError(code, why, maybe_stored=batch.maybe_stored or batch.in_flight)
        self._settled(batch, error)

    # --- the producer's identity

    def _obtain_identity(self, previous: ProducerIdentity | None) -> None:
        if self._identity_task is None or self._identity_task.done():
            self._identity_task = self._loop.create_task(self._ask_identity(previous))

    async def _ask_identity(self, previous: ProducerIdentity | None) -> None:
        """A producer id, or the next epoch of the one that we have. Any broker can tell."""
        backoff = Backoff(RETRY, self._rng)
        request = api.InitProducerIdRequest()
        if previous is not None:
            request = api.InitProducerIdRequest(
                producer_id=previous.producer_id, producer_epoch=previous.epoch
            )
        while True:
            addresses = list(self._view.brokers().values())
            self._rng.shuffle(addresses)
            for address in addresses:
                try:
                    answer = await self._connections.init_producer_id(
                        address, request, timeout_ms=INIT_TIMEOUT_MS
                    )
                except LinkError as error:
                    self._note_problem(str(error))
                    continue
                if isinstance(answer, ApiError):
                    self._note_problem(str(answer))
                    if answer.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                        # Our last question was carried out though its answer was lost: begin with a new id.
                        request = api.InitProducerIdRequest()
                    continue
                self._identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
                self.counters.epochs += 1
                self.view_changed()
                return
            self._view.want_refresh()
            await asyncio.sleep(backoff.failed(0) / 1000)

    def _note_problem(self, problem: str) -> None:
        for lane in self._lanes:
            for batch in (*lane.queue.unsettled, *lane.queue.waiting):
                batch.problem = f"no producer id: {problem}"

    # --- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now_ms = self._now_ms()
            for lane in self._lanes:
                if lane.lingered:
                    # It found no place to go; closed, it has a deadline.
                    self._seal(lane)
                gone = self._view.is_gone(lane.topic)
                for batch in lane.queue.expire(None if gone else now_ms):
                    if gone:
                        text = f"topic {lane.topic} was deleted while messages were sent to it"
                        self._fail(batch, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
                    else:
                        self._expired(lane, batch)
                    self.ready(lane)
            if any(now_ms - each.sent_ms > SLOW_MS for sent in self._in_flight.values() for each in sent):
                self._view.want_refresh()

    def _expired(self, lane: Lane, batch: OutBatch) -> None:
        where = f"partition {lane.topic}-{lane.partition}"
        if batch.problem:
            why = f"last: {batch.problem}"
        elif self._view.leader(lane.topic, lane.partition) is None:
            why = "it has no leader; see: metaquorum topics describe"
        else:
            why = "it waited behind other messages; lower the rate or raise the delivery timeout"
        self._fail(batch, ErrorCode.REQUEST_TIMED_OUT, f"{where} acknowledged nothing in time ({why})")

    def _give_up_deposed(self) -> None:
        """A broker that answers nothing and leads none of what was asked of it any more is not waited for."""
        now_ms = self._now_ms()
        for broker_id, requests in list(self._in_flight.items()):
            slow = [each for each in requests if now_ms - each.sent_ms > SLOW_MS]
            if not slow:
                continue
            leads = False
            for lane, _, epoch in slow[0].batches:
                leader = self._view.leader(lane.topic, lane.partition)
                leads = leads or leader is None or (leader.broker_id == broker_id and leader.epoch <= epoch)
            if not leads:
                self._connections.drop(slow[0].address)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        """For timestamps of messages."""
        return time.time_ns() // 1_000_000
