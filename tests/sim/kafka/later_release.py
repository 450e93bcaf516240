"""Records of internal topics that no coordinator of this release can read, as a later release writes them,
under all other faults.

Their keys are nobody else's, so every law about groups and transactions holds as before: what cannot be read
is left out, and the rest is served.
"""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import ACKS_ALL, ProducePartition, ProduceRequest, ProduceResponse
from metaquorum.storage.batches.batch import Batches, encode_batch
from tests.sim.kafka.plan import OFFSETS, STATE

if TYPE_CHECKING:
    from tests.sim.data_clients import Place
    from tests.sim.kafka.clients import KafkaClients

EVERY_NTH_SEED = 3
PAUSE_MS = (30, 300)
NAME = "later-release"


def is_there(seed: int) -> bool:
    return seed % EVERY_NTH_SEED == 1


class LaterRelease:
    """A client that writes them. Draws from a source of its own."""

    def __init__(self, clients: KafkaClients, seed: int) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._rng = random.Random(f"later release of {seed}")

    def begin(self) -> None:
        self._cluster.engine.after(self._rng.randint(*PAUSE_MS), self._write)

    def _write(self) -> None:
        if not self._clients.running:
            return
        topic = self._rng.choice((OFFSETS, STATE))
        index = self._rng.randrange(self._clients.partitions(topic))
        self._cluster.look_up(NAME, topic, index, self._send)
        self.begin()

    def _send(self, place: Place | None) -> None:
        if place is None:
            return
        records = [self._record() for _ in range(self._rng.randint(1, 3))]
        batch = encode_batch(
            base_offset=0,
            leader_epoch=-1,
            timestamp_ms=self._cluster.wall_ms(),
            keys=[key for key, _ in records],
            values=[value for _, value in records],
        )
        part = ProducePartition(key=place.key, batch=Batches.arrived(batch))
        timeout_ms = self._cluster.load.produce_timeout_ms
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=timeout_ms, partitions=(part,))
        self._cluster.ask(NAME, place.leader, request, timeout_ms + 300, self._answered)

    def _answered(self, response: Any) -> None:
        if isinstance(response, ProduceResponse) and response.results[0].error is ErrorCode.NONE:
            self._cluster.marks.add("record that cannot be read is in an internal topic")

    def _record(self) -> tuple[bytes, bytes]:
        """The value of a known kind in an unknown version, or malformed; an unknown kind; any bytes."""
        rng = self._rng
        group = f"later{rng.randrange(4)}".encode()
        name = struct.pack(">h", len(group)) + group
        return rng.choice(
            (
                (struct.pack(">h", 2) + name, struct.pack(">h", 30) + rng.randbytes(8)),
                (struct.pack(">h", 0) + name, struct.pack(">h", 0) + rng.randbytes(3)),
                (struct.pack(">h", 99) + name, rng.randbytes(8)),
                (b"\xff" + rng.randbytes(3), b""),
            )
        )
