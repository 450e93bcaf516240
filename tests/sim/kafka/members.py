"""Simulated group members: they join, read their partitions as far as transactions are decided, and commit.

A member starts from the committed offset that its coordinator returns. One that does not know the outcome of
a commit leaves and rejoins, so that the late request belongs to an earlier generation. Some members leave;
some send nothing for longer than their session timeout and then continue with the generation that they had.
Source: KIP-62, KIP-394, KIP-848.
"""

from __future__ import annotations

from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import LEFT
from metaquorum.broker.server.kafka.groups import GROUP
from metaquorum.metadata.errors import ErrorCode
from metaquorum.wire import messages
from tests.sim.errors import SafetyError
from tests.sim.kafka.clients import RETRIABLE, Connection, KafkaClients
from tests.sim.kafka.history import GroupHistory, Place, TransactionHistory
from tests.sim.kafka.loop import sleep_ms
from tests.sim.kafka.plan import KEYED, SESSION_MS, SOURCE, TARGET, KafkaLoad

SUBSCRIBED = (SOURCE, TARGET, KEYED)
CLASSIC, CONSUMER = "classic", "consumer"
_JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _CONSUMER = 9, 5, 4, 5, 8, 1
_PLACES = tuple((topic, index) for topic in SUBSCRIBED for index in range(2))
_GONE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""The member's id or generation is no longer valid: it rejoins."""
REVOCATION_MS = SESSION_MS + 1_000
"""Longer than the session: a member without a response for this long has lost its session before it is
removed for not giving up partitions."""
_HELD_SHARE = 0.9
"""The share of its session for which a member may consider its partitions its own; clocks differ."""


class RejoinError(Exception):
    """The membership is over, as far as the member knows."""


