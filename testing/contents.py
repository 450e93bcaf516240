"""What is in a test cluster: topics and groups, their leaders and coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from metaquorum.clients.admin.groups import (
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
    partitions_of,
)
from metaquorum.clients.admin.partition_logs import EARLIEST, LATEST, log_offsets
from metaquorum.clients.admin.topics import create_topics, delete_topics
from metaquorum.clients.admin.transactions import list_transactions
from metaquorum.clients.kafka.cluster import KafkaClient, PartitionLeader
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.image import differing_parts
from metaquorum.metadata.image.types import TOPIC_RESOURCE
from metaquorum.metadata.requests.common import NewTopic
from metaquorum.storage.batches.batch import Batches, RecordBatch, read_marker
from metaquorum.testing.errors import ClusterError
from metaquorum.testing.forming import text_of
from metaquorum.testing.running import RunningCluster
from metaquorum.wire.messages import FetchRequest, FindCoordinatorRequest

# What a partition holds, message by message, as its leader has it.

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
"""States of a transaction."""
_FETCH_BYTES = 4 * 1024 * 1024
_LENGTH_BYTES = 12
_PAUSE_S = 0.01
_LAST_BY_NAME = 12
"""The last version of Fetch that names topics."""


class _CutMeanwhile(Exception):
    """Retention was faster than the reader."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a partition. `timestamp_ms`: Unix time, of the producer or the broker, as the topic's
    settings say; `transaction`: "committed", "aborted" or "open"; None without one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    transaction: str | None
    producer_id: int


async def read_partition(client: KafkaClient, topic: str, partition: int) -> tuple[StoredMessage, ...]:
    """All messages up to the high watermark, in order. Raises ClusterError, and what `KafkaClient` raises."""
    while True:
        try:
            return await _read(client, PartitionLeader(topic, partition))
        except _CutMeanwhile:
            await asyncio.sleep(_PAUSE_S)


async def _read(client: KafkaClient, leader: PartitionLeader) -> tuple[StoredMessage, ...]:
    topic, partition = place = leader.topic, leader.partition
    bounds = [(await log_offsets(client, {place: at}))[place] for at in (EARLIEST, LATEST)]
    for bound in bounds:
        if isinstance(bound, ErrorCode):
            raise ClusterError(f"{topic}-{partition} cannot be read: {bound.name}")
    offset, end = bounds
    batches: list[RecordBatch] = []
    while offset < end:
        fetched = await _batches_from(client, leader, offset)
        if not fetched:
            break
        batches += fetched
        offset = fetched[-1].header.next_offset
    return _messages(batches, topic, partition, bounds[0], end)


