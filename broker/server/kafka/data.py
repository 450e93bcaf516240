"""Produce, Fetch and ListOffsets: Kafka's messages to the core's values and back.

Names: old versions name topics, the core and new versions use ids. Followers are served like consumers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from metaquorum.broker.replica.fetch_sessions import FINAL_EPOCH
from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.data.requests import Answer, DataRequests
from metaquorum.broker.server.kafka.data_answers import (
    endpoints,
    fetched,
    invalid,
    known_parts,
    last_of_each,
    listed,
    not_fetched,
    produced,
    refusal_of_all,
    repeated,
    time_asked,
)
from metaquorum.broker.server.kafka.opening import BatchOpener
from metaquorum.broker.server.kafka.transactions.verification import TransactionalProduces
from metaquorum.clients.admin.partition_logs import ADMIN_CLIENT
from metaquorum.listeners.long_work import LongWork
from metaquorum.listeners.pending_requests import is_of_a_broker
from metaquorum.listeners.services import Client, EndConnection, Later
from metaquorum.listeners.slices import produced_in_slices
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage, TopicInfo
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.settings.topic_names import INTERNAL_TOPICS
from metaquorum.network.deferred import Deferred, Driven
from metaquorum.storage.batches.batch import Batches
from metaquorum.storage.batches.format import Compression
from metaquorum.wire.codec import FEW_VALUES, Request
from metaquorum.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)

_ZERO = bytes(16)
ZSTD_FROM_PRODUCE = 7
"""The version from which producers know zstd (KIP-110)."""
REPEATED_IS_INVALID_FROM = 1
"""The version of ListOffsets from which a partition that is named twice is refused, as in Kafka."""
FIRST_PRODUCE = 3
"""Older ones are offered only because librdkafka compresses nothing without them (KAFKA-18659)."""
FETCHED_AT_ONCE_MAX = 1_000
"""Topics and partitions of a fetch that is prepared and answered on the loop."""
_TOO_OLD = ApiError(ErrorCode.UNSUPPORTED_VERSION, "records of Kafka before 0.11 are not supported")
_NO_TRANSACTION = ApiError(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "a batch is in a transaction, but the request names no transactional id",
)
_NOTHING_PRODUCED = core.ProduceResponse(results=())
_Arrived = tuple[ProduceRequest.TopicProduceData, list[tuple[int, Batches | None]]]
"""A topic with what arrived for each of its partitions; None: null."""
_SESSION_IS_OVER = FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


class DataHandlers:
    """See the module. `image` is called at each request. `opener` None: the core opens every batch."""

    def __init__(
        self,
        requests: DataRequests,
        image: Callable[[], MetadataImage],
        transactional: TransactionalProduces,
        opener: BatchOpener | None = None,
    ) -> None:
        self._requests = requests
        self._image = image
        self._transactional = transactional
        self._opener = opener
        self._work = LongWork()

    def _topic(self, name: str, topic_id: bytes = _ZERO) -> TopicInfo | None:
        """The topic that a request gives by name or id; None if there is none."""
        topics = self._image().topics
        return topics.topic_named(name) if topic_id == _ZERO else topics.topic(topic_id)

    def _id_of(self, name: str) -> bytes | None:
        topic = self._topic(name)
        return None if topic is None else topic.topic_id

    # ---- Produce

    def produce(self, request: Request, client: Client) -> Any:
        body: ProduceRequest = request.body
        if request.end > FEW_VALUES and _is_long(body):
            return produced_in_slices(request, client, self.produce)
        results: dict[core.PartitionKey, core.ProduceResult | ApiError] = {}
        asked: list[core.ProducePartition] = []
        names: list[str] = []
        version = request.header.version
        arrived = [_arrived(topic) for topic in _each_once(body.topic_data)]
        refused = _TOO_OLD if version < FIRST_PRODUCE else None
        if refused is None and body.transactional_id is None and _has_transactional(arrived):
            refused = _NO_TRANSACTION
        places: list[tuple[ProduceRequest.TopicProduceData, bytes | None]] = []
        for topic, batches in arrived:
            topic_key = self._topic(topic.name, topic.topic_id)
            places.append((topic, None if topic_key is None else topic_key.topic_id))
            if topic_key is None or refused is not None:
                continue
            for index, batch in batches:
                key = (topic_key.topic_id, index)
                error = _batch_refusal(topic_key.name, batch, request)
                if error is not None:
                    results[key] = error
                elif batch is not None:
                    asked.append(core.ProducePartition(key=key, batch=batch))
                    names.append(topic_key.name)

        def finish(answer: core.ProduceResponse | ApiError) -> ProduceResponse | None:
            refusal = refused
            if isinstance(answer, ApiError):
                refusal = _retriable(answer)
            else:
                results.update([(each.key, each) for each in answer.results])
            topics = [_produced_topic(topic, known, results, refusal, version) for topic, known in places]
            leaders = _leaders(part for topic in topics for part in topic.partition_responses)
            response = ProduceResponse(
                responses=tuple(topics),
                node_endpoints=endpoints(
                    ProduceResponse.NodeEndpoint, leaders, self._image(), client.listener
                ),
            )
            if body.acks != core.ACKS_NONE:
                return response
            _check_unanswered(response)
            return None

        if not asked:
            return finish(_NOTHING_PRODUCED)
        sent = core.ProduceRequest(acks=body.acks, timeout_ms=body.timeout_ms, partitions=tuple(asked))
        return Later(self._begin(sent, names, client, body.transactional_id, results), finish)

    def _begin(
        self,
        request: core.ProduceRequest,
        names: list[str],
        client: Client,
        transactional_id: str | None,
        results: dict[core.PartitionKey, core.ProduceResult | ApiError],
    ) -> Deferred[Any]:
        """`names`: the topics of the request's partitions. `results` takes refusals."""
        if self._opener is not None:
            opened = self._opener.at_once(client, request.partitions, names)
            if opened is None:
                later = self._opened_later(self._opener, client, request, names, transactional_id, results)
                return Driven(later)
            request = replace(request, partitions=opened)
        if transactional_id is None:
            return self._requests.begin(request)
        return Driven(self._in_transaction(transactional_id, request, results))

    async def _opened_later(
        self,
        opener: BatchOpener,
        client: Client,
        request: core.ProduceRequest,
        names: list[str],
        transactional_id: str | None,
        results: dict[core.PartitionKey, core.ProduceResult | ApiError],
    ) -> core.ProduceResponse:
        """`results` takes refusals."""
        begun: list[tuple[core.ProduceRequest, Answer | None]] = []
        async with opener.turn(client):
            async for parts in opener.later(client, request.partitions, names):
                piece = replace(request, partitions=parts)
                if transactional_id is None:
                    begun.append((piece, self._requests.begin(piece)))
                else:
                    answer, refused = await self._transactional.begin(transactional_id, piece)
                    results |= refused
                    begun.append((piece, answer))
        merged: list[core.ProduceResult] = []
        for piece, waiting in begun:
            said: Any = _NOTHING_PRODUCED if waiting is None else await waiting
            if isinstance(said, ApiError):
                results.update([(part.key, _retriable(said)) for part in piece.partitions])
            else:
                merged += said.results
        return core.ProduceResponse(results=tuple(merged))

    async def _in_transaction(
        self,
        transactional_id: str,
        request: core.ProduceRequest,
        results: dict[core.PartitionKey, core.ProduceResult | ApiError],
    ) -> core.ProduceResponse | ApiError:
        """`results` takes the refusals of the transaction's coordinator."""
        begun, refused = await self._transactional.begin(transactional_id, request)
        results |= refused
        if begun is None:
            return _NOTHING_PRODUCED
        return cast("core.ProduceResponse | ApiError", await begun)

    # ---- Fetch

    def fetch(self, request: Request, client: Client) -> Awaitable[FetchResponse]:
        """With sessions (KIP-227), for consumers and followers alike."""
        body, version = request.body, request.header.version
        if request.end > FEW_VALUES and _count(body) > FETCHED_AT_ONCE_MAX:
            return self._fetch_many(request, client)
        if version >= fetch_messages.FIRST_VERSION:
            begun = self._requests.begin(fetch_messages.fetch_asked(body, version))
            return Later(begun, partial(self._fetched_by_id, body, version, client.listener))
        return self._fetch_by_name(body, version)

    async def _fetch_by_name(self, body: FetchRequest, version: int) -> FetchResponse:
        ids, asked = self._asked_by_name(body, version)
        if asked is None:
            return _SESSION_IS_OVER
        return self._fetched_by_name(body, version, ids, await self._requests.begin(asked))

    async def _fetch_many(self, request: Request, client: Client) -> FetchResponse:
        """What takes long is done in a thread, and only partitions that exist reach the core. If others are
        named, there is no session, as for names of topics that do not exist."""
        body, version, image = request.body, request.header.version, self._image()
        missing: tuple[FetchResponse.FetchableTopicResponse, ...] = ()
        if not is_of_a_broker(request):
            body, missing = await self._apart(client, partial(known_parts, body, version, image))
        if missing and body.session_epoch > 0:
            return _SESSION_IS_OVER
        if missing:
            body = replace(body, session_epoch=FINAL_EPOCH, max_wait_ms=0)
        finish: Callable[[core.FetchResponse | ApiError], FetchResponse]
        if version >= fetch_messages.FIRST_VERSION:
            asked = await self._apart(client, partial(fetch_messages.fetch_asked, body, version))
            finish = partial(self._fetched_by_id, body, version, client.listener)
        else:
            ids, asked = await self._apart(client, partial(self._asked_by_name, body, version))
            finish = partial(self._fetched_by_name, body, version, ids)
        if asked is None:
            return _SESSION_IS_OVER
        answer: Any = await self._requests.begin(asked)
        found: FetchResponse = await self._apart(client, partial(finish, answer))
        if not missing or found.error_code:
            return found
        return replace(found, responses=found.responses + missing)

    def _apart(self, client: Client, work: Callable[[], Any]) -> Awaitable[Any]:
        return self._work.do(client.connection, work)

    def _fetched_by_id(
        self, body: FetchRequest, version: int, listener: str, answer: core.FetchResponse | ApiError
    ) -> FetchResponse:
        if isinstance(answer, ApiError):
            return _refused_fetch(body, answer, version)
        topics = [
            FetchResponse.FetchableTopicResponse(
                topic_id=topic_id,
                partitions=tuple([fetched(part, version) for part in parts]),
            )
            for topic_id, parts in fetch_messages.by_topic(answer.partitions)
        ]
        leaders = _leaders(part for topic in topics for part in topic.partitions)
        return FetchResponse(
            session_id=answer.session_id,
            responses=tuple(topics),
            node_endpoints=endpoints(FetchResponse.NodeEndpoint, leaders, self._image(), listener),
        )

    def _asked_by_name(
        self, body: FetchRequest, version: int
    ) -> tuple[dict[str, bytes | None], core.FetchRequest | None]:
        """The ids of the topics, and what the core is asked. Sessions are kept by topic id: a session with a
        name that has no id, or now another one, ends (None), and the client begins a new one."""
        names = {each.topic for each in body.topics} | {each.topic for each in body.forgotten_topics_data}
        ids = {name: self._id_of(name) for name in names}
        is_complete = None not in ids.values()
        if body.session_epoch > 0 and not is_complete:
            return ids, None
        asked = fetch_messages.fetch_asked(fetch_messages.by_ids(body, ids), version)
        if not is_complete:
            # Without a session, and answered at once: not every topic is known.
            asked = replace(asked, session_epoch=FINAL_EPOCH, max_wait_ms=0)
        return ids, asked

    def _fetched_by_name(
        self,
        body: FetchRequest,
        version: int,
        ids: Mapping[str, bytes | None],
        answer: Any,
    ) -> FetchResponse:
        if isinstance(answer, ApiError):
            return _refused_fetch(body, answer, version)
        if body.session_epoch > 0:
            return self._session_by_name(answer, version)
        results = {each.key: each for each in answer.partitions}
        found = _by_name(body, ids, results, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, version)
        return FetchResponse(session_id=answer.session_id, responses=found)

    def _session_by_name(self, answer: core.FetchResponse, version: int) -> FetchResponse:
        """The answer on a session, with topics by name."""
        topics = []
        for topic_id, parts in fetch_messages.by_topic(answer.partitions):
            topic = self._image().topics.topic(topic_id)
            if topic is None:
                return _SESSION_IS_OVER
            partitions = tuple([fetched(part, version) for part in parts])
            topics.append(FetchResponse.FetchableTopicResponse(topic=topic.name, partitions=partitions))
        return FetchResponse(session_id=answer.session_id, responses=tuple(topics))

    # ---- ListOffsets

    async def list_offsets(self, request: Request, client: Client) -> ListOffsetsResponse:
        body: ListOffsetsRequest = request.body
        version = request.header.version
        parts = [
            (topic.name, self._id_of(topic.name), part) for topic in body.topics for part in topic.partitions
        ]
        twice = repeated((name, part.partition_index) for name, _, part in parts)
        if version < REPEATED_IS_INVALID_FROM:
            twice = frozenset()
        times = [
            time_asked(part.timestamp, version)
            if topic_id is not None and (name, part.partition_index) not in twice
            else None
            for name, topic_id, part in parts
        ]
        code, offsets = await self._listed(
            body,
            tuple(
                core.ListOffsetsPartition(
                    key=(topic_id or _ZERO, part.partition_index),
                    timestamp_ms=time,
                    current_leader_epoch=part.current_leader_epoch,
                )
                for (_, topic_id, part), time in zip(parts, times, strict=True)
                if time is not None
            ),
        )
        answers = iter(
            [
                invalid(part)
                if (name, part.partition_index) in twice
                else listed(None if time is None else next(offsets, None), part, code, version)
                for (name, _, part), time in zip(parts, times, strict=True)
            ]
        )
        return ListOffsetsResponse(
            topics=tuple(
                [
                    ListOffsetsResponse.ListOffsetsTopicResponse(
                        name=topic.name, partitions=tuple([next(answers) for _ in topic.partitions])
                    )
                    for topic in body.topics
                ]
            )
        )

    async def _listed(
        self, body: ListOffsetsRequest, asked: tuple[core.ListOffsetsPartition, ...]
    ) -> tuple[ErrorCode, Iterator[core.ListedOffset]]:
        """The results in the order of `asked`, and the error of what has none."""
        if not asked:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, iter(())
        answer: Any = await self._requests.begin(
            core.ListOffsetsRequest(
                replica_id=body.replica_id,
                partitions=asked,
                read_committed=body.isolation_level == fetch_messages.READ_COMMITTED,
            )
        )
        if isinstance(answer, ApiError):
            return refusal_of_all(answer).code, iter(())
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, iter(answer.results)


