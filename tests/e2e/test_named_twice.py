"""Every request that can name something twice: what a broker answers then, and what Kafka 3.7 answers.

A request with an array that is not here fails the last tests: say what Kafka does, and what happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metaquorum.clients.kafka.cluster import Coordinator
from metaquorum.metadata.errors import ErrorCode
from metaquorum.testing import Cluster
from metaquorum.wire import messages as m
from metaquorum.wire.schema import StructSchema
from metaquorum.wire.table import APIS, request_type
from tests.broker_calls import batch

pytestmark = pytest.mark.e2e

DIVERGENCE = Path(__file__).parents[2] / "docs/divergence.md"
TOPIC, OTHER, GROUP, TRANSACTION = "orders", "other", "g", "t"
AS_KAFKA = ""
INVALID = ErrorCode.INVALID_REQUEST
DUPLICATE = ErrorCode.DUPLICATE_RESOURCE
TIMEOUT_MS = 5_000
AT_GROUP, AT_TRANSACTION = Coordinator(0, GROUP), Coordinator(1, TRANSACTION)


class Case(NamedTuple):
    """`expected`: names and codes of the answer, in its order. `difference`: a part of the row of
    docs/divergence.md that says what Kafka does instead."""

    ask: Callable[[Site], Any]
    expected: list[tuple[str, int]]
    difference: str = AS_KAFKA
    at: Any = None
    highest: int = 2**15 - 1


class Site:
    """A cluster of one broker, with two topics, a group that has committed, and an open transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.create_topic(TOPIC, partitions=2)
        cluster.create_topic(OTHER)
        for at in (AT_GROUP, AT_TRANSACTION):
            self._until_found(at)
        cluster.commit_offsets(GROUP, TOPIC)
        self.producer = self.ask(
            m.InitProducerIdRequest(
                transactional_id=TRANSACTION, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
            ),
            at=AT_TRANSACTION,
        )
        self.ask(m.AddOffsetsToTxnRequest(**self.transaction, group_id=GROUP), at=AT_TRANSACTION, highest=3)

    def _until_found(self, at: Coordinator) -> None:
        def is_found() -> bool:
            asked = m.FindCoordinatorRequest(key_type=at.key_type, coordinator_keys=(at.key,))
            return self.ask(asked).coordinators[0].error_code == 0

        self._cluster.wait_until(is_found, f"the coordinator of {at.key}")

    @property
    def transaction(self) -> dict[str, Any]:
        return {
            "transactional_id": TRANSACTION,
            "producer_id": self.producer.producer_id,
            "producer_epoch": self.producer.producer_epoch,
        }

    def ask(self, body: Any, at: Any = None, highest: int = 2**15 - 1) -> Any:
        asks = self._cluster._asks()
        return self._cluster._run(asks.ask(body, target=at, highest=highest), f"an answer to {type(body)}")

    def with_entry(self, *filters: Any) -> Any:
        """The request, and before it an entry that it finds."""
        self.ask(m.CreateAclsRequest(creations=(acl(),)))
        return m.DeleteAclsRequest(filters=filters)

    def apis(self) -> set[str]:
        offered = self.ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        names = {key: request_type(key).name.removesuffix("Request") for key in APIS}
        return {names[each.api_key] for each in offered.api_keys}


@pytest.fixture(name="site", scope="module")
def fixture_site() -> Iterator[Site]:
    with Cluster(1) as cluster:
        yield Site(cluster)


NAMES = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "resource_name",
    "user",
    "member_id",
    "transactional_id",
    "key",
    "entity_name",
    "partition_index",
    "index",
    "partition",
    "partition_id",
)


