"""`metaquorum brokers`, `producer-ids` and `quorum transfer`: what they print for each kind of answer. The
functions that ask the cluster are replaced."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.cli import client
from metaquorum.cli.admin import brokers, transactions
from metaquorum.cli.admin.brokers import (
    NAMED_MAX,
    LeftBehind,
    left_behind,
    left_behind_json,
    left_behind_text,
)
from metaquorum.cli.client import ClientOptions, ClusterClient, TlsOptions
from metaquorum.cli.errors import Failure
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.rpc.messages.tables import BindingView
from tests.unit.cli.answered import Run, cells, fixture_run, topic

__all__ = ["fixture_run"]


def broker(broker_id: int, *, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        epoch=70 + broker_id,
        incarnation_id=bytes(16),
        endpoints=(),
        features=(),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        directories=(),
    )


BROKERS = [broker(0), broker(1, fenced=True), broker(2)]


def test_a_broker_that_is_not_registered(run: Run) -> None:
    found = run(brokers, "brokers describe 3", list_brokers=BROKERS)
    assert (found.code, found.out) == (1, [])
    assert found.err == ["metaquorum: broker 3 is not registered; see: metaquorum brokers list"]
    found = run(brokers, "brokers describe 2 --json", list_brokers=BROKERS)
    assert found.code == 0 and '"epoch":72' in found.out[0]


def test_brokers_as_json(run: Run) -> None:
    found = run(brokers, "brokers list --json", list_brokers=BROKERS)
    assert (len(found.out), found.out[0].count('"epoch":')) == (1, 3)


@pytest.mark.parametrize(
    ("words", "refused"),
    [("0", True), ("0 --force", False), ("1", False), ("9", False), ("9 --force", False)],
)
def test_which_broker_is_unregistered(run: Run, words: str, refused: bool) -> None:
    """One that serves only with --force."""
    found = run(
        brokers,
        f"brokers unregister {words}",
        list_brokers=BROKERS,
        list_topics=[topic("t", (2,))],
        unregister_broker=None,
    )
    assert found.code == refused and ("unregister_broker" in found.asked) is not refused
    if refused:
        assert found.err[0].startswith("metaquorum: broker 0 is running and would register again; ")
    else:
        assert (found.out, found.err) == ([f"broker {words[0]} is unregistered"], [])
        assert found.asked["unregister_broker"] == ((int(words[0]),), {})


def test_what_an_unregistered_broker_leaves_behind(run: Run) -> None:
    answers: dict[str, Any] = {
        "list_brokers": BROKERS,
        "list_topics": [topic("t", (1,), (0, 1), (0, 2)), topic("u", (1, 2))],
        "unregister_broker": None,
    }
    found = run(brokers, "brokers unregister 1", **answers)
    assert found.out == ["broker 1 is unregistered"]
    assert found.err == [
        "metaquorum: 3 replicas stay assigned to broker 1 and under-replicated: t-0, t-1, u-0; the only"
        " replica of t-0; move them to other brokers: metaquorum partitions plan --drain 1, then partitions"
        " reassign"
    ]
    found = run(brokers, "brokers unregister 1 --json", **answers)
    assert found.out == [
        '{"id":1,"unregistered":true,"leftBehind":{"underReplicated":3,"withoutAnotherReplica":1,'
        '"partitions":["t-0","t-1","u-0"]}}'
    ]


@pytest.mark.parametrize("more", [0, 1, 2])
def test_how_many_partitions_are_named(more: int) -> None:
    names = tuple(f"t-{at}" for at in range(NAMED_MAX + more))
    text = left_behind_text(LeftBehind(replicas=names), 1).partition("under-replicated: ")[2].split(";")[0]
    assert text == ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more else "")
    assert left_behind_text(LeftBehind(replicas=("t-0",)), 1).startswith(
        "1 replica stays assigned to broker 1"
    )


def test_ids_that_no_broker_has(run: Run) -> None:
    binding = BindingView(key="host", broker_id=3, version=1, state="live", current=True, garbage=False)
    claims = tuple(
        SimpleNamespace(broker_id=at, request_id=bytes(16), source=SimpleNamespace(value="next"))
        for at in (8, 9)
    )
    listing: dict[str, Any] = {"bindings": (binding,), "missing_ids": (4, 6), "claims": claims}
    found = run(brokers, "brokers bindings", list_broker_ids=SimpleNamespace(**listing))
    assert cells(found.out[:2]) == [
        ["KEY", "BROKER", "STATE", "CURRENT", "GARBAGE"],
        ["host", "3", "live", "yes", "no"],
    ]
    assert found.out[2:] == [
        "missing ids: 4, 6",
        "id 8 is allocated (next) but not registered yet",
        "id 9 is allocated (next) but not registered yet",
    ]
    nothing: dict[str, Any] = {"bindings": (), "missing_ids": (), "claims": ()}
    assert len(run(brokers, "brokers bindings", list_broker_ids=SimpleNamespace(**nothing)).out) == 1


@pytest.mark.parametrize(("words", "epoch"), [("2", 72), ("2 --epoch 0", 0), ("9 --epoch 5", 5)])
def test_a_block_of_producer_ids(run: Run, monkeypatch: pytest.MonkeyPatch, words: str, epoch: int) -> None:
    monkeypatch.setattr(ClusterClient, "brokers", lambda self: BROKERS)
    block = SimpleNamespace(first_id=3_000, count=1_000)
    found = run(transactions, f"producer-ids allocate {words}", allocate_producer_ids=block)
    assert found.out == [f"broker {words[0]} has the producer ids 3000 to 3999"]
    ((asked,), _) = found.asked["allocate_producer_ids"]
    assert (asked.broker_id, asked.broker_epoch) == (int(words[0]), epoch)


def test_no_block_for_a_broker_that_is_not_registered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterClient, "brokers", lambda self: BROKERS)
    found = run(transactions, "producer-ids allocate 9", allocate_producer_ids=None)
    assert (found.code, "allocate_producer_ids" in found.asked) == (1, False)
    assert found.err == ["metaquorum: broker 9 is not registered; see: metaquorum brokers list"]


# ---- the leadership


class Elections:
    """Answers about the quorum, one after the other, and a clock that sleeping moves."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.transferred: list[int | None] = []
        self.now = 10.0
        self.naps = 0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps += 1
        self.now += seconds

    def quorum(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(leader_id=answer[0], leader_epoch=answer[1])


def elections(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> Elections:
    found = Elections(*answers)
    monkeypatch.setattr(client, "time", found)
    monkeypatch.setattr(ClusterClient, "quorum", lambda self: found.quorum())
    monkeypatch.setattr(ClusterClient, "transfer", lambda self, target: found.transferred.append(target))
    return found


SILENT = (ApiError(ErrorCode.NOT_CONTROLLER, "x"), Failure("no answer"))


def test_a_transfer_waits_for_a_leader_of_a_later_epoch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = elections(monkeypatch, (1, 7), (1, 7), *SILENT, (-1, 8), (0, 8))
    found = run(brokers, "quorum transfer --to 0")
    assert (found.out, found.err) == (["controller 0 leads in epoch 8 (before: 1)"], [])
    assert (made.transferred, made.naps) == ([0], 2)
    made = elections(monkeypatch, (1, 7), (2, 9))
    found = run(brokers, "quorum transfer --json")
    assert (found.out, made.transferred) == (['{"from":1,"to":2,"leaderEpoch":9}'], [None])


def test_a_transfer_that_no_leader_follows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    elections(monkeypatch, (1, 7))
    found = run(brokers, "quorum transfer")
    assert (found.code, found.out) == (1, [])
    assert found.err == ["metaquorum: no new leader within 0.2 s; see: metaquorum quorum describe"]


# ---- the calls of a client


class Admin:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def ask(*args: Any, **named: Any) -> Any:
            self.asked.append((name, *args, *named.values()))
            return SimpleNamespace(brokers=("b",))

        return ask


def test_what_the_calls_of_a_client_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin()
    options = ClientOptions(bootstrap="127.0.0.1:1", timeout_s=0.25, tls=TlsOptions())
    assert options.timeout_ms == 250
    with options.open() as opened:
        monkeypatch.setattr(opened, "call", lambda method: asyncio.run(method(admin)))
        assert opened.brokers() == ["b"]
        opened.transfer(4)
    assert admin.asked == [("list_brokers",), ("transfer_leadership", 4)]


@pytest.mark.parametrize(
    ("words", "replaced"),
    [
        ("new 3", "the binding of host to running broker 3"),
        ("host 4", "the binding of host to running broker 3"),
        ("new 5", None),  # its broker is down
        ("host 3", None),  # that is so already
        ("new 4", None),
        ("new 3 --yes", None),
    ],
)
def test_the_binding_of_a_running_broker_is_replaced_only_if_somebody_wants_it(
    run: Run, words: str, replaced: str | None
) -> None:
    bindings = (
        BindingView(key="host", broker_id=3, version=0, state="running", current=True, garbage=False),
        BindingView(key="gone", broker_id=5, version=0, state="fenced", current=True, garbage=False),
    )
    found = run(
        brokers,
        f"brokers bind {words}",
        list_broker_ids=SimpleNamespace(bindings=bindings),
        bind_broker_id=None,
    )
    key, broker_id = words.split()[:2]
    if replaced is None:
        assert found.code == 0 and found.out == [f"{key} is bound to broker id {broker_id}"]
        assert found.asked["bind_broker_id"] == ((key, int(broker_id)), {})
    else:
        assert found.code == 1 and "bind_broker_id" not in found.asked
        assert f"Bind {key} to broker id {broker_id}? This replaces {replaced}" in found.err[0]
        assert found.err[-1] == "metaquorum: nothing was changed; use --yes to skip the question"


# What is said of replicas that an unregistered broker leaves behind.


def test_replicas_are_counted_and_the_first_are_named() -> None:
    topics = [topic("orders", *[(1, 2)] * 6, (2, 3)), topic("single", (1,), (2,)), topic("far", (2, 3))]
    left = left_behind(topics, 1)
    assert left == LeftBehind(
        replicas=(*(f"orders-{index}" for index in range(6)), "single-0"), alone=("single-0",)
    )
    assert left_behind_text(left, 1) == (
        "7 replicas stay assigned to broker 1 and under-replicated: orders-0, orders-1, orders-2, orders-3,"
        " orders-4 and 2 more; the only replica of single-0; move them to other brokers:"
        " metaquorum partitions plan --drain 1, then partitions reassign"
    )
    assert left_behind_json(left) == {
        "underReplicated": 7,
        "withoutAnotherReplica": 1,
        "partitions": ["orders-0", "orders-1", "orders-2", "orders-3", "orders-4"],
    }
    one = left_behind(topics[2:], 3)
    assert left_behind_text(one, 3).startswith(
        "1 replica stays assigned to broker 3 and under-replicated: far-0; move"
    )
    assert left_behind(topics, 9) == LeftBehind()
