"""Produce, Fetch and ListOffsets: Kafka's messages to the core's values and back.

Owns names: old versions name topics, the core and new versions use ids. Followers are served as consumers
are. Decides nothing about data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from metaquorum.broker.replica.fetch_sessions import FINAL_EPOCH
from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.data.requests import DataRequests
from metaquorum.broker.server.kafka.cluster import INTERNAL_TOPICS
from metaquorum.broker.server.kafka.listed import knows_timestamp, listed
from metaquorum.broker.server.kafka.transactions.verification import TransactionalProduces
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, TopicInfo
from metaquorum.metadata.requests import data as core
from metaquorum.runtime.kafka.coming import Driven
from metaquorum.runtime.kafka.services import Client, EndConnection, Later
from metaquorum.storage.batches.codecs import holds_zstd
from metaquorum.wire.codec import Request
from metaquorum.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

_ZERO = bytes(16)
ZSTD_FROM_PRODUCE, ZSTD_FROM_FETCH = 7, 10
"""The versions from which clients know zstd (KIP-110)."""
FIRST_PRODUCE = 3
"""Older ones are offered only because librdkafka compresses nothing where they are not (KAFKA-18659)."""
_TOO_OLD = ApiError(ErrorCode.UNSUPPORTED_VERSION, "records of Kafka before 0.11 are not supported")
_ADMIN_CLIENT = "__admin_client"
_NOTHING_PRODUCED = core.ProduceResponse(results=())
_SESSION_IS_OVER = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


class DataHandlers:
    """See the module. `image` is asked for at each request."""

    def __init__(
        self,
        requests: DataRequests,
        image: Callable[[], MetadataImage],
        transactional: TransactionalProduces,
    ) -> None:
        self._requests = requests
        self._image = image
        self._transactional = transactional

    def _topic(self, name: str, topic_id: bytes = _ZERO) -> TopicInfo | None:
        """The topic that a request names either way; None: there is no such topic."""
        topics = self._image().topics
        return topics.topic_named(name) if topic_id == _ZERO else topics.topic(topic_id)

    def _id_of(self, name: str) -> bytes | None:
        topic = self._topic(name)
        return None if topic is None else topic.topic_id

    # ---- Produce

    def produce(self, request: Request, client: Client) -> Any:
        body: ProduceRequest = request.body
        results: dict[core.PartitionKey, core.ProduceResult | ApiError] = {}
        asked: list[core.ProducePartition] = []
        version = request.header.version
        refused = None if version >= FIRST_PRODUCE else _TOO_OLD
        places: list[tuple[ProduceRequest.TopicProduceData, bytes | None]] = []
        for topic in body.topic_data:
            known = self._topic(topic.name, topic.topic_id)
            places.append((topic, None if known is None else known.topic_id))
            if known is None or refused is not None:
                continue
            for part in topic.partition_data:
                key, records = (known.topic_id, part.index), bytes(part.records or b"")
                error = _batch_refusal(known.name, None if part.records is None else records, request)
                if error is not None:
                    results[key] = error
                else:
                    asked.append(core.ProducePartition(key=key, records=records))

        def finish(answer: core.ProduceResponse | ApiError) -> ProduceResponse | None:
            refusal = refused
            if isinstance(answer, ApiError):
                refusal = _retriable(answer)
            else:
                results.update([(each.key, each) for each in answer.results])
            topics = [_produced_topic(topic, known, results, refusal, version) for topic, known in places]
            response = ProduceResponse(responses=tuple(topics))
            if body.acks != core.ACKS_NONE:
                return response
            _check_unanswered(response)
            return None

        if not asked:
            return finish(_NOTHING_PRODUCED)
        sent = core.ProduceRequest(acks=body.acks, timeout_ms=body.timeout_ms, partitions=tuple(asked))
        if body.transactional_id is None:
            return Later(self._requests.begin(sent), finish)
        waiting = self._in_transaction(body.transactional_id, sent, results)
        return Later(Driven(waiting), finish)

    async def _in_transaction(
        self,
        transactional_id: str,
        request: core.ProduceRequest,
        results: dict[core.PartitionKey, core.ProduceResult | ApiError],
    ) -> core.ProduceResponse | ApiError:
        """`results` takes what the transaction's coordinator refuses."""
        begun, refused = await self._transactional.begin(transactional_id, request)
        results |= refused
        if begun is None:
            return _NOTHING_PRODUCED
        return cast("core.ProduceResponse | ApiError", await begun)

    # ---- Fetch

    def fetch(self, request: Request, client: Client) -> Awaitable[FetchResponse]:
        """With sessions (KIP-227), for consumers and followers alike."""
        if request.header.version >= fetch_messages.FIRST_VERSION:
            return self._fetch_by_id(request.body, request.header.version)
        return self._fetch_by_name(request.body, request.header.version)

    def _fetch_by_id(self, body: FetchRequest, version: int) -> Later:
        def finish(answer: core.FetchResponse | ApiError) -> FetchResponse:
            if isinstance(answer, ApiError):
                return FetchResponse(error_code=answer.code)
            topics = [
                FetchResponse.FetchableTopicResponse(
                    topic_id=topic_id,
                    partitions=tuple([fetched_partition(part, version) for part in parts]),
                )
                for topic_id, parts in fetch_messages.by_topic(answer.partitions)
            ]
            return FetchResponse(session_id=answer.session_id, responses=tuple(topics))

        return Later(self._requests.begin(fetch_messages.fetch_asked(body, version)), finish)

    async def _fetch_by_name(self, body: FetchRequest, version: int) -> FetchResponse:
        """Sessions are kept by topic id: one with a name that has no id, or another one by now, ends, and the
        client begins another."""
        names = {each.topic for each in body.topics} | {each.topic for each in body.forgotten_topics_data}
        ids = {name: self._id_of(name) for name in names}
        is_complete = None not in ids.values()
        if body.session_epoch > 0 and not is_complete:
            return _SESSION_IS_OVER
        asked = fetch_messages.fetch_asked(fetch_messages.by_ids(body, ids), version)
        if not is_complete:
            # Without a session, and answered at once: not every topic is known.
            asked = replace(asked, session_epoch=FINAL_EPOCH, max_wait_ms=0)
        answer: Any = await self._requests.begin(asked)
        if isinstance(answer, ApiError):
            if version >= fetch_messages.ERROR_OF_ALL_SINCE:
                return FetchResponse(error_code=answer.code)
            return FetchResponse(responses=_by_name(body, ids, {}, answer.code, version))
        if body.session_epoch > 0:
            return self._session_by_name(answer, version)
        results = {each.key: each for each in answer.partitions}
        found = _by_name(body, ids, results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, version)
        return FetchResponse(session_id=answer.session_id, responses=found)

    def _session_by_name(self, answer: core.FetchResponse, version: int) -> FetchResponse:
        """What there is to say on a session, by the names that topics have."""
        topics = []
        for topic_id, parts in fetch_messages.by_topic(answer.partitions):
            known = self._image().topics.topic(topic_id)
            if known is None:
                return _SESSION_IS_OVER
            partitions = tuple([fetched_partition(part, version) for part in parts])
            topics.append(FetchResponse.FetchableTopicResponse(topic=known.name, partitions=partitions))
        return FetchResponse(session_id=answer.session_id, responses=tuple(topics))

    # ---- ListOffsets

    async def list_offsets(self, request: Request, client: Client) -> ListOffsetsResponse:
        body: ListOffsetsRequest = request.body
        places = [(topic, self._id_of(topic.name)) for topic in body.topics]
        asked = tuple(
            core.ListOffsetsPartition(
                key=(topic_id, part.partition_index),
                timestamp_ms=part.timestamp,
                current_leader_epoch=part.current_leader_epoch,
            )
            for topic, topic_id in places
            if topic_id is not None
            for part in topic.partitions
            if knows_timestamp(part.timestamp, request.header.version)
        )
        results: dict[core.PartitionKey, core.ListedOffset] = {}
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if asked:
            answer: Any = await self._requests.begin(
                core.ListOffsetsRequest(
                    replica_id=body.replica_id,
                    partitions=asked,
                    read_committed=body.isolation_level == fetch_messages.READ_COMMITTED,
                )
            )
            if isinstance(answer, ApiError):
                code = answer.code
            else:
                results = {each.key: each for each in answer.results}
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        listed(
                            results.get((topic_id or _ZERO, part.partition_index)),
                            part,
                            code,
                            request.header.version,
                        )
                        for part in topic.partitions
                    ),
                )
                for topic, topic_id in places
            )
        )


