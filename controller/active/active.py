"""The active controller: decides one turn after another on the newest image, and returns each decision as a
value.

Lives for one leadership, and only while everything before it is applied.
"""

from __future__ import annotations

from random import Random
from typing import assert_never

from msgspec.structs import replace

from metaquorum.controller.active.brokers import (
    decide_heartbeat,
    decide_register_broker,
    decide_unregister_broker,
)
from metaquorum.controller.active.outcome import (
    Outcome,
    RemoveBroker,
    Resumed,
    Step,
    Turn,
    Work,
    outcome_of,
    refused,
    with_cause,
)
from metaquorum.controller.active.state import ActiveState, Quorum
from metaquorum.controller.active.steps import Steps
from metaquorum.controller.brokers import broker_ids
from metaquorum.controller.brokers.sessions import Sessions
from metaquorum.controller.events import RequestArrived
from metaquorum.controller.ledger import Ledger
from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.reassignments import decide_reassignments, refuse_reassignments
from metaquorum.controller.partitions.rules import weaker_than_file
from metaquorum.controller.partitions.topics import (
    Allowance,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
    refuse_all,
)
from metaquorum.controller.result import ControllerResult
from metaquorum.controller.settings.settings import decide_settings
from metaquorum.metadata.errors import ApiError, ErrorCode, RecordEncodeError
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.requests import common as requests
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AlterReassignmentsRequest,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    PartitionsRequest,
)
from metaquorum.metadata.requests.settings import SettingsRequest, UpdateFeaturesRequest
from metaquorum.storage.errors import BatchError

TopicsRequest = (
    requests.CreateTopicsRequest
    | requests.DeleteTopicsRequest
    | AlterReassignmentsRequest
    | PartitionsRequest
)


