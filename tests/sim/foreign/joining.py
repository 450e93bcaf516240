"""Controllers of ours that ask by themselves to be voters, by the product's rule, whoever leads: ours, or the
model of Apache Kafka's 3.9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metaquorum.controller.voters import Joiner, may_join
from metaquorum.metadata.requests.common import (
    AddRaftVoterRequest,
)
from tests.sim.processes import RAFT_CONFIG
from tests.sim.voters.operator import CHANGE_TIMEOUT_MS, VoterOperator

if TYPE_CHECKING:
    from tests.sim.foreign.changes import ChangingController, ChangingWorld

RETRY_MS = (100, 400)


class SelfJoining:
    """One of ours, from one of its processes to the next."""

    def __init__(self, world: ChangingWorld, node_id: int) -> None:
        self._world, self.node_id = world, node_id
        self._asks = VoterOperator(world)
        self._due_us = 0
        self._asked = ""
        self._joiner: tuple[ChangingController, Joiner] | None = None

    @property
    def is_quiet(self) -> bool:
        return self._asks.is_quiet

    def step(self, process: ChangingController) -> None:
        """Sends its next request, if one is due."""
        engine, core = self._world.engine, process.core
        if self._asked and not core.is_observer:
            self._world.marks.add(f"ours was made a voter after it asked {self._asked}")
            self._asked = ""
        if engine.now_us < self._due_us or not self._asks.is_quiet or not may_join(core):
            return
        self._due_us = engine.now_us + 1_000 * engine.rng.randint(*RETRY_MS)
        if self._joiner is None or self._joiner[0] is not process:
            silent_ms = 2 * RAFT_CONFIG.check_quorum_ms
            self._joiner = process, Joiner(core, silent_ms=silent_ms, timeout_ms=CHANGE_TIMEOUT_MS)
        joiner, leader_id = self._joiner[1], core.leader_id
        assert leader_id is not None
        quorum = None if joiner.entry is None else self._world.described(leader_id)
        # Its host is the only one with its id.
        request = joiner.wanted(process.host.monotonic_ms(), quorum, answers=False)
        if isinstance(request, str):
            return
        if isinstance(request, AddRaftVoterRequest):
            self._asked = "Kafka's leader" if leader_id in self._world.kafkas else "a leader of ours"
        self._asks.ask(leader_id, request, lambda: None)
