"""TxnOffsetCommit: offsets that count when their transaction commits (KIP-98, KIP-447).

Owns which partitions exist, and the verification by the transaction's coordinator before offsets are stored:
late ones would open a transaction that nothing ends. Does not store offsets: the group's coordinator does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from metaquorum.broker.coordinator.transactions.requests import AddPartitions, TopicPartition
from metaquorum.broker.server.kafka.groups.members import GroupCoordinators
from metaquorum.broker.server.kafka.transactions.verification import TransactionVerifier
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.runtime.kafka.services import Client
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_LOADING_SINCE = 2
"""The version from which clients know COORDINATOR_LOAD_IN_PROGRESS here."""

_FOR_CLIENTS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""The client did not ask the transaction's coordinator, so it must retry here."""


class TransactionOffsets:
    """`coordinators` are those of groups; `place` returns the partition of a group's offsets."""

    def __init__(
        self,
        coordinators: GroupCoordinators,
        verifier: TransactionVerifier,
        image: Callable[[], MetadataImage],
        place: Callable[[str], TopicPartition],
    ) -> None:
        self._coordinators = coordinators
        self._verifier = verifier
        self._image = image
        self._place = place

    async def txn_offset_commit(self, request: Request, client: Client) -> TxnOffsetCommitResponse:
        body: TxnOffsetCommitRequest = request.body
        asked = []
        for topic in body.topics:
            parts = tuple(part for part in topic.partitions if self._exists(topic.name, part.partition_index))
            if parts:
                asked.append(msgspec.structs.replace(topic, partitions=parts))
        codes: dict[TopicPartition, ErrorCode] = {}
        if asked:
            fixed = msgspec.structs.replace(body, topics=tuple(asked))
            codes = await self._committed(fixed, request, client)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return TxnOffsetCommitResponse(
            topics=tuple(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes.get((topic.name, part.partition_index), unknown),
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in body.topics
            )
        )

    def _exists(self, name: str, index: int) -> bool:
        topics = self._image().topics
        known = topics.topic_named(name)
        return known is not None and topics.partition(known.topic_id, index) is not None

    async def _committed(
        self, body: TxnOffsetCommitRequest, request: Request, client: Client
    ) -> dict[TopicPartition, ErrorCode]:
        places = [(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions]
        answer: Any = await self._refusal(body)
        if answer is None:
            answer = await self._coordinators.ask(body.group_id, body, request, client)
        if not isinstance(answer, ErrorCode):
            return dict(zip(places, answer, strict=True))
        if answer is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.header.version < _LOADING_SINCE:
            answer = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return dict.fromkeys(places, answer)

    async def _refusal(self, body: TxnOffsetCommitRequest) -> ErrorCode | None:
        if not body.group_id or not body.transactional_id:
            return ErrorCode.INVALID_REQUEST if body.group_id else ErrorCode.INVALID_GROUP_ID
        place = self._place(body.group_id)
        codes = await self._verifier.verify(
            AddPartitions(
                transactional_id=body.transactional_id,
                producer_id=body.producer_id,
                producer_epoch=body.producer_epoch,
                partitions=(place,),
                verify_only=True,
            )
        )
        code = codes[place]
        return None if code is ErrorCode.NONE else _FOR_CLIENTS.get(code, code)
