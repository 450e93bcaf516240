"""Client quotas: which one counts, who shares it, how long a client waits, and that it does wait."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.listeners import quotas as module
from metaquorum.listeners.pending_requests import Spent, Timed, bounded, charge
from metaquorum.listeners.quotas import FETCH_BYTES, PRODUCE_BYTES, REQUEST_PERCENT, Quotas, QuotaWindows
from metaquorum.listeners.services import Client, Later
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.quotas import quota_of, sorted_entity
from metaquorum.network.deferred import Deferred
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BeginQuorumEpochRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    EndQuorumEpochRequest,
    EnvelopeRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    VoteRequest,
    WriteTxnMarkersRequest,
)
from tests.unit.kafka.test_connection import FIND_COORDINATOR, METADATA, Server, calling, serving, until


def image(**quotas: float) -> MetadataImage:
    """Quotas of producers by `user_client`; `any` is the default entity, nothing leaves a part out."""
    empty = MetadataImage()
    builder = empty.quotas.builder()
    for text, bound in quotas.items():
        user, _, client = text.partition("_")
        parts = {"user": user, "client-id": client}
        entity = {kind: None if name == "any" else name for kind, name in parts.items() if name}
        builder.put(sorted_entity(entity), {PRODUCE_BYTES: bound, FETCH_BYTES: bound})
    return replace(empty, quotas=builder.freeze())


def quotas_of(found: MetadataImage, **windows: int) -> Quotas:
    return Quotas(lambda: found, QuotaWindows(**windows))


ALL = {"a_x": 1, "a_any": 2, "a": 3, "any_x": 4, "any_any": 5, "any": 6, "_x": 7, "_any": 8}


@pytest.mark.parametrize(
    ("user", "client", "order"),
    [
        ("a", "x", ["a_x", "a_any", "a", "any_x", "any_any", "any", "_x", "_any"]),
        ("a", "y", ["a_any", "a", "any_any", "any", "_any"]),
        ("b", "x", ["any_x", "any_any", "any", "_x", "_any"]),
        ("b", "y", ["any_any", "any", "_any"]),
    ],
)
def test_the_most_special_quota_counts(user: str, client: str, order: list[str]) -> None:
    left = dict(ALL)
    for name in order:
        found = quota_of(image(**left), PRODUCE_BYTES, user, client)
        assert found is not None and found[0] == ALL[name], name
        del left[name]
    assert quotas_of(image(**left)).use(PRODUCE_BYTES, user, client, 1e12, 0) == 0


def test_a_client_waits_until_its_rate_is_what_it_may_be() -> None:
    quotas = quotas_of(image(a=100))
    # Ten windows may be used up at once.
    assert quotas.use(PRODUCE_BYTES, "a", "x", 1_000, 0) == 0
    assert quotas.use(PRODUCE_BYTES, "a", "x", 500, 0) == 5_000
    # After the wait it goes on, and the rate is kept.
    assert quotas.use(PRODUCE_BYTES, "a", "x", 0, 5_000) == 5_000
    assert quotas.use(PRODUCE_BYTES, "a", "x", 0, 15_000) == 0
    # Windows that are over count no more.
    assert quotas.use(PRODUCE_BYTES, "a", "x", 1_000, 30_000) == 0


def test_clients_share_what_is_theirs_and_nothing_else() -> None:
    quotas = quotas_of(image(a=100))
    assert quotas.use(PRODUCE_BYTES, "a", "x", 1_500, 0) > 0
    assert quotas.use(PRODUCE_BYTES, "a", "y", 0, 0) > 0, "all clients of a user"
    assert quotas.use(PRODUCE_BYTES, "b", "x", 1_500, 0) == 0, "another user has no quota"
    assert quotas.use(FETCH_BYTES, "a", "x", 1_000, 0) == 0, "another kind"
    each = quotas_of(image(any=100))
    assert each.use(PRODUCE_BYTES, "a", "x", 1_500, 0) > 0
    assert each.use(PRODUCE_BYTES, "b", "x", 1_000, 0) == 0, "a default is for each user"
    clients = quotas_of(image(_x=100))
    assert clients.use(PRODUCE_BYTES, "a", "x", 1_500, 0) > 0
    assert clients.use(PRODUCE_BYTES, "b", "x", 0, 0) > 0, "all users of a client id"


def test_what_is_kept_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CLIENTS", 3)
    quotas = quotas_of(image(any=100))
    for number in range(9):
        quotas.use(PRODUCE_BYTES, f"u{number}", "x", 1, 0)
        quotas.use(PRODUCE_BYTES, "u0", "x", 1, 0)
    kept = [(PRODUCE_BYTES, f"u{number}", None) for number in (7, 8, 0)]
    assert list(quotas._rates) == kept, "those that were used last"


@pytest.mark.parametrize(("own", "waits"), [(None, [0, 0, 1_000]), (1.0, [0] * 3), (0.1, [0, 1_000, 1_000])])
def test_connections_of_an_address(own: float | None, waits: list[int]) -> None:
    empty = MetadataImage()
    builder = empty.quotas.builder()
    builder.put((("ip", None),), {"connection_creation_rate": 0.2})
    if own is not None:
        builder.put((("ip", "1.1.1.1"),), {"connection_creation_rate": own})
    quotas = quotas_of(replace(empty, quotas=builder.freeze()))
    assert [quotas.connect("1.1.1.1", 0) for _ in waits] == waits
    assert quotas.connect("2.2.2.2", 0) == 0


@pytest.mark.parametrize("own", [None, 2.0])
def test_a_connection_that_is_refused_does_not_count(own: float | None) -> None:
    """Else an address that goes on trying would never get in."""
    empty = MetadataImage()
    builder = empty.quotas.builder()
    builder.put((("ip", None if own is None else "1.1.1.1"),), {"connection_creation_rate": own or 2.0})
    quotas = quotas_of(replace(empty, quotas=builder.freeze()), count=2, window_ms=10_000)
    taken = [quotas.connect("1.1.1.1", 0) for _ in range(20)]
    waits = [quotas.connect("1.1.1.1", 0) for _ in range(20)]
    assert taken == [0] * 20 and waits == [500] * 20
    assert [quotas.connect("1.1.1.1", 10_500) for _ in range(2)] == [0, 500]


ALICE = Client(listener="KAFKA", address="1.1.1.1", principal="User:a")


def charged(
    quotas: Quotas, key: int, body: object, answer: object, size: int, answered: int = 0
) -> tuple[int, object]:
    request = codec.Request(header=codec.RequestHeader(key, 9, 1, "x"), body=body, end=0)
    found = charge(quotas, ALICE, request, Spent(size, 0.001), answer, answered, 0)
    return found.wait_ms, found.answer


def test_a_produce_is_told_to_wait() -> None:
    quotas = quotas_of(image(a=100))
    wait_ms, answer = charged(quotas, 0, ProduceRequest(), ProduceResponse(), 1_500)
    assert wait_ms == 5_000 and answer == ProduceResponse(throttle_time_ms=5_000)
    longer = ProduceResponse(throttle_time_ms=9_000)
    assert charged(quotas_of(image(a=100)), 0, ProduceRequest(), longer, 1_500) == (9_000, longer)
    # One that asks for no answer waits as well.
    assert charged(quotas, 0, ProduceRequest(), None, 1) == (5_010, None)


def test_the_controller_may_say_how_long_a_client_waits() -> None:
    answer = CreateTopicsResponse(throttle_time_ms=700)
    assert charged(quotas_of(image(a=100)), 19, CreateTopicsRequest(), answer, 10) == (700, answer)


def test_a_fetch_over_its_quota_has_its_records_and_waits_afterwards() -> None:
    quotas = quotas_of(image(a=100))
    full = FetchResponse(responses=(FetchResponse.FetchableTopicResponse(topic="t"),))
    assert charged(quotas, 1, FetchRequest(), full, 10, 1_000) == (0, full)
    wait_ms, answer = charged(quotas, 1, FetchRequest(), full, 10, 500)
    assert wait_ms == 5_000 and answer == replace(full, throttle_time_ms=5_000)


def asked(quotas: Quotas, body: FetchRequest, now_ms: int = 0, client: Client | None = None) -> FetchRequest:
    """What is left of a fetch."""
    request = codec.Request(header=codec.RequestHeader(1, 9, 1, "x"), body=body, end=0)
    found: FetchRequest = bounded(quotas, client or ALICE, request, now_ms).body
    return found


def test_a_fetch_asks_for_what_its_quota_leaves() -> None:
    quotas = quotas_of(image(a=100))
    body = FetchRequest(max_bytes=5_000, min_bytes=600)
    assert asked(quotas, body) == replace(body, max_bytes=1_000)
    assert asked(quotas, replace(body, max_bytes=900)).max_bytes == 900
    quotas.use(FETCH_BYTES, "a", "x", 800, 0)
    assert asked(quotas, body) == replace(body, max_bytes=200, min_bytes=200)
    quotas.use(FETCH_BYTES, "a", "x", 800, 0)
    for now_ms, left in ((0, 0), (6_000, 0), (10_900, 0), (11_000, 1_000)):
        # One byte: a fetch of an empty log waits as ever.
        assert asked(quotas, body, now_ms) == replace(body, max_bytes=left, min_bytes=min(600, max(left, 1)))
    assert asked(quotas, body, client=replace(ALICE, principal="User:b")) == body, "without a quota"
    follower = replace(body, replica_id=3)
    assert asked(quotas, follower) == follower
    request = codec.Request(header=codec.RequestHeader(3, 9, 1, "x"), body=MetadataRequest(), end=0)
    assert bounded(quotas, ALICE, request, 0) is request


@pytest.mark.parametrize(("batch", "rate"), [(1_000, 300), (40_000, 300), (10, 5_000)])
def test_a_consumer_with_a_backlog_gets_what_its_quota_allows(batch: int, rate: int) -> None:
    """Whatever the size of its batches, of which an answer has one at least."""
    quotas, now_ms, total, end_ms = quotas_of(image(a=rate)), 0, 0, 1_000_000
    while now_ms < end_ms:
        room = asked(quotas, FetchRequest(max_bytes=50_000_000), now_ms).max_bytes
        size = max(1, room // batch) * batch
        wait_ms = quotas.use(FETCH_BYTES, "a", "x", size, now_ms)
        total, now_ms = total + size, now_ms + max(wait_ms, 1)
    assert 0.7 * rate < total / (end_ms / 1000) < 1.3 * rate


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (1, FetchRequest(replica_id=3)),
        (1, FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=3))),
        (27, WriteTxnMarkersRequest()),
        (52, VoteRequest()),
        (53, BeginQuorumEpochRequest()),
        (54, EndQuorumEpochRequest()),
        (59, FetchSnapshotRequest()),
        (56, AlterPartitionRequest()),
        (58, EnvelopeRequest()),
        (62, BrokerRegistrationRequest()),
        (63, BrokerHeartbeatRequest()),
        (67, AllocateProducerIdsRequest()),
        (70, ControllerRegistrationRequest()),
        (73, AssignReplicasToDirsRequest()),
    ],
)
def test_what_nodes_ask_of_each_other_is_not_counted(key: int, body: object) -> None:
    quotas = quotas_of(image(a=100))
    full = FetchResponse(responses=(FetchResponse.FetchableTopicResponse(topic="t"),))
    assert charged(quotas, key, body, full, 10, 10_000) == (0, full)
    assert charged(quotas, 1, FetchRequest(), full, 10, 1_000) == (0, full)
    quotas = quotas_of(request_percent(1e-9))
    assert charged(quotas, key, body, full, 10)[0] == 0 < charged(quotas, 1, FetchRequest(), full, 10)[0]


def request_percent(bound: float) -> MetadataImage:
    empty = MetadataImage()
    builder = empty.quotas.builder()
    builder.put((("user", None),), {REQUEST_PERCENT: bound})
    return replace(empty, quotas=builder.freeze())


@pytest.mark.parametrize(
    ("principal", "client_id", "kind"),
    [("User:a", "x", "both"), ("User:a", "y", "user"), ("User:b", "x", "client"), ("User:b", "y", None)],
)
@pytest.mark.parametrize("what", ["time", "produce", "fetch"])
def test_the_one_who_asked_is_charged(principal: str, client_id: str, kind: str | None, what: str) -> None:
    """Not the one beside it: each quota allows another rate."""
    bounds = {"both": 1.0, "user": 2.0, "client": 4.0}
    empty = MetadataImage()
    builder = empty.quotas.builder()
    names = {"both": {"user": "a", "client-id": "x"}, "user": {"user": "a"}, "client": {"client-id": "x"}}
    key = {"time": REQUEST_PERCENT, "produce": PRODUCE_BYTES, "fetch": FETCH_BYTES}[what]
    for name, entity in names.items():
        builder.put(sorted_entity(dict(entity)), {key: bounds[name]})
    quotas = quotas_of(replace(empty, quotas=builder.freeze()), count=2, window_ms=600_000)
    client = Client(listener="KAFKA", address="1.1.1.1", principal=principal)
    api, body, answer = {
        "time": (3, MetadataRequest(topics=None), MetadataResponse()),
        "produce": (0, ProduceRequest(), ProduceResponse()),
        "fetch": (1, FetchRequest(), FetchResponse()),
    }[what]
    request = codec.Request(header=codec.RequestHeader(api, 9, 1, client_id), body=body, end=0)

    def charged_ms() -> int:
        # 36 s of the processor are 3,600 percent of a second; or so many bytes.
        spent = Spent(3_600 if what == "produce" else 0, 36.0 if what == "time" else 0.0)
        return charge(quotas, client, request, spent, answer, 3_600 if what == "fetch" else 0, 0).wait_ms

    # 3,600 in the 600 s of one window are 6 a second: more than each of the bounds.
    expected = 0 if kind is None else round(1000 * (3_600 / bounds[kind] - 600))
    limit = 600_000 if what == "time" else expected
    assert charged_ms() == min(expected, limit)


def test_requests_cost_time() -> None:
    quotas = quotas_of(request_percent(1.0))
    assert quotas.use(REQUEST_PERCENT, "a", "x", 9, 0) == 0
    assert quotas.use(REQUEST_PERCENT, "a", "x", 100, 0) == 1_000, "no longer than a window"


async def test_the_time_of_what_is_awaited_is_its_own_steps() -> None:
    async def work() -> str:
        for _ in range(3):
            await asyncio.sleep(0.01)
        return "done"

    spent = Spent(0)
    assert await Timed(work(), spent) == "done"
    assert 0 < spent.seconds < 0.01

    async def waits() -> None:
        await asyncio.sleep(60)

    task = asyncio.ensure_future(Timed(waits(), Spent(0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_must_wait_is_not_read() -> None:
    server = Server()
    server.config = dataclasses.replace(
        server.config, quotas=quotas_of(request_percent(1e-9), count=2, window_ms=150)
    )
    async with serving(server) as server, calling(server) as caller:
        begun = asyncio.get_running_loop().time()
        for number in range(3):
            caller.send(METADATA, 5, number, MetadataRequest(topics=None))
        first = await caller.receive(METADATA, 5)
        assert first.body.throttle_time_ms == 150 and len(server.asked) == 1
        await caller.receive(METADATA, 5)
        assert asyncio.get_running_loop().time() - begun >= 0.15


async def test_a_shorter_wait_ends_no_longer_one() -> None:
    """Requests that overlap are charged one by one."""
    async with serving(Server()) as server, calling(server) as caller:
        caller.send(METADATA, 5, 1, MetadataRequest(topics=None))
        await caller.receive(METADATA, 5)
        (connection,) = server.open
        begun = asyncio.get_running_loop().time()
        for wait_ms in (150, 1):
            connection._mute(wait_ms)
        caller.send(METADATA, 5, 2, MetadataRequest(topics=None))
        await caller.receive(METADATA, 5)
        assert asyncio.get_running_loop().time() - begun >= 0.15


async def test_a_connection_beyond_its_rate_is_closed_after_its_wait_and_never_answered() -> None:
    empty = MetadataImage()
    builder = empty.quotas.builder()
    builder.put((("ip", None),), {"connection_creation_rate": 1e-9})
    quotas = quotas_of(replace(empty, quotas=builder.freeze()), count=2, window_ms=150)
    server = Server()
    server.config = dataclasses.replace(server.config, quotas=quotas)
    async with serving(server) as server, calling(server) as caller:
        begun = asyncio.get_running_loop().time()
        caller.send(METADATA, 5, 1, MetadataRequest(topics=None))
        assert await caller.ended()
        assert asyncio.get_running_loop().time() - begun >= 0.14
        assert server.asked == []


async def test_an_answer_that_is_made_later_needs_no_task_and_its_making_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    gates: list[Deferred[FindCoordinatorResponse]] = []

    def finish(found: FindCoordinatorResponse) -> FindCoordinatorResponse:
        now_s[0] += 10
        return found

    def later(server: Server, request: codec.Request, client: Client) -> Later:
        gates.append(Deferred())
        return Later(gates[-1], finish)

    monkeypatch.setattr(Server, "find_coordinator", later)
    server = Server()
    server.config = dataclasses.replace(
        server.config, quotas=quotas_of(request_percent(50.0), count=2, window_ms=150)
    )
    async with serving(server) as server, calling(server) as caller:
        await until(lambda: server.open)
        tasks = asyncio.all_tasks()
        caller.send(FIND_COORDINATOR, 2, 1, FindCoordinatorRequest())
        await until(lambda: gates)
        assert asyncio.all_tasks() <= tasks
        gates[0].set_result(FindCoordinatorResponse())
        assert (await caller.receive(FIND_COORDINATOR, 2)).body.throttle_time_ms == 150


async def test_a_request_is_charged_by_the_loops_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    charges: list[tuple[int, int]] = []

    def noted(quotas: Any, client: Any, request: Any, spent: Any, answer: Any, size: int, now_ms: int) -> Any:
        charges.append((size, now_ms))
        return charge(quotas, client, request, spent, answer, size, now_ms)

    monkeypatch.setattr("metaquorum.listeners.connection.charge", noted)
    server = Server()
    server.config = dataclasses.replace(server.config, quotas=quotas_of(request_percent(1_000)))
    async with serving(server) as server, calling(server) as caller:
        begun_s = asyncio.get_running_loop().time()
        caller.send(METADATA, 5, 1, MetadataRequest(topics=None))
        await caller.receive(METADATA, 5)
        ((size, now_ms),) = charges
        assert 0 < size < 10_000
        assert begun_s * 1_000 - 1 <= now_ms <= asyncio.get_running_loop().time() * 1_000
