"""A broker process that holds data: the real node, manager and directory stores on simulated threads.

Plays the shell's part: passes work to the threads of the directories, fetches to other brokers and requests
to the controller, and responds to callers. What must hold is in `data_laws`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from metaquorum.broker.channel import ControllerChannel, ControllerReported, SendToController
from metaquorum.broker.events import PublishImage
from metaquorum.broker.replica.disk_work import DirectoryFailed, DiskWork, FoundDirectory
from metaquorum.broker.replica.events import (
    DataRequestArrived,
    DataRequestCancelled,
    DataRespond,
    PeerFetched,
    PeerFetchFailed,
    SendFetch,
)
from metaquorum.broker.replica.manager import ReplicaManager
from metaquorum.broker.replica.partition.partition import Partition
from metaquorum.broker.replica.requests.own_logs import NewLogUser
from metaquorum.broker.replica.store.store import DirectoryStore, ExpectedIdentity, StoreOptions
from metaquorum.metadata.features import ELR_VERSION, LEVEL_ELR_RECORDS
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import BrokerConfig, ReplicaConfig
from metaquorum.metadata.records.types import BrokerFeature
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerRequest
from metaquorum.metadata.requests.data import DataRequest, PartitionKey
from metaquorum.storage.errors import StorageError
from metaquorum.storage.partition.replica_directory import leave_clean_shutdown, take_clean_shutdown
from tests.controllers import unanswered
from tests.sim.data_disks import DataDirectories, DataDirectory
from tests.sim.data_load import DataLoad
from tests.sim.data_workers import DirectoryWorker
from tests.sim.errors import SafetyError
from tests.sim.processes import CLUSTER_ID, BrokerProcess

if TYPE_CHECKING:
    from tests.sim.data_laws import DataLaws


class DataBroker(BrokerProcess):
    """`found`: what the directories held when the process began. `loses`: which requests to the controller
    are lost on the way, for stories."""

    def __init__(self, load: DataLoad, directories: DataDirectories, laws: DataLaws, *parts: Any) -> None:
        self.load = load
        self.directories = directories
        self.laws = laws
        self.workers: dict[bytes, DirectoryWorker] = {}
        self.found: tuple[FoundDirectory, ...] = ()
        self.image: MetadataImage | None = None
        self.asked: dict[object, DataRequest] = {}
        self._in_flight: dict[type, tuple[int, int]] = {}
        self.loses: Callable[[Any], bool] = lambda request: False
        super().__init__(*parts)

    # ---- its parts -------------------------------------------------------------------------------

    def make_config(self) -> BrokerConfig:
        config = super().make_config()
        levels = (BrokerFeature("metadata.version", 1, LEVEL_ELR_RECORDS), BrokerFeature(ELR_VERSION, 0, 1))
        return replace(
            config,
            directories=self.directories.ids(),
            features=levels,
            self_fencing_enable=self.load.self_fencing,
        )

    def replica_config(self) -> ReplicaConfig:
        return ReplicaConfig(
            broker_id=self.node_id,
            log_flush_before_ack=self.load.flush_before_ack,
            replica_lag_time_max_ms=self.load.replica_lag_ms,
            replica_fetch_max_bytes=4_096,
            replica_fetch_response_max_bytes=8_192,
            replica_fetch_wait_max_ms=100,
            replica_fetch_backoff_ms=80,
            replica_high_watermark_checkpoint_interval_ms=700,
            replica_request_timeout_ms=1_000,
            log_retention_check_interval_ms=500,
            log_dir_assignment_timeout_ms=6_000,
            controller_request_timeout_ms=800,
            max_incremental_fetch_session_cache_slots=8,
        )

    def make_replicas(self, now_ms: int, channel: ControllerChannel) -> ReplicaManager:
        self.found = tuple([self._open(each) for each in self.directories.all])
        manager = ReplicaManager(
            self.replica_config(),
            self.found,
            channel=channel,
            rng=random.Random(self.host.rng.getrandbits(64)),
            now_ms=now_ms,
            new_user=self.log_user(),
        )
        self.manager = manager
        return manager

    def log_user(self) -> NewLogUser | None:
        """The state machine in the logs of partitions that this broker leads; None: there is none."""
        return None

    def make_worker(self, directory: DataDirectory, store: DirectoryStore) -> DirectoryWorker:
        return DirectoryWorker(
            self,
            self.host.engine,
            self.load,
            directory,
            store,
            lambda event: self.laws.reported(self, event),
        )

    def _open(self, directory: DataDirectory) -> FoundDirectory:
        if directory.hung:
            return FoundDirectory(path=directory.path, directory_id=None, problem="opening it does not end")
        store, found = DirectoryStore.open(
            directory.disk,
            directory.path,
            ExpectedIdentity(
                cluster_id=CLUSTER_ID, node_id=self.node_id, directory_id=directory.directory_id
            ),
            lambda text: self.host.engine.trace(self.host.name, f"opens: {text}"),
            rng=random.Random(self.host.rng.getrandbits(64)),
            options=StoreOptions(max_open_files=8),
        )
        if store is None:
            self.host.engine.trace(self.host.name, f"{directory.path} is bad: {found.problem}")
            return found
        self.laws.opened(self, directory, store, found)
        self.workers[directory.directory_id] = self.make_worker(directory, store)
        return found

    def clean_epoch(self) -> int | None:
        good = [each for each in self.directories.all if each.directory_id in self.workers]
        found = {take_clean_shutdown(each.disk, [each.path]) for each in good}
        epoch = found.pop() if len(found) == 1 else None
        if epoch is not None:
            self._marks.add("clean stop proven")
        return epoch

    def _leave_proof(self, closed: list[DataDirectory]) -> None:
        epoch = self.node.vouched_epoch
        for directory in closed if epoch is not None else []:
            try:
                leave_clean_shutdown(directory.disk, [directory.path], epoch)
            except StorageError as error:
                self.host.engine.trace(self.host.name, f"leaves no proof of a clean stop: {error}")

    def partitions(self) -> dict[PartitionKey, Partition]:
        """The manager's replicas in good directories."""
        return self.manager.partitions

    def close(self, *, clean: bool) -> None:
        """The last actions of the shell."""
        closed = []
        for worker in self.workers.values():
            if clean:
                worker.drain()
            if worker.failed is None and not worker.abandoned and not worker.directory.hung:
                try:
                    worker.store.close(clean=clean)
                    closed.append(worker.directory)
                except StorageError as error:
                    self.host.engine.trace(self.host.name, f"closing: {error}")
        if clean:
            self._leave_proof(closed)

    # ---- events and effects ----------------------------------------------------------------------

    def before_event(self, event: Any) -> None:
        super().before_event(event)
        if isinstance(event, DirectoryFailed):
            self.laws.heard(self, event)
        elif isinstance(event, DataRequestArrived):
            self.asked[event.key] = event.request
        elif isinstance(event, DataRequestCancelled):
            self.asked.pop(event.key, None)
        elif isinstance(event, ControllerReported):
            in_flight = self._in_flight.items()
            self._in_flight = {kind: sent for kind, sent in in_flight if sent[0] != event.correlation_id}

    def execute_own(self, effect: Any) -> None:
        match effect:
            case DataRespond(key=key, response=response):
                request = self.asked.pop(key, None)
                if request is not None:
                    self.laws.responds(self, request, response)
                    self._calls.answered_data(cast(int, key), response)
            case SendFetch():
                self._fetch(effect)
            case SendToController(request=request):
                self.laws.asks(effect)
                self._require_one_in_flight(effect)
                if self.loses(request):
                    lost = unanswered(effect, "timed out")
                    self.host.engine.after(effect.timeout_ms, lambda: self.deliver(lambda: lost))
                else:
                    super().execute_own(effect)
            case PublishImage(image=image):
                self.image = image
                super().execute_own(effect)
            case _ if isinstance(effect, DiskWork):
                self.laws.works(self, effect)
                worker = self.workers.get(effect.directory_id)
                if worker is not None:
                    worker.submit(effect)
            case _:
                super().execute_own(effect)

    def _require_one_in_flight(self, effect: SendToController) -> None:
        """Requests of replicas: none while another of its kind may still be answered. Raises SafetyError."""
        kind, now_ms = type(effect.request), self.host.monotonic_ms()
        if kind in (RegisterBrokerRequest, BrokerHeartbeatRequest):
            return  # these begin again when a lease or a registration is lost
        before = self._in_flight.get(kind)
        if before is not None and now_ms < before[1]:
            raise SafetyError(f"broker {self.node_id} sent a second {kind.__name__} before the first ended")
        self._in_flight[kind] = effect.correlation_id, now_ms + effect.timeout_ms

    def _fetch(self, effect: SendFetch) -> None:
        at, target = effect.correlation_id, effect.target

        def finish(response: Any) -> None:
            self.deliver(lambda: PeerFetched(target=target, correlation_id=at, response=response))

        def fail(reason: str) -> None:
            self.deliver(lambda: PeerFetchFailed(target=target, correlation_id=at, reason=reason))

        host = self._directory.hosts.get(target)
        if host is None or effect.port != 9000 + target:
            fail(f"nobody listens at {effect.host}:{effect.port}")
            return
        self._calls.data(self.host.name, host, effect.request, effect.timeout_ms, finish, fail)