def shown(value: Any, within: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """The results in an answer: what each is about, and its code; and that of the answer."""
    found: list[tuple[str, int]] = []
    names = tuple(
        str(own)
        for name in NAMES
        if hasattr(value, name) and (own := getattr(value, name)) not in ("", None) and own is not value
    )
    code = next(
        (getattr(value, each) for each in ("error_code", "partition_error_code") if hasattr(value, each)),
        None,
    )
    if code is not None and (within or names or code):
        found.append(("/".join((*within, *names)), code))
    for field in getattr(value, "__struct_fields__", ()):
        parts = getattr(value, field)
        if isinstance(parts, tuple) and field not in ("unknown_tags", "node_endpoints"):
            for each in parts:
                found += shown(each, (*within, *names))
    return found


def twice(kind: Any, **fields: Any) -> tuple[Any, Any]:
    return kind(**fields), kind(**fields)


def resources(kind: Any, *names: str, **config: str) -> Any:
    entries = tuple(kind.AlterableConfig(name=name, value=value) for name, value in config.items())
    return kind(
        resources=tuple(
            kind.AlterConfigsResource(resource_type=2, resource_name=name, configs=entries) for name in names
        )
    )


def settings_twice(kind: Any) -> Any:
    entries = tuple(kind.AlterableConfig(name="retention.ms", value=value) for value in ("1", "2"))
    return kind(resources=(kind.AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=entries),))


def created(name: str, **fields: Any) -> Any:
    kinds = m.CreateTopicsRequest
    values = {"num_partitions": 1, "replication_factor": 1}
    return kinds(timeout_ms=TIMEOUT_MS, topics=(kinds.CreatableTopic(name=name, **(values | fields)),))


def creatable(name: str) -> Any:
    return m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)


def assigned(index: int, *brokers: int) -> Any:
    return m.CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)


def grown(name: str) -> Any:
    return m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=3, assignments=None)


def upserted(user: str, mechanism: int = 1) -> Any:
    return m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=4096, salt=b"salt", salted_password=b"p"
    )


def quota(user: str, *values: float) -> Any:
    kinds = m.AlterClientQuotasRequest
    return kinds.EntryData(
        entity=(kinds.EntityData(entity_type="user", entity_name=user),),
        ops=tuple(kinds.OpData(key="producer_byte_rate", value=value) for value in values),
    )


def acl() -> Any:
    return m.CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="x",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )


def committed(kinds: Any, topic: Any, part: Any, **fields: Any) -> Any:
    parts = tuple(part(partition_index=0, committed_offset=at, committed_metadata="") for at in (1, 2))
    return kinds(group_id=GROUP, topics=(topic(name=TOPIC, partitions=parts),), **fields)


def produced() -> Any:
    kinds = m.ProduceRequest
    parts = twice(kinds.PartitionProduceData, index=0, records=batch([b"v"]))
    return kinds(
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=(kinds.TopicProduceData(name=TOPIC, partition_data=parts),),
    )


def fetched() -> Any:
    kinds = m.FetchRequest
    parts = twice(kinds.FetchPartition, partition=0, partition_max_bytes=9)
    return kinds(max_bytes=9, session_epoch=-1, topics=(kinds.FetchTopic(topic=TOPIC, partitions=parts),))


def on_partitions(kinds: Any, topic: Any, part: Any, index: str, name: str = "name", **fields: Any) -> Any:
    """One partition twice, in one entry of a topic."""
    parts = twice(part, **{index: 0})
    return kinds(topics=(topic(**{name: TOPIC, "partitions": parts}),), **fields)


def by_index(
    kinds: Any, topic: Any, name: str = "name", field: str = "partition_indexes", **more: Any
) -> Any:
    return kinds(topics=twice(topic, **{name: TOPIC, field: (0, 0)}), **more)


LO, OE, DR = m.ListOffsetsRequest, m.OffsetForLeaderEpochRequest, m.DeleteRecordsRequest
OC, OF, OD, TC = (
    m.OffsetCommitRequest,
    m.OffsetFetchRequest,
    m.OffsetDeleteRequest,
    m.TxnOffsetCommitRequest,
)
BY_HAND = {"num_partitions": -1, "replication_factor": -1}
ONE, ONE_EACH = [("orders/0", 0)], "has one answer"

