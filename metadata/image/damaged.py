"""Where a replica is said to lie whose log cannot be read although its directory is good.

The log names a replica's directory (KIP-858), and there is no other way to say that one replica of a good
directory is offline. So it is said to lie where no broker has a directory: in an id that is made from the
directory's own. Every reader of the log, Kafka's controller too, takes such a replica for offline. Two ids
make two things different that a controller could not tell apart: a replica that came back with what it had,
and one that starts over with nothing. See docs/adr/0013-damaged-replicas.md.
"""

from __future__ import annotations

import hashlib

from metaquorum.metadata.image.types import BrokerRegistration
from metaquorum.storage.uuids import UUID_BYTES


def damaged_in(directory: bytes) -> bytes:
    """The replica is in `directory`, whole or not: it cannot be read now, and may come back."""
    return _derived(directory, b"damaged")


def given_up_in(directory: bytes) -> bytes:
    """What `directory` held of the replica no longer counts: it starts over."""
    return _derived(directory, b"given up")


def is_mark(registration: BrokerRegistration | None, place: bytes) -> bool:
    """Whether `place` is one of these ids, for a directory that the broker has registered."""
    return registration is not None and any(
        place in (damaged_in(each), given_up_in(each)) for each in registration.directories
    )


def _derived(directory: bytes, word: bytes) -> bytes:
    return hashlib.sha256(directory + word).digest()[:UUID_BYTES]
