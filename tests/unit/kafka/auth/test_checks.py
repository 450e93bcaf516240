"""Every API asks for rights: the whole table, with a principal that has none, and with single rights."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from metaquorum.listeners import rights as table
from metaquorum.listeners.access.guard import Rights, guarded
from metaquorum.listeners.access.steps import refused_item
from metaquorum.listeners.rights import CHECKS
from metaquorum.listeners.services import Client, EndConnection, Later, Offered
from metaquorum.metadata.authorizer import Authorizer
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import Acl, MetadataImage
from metaquorum.metadata.settings.acls import Operation, PatternType, Permission, ResourceType
from metaquorum.network.deferred import Deferred
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from metaquorum.wire.schema import Field, StructSchema
from metaquorum.wire.table import API_BY_NAME, request_type, response_type

OPEN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
OPEN |= {"DescribeCluster", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"}
"""DescribeCluster hides only which operations are allowed; the controller checks whose a token is."""
OWN = [("CreateDelegationToken", version) for version in range(3)]
"""Versions in which a token is always the client's own."""
CODES = {29, 30, 31, 53, 65}
NOBODY = Client(listener="KAFKA", address="10.0.0.1", principal="User:nobody")
ROOT = structs.replace(NOBODY, principal="User:root")
HIDDEN = "hidden"


def sample(schema: StructSchema, version: int, text: str) -> Any:
    """A message with one of everything."""
    values = {
        each.name: value(each, version, text)
        for each in schema.fields
        if each.since <= version and (each.until is None or version <= each.until)
    }
    return schema.cls(**values)


def value(field: Field, version: int, text: str) -> Any:
    kind = field.type.removeprefix("[]")
    one: Any
    if field.struct is not None:
        one = sample(field.struct, version, text)
    else:
        one = {
            "string": text,
            "bytes": text.encode(),
            "records": b"",
            "uuid": bytes(16),
            "bool": False,
            "float64": 1.0,
        }.get(kind, field.default if field.name in ("replica_id", "acks") else 0)
    return (one,) if field.type.startswith("[]") else one


def values_in(item: Any) -> list[tuple[str, Any]]:
    if isinstance(item, tuple):
        return [found for each in item for found in values_in(each)]
    if isinstance(item, msgspec.Struct):
        return [
            found
            for name in item.__struct_fields__
            for found in [(name, getattr(item, name)), *values_in(getattr(item, name))]
        ]
    return []


def tells_nothing(part: Any) -> bool:
    return getattr(part, "error_message", None) == ""


class Handler:
    def __init__(self, api: str, version: int) -> None:
        self.bodies: list[Any] = []
        self._answer = sample(response_type(API_BY_NAME[api].key).schema, version, HIDDEN)

    def __call__(self, request: codec.Request, client: Client) -> Any:
        self.bodies.append(request.body)
        return self._answer


def ask(
    api: str, version: int, client: Client, image: MetadataImage | None = None
) -> tuple[Any, Handler, Any]:
    key = API_BY_NAME[api].key
    body = sample(request_type(key).schema, version, "asked")
    if api == "Produce":
        body = msgspec.structs.replace(body, acks=1)
    if api == "Fetch":
        body = msgspec.structs.replace(
            body, replica_id=-1, replica_state=msgspec.structs.replace(body.replica_state, replica_id=-1)
        )
    handler = Handler(api, version)
    rights = Rights(
        authorizer=Authorizer(super_users=["User:root"]),
        image=lambda: image or MetadataImage(),
        checks=CHECKS,
    )
    offered = guarded({api: Offered(version, version, handler)}, rights)[api]
    request = codec.Request(header=codec.RequestHeader(key, version, 7, "me"), body=body, end=0)
    answer = offered.handle(request, client)
    # It can be sent in this version.
    b"".join(bytes(each) for each in codec.encode_response(key, version, 7, answer))
    return answer, handler, body


VERSIONS = [(api.name, version) for api in API_BY_NAME.values() for version in api.versions]


