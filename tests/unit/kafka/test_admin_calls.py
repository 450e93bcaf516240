"""What each call of the administration asks of which node, and what it makes of the answer, as recorded text.

No two values of an answer are alike, so none can be lost or mixed up unseen. Who changes a call reviews its
lines here (`pytest tests/unit/kafka/test_admin_calls.py --rewrite`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from itertools import count, cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from metaquorum.clients.admin import (
    access,
    cluster,
    configs,
    groups,
    partition_logs,
    replicas,
    topics,
    transactions,
)
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    Acl,
    ConfigResource,
)
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
    DescribeQuorumResponse,
    NewTopic,
    RemoveRaftVoterRequest,
    ReplicaStatus,
)
from metaquorum.metadata.requests.partitions import TopicGrowth, WantedReplicas
from metaquorum.metadata.requests.settings import (
    ConfigChange,
    ConfigOp,
    FeatureUpdate,
    LevelChange,
    OpKind,
    QuotaChange,
    QuotaOp,
)
from metaquorum.metadata.settings.acls import AclFilter
from metaquorum.metadata.settings.configs import ConfigSource
from metaquorum.metadata.settings.quotas import QuotaFilter
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.wire import codec
from metaquorum.wire.messages import DescribeConfigsResponse, DescribeUserScramCredentialsResponse
from metaquorum.wire.schema import Field, StructSchema
from metaquorum.wire.table import API_BY_NAME, response_type

ADDITION = AddRaftVoterRequest(
    voter=Voter(4, b"d" * 16, (VoterEndpoint("CONTROLLER", "h", 9093),)), cluster_id="id", timeout_ms=900
)
REMOVAL = RemoveRaftVoterRequest(voter_id=3, voter_directory_id=b"e" * 16, cluster_id="id")
RECORDED = Path(__file__).with_name("admin_calls.txt")
OLD = {
    "DescribeCluster": 0,
    "DeleteTopics": 5,
    "ListGroups": 0,
    "DescribeGroups": 0,
    "FindCoordinator": 3,
    "CreateTopics": 4,
    "Metadata": 4,
    "DescribeQuorum": 0,
    "ApiVersions": 3,
    "ListTransactions": 0,
    "DescribeDelegationToken": 2,
    "CreateDelegationToken": 2,
    "DescribeConfigs": 3,
}
"""The newest version of an old cluster's nodes."""
UNHEARD = ("ConsumerGroupDescribe", "DescribeTopicPartitions", "ListPartitionReassignments")
"""What it does not have at all."""
SINGLE = {
    *("ConsumerGroupDescribe", "DescribeGroups", "DeleteGroups", "DescribeTransactions", "DeleteAcls"),
    *("AlterUserScramCredentials", "AlterClientQuotas"),
}
"""One part was asked for, and one is answered."""
ASSIGNMENT = b"\0\1" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\1" + b"\0\0\0\0"
"""Of a consumer: partitions 0 and 1 of t."""