def _batch_refusal(topic: str, records: bytes | None, request: Request) -> ApiError | None:
    """Why a batch is refused before its leader looks at it. Internal topics are their coordinators'; only
    Kafka's own administration tool may write there."""
    if topic in INTERNAL_TOPICS and request.header.client_id != _ADMIN_CLIENT:
        text = f"only brokers write to {topic}: use another topic"
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    if records is None:
        text = "there are no records: send one record batch per partition"
        return ApiError(ErrorCode.INVALID_RECORD, text)
    if request.header.version < ZSTD_FROM_PRODUCE and holds_zstd(records):
        text = f"zstd needs Produce {ZSTD_FROM_PRODUCE} or newer: use another compression.type"
        return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
    return None


def _check_unanswered(response: ProduceResponse) -> None:
    """A Produce with acks=0. Raises EndConnection where it failed, the only way to say so."""
    parts = [part for topic in response.responses for part in topic.partition_responses]
    code = next((part.error_code for part in parts if part.error_code), 0)
    if code:
        raise EndConnection(f"a Produce with acks=0 failed with error {code}")


def _retriable(error: ApiError) -> ApiError:
    """A busy broker: the code for it is not one that every producer retries."""
    if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return error
    return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, error.message)


def _produced_topic(
    topic: ProduceRequest.TopicProduceData,
    topic_id: bytes | None,
    results: dict[core.PartitionKey, core.ProduceResult | ApiError],
    refusal: ApiError | None,
    version: int,
) -> ProduceResponse.TopicProduceResponse:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic.topic_id == _ZERO else ErrorCode.UNKNOWN_TOPIC_ID
    missing = refusal or ApiError(unknown, "there is no such topic: create it first")
    parts = [
        _produced(part.index, results.get((topic_id or _ZERO, part.index), missing), version)
        for part in topic.partition_data
    ]
    return ProduceResponse.TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=tuple(parts)
    )