CASES: dict[str, list[Case]] = {
    "Produce": [Case(lambda site: produced(), ONE, highest=12, at=0)],
    "Fetch": [Case(lambda site: fetched(), ONE, highest=12, at=0)],
    "ListOffsets": [
        Case(
            lambda site: on_partitions(
                LO, LO.ListOffsetsTopic, LO.ListOffsetsPartition, "partition_index", replica_id=-1
            ),
            [("orders/0", INVALID)] * 2,
            at=0,
        )
    ],
    "OffsetForLeaderEpoch": [
        Case(
            lambda site: on_partitions(
                OE, OE.OffsetForLeaderTopic, OE.OffsetForLeaderPartition, "partition", "topic", replica_id=-1
            ),
            ONE * 2,
            at=0,
        )
    ],
    "DeleteRecords": [
        Case(
            lambda site: on_partitions(
                DR, DR.DeleteRecordsTopic, DR.DeleteRecordsPartition, "partition_index", timeout_ms=1_000
            ),
            ONE,
            at=0,
        )
    ],
    "Metadata": [
        Case(
            lambda site: m.MetadataRequest(
                topics=twice(m.MetadataRequest.MetadataRequestTopic, name=OTHER),
                allow_auto_topic_creation=False,
            ),
            [("other", 0), ("other/0", 0)],
        )
    ],
    "DescribeTopicPartitions": [
        Case(
            lambda site: m.DescribeTopicPartitionsRequest(
                topics=twice(m.DescribeTopicPartitionsRequest.TopicRequest, name=OTHER),
                response_partition_limit=9,
            ),
            [("other", 0), ("other/0", 0)],
        )
    ],
    "CreateTopics": [
        Case(
            lambda site: m.CreateTopicsRequest(
                timeout_ms=TIMEOUT_MS, topics=(creatable("a"), creatable("b"), creatable("a"))
            ),
            [("a", INVALID), ("b", 0)],
        ),
        Case(
            lambda site: created("c", assignments=(assigned(0, 0), assigned(0, 0)), **BY_HAND),
            [("c", ErrorCode.INVALID_REPLICA_ASSIGNMENT)],
        ),
        Case(
            lambda site: created("c", assignments=(assigned(0, 0, 0),), **BY_HAND),
            [("c", ErrorCode.INVALID_REPLICA_ASSIGNMENT)],
        ),
        Case(
            lambda site: created(
                "c",
                configs=tuple(
                    m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=value)
                    for value in ("1", "2")
                ),
            ),
            [("c", INVALID)],
            "a setting that CreateTopics has twice",
        ),
    ],
    "DeleteTopics": [
        Case(
            lambda site: m.DeleteTopicsRequest(
                timeout_ms=TIMEOUT_MS,
                topics=tuple(
                    m.DeleteTopicsRequest.DeleteTopicState(name=each) for each in ("x", OTHER, OTHER)
                ),
            ),
            [("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (OTHER, INVALID)],
        )
    ],
    "CreatePartitions": [
        Case(
            lambda site: m.CreatePartitionsRequest(
                timeout_ms=TIMEOUT_MS, topics=(grown(TOPIC), grown("x"), grown(TOPIC))
            ),
            [(TOPIC, INVALID), ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
        )
    ],
    "AlterConfigs": [
        Case(lambda site: resources(m.AlterConfigsRequest, TOPIC, TOPIC), [(TOPIC, INVALID)] * 2),
        Case(lambda site: settings_twice(m.AlterConfigsRequest), [(TOPIC, INVALID)]),
    ],
    "IncrementalAlterConfigs": [
        Case(lambda site: resources(m.IncrementalAlterConfigsRequest, TOPIC, TOPIC), [(TOPIC, INVALID)] * 2),
        Case(lambda site: settings_twice(m.IncrementalAlterConfigsRequest), [(TOPIC, INVALID)]),
    ],
    "DescribeConfigs": [
        Case(
            lambda site: m.DescribeConfigsRequest(
                resources=twice(
                    m.DescribeConfigsRequest.DescribeConfigsResource,
                    resource_type=2,
                    resource_name=TOPIC,
                    configuration_keys=("retention.ms",) * 2,
                )
            ),
            [(TOPIC, 0)] * 2,
        )
    ],
    "AlterPartitionReassignments": [
        Case(
            lambda site: m.AlterPartitionReassignmentsRequest(
                timeout_ms=TIMEOUT_MS,
                topics=(
                    m.AlterPartitionReassignmentsRequest.ReassignableTopic(
                        name=TOPIC,
                        partitions=twice(
                            m.AlterPartitionReassignmentsRequest.ReassignablePartition,
                            partition_index=0,
                            replicas=(0,),
                        ),
                    ),
                ),
            ),
            [("orders/0", 0), ("orders/0", INVALID)],
            "two entries for one partition in one request",
        )
    ],
    "ListPartitionReassignments": [
        Case(
            lambda site: by_index(
                m.ListPartitionReassignmentsRequest,
                m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics,
                timeout_ms=TIMEOUT_MS,
            ),
            [],
        )
    ],
    "ElectLeaders": [
        Case(
            lambda site: m.ElectLeadersRequest(
                timeout_ms=TIMEOUT_MS,
                topic_partitions=twice(m.ElectLeadersRequest.TopicPartitions, topic=TOPIC, partitions=(0, 0)),
            ),
            [("orders/0", ErrorCode.ELECTION_NOT_NEEDED)],
            "ElectLeaders elects and answers once for each entry",
        )
    ],
    "AlterUserScramCredentials": [
        Case(
            lambda site: m.AlterUserScramCredentialsRequest(
                deletions=(), upsertions=(upserted("ann"), upserted("bob"), upserted("ann"))
            ),
            [("ann", DUPLICATE), ("bob", 0)],
        ),
        Case(
            lambda site: m.AlterUserScramCredentialsRequest(
                deletions=(), upsertions=(upserted("ann", 1), upserted("ann", 2))
            ),
            [("ann", DUPLICATE)],
        ),
        Case(
            lambda site: m.AlterUserScramCredentialsRequest(
                deletions=(
                    m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="bob", mechanism=1),
                ),
                upsertions=(upserted("bob", 2),),
            ),
            [("bob", DUPLICATE)],
        ),
    ],
    "DescribeUserScramCredentials": [
        Case(
            lambda site: m.DescribeUserScramCredentialsRequest(
                users=twice(m.DescribeUserScramCredentialsRequest.UserName, name="bob")
            ),
            [("bob", DUPLICATE)],
        )
    ],
    "AlterClientQuotas": [
        Case(
            lambda site: m.AlterClientQuotasRequest(entries=(quota("ann", 1.0), quota("ann", 2.0))),
            [("", INVALID)],
        ),
        Case(lambda site: m.AlterClientQuotasRequest(entries=(quota("bob", 1.0, 2.0),)), [("", INVALID)]),
    ],
    "DescribeClientQuotas": [
        Case(
            lambda site: m.DescribeClientQuotasRequest(
                components=twice(
                    m.DescribeClientQuotasRequest.ComponentData, entity_type="user", match_type=0, match="u"
                )
            ),
            [("", INVALID)],
        )
    ],
    "CreateAcls": [Case(lambda site: m.CreateAclsRequest(creations=(acl(), acl())), [])],
    "DeleteAcls": [
        Case(
            lambda site: site.with_entry(
                *twice(
                    m.DeleteAclsRequest.DeleteAclsFilter,
                    resource_type_filter=2,
                    resource_name_filter="x",
                    pattern_type_filter=3,
                    principal_filter=None,
                    host_filter=None,
                    operation=1,
                    permission_type=1,
                )
            ),
            [("x", 0)] * 2,
        )
    ],
    "UpdateFeatures": [
        Case(
            lambda site: m.UpdateFeaturesRequest(
                timeout_ms=TIMEOUT_MS,
                validate_only=True,
                feature_updates=twice(
                    m.UpdateFeaturesRequest.FeatureUpdateKey,
                    feature="group.version",
                    max_version_level=1,
                    upgrade_type=1,
                ),
            ),
            [("", ErrorCode.INVALID_UPDATE_VERSION)],
            "a feature that UpdateFeatures names twice",
        )
    ],
    "AlterReplicaLogDirs": [
        Case(
            lambda site: m.AlterReplicaLogDirsRequest(
                dirs=tuple(
                    m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                        path=path,
                        topics=(
                            m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                                name=TOPIC, partitions=(0, 0)
                            ),
                        ),
                    )
                    for path in ("/one", "/another")
                )
            ),
            [("orders/0", ErrorCode.LOG_DIR_NOT_FOUND)],
            at=0,
        )
    ],
    "DescribeLogDirs": [
        Case(
            lambda site: by_index(
                m.DescribeLogDirsRequest,
                m.DescribeLogDirsRequest.DescribableLogDirTopic,
                "topic",
                "partitions",
            ),
            [],
            at=0,
        )
    ],
    "DescribeProducers": [
        Case(
            lambda site: by_index(m.DescribeProducersRequest, m.DescribeProducersRequest.TopicRequest),
            ONE * 4,
            at=0,
        )
    ],
    "FindCoordinator": [
        Case(lambda site: m.FindCoordinatorRequest(coordinator_keys=(GROUP, GROUP)), [(GROUP, 0)] * 2)
    ],
    "OffsetCommit": [
        Case(
            lambda site: committed(
                OC,
                OC.OffsetCommitRequestTopic,
                OC.OffsetCommitRequestPartition,
                generation_id_or_member_epoch=-1,
            ),
            ONE * 2,
            ONE_EACH,
            at=AT_GROUP,
            highest=9,
        )
    ],
    "OffsetFetch": [
        Case(
            lambda site: OF(
                groups=twice(
                    OF.OffsetFetchRequestGroup,
                    group_id=GROUP,
                    topics=(OF.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0, 0)),),
                )
            ),
            [("g", 0), ("g/orders/0", 0)] * 2,
            at=AT_GROUP,
            highest=9,
        )
    ],
    "TxnOffsetCommit": [
        Case(
            lambda site: committed(
                TC, TC.TxnOffsetCommitRequestTopic, TC.TxnOffsetCommitRequestPartition, **site.transaction
            ),
            ONE * 2,
            ONE_EACH,
            at=AT_GROUP,
            highest=3,
        )
    ],
    "OffsetDelete": [
        Case(
            lambda site: on_partitions(
                OD,
                OD.OffsetDeleteRequestTopic,
                OD.OffsetDeleteRequestPartition,
                "partition_index",
                group_id=GROUP,
            ),
            ONE * 2,
            ONE_EACH,
            at=AT_GROUP,
        )
    ],
    "AddPartitionsToTxn": [
        Case(
            lambda site: m.AddPartitionsToTxnRequest(
                **{f"v3_and_below_{name}": value for name, value in site.transaction.items()},
                v3_and_below_topics=(
                    m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=(0, 0)),
                ),
            ),
            ONE * 2,
            ONE_EACH,
            at=AT_TRANSACTION,
            highest=3,
        )
    ],
    "DescribeTransactions": [
        Case(
            lambda site: m.DescribeTransactionsRequest(transactional_ids=(TRANSACTION, TRANSACTION)),
            [(TRANSACTION, 0)] * 2,
            at=AT_TRANSACTION,
        )
    ],
    "DescribeGroups": [
        Case(
            lambda site: m.DescribeGroupsRequest(groups=(GROUP, GROUP)),
            [(GROUP, 0)] * 2,
            at=AT_GROUP,
            highest=5,
        )
    ],
    "ConsumerGroupDescribe": [
        Case(
            lambda site: m.ConsumerGroupDescribeRequest(group_ids=("none", "none")),
            [("none", ErrorCode.GROUP_ID_NOT_FOUND)] * 2,
            at=Coordinator(0, "none"),
        )
    ],
    "LeaveGroup": [
        Case(
            lambda site: m.LeaveGroupRequest(
                group_id=GROUP, members=twice(m.LeaveGroupRequest.MemberIdentity, member_id="m")
            ),
            [("m", ErrorCode.UNKNOWN_MEMBER_ID)] * 2,
            at=AT_GROUP,
        )
    ],
    "DeleteGroups": [
        Case(
            lambda site: m.DeleteGroupsRequest(groups_names=("none", "none")),
            [("none", ErrorCode.GROUP_ID_NOT_FOUND)],
            at=Coordinator(0, "none"),
        )
    ],
    "DescribeQuorum": [
        Case(
            lambda site: m.DescribeQuorumRequest(
                topics=(
                    m.DescribeQuorumRequest.TopicData(
                        topic_name="__cluster_metadata",
                        partitions=twice(m.DescribeQuorumRequest.PartitionData, partition_index=0),
                    ),
                )
            ),
            [("__cluster_metadata/0", 0)] * 2,
            "DescribeQuorum of more than the metadata partition",
        )
    ],
}