def test_every_api_has_a_row_and_every_row_an_api() -> None:
    missing = set(CHECKS) ^ set(API_BY_NAME)
    assert not missing, f"CHECKS (listeners/rights.py) needs a row for each API: {missing}"
    with pytest.raises(KeyError, match=r"Unheard: CHECKS \(listeners/rights.py\) must say"):
        guarded(
            {"Unheard": Offered(0, 0, lambda request, client: None)},
            Rights(authorizer=None, image=MetadataImage, checks=CHECKS),
        )


@pytest.mark.parametrize(
    ("api", "version"), [each for each in VERSIONS if each[0] not in OPEN and each not in OWN]
)
def test_who_has_no_rights_learns_and_changes_nothing(api: str, version: int) -> None:
    answer, handler, _ = ask(api, version, NOBODY)
    found = values_in(answer)
    shown = {name for name, each in found if each == HIDDEN}
    if api == "Metadata":
        shown -= {"host", "rack", "cluster_id"}
    assert shown <= {"error_message", "unknown_state_filters"}, shown
    codes = {each for name, each in found if name.endswith("error_code")}
    # Java clients would show an empty message in place of what the code says.
    parts = [answer, *(each for _, each in found if isinstance(each, msgspec.Struct))]
    parts += [part for _, each in found if isinstance(each, tuple) for part in each]
    assert not [each for each in parts if getattr(each, "error_code", 0) and tells_nothing(each)]
    listing = api in ("ListGroups", "ListTransactions")
    if not listing and not (api == "DescribeLogDirs" and version < 3):
        assert codes & CODES, f"anybody may ask {api}: CHECKS lacks a right, or OPEN says that it needs none"
    # What still reaches the handler names nothing that was asked for.
    for body in handler.bodies:
        assert (
            "asked"
            not in {
                each
                for name, each in values_in(body)
                if name in ("name", "topic", "group_id", "transactional_id")
            }
            or listing
        )


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_super_user_is_not_in_the_way(api: str, version: int) -> None:
    answer, handler, body = ask(api, version, ROOT)
    assert handler.bodies == [body] or api == "Metadata"
    told = {each for _, each in values_in(answer)} | {HIDDEN}
    assert not told & {code for code in CODES if code > 50}


def test_the_page_names_the_command_that_prints_every_api_once() -> None:
    page = Path(__file__).parents[4] / "docs/security.md"
    assert f"`python -m {table.__name__}`" in page.read_text("utf-8")
    rows = table.checks_table().splitlines()[2:]
    named = [api for row in rows for api in row.split(" | ")[1][:-2].split(", ")]
    assert sorted(named) == sorted(CHECKS)


