"""All replicas of one broker: the inbox of partition data, and the one place that knows every part of it.

Pure. Owns which replicas there are and who hears of what; what a partition does is `partition`'s, where a
replica may lie is `directories`' and `reconcile`'s, who fetches from whom `fetchers`' and `fetch_sessions`'.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from broker.replica.config import ReplicaConfig
from broker.replica.events import DataEffect, DataEvent, FoundDirectory
from broker.replica.status import ReplicaStatus
from metadata.image import MetadataImage


class ReplicaManager:
    """See the module. `directories`: every configured one, as it was found. `metadata_directory`: the id of
    the one that holds the metadata log too, if it is among them: without it the broker cannot go on.

    Every input returns what is to be done, in order. `tick` is due at `next_deadline_ms`.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        directories: Sequence[FoundDirectory],
        *,
        rng: random.Random,
        now_ms: int,
        metadata_directory: bytes | None = None,
    ) -> None:
        self._config = config
        self._found = tuple(directories)

    @property
    def good_directories(self) -> tuple[bytes, ...]:
        """Ids of the directories that can be used, sorted: what the broker registers."""
        return tuple(
            sorted(each.directory_id for each in self._found if each.problem is None and each.directory_id)
        )

    @property
    def offline_directories(self) -> tuple[bytes, ...]:
        """Ids of bad directories, sorted, as far as they are known: what every heartbeat says."""
        return tuple(
            sorted(
                each.directory_id for each in self._found if each.problem is not None and each.directory_id
            )
        )

    def start(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Begin. Call once, before anything else. With no usable directory: Stop (S3.3)."""
        return []

    def publish(
        self, image: MetadataImage, previous: MetadataImage, *, broker_epoch: int, now_ms: int, wall_ms: int
    ) -> list[DataEffect]:
        """The image moved on from `previous` (at first the empty one). Never older than the broker's own
        registration under `broker_epoch` (S1.12, S1.13)."""
        return []

    def handle(self, event: DataEvent, *, serving: bool, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Take one event. `serving` False: the broker is fenced, clients are refused with
        BROKER_NOT_AVAILABLE, and all else goes on (S2.20, S2.22)."""
        return []

    def tick(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """Let time pass."""
        return []

    def stop(self, *, now_ms: int, wall_ms: int) -> list[DataEffect]:
        """The broker ends in order: who waits is answered, high watermarks are written down."""
        return []

    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None: no timer is needed."""
        return None

    def status(self) -> ReplicaStatus:
        """Figures, counted when they are asked for: not for every step."""
        return ReplicaStatus()
