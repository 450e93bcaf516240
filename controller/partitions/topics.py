"""Decisions on topics: create, grow and delete, with one result per topic of a request (S4.12).

Writes one batch per request; does not know its size in bytes (a batch over 8 MiB is refused by its encoder,
with `refuse_all`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

import numpy as np

from metaquorum.controller.partitions.partition_change import default_directory
from metaquorum.controller.partitions.placement import Candidates, UsableBroker, place
from metaquorum.controller.result import ControllerResult, repeated
from metaquorum.metadata.columnar.encode import (
    LONGEST_LIST,
    Bulk,
    NewPartitionRows,
    NewRows,
    in_pieces,
    topic_words,
)
from metaquorum.metadata.columnar.encode import NewPartitionRows as PartitionsInColumns
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import LEVEL_DIRECTORIES
from metaquorum.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicInfo
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    ConfigRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.requests.common import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    Mutator,
    NewTopic,
    TopicResult,
    TopicsResponse,
)
from metaquorum.metadata.requests.partitions import CreatePartitionsRequest, TopicGrowth
from metaquorum.metadata.settings.configs import notes_on
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.metadata.settings.quotas import MUTATIONS, QuotaKey, quota_of
from metaquorum.metadata.settings.resource_keys import check_topic_values
from metaquorum.metadata.settings.topic_names import colliding_name, name_problem, normal_form
from metaquorum.storage.uuids import ZERO_UUID, uuid_to_text


def decide_create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    config: ControllerConfig,
    *,
    candidates: Sequence[UsableBroker],
    new_topic_id: Callable[[], bytes],
    rng: Random,
    allowance: Allowance,
) -> ControllerResult:
    """`candidates` are the brokers that may hold replicas; `rng` decides where the stripes begin."""
    new = NewPartitions(image, candidates, rng)
    twice = repeated([topic.name for topic in request.topics])
    records: list[Record | Bulk] = []
    written = 0
    results: list[TopicResult] = []
    accepted: dict[str, str] = {}
    for topic in request.topics:
        refusal = _name_refusal(image, topic.name, twice, accepted) or _configs_refusal(topic)
        assignments = refusal or _assignments(topic, config, new, written)
        if isinstance(assignments, list):
            assignments = allowance.refusal(len(assignments)) or assignments
        if isinstance(assignments, tuple):
            code, message = assignments
            results.append(_refused(topic.name, code, message))
            continue
        accepted[normal_form(topic.name)] = topic.name
        topic_id = new_topic_id()
        records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        # As in Kafka, between the topic and its partitions: readers of the partitions know their settings.
        records += [
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
            for name, value in topic.configs
        ]
        records += new.records(topic_id, 0, assignments)
        written += 1 + len(topic.configs) + len(assignments)
        results.append(
            TopicResult(
                name=topic.name,
                topic_id=ZERO_UUID if request.validate_only else topic_id,
                error=ErrorCode.NONE,
                partitions=len(assignments),
                replication_factor=len(assignments[0]),
                configs=tuple(sorted(topic.configs)),
                note=notes_on(TOPIC_RESOURCE, sorted(topic.configs)),
            )
        )
    if written > config.records_per_request_max:
        return refuse_all([topic.name for topic in request.topics], config.records_per_request_max)
    response = TopicsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else in_pieces(records))


def decide_delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, config: ControllerConfig, allowance: Allowance
) -> ControllerResult:
    """Each topic by name or id. Deleting a topic also removes its partitions and configuration (S2.31)."""
    if len(request.topics) > config.records_per_request_max:
        return refuse_all(request.topics, config.records_per_request_max)
    named = [_find(image, topic) for topic in request.topics]
    twice = repeated([info.topic_id for info in named if info is not None])
    records: list[Record] = []
    results: list[TopicResult] = []
    for topic, info in zip(request.topics, named, strict=True):
        by_name = isinstance(topic, str)
        if info is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
            shown = topic if isinstance(topic, str) else uuid_to_text(topic)
            message = f"there is no topic {shown}: list the topics to see which exist"
            results.append(_refused(topic, code, message))
        elif info.topic_id in twice:
            message = f"topic {info.name} is named twice in one request: name it once"
            results.append(_refused(topic, ErrorCode.INVALID_REQUEST, message))
        elif over := allowance.refusal(image.topics.partition_count_of(info.topic_id)):
            results.append(_refused(topic, *over))
        else:
            records.append(RemoveTopicRecord(topic_id=info.topic_id))
            results.append(TopicResult(name=info.name, topic_id=info.topic_id, error=ErrorCode.NONE))
    return ControllerResult(response=TopicsResponse(results=tuple(results)), records=tuple(records))


def refuse_all(topics: Sequence[str | bytes], records_max: int) -> ControllerResult:
    """A request that one batch cannot hold is refused as a whole, topic by topic."""
    message = (
        f"the request would write more than {records_max} records or 8 MiB, which is what one batch holds: "
        "split it into several requests"
    )
    results = tuple([_refused(topic, ErrorCode.POLICY_VIOLATION, message) for topic in topics])
    return ControllerResult(response=TopicsResponse(results=results), depends_on_image=False)


def _refused(topic: str | bytes, code: ErrorCode, message: str) -> TopicResult:
    by_name = isinstance(topic, str)
    return TopicResult(
        name=topic if isinstance(topic, str) else None,
        topic_id=None if by_name else bytes(topic),  # type: ignore[arg-type]
        error=code,
        message=message,
    )


def _find(image: MetadataImage, topic: str | bytes) -> TopicInfo | None:
    return image.topics.topic_named(topic) if isinstance(topic, str) else image.topics.topic(topic)


def _name_refusal(
    image: MetadataImage, name: str, twice: frozenset[str], accepted: dict[str, str]
) -> Refusal | None:
    if name in twice:
        return ErrorCode.INVALID_REQUEST, f"topic {name} is named twice in one request: name it once"
    problem = name_problem(name)
    if problem is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    topics = image.topics
    if topics.topic_named(name) is not None:
        return (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"topic {name} already exists: choose another name, or delete it first",
        )
    collides = accepted.get(normal_form(name)) or colliding_name(
        name,
        lambda other: topics.topic_named(other) is not None,
        lambda: [info.name for info in topics.all()],
    )
    if collides is not None:
        text = (
            f"topic {name} collides with {collides}: '.' and '_' count as one character, choose another name"
        )
        return ErrorCode.INVALID_TOPIC_EXCEPTION, text
    return None


def _configs_refusal(topic: NewTopic) -> Refusal | None:
    values = dict(topic.configs)
    if len(values) != len(topic.configs):
        name = min(repeated(name for name, _ in topic.configs))
        return ErrorCode.INVALID_REQUEST, f"topic {topic.name} has {name} twice: give it once"
    try:
        check_topic_values(values)
    except ConfigValueError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    return None


def _assignments(
    topic: NewTopic, config: ControllerConfig, new: NewPartitions, records_so_far: int
) -> ReplicaLists | Refusal:
    if topic.assignments is not None:
        if topic.partitions is not None or topic.replication_factor is not None:
            text = "replica lists were given: leave out the number of partitions and the replication factor"
            return ErrorCode.INVALID_REQUEST, text
        if not topic.assignments:
            text = "a topic has at least one partition: give at least one replica list"
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
        return new.given(topic.assignments)
    partitions = config.num_partitions if topic.partitions is None else topic.partitions
    factor = (
        config.default_replication_factor if topic.replication_factor is None else topic.replication_factor
    )
    if partitions < 1:
        return (
            ErrorCode.INVALID_PARTITIONS,
            f"a topic needs at least one partition, not {partitions}",
        )
    if partitions + 1 > config.records_per_request_max:
        text = (
            f"{partitions} partitions need more than the {config.records_per_request_max} records allowed "
            "per request: create the topic with fewer"
        )
        return ErrorCode.POLICY_VIOLATION, text
    if records_so_far > config.records_per_request_max:
        partitions = 1  # the whole request is refused for its size: do not place what is thrown away
    return new.placed(partitions, factor)


def decide_create_partitions(
    image: MetadataImage,
    request: CreatePartitionsRequest,
    config: ControllerConfig,
    *,
    candidates: Sequence[UsableBroker],
    rng: Random,
    allowance: Allowance,
) -> ControllerResult:
    """More partitions for existing topics (KIP-195), with one result each. Existing partitions do not
    move."""
    twice = repeated([topic.name for topic in request.topics])
    new = NewPartitions(image, candidates, rng)
    records: list[Record | Bulk] = []
    written = 0
    results: list[TopicResult] = []
    for topic in request.topics:
        info = image.topics.topic_named(topic.name)
        grown = _growth(image, topic, info, config, new, twice, written)
        if isinstance(grown, list):
            grown = allowance.refusal(len(grown)) or grown
        if isinstance(grown, tuple):
            code, message = grown
            results.append(_refused(topic.name, code, message))
            continue
        if info is None:
            raise ValueError(f"topic {topic.name} passed validation but does not exist")
        first = topic.count - len(grown)
        records += new.records(info.topic_id, first, grown)
        written += len(grown)
        results.append(
            TopicResult(
                name=topic.name,
                topic_id=info.topic_id,
                error=ErrorCode.NONE,
                partitions=topic.count,
                replication_factor=len(grown[0]),
            )
        )
    if written > config.records_per_request_max:
        return refuse_all([topic.name for topic in request.topics], config.records_per_request_max)
    response = TopicsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else in_pieces(records))


def _growth(
    image: MetadataImage,
    topic: TopicGrowth,
    info: TopicInfo | None,
    config: ControllerConfig,
    new: NewPartitions,
    twice: frozenset[str],
    records_so_far: int,
) -> ReplicaLists | Refusal:
    """Replica lists of the partitions to add, or why there are none."""
    if topic.name in twice:
        return ErrorCode.INVALID_REQUEST, f"topic {topic.name} is named twice in one request: name it once"
    if info is None:
        text = f"there is no topic {topic.name}: list the topics to see which exist"
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text
    present = image.topics.partition_count_of(info.topic_id)
    if topic.count <= present:
        text = (
            f"topic {topic.name} has {present} partitions, and {topic.count} were requested: partitions "
            "can only be added; request more"
        )
        return ErrorCode.INVALID_PARTITIONS, text
    added = topic.count - present
    first = image.topics.partition(info.topic_id, 0)
    if first is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {topic.name} has no partition 0: delete it"
    # A partition that is being reassigned lists replicas that come and go: the ones that stay count.
    factor = len([replica for replica in first.replicas if replica not in first.adding])
    if topic.assignments is not None:
        if len(topic.assignments) != added:
            text = (
                f"{added} partitions would be added, but {len(topic.assignments)} replica lists were "
                "given: give one per added partition"
            )
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
        return new.given(topic.assignments, first_index=present, replication_factor=factor)
    if added > config.records_per_request_max:
        text = (
            f"{added} more partitions need more than the {config.records_per_request_max} records allowed "
            "per request: add fewer at once"
        )
        return ErrorCode.POLICY_VIOLATION, text
    if records_so_far > config.records_per_request_max:
        added = 1  # the whole request is refused for its size
    return new.placed(added, factor)


# New partitions of new and growing topics: their replicas, and their first records (S4.12).

Refusal = tuple[ErrorCode, str]
ReplicaLists = list[tuple[int, ...]]

REPLICATION_FACTOR_MAX = 32_767
"""Kafka's replication factor is an int16."""