WITHOUT = {
    "JoinGroup": "protocols are in order of preference: the first of two counts, as in Kafka",
    "SyncGroup": "the last assignment of a member counts, as in Kafka",
    "ListGroups": "a filter is a set",
    "ListTransactions": "a filter is a set",
    "ListConfigResources": "a filter is a set",
    "ConsumerGroupHeartbeat": "topics and partitions of a member are a set",
    "CreateDelegationToken": "renewers are a set",
    "DescribeDelegationToken": "owners are a set",
    "AddRaftVoter": "of two endpoints with one name, the last one counts, as in Kafka",
    "WriteTxnMarkers": "of brokers, which name a partition once",
}
"""Requests with arrays in which nothing can be named twice, or in which it does not matter."""


def has_arrays(schema: StructSchema) -> bool:
    return any(each.is_array or (each.struct and has_arrays(each.struct)) for each in schema.fields)


@pytest.mark.parametrize(
    ("api", "number"), [(api, number) for api, cases in CASES.items() for number in range(len(cases))]
)
def test_what_is_named_twice(site: Site, api: str, number: int) -> None:
    case = CASES[api][number]
    assert shown(site.ask(case.ask(site), at=case.at, highest=case.highest)) == case.expected
    if case.difference:
        assert case.difference in DIVERGENCE.read_text(), "Kafka answers otherwise: the page must say it"


