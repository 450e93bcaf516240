"""Metadata that is asked again: one answer with one encoding, until brokers or topics change."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import metaquorum.broker.server.kafka.forwarding as forwarding
from metaquorum.broker.server.kafka.cluster import MetadataCache, Viewpoint
from metaquorum.broker.server.kafka.forwarding import AutoTopics
from metaquorum.clients.search import ClientError
from metaquorum.listeners.answers import Prepared
from metaquorum.listeners.services import Client
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.types import NoOpRecord, TopicRecord
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader
from metaquorum.wire.messages import CreateTopicsResponse, MetadataRequest
from tests.unit.kafka.test_cluster_answers import image

CLIENT = Client(listener="KAFKA", address="127.0.0.1")
VIEW = Viewpoint(image=image(), cluster_id="c", node_id=1, listener="KAFKA")


def after(before: MetadataImage, *records: Any) -> MetadataImage:
    state = ReplayState(before)
    return replay_records(state, base_offset=state.end_offset, epoch=1, timestamp_ms=0, records=records).image


def asked(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=tuple(MetadataRequest.MetadataRequestTopic(name=name) for name in names))


def test_the_same_question_has_the_same_answer_until_the_cluster_changes() -> None:
    cache = MetadataCache(Prepared())
    first = cache.answer(asked("orders"), 12, VIEW)
    assert cache.answer(asked("orders"), 12, VIEW) is first
    idle = replace(VIEW, image=after(image(), NoOpRecord()))
    assert cache.answer(asked("orders"), 12, idle).body == first.body
    assert cache.answer(asked("orders"), 9, VIEW).body is not first.body
    assert cache.answer(asked("orders"), 12, replace(VIEW, listener="PLAINTEXT")).body != first.body
    grown = replace(VIEW, image=after(image(), TopicRecord("new", b"\x09" * 16)))
    assert cache.answer(asked("new"), 12, grown).missing == ()
    assert cache.answer(asked("new"), 12, VIEW).missing == ("new",)


def test_an_idle_cluster_keeps_its_answers() -> None:
    cache, now = MetadataCache(Prepared()), image()
    first = cache.answer(asked("orders"), 12, replace(VIEW, image=now))
    idle = after(now, NoOpRecord())
    assert idle is not now
    assert cache.answer(asked("orders"), 12, replace(VIEW, image=idle)) is first


def test_a_prepared_body_is_sent_as_any_other_is() -> None:
    prepared = Prepared()
    body = MetadataCache(prepared).answer(asked("orders", "none"), 12, VIEW).body
    for correlation_id in (1, 77):
        header = RequestHeader(3, 12, correlation_id)
        plain = b"".join(codec.encode_response(3, 12, correlation_id, body))
        assert b"".join(prepared.encode(header, body)) == plain
    changed = codec.decode_response(3, 12, plain).body
    assert b"".join(prepared.encode(RequestHeader(3, 12, 1), changed))[4:] == plain[4:]


def test_answers_of_an_older_image_are_prepared_no_more() -> None:
    prepared = Prepared()
    cache = MetadataCache(prepared)
    body = cache.answer(asked("orders"), 12, VIEW).body
    header = RequestHeader(3, 12, 1)
    first = prepared.encode(header, body)[-1]
    assert prepared.encode(header, body)[-1] is first
    grown = replace(VIEW, image=after(image(), TopicRecord("new", b"\x09" * 16)))
    cache.answer(asked("orders"), 12, grown)
    assert prepared.encode(header, body)[-1] is not first


def test_bytes_are_kept_within_a_bound() -> None:
    prepared = Prepared(bytes_max=10)
    body = MetadataCache(prepared).answer(asked("orders"), 12, VIEW).body
    first = prepared.encode(RequestHeader(3, 12, 1), body)
    assert prepared.encode(RequestHeader(3, 12, 1), body) == first
    assert prepared.encode(RequestHeader(3, 12, 1), body)[1] is not first[1]


class FakeForwarder:
    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.sizes: list[tuple[int, int]] = []
        self.work: list[Any] = []
        self.error: Exception | None = None

    def spawn(self, work: Any) -> None:
        self.work.append(work)

    async def handle(self, request: Any, client: Client) -> CreateTopicsResponse:
        assert client is CLIENT
        self.sent.append(tuple(each.name for each in request.body.topics))
        self.sizes += [(each.num_partitions, each.replication_factor) for each in request.body.topics]
        if self.error is not None:
            raise self.error
        return CreateTopicsResponse()


async def test_many_clients_that_miss_a_topic_create_it_once() -> None:
    forwarder = FakeForwarder()
    topics = AutoTopics(forwarder, enabled=True)  # type: ignore[arg-type]
    topics.want(("a", "__consumer_offsets"), CLIENT, None)
    topics.want(("a", "b"), CLIENT, None)
    topics.want(("a",), CLIENT, None)
    for work in forwarder.work:
        await work
    assert forwarder.sent == [("a",), ("b",)]
    topics.want(("a",), CLIENT, None)  # it was deleted since
    await forwarder.work[-1]
    assert forwarder.sent[-1] == ("a",)
    assert set(forwarder.sizes) == {(-1, -1)}  # as the controllers are configured


async def test_a_brokers_own_defaults_are_those_of_the_topics_that_it_creates() -> None:
    forwarder = FakeForwarder()
    topics = AutoTopics(forwarder, enabled=True, partitions=4, replication_factor=2)  # type: ignore[arg-type]
    topics.want(("a",), CLIENT, None)
    await forwarder.work[-1]
    assert forwarder.sizes == [(4, 2)]


async def test_topics_beyond_the_bound_are_created_once_others_are_or_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "CREATING_MAX", 3)
    forwarder = FakeForwarder()
    topics = AutoTopics(forwarder, enabled=True)  # type: ignore[arg-type]
    topics.want(("a", "b"), CLIENT, None)
    topics.want(("c", "d"), CLIENT, None)
    topics.want(("e",), CLIENT, None)
    first, second = forwarder.work
    await first
    topics.want(("d", "e", "f"), CLIENT, None)
    forwarder.error = ClientError("no controller")
    with pytest.raises(ClientError):
        await second
    topics.want(("c",), CLIENT, None)
    forwarder.error = None
    for work in forwarder.work[2:]:
        await work
    assert forwarder.sent == [("a", "b"), ("c",), ("d", "e"), ("c",)]


def test_no_topic_appears_where_the_file_forbids_it() -> None:
    forwarder = FakeForwarder()
    AutoTopics(forwarder, enabled=False).want(("a",), CLIENT, None)  # type: ignore[arg-type]
    assert forwarder.work == []