def image(*acls: tuple[ResourceType, str, Operation]) -> MetadataImage:
    empty = MetadataImage()
    builder = empty.acls.builder()
    for number, (resource, name, operation) in enumerate(acls):
        acl = Acl(
            resource_type=resource,
            resource_name=name,
            pattern_type=PatternType.LITERAL,
            principal="User:nobody",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        builder.put(bytes([number]), acl)
    return replace(empty, acls=builder.freeze())


def rights_of(*acls: tuple[ResourceType, str, Operation], creates: bool = False) -> Rights:
    return Rights(authorizer=Authorizer(), image=lambda: image(*acls), creates_topics=creates, checks=CHECKS)


def run(api: str, version: int, body: Any, rights: Rights, answer: Any = None) -> tuple[Any, list[Any]]:
    seen: list[Any] = []

    async def handler(request: codec.Request, client: Client) -> Any:
        seen.append(request.body)
        return answer(request.body) if callable(answer) else answer

    offered = guarded({api: Offered(0, version, handler)}, rights)[api]
    request = codec.Request(
        header=codec.RequestHeader(API_BY_NAME[api].key, version, 1, None), body=body, end=0
    )
    found = offered.handle(request, NOBODY)

    async def wait() -> Any:
        return await found

    return (asyncio.run(wait()) if inspect.isawaitable(found) else found), seen


TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def test_refused_topics_keep_their_places() -> None:
    from metaquorum.wire.messages import ListOffsetsRequest, ListOffsetsResponse

    topics = tuple(
        ListOffsetsRequest.ListOffsetsTopic(
            name=name, partitions=(ListOffsetsRequest.ListOffsetsPartition(partition_index=3),)
        )
        for name in "abc"
    )

    def found(body: Any) -> Any:
        made: Any = ListOffsetsResponse.ListOffsetsTopicResponse
        return ListOffsetsResponse(topics=tuple(made(name=each.name) for each in body.topics))

    answer, seen = run(
        "ListOffsets", 6, ListOffsetsRequest(topics=topics), rights_of((TOPIC, "b", Operation.WRITE)), found
    )
    assert [each.name for each in seen[0].topics] == ["b"]
    assert [each.name for each in answer.topics] == ["a", "b", "c"]
    part = answer.topics[0].partitions[0]
    assert (part.partition_index, part.error_code, part.offset) == (3, 29, -1)


def test_refused_topics_come_last_where_not_every_topic_has_a_result() -> None:
    from metaquorum.wire.messages import ListOffsetsRequest, ListOffsetsResponse

    topics = tuple(ListOffsetsRequest.ListOffsetsTopic(name=name) for name in "abcd")
    made: Any = ListOffsetsResponse.ListOffsetsTopicResponse
    rights = rights_of((TOPIC, "b", Operation.DESCRIBE), (TOPIC, "d", Operation.DESCRIBE))
    for results, names in ((("d",), "dac"), ((), "ac"), (("b", "d"), "abcd"), (("b", "d", "e"), "bdeac")):
        found = ListOffsetsResponse(topics=tuple(made(name=each) for each in results))
        answer, _ = run("ListOffsets", 6, ListOffsetsRequest(topics=topics), rights, found)
        assert "".join(each.name for each in answer.topics) == names


def produce(acks: int, *names: str, transactional_id: str | None = None) -> Any:
    from metaquorum.wire.messages import ProduceRequest

    part = ProduceRequest.PartitionProduceData(index=0, records=b"")
    return ProduceRequest(
        acks=acks,
        transactional_id=transactional_id,
        topic_data=tuple(
            ProduceRequest.TopicProduceData(name=name, partition_data=(part,)) for name in names
        ),
    )


def test_a_produce_without_answers_ends_the_connection() -> None:
    rights = rights_of((TOPIC, "mine", Operation.WRITE))
    for names in (("other",), ("mine", "other")):
        with pytest.raises(EndConnection):
            run("Produce", 9, produce(0, *names), rights)
    assert run("Produce", 9, produce(0, "mine"), rights)[0] is None


def test_a_transactional_produce_needs_its_id_too() -> None:
    rights = rights_of((TOPIC, "mine", Operation.WRITE))
    answer, seen = run("Produce", 9, produce(1, "mine", transactional_id="t"), rights)
    assert answer.responses[0].partition_responses[0].error_code == 53 and not seen


def test_metadata_hides_and_refuses() -> None:
    from metaquorum.wire.messages import MetadataRequest, MetadataResponse

    made: Any = MetadataResponse.MetadataResponseTopic
    rights = rights_of((TOPIC, "mine", Operation.READ))
    every = MetadataResponse(topics=(made(name="mine"), made(name="other")))
    answer, _ = run("Metadata", 9, MetadataRequest(topics=None), rights, every)
    assert [(each.name, each.error_code) for each in answer.topics] == [("mine", 0)]
    asked = tuple(MetadataRequest.MetadataRequestTopic(name=name) for name in ("other", "mine"))
    only = MetadataResponse(topics=(made(name="mine"),))
    answer, seen = run("Metadata", 9, MetadataRequest(topics=asked), rights, only)
    assert [each.name for each in seen[0].topics] == ["mine"]
    assert {(each.name, each.error_code) for each in answer.topics} == {("mine", 0), ("other", 29)}
    # Version 0 asks for all with an empty list: what is left of a refused list must not become that.
    answer, _ = run("Metadata", 0, MetadataRequest(topics=asked[:1]), rights, every)
    assert [(each.name, each.error_code) for each in answer.topics] == [("other", 29)]
    # What does not exist yet is created for whom may.
    created = run(
        "Metadata", 9, MetadataRequest(topics=asked[1:]), structs.replace(rights, creates_topics=True), only
    )
    assert created[0].topics[0].error_code == 29


def test_a_hidden_topic_that_is_asked_for_by_id_is_one_that_no_topic_has() -> None:
    from metaquorum.wire.messages import MetadataRequest, MetadataResponse

    ids = {name: bytes([number]) * 16 for number, name in enumerate(("hidden", "seen"), 1)}
    topics = MetadataImage().topics.builder()
    for name, topic_id in ids.items():
        topics.add_topic(topic_id, name)
    found = replace(image((TOPIC, "seen", Operation.DESCRIBE)), topics=topics.freeze())
    asked = tuple(
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=each) for each in (*ids.values(), b"9" * 16)
    )
    answer, (passed,) = run(
        "Metadata",
        12,
        MetadataRequest(topics=asked),
        Rights(authorizer=Authorizer(), image=lambda: found, checks=CHECKS),
        MetadataResponse(topics=()),
    )
    assert passed.topics == asked[1:], "the controller says itself that there is no such id"
    (refused,) = answer.topics
    told = ErrorCode(refused.error_code), refused.name, refused.topic_id
    assert told == (ErrorCode.UNKNOWN_TOPIC_ID, None, ids["hidden"])