class Filled:
    """Answers of one kind: `codes` in turn, every other number by counting."""

    def __init__(self, codes: tuple[int, ...]) -> None:
        self._codes = codes
        self._numbers = count(1)
        self._cycles: dict[str, Iterator[Any]] = {}

    def answer(self, api: str, version: int) -> Any:
        """As a client reads it in this version."""
        key = API_BY_NAME[api].key
        body = self._struct(response_type(key).schema, version, depth=0, parts=1 if api in SINGLE else 2)
        frame = b"".join(codec.encode_response(key, version, 1, body))
        return codec.decode_response(key, version, frame).body

    def _struct(self, schema: StructSchema, version: int, *, depth: int, parts: int = 2) -> Any:
        values = {}
        for field in schema.fields:
            if field.since <= version and (field.until is None or version <= field.until):
                values[field.name] = self._value(field, version, depth, parts if depth < 2 else 1)
        return schema.cls(**values)

    def _value(self, field: Field, version: int, depth: int, size: int) -> Any:
        if not field.type.startswith("[]"):
            return self._one(field, field.type, version, depth)
        return tuple(self._one(field, field.type.removeprefix("[]"), version, depth) for _ in range(size))

    def _one(self, field: Field, kind: str, version: int, depth: int) -> Any:
        if field.name == "next_cursor" and not self._next("more", True, False):
            return None
        if field.struct is not None:
            return self._struct(field.struct, version, depth=depth + 1)
        if field.name in ("topic", "topic_name", "resource_name") or (
            field.name == "name" and kind == "string"
        ):
            return self._next("topic", "t", "u")
        match field.name:
            case "error_code":
                return self._next("code", *self._codes)
            case "partition_index" | "partition_id" | "partitions" if kind == "int32":
                return self._next("index", 0, 1)
            case "node_id" | "broker_id" | "leader_id":
                return self._next(field.name, 1, 2)
            case "resource_type":
                return self._next(field.name, TOPIC_RESOURCE, GROUP_RESOURCE)
            case "config_source" | "source":
                return self._next(field.name, 1, 5, 8)
            case "mechanism":
                return self._next(field.name, 2, 1)
            case "member_assignment":
                return self._next(field.name, ASSIGNMENT, b"", b"strange")
            case "protocol_type":
                return "consumer"
        if kind == "bool":
            return self._next("bool", True, False)
        number = next(self._numbers)
        if kind in ("string", "bytes", "records", "uuid"):
            text = f"{field.name} {number}"
            return (
                text if kind == "string" else text.encode() if kind != "uuid" else number.to_bytes(16, "big")
            )
        return number + 0.5 if kind == "float64" else number

    def _next(self, name: str, *values: Any) -> Any:
        return next(self._cycles.setdefault(name, cycle(values)))


class Cluster:
    """In the place of a client: notes what is asked, and answers by itself."""

    asks_brokers = True
    timeout_ms = 4_321
    refuse = staticmethod(KafkaClient.refuse)
    ask_every_broker = KafkaClient.ask_every_broker
    brokers = KafkaClient.brokers

    def __init__(self, codes: tuple[int, ...], *, old: bool) -> None:
        self._filled = Filled(codes)
        self._old = old
        self.lines: list[str] = []

    async def version(self, api: str) -> int | None:
        if self._old and api in UNHEARD:
            return None
        return min(API_BY_NAME[api].max_version, OLD.get(api, 99) if self._old else 99)

    async def ask(self, body: Any, *, target: Any = None, lowest: int = 0, highest: int = 2**15 - 1) -> Any:
        api = type(body).__name__.removesuffix("Request")
        newest = await self.version(api)
        version = -1 if newest is None else min(newest, highest)
        place = "" if target is None else f" at {shown(target)}"
        span = "".join([f" from {lowest}" if lowest else "", f" to {highest}" if highest < 99 else ""])
        self.lines.append(f"asks{place}{span} {shown(body)}")
        if version < max(lowest, API_BY_NAME[api].min_version):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{api} is too old")
        codec.encode_request(codec.RequestHeader(API_BY_NAME[api].key, version, 1), body)
        return self._filled.answer(api, version)


def shown(value: Any) -> str:
    """Fields that have their default are left out."""
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        usual = dict(
            zip(names[len(names) - len(value.__struct_defaults__) :], value.__struct_defaults__, strict=True)
        )
        parts = [
            f"{name}={shown(getattr(value, name))}"
            for name in names
            if name not in usual or getattr(value, name) != usual[name]
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, ApiError):
        return f"{value.code.name} {value.message}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(key)}: {shown(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(shown, value)) + "]"
    return repr(value)


