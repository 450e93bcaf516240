"""A topic's name is written once, however many partitions go with it (S1.21)."""

from __future__ import annotations

from random import Random

from metaquorum.controller.ledger import encode_records_batch
from metaquorum.controller.partitions.partitions import removal_slice
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.partitions.topics import Allowance, decide_create_topics
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import Record
from metaquorum.metadata.replay import ReplayState, replay
from metaquorum.metadata.requests.common import CreateTopicsRequest, NewTopic
from metaquorum.storage.batches.batch import iter_batches
from tests.unit.controller.node_quorum import CLUSTER, image_of
from tests.unit.controller.test_broker_decisions import broker

NAME = "a-name-that-is-sent-once"
PARTITIONS = 10_000


def encoded(image: MetadataImage, records: tuple[Record, ...] | object) -> bytes:
    return encode_records_batch(
        records,  # type: ignore[arg-type]
        base_offset=image.provenance.offset,
        epoch=1,
        timestamp_ms=0,
        metadata_version=19,
    )


def test_ten_thousand_partitions_name_their_topic_once() -> None:
    image = image_of(*[broker(broker_id) for broker_id in (1, 2, 3)])
    topic = NewTopic(name=NAME, partitions=PARTITIONS, replication_factor=3)
    result = decide_create_topics(
        image,
        CreateTopicsRequest(topics=(topic,)),
        ControllerConfig(cluster_id=CLUSTER, node_id=1),
        candidates=[UsableBroker(broker_id) for broker_id in (1, 2, 3)],
        new_topic_id=lambda: b"topic-id-0000001",
        rng=Random(1),
        allowance=Allowance(),
    )
    created = encoded(image, result.records)
    assert created.count(NAME.encode()) == 1

    state = replay(ReplayState(image), next(iter_batches(created)))
    moves = removal_slice(state.newest, 1, rules_of(state.newest, lambda _: True), PARTITIONS).records
    assert len(moves) == PARTITIONS
    moved = encoded(state.newest, moves)
    assert NAME.encode() not in moved and len(moved) < 48 * PARTITIONS