def test_the_operations_that_a_client_may_do() -> None:
    from metaquorum.wire.messages import MetadataRequest, MetadataResponse

    made: Any = MetadataResponse.MetadataResponseTopic
    found = MetadataResponse(
        topics=(made(name="mine", topic_authorized_operations=3576),), cluster_authorized_operations=8096
    )
    rights = rights_of((TOPIC, "mine", Operation.READ))
    answer, _ = run("Metadata", 9, MetadataRequest(topics=None), rights, found)
    assert answer.topics[0].topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert answer.cluster_authorized_operations == 0
    rights = rights_of((CLUSTER, "kafka-cluster", Operation.ALTER))
    answer, _ = run("Metadata", 9, MetadataRequest(topics=None), rights, found)
    assert answer.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE


def test_one_refused_topic_spoils_the_others_of_a_transaction() -> None:
    from metaquorum.wire.messages import AddPartitionsToTxnRequest

    made = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    body = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_topics=(made(name="mine", partitions=(0,)), made(name="other", partitions=(1,))),
    )
    rights = rights_of(
        (TOPIC, "mine", Operation.WRITE), (ResourceType.TRANSACTIONAL_ID, "t", Operation.WRITE)
    )
    answer, seen = run("AddPartitionsToTxn", 3, body, rights)
    codes = [
        (each.name, each.results_by_partition[0].partition_error_code)
        for each in answer.results_by_topic_v3_and_below
    ]
    assert codes == [("mine", 55), ("other", 29)] and not seen


@pytest.mark.parametrize(
    ("acl", "code"),
    [
        ((TOPIC, "any", Operation.WRITE), 0),
        ((CLUSTER, "kafka-cluster", Operation.IDEMPOTENT_WRITE), 0),
        ((TOPIC, "any", Operation.READ), 31),
    ],
)
def test_producer_ids(acl: tuple[ResourceType, str, Operation], code: int) -> None:
    from metaquorum.wire.messages import InitProducerIdRequest, InitProducerIdResponse

    answer, _ = run(
        "InitProducerId",
        4,
        InitProducerIdRequest(transactional_id=None),
        rights_of(acl),
        InitProducerIdResponse(),
    )
    assert answer.error_code == code


