"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import replace

from metaquorum.listeners.access.special import TopicsDeleted
from metaquorum.listeners.access.steps import CLUSTER, ITEM, TOPIC, Each, RightNeeded, each_topic
from metaquorum.listeners.forwarded.api import (
    ZERO_ID,
    Call,
    Outcome,
    Parts,
    answers,
    invalid,
    once,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests.partitions import CreatePartitionsRequest as Grow
from metaquorum.metadata.requests.partitions import TopicGrowth
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

_TWICE = "the request names this topic twice: name it once"


@answers(
    "CreateTopics",
    Each(
        "topics",
        "topics",
        (RightNeeded(Op.CREATE, TOPIC, ITEM, other=RightNeeded(Op.CREATE, CLUSTER)),),
        {"num_partitions": -1, "replication_factor": -1},
    ),
    strict_from=6,
    things=((("topics", "topics"), ("configs", "")),),
)
async def create_topics(body: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    wanted, twice = once(body.topics, lambda each: each.name)
    parts: Parts[core.NewTopic] = Parts()
    for topic in wanted:
        made = _new_topic(topic)
        if topic.name in twice:
            made = invalid(_TWICE)
        refused = isinstance(made, ApiError)
        parts.append((core.NewTopic(name=topic.name), made) if refused else (made, None))  # type: ignore[arg-type]
    request = core.CreateTopicsRequest(topics=tuple(parts.asked()), validate_only=body.validate_only)
    results, throttle_ms = await _results(request, call)
    return CreateTopicsResponse(
        throttle_time_ms=throttle_ms,
        topics=tuple(_created(*each, call) for each in parts.settled(results)),
    )


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> core.NewTopic | ApiError:
    """The topic in a request to the controller; -1 means the controller's default."""
    if topic.name == METADATA_TOPIC:
        return invalid(f"{topic.name} holds the cluster's metadata: choose another name")
    nameless = [each.name for each in topic.configs if each.value is None]
    if nameless:
        return ApiError(ErrorCode.INVALID_CONFIG, f"{nameless[0]} has no value: give one, or leave it out")
    made = core.NewTopic(
        name=topic.name,
        partitions=None if topic.num_partitions == -1 else topic.num_partitions,
        replication_factor=None if topic.replication_factor == -1 else topic.replication_factor,
        configs=tuple((each.name, each.value or "") for each in topic.configs),
    )
    if not topic.assignments:
        return made
    lists = sorted(topic.assignments, key=attrgetter("partition_index"))
    if [each.partition_index for each in lists] != list(range(len(lists))):
        text = "replica lists are for the partitions from 0 on, one for each: number them without gaps"
        return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return replace(made, assignments=tuple([tuple(each.broker_ids) for each in lists]))


async def _results(
    request: core.CreateTopicsRequest | core.DeleteTopicsRequest | Grow, call: Call
) -> tuple[tuple[core.TopicResult, ...] | ApiError, int]:
    """Returns one result per topic, and how long the client must wait, in ms. Without topics, no request is
    sent."""
    if not request.topics:
        return (), 0
    answer = await call.answer(request, core.TopicsResponse)
    return (answer, 0) if isinstance(answer, ApiError) else (answer.results, answer.throttle_ms)


def _created(
    topic: core.NewTopic, outcome: Outcome, result: core.TopicResult | None, call: Call
) -> CreateTopicsResponse.CreatableTopicResult:
    code, message = outcome
    if result is None or code:
        return CreateTopicsResponse.CreatableTopicResult(
            name=topic.name, error_code=code, error_message=message, configs=()
        )
    return CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        # A success has no text in Kafka; metaquorum's commands show this note about keys without effect.
        error_message=result.note,
        topic_id=result.topic_id or ZERO_ID,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=call.new_topics.configs(call.image, topic.configs),
    )


@answers(
    "DeleteTopics",
    TopicsDeleted(),
    each_topic(Op.DELETE, "topic_names", "responses"),
    each_topic(Op.DELETE, "topics", "responses"),
    strict_from=5,
    things=((("topics", "responses"),), (("topic_names", "responses"),)),
)
async def delete_topics(body: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    named = body.topics
    if call.version < 6:
        named = tuple(DeleteTopicsRequest.DeleteTopicState(name=name) for name in body.topic_names)
    wanted, twice = once(named, lambda each: (each.name, each.topic_id))
    parts: Parts[DeleteTopicsRequest.DeleteTopicState] = Parts()
    for topic in wanted:
        refusal = None
        if (topic.name, topic.topic_id) in twice:
            refusal = invalid(_TWICE)
        elif (topic.name is None) == (topic.topic_id == ZERO_ID):
            refusal = invalid("a topic to delete has one name or one id: give either")
        parts.append((topic, refusal))
    request = core.DeleteTopicsRequest(
        topics=tuple(each.topic_id if each.name is None else each.name for each in parts.asked())
    )
    results, throttle_ms = await _results(request, call)
    return DeleteTopicsResponse(
        throttle_time_ms=throttle_ms,
        responses=tuple(
            DeleteTopicsResponse.DeletableTopicResult(
                name=result.name if result is not None and not code else topic.name,
                topic_id=(result.topic_id if result is not None and not code else None) or topic.topic_id,
                error_code=code,
                error_message=message,
            )
            for topic, (code, message), result in parts.settled(results)
        ),
    )


@answers(
    "CreatePartitions",
    each_topic(Op.ALTER, "topics", "results"),
    strict_from=3,
    things=((("topics", "results"),),),
)
async def create_partitions(body: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    wanted, twice = once(body.topics, lambda each: each.name)
    parts: Parts[CreatePartitionsRequest.CreatePartitionsTopic] = Parts(
        (each, invalid(_TWICE) if each.name in twice else None) for each in wanted
    )
    request = Grow(topics=tuple(map(_growth, parts.asked())), validate_only=body.validate_only)
    results, throttle_ms = await _results(request, call)
    return CreatePartitionsResponse(
        throttle_time_ms=throttle_ms,
        results=tuple(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=topic.name, error_code=code, error_message=message
            )
            for topic, (code, message), _ in parts.settled(results)
        ),
    )


def _growth(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> TopicGrowth:
    lists = topic.assignments
    return TopicGrowth(
        name=topic.name,
        count=topic.count,
        assignments=None if lists is None else tuple(tuple(each.broker_ids) for each in lists),
    )
