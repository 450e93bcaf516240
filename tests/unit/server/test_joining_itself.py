"""A controller that asks by itself to become a voter: when it asks, how often, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.clients.quorum.admin import AdminClient
from metaquorum.clients.quorum.nodes import NodeAnswer
from metaquorum.clients.search import Address
from metaquorum.controller.server import joining as module
from metaquorum.controller.server.joining import Joining
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import Voter, VoterEndpoint
from metaquorum.metadata.requests.common import AddRaftVoterRequest, RemoveRaftVoterRequest

ME = 3
VOTER = Voter(ME, bytes(range(16)), (VoterEndpoint("IN", "a", 1),))
ADDITION = AddRaftVoterRequest(voter=VOTER)
REMOVAL = RemoveRaftVoterRequest(voter_id=ME, voter_directory_id=bytes(16))


class Node:
    """`wanted`: what is to be asked for in turn, an exception is the quorum's answer to it. The node may join
    as long as there is more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *wanted: Any, **raft: Any) -> None:
        self.wanted = list(wanted)
        self.asked: list[Any] = []
        self.observes = True
        self.entry: Voter | None = None
        self.seen: list[tuple[Any, int]] = []
        self.described: list[list[Address]] = []
        self.client: Any = SimpleNamespace(describe_quorum=self._quorum)
        core: Any = SimpleNamespace(
            **{"node_id": ME, "voters": (1, 2), "kraft_version": 1, **raft},
            state=SimpleNamespace(config=SimpleNamespace(check_quorum_ms=7_000)),
        )
        monkeypatch.setattr(module.voters, "observes", lambda raft: self.observes)
        monkeypatch.setattr(module.voters, "may_join", lambda raft: bool(self.wanted))
        monkeypatch.setattr(module.voters, "how_to_join", lambda raft: "this is how")
        monkeypatch.setattr(module.voters, "Joiner", self._joiner)
        monkeypatch.setattr(module, "describe_nodes", self._describe)
        monkeypatch.setattr(module, "add_raft_voter", self._ask)
        monkeypatch.setattr(module, "remove_raft_voter", self._ask)
        monkeypatch.setattr(module.Backoff, "failed", lambda self, started: 0)
        self._make = lambda enabled: Joining(core, self.client, random.Random(1), None, enabled=enabled)

    def joining(self, enabled: bool) -> Joining:
        return self._make(enabled)

    def _joiner(self, raft: Any, *, silent_ms: int, timeout_ms: int) -> Any:
        assert silent_ms == 14_000
        return SimpleNamespace(entry=self.entry, wanted=self._wanted)

    async def _quorum(self) -> str:
        return "the quorum"

    async def _describe(self, addresses: Any, *, timeout_ms: int, tls: object) -> list[NodeAnswer]:
        assert timeout_ms == 1_000
        self.described.append(list(addresses))
        return [NodeAnswer(address=each, problem="silent") for each in addresses]

    def _wanted(self, now_ms: int, quorum: Any, found: Any) -> Any:
        self.seen.append((quorum, len(found)))
        first = self.wanted.pop(0)
        if isinstance(first, Exception):
            raise first
        return first

    async def _ask(self, client: Any, request: Any) -> None:
        self.asked.append(request)

    async def until_done(self, joining: Joining) -> None:
        async with asyncio.timeout(60):
            while joining._task is not None and not joining._task.done():
                await asyncio.wait([joining._task])


async def test_it_asks_until_it_is_a_voter_and_by_one_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    refused = ApiError(ErrorCode.REQUEST_TIMED_OUT, "later")
    node = Node(monkeypatch, "it is too far behind", refused, refused, REMOVAL, ADDITION)
    joining = node.joining(enabled=True)
    joining.poke()
    first = joining._task
    joining.poke()
    assert first is not None and joining._task is first
    await node.until_done(joining)
    assert node.asked == [REMOVAL, ADDITION]
    assert node.seen == [(None, 0)] * 5
    assert [each.message for each in caplog.records if each.name == module.__name__] == [
        "it is too far behind",
        "controller 3 is not a voter yet: REQUEST_TIMED_OUT: later",
        "controller 3: its entry with a directory that it lost was removed",
        "controller 3 is a voter",
    ]
    node.wanted.append(ADDITION)  # removed by an operator, say
    joining.poke()
    assert joining._task is not first
    await node.until_done(joining)
    assert node.asked == [REMOVAL, ADDITION, ADDITION]


async def test_an_entry_of_its_own_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, "wait")
    node.entry = VOTER
    joining = node.joining(enabled=True)
    joining.poke()
    await node.until_done(joining)
    assert node.seen == [("the quorum", 0)]


async def test_whoever_has_its_entry_is_asked_at_grpc_listeners_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listener of Kafka's protocol answers no call of gRPC, and would count as silent."""
    node = Node(monkeypatch, "wait")
    listeners = (("KAFKA", 1), ("GRPC", 2), ("CONTROLLER", 3), ("grpc_2", 4))
    endpoints = tuple(VoterEndpoint(name, "a", port) for name, port in listeners)
    node.entry = Voter(ME, VOTER.voter_directory_id, endpoints)
    joining = node.joining(enabled=True)
    joining.poke()
    await node.until_done(joining)
    assert node.described == [[("a", 2), ("a", 4)]]


async def test_it_waits_until_an_address_for_grpc_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = Node(monkeypatch, ADDITION)
    node.entry = VOTER
    asked = 0

    def addresses() -> list[Address]:
        nonlocal asked
        asked += 1
        if asked > 20:  # enough of waiting
            node.wanted.clear()
        return []

    node.client = AdminClient(addresses)
    joining = node.joining(enabled=True)
    joining.poke()
    await node.until_done(joining)
    assert joining._task is not None and joining._task.exception() is None
    assert asked > 20 and node.asked == []
    assert [each.message for each in caplog.records if each.name == module.__name__] == [
        "controller 3 is not a voter yet: no address of a controller is known yet"
    ]


@pytest.mark.parametrize(
    ("enabled", "observes", "wanted", "raft", "says"),
    [
        (False, True, [ADDITION], {}, True),
        (True, True, [], {}, True),
        (True, False, [ADDITION], {}, False),
        (False, True, [], {"voters": (1, ME), "kraft_version": 0}, False),
        (False, True, [], {"voters": (1, ME), "kraft_version": 1}, True),
        (False, True, [], {"voters": (1, 2), "kraft_version": 0}, True),
    ],
)
async def test_who_does_not_ask_says_once_how_it_becomes_one(
    enabled: bool,
    observes: bool,
    wanted: list[Any],
    raft: dict[str, Any],
    says: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    node = Node(monkeypatch, *wanted, **raft)
    node.observes = observes
    joining = node.joining(enabled=enabled)
    joining.poke()
    joining.poke()
    assert joining._task is None
    assert [each.message for each in caplog.records if each.name == module.__name__] == ["this is how"] * says
    await joining.close()


@pytest.mark.parametrize("voters", [(), (1, 2)])
async def test_that_nobody_has_voters_is_said_once_after_some_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, voters: tuple[int, ...]
) -> None:
    node = Node(monkeypatch, voters=voters)
    node.observes = False
    joining = node.joining(enabled=True)
    joining.poke()
    joining.poke()
    assert caplog.messages == []
    monkeypatch.setattr(module, "ALONE_S", 0.0)
    joining.poke()
    joining.poke()
    said = [each for each in caplog.messages if "has found no controller that has voters" in each]
    assert len(said) == (not voters) and all("format one with --standalone" in each for each in said)