@pytest.mark.parametrize(
    ("kind", "name", "acl", "code"),
    [
        (2, "t", (TOPIC, "t", Operation.DESCRIBE_CONFIGS), 0),
        (2, "t", (CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS), 29),
        (4, "1", (CLUSTER, "kafka-cluster", Operation.ALTER_CONFIGS), 0),
        (4, "1", (TOPIC, "1", Operation.DESCRIBE_CONFIGS), 31),
        (32, "g", (GROUP, "g", Operation.DESCRIBE_CONFIGS), 0),
        (32, "g", (TOPIC, "g", Operation.DESCRIBE_CONFIGS), 30),
    ],
)
def test_configurations_are_of_what_they_configure(
    kind: int, name: str, acl: tuple[ResourceType, str, Operation], code: int
) -> None:
    from metaquorum.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

    resource = DescribeConfigsRequest.DescribeConfigsResource(resource_type=kind, resource_name=name)
    result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=kind, resource_name=name)
    answer, _ = run(
        "DescribeConfigs",
        4,
        DescribeConfigsRequest(resources=(resource,)),
        rights_of(acl),
        DescribeConfigsResponse(results=(result,)),
    )
    found = answer.results[0]
    assert (found.resource_type, found.resource_name, found.error_code) == (kind, name, code)


def test_a_follower_needs_the_clusters_action() -> None:
    from metaquorum.wire.messages import FetchRequest, FetchResponse

    topic = FetchRequest.FetchTopic(topic="t", partitions=(FetchRequest.FetchPartition(partition=2),))
    body = FetchRequest(replica_id=1, topics=(topic,))
    answer, seen = run("Fetch", 11, body, rights_of((TOPIC, "t", Operation.READ)), FetchResponse())
    part = answer.responses[0].partitions[0]
    assert (part.partition_index, part.error_code, seen) == (2, 31, [])


@pytest.mark.parametrize("right", [True, False])
def test_the_session_of_a_follower(right: bool) -> None:
    """It names nothing and reads on by the cluster's action alone, not by rights on topics."""
    from metaquorum.wire.messages import FetchRequest, FetchResponse

    made: Any = FetchResponse.FetchableTopicResponse
    part: Any = FetchResponse.PartitionData
    answer = FetchResponse(responses=(made(topic="t", partitions=(part(partition_index=4, records=b"x"),)),))
    acl = (CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION) if right else (TOPIC, "t", Operation.READ)
    found, _ = run("Fetch", 11, FetchRequest(session_id=5, replica_id=1), rights_of(acl), answer)
    kept = found.responses[0].partitions[0]
    assert (kept.error_code, kept.records) == ((0, b"x") if right else (31, b""))


def test_a_session_that_lost_its_right_reads_nothing_more() -> None:
    from metaquorum.wire.messages import FetchRequest, FetchResponse

    made: Any = FetchResponse.FetchableTopicResponse
    part: Any = FetchResponse.PartitionData
    answer = FetchResponse(
        responses=(made(topic="t", partitions=(part(partition_index=4, records=b"secret"),)),)
    )
    found, _ = run("Fetch", 11, FetchRequest(session_id=5), rights_of(), answer)
    kept = found.responses[0].partitions[0]
    assert (kept.partition_index, kept.error_code, kept.records) == (4, 29, b"")


def test_a_fetch_that_waited_is_answered_by_the_rights_of_then_and_needs_no_task() -> None:
    from metaquorum.wire.messages import FetchRequest, FetchResponse

    images = {True: image((TOPIC, "t", Operation.READ)), False: image()}
    may_read = True
    waiting: Deferred[Any] = Deferred()
    rights = Rights(authorizer=Authorizer(), image=lambda: images[may_read], checks=CHECKS)
    offered = guarded({"Fetch": Offered(4, 12, lambda *_: Later(waiting, lambda found: found))}, rights)[
        "Fetch"
    ]
    topic = FetchRequest.FetchTopic(topic="t", partitions=(FetchRequest.FetchPartition(partition=4),))
    header = codec.RequestHeader(API_BY_NAME["Fetch"].key, 12, 1, None)
    request = codec.Request(header=header, body=FetchRequest(topics=(topic,)), end=0)
    later = offered.handle(request, NOBODY)
    assert type(later) is Later and later.deferred is waiting
    made: Any = FetchResponse.FetchableTopicResponse
    part: Any = FetchResponse.PartitionData(partition_index=4, records=b"x")
    answer = FetchResponse(responses=(made(topic="t", partitions=(part,)),))
    assert later.finish(answer) is answer
    may_read = False
    kept = later.finish(answer).responses[0].partitions[0]
    assert (kept.partition_index, kept.error_code, kept.records) == (4, 29, b"")