class Member:
    """What members of both protocols share: reading, committing, and which partitions they consider their
    own."""

    def __init__(
        self,
        name: str,
        group: GroupHistory,
        clients: KafkaClients,
        transactions: TransactionHistory,
        load: KafkaLoad,
    ) -> None:
        self.connection = Connection(name, clients)
        self.name = name
        self.group = group
        self.clients = clients
        self.load = load
        self._transactions = transactions
        self._rng = clients.engine.rng
        self._marks = clients.marks
        self._incarnation = 0
        self.member_id = ""
        self.generation = -1
        self.coordinator = -1
        self.owned: dict[Place, int | None] = {}

    async def run(self) -> None:
        while self.clients.running:
            self.owned.clear()
            self.coordinator = await self.connection.coordinator(GROUP, self.group.group_id)
            try:
                await self.join()
                while self.clients.running:
                    await self.connection.pause(*self.load.pause_ms)
                    await self.alive()
                    for place in self._rng.sample(sorted(self.owned), min(3, len(self.owned))):
                        await self._read(place)
                    await self._maybe_odd()
            except RejoinError:
                await self.lost()
                await self.connection.pause()
        self.owned.clear()
        await self.leave()

    def _trace(self, what: str) -> None:
        self.clients.engine.trace(self.name, what)

    async def join(self) -> None:
        raise NotImplementedError

    async def alive(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    async def lost(self) -> None:
        """The membership is over, as far as this member knows."""

    async def _maybe_odd(self) -> None:
        if self._rng.random() < self.load.leave_chance:
            self._marks.add("member left")
            await self.leave()
            raise RejoinError
        if self._rng.random() < self.load.silence_chance / 4:
            await sleep_ms(1.4 * SESSION_MS)
            for place in sorted(self.owned):
                await self._read(place)

    async def ask(self, body: Any, version: int) -> Any:
        """The body of a response; raises RejoinError if there is none."""
        answer = await self.connection.ask(self.coordinator, body, version)
        if answer is None:
            raise RejoinError
        return answer.body

    def require(self, code: int) -> None:
        """Raises RejoinError unless the code is NONE."""
        error = ErrorCode(code)
        if error in _GONE or error in RETRIABLE:
            self._marks.add(f"member told {error.name}")
            raise RejoinError
        if error is not ErrorCode.NONE:
            raise SafetyError(f"{self.name} is refused: {error.name}")

    # ---- reading and committing ------------------------------------------------------------------

    async def _read(self, place: Place) -> None:
        position = self.owned[place]
        if position is None:
            generation = self.generation
            found = await self.connection.committed_offset(self.group.group_id, *place, self.coordinator)
            if found is None:
                raise RejoinError
            self.group.fetched(generation, place, found)
            if place in self.owned:
                self.owned[place] = max(found, 0)
            return
        read = await self.connection.read(*place, position)
        if read is None or place not in self.owned:
            return
        next_position, records = read
        for each in records:
            self._transactions.read(each.value or b"", self.name)
        self.owned[place] = next_position
        if next_position > position and self._rng.random() < 0.6:
            await self._commit(place, next_position)

    async def _commit(self, place: Place, offset: int) -> None:
        kinds = messages.OffsetCommitRequest
        generation = self.generation
        part = kinds.OffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
        body = kinds(
            group_id=self.group.group_id,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=(kinds.OffsetCommitRequestTopic(name=place[0], partitions=(part,)),),
        )
        self.group.asks(place, offset)
        answer = await self.connection.ask(self.coordinator, body, _COMMIT)
        code = None if answer is None else ErrorCode(answer.body.topics[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            self.group.committed(generation, place, offset)
            self._marks.add("offset committed")
            self._trace(f"has committed {offset} of {place} in {generation}")
            return
        if code is not None and code in _GONE:
            self._marks.add("commit of a former generation refused")
            raise RejoinError
        # It may be stored later, but then it is the commit of a member that has left.
        self._marks.add("commit in doubt")
        await self.leave()
        raise RejoinError


class ClassicMember(Member):
    """A member of the protocol in which one member assigns."""

    async def join(self) -> None:
        kinds = messages.JoinGroupRequest
        subscription = kinds.JoinGroupRequestProtocol(name="range", metadata=_subscription(SUBSCRIBED))
        while True:
            body = kinds(
                group_id=self.group.group_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=1_500,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=(subscription,),
            )
            joined = await self._ask_join(body)
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.member_id = joined.member_id
        if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.require(joined.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        await self._sync(joined)

    async def _ask_join(self, body: Any) -> Any:
        """A JoinGroup waits for the other members: longer than other requests."""
        for _ in range(6):
            answer = await self.connection.ask(self.coordinator, body, _JOIN)
            if answer is not None:
                return answer.body
        raise RejoinError

    async def _sync(self, joined: Any) -> None:
        kinds = messages.SyncGroupRequest
        given: tuple[Any, ...] = ()
        if joined.leader == joined.member_id and not joined.skip_assignment:
            ids = sorted(each.member_id for each in joined.members)
            given = tuple(
                kinds.SyncGroupRequestAssignment(
                    member_id=each, assignment=bytes(range(at, len(_PLACES), len(ids)))
                )
                for at, each in enumerate(ids)
            )
            self._marks.add("group assigned")
        body = kinds(
            group_id=self.group.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        synced = await self.ask(body, _SYNC)
        self.require(synced.error_code)
        places = [_PLACES[at] for at in synced.assignment]
        self.group.assigned(self.generation, self.member_id, places)
        self.owned = dict.fromkeys(places)
        self._trace(f"owns {places} in generation {self.generation}")

    async def alive(self) -> None:
        body = messages.HeartbeatRequest(
            group_id=self.group.group_id, generation_id=self.generation, member_id=self.member_id
        )
        answer = await self.connection.ask(self.coordinator, body, _HEARTBEAT)
        if answer is None:
            raise RejoinError
        if answer.body.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self.require(answer.body.error_code)

    async def leave(self) -> None:
        """Sends one LeaveGroup; a coordinator that does not get it waits for the session timeout."""
        kinds = messages.LeaveGroupRequest
        body = kinds(group_id=self.group.group_id, members=(kinds.MemberIdentity(member_id=self.member_id),))
        if self.member_id:
            await self.connection.ask(self.coordinator, body, _LEAVE)
        self.member_id, self.generation = "", -1


class ConsumerMember(Member):
    """A member of the protocol in which the coordinator assigns (KIP-848)."""

    held_until_ms = 0.0
    _was_lost = False
    """The last response was lost: the next request reports everything, and requests everything."""
    others: list[ConsumerMember]
    """All members of its group."""

    async def join(self) -> None:
        self._incarnation += 1
        self.member_id, self.generation = f"{self.name}-{self._incarnation}", 0
        await self._heartbeat(full=True)

    async def alive(self) -> None:
        await self._heartbeat(full=self._rng.random() < 0.3)

    async def _heartbeat(self, *, full: bool) -> None:
        kinds = messages.ConsumerGroupHeartbeatRequest
        full = full or self.generation == 0 or self._was_lost
        by_topic: dict[bytes, list[int]] = {}
        topics = self.clients.laws.image().topics
        for topic, index in sorted(self.owned):
            info = topics.topic_named(topic)
            if info is not None:
                by_topic.setdefault(info.topic_id, []).append(index)
        owned = tuple(
            kinds.TopicPartitions(topic_id=each, partitions=tuple(indexes))
            for each, indexes in by_topic.items()
        )
        sent_ms = self.clients.engine.now_ms
        body = kinds(
            group_id=self.group.group_id,
            member_id=self.member_id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REVOCATION_MS if full else -1,
            subscribed_topic_names=SUBSCRIBED if full else None,
            topic_partitions=owned,
        )
        at = self.clients.partition_of_group(self.group.group_id)
        answer = await self.connection.ask(self.coordinator, body, _CONSUMER, about=at)
        self._was_lost = answer is None or answer.body.error_code in RETRIABLE
        if answer is None or self._was_lost:
            # It keeps its partitions, and reports them to the current coordinator.
            self.coordinator = await self.connection.coordinator(GROUP, self.group.group_id)
            return
        self.require(answer.body.error_code)
        self.generation = answer.body.member_epoch
        if answer.is_current:
            self.held_until_ms = sent_ms + _HELD_SHARE * SESSION_MS
        if answer.body.assignment is not None:
            self._take(answer.body.assignment.topic_partitions)

    def _take(self, parts: Any) -> None:
        """The member's partitions from now on; others must have given them up, or have been silent for too
        long."""
        topics = self.clients.laws.image().topics
        told = [(topics.topic(each.topic_id), index) for each in parts for index in each.partitions]
        places = [(info.name, index) for info, index in told if info is not None]
        now_ms = self.clients.engine.now_ms
        for other in self.others:
            for place in places:
                if other is not self and place in other.owned and now_ms < other.held_until_ms:
                    raise SafetyError(f"{self.name} and {other.name} both own {place}")
        if set(self.owned) - set(places):
            self._marks.add("member gave partitions up")
        self.owned = {place: self.owned.get(place) for place in places}
        self._trace(f"owns {places} in epoch {self.generation}")
        self._marks.add("group assigned")

    async def leave(self) -> None:
        body = messages.ConsumerGroupHeartbeatRequest(
            group_id=self.group.group_id, member_id=self.member_id, member_epoch=LEFT
        )
        self.owned.clear()
        if self.member_id:
            await self.connection.ask(self.coordinator, body, _CONSUMER)
        self.member_id, self.generation = "", -1

    async def lost(self) -> None:
        await self.leave()


def _subscription(topics: tuple[str, ...]) -> bytes:
    """A consumer's metadata, in version 0."""
    data = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        data += len(topic).to_bytes(2, "big") + topic.encode()
    return data + b"\xff\xff\xff\xff"
