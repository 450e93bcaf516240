"""A node whose log says who asked for what, and whose voters changed."""

from __future__ import annotations

from pathlib import Path

from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.batch_cause import BatchCause, cause_record
from metaquorum.metadata.records.control import KRaftVersionRecord
from metaquorum.storage.files.meta_properties import MetaProperties
from tests.unit.pipeline.intervals.telling import (
    ORDERS,
    PAYMENTS,
    Line,
    alive,
    batches,
    broker,
    change,
    leads,
    partition,
)
from tests.unit.pipeline.intervals.test_voter_sets import voters

CLUSTER = "q0MyzyPDQ4iUlSGCdZpCmw"
TERRAFORM = ("User:terraform", "provider-kafka", "10.0.4.20", 1)
ALICE = ("User:alice", "adminclient-1", "10.0.9.7", 2)
LINES: list[Line] = [
    (0, [leads(3000)]),
    (10, [KRaftVersionRecord(1), voters(3000, 3001)]),
    (20, [r.FeatureLevelRecord("metadata.version", 25)]),
    (2_000, [cause_record(BatchCause("BrokerRegistration", None, "User:broker-1")), broker(1, 5)]),
    (2_100, [cause_record(BatchCause("BrokerHeartbeat", None, "User:broker-1")), alive(1, 5)]),
    (
        60_000,
        [
            cause_record(BatchCause("CreateTopics", None, *TERRAFORM)),
            r.TopicRecord("orders", ORDERS),
            *(partition(at, (1,)) for at in range(2)),
            r.TopicRecord("payments", PAYMENTS),
            partition(0, (1,), PAYMENTS),
        ],
    ),
    (
        3_600_000,
        [
            cause_record(BatchCause("IncrementalAlterConfigs", None, *ALICE)),
            r.ConfigRecord(2, "orders", "retention.ms", "60000"),
        ],
    ),
    (
        3_660_000,
        [
            cause_record(BatchCause("IncrementalAlterConfigs", None, *ALICE)),
            r.ConfigRecord(2, "orders", "segment.ms", "60000"),
        ],
    ),
    (
        7_200_000,
        [
            cause_record(BatchCause(rule="session-expired")),
            change(0, leader=-1),
            r.FenceBrokerRecord(1, 5),
        ],
    ),
    (7_300_000, [cause_record(BatchCause("DeleteTopics", None, *ALICE)), r.RemoveTopicRecord(PAYMENTS)]),
    (7_400_000, [voters(3000, 3001, 3002)]),
]


def write_node(node: Path) -> Path:
    """The node's directory."""
    log = node / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (node / "meta.properties").write_bytes(MetaProperties(cluster_id=CLUSTER, node_id=3000).encode())
    data = b"".join(batch.data for batch in batches(LINES))
    (log / "00000000000000000000.log").write_bytes(data)
    return node
