"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, and reassignments of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from metaquorum.listeners.access.special import TopicsDeleted
from metaquorum.listeners.access.steps import (
    CLUSTER,
    ITEM,
    TOPIC,
    Each,
    RightNeeded,
    Whole,
    each_topic,
    on_cluster,
)
from metaquorum.listeners.forwarded.api import (
    ZERO_ID,
    Call,
    Outcome,
    Parts,
    answers,
    by_name,
    invalid,
    once,
)
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests import partitions as moves
from metaquorum.metadata.requests.common import ReadImageRequest, ReadImageResponse
from metaquorum.metadata.requests.partitions import CreatePartitionsRequest as Grow
from metaquorum.metadata.requests.partitions import ElectionResult, TopicGrowth
from metaquorum.metadata.requests.partitions import ElectLeadersRequest as Elect
from metaquorum.metadata.requests.partitions import ElectLeadersResponse as Elected
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
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


_PREFERRED, _UNCLEAN = 0, 1


@answers(
    "ElectLeaders",
    Whole((RightNeeded(Op.ALTER, CLUSTER),), when=lambda body: body.topic_partitions is None),
    Each("topic_partitions", "replica_election_results", (RightNeeded(Op.ALTER, CLUSTER),), whole_since=1),
    things=((("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),),
)
async def elect_leaders(body: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    named = None
    if body.topic_partitions is not None:
        named = tuple((each.topic, index) for each in body.topic_partitions for index in each.partitions)
    if body.election_type not in {_PREFERRED, _UNCLEAN}:
        text = f"{body.election_type} is not an election: 0 elects preferred leaders, 1 unclean ones"
        return _elected(ApiError(ErrorCode.INVALID_REQUEST, text), named, call.version)
    request = Elect(unclean=body.election_type == _UNCLEAN, partitions=named)
    results: list[ElectionResult] = []
    while True:
        answer = await call.answer(request, Elected)
        if isinstance(answer, ApiError):
            return _elected(answer, named, call.version)
        results += [
            each
            for each in answer.results
            if named is not None or each.error is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        if not answer.more:
            return ElectLeadersResponse(
                replica_election_results=_election_results(
                    [(each.topic, each.partition, each.error, each.message) for each in results]
                )
            )


def _elected(
    refusal: ApiError, named: tuple[tuple[str, int], ...] | None, version: int
) -> ElectLeadersResponse:
    parts = [(topic, index, refusal.code, refusal.message) for topic, index in named or ()]
    # Version 0 only has error codes of partitions.
    code = refusal.code if version >= 1 else ErrorCode.NONE
    return ElectLeadersResponse(error_code=code, replica_election_results=_election_results(parts))


def _election_results(
    parts: Sequence[tuple[str, int, ErrorCode, str | None]],
) -> tuple[ElectLeadersResponse.ReplicaElectionResult, ...]:
    return tuple(
        ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=tuple(found))
        for topic, found in by_name(
            (
                topic,
                ElectLeadersResponse.PartitionResult(
                    partition_id=index, error_code=code, error_message=message
                ),
            )
            for topic, index, code, message in parts
        ).items()
    )


@answers(
    "AlterPartitionReassignments",
    on_cluster(Op.ALTER),
    things=((("topics", "responses"), ("partitions", "partitions")),),
)
async def alter_partition_reassignments(
    body: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    request = moves.AlterReassignmentsRequest(
        wanted=tuple(
            moves.WantedReplicas(
                topic=topic.name,
                partition=part.partition_index,
                replicas=None if part.replicas is None else tuple(part.replicas),
            )
            for topic in body.topics
            for part in topic.partitions
        ),
        allow_replication_factor_change=body.allow_replication_factor_change,
    )
    answer = await call.answer(request, moves.AlterReassignmentsResponse)
    if isinstance(answer, ApiError):
        return AlterPartitionReassignmentsResponse(error_code=answer.code, error_message=answer.message)
    responses = by_name(
        (
            result.topic,
            AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=result.partition, error_code=result.error, error_message=result.message
            ),
        )
        for result in answer.results
    )
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        allow_replication_factor_change=body.allow_replication_factor_change,
        responses=tuple(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=name, partitions=tuple(found))
            for name, found in responses.items()
        ),
    )


@answers("ListPartitionReassignments", on_cluster(Op.DESCRIBE))
async def list_partition_reassignments(
    body: ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    read = await call.answer(ReadImageRequest(), ReadImageResponse)
    if isinstance(read, ApiError):
        return ListPartitionReassignmentsResponse(error_code=read.code, error_message=read.message)
    named = None
    if body.topics is not None:
        named = [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]
    moving = by_name(
        (
            moved.topic,
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=moved.partition,
                replicas=moved.replicas,
                adding_replicas=moved.adding,
                removing_replicas=moved.removing,
            ),
        )
        for moved in moves.ongoing_reassignments(read.image, named)
    )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=tuple(
            ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=tuple(found))
            for name, found in moving.items()
        ),
    )
