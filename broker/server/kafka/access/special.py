"""Steps of single APIs whose checks have a form of their own.

Owns these steps. Does not know which API needs which, as `table` does; steps that many APIs share are in
`steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from metaquorum.broker.server.kafka.access.steps import (
    CODES,
    ITEM,
    AccessAsked,
    AccessStep,
    RightNeeded,
    StepResult,
    refused_item,
    refused_whole,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.runtime.kafka.services import EndConnection
from metaquorum.wire.messages import (
    AlterReplicaLogDirsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)

NOT_ASKED = -(2**31)


class TopicsDescribed(AccessStep):
    """Metadata: a topic that the client may not describe is refused if named, unknown by id, and left out of
    a list of all. Topics that Metadata creates need Create."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        if body.topics is None or (asked.version == 0 and not body.topics):
            return StepResult(body, ())
        kept, refused = [], []
        for item in body.topics:
            name = asked.topic_name(item) if asked.version >= 12 or item.name is None else item.name
            if name is None or self._sees(asked, body, name):
                kept.append(item)
                continue
            topic: Any = MetadataResponse.MetadataResponseTopic
            if item.name is None:
                refused.append(
                    topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=item.topic_id)
                )
            else:
                refused.append(topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=item.name))
        if not refused:
            return StepResult(body)
        # In version 0 an empty list means all topics: their results are dropped.
        note = (*([] if kept else [None]), *refused)
        return StepResult(replace(body, topics=tuple(kept)), note)

    def _sees(self, asked: AccessAsked, body: Any, name: str) -> bool:
        if not asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return False
        creates = asked.creates_topics and body.allow_auto_topic_creation
        if not creates or asked.image.topics.topic_named(name) is not None:
            return True
        return asked.allows(
            Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, is_asked=False
        ) or asked.allows(Operation.CREATE, ResourceType.TOPIC, name)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        """An answer of which nothing is hidden stays the same object: its bytes may be cached."""
        if note is None:
            return answer
        if note == ():
            topics = tuple(
                each
                for each in answer.topics
                if each.name is None
                or asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, each.name, is_asked=False)
            )
        elif note[0] is None:
            topics = note[1:]
        else:
            topics = (*answer.topics, *note)
        return answer if len(topics) == len(answer.topics) and note == () else replace(answer, topics=topics)


@dataclass(frozen=True, slots=True)
class AuthorizedOperations(AccessStep):
    """The operations that the client may do, if it requested them (KIP-430). `results` empty: those on the
    cluster, none for a client that may not describe it."""

    resource: ResourceType
    field: str
    results: str = ""
    name: str = ""

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if answer is None:
            return answer
        if not self.results:
            if getattr(answer, self.field) == NOT_ASKED:
                return answer
            known = asked.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, is_asked=False)
            return replace(answer, **{self.field: self._bits(asked, CLUSTER_NAME) if known else 0})
        if all(getattr(item, self.field) == NOT_ASKED for item in getattr(answer, self.results)):
            return answer
        items = tuple(
            item
            if getattr(item, self.field) == NOT_ASKED or getattr(item, self.name) is None
            else replace(item, **{self.field: self._bits(asked, getattr(item, self.name))})
            for item in getattr(answer, self.results)
        )
        return replace(answer, **{self.results: items})

    def _bits(self, asked: AccessAsked, name: str) -> int:
        return asked.authorizer.operations(asked.image, asked.caller, self.resource, name)


class Acks(AccessStep):
    """A refused Produce with acks=0, of which nothing was passed on, gets no answer either."""

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        return StepResult(body, body.acks == 0)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if note and answer is not None:
            raise EndConnection("a Produce with acks=0 is not authorized")
        return answer


class StillRead(AccessStep):
    """A fetch session continues to read what it once named: partitions that the client may no longer read are
    refused."""

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        return StepResult(body, is_follower(body))

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if note and asked.allows(
            Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, is_asked=False
        ):
            return answer
        denied = {
            place for place, item in enumerate(answer.responses) if note or not self._reads(asked, item)
        }
        if not denied:
            return answer
        resource = ResourceType.CLUSTER if note else ResourceType.TOPIC
        responses = tuple(
            refused_item("Fetch", "responses", item, CODES[resource], UNREAD) if place in denied else item
            for place, item in enumerate(answer.responses)
        )
        return replace(answer, responses=responses)

    def _reads(self, asked: AccessAsked, item: Any) -> bool:
        name = asked.topic_name(item)
        return name is None or asked.allows(Operation.READ, ResourceType.TOPIC, name, is_asked=False)


