"""Which replicas are offline: those on dead brokers and those in dead directories, one set (S3.10, KIP-858).

Derived from an image alone, so that every node and every tool says the same (S3.18, S3.19). Knows no records.
"""

from __future__ import annotations

from typing import Protocol

from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED, BrokerRegistration, PartitionInfo


class BrokersById(Protocol):
    """Registrations by id: an image's brokers, or a dict."""

    def get(self, broker_id: int, /) -> BrokerRegistration | None: ...


def directory_online(brokers: BrokersById, broker_id: int, directory: bytes) -> bool:
    """Whether a log directory of a broker can be used, going by its registration.

    A replica that has not said where it is counts as online. A registration without directories is from a
    time when they were not told.
    """
    if directory in {UNASSIGNED, MIGRATING}:
        return True
    registration = brokers.get(broker_id)
    if directory == LOST or registration is None:
        return False
    return not registration.directories or directory in registration.directories


def offline_replicas(brokers: BrokersById, partition: PartitionInfo) -> tuple[int, ...]:
    """The partition's replicas on brokers that are fenced or gone, or in directories that are not online."""
    return tuple(
        [
            replica
            for replica, directory in zip(partition.replicas, partition.directories, strict=True)
            if (known := brokers.get(replica)) is None
            or known.fenced
            or not directory_online(brokers, replica, directory)
        ]
    )