def _is_long(body: ProduceRequest) -> bool:
    """Whether it is so long that no other request of its connection is in progress."""
    return sum([len(topic.partition_data) for topic in body.topic_data], len(body.topic_data)) > FEW_VALUES


def _each_once(
    topics: tuple[ProduceRequest.TopicProduceData, ...],
) -> tuple[ProduceRequest.TopicProduceData, ...]:
    """As Kafka takes a partition that is named twice: the last batch counts, and there is one answer."""
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return topics
    by_topic: dict[tuple[str, bytes], dict[int, ProduceRequest.PartitionProduceData]] = {}
    for topic in topics:
        parts = by_topic.setdefault((topic.name, topic.topic_id), {})
        parts.update([(part.index, part) for part in topic.partition_data])
    return tuple(
        ProduceRequest.TopicProduceData(name=name, topic_id=topic_id, partition_data=tuple(parts.values()))
        for (name, topic_id), parts in by_topic.items()
    )


def _batch_refusal(topic: str, batch: Batches | None, request: Request) -> ApiError | None:
    """Why a batch is refused before it reaches its leader. Internal topics belong to their coordinators; only
    Kafka's own administration tool may write there."""
    if topic in INTERNAL_TOPICS and request.header.client_id != ADMIN_CLIENT:
        text = f"only brokers write to {topic}: use another topic"
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    if batch is None:
        text = "there are no records: send one record batch per partition"
        return ApiError(ErrorCode.INVALID_RECORD, text)
    if request.header.version < ZSTD_FROM_PRODUCE and any(
        header.compression == Compression.ZSTD for header in batch.headers
    ):
        text = f"zstd needs Produce {ZSTD_FROM_PRODUCE} or newer: use another compression.type"
        return ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
    return None