ACL = Acl(
    resource_type=2,
    resource_name="t",
    pattern_type=3,
    principal="User:a",
    host="h",
    operation=4,
    permission_type=3,
)
FILTER = AclFilter(
    resource_type=2, resource_name="t", pattern_type=4, principal="User:a", host="h", operation=5
)
PLACES = [("t", 0), ("t", 1), ("u", 1)]
RESOURCES = [
    ConfigResource(TOPIC_RESOURCE, "t"),
    ConfigResource(GROUP_RESOURCE, "u"),
    ConfigResource(BROKER_RESOURCE, "2"),
    ConfigResource(BROKER_RESOURCE, ""),
    ConfigResource(BROKER_LOGGER_RESOURCE, "1"),
]
CHANGES = [
    ConfigChange(
        resource=resource,
        ops=(ConfigOp(kind=OpKind.SET, name="k", value="v"), ConfigOp(kind=OpKind.DELETE, name="l")),
    )
    for resource in RESOURCES
]
QUOTAS = QuotaChange(
    entity=(("user", "ann"), ("client-id", None)),
    ops=(QuotaOp(key="producer_byte_rate", value=7.5), QuotaOp(key="consumer_byte_rate", value=None)),
)
GROWTH = [TopicGrowth(name="t", count=4, assignments=((1, 2), (2, 3))), TopicGrowth(name="u", count=9)]
NEW = [
    NewTopic(name="t", partitions=3, replication_factor=2, configs=(("k", "v"),)),
    NewTopic(name="u", assignments=((1, 2), (3, 4))),
]
MOVES = [
    WantedReplicas(topic="t", partition=0, replicas=(1, 2)),
    WantedReplicas(topic="u", partition=1, replicas=None),
    WantedReplicas(topic="t", partition=1, replicas=(3,)),
]
UPDATES = [
    FeatureUpdate(name="t", level=3, change=LevelChange.SAFE_DOWNGRADE),
    FeatureUpdate(name="u", level=4),
]
COMMITTED = {place: groups.Committed(offset=5 * at, metadata="") for at, place in enumerate(PLACES[1:])}
Call = Callable[[Any], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "list groups": groups.list_groups,
    "describe a group": lambda c: groups.describe_group(c, "g"),
    "committed offsets": lambda c: groups.committed_offsets(c, "g"),
    "commit offsets": lambda c: groups.commit_offsets(c, "g", {("t", 0): 5, ("u", 1): 6, ("t", 1): 7}),
    "delete a group": lambda c: groups.delete_group(c, "g"),
    "delete offsets": lambda c: groups.delete_offsets(c, "g", PLACES),
    "list topics": topics.list_topics,
    "describe all topics": topics.describe_topics,
    "describe topics": lambda c: topics.describe_topics(c, ["u", "t", "u"]),
    "create topics": lambda c: topics.create_topics(c, NEW),
    "validate topics": lambda c: topics.create_topics(c, NEW[:1], validate_only=True),
    "delete topics": lambda c: topics.delete_topics(c, ["u", "t"]),
    "delete no topics": lambda c: topics.delete_topics(c, []),
    "create partitions": lambda c: topics.create_partitions(c, GROWTH),
    "validate partitions": lambda c: topics.create_partitions(c, GROWTH[:1], validate_only=True),
    "list transactions": transactions.list_transactions,
    "list old transactions": lambda c: transactions.list_transactions(
        c, states=("Ongoing",), producer_ids=(3, 4), longer_than_ms=0
    ),
    "describe a transaction": lambda c: transactions.describe_transaction(c, "x"),
    "describe producers": lambda c: transactions.describe_producers(c, PLACES),
    "describe a broker's producers": lambda c: transactions.describe_producers(c, PLACES, broker=2),
    "find hanging transactions": lambda c: transactions.find_hanging(
        c, PLACES, broker=2, silent_since_ms=10_000
    ),
    "abort a transaction": lambda c: transactions.abort_transaction(
        c, ("t", 1), producer_id=5, producer_epoch=6, coordinator_epoch=7
    ),
    "abort a first transaction": lambda c: transactions.abort_transaction(
        c, ("t", 1), producer_id=5, producer_epoch=6, coordinator_epoch=-1
    ),
    "list brokers": cluster.list_brokers,
    "unregister a broker": lambda c: cluster.unregister_broker(c, 7),
    "describe the quorum": cluster.describe_quorum,
    "describe voters": cluster.describe_voters,
    "add a voter": lambda c: cluster.add_voter(c, ADDITION),
    "remove a voter": lambda c: cluster.remove_voter(c, REMOVAL),
    "describe features": cluster.describe_features,
    "update features": lambda c: cluster.update_features(c, UPDATES),
    "validate features": lambda c: cluster.update_features(c, UPDATES[:1], validate_only=True),
    "elect preferred leaders": lambda c: cluster.elect_leaders(c, unclean=False, partitions=PLACES),
    "elect any leaders": lambda c: cluster.elect_leaders(c, unclean=True, partitions=None),
    "describe configs": lambda c: configs.describe_configs(c, RESOURCES),
    "describe whole configs": lambda c: configs.describe_configs(c, RESOURCES, all_keys=True),
    "groups with configs": lambda c: configs.configured_names(c, GROUP_RESOURCE),
    "metrics with configs": lambda c: configs.configured_names(c, CLIENT_METRICS_RESOURCE),
    "alter configs": lambda c: configs.alter_configs(c, CHANGES),
    "validate configs": lambda c: configs.alter_configs(c, CHANGES[:1], validate_only=True),
    "create acls": lambda c: access.create_acls(c, [ACL, ACL]),
    "list acls": lambda c: access.list_acls(c, FILTER),
    "list all acls": lambda c: access.list_acls(c, AclFilter()),
    "delete acls": lambda c: access.delete_acls(c, FILTER),
    "delete a credential": lambda c: access.delete_scram(c, "ann", Mechanism.SCRAM_SHA_512),
    "describe users": lambda c: access.describe_users(c, ["ann", "bob"]),
    "describe all users": access.describe_users,
    "alter quotas": lambda c: access.alter_quotas(c, QUOTAS),
    "validate quotas": lambda c: access.alter_quotas(c, QUOTAS, validate_only=True),
    "describe quotas": lambda c: access.describe_quotas(
        c, QuotaFilter(parts=(("user", "ann"), ("client-id", None), ("ip", ...)), strict=True)
    ),
    "create a token": lambda c: access.create_token(c, owner=None, renewers=["User:b"], max_lifetime_ms=None),
    "create another's token": lambda c: access.create_token(
        c, owner="User:a", renewers=[], max_lifetime_ms=9
    ),
    "renew a token": lambda c: access.renew_token(c, b"h", None),
    "renew a token for a while": lambda c: access.renew_token(c, b"h", 9),
    "expire a token": lambda c: access.expire_token(c, b"h", None),
    "expire a token later": lambda c: access.expire_token(c, b"h", 9),
    "describe tokens": lambda c: access.describe_tokens(c, ["User:a", "User:b"]),
    "describe all tokens": access.describe_tokens,
    "list moves": replicas.list_moves,
    "list moves if allowed": replicas.ongoing_moves,
    "move replicas": lambda c: replicas.alter_reassignments(c, MOVES),
    "move as many replicas": lambda c: replicas.alter_reassignments(c, MOVES[:1], keeps_factor=True),
    "leaders": lambda c: partition_logs.leaders_of(c, ["t", "u", "t"]),
    "places by leader": lambda c: partition_logs.by_leader(c, [*PLACES, ("t", 9), ("strange", 0)]),
    "log offsets": lambda c: partition_logs.log_offsets(
        c, {("t", 0): partition_logs.LATEST, ("u", 1): 77, ("t", 1): -2}
    ),
    "log directories": lambda c: replicas.describe_log_dirs(c, [2, 1]),
    "log directories of topics": lambda c: replicas.describe_log_dirs(c, [1], {"t": (0, 1), "u": (1,)}),
    "move to a directory": lambda c: replicas.alter_replica_log_dirs(c, 2, "/d", "t", [0, 1]),
    "partitions of topics": lambda c: groups.partitions_of(
        c, [("u", [1, 7]), ("t", None), ("strange", None)]
    ),
    **{
        f"plan {aim.value}": lambda c, aim=aim: groups.plan_reset(  # type: ignore[misc]
            c,
            groups.Goal(aim=aim, value=6, given=dict.fromkeys(PLACES, 8)),
            PLACES,
            COMMITTED,
        )
        for aim in groups.Aim
    },
}
KINDS = {
    "answered": ((0,), False),
    "refused": ((ErrorCode.CLUSTER_AUTHORIZATION_FAILED,), False),
    "refused in part": ((0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), False),
    "old": ((0,), True),
}


