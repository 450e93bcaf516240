"""From a request about topics and partitions to its outcome.

What is decided is in `controller.partitions`; here is what has to be remembered of it beside the log.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from metaquorum.controller.active.outcome import Outcome, outcome_of
from metaquorum.controller.active.state import ActiveState
from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.reassignments import decide_reassignments
from metaquorum.controller.partitions.topics import (
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.common import CreateTopicsRequest, DeleteTopicsRequest
from metaquorum.metadata.requests.partitions import (
    PARTITIONS_REQUESTS,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    PartitionsRequest,
)
from metaquorum.metadata.requests.reassignments import AlterReassignmentsRequest

TopicsRequest = CreateTopicsRequest | DeleteTopicsRequest | AlterReassignmentsRequest | PartitionsRequest
TOPICS_REQUESTS = (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    AlterReassignmentsRequest,
    *PARTITIONS_REQUESTS,
)


def decide_topics(state: ActiveState, key: int, request: TopicsRequest) -> Outcome:
    """The outcome of one request."""
    image, config, rng = state.image, state.config, state.rng
    most = config.records_per_request_max
    match request:
        case CreateTopicsRequest():
            result = decide_create_topics(
                image, request, config, candidates=state.candidates(), new_topic_id=state.new_id, rng=rng
            )
        case DeleteTopicsRequest():
            result = decide_delete_topics(image, request, config)
        case CreatePartitionsRequest():
            result = decide_create_partitions(image, request, config, candidates=state.candidates(), rng=rng)
        case AlterReassignmentsRequest():
            result = decide_reassignments(image, request, state.rules(), records_max=most)
        case ElectLeadersRequest():
            result = decide_elections(image, request, state.rules(), records_max=most)
        case AlterPartitionRequest():
            result = decide_alter_partition(image, request, state.rules())
        case AssignReplicasToDirsRequest(broker_id=broker_id):
            result = decide_assign_replicas(image, request, state.rules(), records_max=most)
            return _assigned(state, key, broker_id, result)
        case _:
            assert_never(request)
    return outcome_of(key, result)


def _assigned(state: ActiveState, key: int, broker_id: int, result: ControllerResult) -> Outcome:
    """Replicas that wait for an unclean election, since the directory that held them is gone, are remembered
    until that is settled; operators read of the first that is new."""
    outcome = outcome_of(key, result)
    if not isinstance(result.response, AssignReplicasToDirsResponse):
        return outcome
    known, first = state.sessions.begun_anew, None
    changed: dict[tuple[bytes, int, int], bytes | None] = {}
    for each in result.response.results:
        place = (each.topic_id, each.partition, broker_id)
        before = changed.get(place, known.get(place))
        if each.error is not ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
            if before is not None:
                changed[place] = None
        elif before != each.directory_id:
            changed[place] = each.directory_id
            first = first or each
    warnings: tuple[str, ...] = ()
    if first is not None:
        topic = state.image.topics.topic(first.topic_id)
        name = first.topic_id.hex() if topic is None else topic.name
        text = f"{name}-{first.partition} (and possibly others) remains without a leader: {first.message}"
        warnings = (text,)
    return replace(outcome, begun_anew=tuple(changed.items()), warnings=warnings)