@pytest.mark.parametrize(("names", "code"), [(("t",), 0), (("t", "u"), 29), (None, 0), ((), 0)])
def test_who_subscribes_to_a_topic_may_describe_it(names: tuple[str, ...] | None, code: int) -> None:
    from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

    rights = rights_of((ResourceType.GROUP, "g", Operation.READ), (TOPIC, "t", Operation.READ))
    body = ConsumerGroupHeartbeatRequest(
        group_id="g", subscribed_topic_names=names, subscribed_topic_regex="u.*"
    )
    found, seen = run("ConsumerGroupHeartbeat", 1, body, rights, ConsumerGroupHeartbeatResponse())
    assert (found.error_code, len(seen)) == (code, code == 0)


@pytest.mark.parametrize("target", [False, True])
def test_a_group_is_shown_to_who_may_describe_the_topics_of_its_members(target: bool) -> None:
    from metaquorum.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

    kinds: Any = ConsumerGroupDescribeResponse

    def group(name: str, topic: str) -> Any:
        held = kinds.Assignment(topic_partitions=(kinds.TopicPartitions(topic_name=topic),))
        none = kinds.Assignment()
        member = kinds.Member(
            member_id="m", assignment=none if target else held, target_assignment=held if target else none
        )
        return kinds.DescribedGroup(group_id=name, members=(member,))

    rights = rights_of(
        *((ResourceType.GROUP, name, Operation.DESCRIBE) for name in "gh"), (TOPIC, "t", Operation.DESCRIBE)
    )
    answer = kinds(groups=(group("g", "t"), group("h", "u")))
    body = ConsumerGroupDescribeRequest(group_ids=("g", "h"))
    found, _ = run("ConsumerGroupDescribe", 1, body, rights, answer)
    shown, hidden = found.groups
    assert shown == answer.groups[0]
    assert (hidden.group_id, hidden.error_code, hidden.members) == ("h", 29, ())


# ---- OffsetFetch: groups, and topics in them

MINE = ((GROUP, "g", Operation.DESCRIBE), (TOPIC, "mine", Operation.DESCRIBE))


def offset_topics(kind: Any, part: Any, *names: str) -> tuple[Any, ...]:
    """Stored offsets, one of each topic."""
    return tuple(kind(name=name, partitions=(part(partition_index=1, committed_offset=7),)) for name in names)


@pytest.mark.parametrize("named", [("other", "mine"), ("mine",), ("other",), None])
@pytest.mark.parametrize("right", [True, False])
def test_offsets_of_one_group_are_fetched_by_what_may_be_seen(named: Any, right: bool) -> None:
    from metaquorum.wire.messages import OffsetFetchRequest, OffsetFetchResponse

    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = None if named is None else tuple(topic(name=name, partition_indexes=(1,)) for name in named)
    kind = OffsetFetchResponse.OffsetFetchResponseTopic
    part = OffsetFetchResponse.OffsetFetchResponsePartition

    def stored(body: Any) -> OffsetFetchResponse:
        names = ("mine", "other") if body.topics is None else [each.name for each in body.topics]
        return OffsetFetchResponse(topics=offset_topics(kind, part, *names))

    answer, seen = run(
        "OffsetFetch",
        7,
        OffsetFetchRequest(group_id="g", topics=asked),
        rights_of(*(MINE if right else MINE[1:])),
        stored,
    )
    found = {
        each.name: [(one.partition_index, one.error_code, one.committed_offset) for one in each.partitions]
        for each in answer.topics
    }
    if not right:
        assert answer.error_code == 30 and not seen
        assert found == {name: [(1, 30, -1)] for name in named or ()}
        return
    assert answer.error_code == 0
    refused = {name: [(1, 29, -1)] for name in named or () if name == "other"}
    visible = {} if named == ("other",) else {"mine": [(1, 0, 7)]}
    assert found == {**visible, **refused}
    (body,) = seen
    assert body.group_id == "g"
    names = None if body.topics is None else [each.name for each in body.topics]
    assert names == (None if named is None else [name for name in named if name == "mine"])


