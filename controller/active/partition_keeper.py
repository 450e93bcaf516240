"""The active controller's dealings with partitions: requests about them, and the balancer of leaders (K17).

Owns when leaders are balanced, and the way from a request to its decision. What is decided is in `topics`,
`elections`, `alter_partition` and `log_dirs`, the order of answers in `workbench`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

from metaquorum.controller.active.work import BalanceLeaders, ElectLeaders
from metaquorum.controller.active.workbench import Workbench, too_large_for_a_batch
from metaquorum.controller.partitions.alter_partition import decide_alter_partition
from metaquorum.controller.partitions.elections import decide_elections
from metaquorum.controller.partitions.log_dirs import decide_assign_replicas
from metaquorum.controller.partitions.placement import Candidate
from metaquorum.controller.partitions.topics import decide_create_partitions, refuse_all
from metaquorum.controller.result import ControllerResult
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.partitions import (
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    CreatePartitionsRequest,
    ElectLeadersRequest,
    PartitionsRequest,
)


class PartitionKeeper:
    """`candidates` says which brokers may hold new replicas on an image."""

    def __init__(
        self,
        bench: Workbench,
        candidates: Callable[[MetadataImage], tuple[Candidate, ...]],
        rng: Random,
    ) -> None:
        self._bench = bench
        self._config = bench.config
        self._candidates = candidates
        self._rng = rng
        self._balance_at_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """A leadership begins: balance one interval from now, when brokers have come back (S4.13)."""
        interval_ms = self._config.leader_imbalance_check_interval_ms
        self._balance_at_ms = now_ms + interval_ms if interval_ms > 0 else None

    def handle(self, key: int, request: PartitionsRequest, now_ms: int) -> None:
        """Decides one request; its answer goes out now or with a commit."""
        result = self._decide(request)
        if isinstance(request, AssignReplicasToDirsRequest) and isinstance(
            result.response, AssignReplicasToDirsResponse
        ):
            self._note_begun_anew(request.broker_id, result.response)
        self._bench.finish(key, result, now_ms, lambda: self._too_large(request))

    def _note_begun_anew(self, broker_id: int, response: AssignReplicasToDirsResponse) -> None:
        """Replicas that wait for an unclean election, since the directory that held them is gone."""
        known, first = self._bench.sessions.begun_anew, None
        for each in response.results:
            key = (each.topic_id, each.partition, broker_id)
            if each.error is not ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE:
                known.pop(key, None)
            elif known.get(key) != each.directory_id:
                known[key] = each.directory_id
                first = first or each
        if first is not None:
            topic = self._bench.ledger.newest.topics.topic(first.topic_id)
            name = first.topic_id.hex() if topic is None else topic.name
            self._bench.port.warn(
                f"{name}-{first.partition} (and maybe others) stays without a leader: {first.message}"
            )

    def _decide(self, request: PartitionsRequest) -> ControllerResult:
        bench, records_max = self._bench, self._config.records_per_request_max
        image = bench.ledger.newest
        match request:
            case AlterPartitionRequest():
                return decide_alter_partition(image, request, bench.rules(image))
            case AssignReplicasToDirsRequest():
                return decide_assign_replicas(image, request, bench.rules(image), records_max=records_max)
            case ElectLeadersRequest():
                return decide_elections(image, request, bench.rules(image), records_max=records_max)
            case CreatePartitionsRequest():
                candidates = self._candidates(image)
                return decide_create_partitions(
                    image, request, self._config, candidates=candidates, rng=self._rng
                )
            case _:
                assert_never(request)

    def _too_large(self, request: PartitionsRequest) -> ControllerResult:
        records_max = self._config.records_per_request_max
        if isinstance(request, CreatePartitionsRequest):
            return refuse_all([topic.name for topic in request.topics], records_max)
        return too_large_for_a_batch()

    def balance(self, now_ms: int) -> None:
        """Once an interval: leaderless partitions are looked at again (an unclean election may have been
        allowed meanwhile), and leadership goes back to preferred replicas that can take it."""
        if self._balance_at_ms is None or now_ms < self._balance_at_ms:
            return
        self._balance_at_ms = now_ms + self._config.leader_imbalance_check_interval_ms
        if self._bench.ledger.newest.topics.rows_without_leader().size:
            self._bench.add(ElectLeaders(broker_id=None))
        if self._config.auto_leader_rebalance_enable:
            self._bench.add(BalanceLeaders())

    def next_deadline_ms(self) -> int | None:
        """When `balance` has something to do."""
        return self._balance_at_ms