def _arrived(topic: ProduceRequest.TopicProduceData) -> _Arrived:
    return topic, [
        (part.index, None if part.records is None else Batches.arrived(bytes(part.records)))
        for part in topic.partition_data
    ]


def _has_transactional(arrived: Iterable[_Arrived]) -> bool:
    """Whether a batch is in a transaction."""
    batches = [batch for _, parts in arrived for _, batch in parts if batch is not None]
    return any(header.is_transactional for batch in batches for header in batch.headers)


def _leaders(
    parts: Iterable[ProduceResponse.PartitionProduceResponse | FetchResponse.PartitionData],
) -> list[int]:
    """The leaders that an answer names."""
    return [part.current_leader.leader_id for part in parts if part.error_code]


def _check_unanswered(response: ProduceResponse) -> None:
    """A Produce with acks=0. Raises EndConnection if it failed, the only way to report it."""
    parts = [part for topic in response.responses for part in topic.partition_responses]
    code = next((part.error_code for part in parts if part.error_code), 0)
    if code:
        raise EndConnection(f"a Produce with acks=0 failed with error {code}")


def _retriable(error: ApiError) -> ApiError:
    """A busy broker: its code is not one that every producer retries."""
    if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return refusal_of_all(error)
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
        produced(part.index, results.get((topic_id or _ZERO, part.index), missing), version)
        for part in topic.partition_data
    ]
    return ProduceResponse.TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=tuple(parts)
    )


