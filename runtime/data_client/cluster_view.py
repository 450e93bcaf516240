"""What a client knows of the cluster: where brokers listen and who leads the partitions of its topics.

Owns refreshing: any node is asked, brokers in turn and the bootstrap addresses between them, one refresh at
a time. Knowledge never goes back: of a partition, an older leader epoch is not taken (KIP-320, KIP-951).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from metadata.errors import ApiError, ErrorCode
from metadata.image.types import NO_LEADER
from runtime.backoff import Backoff, BackoffPolicy
from runtime.client import Address, ClientError
from runtime.data_client.connections import Connections, LinkError, MetadataAnswer

REFRESH = BackoffPolicy(initial_ms=20, max_ms=500)
MAX_AGE_MS = 30_000
"""After so long knowledge is refreshed though nothing went wrong (Kafka: metadata.max.age.ms)."""
ATTEMPT_MS = 3_000
STALE_ANSWERS = 20
"""So many nodes that may be behind must say that a topic is absent before it is believed."""

PartitionName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads a partition; `leader` NO_LEADER: nobody."""

    leader: int
    epoch: int


@dataclass(slots=True)
class TopicView:
    topic_id: bytes
    partitions: dict[int, Leadership] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leader:
    """Whom to ask about a partition."""

    broker_id: int
    address: Address
    epoch: int


class ClusterView:
    """`changed` is called after every refresh. `run` must be a task for as long as the view is used."""

    def __init__(
        self,
        connections: Connections,
        bootstrap: Sequence[Address],
        *,
        rng: random.Random,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._bootstrap = tuple(bootstrap)
        self._rng = rng
        self._changed = changed
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicView] = {}
        self._names: set[str] = set()
        self._gone: set[str] = set()
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        self._turn = 0
        self._problem = "nobody was asked"

    # --- what is known

    def topic(self, name: str) -> TopicView | None:
        return self._topics.get(name)

    def leader(self, topic: str, partition: int) -> Leader | None:
        """None: nobody that is known, or nobody leads. Ask for a refresh then."""
        known = self._topics.get(topic)
        found = known.partitions.get(partition) if known else None
        if found is None or found.leader == NO_LEADER:
            return None
        address = self._brokers.get(found.leader)
        return None if address is None else Leader(found.leader, address, found.epoch)

    def led(self, topic: str) -> list[int]:
        """The topic's partitions that have a leader."""
        known = self._topics.get(topic)
        return (
            [index for index, each in known.partitions.items() if each.leader != NO_LEADER] if known else []
        )

    def is_gone(self, topic: str) -> bool:
        """Whether a topic that was known does not exist any more, for certain."""
        return topic in self._gone

    def brokers(self) -> dict[int, Address]:
        return dict(self._brokers)

    def learned(self, topic: str, partition: int, leader: int | None, epoch: int) -> bool:
        """What an answer said on the way; True: it is newer than what was known, and its address is."""
        known = self._topics.get(topic)
        before = known.partitions.get(partition) if known else None
        if known is None or leader is None or leader == NO_LEADER or (before and epoch <= before.epoch):
            return False
        known.partitions[partition] = Leadership(leader, epoch)
        return leader in self._brokers

    # --- refreshing

    def want_refresh(self) -> None:
        """Soon, by `run`."""
        self._wanted.set()

    async def run(self) -> None:
        """Refreshes whenever it is wanted, and when knowledge is old. Never ends by itself."""
        backoff = Backoff(REFRESH, self._rng)
        while True:
            try:
                async with asyncio.timeout(MAX_AGE_MS / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                backoff.succeeded()
            self._wanted.clear()
            if self._names and await self._refresh_once() is None:
                self._wanted.set()  # whoever wanted it has nothing else that would make him ask again
            # Whoever is not content asks again at once: the waits grow until somebody is.
            await asyncio.sleep(backoff.failed(0) / 1000)
            if not self._wanted.is_set():
                backoff.succeeded()

    async def find_topics(self, names: Iterable[str], *, timeout_ms: int) -> None:
        """Returns when all these topics are known. Raises ApiError UNKNOWN_TOPIC_OR_PARTITION for one that
        does not exist, ClientError when nobody answers in time."""
        wanted = set(names)
        self._names |= wanted
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        backoff = Backoff(REFRESH, self._rng)
        stale_answers = 0
        while missing := sorted(wanted - self._topics.keys()):
            answer = await self._refresh_once()
            gone = [name for name in missing if answer is not None and name in answer.unknown_names]
            if answer is not None and gone:
                stale_answers += 1
                if answer.linearizable or stale_answers >= STALE_ANSWERS:
                    self._names -= set(gone)
                    raise ApiError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        f"there is no topic {gone[0]}; create it (metaquorum topics create {gone[0]}),"
                        " or correct the name",
                    )
            elif answer is not None:
                continue
            if asyncio.get_running_loop().time() >= deadline:
                raise ClientError(self._nobody(timeout_ms))
            await asyncio.sleep(backoff.failed(0) / 1000)

    async def _refresh_once(self) -> MetadataAnswer | None:
        """Asks one node; None: it did not help, the next one is asked next time."""
        async with self._lock:
            address = self._next_address()
            try:
                answer = await self._connections.metadata(address, sorted(self._names), timeout_ms=ATTEMPT_MS)
            except LinkError as error:
                self._problem = str(error)
                return None
            if isinstance(answer, ApiError):
                self._problem = f"{address[0]}:{address[1]}: {answer}"
                return None
            self._take(answer)
        self._changed()
        return answer

    def _next_address(self) -> Address:
        """Bootstrap addresses and brokers in turn; at the beginning only the former are known."""
        brokers = [each for each in self._brokers.values() if each not in self._bootstrap]
        choices = [*self._bootstrap, *brokers]
        self._turn += 1
        return choices[(self._turn - 1) % len(choices)]

    def _take(self, answer: MetadataAnswer) -> None:
        for broker in answer.brokers:
            if broker.endpoints:
                self._brokers[broker.broker_id] = (broker.endpoints[0].host, broker.endpoints[0].port)
        if answer.linearizable:
            self._gone |= answer.unknown_names & self._topics.keys()
        for each in answer.topics:
            self._gone.discard(each.info.name)
            known = self._topics.get(each.info.name)
            if known is None or known.topic_id != each.info.topic_id:
                known = self._topics[each.info.name] = TopicView(each.info.topic_id)
            for one in each.partitions:
                before = known.partitions.get(one.index)
                if before is None or one.leader_epoch >= before.epoch:
                    known.partitions[one.index] = Leadership(one.leader, one.leader_epoch)

    def _nobody(self, timeout_ms: int) -> str:
        addresses = ", ".join(f"{host}:{port}" for host, port in self._bootstrap)
        return (
            f"nobody at {addresses} answered within {timeout_ms} ms (last: {self._problem});"
            " check that the cluster runs and that the addresses are right"
        )
