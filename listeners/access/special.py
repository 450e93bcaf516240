"""Steps of single APIs whose checks have a form of their own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from metaquorum.listeners.access.steps import (
    CODES,
    ITEM,
    SLICE,
    AccessAsked,
    AccessStep,
    Pauses,
    RightNeeded,
    StepResult,
    at_once,
    refused_item,
    refused_whole,
    refusing,
)
from metaquorum.listeners.services import EndConnection
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire.codec import FEW_VALUES
from metaquorum.wire.messages import (
    AlterReplicaLogDirsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
    OffsetFetchResponse,
)

NOT_ASKED = -(2**31)


class TopicsDeleted(AccessStep):
    """DeleteTopics: an id of a topic that the client may not describe is answered as one that no topic has,
    also where it is named twice, or a quota refuses it. So it is passed on as another id, which no
    topic has."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        result: StepResult = at_once(self.checking(asked, body))
        return result

    def is_long(self, body: Any) -> bool:
        return len(body.topics) > FEW_VALUES

    def checking(self, asked: AccessAsked, body: Any) -> Pauses:
        hidden: dict[bytes, bytes] = {}
        kept = []
        for place, item in enumerate(body.topics):
            if place % SLICE == SLICE - 1:
                yield
            topic = asked.image.topics.topic(item.topic_id) if item.name is None else None
            if topic is not None and not asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                other = hashlib.blake2b(item.topic_id, digest_size=16).digest()
                hidden[other] = item.topic_id
                kept.append(replace(item, topic_id=other))
            else:
                kept.append(item)
        return StepResult(replace(body, topics=tuple(kept)) if hidden else body, hidden)

    def needs_answer(self, note: Any) -> bool:
        return bool(note)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if not note:
            return answer
        return replace(
            answer, responses=tuple(self._named(each, note.get(each.topic_id)) for each in answer.responses)
        )

    @staticmethod
    def _named(result: Any, topic_id: bytes | None) -> Any:
        """The result with the id that the client gave; None: it is that one."""
        if topic_id is None:
            return result
        message = result.error_message
        if message is not None:
            message = message.replace(uuid_to_text(result.topic_id), uuid_to_text(topic_id))
        return replace(result, topic_id=topic_id, error_message=message)


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
        return at_once(self.finishing(asked, answer, note))

    def finishing(self, asked: AccessAsked, answer: Any, note: Any) -> Pauses:
        if note and asked.allows(
            Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, is_asked=False
        ):
            return answer
        code = CODES[ResourceType.CLUSTER if note else ResourceType.TOPIC]
        responses, is_changed = [], False
        for place, item in enumerate(answer.responses):
            if place % SLICE == SLICE - 1:
                yield
            if (note or not self._reads(asked, item)) and not self._is_refused(item, code):
                responses.append((yield from refusing("Fetch", "responses", item, code, UNREAD)))
                is_changed = True
            else:
                responses.append(item)
        return replace(answer, responses=tuple(responses)) if is_changed else answer

    @staticmethod
    def _is_refused(item: Any, code: ErrorCode) -> bool:
        """Whether the request named it, and was refused it."""
        return all(part.error_code == code for part in item.partitions)

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
                topic_name=entry.name,
                partitions=tuple(part(partition_index=index, error_code=code) for index in entry.partitions),
            )
            for path in body.dirs
            for entry in path.topics
        )
        return StepResult(body, answer=AlterReplicaLogDirsResponse(results=results))


# Steps of group APIs whose checks have a form of their own: which topics a group's members see.
# Steps of other APIs are in `special`.


