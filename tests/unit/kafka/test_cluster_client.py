"""The client of a whole cluster: whom it asks, what it asks again, and when it gives up."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from metaquorum.clients.admin.cluster import describe_quorum, update_features
from metaquorum.clients.kafka.cluster import Coordinator, KafkaClient, common_refusal
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.clients.search import ClientError
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.sasl import PlainExchange
from metaquorum.listeners.services import EndConnection, Features
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION, METADATA_VERSION
from metaquorum.metadata.requests.common import CONTROLLERS
from metaquorum.metadata.requests.settings import FeatureUpdate, LevelChange
from metaquorum.wire.messages import (
    DeleteTopicsResponse,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesResponse,
)
from tests.conformance.exchanges import until
from tests.unit.kafka.kafka_node import FakeNode, running
from tests.unit.server.nodes import silent_port

HOST = "127.0.0.1"
UNREGISTER = UnregisterBrokerRequest(broker_id=7)


def refusing(*codes: ErrorCode) -> Any:
    """Answers UnregisterBroker with these codes, one after another, and then with the last one."""
    left = list(codes)

    def answer(_: Any) -> UnregisterBrokerResponse:
        return UnregisterBrokerResponse(error_code=left.pop(0) if len(left) > 1 else left[0])

    return answer


async def test_the_controller_is_found_where_a_broker_does_not_forward() -> None:
    first = FakeNode({"UnregisterBroker": refusing(ErrorCode.NOT_CONTROLLER)})
    other = FakeNode({"UnregisterBroker": refusing(ErrorCode.NOT_CONTROLLER)})
    controller = FakeNode({"UnregisterBroker": refusing(ErrorCode.NONE)})
    async with running(first, other, controller) as servers:
        async with KafkaClient(servers.split(",")[0], timeout_ms=60_000) as client:
            assert (await client.ask(UNREGISTER)).error_code == 0
            assert (await client.ask(UNREGISTER)).error_code == 0
    assert (first.asked, other.asked, controller.asked) == (
        ["UnregisterBroker", "Metadata"],
        [],
        ["UnregisterBroker"] * 2,
    )


async def test_a_dead_node_and_a_silent_one_leave_time_for_another() -> None:
    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    silent = FakeNode({"UnregisterBroker": never})
    good = FakeNode({"UnregisterBroker": refusing(ErrorCode.NONE)})
    with silent_port() as port:
        async with running(silent, good) as servers:
            async with KafkaClient(f"127.0.0.1:{port},{servers}", timeout_ms=3_000) as client:
                assert (await client.ask(UNREGISTER)).error_code == 0
    assert silent.asked == ["UnregisterBroker"]


async def test_a_fenced_broker_is_not_believed() -> None:
    fenced = FakeNode({"Metadata": lambda _: MetadataResponse()})
    good = FakeNode({})
    async with running(fenced, good) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            assert list(await client.brokers()) == [0, 1]
    assert fenced.asked == ["Metadata"]


@pytest.mark.parametrize("key_type", [0, 1])
@pytest.mark.parametrize("find", [(0, 3), (4, 6)])
async def test_a_coordinator_is_found_and_found_again(find: tuple[int, int], key_type: int) -> None:
    homes = [0, 0, 1]

    def found(body: Any) -> FindCoordinatorResponse:
        at = {"host": "127.0.0.1", "port": nodes[homes.pop(0)].port}
        if find[0] >= 4:
            assert (body.key_type, body.coordinator_keys) == (key_type, ("g",))
            one = FindCoordinatorResponse.Coordinator(
                key="g", node_id=1, **at, error_code=0, error_message=None
            )
            return FindCoordinatorResponse(coordinators=(one,))
        assert (body.key_type, body.key) == (key_type, "g")
        return FindCoordinatorResponse(**at)

    def beat(code: ErrorCode) -> Any:
        return lambda _: HeartbeatResponse(error_code=code)

    nodes = [
        FakeNode(
            {"FindCoordinator": found, "Heartbeat": beat(ErrorCode.NOT_COORDINATOR)}, FindCoordinator=find
        ),
        FakeNode({"FindCoordinator": found, "Heartbeat": beat(ErrorCode.NONE)}, FindCoordinator=find),
    ]
    body = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with running(*nodes) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            assert (await client.ask(body, target=Coordinator(key_type, "g"))).error_code == 0
    assert nodes[1].asked.count("Heartbeat") == 1


async def test_a_coordinator_that_is_refused_is_an_error() -> None:
    answer = FindCoordinatorResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message="not you")
    node = FakeNode({"FindCoordinator": lambda _: answer, "Heartbeat": None}, FindCoordinator=(0, 3))  # type: ignore[dict-item]
    async with running(node) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            with pytest.raises(ApiError, match="GROUP_AUTHORIZATION_FAILED: not you"):
                await client.ask(HeartbeatRequest(group_id="g"), target=Coordinator(0, "g"))


async def test_the_broker_that_is_named_is_asked() -> None:
    nodes = [FakeNode({"ListGroups": lambda _: ListGroupsResponse()}) for _ in range(3)]
    async with running(*nodes) as servers:
        async with KafkaClient(servers.split(",")[0], timeout_ms=60_000) as client:
            await client.ask(ListGroupsRequest(), target=2)
            await client.ask(ListGroupsRequest(), target=1)
    assert [each.asked for each in nodes] == [["Metadata"], ["ListGroups"], ["ListGroups"]]


async def test_a_broker_that_moved_is_looked_for_again() -> None:
    nodes = [FakeNode({"ListGroups": lambda _: ListGroupsResponse()}) for _ in range(3)]
    first, _, moved = nodes

    def answer(body: Any) -> MetadataResponse:
        told = first.brokers(body)
        first.peers = nodes
        return told

    first.handlers["Metadata"] = answer
    async with running(*nodes) as servers:
        with silent_port() as port:
            before = FakeNode({})
            before.port = port
            first.peers = [*nodes[:2], before]
            async with KafkaClient(servers.split(",")[0], timeout_ms=20_000) as client:
                await client.ask(ListGroupsRequest(), target=2)
            await until(lambda: not (first.open or moved.open))  # its connections end with it
    assert (first.asked, moved.asked) == (["Metadata"] * 2, ["ListGroups"])


async def test_a_controller_that_is_named_is_found_at_controllers() -> None:
    def controllers(body: Any) -> DescribeClusterResponse:
        assert body.endpoint_type == CONTROLLERS
        Broker = DescribeClusterResponse.DescribeClusterBroker
        brokers = tuple(Broker(broker_id=at, host=HOST, port=each.port) for at, each in enumerate(nodes))
        return DescribeClusterResponse(controller_id=1, brokers=brokers)

    def handlers(code: ErrorCode) -> dict[str, Any]:
        unused: Any = None
        return {
            "DescribeCluster": controllers,
            "FetchSnapshot": unused,
            "UnregisterBroker": refusing(code),
            "ListGroups": lambda _: ListGroupsResponse(),
        }

    nodes = [FakeNode(handlers(code)) for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)]
    async with running(*nodes) as servers:
        async with KafkaClient(servers.split(",")[0], timeout_ms=60_000) as client:
            assert (await client.ask(UNREGISTER)).error_code == 0
            await client.ask(ListGroupsRequest(), target=0)
    assert [each.asked for each in nodes] == [
        ["UnregisterBroker", "DescribeCluster", "ListGroups"],
        ["UnregisterBroker"],
    ]


async def test_the_leader_describes_the_quorum_where_another_controller_is_asked() -> None:
    """Kafka's controllers refuse the partition, not the request."""
    part = DescribeQuorumResponse.PartitionData

    def described(code: ErrorCode) -> Any:
        topic = DescribeQuorumResponse.TopicData(partitions=(part(error_code=code, leader_id=1),))
        return lambda _: DescribeQuorumResponse(topics=(topic,))

    def controllers(_: Any) -> DescribeClusterResponse:
        Broker = DescribeClusterResponse.DescribeClusterBroker
        brokers = tuple(Broker(broker_id=at, host=HOST, port=each.port) for at, each in enumerate(nodes))
        return DescribeClusterResponse(controller_id=1, brokers=brokers)

    unused: Any = None
    codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
    nodes = [
        FakeNode({"DescribeQuorum": described(code), "DescribeCluster": controllers, "FetchSnapshot": unused})
        for code in codes
    ]
    async with running(*nodes) as servers:
        first = servers.split(",")[0]
        async with KafkaClient(first, timeout_ms=60_000, asks_brokers=False) as client:
            answer = await client.ask(DescribeQuorumRequest())
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        async with KafkaClient(first, timeout_ms=60_000) as client:
            answer = await client.ask(DescribeQuorumRequest())
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [each.asked for each in nodes] == [
        ["DescribeQuorum", "DescribeCluster", "DescribeQuorum"],
        ["DescribeQuorum"],
    ]