def test_the_last_of_two_offsets_counts(site: Site) -> None:
    case = CASES["OffsetCommit"][0]
    site.ask(case.ask(site), at=case.at, highest=case.highest)
    asked = CASES["OffsetFetch"][0]
    answer = site.ask(asked.ask(site), at=asked.at, highest=asked.highest)
    assert answer.groups[0].topics[0].partitions[0].committed_offset == 2


def test_an_entry_that_is_created_twice_exists_once(site: Site) -> None:
    answer = site.ask(m.CreateAclsRequest(creations=(acl(), acl())))
    assert [each.error_code for each in answer.results] == [0, 0]
    found = site.ask(
        m.DescribeAclsRequest(
            resource_type_filter=2,
            resource_name_filter="x",
            pattern_type_filter=3,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
    )
    assert [len(each.acls) for each in found.resources] == [1]


def test_an_entity_that_is_named_twice_has_its_first_change_as_in_kafka(site: Site) -> None:
    def quotas() -> list[float]:
        kinds = m.DescribeClientQuotasRequest
        part = kinds.ComponentData(entity_type="user", match_type=0, match="eve")
        answer = site.ask(kinds(components=(part,)))
        return [value.value for entry in answer.entries for value in entry.values]

    site.ask(m.AlterClientQuotasRequest(entries=(quota("eve", 7.0),)))
    site.ask(m.AlterClientQuotasRequest(entries=(quota("eve", 1.0), quota("eve", 2.0))))
    assert quotas() == [1.0]


def test_every_request_that_a_broker_takes_is_in_the_table(site: Site) -> None:
    """A new one with an array needs a case, or a reason why there is none."""
    keys = {request_type(key).name.removesuffix("Request"): key for key in APIS}
    arrays = {name for name in site.apis() if has_arrays(request_type(keys[name]).schema)}
    missing = arrays ^ {*CASES, *WITHOUT} & site.apis()
    assert not missing, f"what if a request names a thing twice? CASES or WITHOUT must say it of {missing}"
    assert not {*CASES} & {*WITHOUT}
    assert {*CASES, *WITHOUT} <= site.apis(), "no longer offered"
