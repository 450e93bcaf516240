"""Writing several chunks to a transport. Nothing else calls `writelines`, because loops differ.

asyncio's own transports have one since Python 3.12 that does not pause the writer: what a peer does not read
stays in memory without a bound (CVE-2024-12254, up to 3.12.8 and 3.13.1). If the last chunk is empty, the
transport never closes and keeps its loop awake (cpython issue 155888, mended in August 2026). So they get one
copy of all chunks, as before 3.12. uvloop's transports have neither error and need no copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any


def write_all(transport: asyncio.WriteTransport, chunks: Sequence[Any]) -> None:
    """Writes bytes-like chunks, in order; they must not change afterwards."""
    if isinstance(transport, asyncio.Transport):
        transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
    else:
        transport.writelines(chunks)