def is_follower(body: Any) -> bool:
    """Whether a Fetch claims to come from a broker."""
    return bool(body.replica_id >= 0 or body.replica_state.replica_id >= 0)


UNREAD = {
    "high_watermark": -1,
    "last_stable_offset": -1,
    "log_start_offset": -1,
    "records": b"",
    "aborted_transactions": (),
}
"""The answer for a refused partition of a Fetch."""


class CoordinatorsFound(AccessStep):
    """FindCoordinator: the groups, or the transactional ids, that the client may describe."""

    checks: tuple[RightNeeded, ...] = (
        RightNeeded(Operation.DESCRIBE, ResourceType.GROUP, ITEM),
        RightNeeded(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ITEM),
    )

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        keys = body.coordinator_keys if asked.version >= 4 else (body.key,)
        codes = {key: code for key in keys if (code := self._code(asked, body.key_type, key)) is not None}
        if not codes:
            return StepResult(body)
        if asked.version < 4:
            (code,) = codes.values()
            return StepResult(
                body, answer=FindCoordinatorResponse(error_code=code, error_message=None, node_id=-1, port=-1)
            )
        refused = tuple(
            FindCoordinatorResponse.Coordinator(
                key=key, error_code=code, error_message=None, node_id=-1, port=-1
            )
            for key, code in codes.items()
        )
        kept = tuple(key for key in keys if key not in codes)
        answer = None if kept else FindCoordinatorResponse()
        return StepResult(replace(body, coordinator_keys=kept), refused, answer)

    def _code(self, asked: AccessAsked, key_type: int, key: str) -> ErrorCode | None:
        match key_type:
            case 0:
                allowed = asked.allows(Operation.DESCRIBE, ResourceType.GROUP, key)
                return None if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
            case 1:
                allowed = asked.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
                return None if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            case _:
                allowed = asked.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
                return None if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        return replace(answer, coordinators=(*answer.coordinators, *note)) if note else answer


class IdempotentProducers(AccessStep):
    """InitProducerId without a transactional id: IdempotentWrite on the cluster, or Write on any topic."""

    also = "without a transactional id: IdempotentWrite on the cluster, or Write on any topic"

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        if body.transactional_id is not None or asked.authorizer.allows_any(
            asked.image, asked.caller, Operation.WRITE, ResourceType.TOPIC
        ):
            return StepResult(body)
        if asked.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME):
            return StepResult(body)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return StepResult(body, answer=refused_whole(asked.api, code))


class TransactionsAdded(AccessStep):
    """AddPartitionsToTxn from version 4 on: sent by brokers, for many transactions at once."""

    also = "from version 4 on: only ClusterAction on the cluster"

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        if asked.version < 4 or asked.allows(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            return StepResult(body)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return StepResult(body, answer=refused_whole(asked.api, code))


class OwnedTokens(AccessStep):
    """CreateDelegationToken for another user needs CreateTokens on that user (KIP-373)."""

    also = "for another user: CreateTokens on that user"

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        owner = f"{body.owner_principal_type}:{body.owner_principal_name}"
        if (
            not body.owner_principal_name
            or owner == asked.client.principal
            or asked.allows(Operation.CREATE_TOKENS, ResourceType.USER, owner)
        ):
            return StepResult(body)
        code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        return StepResult(body, answer=refused_whole(asked.api, code))


class TransactionTopics(AccessStep):
    """DescribeTransactions leaves out the topics that the client may not describe."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        states = tuple(
            replace(
                state,
                topics=tuple(
                    each
                    for each in state.topics
                    if asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, each.topic, is_asked=False)
                ),
            )
            for state in answer.transaction_states
        )
        return replace(answer, transaction_states=states)


class MovedReplicas(AccessStep):
    """AlterReplicaLogDirs has its topics inside directories, and no code at the top."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.ALTER, ResourceType.CLUSTER),)

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        if asked.allows(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
            return StepResult(body)
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        topic: Any = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        part: Any = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
        results = tuple(
            topic(
                topic_name=each.name,
                partitions=tuple(part(partition_index=index, error_code=code) for index in each.partitions),
            )
            for path in body.dirs
            for each in path.topics
        )
        return StepResult(body, answer=AlterReplicaLogDirsResponse(results=results))
