"""What a client knows of the cluster: where brokers listen and which ones lead the partitions of its topics.

Owns refreshing: any node is asked, brokers in turn and the bootstrap addresses between them, one refresh at
a time, whose answer everyone gets who waits for it. A standby controller leads to the active one, or answers
from what it has. Knowledge never goes back: of a partition, an older leader epoch is not taken (KIP-320,
KIP-951).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import NO_LEADER
from metaquorum.runtime.backoff import Backoff, BackoffPolicy
from metaquorum.runtime.client.admin import Address, ClientError
from metaquorum.runtime.data_client.connections import Connections, LinkError, MetadataAnswer, Referral

REFRESH = BackoffPolicy(initial_ms=20, max_ms=500)
MAX_AGE_MS = 30_000
"""The age at which metadata is refreshed although nothing went wrong (Kafka: metadata.max.age.ms)."""
ATTEMPT_MS = 3_000
STALE_ANSWERS = 10
"""The number of answers, within three seconds, in which nodes that may be behind must say that a topic is
absent before it is believed; fewer when the time is up."""

PartitionName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader of a partition; `leader` NO_LEADER: no one."""

    leader: int
    epoch: int


@dataclass(slots=True)
class TopicView:
    topic_id: bytes
    partitions: dict[int, Leadership] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Whom to ask about a partition."""

    broker_id: int
    address: Address
    epoch: int


@dataclass(frozen=True, slots=True)
class _Look:
    """A refresh under way, and the topics that it asks for."""

    names: frozenset[str]
    task: asyncio.Task[MetadataAnswer | None]


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
        self._looking: _Look | None = None
        self._closed = False
        self._pause = Backoff(REFRESH, rng)
        self._again_s = 0.0
        self._turn = 0
        self._problem = "no request was sent"

    # --- what is known

    def topic(self, name: str) -> TopicView | None:
        return self._topics.get(name)

    def leader(self, topic: str, partition: int) -> PartitionLeader | None:
        """None: no one that is known, or no one leads. Ask for a refresh then."""
        known = self._topics.get(topic)
        found = known.partitions.get(partition) if known else None
        if found is None or found.leader == NO_LEADER:
            return None
        address = self._brokers.get(found.leader)
        return None if address is None else PartitionLeader(found.leader, address, found.epoch)

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
        try:
            while True:
                try:
                    async with asyncio.timeout(MAX_AGE_MS / 1000):
                        await self._wanted.wait()
                except TimeoutError:
                    backoff.succeeded()
                self._wanted.clear()
                if self._names and await self._look(()) is None:
                    self._wanted.set()  # nothing else would make the caller ask again
                # A caller that is not content asks again at once: the waits grow until someone is.
                await asyncio.sleep(backoff.failed(0) / 1000)
                if not self._wanted.is_set():
                    backoff.succeeded()
        finally:
            self._closed = True
            if self._looking is not None:
                self._looking.task.cancel()

    async def find_topics(self, names: Iterable[str], *, timeout_ms: int) -> None:
        """Returns when all these topics are known. Raises ApiError UNKNOWN_TOPIC_OR_PARTITION for one that
        does not exist, ClientError when no one answers in time."""
        wanted = set(names)
        absent: list[str] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._find(wanted, absent)
        except TimeoutError:
            if not absent:
                raise ClientError(self._nobody(timeout_ms)) from None
        if absent:
            self._names.difference_update(absent)
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {absent[0]}; create it (metaquorum topics create {absent[0]}),"
                " or correct the name",
            )

    async def _find(self, wanted: set[str], absent: list[str]) -> None:
        """Until all are known, or some do not exist for certain: `absent`, as the last answer had them."""
        stale_answers = 0
        while missing := sorted(wanted - self._topics.keys()):
            # Not at once after an answer that did not help, whichever caller got it.
            await asyncio.sleep(max(0.0, self._again_s - asyncio.get_running_loop().time()))
            self._names |= wanted
            answer = await self._look(missing)
            if answer is None:
                continue
            absent[:] = [name for name in missing if name in answer.unknown_names]
            stale_answers += bool(absent)
            if absent and (answer.linearizable or stale_answers >= STALE_ANSWERS):
                return
        absent.clear()

    async def _look(self, names: Collection[str]) -> MetadataAnswer | None:
        """The answer to a refresh that asks for these topics among others: of the one under way if it does,
        else of the next one. Those who come together share it, and the wait after one that did not help."""
        while (under_way := self._looking) is not None and not under_way.names.issuperset(names):
            await asyncio.wait((under_way.task,))
        if self._closed:
            raise ClientError("the client was closed while it asked for metadata")
        if under_way is None:
            asked = frozenset(self._names)
            under_way = _Look(asked, asyncio.get_running_loop().create_task(self._refresh(asked)))
            self._looking = under_way
        try:
            return await asyncio.shield(under_way.task)
        except asyncio.CancelledError:
            if under_way.task.cancelled():
                raise ClientError("the client was closed while it asked for metadata") from None
            raise

    async def _refresh(self, names: frozenset[str]) -> MetadataAnswer | None:
        """Asks one node; None: it did not help, the next one is asked next time."""
        try:
            answer = await self._ask(sorted(names))
            if isinstance(answer, MetadataAnswer):
                self._take(answer)
        finally:
            self._looking = None
        if isinstance(answer, MetadataAnswer) and not answer.unknown_names:
            self._pause.succeeded()
            self._again_s = 0.0
        else:
            self._again_s = asyncio.get_running_loop().time() + self._pause.failed(0) / 1000
        if isinstance(answer, str):
            self._problem = answer
            return None
        self._changed()
        return answer

    async def _ask(self, names: Sequence[str]) -> MetadataAnswer | str:
        """What one node says, or the one that it refers to; else why there is no answer."""
        address = self._next_address()
        answer = await self._ask_at(address, names)
        if isinstance(answer, Referral):
            # Only the active controller is certain which topics do not exist; anyone knows the brokers.
            if answer.to is not None and answer.to != address:
                newest = await self._ask_at(answer.to, names)
                if isinstance(newest, MetadataAnswer):
                    return newest
            answer = await self._ask_at(address, names, stale=True)
        return answer.problem if isinstance(answer, Referral) else answer

    async def _ask_at(
        self, address: Address, names: Sequence[str], *, stale: bool = False
    ) -> MetadataAnswer | Referral | str:
        try:
            answer = await self._connections.metadata(address, names, timeout_ms=ATTEMPT_MS, stale=stale)
        except LinkError as error:
            return str(error)
        return f"{address[0]}:{address[1]}: {answer}" if isinstance(answer, ApiError) else answer

    def _next_address(self) -> Address:
        """Bootstrap addresses and brokers in turn; at the beginning only the former are known."""
        brokers = [each for each in self._brokers.values() if each not in self._bootstrap]
        choices = [*self._bootstrap, *brokers]
        self._turn += 1
        return choices[(self._turn - 1) % len(choices)]

    def _take(self, answer: MetadataAnswer) -> None:
        for broker in answer.brokers:
            if (at := broker.grpc_endpoint) is not None:
                self._brokers[broker.broker_id] = (at.host, at.port)
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
            f"no node at {addresses} answered within {timeout_ms} ms (last: {self._problem}); check that "
            "the cluster runs and that the addresses are right"
        )
