"""How the process keeps freed memory and when Python's garbage collector runs.

Owns both settings. Does not know what the memory holds: bounds on requests and responses are in
`kafka.bounds`.

By default glibc returns large buffers to the kernel when they are freed, and gets new ones page by page: with
record batches of 256 KiB that takes a fifteenth of a broker's time. Python's garbage collector stops the
process while it searches for cycles.
"""

from __future__ import annotations

import ctypes
import gc
import logging

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MIB = 1024 * 1024
KEPT_BYTES = 128 * _MIB
"""The most freed memory at the end of the heap that the process keeps for new buffers."""

YOUNG_OBJECTS = 5_000
"""A collection of the youngest generation runs after this many new objects and takes about a millisecond.
More of them no longer fit into the processor's caches, and each then costs three times as much."""
_MIDDLE_EVERY, _ALL_EVERY = 20, 1_000
"""Thresholds of the older generations: the middle one every 100,000 new objects, all objects every 100
million at most."""

_log = logging.getLogger(__name__)


def keep_collections_short() -> None:
    """Makes garbage collections short. Call it once, after all imports: collections then skip the objects
    that exist now, which are most of those that are ever part of a cycle."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, _MIDDLE_EVERY, _ALL_EVERY)


def keep_freed_buffers() -> bool:
    """Sets glibc's malloc to keep freed buffers. Call it once, early. Returns False if the C library has no
    mallopt or refuses a setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    settings = ((_M_MMAP_THRESHOLD, 32 * _MIB), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_TOP_PAD, 16 * _MIB))
    taken = [mallopt(name, value) == 1 for name, value in settings]
    if not all(taken):
        _log.debug("mallopt took %s of %s", sum(taken), len(taken))
    return all(taken)