@pytest.mark.parametrize(
    ("newest", "finalized", "directory_id", "level"),
    [
        (21, {}, b"d" * 16, 1),  # a controller of 3.9 at 1: its features leave kraft.version out
        (21, {}, bytes(16), 0),  # at 0
        (21, {KRAFT_VERSION: 1}, b"d" * 16, 1),  # a broker of 3.9
        (21, {KRAFT_VERSION: 1}, bytes(16), 0),  # a level that 3.9's leader has recorded without effect
        (29, {}, b"d" * 16, 0),  # ours at 0: its static voters have directories, too
        (29, {KRAFT_VERSION: 1}, b"d" * 16, 1),
        (19, {}, bytes(16), 0),  # 3.7
    ],
)
async def test_the_level_of_kraft_version_is_known_at_every_release(
    newest: int, finalized: dict[str, int], directory_id: bytes, level: int
) -> None:
    part = DescribeQuorumResponse.PartitionData
    voter = DescribeQuorumResponse.ReplicaState(replica_id=1, replica_directory_id=directory_id)
    topic = DescribeQuorumResponse.TopicData(partitions=(part(leader_id=1, current_voters=(voter,)),))
    node = FakeNode(
        {
            "DescribeQuorum": lambda _: DescribeQuorumResponse(topics=(topic,)),
            "DescribeCluster": lambda _: DescribeClusterResponse(cluster_id="c"),
        }
    )
    node.features = Features(supported={METADATA_VERSION: (1, newest)}, finalized=finalized, epoch=1)
    async with running(node) as at, KafkaClient(at, timeout_ms=60_000, asks_brokers=False) as client:
        assert (await describe_quorum(client)).kraft_version == level


