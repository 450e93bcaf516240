"""Where partitions begin and end, and which offset a time has: asked of their leaders until all answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as api
from metaquorum.runtime.backoff import Backoff
from metaquorum.runtime.client.admin import ClientError
from metaquorum.runtime.data_client.cluster_view import REFRESH, ClusterView, PartitionLeader, PartitionName
from metaquorum.runtime.data_client.connections import Connections, LinkError

ATTEMPT_MS = 5_000


class OffsetFinder:
    """`find` answers questions of the ListOffsets kind, following leaders."""

    def __init__(self, connections: Connections, view: ClusterView, rng: random.Random) -> None:
        self._connections = connections
        self._view = view
        self._rng = rng

    async def find(self, wanted: Mapping[PartitionName, int], *, timeout_ms: int) -> dict[PartitionName, int]:
        """By partition the offset of a time in ms, -1 for the end, -2 for the start. A time after the last
        record is answered with -1. Raises ApiError when a leader refuses, ClientError when time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        backoff = Backoff(REFRESH, self._rng)
        found: dict[PartitionName, int] = {}
        problem = ""
        while missing := [each for each in wanted if each not in found]:
            groups: dict[int, tuple[PartitionLeader, list[PartitionName]]] = {}
            for topic, partition in missing:
                leader = self._view.leader(topic, partition)
                if leader is None:
                    problem = f"partition {topic}-{partition} has no leader; see: metaquorum topics describe"
                else:
                    groups.setdefault(leader.broker_id, (leader, []))[1].append((topic, partition))
            asked = [self._ask(leader, names, wanted) for leader, names in groups.values()]
            for part, trouble in await asyncio.gather(*asked):
                found.update(part)
                problem = trouble or problem
            if len(found) == len(wanted):
                break
            if loop.time() >= deadline:
                raise ClientError(
                    f"not every leader reported its offsets within {timeout_ms} ms (last: {problem})"
                )
            self._view.want_refresh()
            await asyncio.sleep(backoff.failed(0) / 1000)
        return found

    async def _ask(
        self, leader: PartitionLeader, names: list[PartitionName], wanted: Mapping[PartitionName, int]
    ) -> tuple[dict[PartitionName, int], str]:
        """What one leader said, and what it refused for now."""
        partitions = []
        for name in names:
            view = self._view.topic(name[0])
            key = (view.topic_id if view else b"", name[1])
            partitions.append(api.ListOffsetsPartition(key=key, timestamp_ms=wanted[name]))
        request = api.ListOffsetsRequest(partitions=tuple(partitions))
        try:
            answer = await self._connections.list_offsets(leader.address, request, timeout_ms=ATTEMPT_MS)
        except LinkError as error:
            return {}, str(error)
        if isinstance(answer, ApiError):
            return {}, str(answer)
        found: dict[PartitionName, int] = {}
        problem = ""
        for name, result in zip(names, answer.results, strict=False):
            if result.error is ErrorCode.NONE:
                found[name] = result.offset
                continue
            refusal = ApiError(result.error, f"{name[0]}-{name[1]}: {result.message or 'refused'}")
            if not result.error.retriable and result.error is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise refusal
            problem = str(refusal)
            self._view.learned(*name, result.leader, result.leader_epoch)
        return found, problem
