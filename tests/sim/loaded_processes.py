"""Controllers and brokers of a loaded world: brokers that hold partitions, controllers that are observed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from metaquorum.broker.events import PublishImage, SendToController
from metaquorum.controller.active.outcome import RemoveBroker
from metaquorum.controller.events import Answer, RequestArrived
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import BrokerConfig, ControllerConfig
from metaquorum.metadata.requests.common import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    RegisterBrokerRequest,
)
from tests.sim.load import Load
from tests.sim.processes import BrokerProcess, ControllerProcess
from tests.sim.promises import Promises
from tests.sim.replication import LogDirectories, Replication

REUSE_GRACE_MS = 5_000
COLLECTION_MS = 2_000
PAUSED_LOOK_MS = 50


class LoadedController(ControllerProcess):
    """`on_granted` is called for every broker that gets permission to stop, before the broker learns of it,
    and says whether it was in controlled shutdown when it sent the request."""

    def __init__(
        self, load: Load, on_granted: Callable[[LoadedController, int, bool], None], *parts: Any
    ) -> None:
        self.load = load
        self._on_granted = on_granted
        self._heartbeats: dict[int, tuple[int, bool]] = {}
        self._removals: dict[int, int] = {}
        self._shutting_down = False
        self._image_before = MetadataImage()
        super().__init__(*parts)

    def make_config(self) -> ControllerConfig:
        return replace(
            super().make_config(),
            records_per_slice_max=self.load.slice_records,
            leader_imbalance_check_interval_ms=self.load.balance_ms,
            broker_id_reuse_grace_ms=REUSE_GRACE_MS,
            broker_id_gc_interval_ms=COLLECTION_MS,
        )

    def execute_own(self, effect: Any) -> None:
        if isinstance(effect, Answer):
            heartbeat, response = self._heartbeats.pop(effect.key, None), effect.response
            if (
                heartbeat is not None
                and isinstance(response, BrokerHeartbeatResponse)
                and response.should_shut_down
            ):
                self._on_granted(self, *heartbeat)
        super().execute_own(effect)

    def before_event(self, event: Any) -> None:
        super().before_event(event)
        if isinstance(event, RequestArrived) and isinstance(event.request, BrokerHeartbeatRequest):
            known = self.node.ledger.newest.brokers.get(event.request.broker_id)
            leaving = known is not None and known.in_controlled_shutdown and not known.fenced
            self._heartbeats[event.key] = event.request.broker_id, leaving
        self._image_before = self.node.ledger.newest

    def after_event(self, event: Any) -> None:
        super().after_event(event)
        if self.node.active is None and (self._removals or self._shutting_down):
            self.leadership_ended()
        self._note_work()

    def end(self) -> None:
        if self.alive and self.node.active is not None:
            self._note_work()
            self.leadership_ended()
        super().end()

    def _note_work(self) -> None:
        active = self.node.active
        if active is None:
            return
        before = self._image_before.topics
        current = {}
        for work in active.work:
            if isinstance(work, RemoveBroker):
                held = int(before.rows_with_isr(work.broker_id).size)
                current[work.broker_id] = max(held, self._removals.get(work.broker_id, 0))
        self._removals = current
        self._shutting_down = any(
            known.in_controlled_shutdown and not known.fenced
            for _, known in self.node.ledger.newest.brokers.items()
        )

    def between_batches(self) -> bool:
        """Whether a broker is half fenced: some of its partitions were moved, others were not."""
        topics = self.node.ledger.newest.topics
        return any(
            0 < int(topics.rows_with_isr(broker_id).size) < most for broker_id, most in self._removals.items()
        )

    def shutdown_under_way(self) -> bool:
        return self._shutting_down

    def leadership_ended(self) -> None:
        """Leadership or the process ends: the successor finds what was in progress."""
        if self._half_fenced_at_end():
            self._marks.add("failover between the batches of one fence")
        if self._shutting_down:
            self._marks.add("controlled shutdown interrupted by failover")
        self._removals, self._shutting_down = {}, False

    def _half_fenced_at_end(self) -> bool:
        topics = self.node.ledger.newest.topics
        return any(int(topics.rows_with_isr(one).size) < most for one, most in self._removals.items())


class LoadedBroker(BrokerProcess):
    """A broker with partitions in log directories. Its id is the one on its disk."""

    def __init__(
        self,
        load: Load,
        directories: LogDirectories,
        binding_key: str | None,
        promises: Promises,
        *parts: Any,
    ) -> None:
        self.load = load
        self.directories = directories
        self._binding_key = binding_key
        super().__init__(*parts)
        self.image: MetadataImage | None = None
        self.replication = Replication(
            self.node_id,
            lambda: self.node,
            self.host.monotonic_ms,
            directories,
            self.host.engine,
            load,
            promises,
            self._marks,
            self._ask_controller,
        )

    def make_config(self) -> BrokerConfig:
        return structs.replace(
            super().make_config(), directories=tuple(self.directories.ids), binding_key=self._binding_key
        )

    def execute_own(self, effect: Any) -> None:
        match effect:
            case PublishImage(image=image):
                self.image = image
                self.replication.publish(image)
                super().execute_own(effect)
            case SendToController(request=RegisterBrokerRequest() as request):
                # Without a directory it cannot register: the request is not sent and times out.
                if self.directories.online:
                    online = tuple(sorted(self.directories.online))
                    super().execute_own(
                        structs.replace(effect, request=structs.replace(request, directories=online))
                    )
            case SendToController(request=BrokerHeartbeatRequest() as request):
                dead = tuple(self.directories.dead)
                super().execute_own(
                    structs.replace(effect, request=structs.replace(request, offline_directories=dead))
                )
            case _:
                super().execute_own(effect)

    def _ask_controller(
        self, request: Any, timeout_ms: int, finish: Callable[[Any], None], fail: Callable[[], None]
    ) -> None:
        """Sends to the controller that this broker considers active; a process that has ended gets no
        response."""
        known = self.core.leader_id
        voters = sorted(self.core.state.voters)
        target = self.host.engine.rng.choice(voters) if known is None else known

        def hear(what: Callable[[], None]) -> None:
            if self.alive and self.paused:
                self.host.engine.after(PAUSED_LOOK_MS, lambda: hear(what))
            elif self.alive:
                what()

        self._calls.client(
            self.host.name,
            self._directory[target],
            request,
            timeout_ms,
            lambda response, _outright: hear(lambda: finish(response)),
            lambda _reason: hear(fail),
            once=True,
        )