@pytest.mark.parametrize(
    ("name", "directory_id", "validate_only", "code"),
    [
        (KRAFT_VERSION, bytes(16), False, ErrorCode.FEATURE_UPDATE_FAILED),
        (KRAFT_VERSION, bytes(16), True, ErrorCode.NONE),
        (KRAFT_VERSION, b"d" * 16, False, ErrorCode.NONE),
        (METADATA_VERSION, bytes(16), False, ErrorCode.NONE),
    ],
)
async def test_an_upgrade_of_kraft_version_that_kafka_39_only_records_has_failed(
    name: str, directory_id: bytes, validate_only: bool, code: ErrorCode
) -> None:
    part = DescribeQuorumResponse.PartitionData
    voter = DescribeQuorumResponse.ReplicaState(replica_id=1, replica_directory_id=directory_id)
    topic = DescribeQuorumResponse.TopicData(partitions=(part(leader_id=1, current_voters=(voter,)),))
    changed = UpdateFeaturesResponse.UpdatableFeatureResult(feature=name)
    node = FakeNode(
        {
            "UpdateFeatures": lambda _: UpdateFeaturesResponse(results=(changed,)),
            "DescribeQuorum": lambda _: DescribeQuorumResponse(topics=(topic,)),
            "DescribeCluster": lambda _: DescribeClusterResponse(cluster_id="c"),
        }
    )
    update = FeatureUpdate(name=name, level=1, change=LevelChange.UPGRADE)
    async with running(node) as at, KafkaClient(at, timeout_ms=60_000, asks_brokers=False) as client:
        (result,) = await update_features(client, [update], validate_only=validate_only)
    assert (result.subject, result.error) == (name, code)


