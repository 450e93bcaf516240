"""A controller that asks by itself to become a voter: when it asks, how often, and what it says meanwhile."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaquorum.clients.search import Address, ClientError
from metaquorum.controller.server import joining as module
from metaquorum.controller.server.joining import Joining
from metaquorum.controller.voters import not_yet
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.records.control import KRaftVersionFeature, Voter, VoterEndpoint
from metaquorum.metadata.requests.common import AddRaftVoterRequest, RemoveRaftVoterRequest
from metaquorum.raft.voters import Endpoint, VersionRange, VoterNode

ME = 3
VOTER = Voter(ME, bytes(range(16)), (VoterEndpoint("IN", "a", 1),))
ADDITION = AddRaftVoterRequest(voter=VOTER)
ANOTHER = ApiError(ErrorCode.INVALID_VOTER_KEY, "another")
REMOVAL = RemoveRaftVoterRequest(voter_id=ME, voter_directory_id=bytes(16))


class Node:
    """`wanted`: what is to be asked for in turn, an exception is the quorum's answer to it. The node may join
    as long as there is more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *wanted: Any, **raft: Any) -> None:
        self.wanted = list(wanted)
        self.asked: list[Any] = []
        self.observes = True
        self.entry: VoterNode | None = None
        self.seen: list[tuple[Any, bool]] = []
        self.there: KRaftVersionFeature | ApiError = ANOTHER
        self.probed: list[tuple[Voter, list[Address]]] = []
        self.client: Any = cast(Any, object())
        probe: Any = SimpleNamespace(ask=self._probe)
        core: Any = SimpleNamespace(
            **{"node_id": ME, "voters": (1, 2), "kraft_version": 1, **raft},
            state=SimpleNamespace(config=SimpleNamespace(check_quorum_ms=7_000)),
        )
        monkeypatch.setattr(module.voters, "observes", lambda raft: self.observes)
        monkeypatch.setattr(module.voters, "may_join", lambda raft: bool(self.wanted))
        monkeypatch.setattr(module.voters, "how_to_join", lambda raft: "this is how")
        monkeypatch.setattr(module.voters, "Joiner", self._joiner)
        monkeypatch.setattr(module, "describe_voters", self._quorum)
        monkeypatch.setattr(module, "add_voter", self._ask)
        monkeypatch.setattr(module, "remove_voter", self._ask)
        monkeypatch.setattr(module.Backoff, "failed", lambda self, started: 0)
        rng = random.Random(1)
        self._make = lambda enabled: Joining(core, self.client, probe, "in", rng, enabled=enabled)

    def joining(self, enabled: bool) -> Joining:
        return self._make(enabled)

    def _joiner(self, raft: Any, *, silent_ms: int, timeout_ms: int) -> Any:
        assert silent_ms == 14_000
        return SimpleNamespace(entry=self.entry, wanted=self._wanted)

    async def _quorum(self, client: object, silent_ms: int) -> str:
        assert client is self.client and silent_ms == 7_000
        return "the quorum"

    async def _probe(
        self, voter: Voter, addresses: list[Address], timeout_ms: int
    ) -> KRaftVersionFeature | ApiError:
        assert timeout_ms == 1_000
        self.probed.append((voter, addresses))
        return self.there

    def _wanted(self, now_ms: int, quorum: Any, *, answers: bool) -> Any:
        self.seen.append((quorum, answers))
        first = self.wanted.pop(0)
        if isinstance(first, Exception):
            raise first
        return first

    async def _ask(self, client: Any, request: Any) -> None:
        assert client is self.client
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
    assert node.seen == [(None, False)] * 5
    assert [each.message for each in caplog.records if each.name == module.__name__] == [
        "it is too far behind",
        not_yet(3, refused),
        "controller 3: its entry with a directory that it lost was removed",
        "controller 3 is a voter",
    ]
    node.wanted.append(ADDITION)  # removed by an operator, say
    joining.poke()
    assert joining._task is not first
    await node.until_done(joining)
    assert node.asked == [REMOVAL, ADDITION, ADDITION]


@pytest.mark.parametrize(
    ("endpoints", "port", "there", "answers"),
    [
        ((("KAFKA", 1), ("GRPC", 2), ("IN", 3)), 3, ANOTHER, False),
        ((("KAFKA", 1), ("GRPC", 2), ("IN", 3)), 3, KRaftVersionFeature(0, 1), True),
        ((("GRPC", 2), ("KAFKA", 1)), 1, KRaftVersionFeature(0, 1), True),
        ((("GRPC", 2),), None, KRaftVersionFeature(0, 1), False),
    ],
)
async def test_an_entry_of_its_own_is_looked_at_first_where_voters_ask_each_other(
    endpoints: tuple[tuple[str, int], ...],
    port: int | None,
    there: KRaftVersionFeature | ApiError,
    answers: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch, "wait")
    places = tuple(Endpoint(name, "a", port) for name, port in endpoints)
    node.entry = VoterNode(node_id=ME, directory_id=b"l" * 16, endpoints=places, versions=VersionRange(0, 1))
    node.there = there
    joining = node.joining(enabled=True)
    joining.poke()
    await node.until_done(joining)
    assert node.seen == [("the quorum", answers)]
    assert [(each.voter_id, each.voter_directory_id) for each, _ in node.probed] == [(ME, b"l" * 16)] * (
        port is not None
    )
    assert [each for _, each in node.probed] == [[("a", port)]] * (port is not None)


async def test_a_leader_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    silent = ClientError("node 1: no answer in time")
    node = Node(monkeypatch, silent, silent, ADDITION)
    joining = node.joining(enabled=True)
    joining.poke()
    await node.until_done(joining)
    assert node.asked == [ADDITION]
    assert [each.message for each in caplog.records if each.name == module.__name__] == [
        "controller 3 is not a voter yet: node 1: no answer in time",
        "controller 3 is a voter",
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