async def _batches_from(client: KafkaClient, leader: PartitionLeader, offset: int) -> list[RecordBatch]:
    message: Any = FetchRequest
    part = message.FetchPartition(
        partition=leader.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
    )
    body = message(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_FETCH_BYTES,
        topics=(message.FetchTopic(topic=leader.topic, partitions=(part,)),),
    )
    answer = await client.ask(body, target=leader, lowest=4, highest=_LAST_BY_NAME)
    ((fetched,),) = [each.partitions for each in answer.responses]
    if fetched.error_code:
        code = ErrorCode.of(fetched.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise _CutMeanwhile
        place = f"{leader.topic}-{leader.partition}"
        raise ClusterError(f"{place} cannot be read from offset {offset}: {code.name}")
    return list(Batches.sealed(_whole(bytes(fetched.records or b""))).split())


def _whole(data: bytes) -> bytes:
    """Without the last batch of a fetch, if it is cut off."""
    position = 0
    while position + _LENGTH_BYTES <= len(data):
        size = _LENGTH_BYTES + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        position += size
    return data[:position]


def _messages(
    batches: list[RecordBatch], topic: str, partition: int, start: int, end: int
) -> tuple[StoredMessage, ...]:
    states: dict[int, str] = {}
    """Of the transactions that have ended, by the position of their batches."""
    ongoing: dict[int, list[int]] = {}
    for position, batch in enumerate(batches):
        header = batch.header
        marker = read_marker(header, batch.data)
        if marker is not None:
            ended = ongoing.pop(header.producer_id, [])
            states |= dict.fromkeys(ended, COMMITTED if marker.committed else ABORTED)
        elif header.is_transactional and not header.is_control:
            ongoing.setdefault(header.producer_id, []).append(position)
    messages = []
    for position, batch in enumerate(batches):
        header = batch.header
        if header.is_control:
            continue
        state = states.get(position, OPEN) if header.is_transactional else None
        messages += [
            StoredMessage(
                topic=topic,
                partition=partition,
                offset=record.offset,
                timestamp_ms=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=tuple((name.decode(), value) for name, value in record.headers),
                transaction=state,
                producer_id=header.producer_id,
            )
            for record in batch.records()
            if start <= record.offset < end
        ]
    return tuple(messages)


def committed(messages: tuple[StoredMessage, ...]) -> list[StoredMessage]:
    """Those that a consumer with `isolation.level=read_committed` reads."""
    readable: list[StoredMessage] = []
    for message in messages:
        if message.transaction == OPEN:
            break
        if message.transaction != ABORTED:
            readable.append(message)
    return readable


RESTORED = frozenset({"provenance", "brokers", "controllers", "topics", "producer_ids"})
"""Parts of the metadata that `clean` restores, or that change by themselves. A cluster where a test changed
another one is not clean."""

FIRST_FETCHES_MS = 500
UNFINISHED = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of transactions without all markers."""


class PartitionState(Protocol):
    """The replicas of a partition; `leader` is negative if there is none."""

    @property
    def leader(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...


class ClusterContents(RunningCluster):
    """See the module."""

    # --- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic, and returns its name once every broker that runs knows it. By default each broker
        has a replica, up to three. A manual clock moves by half a second: followers that asked their leader
        before it knew of the topic ask again."""
        given = tuple((key, text_of(value)) for key, value in (configs or {}).items())
        brokers = len(self._brokers())
        factor = min(3, brokers) if replication_factor is None else replication_factor
        if not 0 < factor <= brokers:
            raise ClusterError(f"replication_factor={factor}: write 1 to {brokers}, the number of brokers")
        topic = NewTopic(name=name, partitions=partitions, replication_factor=factor, configs=given)
        before = self._partitions_of(name)
        self._run(
            self._create(topic, is_new=before is not None and not before), f"topic {name} to be created"
        )
        self.wait_for_topic(name)
        if self._is_manual:
            self.clock.advance(ms=FIRST_FETCHES_MS)
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and returns once every broker that runs has forgotten it."""
        was_there = bool(self._partitions_of(name))
        self._run(self._delete((name,), were_there=was_there), f"topic {name} to be deleted")
        self.wait_for_topic(name, exists=False)

    def heal_all(self) -> None:
        """Heals every fault that is in force, and returns once all nodes serve."""
        ended = [fault for fault in reversed(self._faults.all) if fault.end()]
        self._recover()
        for fault in ended:
            fault.recover()
        self._until(self._is_ready, "all nodes to serve")

    def clean(self) -> None:
        """Heals every fault, and deletes all topics and groups. Raises ClusterError if something remains: a
        group with members, or settings, ACLs, quotas, users or tokens that were changed."""
        self.heal_all()
        self._run(self._remove_all(), "topics and groups to be deleted")
        image = self._brokers()[0].image or MetadataImage()
        changed = differing_parts(_without_internal_topics(image), self._first_image)
        changed = [part for part in changed if part not in RESTORED]
        if changed:
            raise ClusterError(f"a test changed {', '.join(changed)} of the cluster and did not restore them")

    # --- who is who

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition. Waits until there is one."""
        what = f"a leader of {topic}-{partition}"
        return self._wait_for_value(lambda: self._leader_of(topic, partition), what)

    def coordinator(self, *, group: str | None = None, transaction: str | None = None) -> int:
        """The broker that coordinates a group, or a transactional id. Waits until there is one."""
        if (group is None) is (transaction is None):
            raise ClusterError("give either group= or transaction=, of which to find the coordinator")
        key = group if transaction is None else transaction
        body = FindCoordinatorRequest(key_type=int(group is None), coordinator_keys=(key or "",))
        leaders: list[int] = []

        def is_known() -> bool:
            (answer,) = self._run(self._asks().ask(body, lowest=4), f"a coordinator of {key}").coordinators
            leaders.append(answer.node_id)
            return ErrorCode.of(answer.error_code) is ErrorCode.NONE

        self.wait_until(is_known, f"a coordinator of {key}")
        return leaders[-1]

    # --- waits

    def wait_for_group(self, group: str, *, members: int | None = None, state: str = "Stable") -> None:
        """Returns once a consumer group is in this state, with this number of members."""

        def is_there() -> bool:
            described = self._run(describe_group(self._asks(), group), f"group {group}")
            if described is None:
                return state == "Dead"
            return described.state == state and members in (None, len(described.members))

        wanted = f"group {group} to be {state}" + ("" if members is None else f" with {members} members")
        self.wait_until(is_there, wanted)

    def wait_for_topic(self, name: str, *, exists: bool = True) -> None:
        """Returns once every broker that runs knows a topic that a client creates, or has forgotten it."""
        does = "know" if exists else "forget"
        self._until(lambda: self._all_know(name, exists), f"every broker to {does} topic {name}")

    def wait_for_full_isr(self, topic: str) -> None:
        """Returns once every replica of a topic is in sync."""

        def is_full() -> bool:
            parts = self._partitions_of(topic) or []
            return bool(parts) and all(len(part.isr) == len(part.replicas) for part in parts)

        self._until(is_full, f"a full ISR of topic {topic}")

    def wait_for_no_transactions(self) -> None:
        """Returns once no transaction is ongoing, and those that have ended have their markers: a commit
        returns to its producer before."""

        def is_over() -> bool:
            return not self._run(list_transactions(self._asks(), states=UNFINISHED), "transactions")

        self.wait_until(is_over, "transactions to end")

    def lag(self, group: str) -> dict[tuple[str, int], int]:
        """How many messages behind the end a group's committed offsets are, by topic and partition."""
        return self._run(self._lag(group), f"the lag of group {group}")

    def commit_offsets(self, group: str, topic: str, offset: int = 0) -> None:
        """A group without members has committed this offset for every partition of a topic, so its consumers
        begin there, whatever their `auto.offset.reset` says."""
        self._run(self._commit(group, topic, offset), f"offsets of group {group}")

    # --- messages

    def messages(self, topic: str, partition: int = 0) -> tuple[StoredMessage, ...]:
        """All messages of a partition up to the high watermark, in order, also those of transactions that
        were aborted or have not ended."""
        self.leader(topic, partition)  # the topic is there
        reading = read_partition(self._asks(), topic, partition)
        return self._run(reading, f"the messages of {topic}-{partition}")

    def consume_all(self, topic: str) -> list[StoredMessage]:
        """What a consumer with `isolation.level=read_committed` reads from the beginning, partition by
        partition."""
        self.leader(topic, 0)
        count = len(self._partitions_of(topic) or ())
        return [each for index in range(count) for each in committed(self.messages(topic, index))]

    # --- what brokers do now and then

    def run_retention(self) -> None:
        """Brokers remove now what retention no longer keeps, by the cluster's clock."""
        self._do_upkeep("retention to run")

    def run_compaction(self) -> None:
        """Brokers compact now what is due: closed segments, and a topic's `min.cleanable.dirty.ratio` counts
        as ever."""
        self._do_upkeep("compaction to run")

    def _do_upkeep(self, what: str) -> None:
        async def do() -> None:
            await asyncio.gather(*(node.do_upkeep() for node in self._brokers()))

        self._run(do(), what)

    # --- on the loop

    def _all_know(self, topic: str, exists: bool) -> bool:
        images = [node.image for node in self._brokers() if node.is_serving]
        known = [image.topics.topic_named(topic) is not None for image in images if image is not None]
        return all(each is exists for each in known)

    def _leader_of(self, topic: str, partition: int) -> int | None:
        parts = self._partitions_of(topic)
        if parts is None:
            return None
        if not 0 <= partition < len(parts):
            raise ClusterError(f"there is no partition {topic}-{partition}: create the topic")
        return parts[partition].leader if parts[partition].leader >= 0 else None

    def _partitions_of(self, topic: str) -> Sequence[PartitionState] | None:
        """As the active controller knows them; None without one."""
        active = self._leader_of_quorum()
        process = None if active is None else self._nodes[active].process
        if process is None:
            return None
        topics = process.roles[0].image().topics
        info = topics.topic_named(topic)
        return [] if info is None else topics.partitions_of(info.topic_id)

    async def _lag(self, group: str) -> dict[tuple[str, int], int]:
        client = self._asks()
        committed = await committed_offsets(client, group)
        ends = await log_offsets(client, dict.fromkeys(committed, LATEST))
        lags: dict[tuple[str, int], int] = {}
        for partition, offset in committed.items():
            end = ends[partition]
            if isinstance(end, ErrorCode):
                raise ClusterError(f"the end of {partition[0]}-{partition[1]} is not known: {end.name}")
            lags[partition] = end - offset.offset
        return lags

    async def _commit(self, group: str, topic: str, offset: int) -> None:
        client = self._asks()
        places, missing = await partitions_of(client, [(topic, None)])
        if missing:
            raise ClusterError(f"offsets of group {group} were not committed: {missing[0]}")
        codes = await commit_offsets(client, group, dict.fromkeys(places, offset))
        for (name, index), code in codes.items():
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                raise ClusterError(f"group {group} has members, which commit offsets: close them first")
            if code is not ErrorCode.NONE:
                raise ClusterError(f"offset {offset} of {name}-{index} was not committed: {code.name}")

    async def _create(self, topic: NewTopic, *, is_new: bool) -> None:
        (result,) = await create_topics(self._asks(), [topic])
        if is_new and result.error is ErrorCode.TOPIC_ALREADY_EXISTS:
            return  # by an attempt whose answer was lost
        if result.error is not ErrorCode.NONE:
            raise ClusterError(f"topic {topic.name} was not created: {result.error.name}: {result.message}")

    async def _delete(self, names: tuple[str, ...], *, were_there: bool) -> None:
        for result in await delete_topics(self._asks(), names):
            if were_there and result.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # it went by an attempt whose answer was lost
            if result.error is not ErrorCode.NONE:
                why = f"{result.error.name}: {result.message}"
                raise ClusterError(f"topic {result.name} was not deleted: {why}")

    async def _remove_all(self) -> None:
        client = self._asks()
        image = next(node.image for node in self._brokers())
        names = [] if image is None else [topic.name for topic in image.topics.all()]
        mine = tuple(name for name in names if not name.startswith("__"))
        await self._delete(mine, were_there=True)
        for group in await list_groups(client):
            error = await delete_group(client, group.group_id)
            if error not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise ClusterError(
                    f"group {group.group_id} was not deleted: {error.name}: close the consumers of a test"
                )


def _without_internal_topics(image: MetadataImage) -> MetadataImage:
    """The image without the settings of the topics that brokers create for themselves."""
    configs = image.configs.builder()
    for resource, _ in image.configs.items_sorted():
        if resource.resource_type == TOPIC_RESOURCE and resource.name.startswith("__"):
            configs.remove(resource)
    return replace(image, configs=configs.freeze())
