"""Simulated consumers: each reads one partition from its log's start, and never sees records that do not
exist.

Whether what it reads is right is checked where it leaves the broker (`data_laws`); here: that nothing is
skipped, and that no position is reset where nothing may be lost.
"""

from __future__ import annotations

from typing import Any

from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests.data import (
    EARLIEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionKey,
)
from metaquorum.storage.batches.batch import iter_batches
from tests.sim.data_clients import RETRIABLE, Cluster, Place
from tests.sim.errors import SafetyError


class Reader:
    """Reads one partition, from its log's start."""

    def __init__(self, name: str, cluster: Cluster, topic: str, index: int) -> None:
        self.name = name
        self._cluster = cluster
        self.topic = topic
        self._index = index
        self._place: Place | None = None
        self._key: PartitionKey | None = None
        self._epoch = -1
        self._seen_epoch = -1
        self.position = 0
        self.read = 0

    def begin(self) -> None:
        self._again()

    def _again(self, pause_ms: float = 5.0, *, anew: bool = False) -> None:
        if anew:
            self._place = None
        self._cluster.engine.after(pause_ms * (0.5 + self._cluster.engine.rng.random()), self._next)

    def _next(self) -> None:
        if self._place is None:
            self._cluster.look_up(self.name, self.topic, self._index, self._found)
        else:
            self._fetch(self._place)

    def _found(self, place: Place | None) -> None:
        if place is None or (place.key == self._key and place.leader_epoch < self._seen_epoch):
            self._again(80.0)
            return
        self._seen_epoch = place.leader_epoch
        if place.key != self._key:
            self._key, self.position, self._epoch = place.key, 0, -1
        self._place = place
        self._next()

    def _fetch(self, place: Place) -> None:
        rng, load = self._cluster.engine.rng, self._cluster.load
        asked = FetchPartition(
            key=place.key,
            fetch_offset=self.position,
            max_bytes=rng.choice((1, 600, 4_000)),
            current_leader_epoch=place.leader_epoch if rng.random() < 0.5 else -1,
            last_fetched_epoch=self._epoch if rng.random() < 0.5 else -1,
        )
        request = FetchRequest(
            max_wait_ms=load.fetch_wait_ms, min_bytes=1, max_bytes=8_000, partitions=(asked,)
        )

        def answered(response: Any) -> None:
            if self._place is not place:
                return
            if isinstance(response, FetchResponse) and response.partitions:
                self._take(asked, response)
            elif isinstance(response, FetchResponse):
                self._again()
            else:
                self._again(60.0, anew=True)

        self._cluster.ask(self.name, place.leader, request, load.fetch_wait_ms + 800, answered)

    def _take(self, asked: FetchPartition, response: FetchResponse) -> None:
        part = response.partitions[0]
        laws = self._cluster.laws
        if part.error is ErrorCode.OFFSET_OUT_OF_RANGE or part.diverging is not None:
            if not laws.may_lose(asked.key) and self.topic != "short":
                raise SafetyError(f"{self.name} stands at {self.position} and is told: {part}")
            self._cluster.marks.add(
                "reader told that its log was replaced" if part.diverging else "reader out of range"
            )
            self._reset(asked.key)
            return
        if part.error is not ErrorCode.NONE:
            if part.error not in RETRIABLE:
                raise SafetyError(f"{self.name} is refused: {part}")
            self._again(60.0, anew=True)
            return
        for batch in iter_batches(part.records):
            if batch.header.next_offset <= self.position:
                raise SafetyError(f"{self.name} asked from {self.position} and got {batch.header}")
            if batch.header.base_offset > self.position and self.topic != "short":
                raise SafetyError(f"{self.name} lacks {self.position}..{batch.header.base_offset - 1}")
            self.position, self._epoch = batch.header.next_offset, batch.header.leader_epoch
            self.read += batch.header.records_count
        self._again(20.0 if not part.records else 3.0)

    def _reset(self, key: PartitionKey) -> None:
        """Starts over at the current start of the log."""
        place = self._place
        if place is None:
            return
        asked = ListOffsetsPartition(key=key, timestamp_ms=EARLIEST_TIMESTAMP)

        def answered(response: Any) -> None:
            if (
                isinstance(response, ListOffsetsResponse)
                and response.results[0].error is ErrorCode.NONE
                and self._key == key
            ):
                self.position, self._epoch = response.results[0].offset, -1
            self._again(30.0, anew=True)

        self._cluster.ask(self.name, place.leader, ListOffsetsRequest(partitions=(asked,)), 1_000, answered)
