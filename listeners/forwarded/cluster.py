"""DescribeQuorum, UpdateFeatures, UnregisterBroker, AddRaftVoter and RemoveRaftVoter."""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.listeners.access.steps import on_cluster
from metaquorum.listeners.forwarded.api import ZERO_ID, Call, Parts, answers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests import common as core
from metaquorum.metadata.requests.settings import FeatureUpdate, LevelChange, SettingResult, SettingsResponse
from metaquorum.metadata.requests.settings import UpdateFeaturesRequest as Update
from metaquorum.metadata.settings.acls import Operation as Op
from metaquorum.metadata.settings.topic_names import METADATA_TOPIC
from metaquorum.wire.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_CHANGES = {change.value: change for change in LevelChange}


@answers(
    "DescribeQuorum",
    on_cluster(Op.DESCRIBE),
    things=((("topics", "topics"), ("partitions", "partitions")),),
)
async def describe_quorum(body: DescribeQuorumRequest, call: Call) -> DescribeQuorumResponse:
    quorum = await call.answer(core.DescribeQuorumRequest(), core.DescribeQuorumResponse)
    if isinstance(quorum, ApiError):
        return DescribeQuorumResponse(error_code=quorum.code, error_message=quorum.message)
    return DescribeQuorumResponse(
        topics=tuple(
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(
                    _partition(topic.topic_name, part.partition_index, quorum, call)
                    for part in topic.partitions
                ),
            )
            for topic in body.topics
        ),
        nodes=tuple(_nodes(quorum)) if call.version >= 2 else (),
    )


def _partition(
    topic: str, index: int, quorum: core.DescribeQuorumResponse, call: Call
) -> DescribeQuorumResponse.PartitionData:
    if (topic, index) != (METADATA_TOPIC, 0):
        return DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"the quorum holds partition 0 of {METADATA_TOPIC} and nothing else: request that",
        )

    def states(replicas: Iterable[core.ReplicaStatus]) -> tuple[DescribeQuorumResponse.ReplicaState, ...]:
        # The leader has its whole log: as in Kafka, its last fetch is now.
        return tuple(
            DescribeQuorumResponse.ReplicaState(
                replica_id=replica.node_id,
                # Encoders refuse a field that the version does not have.
                replica_directory_id=(replica.directory_id or ZERO_ID) if call.version >= 2 else ZERO_ID,
                log_end_offset=replica.log_end_offset,
                last_fetch_timestamp=_time(replica, replica.last_fetch_ms, quorum.leader_id, call),
                last_caught_up_timestamp=_time(replica, replica.last_caught_up_ms, quorum.leader_id, call),
            )
            for replica in replicas
        )

    return DescribeQuorumResponse.PartitionData(
        partition_index=index,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=states(quorum.voters),
        observers=states(quorum.observers),
    )


def _time(replica: core.ReplicaStatus, known_ms: int | None, leader_id: int, call: Call) -> int:
    if replica.node_id == leader_id:
        return call.wall_ms
    return -1 if known_ms is None else known_ms


def _nodes(quorum: core.DescribeQuorumResponse) -> Iterable[DescribeQuorumResponse.Node]:
    for voter in quorum.voters:
        yield DescribeQuorumResponse.Node(
            node_id=voter.node_id,
            listeners=tuple(
                DescribeQuorumResponse.Listener(name=at.name, host=at.host, port=at.port)
                for at in voter.endpoints
            ),
        )


@answers(
    "UpdateFeatures",
    on_cluster(Op.ALTER),
    asks_others=True,
    things=((("feature_updates", "results"),),),
)
async def update_features(body: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    parts: Parts[FeatureUpdate] = Parts(_update(each, call.version) for each in body.feature_updates)
    # From version 2 on, either all levels change or none, with one error code.
    is_whole = call.version >= 2
    results: tuple[SettingResult, ...] | ApiError = ()
    steps = (True, False) if is_whole and not body.validate_only else (body.validate_only,)
    for validate_only in steps:
        answer = None
        if asked := parts.asked():
            answer = await call.answer(
                Update(updates=tuple(asked), validate_only=validate_only), SettingsResponse
            )
            results = answer if isinstance(answer, ApiError) else answer.results
        outcomes = list(parts.settled(results))
        if isinstance(answer, ApiError):
            return UpdateFeaturesResponse(error_code=answer.code, error_message=answer.message)
        refused = next((outcome for _, outcome, _ in outcomes if outcome[0]), None)
        if is_whole and refused is not None:
            return UpdateFeaturesResponse(error_code=refused[0], error_message=refused[1])
    return UpdateFeaturesResponse(
        error_message=None if is_whole else "",
        results=tuple(
            UpdateFeaturesResponse.UpdatableFeatureResult(
                feature=update.name, error_code=code, error_message=message
            )
            for update, (code, message), _ in outcomes
        ),
    )


def _update(
    asked: UpdateFeaturesRequest.FeatureUpdateKey, version: int
) -> tuple[FeatureUpdate, ApiError | None]:
    change: LevelChange | None = LevelChange.SAFE_DOWNGRADE if asked.allow_downgrade else LevelChange.UPGRADE
    if version >= 1:
        change = _CHANGES.get(asked.upgrade_type)
    update = FeatureUpdate(name=asked.feature, level=asked.max_version_level)
    if change is None:
        text = f"{asked.upgrade_type} cannot change {asked.feature}: 1 upgrades, 2 and 3 downgrade"
        return update, ApiError(ErrorCode.INVALID_UPDATE_VERSION, text)
    return FeatureUpdate(name=asked.feature, level=asked.max_version_level, change=change), None


@answers("UnregisterBroker", on_cluster(Op.ALTER))
async def unregister_broker(body: UnregisterBrokerRequest, call: Call) -> UnregisterBrokerResponse:
    answer = await call.answer(core.UnregisterBrokerRequest(broker_id=body.broker_id), core.Done)
    if isinstance(answer, ApiError):
        return UnregisterBrokerResponse(error_code=answer.code, error_message=answer.message)
    return UnregisterBrokerResponse(error_message="")


@answers("AddRaftVoter", on_cluster(Op.ALTER), asks_others=True)
async def add_raft_voter(body: AddRaftVoterRequest, call: Call) -> AddRaftVoterResponse:
    """KIP-853. The answer waits for the commit, also where the caller would not."""
    by_name = {at.name: VoterEndpoint(at.name, at.host, at.port) for at in body.listeners}
    request = core.AddRaftVoterRequest(
        voter=Voter(body.voter_id, bytes(body.voter_directory_id), tuple(by_name.values())),
        cluster_id=body.cluster_id,
        timeout_ms=max(1, body.timeout_ms),
    )
    answer = await call.answer(request, core.Done)
    if isinstance(answer, ApiError):
        return AddRaftVoterResponse(error_code=answer.code, error_message=answer.message)
    return AddRaftVoterResponse(error_message=None)


@answers("RemoveRaftVoter", on_cluster(Op.ALTER), asks_others=True)
async def remove_raft_voter(body: RemoveRaftVoterRequest, call: Call) -> RemoveRaftVoterResponse:
    """KIP-853."""
    request = core.RemoveRaftVoterRequest(
        voter_id=body.voter_id,
        voter_directory_id=bytes(body.voter_directory_id),
        cluster_id=body.cluster_id,
    )
    answer = await call.answer(request, core.Done)
    if isinstance(answer, ApiError):
        return RemoveRaftVoterResponse(error_code=answer.code, error_message=answer.message)
    return RemoveRaftVoterResponse(error_message=None)
