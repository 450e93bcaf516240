"""A broker process with coordinators and a cleaner, and the shell in front of them.

Adds to `DataBroker` the state machines in the logs of internal topics, the real handlers of Kafka's protocol
on a simulated loop, and threads that compact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from metaquorum.broker.coordinator.coordinators import Coordinators, coordinator_kinds
from metaquorum.broker.replica.events import DataRespond, SendTxnMarkers
from metaquorum.broker.replica.requests.own_logs import NewLogUser
from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.metadata.node_configs import ReplicaConfig
from tests.sim.data_broker import DataBroker
from tests.sim.data_disks import DataDirectory
from tests.sim.data_workers import DirectoryWorker
from tests.sim.host import Process
from tests.sim.kafka.compaction import CleaningWorker
from tests.sim.kafka.plan import CLEANER_BACKOFF_MS, KafkaLoad, coordinator_config
from tests.sim.kafka.server import KafkaServer

if TYPE_CHECKING:
    from tests.sim.kafka.laws import KafkaLaws


class KafkaBroker(DataBroker):
    """See the module."""

    laws: KafkaLaws

    def __init__(self, kafka: KafkaLoad, *parts: Any) -> None:
        self.kafka = kafka
        self.server: KafkaServer | None = None
        super().__init__(*parts)
        self.server = KafkaServer(self, coordinator_config(kafka))

    def replica_config(self) -> ReplicaConfig:
        return replace(super().replica_config(), log_cleaner_backoff_ms=CLEANER_BACKOFF_MS)

    def log_user(self) -> NewLogUser:
        rng = random.Random(self.host.rng.getrandbits(64))
        return partial(Coordinators, coordinator_kinds(coordinator_config(self.kafka), rng))

    def make_worker(self, directory: DataDirectory, store: DirectoryStore) -> DirectoryWorker:
        return CleaningWorker(
            self,
            self.host.engine,
            self.load,
            directory,
            store,
            lambda event: self.laws.reported(self, event),
            laws=self.laws,
        )

    def execute_own(self, effect: Any) -> None:
        match effect:
            case DataRespond(key=key) if isinstance(key, tuple) and self.server is not None:
                request = self.asked.pop(key, None)
                if request is not None:
                    self.laws.responds(self, request, effect.response)
                self.server.answered(effect)
            case SendTxnMarkers() if self.server is not None:
                self.laws.sends_markers(self, effect)
                self.server.send_markers(effect)
            case _:
                super().execute_own(effect)

    # ---- requests between shells -----------------------------------------------------------------

    def ask_broker(
        self,
        broker_id: int,
        body: Any,
        version: int,
        timeout_ms: int,
        finish: Callable[[Any], None],
        fail: Callable[[str], None],
    ) -> None:
        def arrive(process: Process, answer: Callable[[Any], None]) -> None:
            if isinstance(process, KafkaBroker):
                process.serve(body, version, self.host.name, answer)

        host = self._directory.hosts.get(broker_id)
        if host is None:
            fail("there is no such broker")
            return
        self._calls.shell(self.host.name, host, arrive, timeout_ms, finish, fail)

    def serve(self, body: Any, version: int, client_id: str, answer: Callable[[Any], None]) -> None:
        """A request that has arrived."""
        if self.server is not None:
            self.server.arrived(body, version, client_id, answer)
