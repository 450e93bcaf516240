"""Simulated clients: they create, delete and look up a few topic names and record what they saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.common import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    ReadImageRequest,
    ReadImageResponse,
    TopicsResponse,
)
from tests.sim.calls import Calls
from tests.sim.engine import Engine
from tests.sim.linearizability import Operation
from tests.sim.marks import Marks
from tests.sim.processes import Directory

NAMES = ("alpha", "beta", "gamma")
OPERATIONS_PER_NAME_MAX = 60
TIMEOUT_MS = 3_000


class Client:
    """One thread of requests, one at a time. `history` is by topic name."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        calls: Calls,
        directory: Directory,
        controllers: Sequence[int],
        pause_ms: tuple[int, int],
        history: dict[str, list[Operation]],
        marks: Marks,
    ) -> None:
        self.name = name
        self._engine = engine
        self._calls = calls
        self._directory = directory
        self._controllers = controllers
        self._pause_ms = pause_ms
        self._history = history
        self._marks = marks
        self._target = controllers[0]
        self.running = True
        self.busy = False
        self._open: Callable[[], None] | None = None

    def give_up(self) -> None:
        """The run ends: a request without a response may have taken effect, or may still do so."""
        if self._open is not None:
            self._open()

    def begin(self) -> None:
        self._engine.after(self._engine.rng.randint(*self._pause_ms), self._next)

    def _next(self) -> None:
        if not self.running:
            return
        rng = self._engine.rng
        topic = rng.choice(NAMES)
        if len(self._history[topic]) >= OPERATIONS_PER_NAME_MAX:
            return
        action = rng.choice(("create", "create", "delete", "describe", "describe"))
        self.send(action, topic)

    def send(self, action: str, topic: str) -> None:
        """One operation; its outcome goes into the history unless it certainly had no effect."""
        called_ms = int(self._engine.now_ms)
        target = self._target

        def record(result: Any, *, known: bool) -> None:
            self._open = None
            # Rounded outwards, so that rounding never rules out an order that was possible.
            returned = int(self._engine.now_ms) + 1 if known else None
            self._history[topic].append(
                Operation(
                    client=self.name,
                    name=action,
                    argument=(topic, len(self._history[topic])),
                    result=result,
                    called_ms=called_ms,
                    returned_ms=returned,
                )
            )

        def finish(response: Any, outright: bool) -> None:
            self._open, self.busy = None, False
            if isinstance(response, ApiError):
                self._look_elsewhere(response)
                if action != "describe" and not (outright and response.code is ErrorCode.NOT_CONTROLLER):
                    record(None, known=False)
            else:
                record(_outcome(action, topic, response), known=True)
                if action == "describe":
                    self._marks.add("linearizable read answered")
            self.begin()

        def fail(_reason: str) -> None:
            self._open, self.busy = None, False
            self._target = self._engine.rng.choice(self._controllers)
            if action != "describe":
                record(None, known=False)
            self.begin()

        self.busy = True
        if action != "describe":
            self._open = lambda: record(None, known=False)
        request = _request(action, topic)
        self._calls.client(self.name, self._directory[target], request, TIMEOUT_MS, finish, fail, once=True)

    def _look_elsewhere(self, error: ApiError) -> None:
        hint = error.leader_hint
        self._target = hint if hint is not None else self._engine.rng.choice(self._controllers)


def _request(action: str, topic: str) -> Any:
    match action:
        case "create":
            return CreateTopicsRequest(topics=(NewTopic(name=topic, partitions=4, replication_factor=1),))
        case "delete":
            return DeleteTopicsRequest(topics=(topic,))
        case _:
            return ReadImageRequest(linearizable=True)


def _outcome(action: str, topic: str, response: Any) -> Any:
    """The outcome in terms of the model of a topic name."""
    if isinstance(response, ReadImageResponse):
        info = response.image.topics.by_name.get(topic)
        return info
    if not isinstance(response, TopicsResponse):
        raise TypeError(f"{action} was answered with {response!r}")
    result = response.results[0]
    match result.error:
        case ErrorCode.NONE if action == "create":
            return result.topic_id
        case ErrorCode.NONE:
            return "ok"
        case ErrorCode.TOPIC_ALREADY_EXISTS:
            return "exists"
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return "absent"
        case _:
            return ("refused", result.error.name)