@pytest.mark.parametrize("named", [("other", "mine"), ("mine",), None])
def test_offsets_of_several_groups_are_fetched_by_what_may_be_seen(named: Any) -> None:
    from metaquorum.wire.messages import OffsetFetchRequest, OffsetFetchResponse

    request, response = OffsetFetchRequest, OffsetFetchResponse
    topic = request.OffsetFetchRequestTopics
    asked = None if named is None else tuple(topic(name=name, partition_indexes=(1,)) for name in named)
    groups = tuple(request.OffsetFetchRequestGroup(group_id=name, topics=asked) for name in ("h", "g"))

    def stored(body: Any) -> OffsetFetchResponse:
        kind, part = response.OffsetFetchResponseTopics, response.OffsetFetchResponsePartitions
        return OffsetFetchResponse(
            groups=tuple(
                response.OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=offset_topics(
                        kind,
                        part,
                        *(
                            ("mine", "other")
                            if group.topics is None
                            else [each.name for each in group.topics]
                        ),
                    ),
                )
                for group in body.groups
            )
        )

    answer, (body,) = run("OffsetFetch", 9, OffsetFetchRequest(groups=groups), rights_of(*MINE), stored)
    assert [each.group_id for each in body.groups] == ["g"]
    found = {each.group_id: each for each in answer.groups}
    assert sorted(found) == ["g", "h"] and len(answer.groups) == 2
    assert (found["h"].error_code, found["h"].topics) == (30, ())
    parts = {
        each.name: [(one.partition_index, one.error_code, one.committed_offset) for one in each.partitions]
        for each in found["g"].topics
    }
    refused = {"other": [(1, 29, -1)]} if named and "other" in named else {}
    assert (found["g"].error_code, parts) == (0, {"mine": [(1, 0, 7)], **refused})


# ---- groups whose topics are hidden, and followers of the newer kind


@pytest.mark.parametrize(("names", "code"), [(("mine",), 0), (("mine", "other"), 29), ((), 0), (None, 0)])
def test_a_subscription_to_a_hidden_topic_is_refused(names: Any, code: int) -> None:
    from metaquorum.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

    rights = rights_of((GROUP, "g", Operation.READ), MINE[1])
    body = ConsumerGroupHeartbeatRequest(group_id="g", subscribed_topic_names=names)
    answer, seen = run("ConsumerGroupHeartbeat", 0, body, rights, ConsumerGroupHeartbeatResponse())
    assert answer.error_code == code and len(seen) == (code == 0)


@pytest.mark.parametrize(
    ("held", "target", "shown"), [("mine", "mine", True), ("other", "mine", False), ("mine", "other", False)]
)
def test_a_group_with_a_hidden_topic_is_not_shown(held: str, target: str, shown: bool) -> None:
    from metaquorum.wire.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse

    kind = ConsumerGroupDescribeResponse

    def assigned(name: str) -> Any:
        return kind.Assignment(topic_partitions=(kind.TopicPartitions(topic_name=name, partitions=(0,)),))

    member = kind.Member(assignment=assigned(held), target_assignment=assigned(target))
    group = kind.DescribedGroup(group_id="g", group_state="Stable", members=(member,))
    body = ConsumerGroupDescribeRequest(group_ids=("g",))
    answer, _ = run("ConsumerGroupDescribe", 1, body, rights_of(*MINE), kind(groups=(group,)))
    (found,) = answer.groups
    assert (found == group) is shown
    if not shown:
        assert (found.group_id, found.error_code, found.members) == ("g", 29, ())
        assert "may not describe a topic of the group's members" in (found.error_message or "")


