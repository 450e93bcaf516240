"""The newest image that a broker has published, and callers that wait for one that has their own changes.

Owns that image and the wait. Does not know whether the broker is fenced: `broker.node` does.
"""

from __future__ import annotations

import asyncio

from metaquorum.metadata.image import MetadataImage


class Published:
    """`image` is read at each request; `publish` wakes waiting callers."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._began = asyncio.Event()

    def publish(self, image: MetadataImage) -> None:
        self.image = image
        self._began.set()
        reached = image.provenance.offset
        for future, offset in list(self._waiting.items()):
            if offset <= reached and not future.done():
                future.set_result(None)

    async def first(self) -> None:
        """Returns once an image was published."""
        await self._began.wait()

    async def reach(self, offset: int, timeout_s: float) -> bool:
        """Whether everything below `offset` is in the image, or arrives within the time."""
        if offset <= self.image.provenance.offset:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = offset
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[future]
        return True
