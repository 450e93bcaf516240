"""How memory that was freed is kept, and how what may be garbage is looked for. Owns both settings.

By default glibc gives large buffers back to the kernel when they are freed, and takes new ones page by page:
with record batches of 256 KiB that is a fifteenth of a broker's time. Python's garbage collector stops the
process for as long as it looks.
"""

from __future__ import annotations

import ctypes
import gc
import logging

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MIB = 1024 * 1024
KEPT_BYTES = 128 * _MIB
"""Freed memory at the end of the heap that is kept for the next buffers."""

YOUNG_OBJECTS = 5_000
"""New objects after which a collection looks at them: about a millisecond. More of them no longer fit the
processor's caches, and each costs three times as much."""
_MIDDLE_EVERY, _ALL_EVERY = 20, 1_000
"""What has survived is looked at again every 100,000 new objects, everything every 100 million at most."""

_log = logging.getLogger(__name__)


def keep_collections_short() -> None:
    """Call once, when everything is imported: what exists then, most of what is ever part of a cycle, is
    never looked at again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, _MIDDLE_EVERY, _ALL_EVERY)


def keep_freed_buffers() -> bool:
    """Call once, early. False, and nothing is changed, where the C library is another one."""
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