@pytest.mark.parametrize("knows_it", [True, False])
@pytest.mark.parametrize("asks_brokers", [True, False])
async def test_a_node_of_the_other_kind_is_named_as_such(asks_brokers: bool, knows_it: bool) -> None:
    """It refuses the request, or does not know it. One of the right kind is not called wrong for that."""
    found, wanted = ("controller", "broker") if asks_brokers else ("broker", "controller")
    for is_controller in (True, False):
        node: dict[str, Any] = {"FetchSnapshot": None} if is_controller else {}
        if knows_it:
            node["UnregisterBroker"] = refusing(ErrorCode.MISMATCHED_ENDPOINT_TYPE)
        async with running(FakeNode(node)) as at, KafkaClient(at, asks_brokers=asks_brokers) as client:
            if is_controller == asks_brokers:
                with pytest.raises(ApiError, match=f"{at} is a {found}: give .* of a {wanted} here$"):
                    await client.ask(UNREGISTER)
            elif knows_it:
                assert (await client.ask(UNREGISTER)).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            else:
                with pytest.raises(ApiError, match="does not offer UnregisterBroker"):
                    await client.ask(UNREGISTER)


async def test_a_node_that_says_wait_is_asked_again_and_no_other() -> None:
    nodes = [
        FakeNode({"UnregisterBroker": refusing(code, ErrorCode.NONE)})
        for code in (ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.NONE)
    ]
    async with running(*nodes) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            assert (await client.ask(UNREGISTER)).error_code == 0
    assert [each.asked for each in nodes] == [["UnregisterBroker"] * 2, []]


async def test_what_time_does_not_cure_is_not_asked_again() -> None:
    node = FakeNode({"ListGroups": lambda _: ListGroupsResponse(error_code=ErrorCode.INVALID_REQUEST)})
    async with running(node) as servers:
        async with KafkaClient(servers, timeout_ms=60_000) as client:
            assert (await client.ask(ListGroupsRequest())).error_code == ErrorCode.INVALID_REQUEST
            with pytest.raises(ApiError, match=r"UNSUPPORTED_VERSION: 127\.0\.0\.1:.*does not offer Unreg"):
                await client.ask(UNREGISTER)
            assert await client.version("UnregisterBroker") is None
            assert await client.version("ListGroups") == 5
    assert node.asked == ["ListGroups"]


async def test_a_refusal_that_lasts_is_the_answer_in_the_end() -> None:
    node = FakeNode({"UnregisterBroker": refusing(ErrorCode.REQUEST_TIMED_OUT)})
    async with running(node) as servers:
        async with KafkaClient(servers, timeout_ms=300) as client:
            answer = await client.ask(UNREGISTER)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(node.asked) > 1


async def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_what_was_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts: list[float] = []

    async def connection(_: KafkaClient, address: object, timeout_s: float) -> None:
        attempts.append(timeout_s)
        if len(attempts) == 1:
            await asyncio.sleep(0.06)
            raise ConnectionFailed("it closed the connection")
        await asyncio.sleep(timeout_s)
        raise TimeoutError

    monkeypatch.setattr(KafkaClient, "_connection", connection)
    async with KafkaClient("127.0.0.1:1", timeout_ms=100) as client:
        with pytest.raises(ClientError, match="it closed the connection"):
            await client.ask(UNREGISTER)


