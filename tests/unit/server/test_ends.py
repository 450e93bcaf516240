"""What ends with a node, and in which order; and what a controller does by itself meanwhile."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.broker.server.data import cleaner_process, cleaners
from metaquorum.broker.server.data.peers import Peer
from metaquorum.broker.server.data.plane import DataPlane
from metaquorum.controller.server import joining as module
from metaquorum.controller.server.joining import SelfRegistration
from metaquorum.controller.server.main import ControllerRole
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import ImageBuilder, MetadataImage
from metaquorum.metadata.image.types import BrokerRegistration, NodeEndpoint
from metaquorum.raft.events import RaftResponseArrived
from metaquorum.raft.messages import FetchResponse, RaftError, VoteResponse


class Part:
    """Any part of a data plane: notes the calls that it gets."""

    def __init__(self, name: str, calls: list[str], path: str = "", clean: bool = True) -> None:
        self._name, self._calls, self.path, self._clean = name, calls, path, clean

    def note(self, what: str) -> None:
        self._calls.append(f"{self._name} {what}")

    def start(self) -> None:
        self.note("starts")

    def stop(self) -> None:
        self.note("stops")

    def end(self) -> None:
        self.note("ends")

    def cancel(self) -> None:
        self.note("is cancelled")

    async def close(self, *, clean: bool | None = None) -> bool:
        self.note("closes" if clean is None else f"closes, clean {clean}")
        return self._clean


def plane(calls: list[str]) -> Any:
    made: Any = DataPlane.__new__(DataPlane)
    made._cleaners = Part("cleaners", calls)
    made.threads = {
        b"a": Part("threads a", calls, "/a"),
        b"b": Part("threads b", calls, "/b", clean=False),
    }
    made._probes = [Part("probe", calls)]
    made._peers, made._questions, made._look = Part("peers", calls), Part("questions", calls), None
    made._clocks, made._look_s = [], 3.0
    made._loop = SimpleNamespace(
        time=lambda: 5.0, call_later=lambda later_s, call: Part(f"look in {later_s:g} s", calls)
    )
    return made


async def test_everything_of_a_data_plane_starts_and_ends() -> None:
    """Nothing is begun that needs what has ended: first who asks, then who works, then the directories."""
    calls: list[str] = []
    made = plane(calls)
    made.start()
    assert calls == ["cleaners starts", "threads a starts", "threads b starts", "probe starts"]
    calls.clear()
    assert await made.close() == ["/a"]
    assert calls == [
        "look in 3 s is cancelled",
        "probe ends",
        "peers closes",
        "cleaners stops",
        "threads a closes, clean True",
        "threads b closes, clean True",
    ]


@pytest.mark.parametrize("reason", ["write of /d/log has not returned", None])
def test_a_directory_that_hangs_has_failed(reason: str | None) -> None:
    made, failed, looked = plane([]), list[str](), list[float]()

    def look(now_s: float) -> str | None:
        looked.append(now_s)
        return reason

    made._clocks = [(SimpleNamespace(look=look), failed.append)]
    made._look_for_hangs()
    assert looked == [5.0] and failed == ([] if reason is None else [reason])
    assert made._look is not None


@pytest.mark.parametrize("stopping", [False, True])
def test_a_cleaner_that_is_lost_is_a_warning_unless_its_broker_stops(
    stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cleaner = cleaners._Cleaner(3, 1.0, None)
    cleaner._numbers = {object(): 1}  # type: ignore[dict-item]
    cleaner._stopping = stopping
    cleaner._lost(EOFError("gone"))
    assert cleaner.load() == 0
    lost = "log cleaner 3 was lost (EOFError: gone): its logs are compacted later"
    assert caplog.messages == ([] if stopping else [lost])


@pytest.mark.parametrize(
    ("response", "epochs"),
    [
        (FetchResponse(error=RaftError.NONE, epoch=4, leader_id=2), [4]),
        (FetchResponse(error=RaftError.FENCED_LEADER_EPOCH, epoch=4, leader_id=2), []),
        (VoteResponse(error=RaftError.NONE, epoch=4, leader_id=2, vote_granted=True, pre_vote=False), []),
    ],
)
def test_only_a_leaders_answer_to_a_fetch_shows_that_it_is_there(response: Any, epochs: list[int]) -> None:
    heard, taken = list[int](), list[Any]()
    role: Any = SimpleNamespace(
        _standing=SimpleNamespace(fetched=heard.append),
        _process=SimpleNamespace(
            driver=SimpleNamespace(take_transport_event=lambda event: taken.append(event) or True)
        ),
    )
    event = RaftResponseArrived(source=2, correlation_id=1, response=response)
    assert ControllerRole._hear(role, event) is True
    assert heard == epochs and taken == [event]


# ---- a controller registers itself


class Registering:
    """A controller whose registration is due `times` more; the quorum answers with `answers` in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *answers: Exception | None) -> None:
        self.times, self.asked = times, 0
        self._answers = list(answers)
        self.node: Any = SimpleNamespace(
            ledger=SimpleNamespace(committed=SimpleNamespace(image=object())),
            raft=SimpleNamespace(leader_id=2),
            active=None,
            config=SimpleNamespace(node_id=1),
            incarnation_id=bytes(16),
        )
        monkeypatch.setattr(module, "own_registration", self._own)
        monkeypatch.setattr(module.Backoff, "failed", lambda self, started: 0)
        self.registration = SelfRegistration(self.node, self, random.Random(1))

    def _own(self, image: object, config: object, incarnation_id: bytes) -> Any:
        assert image is self.node.ledger.committed.image and config is self.node.config
        return SimpleNamespace(controller_id=1) if self.times > 0 else None

    async def register(self, request: Any) -> None:
        """In the place of the way to the leader."""
        self.asked += 1
        self.times -= 1
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self.registration._task

    async def until_done(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(20):
            await asyncio.wait([self.task])


async def test_a_controller_asks_until_the_log_has_its_registration(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    busy = ApiError(ErrorCode.REQUEST_TIMED_OUT, "later")
    it = Registering(monkeypatch, 3, busy, None, busy)
    it.registration.poke()
    first = it.task
    it.registration.poke()
    it.node.raft.leader_id = 3
    it.registration.poke()
    assert it.task is first, "one is under way"
    await it.until_done()
    assert it.asked == 3
    assert caplog.messages == ["controller 1 is not registered yet: REQUEST_TIMED_OUT: later"] * 2
    it.times = 1
    it.registration.poke()
    assert it.task is first, "nothing has changed"
    it.node.ledger.committed.image = object()
    it.registration.poke()
    await it.until_done()
    assert it.asked == 4
    it.times, it.node.raft.leader_id = 1, 4
    it.registration.poke()
    await it.until_done()
    assert it.asked == 5


@pytest.mark.parametrize(("leader_id", "active"), [(None, None), (1, None), (2, object())])
async def test_who_leads_or_knows_no_leader_does_not_ask(
    leader_id: int | None, active: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Registering(monkeypatch, 1)
    it.node.raft.leader_id, it.node.active = leader_id, active
    it.registration.poke()
    assert it.task is None
    await it.registration.close()


async def test_a_registration_under_way_ends_with_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Registering(monkeypatch, 10**9)
    it.registration.poke()
    await asyncio.sleep(0)
    await it.registration.close()
    assert it.task is not None and it.task.done()


def test_a_fetch_goes_to_the_endpoint_that_a_broker_has_registered() -> None:
    """With its protocol; one that is not known speaks what this broker's own listener does."""
    registered = BrokerRegistration(
        broker_id=7,
        epoch=1,
        incarnation_id=bytes(16),
        endpoints=(
            NodeEndpoint("OTHER", "h", 1, 2),
            NodeEndpoint("IN", "h", 2, 1),
            NodeEndpoint("X", "i", 2, 3),
        ),
        rack=None,
        fenced=False,
    )
    builder = ImageBuilder(MetadataImage())
    builder.put_broker(registered)
    made = plane([])
    made.image = builder.freeze()
    for ours, usual in ((None, 0), (SimpleNamespace(protocol="SASL_SSL"), 3)):
        made._config = SimpleNamespace(inter_broker_listener=ours)
        places = {(7, "h", 1): 2, (7, "h", 2): 1, (7, "i", 2): 3, (7, "i", 1): usual, (8, "h", 1): usual}
        for (target, host, port), protocol in places.items():
            effect: Any = SimpleNamespace(target=target, host=host, port=port)
            assert made._peer_of(effect) == Peer(target, host, port, protocol)


def test_work_for_a_directory_goes_to_its_threads_and_for_an_unknown_one_nowhere() -> None:
    submitted: list[tuple[str, Any]] = []
    made = plane([])
    made.threads = {
        name.encode(): SimpleNamespace(submit=lambda work, name=name: submitted.append((name, work)))
        for name in "ab"
    }
    for name in "bxa":
        made._disk_work(SimpleNamespace(directory_id=name.encode()))
    assert [name for name, _ in submitted] == ["b", "a"]


def test_a_process_that_compacts_ends_when_its_broker_has_closed_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(cleaner_process.os, "_exit", ended.append)
    polls = iter([False, False, True])
    alive = cleaner_process._alive(SimpleNamespace(poll=lambda: next(polls)))  # type: ignore[arg-type]
    assert [next(alive), next(alive)] == [None, None] and ended == []
    assert list(alive) == [] and ended == [0]
