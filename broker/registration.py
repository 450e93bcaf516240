"""A broker's registration: what this incarnation reports about itself, and whether the log agrees (K8)."""

from __future__ import annotations

from metaquorum.metadata.errors import InvariantViolation
from metaquorum.metadata.node_configs.broker import BrokerConfig
from metaquorum.metadata.requests.common import BrokerHeartbeatRequest, RegisterBrokerRequest

_BEATS_TO_AMEND = (1, 2, 4, 8, 16)
"""The heartbeats after which a registration that is wrong in the log is sent again; then every 16."""


class Incarnation:
    """One process of a broker. `previous_epoch`: that of the previous process if it shut down cleanly.
    `offline_directories`: every failed one known so far."""

    def __init__(
        self,
        config: BrokerConfig,
        incarnation_id: bytes,
        previous_epoch: int | None,
        offline_directories: tuple[bytes, ...],
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._previous_epoch = previous_epoch
        self.offline_directories = offline_directories

    @property
    def usable_directories(self) -> tuple[bytes, ...]:
        """The configured directories that can be used."""
        return tuple(
            [directory for directory in self._config.directories if directory not in self.offline_directories]
        )

    def vouched_epoch(self, epoch: int | None) -> int | None:
        """The newest epoch of this broker under which nothing was lost, as far as this process knows: its
        own, or that of the previous process if it shut down cleanly (KIP-966)."""
        return self._previous_epoch if epoch is None else epoch

    def heartbeat(
        self, epoch: int | None, applied_offset: int, want_shutdown: bool
    ) -> BrokerHeartbeatRequest:
        """Raises InvariantViolation without an epoch: only a registered broker sends heartbeats."""
        if epoch is None:
            raise InvariantViolation(
                "a broker is registered and has no epoch: report this with the broker's log"
            )
        return BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=epoch,
            applied_offset=applied_offset,
            want_shutdown=want_shutdown,
            offline_directories=self.offline_directories,
            min_insync_replicas=self._config.min_insync_replicas,
        )

    def registration(self, epoch: int | None) -> RegisterBrokerRequest:
        """`epoch`: that of this process, if it is already registered."""
        config = self._config
        return RegisterBrokerRequest(
            broker_id=config.node_id,
            cluster_id=config.cluster_id,
            incarnation_id=self._incarnation_id,
            endpoints=config.endpoints,
            features=config.features,
            rack=config.rack,
            directories=self.usable_directories,
            binding_key=config.binding_key,
            previous_broker_epoch=self.vouched_epoch(epoch),
        )


class Amendment:
    """When a registration that is wrong in the log is sent again. `is_due`: instead of the next heartbeat."""

    def __init__(self) -> None:
        self.is_due = False
        self._beats: int | None = None

    def begin(self) -> bool:
        """The log is wrong. Returns False if that was known."""
        if self._beats is not None:
            return False
        self._beats, self.is_due = 0, True
        return True

    def end(self) -> None:
        """The log is right, or there is no longer a registration."""
        self._beats, self.is_due = None, False

    def beat(self) -> None:
        """A heartbeat was answered."""
        if self._beats is not None:
            self._beats += 1
            last = _BEATS_TO_AMEND[-1]
            self.is_due = self._beats in _BEATS_TO_AMEND or self._beats % last == 0