class ActiveController:
    """See the module. `quorum`: the current voters; `incarnation_id`: that of this process."""

    def __init__(
        self,
        config: ControllerConfig,
        ledger: Ledger,
        sessions: Sessions,
        rng: Random,
        *,
        quorum: Quorum,
        incarnation_id: bytes,
        now_ms: int,
    ) -> None:
        self._config = config
        self._state = ActiveState(
            config, ledger, sessions, rng, quorum=quorum, incarnation_id=incarnation_id, now_ms=now_ms
        )
        self._steps = Steps(self._state, now_ms)

    # ---- called by the node

    def decide(self, turn: Turn, *, now_ms: int, wall_ms: int) -> Outcome:
        """Decides one turn. `now_ms` is the time of the step; a request has that of its arrival."""
        outcome = self._decide(turn, now_ms, wall_ms)
        if self._config.metadata_log_causes_enable and (outcome.batch is not None or outcome.work):
            return with_cause(turn, outcome, self._state.work_causes, self._state.image)
        return outcome

    def _decide(self, turn: Turn, now_ms: int, wall_ms: int) -> Outcome:
        if isinstance(turn, RequestArrived):
            return self._request(turn, now_ms, wall_ms)
        if isinstance(turn, Resumed):
            return self._resumed(turn.arrived, now_ms)
        return self._steps.take(turn, now_ms=now_ms, wall_ms=wall_ms)

    def unwritable(self, turn: Turn, error: BatchError | RecordEncodeError) -> Outcome:
        """The answer to a request whose records could not be written: a value that no record can carry, or
        more than a batch can hold; per item where the answer allows it. Raises `error` for a step."""
        if isinstance(turn, Step):
            raise error
        arrived = turn.arrived if isinstance(turn, Resumed) else turn
        key, most = arrived.key, self._config.records_per_request_max
        if isinstance(error, RecordEncodeError):
            return refused(key, ApiError(ErrorCode.INVALID_REQUEST, f"{error}: correct the request"))
        match arrived.request:
            case requests.CreateTopicsRequest(topics=topics):
                return outcome_of(key, refuse_all([topic.name for topic in topics], most))
            case CreatePartitionsRequest(topics=grown):
                return outcome_of(key, refuse_all([topic.name for topic in grown], most))
            case AlterReassignmentsRequest() as request:
                return outcome_of(key, refuse_reassignments(request, most))
        text = "the request would write more than the 8 MiB that one batch holds: split it into several"
        return refused(key, ApiError(ErrorCode.POLICY_VIOLATION, text))

    def take_up(self, outcome: Outcome, now_ms: int) -> None:
        """The outcome's batch is appended: its changes of sessions and work take effect."""
        self._state.take_up(outcome, now_ms)

    @property
    def work(self) -> tuple[Work, ...]:
        """Work that is done in slices, oldest first."""
        return tuple(self._state.work.values())

    def parked_keys(self) -> list[int]:
        """Keys of requests that wait for work of this node, which it will not finish."""
        keys: list[int] = []
        for work in self.work:
            if isinstance(work, RemoveBroker):
                keys += [request.key for request in work.parked]
                keys += work.unregister_keys
        return keys

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When there is something to do without an input."""
        return self._steps.next_deadline_ms(now_ms)

    # ---- requests

    def _request(self, arrived: RequestArrived, now_ms: int, wall_ms: int) -> Outcome:
        request, state = arrived.request, self._state
        match request:
            case requests.BrokerHeartbeatRequest():
                return self._heartbeat(arrived, request, now_ms)
            case requests.RegisterBrokerRequest():
                return decide_register_broker(state, arrived, request, now_ms)
            case requests.UnregisterBrokerRequest():
                return decide_unregister_broker(state, arrived, request, now_ms)
        if isinstance(request, SettingsRequest):
            return self._settings(arrived.key, request, wall_ms)
        if isinstance(request, requests.BrokerIdRequest):
            return self._broker_id(arrived, request)
        if isinstance(request, TopicsRequest):
            return self._topics(arrived, request, now_ms)
        if isinstance(request, requests.AnsweredByNode):
            raise TypeError(f"{type(request).__name__} is answered by the node")
        assert_never(request)

    def _heartbeat(
        self, arrived: RequestArrived, request: requests.BrokerHeartbeatRequest, now_ms: int
    ) -> Outcome:
        state = self._state
        outcome = decide_heartbeat(state, arrived, request, now_ms)
        session = state.sessions.get(request.broker_id)
        known = 0 if session is None else session.min_insync_replicas
        if request.min_insync_replicas == known or not outcome.sessions:
            return outcome
        weaker = weaker_than_file(state.image, request.broker_id, request.min_insync_replicas)
        return outcome if weaker is None else replace(outcome, warnings=(*outcome.warnings, weaker))

    def _topics(self, arrived: RequestArrived, request: TopicsRequest, now_ms: int) -> Outcome:
        state, config, key = self._state, self._config, arrived.key
        allowance = state.mutations.allowance(arrived.mutator, now_ms)
        image, rng = state.image, state.rng
        most = config.records_per_request_max
        match request:
            case requests.CreateTopicsRequest():
                result = decide_create_topics(
                    image,
                    request,
                    config,
                    candidates=state.candidates(),
                    new_topic_id=state.new_id,
                    rng=rng,
                    allowance=allowance,
                )
            case requests.DeleteTopicsRequest():
                result = decide_delete_topics(image, request, config, allowance)
            case CreatePartitionsRequest():
                result = decide_create_partitions(
                    image, request, config, candidates=state.candidates(), rng=rng, allowance=allowance
                )
            case AlterReassignmentsRequest():
                result = decide_reassignments(image, request, state.rules(), records_max=most)
            case ElectLeadersRequest():
                result = decide_elections(image, request, state.rules(), records_max=most)
            case AlterPartitionRequest():
                result = decide_alter_partition(image, request, state.rules())
            case AssignReplicasToDirsRequest(broker_id=broker_id):
                result = decide_assign_replicas(image, request, state.rules(), records_max=most)
                return self._assigned(key, broker_id, result)
            case _:
                assert_never(request)
        return _charged(outcome_of(key, result), arrived.mutator, allowance)

    def _assigned(self, key: int, broker_id: int, result: ControllerResult) -> Outcome:
        """Replicas whose directory is gone and that wait for an unclean election are remembered until that is
        settled; the first new one is logged for operators."""
        state, outcome = self._state, outcome_of(key, result)
        if not isinstance(result.response, AssignReplicasToDirsResponse):
            return outcome
        recreated, first = state.sessions.recreated, None
        changed: dict[tuple[bytes, int, int], bytes | None] = {}
        for assigned in result.response.results:
            replica = (assigned.topic_id, assigned.partition, broker_id)
            directory_before = changed.get(replica, recreated.get(replica))
            if assigned.error is not ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
                if directory_before is not None:
                    changed[replica] = None
            elif directory_before != assigned.directory_id:
                changed[replica] = assigned.directory_id
                first = first or assigned
        warnings: tuple[str, ...] = ()
        if first is not None:
            topic = state.image.topics.topic(first.topic_id)
            name = first.topic_id.hex() if topic is None else topic.name
            text = f"{name}-{first.partition} (and possibly others) still has no leader: {first.message}"
            warnings = (text,)
        return replace(outcome, recreated=tuple(changed.items()), warnings=warnings)

    def _settings(self, key: int, request: SettingsRequest, wall_ms: int) -> Outcome:
        state = self._state
        result = decide_settings(
            state.image,
            request,
            self._config,
            voters=state.voters,
            kraft_version=state.kraft_version,
            wall_ms=wall_ms,
            new_id=state.new_id,
            brokers_min_isr=state.sessions.min_insync_replicas(),
        )
        outcome = outcome_of(key, result)
        if isinstance(request, UpdateFeaturesRequest):
            return replace(outcome, then=(Step.REGISTER_CONTROLLER, Step.FORGET_ELIGIBLE))
        return outcome

    def _broker_id(self, arrived: RequestArrived, request: requests.BrokerIdRequest) -> Outcome:
        state, image = self._state, self._state.image
        match request:
            case requests.AllocateBrokerIdRequest(request_id=request_id):
                presence = state.presence.at(image, state.voters, request_id, arrived.arrived_ms)
                result = broker_ids.decide_allocation(image, request, self._config, presence)
                asked = (request_id, arrived.arrived_ms)
                return replace(outcome_of(arrived.key, result), asked=asked)
            case requests.BindBrokerIdRequest():
                result = broker_ids.decide_bind(image, request, state.voters)
            case requests.UnbindBrokerIdRequest():
                result = broker_ids.decide_unbind(image, request)
            case _:
                assert_never(request)
        return outcome_of(arrived.key, result)

    def _resumed(self, arrived: RequestArrived, now_ms: int) -> Outcome:
        match arrived.request:
            case requests.RegisterBrokerRequest() as request:
                return decide_register_broker(self._state, arrived, request, now_ms, waited=True)
            case requests.BrokerHeartbeatRequest() as request:
                return self._heartbeat(arrived, request, now_ms)
        raise TypeError(f"{type(arrived.request).__name__} is decided in one turn")


def _charged(outcome: Outcome, mutator: requests.Mutator | None, allowance: Allowance) -> Outcome:
    """How much of its client's quota the request used, and how long the client has to wait."""
    if mutator is None or not (allowance.taken or allowance.refused):
        return outcome
    (answer,) = outcome.answers
    if allowance.throttle_ms and isinstance(answer.response, requests.TopicsResponse):
        response = replace(answer.response, throttle_ms=allowance.throttle_ms)
        outcome = replace(outcome, answers=(replace(answer, response=response),))
    return replace(outcome, mutations=(mutator, allowance.taken))