PLAIN = SaslRules(mechanisms=("PLAIN",), new_exchange=lambda _: PlainExchange({}), max_reauth_ms={})
MAY_NEED_A_LOGIN = (
    r": it closed the connection at the first request: it may require a login \(--command-config"
)


async def test_a_login_that_was_not_given_is_asked_for() -> None:
    wanting = FakeNode({"UnregisterBroker": refusing(ErrorCode.NONE)}, sasl=PLAIN)
    async with running(wanting) as at, KafkaClient(at, timeout_ms=10_000) as client:
        with pytest.raises(ClientError, match=f"{at}{MAY_NEED_A_LOGIN}"):
            await client.ask(UNREGISTER)


async def test_a_node_without_logins_is_found_beside_one_that_wants_one() -> None:
    wanting = FakeNode({"UnregisterBroker": refusing(ErrorCode.NONE)}, sasl=PLAIN)
    free = FakeNode({"UnregisterBroker": refusing(ErrorCode.NONE)})
    async with running(wanting, free) as at, KafkaClient(at, timeout_ms=60_000) as client:
        assert await client.ask(UNREGISTER) == UnregisterBrokerResponse()


class Closing(FakeNode):
    """Ends connections at a request, as many times as `left` says."""

    left = 0

    async def _answer(self, request: Any, client: Any) -> Any:
        if self.left:
            self.left -= 1
            raise EndConnection("it stops")
        return await super()._answer(request, client)


@pytest.mark.parametrize(("before", "closed"), [(0, 1), (1, 3)])
async def test_a_node_that_stops_is_not_taken_for_one_that_wants_a_login(before: int, closed: int) -> None:
    """It closes one connection at its first request, or one that has answered already and one more."""
    node = Closing({"UnregisterBroker": refusing(ErrorCode.NONE)})
    async with running(node) as at, KafkaClient(at, timeout_ms=60_000) as client:
        for _ in range(before):
            await client.ask(UNREGISTER)
        for _ in range(closed):
            node.left = 1 + before
            assert await client.ask(UNREGISTER) == UnregisterBrokerResponse()


async def test_nobody_there_is_one_line_in_time() -> None:
    began = time.monotonic()
    with silent_port() as port:
        async with KafkaClient(f"127.0.0.1:{port}", timeout_ms=200) as client:
            with pytest.raises(ClientError) as error:
                await client.ask(UNREGISTER)
    assert str(error.value) == (
        f"no node at 127.0.0.1:{port} answered within 200 ms (last: 127.0.0.1:{port}: connection refused: no "
        "process listens there); check that the cluster runs and that the addresses are right"
    )
    assert time.monotonic() - began < 60


def deleted(*codes: ErrorCode) -> DeleteTopicsResponse:
    Result = DeleteTopicsResponse.DeletableTopicResult
    return DeleteTopicsResponse(responses=tuple(Result(name="t", error_code=each) for each in codes))


@pytest.mark.parametrize(
    ("answer", "common"),
    [
        (deleted(), None),
        (deleted(ErrorCode.NONE), None),
        (deleted(ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
        (deleted(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), ErrorCode.NOT_CONTROLLER),
        (deleted(ErrorCode.NOT_CONTROLLER, ErrorCode.NONE), None),
        (deleted(ErrorCode.NONE, ErrorCode.NOT_CONTROLLER), None),
        (deleted(ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT), None),
        (ListGroupsResponse(error_code=15), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ListGroupsResponse(error_code=32_000), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ListGroupsResponse(), None),
    ],
)
def test_only_a_refusal_of_everything_is_asked_again(answer: Any, common: ErrorCode | None) -> None:
    """A change of which a part was made must not be repeated."""
    assert common_refusal(answer) is common
