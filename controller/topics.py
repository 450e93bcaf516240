"""Decisions on topics: create and delete, a result for each topic of a request (S4.12).

Pure: who may hold replicas comes as lists of brokers, new ids from a function. Writes one batch a request;
knows nothing of its bytes (a batch over 8 MiB is refused by whoever encodes it, with `refuse_all`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from controller.config import ControllerConfig
from controller.features import LEVEL_DIRECTORIES
from controller.placement import round_robin
from controller.result import ControllerResult
from controller.topic_names import colliding_name, name_problem, normal_form
from metadata.errors import ErrorCode
from metadata.image import MIGRATING, UNASSIGNED, MetadataImage, TopicInfo
from metadata.records import PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from metadata.requests import CreateTopicsRequest, DeleteTopicsRequest, NewTopic, TopicResult, TopicsResponse
from storage.uuids import ZERO_UUID, uuid_to_text

Refusal = tuple[ErrorCode, str]


def decide_create_topics(
    image: MetadataImage,
    request: CreateTopicsRequest,
    config: ControllerConfig,
    *,
    usable: Sequence[int],
    new_topic_id: Callable[[], bytes],
    rng: Random,
) -> ControllerResult:
    """`usable` are the brokers that may lead now, ascending; `rng` draws where the round robin starts."""
    repeated = _repeated([topic.name for topic in request.topics])
    records: list[Record] = []
    results: list[TopicResult] = []
    accepted: dict[str, str] = {}
    for topic in request.topics:
        refusal = _name_refusal(image, topic.name, repeated, accepted)
        assignments = refusal or _assignments(image, topic, config, usable, rng, len(records))
        if isinstance(assignments, tuple):
            code, message = assignments
            results.append(TopicResult(name=topic.name, topic_id=None, error=code, message=message))
            continue
        accepted[normal_form(topic.name)] = topic.name
        topic_id = new_topic_id()
        records.append(TopicRecord(name=topic.name, topic_id=topic_id))
        active = frozenset(usable)
        for index, replicas in enumerate(assignments):
            records.append(_partition(image, topic_id, index, replicas, active))
        results.append(
            TopicResult(
                name=topic.name,
                topic_id=ZERO_UUID if request.validate_only else topic_id,
                error=ErrorCode.NONE,
                partitions=len(assignments),
                replication_factor=len(assignments[0]),
            )
        )
    if len(records) > config.records_per_request_max:
        return refuse_all([topic.name for topic in request.topics], config.records_per_request_max)
    response = TopicsResponse(results=tuple(results))
    return ControllerResult(response=response, records=() if request.validate_only else tuple(records))


def decide_delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, config: ControllerConfig
) -> ControllerResult:
    """Each topic by name or id. Deleting removes its partitions and configuration with it (S2.31)."""
    if len(request.topics) > config.records_per_request_max:
        return refuse_all(request.topics, config.records_per_request_max)
    named = [_find(image, topic) for topic in request.topics]
    repeated = _repeated([info.topic_id for info in named if info is not None])
    records: list[Record] = []
    results: list[TopicResult] = []
    for topic, info in zip(request.topics, named, strict=True):
        by_name = isinstance(topic, str)
        if info is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
            shown = topic if isinstance(topic, str) else uuid_to_text(topic)
            message = f"there is no topic {shown}: list the topics to see which exist"
            results.append(_deletion_refused(topic, code, message))
        elif info.topic_id in repeated:
            message = f"topic {info.name} is named twice in one request: name it once"
            results.append(_deletion_refused(topic, ErrorCode.INVALID_REQUEST, message))
        else:
            records.append(RemoveTopicRecord(topic_id=info.topic_id))
            results.append(TopicResult(name=info.name, topic_id=info.topic_id, error=ErrorCode.NONE))
    return ControllerResult(response=TopicsResponse(results=tuple(results)), records=tuple(records))


def refuse_all(topics: Sequence[str | bytes], records_max: int) -> ControllerResult:
    """What one batch cannot hold is refused as a whole, topic by topic."""
    message = (
        f"the request would write more than {records_max} records or 8 MiB, which is what one batch holds: "
        "split it into several requests"
    )
    results = tuple([_deletion_refused(topic, ErrorCode.POLICY_VIOLATION, message) for topic in topics])
    return ControllerResult(response=TopicsResponse(results=results), depends_on_image=False)


def _deletion_refused(topic: str | bytes, code: ErrorCode, message: str) -> TopicResult:
    by_name = isinstance(topic, str)
    return TopicResult(
        name=topic if isinstance(topic, str) else None,
        topic_id=None if by_name else bytes(topic),  # type: ignore[arg-type]
        error=code,
        message=message,
    )


def _find(image: MetadataImage, topic: str | bytes) -> TopicInfo | None:
    return image.topics.topic_named(topic) if isinstance(topic, str) else image.topics.topic(topic)


def _repeated(keys: Sequence[str] | Sequence[bytes]) -> frozenset[str | bytes]:
    return frozenset([key for key, count in Counter[str | bytes](keys).items() if count > 1])


def _name_refusal(
    image: MetadataImage, name: str, repeated: frozenset[str | bytes], accepted: dict[str, str]
) -> Refusal | None:
    if name in repeated:
        return ErrorCode.INVALID_REQUEST, f"topic {name} is named twice in one request: name it once"
    problem = name_problem(name)
    if problem is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    topics = image.topics
    if topics.topic_named(name) is not None:
        return (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"topic {name} exists already: choose another name, or delete it first",
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


def _assignments(
    image: MetadataImage,
    topic: NewTopic,
    config: ControllerConfig,
    usable: Sequence[int],
    rng: Random,
    records_so_far: int,
) -> list[tuple[int, ...]] | Refusal:
    if topic.assignments is not None:
        return _given_assignments(image, topic, frozenset(usable))
    partitions = config.num_partitions if topic.partitions is None else topic.partitions
    factor = (
        config.default_replication_factor if topic.replication_factor is None else topic.replication_factor
    )
    if partitions < 1:
        return (
            ErrorCode.INVALID_PARTITIONS,
            f"a topic has at least one partition, {partitions} were asked for",
        )
    if factor < 1 or factor > 32767:
        text = f"a replication factor is at least 1 and at most 32767, {factor} was asked for"
        return ErrorCode.INVALID_REPLICATION_FACTOR, text
    if factor > len(usable):
        text = (
            f"replication factor {factor} needs as many brokers and {len(usable)} are unfenced: "
            "start more brokers, or ask for a lower factor"
        )
        return ErrorCode.INVALID_REPLICATION_FACTOR, text
    if partitions + 1 > config.records_per_request_max:
        text = (
            f"{partitions} partitions need more than the {config.records_per_request_max} records allowed: "
            "create the topic with fewer"
        )
        return ErrorCode.POLICY_VIOLATION, text
    if records_so_far > config.records_per_request_max:
        return [(usable[0],)]  # the whole request is refused by its size: do not place what is thrown away
    return round_robin(usable, partitions, factor, rng.randrange(len(usable)))


def _given_assignments(
    image: MetadataImage, topic: NewTopic, active: frozenset[int]
) -> list[tuple[int, ...]] | Refusal:
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    given = topic.assignments or ()
    if topic.partitions is not None or topic.replication_factor is not None:
        text = "replica lists were given: name neither a number of partitions nor a replication factor"
        return ErrorCode.INVALID_REQUEST, text
    if not given:
        return code, "a topic has at least one partition: give at least one replica list"
    for index, replicas in enumerate(given):
        if not replicas:
            return code, f"partition {index} has no replicas: name at least one broker"
        if len(set(replicas)) != len(replicas):
            return code, f"partition {index} names a broker twice: name each once"
        if len(replicas) != len(given[0]):
            text = (
                f"partition {index} has {len(replicas)} replicas and partition 0 has {len(given[0])}: "
                "give every partition as many"
            )
            return code, text
        unknown = [broker for broker in replicas if broker not in image.brokers]
        if unknown:
            return code, f"partition {index} names broker {unknown[0]}, which is not registered"
        if active.isdisjoint(replicas):
            return (
                code,
                f"every broker of partition {index} is fenced or shutting down: name one that is running",
            )
    return list(given)


def _partition(
    image: MetadataImage, topic_id: bytes, index: int, replicas: tuple[int, ...], active: frozenset[int]
) -> PartitionRecord:
    isr = tuple([replica for replica in replicas if replica in active])
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=_directories(image, replicas),
    )


def _directories(image: MetadataImage, replicas: tuple[int, ...]) -> tuple[bytes, ...]:
    """A broker with one directory has the replica there; one with several will say where (KIP-858)."""
    if image.features.metadata_version < LEVEL_DIRECTORIES:
        return ()
    known = [image.brokers[replica].directories for replica in replicas]
    return tuple([MIGRATING if not own else own[0] if len(own) == 1 else UNASSIGNED for own in known])
