"""Requests to other brokers: on the connection that is there, within bounds of number and time.

Time is the simulator's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from metaquorum.broker.server.kafka.transactions.brokers import OtherBrokers
from metaquorum.clients.kafka.connection import ConnectionFailed
from metaquorum.network.deferred import Driven
from tests.sim.engine import Engine
from tests.sim.kafka.loop import SimulatedLoop


class Connection:
    """Answers `tell` when the test does, and `ask` at once."""

    def __init__(self) -> None:
        self.is_open = self.has_room = True
        self.login_is_due = False
        self.told: list[Any] = []
        self.asked: list[object] = []

    def send(self, body: object, *, version: int, to: Any) -> None:
        self.told.append(to)

    async def ask(self, body: object, *, version: int | None, timeout_s: float) -> Any:
        self.asked.append(body)
        return SimpleNamespace(body="asked")

    def close(self, reason: str = "closed") -> None:
        self.is_open = self.has_room = False
        for each in self.told:
            if not each.done():
                each.set_exception(ConnectionFailed(reason))


class World:
    def __init__(self) -> None:
        self.engine = Engine(1)
        self.loop = SimulatedLoop(self.engine)
        self.opened: list[Connection] = []
        self.port = 9092
        broker = SimpleNamespace(
            endpoint=lambda name: SimpleNamespace(host="h", port=self.port, security_protocol=0)
        )
        self.brokers = OtherBrokers(
            lambda: SimpleNamespace(brokers={7: broker}),  # type: ignore[arg-type,return-value]
            self,  # type: ignore[arg-type]
            listener="IN",
            broker_id=2,
            timeout_s=3.0,
        )

    async def open(self, peer: Any, *, client_id: str, timeout_s: float) -> Connection:
        self.opened.append(Connection())
        return self.opened[-1]

    def reached(self, host: str, port: int) -> None:
        pass

    def ask(self, broker_id: int = 7) -> Driven[Any]:
        begun: list[Driven[Any]] = []
        asking = self.brokers.ask(broker_id, "body", version=4)
        self.loop.call_soon(lambda: begun.append(Driven(asking)))
        self.run(1)
        return begun[0]

    def run(self, ms: float) -> None:
        self.engine.run_for(ms, lambda: None)


def connected() -> tuple[World, Connection]:
    world = World()
    assert world.ask().result() == "asked"
    return world, world.opened[0]


def test_a_request_on_a_connection_that_is_there_has_its_answer_at_once() -> None:
    world, connection = connected()
    first, second = world.ask(), world.ask()
    assert len(connection.told) == 2 and len(connection.asked) == 1
    connection.told[0].set_result(SimpleNamespace(body="answer"))
    assert first.result() == "answer" and not second.done()
    assert len(world.opened) == 1


def test_a_connection_that_has_no_room_or_leads_elsewhere_is_not_used_so() -> None:
    world, connection = connected()
    connection.has_room = False
    assert world.ask().result() == "asked" and len(connection.asked) == 2
    connection.has_room, connection.login_is_due = True, False
    world.port = 9093
    assert world.ask().result() == "asked"
    assert len(world.opened) == 2 and not connection.is_open


def test_a_request_without_an_answer_ends_with_its_connection() -> None:
    world, connection = connected()
    late = world.ask()
    world.run(2_500)
    assert not late.done()
    world.run(2_000)
    assert isinstance(late.error, ConnectionFailed) and "within 3 s" in str(late.error)
    assert not connection.is_open
    assert world.ask().result() == "asked" and len(world.opened) == 2


def test_a_caller_that_is_gone_waits_for_nothing() -> None:
    world, connection = connected()
    world.ask().cancel()
    assert connection.told[0].cancelled()
    world.run(5_000)
    assert connection.is_open, "its answer is dropped when it comes"


def test_a_broker_without_the_listener_cannot_be_asked() -> None:
    assert isinstance(World().ask(8).error, ConnectionFailed)
