"""Requests of peers that are no nodes of the cluster, at controllers' Raft port, under all other faults.

What they ask and the two laws about it: no epoch near the end of the range is taken over, and nobody
believes a high watermark of an observer that is not registered. That the cluster comes to rest is a law of
the world.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    RaftRequest,
    VoteRequest,
)
from metaquorum.raft.protocol.election import ASKED_MAX, EPOCH_MAX
from metaquorum.raft.voters import PreferredCandidate
from metaquorum.storage.types import LogPosition
from tests.sim.errors import SafetyError

if TYPE_CHECKING:
    from tests.sim.processes import ControllerProcess
    from tests.sim.world import World

EVERY_NTH_SEED = 6
PAUSE_MS = (50, 800)
UNKNOWN_ID = 77_777
DIRECTORY = bytes([77]) * 16
EPOCHS = (EPOCH_MAX, EPOCH_MAX - 1, EPOCH_MAX - 1_000, ASKED_MAX + 100_000)


def are_there(seed: int) -> bool:
    return seed % EVERY_NTH_SEED == EVERY_NTH_SEED - 1


class Strangers:
    """Draws from a source of its own, so that the other faults of a seed are what they were."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"strangers of {world.seed}")

    def begin(self) -> None:
        self._world.engine.after(self._rng.randint(*PAUSE_MS), self._strike)

    def check(self) -> None:
        """Raises SafetyError."""
        for process in self._world.controllers():
            if process.core.epoch > ASKED_MAX:
                raise SafetyError(f"{process.host.name} took over epoch {process.core.epoch} of a stranger")
            if any(loss.node_id == UNKNOWN_ID for loss in process.core.losses):
                raise SafetyError(f"{process.host.name} believes a high watermark of a stranger")

    def _strike(self) -> None:
        self.check()
        if not self._world.faults_on:
            return
        controllers = self._world.controllers()
        if controllers:
            target = self._rng.choice(controllers)
            request = self._request(target)
            self._world.engine.trace("stranger", f"asks {target.host.name}: {request}")
            self._world.calls.stranger(target.host, request)
            self._world.marks.add(f"stranger sent {type(request).__name__}")
        self._world.engine.after(self._rng.randint(*PAUSE_MS), self._strike)

    def _request(self, target: ControllerProcess) -> RaftRequest:
        rng, core = self._rng, target.core
        cluster_id, to = core.state.identity.cluster_id, core.state.identity.directory_id
        others = [node_id for node_id in self._world.controller_ids if node_id != target.node_id]
        source, epoch = rng.choice((UNKNOWN_ID, *others)), rng.choice(EPOCHS)
        match rng.randrange(4):
            case 0:
                return VoteRequest(
                    cluster_id=cluster_id,
                    epoch=epoch,
                    candidate_id=source,
                    candidate_directory_id=core.voters[source].directory_id or DIRECTORY
                    if source in core.voters
                    else DIRECTORY,
                    voter_id=target.node_id,
                    voter_directory_id=to,
                    last_position=LogPosition(epoch - 1, 2**62),
                    pre_vote=rng.random() < 0.5,
                    kraft_version=rng.choice((0, 1)),
                )
            case 1:
                return BeginQuorumEpochRequest(
                    cluster_id=cluster_id,
                    epoch=epoch,
                    leader_id=source,
                    voter_id=target.node_id,
                    voter_directory_id=to,
                )
            case 2:
                return EndQuorumEpochRequest(
                    cluster_id=cluster_id,
                    epoch=epoch,
                    leader_id=source,
                    preferred_candidates=(PreferredCandidate(target.node_id, to),),
                )
            case _:
                return FetchRequest(
                    cluster_id=cluster_id,
                    replica_id=UNKNOWN_ID,
                    replica_directory_id=DIRECTORY,
                    epoch=core.epoch,
                    fetch_offset=rng.choice((0, core.log_end_offset, 2**62)),
                    last_fetched_epoch=core.epochs.last_epoch,
                    high_watermark=rng.choice((core.log_end_offset + 5, 2**62)),
                    max_wait_ms=rng.choice((0, 500)),
                    max_bytes=1 << 20,
                )