def _count(body: FetchRequest) -> int:
    """How many partitions it names, to fetch or to forget."""
    named: tuple[Any, ...] = (*body.topics, *body.forgotten_topics_data)
    return len(named) + sum([len(topic.partitions) for topic in named])


def _refused_fetch(body: FetchRequest, error: ApiError, version: int) -> FetchResponse:
    """The response to a fetch that is refused as a whole. Java's consumer looks for the new leader of a
    partition that has an error; if the response has it, it fetches from the same broker again and again. A
    session names only what changed, so it ends first."""
    code = refusal_of_all(error).code
    moved = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= fetch_messages.ERROR_OF_ALL_SINCE:
        if not moved:
            return FetchResponse(error_code=code)
        if body.session_epoch > 0:
            return _SESSION_IS_OVER
    return FetchResponse(
        responses=tuple(
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(not_fetched(part.partition, code) for part in topic.partitions),
            )
            for topic in body.topics
        )
    )


def _by_name(
    body: FetchRequest,
    ids: Mapping[str, bytes | None],
    results: Mapping[core.PartitionKey, core.FetchedPartition],
    missing: ErrorCode,
    version: int,
) -> tuple[FetchResponse.FetchableTopicResponse, ...]:
    """Every partition that a request names, once, in its order; `missing`: the code of those without a
    result."""

    def partition(name: str, index: int) -> FetchResponse.PartitionData:
        found = results.get((ids[name] or _ZERO, index))
        if found is None or found.error is ErrorCode.UNKNOWN_TOPIC_ID:
            return not_fetched(index, missing)
        return fetched(found, version)

    named = last_of_each(
        (topic.topic, part.partition, None) for topic in body.topics for part in topic.partitions
    )
    return tuple(
        FetchResponse.FetchableTopicResponse(
            topic=name, partitions=tuple([partition(name, index) for index in indexes])
        )
        for name, indexes in named.items()
    )
