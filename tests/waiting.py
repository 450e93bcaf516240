"""Waits of tests: each has a limit, and its failure says what was waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

LIMIT_S = 60.0
"""Long enough for a busy machine: it only ends what would never end."""


@contextlib.asynccontextmanager
async def within(what: str, limit_s: float = LIMIT_S) -> AsyncIterator[None]:
    """Fails if the body takes longer: "waited 60 s for `what`"."""
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(f"waited {limit_s:g} s for {what}") from error
