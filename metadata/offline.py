"""Which log directories are offline, and therefore which replicas are (S3.10, KIP-858)."""

from __future__ import annotations

from typing import Protocol

from metaquorum.metadata.image import LOST, MIGRATING, UNASSIGNED, BrokerRegistration


class BrokersById(Protocol):
    """Registrations by id: an image's brokers, or a dict."""

    def get(self, broker_id: int, /) -> BrokerRegistration | None: ...


def directory_online(brokers: BrokersById, broker_id: int, directory: bytes) -> bool:
    """Whether a log directory of a broker can be used, according to its registration.

    A replica without a known directory counts as online. A registration without directories dates from a
    version that did not record them.
    """
    if directory in {UNASSIGNED, MIGRATING}:
        return True
    registration = brokers.get(broker_id)
    if directory == LOST or registration is None:
        return False
    return not registration.directories or directory in registration.directories
