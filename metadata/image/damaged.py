"""The directory ids of replicas whose logs cannot be read although their directories are good.

The log records a replica's directory (KIP-858), and has no other way to say that one replica of a good
directory is offline. Such a replica is therefore assigned to an id that no broker has as a directory, derived
from the directory's own id. Every reader of the log, Kafka's controller included, treats it as offline. There
are two such ids, because a controller must distinguish a replica that came back with its data from one that
starts over empty. See docs/adr/0013-damaged-replicas.md.

Owns the derivation of both ids. Does not decide when a replica gets one: its broker asks for it, and the
active controller decides.
"""

from __future__ import annotations

import hashlib

from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.storage.uuids import UUID_BYTES


def damaged_in(directory: bytes) -> bytes:
    """The id for a replica in `directory`, whole or not, that cannot be read now and may come back."""
    return _derived(directory, b"damaged")


def given_up_in(directory: bytes) -> bytes:
    """The id for a replica whose data in `directory` no longer counts: it starts over."""
    return _derived(directory, b"given up")


def is_mark(registration: BrokerRegistration | None, place: bytes) -> bool:
    """Whether `place` is one of these ids, derived from a directory that the broker has registered."""
    return registration is not None and any(
        place in (damaged_in(each), given_up_in(each)) for each in registration.directories
    )


def _derived(directory: bytes, word: bytes) -> bytes:
    return hashlib.sha256(directory + word).digest()[:UUID_BYTES]
