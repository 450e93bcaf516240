"""A broker that starts without an id: requests one from the active controller until it gets it (S0.1).

Plays the part of the broker's shell before its node exists. The caller stores the id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metaquorum.metadata.errors import ApiError
from metaquorum.metadata.requests.common import AllocateBrokerIdRequest, AllocateBrokerIdResponse
from tests.sim.calls import Calls
from tests.sim.engine import Engine
from tests.sim.processes import Directory

TIMEOUT_MS = 1_000
PAUSE_MS = 200


class Newcomer:
    """One start. All its requests have the same request id, like the retries of a real start."""

    def __init__(
        self,
        name: str,
        binding_key: str,
        engine: Engine,
        calls: Calls,
        directory: Directory,
        controllers: Sequence[int],
        on_id: Callable[[AllocateBrokerIdResponse], None],
        *,
        reuse_missing: bool,
    ) -> None:
        self.name = name
        self.alive = True
        self._engine = engine
        self._calls = calls
        self._directory = directory
        self._controllers = controllers
        self._target = controllers[0]
        self._on_id = on_id
        self._request = AllocateBrokerIdRequest(
            request_id=engine.rng.randbytes(16), binding_key=binding_key, reuse_missing=reuse_missing
        )
        self.last_problem = "it has not asked yet"

    def ask(self) -> None:
        if self.alive:
            target = self._directory[self._target]
            self._calls.client(self.name, target, self._request, TIMEOUT_MS, self._answered, self._failed)

    def _answered(self, response: Any, _outright: bool) -> None:
        if not self.alive:
            return
        if isinstance(response, AllocateBrokerIdResponse) and response.broker_id is not None:
            self.alive = False
            self._on_id(response)
            return
        pause_ms = PAUSE_MS
        if isinstance(response, AllocateBrokerIdResponse):
            self.last_problem, pause_ms = response.waiting_for, response.retry_after_ms
        elif isinstance(response, ApiError):
            self.last_problem = str(response)
            if "needs exactly one" in self.last_problem and self._request.reuse_missing:
                self._request = AllocateBrokerIdRequest(
                    request_id=self._engine.rng.randbytes(16), binding_key=self._request.binding_key
                )  # several ids are missing: the operator starts it as a new broker
            hint = response.leader_hint
            self._target = self._engine.rng.choice(self._controllers) if hint is None else hint
        self._engine.after(pause_ms, self.ask)

    def _failed(self, reason: str) -> None:
        self.last_problem = reason
        self._target = self._engine.rng.choice(self._controllers)
        self._engine.after(PAUSE_MS, self.ask)