async def test_calls_are_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for module in (transactions, partition_logs):
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    lines: list[str] = []
    for name, call in CALLS.items():
        for kind, (codes, old) in KINDS.items():
            client = Cluster(codes, old=old)
            try:
                outcome = f"gives {shown(await call(client))}"
            except ApiError as error:
                outcome = f"raises {shown(error)}"
            lines += [f"{name}, {kind}", *(f"    {line}" for line in [*client.lines, outcome])]
    actual = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite"):
        RECORDED.write_text(actual, encoding="utf-8")
    assert actual == RECORDED.read_text(encoding="utf-8"), "review: pytest with --rewrite"


async def test_a_mechanism_that_this_release_does_not_know_is_left_out() -> None:
    kinds: Any = DescribeUserScramCredentialsResponse
    known = kinds.CredentialInfo(mechanism=Mechanism.SCRAM_SHA_512, iterations=8192)
    newer = kinds.CredentialInfo(mechanism=99, iterations=4096)
    users = {"ann": (newer, known), "bob": (newer,)}

    class Newer(Cluster):
        async def ask(self, body: Any, **how: Any) -> Any:
            return kinds(
                results=tuple(
                    kinds.DescribeUserScramCredentialsResult(user=user, credential_infos=infos)
                    for user, infos in users.items()
                )
            )

    found = await access.describe_users(Newer((0,), old=False))  # type: ignore[arg-type]
    assert [(each.user, each.iterations) for each in found] == [
        ("ann", ((Mechanism.SCRAM_SHA_512, 8192),)),
        ("bob", ()),
    ]


