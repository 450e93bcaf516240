"""What a broker of ours can work at: the levels that Kafka 4.2 finalizes in every new cluster."""

from __future__ import annotations

from metaquorum.broker.server.main import _features
from metaquorum.controller.features import unsupported_feature
from metaquorum.metadata.image.image import FeaturesImage

OF_KAFKA_4_2 = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 29,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


def test_a_broker_works_in_a_cluster_of_kafka_4_2() -> None:
    assert unsupported_feature(FeaturesImage(finalized=OF_KAFKA_4_2), _features()) is None
    text = unsupported_feature(FeaturesImage(finalized=OF_KAFKA_4_2 | {"share.version": 2}), _features())
    assert text == (
        "the cluster is at share.version level 2, but this broker supports 0 to 1: run a broker release that"
        " supports level 2"
    )