class NewPartitions:
    """Places and describes new partitions on one image. `candidates` may hold new replicas; unfenced ones may
    lead and start in sync (KIP-841)."""

    def __init__(self, image: MetadataImage, candidates: Sequence[UsableBroker], rng: Random) -> None:
        self._image = image
        self._candidates = Candidates.of(candidates)
        self._rng = rng
        self._active = self._candidates.active
        self._names_directories = image.features.metadata_version >= LEVEL_DIRECTORIES
        self._directories: dict[int, bytes] = {}

    def placed(self, partitions: int, replication_factor: int) -> ReplicaLists | Refusal:
        """Replica lists chosen here, or why there are none."""
        code = ErrorCode.INVALID_REPLICATION_FACTOR
        if not 1 <= replication_factor <= REPLICATION_FACTOR_MAX:
            return (
                code,
                f"the replication factor must be from 1 to {REPLICATION_FACTOR_MAX}, not "
                f"{replication_factor}",
            )
        if not self._active:
            return code, "all brokers are fenced or shutting down: start one, and retry when it is running"
        if replication_factor > len(self._candidates):
            return (
                code,
                f"replication factor {replication_factor} needs as many brokers, but only "
                f"{len(self._candidates)} are registered and not shutting down: start more brokers, or "
                "lower the factor",
            )
        return place(self._candidates, partitions, replication_factor, self._rng)

    def given(
        self, lists: Sequence[tuple[int, ...]], *, first_index: int = 0, replication_factor: int | None = None
    ) -> ReplicaLists | Refusal:
        """The caller's own lists, or what is wrong with them. `replication_factor` None: that of the first
        list."""
        code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        for index, replicas in enumerate(lists, start=first_index):
            if not replicas:
                return code, f"partition {index} has no replicas: name at least one broker"
            if len(set(replicas)) != len(replicas):
                return code, f"partition {index} names a broker twice: name each broker once"
            factor = len(lists[0]) if replication_factor is None else replication_factor
            if len(replicas) != factor:
                text = (
                    f"partition {index} has {len(replicas)} replicas, but the partitions before it have "
                    f"{factor}: give every partition the same number"
                )
                return code, text
            unknown = [broker for broker in replicas if broker not in self._image.brokers]
            if unknown:
                return code, f"partition {index} names broker {unknown[0]}, which is not registered"
            if self._active.isdisjoint(replicas):
                return (
                    code,
                    f"every broker of partition {index} is fenced or shutting down: name one that is running",
                )
        return list(lists)

    def records(
        self, topic_id: bytes, first_index: int, lists: ReplicaLists
    ) -> Sequence[PartitionRecord | PartitionsInColumns]:
        """`record` for consecutive partitions; in columns if there are many of the usual shape."""
        together = new_partitions(
            topic_id, first_index, lists, self._active, self._directory_of, self._names_directories
        )
        if together is not None:
            return (together,)
        return [
            self.record(topic_id, index, replicas) for index, replicas in enumerate(lists, start=first_index)
        ]

    def record(self, topic_id: bytes, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
        """The first state: led by the first live replica, with all live ones in sync."""
        active = self._active
        isr = (
            replicas
            if active.issuperset(replicas)
            else tuple([replica for replica in replicas if replica in active])
        )
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=self._directories_of(replicas) if self._names_directories else (),
        )

    def _directories_of(self, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
        return tuple([self._directory_of(replica) for replica in replicas])

    def _directory_of(self, replica: int) -> bytes:
        known = self._directories.get(replica)
        if known is None:
            known = self._directories[replica] = default_directory(self._image.brokers, replica)
        return known


# Many new partitions of a topic at once, in columns.

MIN_PARTITIONS = 24
"""Fewer are faster one by one."""


def new_partitions(
    topic_id: bytes,
    first_index: int,
    lists: Sequence[tuple[int, ...]],
    active: frozenset[int],
    directory_of: Callable[[int], bytes],
    names_directories: bool,
) -> NewPartitionRows | None:
    """Partitions from `first_index` on with these replicas, the first of which leads. None if there are too
    few, the lists differ in length, or a replica is not active, so that not all are in sync from the
    start."""
    width = len(lists[0]) if lists else 0
    if len(lists) < MIN_PARTITIONS or not 0 < width <= LONGEST_LIST:
        return None
    if any(len(replicas) != width for replicas in lists):
        return None
    replicas = np.array(lists, dtype=np.int32)
    brokers, positions = np.unique(replicas, return_inverse=True)
    held = brokers.tolist()
    if not active.issuperset(held):
        return None
    words = topic_words([directory_of(broker_id) for broker_id in held])
    return NewPartitionRows(
        NewRows(
            topic=topic_words([topic_id])[0],
            indexes=np.arange(first_index, first_index + len(lists), dtype=np.int32),
            replicas=replicas,
            directories=words[positions.reshape(replicas.shape)] if names_directories else None,
        )
    )


# How many partitions a client may create and delete (KIP-599): a bucket of tokens per quota.
# A partition takes a token, and tokens come back at the rate of the quota.

KEPT_BUCKETS = 10_000
"""The number of buckets kept: beyond it, the least recently used ones are forgotten, and are full again."""


@dataclass(slots=True, kw_only=True)
class Allowance:
    """What one request may take. `strict`: nothing more once the tokens are below zero; otherwise everything,
    and the client waits."""

    tokens: float = inf
    rate: float = inf
    strict: bool = False
    taken: int = 0
    refused: bool = False

    def refusal(self, partitions: int) -> tuple[ErrorCode, str] | None:
        """Takes one token per partition, or returns why not. The last topic may overdraw the tokens, as in
        Kafka: otherwise no client could create a topic with more partitions than its bucket holds."""
        if self.strict and self.tokens < 0:
            self.refused = True
            text = f"the quota {MUTATIONS} is used up: retry in {self.wait_ms} ms"
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED, text
        self.tokens -= partitions
        self.taken += partitions
        return None

    @property
    def wait_ms(self) -> int:
        """How long until the tokens are back at zero."""
        return max(1, round(1_000 * -self.tokens / self.rate)) if self.tokens < 0 else 0

    @property
    def throttle_ms(self) -> int:
        """How long the client has to wait. A strict one waits only if it was refused."""
        return self.wait_ms if self.refused or (self.taken and not self.strict) else 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_ms: int


class Mutations:
    """The buckets of all clients; each holds the tokens of `span_ms`, and starts full."""

    def __init__(self, image: Callable[[], MetadataImage], span_ms: int) -> None:
        self._image = image
        self._span_ms = span_ms
        self._buckets: OrderedDict[QuotaKey, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def allowance(self, mutator: Mutator | None, now_ms: int) -> Allowance:
        """What a client may take now: everything, if it has no quota."""
        found = mutator and quota_of(self._image(), MUTATIONS, mutator.user, mutator.client_id)
        if not mutator or not found:
            return Allowance()
        rate, key = found
        bucket = self._buckets.get(key)
        full = rate * self._span_ms / 1_000
        tokens = full
        if bucket is not None:
            tokens = min(full, bucket.tokens + rate * (now_ms - bucket.at_ms) / 1_000)
        return Allowance(tokens=tokens, rate=rate, strict=mutator.strict)

    def take(self, mutator: Mutator, partitions: int, now_ms: int) -> None:
        """The tokens taken from an allowance are used up."""
        allowance = self.allowance(mutator, now_ms)
        quota = quota_of(self._image(), MUTATIONS, mutator.user, mutator.client_id)
        if quota is None:
            return
        self._buckets[quota[1]] = _Bucket(allowance.tokens - partitions, now_ms)
        self._buckets.move_to_end(quota[1])
        if len(self._buckets) > KEPT_BUCKETS:
            self._buckets.popitem(last=False)
