"""Where the admin client asks, when it asks again, and what it says in the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from metaquorum.clients.quorum.admin import AdminClient, BlockingClient
from metaquorum.clients.search import ClientError, parse_bootstrap
from metaquorum.controller.answers import not_controller
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.proto import admin_pb2 as admin
from metaquorum.proto import metadata_pb2 as common
from metaquorum.proto import metadata_pb2 as pb
from metaquorum.proto.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from metaquorum.proto.metadata_pb2_grpc import MetadataServicer, add_MetadataServicer_to_server
from metaquorum.rpc.channels import bind, new_server, open_channel
from metaquorum.rpc.messages.errors import Hints, error_from_pb, error_to_pb
from metaquorum.rpc.reach import status_text


class HostPort(NamedTuple):
    host: str
    port: int


class ScriptedAdmin(AdminServicer):
    """Answers DescribeQuorum with the next entry of its script; the last one stays."""

    def __init__(self) -> None:
        self.script: list[Callable[[], admin.DescribeQuorumResponse]] = []
        self.asked = 0

    async def DescribeQuorum(self, request: Any, context: Any) -> admin.DescribeQuorumResponse:
        self.asked += 1
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step()

    async def TransferLeadership(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.INTERNAL, "it broke")


@contextlib.asynccontextmanager
async def serving(*services: ScriptedAdmin) -> AsyncIterator[list[int]]:
    """Each service on a port of its own."""
    servers, ports = [], []
    for service in services:
        server = new_server()
        ports.append(bind(server, "127.0.0.1", 0, None))
        add_AdminServicer_to_server(service, server)
        await server.start()
        servers.append(server)
    try:
        yield ports
    finally:
        for server in servers:
            await server.stop(None)


def answer(leader_id: int) -> Callable[[], admin.DescribeQuorumResponse]:
    return lambda: admin.DescribeQuorumResponse(leader_id=leader_id)


def refusal(
    code: ErrorCode, hint: tuple[int, int] | None = None
) -> Callable[[], admin.DescribeQuorumResponse]:
    error = common.Error(code=code, name=code.name, message="no")
    if hint is not None:
        error.leader.CopyFrom(common.LeaderHint(id=hint[0], host="127.0.0.1", port=hint[1]))
    return lambda: admin.DescribeQuorumResponse(error=error)


def client_of(*ports: int, **more: Any) -> AdminClient:
    return AdminClient([("127.0.0.1", port) for port in ports], rng=random.Random(1), **more)


async def test_a_hint_is_followed_and_remembered() -> None:
    follower, leader = ScriptedAdmin(), ScriptedAdmin()
    leader.script = [answer(2)]
    async with serving(follower, leader) as ports, client_of(ports[0]) as client:
        follower.script = [refusal(ErrorCode.NOT_CONTROLLER, (2, ports[1]))]
        assert (await client.describe_quorum()).leader_id == 2
        assert (await client.describe_quorum()).leader_id == 2
    assert (follower.asked, leader.asked) == (1, 2)


async def test_two_followers_that_point_at_each_other_do_not_spin() -> None:
    one, two = ScriptedAdmin(), ScriptedAdmin()
    async with serving(one, two) as ports, client_of(*ports, timeout_ms=1_500) as client:
        one.script = [refusal(ErrorCode.NOT_CONTROLLER, (2, ports[1]))]
        two.script = [refusal(ErrorCode.NOT_CONTROLLER, (1, ports[0]))]
        with pytest.raises(ApiError) as refused:
            await client.describe_quorum()
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    assert one.asked + two.asked < 40


async def test_a_leader_without_grpc_ends_a_command_soon_and_a_node_waits_for_it() -> None:
    """Apache Kafka's controller leads: no node can say where it listens for gRPC."""
    follower = ScriptedAdmin()
    error = error_to_pb(not_controller(1, 2), Hints({}))
    assert error.message == "controller 1 is not the active one: use node 2 (no gRPC listener of it is known)"
    follower.script = [lambda: admin.DescribeQuorumResponse(error=error)]
    async with serving(follower) as ports:
        async with client_of(*ports, gives_up=True, timeout_ms=60_000) as client:
            with pytest.raises(ApiError, match="known\\): give --bootstrap-controllers"):
                await client.describe_quorum()
        asked = follower.asked
        async with client_of(*ports, timeout_ms=2_500) as client:
            with pytest.raises(ApiError, match=r"use node 2 \(no gRPC listener of it is known\)$"):
                await client.describe_quorum()
    assert 1 < asked < follower.asked


def test_a_leader_with_an_address_and_a_node_that_never_knows_one_are_named_as_they_are() -> None:
    text = "controller 1 is not the active one: use node 2"
    known = Hints({2: HostPort("h", 9)})
    assert error_to_pb(not_controller(1, 2), known).message == text
    assert error_to_pb(not_controller(1, 2)).message == text
    assert "gRPC" not in error_to_pb(not_controller(1, None), known).message


@pytest.mark.parametrize(
    "code", [ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER]
)
async def test_what_may_pass_is_asked_again(code: ErrorCode) -> None:
    service = ScriptedAdmin()
    service.script = [refusal(code), refusal(code), answer(1)]
    async with serving(service) as ports, client_of(*ports) as client:
        assert (await client.describe_quorum()).leader_id == 1
    assert service.asked == 3