@pytest.mark.parametrize("version", [14, 15])
def test_a_follower_is_one_wherever_it_says_so(version: int) -> None:
    from metaquorum.wire.messages import FetchRequest, FetchResponse

    state = FetchRequest.ReplicaState(replica_id=0, replica_epoch=3)
    follower: dict[str, Any] = {"replica_state": state} if version >= 15 else {"replica_id": 0}
    body = FetchRequest(session_id=5, session_epoch=2, **follower)
    topic = FetchResponse.FetchableTopicResponse(
        topic="t", partitions=(FetchResponse.PartitionData(records=b"x"),)
    )
    answer = FetchResponse(responses=(topic,))
    acl = (CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION)
    for rights, code in ((rights_of(acl), 0), (rights_of((TOPIC, "t", Operation.READ)), 31)):
        found, _ = run("Fetch", version, body, rights, answer)
        assert found.responses[0].partitions[0].error_code == code


def test_an_id_that_is_hidden_is_deleted_as_one_that_no_topic_has() -> None:
    """Even the number of results, their messages and what is said of an id named twice are the same."""
    ids = {name: bytes([number]) * 16 for number, name in enumerate(("hidden", "seen", "own"), 1)}
    absent = bytes([9]) * 16
    topics = MetadataImage().topics.builder()
    for name, topic_id in ids.items():
        topics.add_topic(topic_id, name)
    acls = [(TOPIC, "seen", Operation.DESCRIBE), (TOPIC, "own", Operation.DELETE)]
    found = replace(image(*acls), topics=topics.freeze())
    rights = Rights(authorizer=Authorizer(), image=lambda: found, checks=CHECKS)
    State = DeleteTopicsRequest.DeleteTopicState
    Result = DeleteTopicsResponse.DeletableTopicResult

    def controller(body: Any) -> Any:
        given = [each.topic_id for each in body.topics]
        known = {topic_id: name for name, topic_id in ids.items()}
        return DeleteTopicsResponse(
            responses=tuple(
                Result(name=known[each], topic_id=each)
                if each in known
                else Result(
                    name=None, topic_id=each, error_code=given.count(each), error_message=uuid_to_text(each)
                )
                for each in dict.fromkeys(given)
            )
        )

    def answers(*topic_ids: bytes) -> list[tuple[Any, ...]]:
        asked = tuple(State(name=None, topic_id=each) for each in topic_ids)
        answer, _ = run("DeleteTopics", 6, DeleteTopicsRequest(topics=asked), rights, controller)
        return [(each.topic_id, each.name, each.error_code, each.error_message) for each in answer.responses]

    for topic_ids in ((ids["hidden"], absent), (absent, absent, ids["hidden"], ids["hidden"])):
        told = {topic_id: more for topic_id, *more in answers(*topic_ids)}
        hidden, other = told[ids["hidden"]], told[absent]
        assert hidden[:2] == other[:2]
        assert (hidden[2], other[2]) == (uuid_to_text(ids["hidden"]), uuid_to_text(absent))
    (refused, deleted) = answers(ids["seen"], ids["own"])
    assert refused[2] == ErrorCode.TOPIC_AUTHORIZATION_FAILED and deleted == (ids["own"], "own", 0, None)


def test_a_refusal_repeats_what_it_is_about() -> None:
    """The whole entity of a quota, or a client could not tell which of several was refused."""
    quotas, configs = AlterClientQuotasRequest, AlterConfigsRequest
    entity = (("user", "alice"), ("client-id", None))
    entry = quotas.EntryData(
        entity=tuple(quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=(quotas.OpData(key="producer_byte_rate", value=1.0),),
    )
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused = refused_item("AlterClientQuotas", "entries", entry, code)
    assert [(each.entity_type, each.entity_name) for each in refused.entity] == [*entity]
    assert (refused.error_code, refused.error_message) == (code, None)
    config = configs.AlterableConfig(name="retention.ms", value="1")
    resource = configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=(config,))
    refused = refused_item("AlterConfigs", "responses", resource, code)
    assert (refused.resource_type, refused.resource_name, refused.error_code) == (2, "t", code)
