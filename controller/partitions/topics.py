"""Decisions on topics: create, grow and delete, with one result per topic of a request (S4.12).

Owns the checks of a request: names, configurations, replica lists. Pure: the brokers that may hold replicas
come as a list of candidates, new ids from a function. Writes one batch per request; does not know its size in
bytes (a batch over 8 MiB is refused by its encoder, with `refuse_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from metaquorum.controller.partitions.mutations import Allowance
from metaquorum.controller.partitions.new_partitions import NewPartitions, Refusal, ReplicaLists
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.request_checks import repeated
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.columnar.bulk import Bulk, in_pieces
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicInfo
from metaquorum.metadata.node_configs.controller import ControllerConfig
from metaquorum.metadata.records.types import ConfigRecord, Record, RemoveTopicRecord, TopicRecord
from metaquorum.metadata.requests.common import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    TopicResult,
    TopicsResponse,
)
from metaquorum.metadata.requests.partitions import CreatePartitionsRequest, TopicGrowth
from metaquorum.metadata.settings.effects import notes_on
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.metadata.settings.topic_keys import check_topic_values
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