@pytest.mark.parametrize(
    ("code", "first_asked"), [(ErrorCode.NOT_CONTROLLER, 1), (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 2)]
)
async def test_who_cannot_answer_is_passed_over_and_who_throttles_is_asked_again(
    code: ErrorCode, first_asked: int
) -> None:
    """Neither names another address."""
    first, second = ScriptedAdmin(), ScriptedAdmin()
    first.script, second.script = [refusal(code), answer(1)], [answer(2)]
    async with serving(first, second) as ports, client_of(*ports) as client:
        assert (await client.describe_quorum()).leader_id == (1 if first_asked == 2 else 2)
    assert (first.asked, second.asked) == (first_asked, 2 - first_asked)


async def test_what_will_not_pass_is_raised_at_once() -> None:
    service = ScriptedAdmin()
    service.script = [refusal(ErrorCode.INVALID_REQUEST)]
    async with serving(service) as ports, client_of(*ports) as client:
        with pytest.raises(ApiError) as refused:
            await client.describe_quorum()
    assert refused.value == ApiError(ErrorCode.INVALID_REQUEST, "no")
    assert service.asked == 1


async def test_an_address_that_is_dead_is_passed_over() -> None:
    gone, there = ScriptedAdmin(), ScriptedAdmin()
    there.script = [answer(4)]
    async with serving(gone) as dead:
        pass
    async with serving(there) as ports, client_of(dead[0], ports[0]) as client:
        assert (await client.describe_quorum()).leader_id == 4


async def test_a_single_shot_says_that_the_outcome_is_unknown() -> None:
    service = ScriptedAdmin()
    async with serving(service) as ports, client_of(*ports, attempts_max=1) as client:
        with pytest.raises(
            ClientError, match=r"INTERNAL: it broke\); the change may or may not have been made"
        ):
            await client.transfer_leadership(1)


async def test_the_blocking_client_is_the_same(tmp_path: Any) -> None:
    import asyncio

    service = ScriptedAdmin()
    service.script = [answer(4)]
    async with serving(service) as ports:

        def ask() -> int:
            with BlockingClient(f"127.0.0.1:{ports[0]}") as client:
                return client.call(lambda c: c.describe_quorum()).leader_id

        assert await asyncio.to_thread(ask) == 4


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap(" a:1, [::1]:2,a:1 ,") == (("a", 1), ("::1", 2))
    for text in ("", "a", "a:", ":1", "a:0", "a:70000", "a:x", "a..b:1", f"{'a' * 64}.b:1", "\udcff:1"):
        with pytest.raises(ClientError, match="write host:port"):
            parse_bootstrap(text)
    for text in ("a :1", "a b:1", "a:1 b:2", "a:1,b: 2", "a\t:1"):
        with pytest.raises(ClientError, match="has a blank in it: write host:port,host:port"):
            parse_bootstrap(text)


class Refusing(ScriptedAdmin):
    """Refuses every call for lack of a right."""

    async def DescribeQuorum(self, request: Any, context: Any) -> Any:
        self.asked += 1
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "User:x may not act")


async def test_a_right_that_is_refused_ends_a_command_s_call_at_once_and_a_node_asks_again() -> None:
    service = Refusing()
    async with serving(service) as (port,):
        for gives_up, timeout_ms, text in (
            (True, 600_000, f"^127.0.0.1:{port}: refused: User:x may not act$"),
            (False, 300, "no node at"),
        ):
            service.asked = 0
            client = AdminClient(f"127.0.0.1:{port}", timeout_ms=timeout_ms, gives_up=gives_up)
            async with client:
                with pytest.raises(ClientError, match=text):
                    await client.describe_quorum()
            assert (service.asked == 1) is gives_up


def test_an_error_code_from_the_future_keeps_its_name() -> None:
    error = error_from_pb(common.Error(code=30_000, name="NEWER", message="text"))
    assert (error.code, error.message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "NEWER: text")


UNRESOLVED = (
    "DNS resolution failed for nowhere",
    "errors resolving nowhere:1: [field:hostname lookup error:address lookup failed for nowhere:1: Domain"
    " name not found]",
)
"""gRPC's words for a name without an address, from its two resolvers."""


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to"
            " remote host: connect: Connection refused (111)",
            "not reachable (connection refused: no process listens there)",
        ),
        (
            "last error: UNKNOWN: ipv4:127.0.0.1:1: connection attempt timed out before receiving SETTINGS",
            "not reachable (it does not accept the connection: the process hangs, or a firewall"
            " drops the packets)",
        ),
        *((text, "not reachable (its host name cannot be resolved: correct it)") for text in UNRESOLVED),
    ],
)
def test_why_nobody_answers_is_said_without_the_librarys_own_words(details: str, told: str) -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None
    )
    assert status_text(error) == told


# A call whose message never comes: one that its caller cancelled is no fault, any other is refused.


NAME = "metaquorum.v1.Metadata/ListBrokers"
TOLD = f"a call of {NAME} has no message"


class Service(MetadataServicer):
    async def ListBrokers(self, request: Any, context: Any) -> pb.ListBrokersResponse:
        return pb.ListBrokersResponse()


async def test_only_a_call_that_is_not_cancelled_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "metaquorum.rpc.server")
    server = new_server()
    add_MetadataServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = open_channel("127.0.0.1", port, None)
    stream_unary: Any = channel.stream_unary
    open_call = stream_unary(f"/{NAME}")
    try:
        async with asyncio.timeout(20):
            for _ in range(5):
                cancelled = open_call()
                await asyncio.sleep(0.02)
                cancelled.cancel()
            empty = open_call()
            await empty.done_writing()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await empty
    finally:
        await channel.close(None)
        await server.stop(None)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and told[0].endswith(TOLD), told