def _produced(
    index: int, result: core.ProduceResult | ApiError, version: int
) -> ProduceResponse.PartitionProduceResponse:
    if isinstance(result, ApiError):
        return ProduceResponse.PartitionProduceResponse(
            index=index, error_code=result.code, base_offset=-1, error_message=result.message
        )
    leader = ProduceResponse.LeaderIdAndEpoch()
    if version >= 10 and result.error is not ErrorCode.NONE and result.leader is not None:
        leader = ProduceResponse.LeaderIdAndEpoch(leader_id=result.leader, leader_epoch=result.leader_epoch)
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=result.error,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=tuple(
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=one.index, batch_index_error_message=one.message
            )
            for one in result.refused_records
        ),
        error_message=result.message,
        current_leader=leader,
    )


def _by_name(
    body: FetchRequest,
    ids: Mapping[str, bytes | None],
    results: Mapping[core.PartitionKey, core.FetchedPartition],
    missing: ErrorCode,
    version: int,
) -> tuple[FetchResponse.FetchableTopicResponse, ...]:
    """Every partition that a request names, in its order; `missing`: of those without a result."""

    def partition(name: str, index: int) -> FetchResponse.PartitionData:
        found = results.get((ids[name] or _ZERO, index))
        if found is None or found.error is ErrorCode.UNKNOWN_TOPIC_ID:
            return _not_fetched(index, missing)
        return fetched_partition(found, version)

    return tuple(
        FetchResponse.FetchableTopicResponse(
            topic=topic.topic,
            partitions=tuple([partition(topic.topic, part.partition) for part in topic.partitions]),
        )
        for topic in body.topics
    )


def _not_fetched(index: int, code: ErrorCode) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=index, error_code=code, high_watermark=-1, records=b"", aborted_transactions=None
    )


def fetched_partition(result: core.FetchedPartition, version: int) -> FetchResponse.PartitionData:
    """One partition of an answer."""
    if version < ZSTD_FROM_FETCH and holds_zstd(result.records):
        return _not_fetched(result.key[1], ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    leader = FetchResponse.LeaderIdAndEpoch()
    if version >= 12 and result.error is not ErrorCode.NONE and result.leader is not None:
        leader = FetchResponse.LeaderIdAndEpoch(leader_id=result.leader, leader_epoch=result.leader_epoch)
    diverging = FetchResponse.EpochEndOffset()
    if version >= 12 and result.diverging is not None:
        diverging = FetchResponse.EpochEndOffset(
            epoch=result.diverging.epoch, end_offset=result.diverging.offset
        )
    return FetchResponse.PartitionData(
        partition_index=result.key[1],
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=diverging,
        current_leader=leader,
        aborted_transactions=None
        if result.aborted is None
        else tuple(
            FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in result.aborted
        ),
        preferred_read_replica=result.preferred_read_replica,
        records=result.records,
    )