async def test_a_source_of_settings_that_this_release_does_not_know_counts_as_the_file() -> None:
    """A newer Kafka has sources that are not known here: the value is shown, but not as set at runtime."""
    kinds: Any = DescribeConfigsResponse
    synonym = kinds.DescribeConfigsSynonym(name="log.retention.ms", value="1", source=99)
    entry = kinds.DescribeConfigsResourceResult(
        name="retention.ms", value="1", config_source=99, synonyms=(synonym,)
    )

    class Newer(Cluster):
        async def ask(self, body: Any, **how: Any) -> Any:
            return kinds(
                results=(
                    kinds.DescribeConfigsResult(
                        resource_type=TOPIC_RESOURCE, resource_name="orders", configs=(entry,)
                    ),
                )
            )

    topic = ConfigResource(TOPIC_RESOURCE, "orders")
    client: Any = Newer((0,), old=False)
    (everything,) = await configs.describe_configs(client, [topic], all_keys=True)
    assert [(each.name, each.value, each.source) for each in everything.entries] == [
        ("retention.ms", "1", ConfigSource.STATIC_BROKER_CONFIG)
    ]
    assert [each.source for each in everything.entries[0].synonyms] == [ConfigSource.STATIC_BROKER_CONFIG]
    (set_on_the_topic,) = await configs.describe_configs(client, [topic])
    assert set_on_the_topic.entries == ()


@pytest.mark.parametrize(("ago_ms", "is_alive"), [(0, True), (899, True), (900, False), (None, False)])
async def test_a_replica_is_alive_if_the_leader_has_heard_from_it_lately_and_the_leader_is(
    monkeypatch: pytest.MonkeyPatch, ago_ms: int | None, is_alive: bool
) -> None:
    """By the leader's clock, which may be any other than this one's. Version 0 has no times."""

    def replica(node_id: int, heard_ms: int | None) -> ReplicaStatus:
        return ReplicaStatus(
            node_id=node_id,
            directory_id=b"",
            log_end_offset=0,
            lag=0,
            last_fetch_ms=heard_ms,
            last_caught_up_ms=None,
            status="",
        )

    async def quorum(client: object) -> DescribeQuorumResponse:
        heard_ms, own_ms = (None, None) if ago_ms is None else (5_000 - ago_ms, 5_000)
        return DescribeQuorumResponse(
            cluster_id="c",
            leader_id=1,
            leader_epoch=3,
            high_watermark=0,
            voters=(replica(2, heard_ms), replica(1, own_ms)),
            observers=(replica(3, heard_ms),),
        )

    monkeypatch.setattr(cluster, "describe_quorum", quorum)
    client: Any = Cluster((0,), old=False)
    found = await cluster.describe_voters(client, silent_ms=900)
    alive = {each.node_id: each.is_alive for each in (*found.voters, *found.observers)}
    assert alive == {1: True, 2: is_alive, 3: is_alive}
    assert [each.last_fetch_ms for each in found.voters if each.node_id == 1] == [None]
