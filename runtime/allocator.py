"""How the C library keeps memory that was freed, for processes through which large buffers pass all the time.

By default glibc gives large buffers back to the kernel when they are freed, and takes new ones page by page:
with record batches of 256 KiB that is a fifteenth of a broker's time.
"""

from __future__ import annotations

import ctypes
import logging

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_MIB = 1024 * 1024
KEPT_BYTES = 128 * _MIB
"""Freed memory at the end of the heap that is kept for the next buffers."""

_log = logging.getLogger(__name__)


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
