"""Steps of group APIs whose checks have a form of their own: which topics a group's members see.

Owns these steps. Does not know groups: it reads requests and answers. Steps of other APIs are in `special`.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from metaquorum.broker.server.kafka.access.steps import (
    ITEM,
    AccessAsked,
    AccessStep,
    RightNeeded,
    StepResult,
    refused_item,
    refused_whole,
)
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.wire.messages import OffsetFetchResponse


class SubscribedTopics(AccessStep):
    """ConsumerGroupHeartbeat: one topic that the client may not describe refuses the whole request. The
    coordinator checks the topics that a pattern matches."""

    checks: tuple[RightNeeded, ...] = (RightNeeded(Operation.DESCRIBE, ResourceType.TOPIC, ITEM),)

    def before(self, asked: AccessAsked, body: Any) -> StepResult:
        for name in body.subscribed_topic_names or ():
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


def _denied(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else ()


NO_OFFSET = {"committed_offset": -1, "metadata": ""}
"""The answer for a refused partition of an OffsetFetch."""