class SubscribedTopics(AccessStep):
    """ConsumerGroupHeartbeat: one topic that the client may not describe refuses the whole request. The
    coordinator checks the topics that a pattern matches."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        result: StepResult = at_once(self.checking(asked, body))
        return result

    def is_long(self, body: Any) -> bool:
        return len(body.subscribed_topic_names or ()) > FEW_VALUES

    def checking(self, asked: AccessAsked, body: Any) -> Pauses:
        for place, name in enumerate(body.subscribed_topic_names or ()):
            if place % SLICE == SLICE - 1:
                yield
            code = self.checks[0].failure(asked, body, name)
            if code is not None:
                return StepResult(body, answer=refused_whole(asked.api, code))
        return StepResult(body)


class AssignedTopics(AccessStep):
    """ConsumerGroupDescribe: a group is shown if the client may describe all topics of its members."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        return replace(answer, groups=tuple(self._shown(asked, group) for group in answer.groups))

    def _shown(self, asked: AccessAsked, group: Any) -> Any:
        names = {
            each.topic_name
            for member in group.members
            for held in (member.assignment, member.target_assignment)
            for each in held.topic_partitions
        }
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if all(self.checks[0].failure(asked, None, name) is None for name in sorted(names)):
            return group
        text = "this client may not describe a topic of the group's members"
        return type(group)(group_id=group.group_id, error_code=code, error_message=text)


class FetchedOffsets(AccessStep):
    """OffsetFetch: groups that the client may describe, and in them the topics that it may describe."""

    checks: tuple[RightNeeded, ...] = (
        RightNeeded(Operation.DESCRIBE, ResourceType.GROUP, "group_id"),
        RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),
    )

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        if asked.version >= 8:
            return self._groups(asked, body)
        if not asked.allows(Operation.DESCRIBE, ResourceType.GROUP, body.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            topics = tuple(
                refused_item("OffsetFetch", "topics", each, code, NO_OFFSET) for each in body.topics or ()
            )
            return StepResult(body, topics, OffsetFetchResponse(error_code=code))
        if body.topics is None:
            return StepResult(body)
        kept, refused = self._split(asked, body.topics, OffsetFetchResponse.OffsetFetchResponseTopic)
        return StepResult(replace(body, topics=kept), refused)

    def _groups(self, asked: AccessAsked, body: Any) -> StepResult:
        kept, refused = [], {}
        made: Any = OffsetFetchResponse.OffsetFetchResponseGroup
        for group in body.groups:
            if not asked.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
                code = ErrorCode.GROUP_AUTHORIZATION_FAILED
                refused[group.group_id] = made(group_id=group.group_id, error_code=code)
                continue
            topics = group.topics
            if topics is not None:
                topics, denied = self._split(asked, topics, OffsetFetchResponse.OffsetFetchResponseTopics)
                refused[group.group_id] = denied
            kept.append(replace(group, topics=topics))
        return StepResult(replace(body, groups=tuple(kept)), refused, None if kept else OffsetFetchResponse())

    def _split(self, asked: AccessAsked, topics: Any, made: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The topics that pass, and the results of the others."""
        kept, refused = [], []
        parts: Any = (
            OffsetFetchResponse.OffsetFetchResponsePartitions
            if made is OffsetFetchResponse.OffsetFetchResponseTopics
            else OffsetFetchResponse.OffsetFetchResponsePartition
        )
        for topic in topics:
            name = asked.topic_name(topic)
            if name is None or asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
                kept.append(topic)
                continue
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partitions = tuple(
                parts(partition_index=index, error_code=code, **NO_OFFSET)
                for index in topic.partition_indexes
            )
            by_id = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {}
            refused.append(made(name=topic.name, partitions=partitions, **by_id))
        return tuple(kept), tuple(refused)

    def after(self, asked: AccessAsked, answer: Any, note: Any) -> Any:
        if asked.version < 8:
            return replace(answer, topics=(*self._seen(asked, answer.topics), *(note or ())))
        refused = note or {}
        groups = [
            replace(group, topics=(*self._seen(asked, group.topics), *_denied(refused.get(group.group_id))))
            for group in answer.groups
        ]
        groups += [each for each in refused.values() if not isinstance(each, tuple)]
        return replace(answer, groups=tuple(groups))

    def _seen(self, asked: AccessAsked, topics: Any) -> tuple[Any, ...]:
        """The topics that an answer to a request for all topics may contain."""
        return tuple(
            each
            for each in topics
            if (name := asked.topic_name(each)) is None
            or asked.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_asked=False)
        )


def _denied(details: Any) -> tuple[Any, ...]:
    return details if isinstance(details, tuple) else ()


NO_OFFSET = {"committed_offset": -1, "metadata": ""}
"""The answer for a refused partition of an OffsetFetch."""
