"""Other brokers by the newest image: which may join an ISR, and where a leader is reached.

Owns only the image to look at (`values.Brokers`). A partition never remembers an answer.
"""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage


class KnownBrokers:
    """`image` None: nothing is known yet. `listener`: the listener through which brokers follow."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._epochs: dict[int, int] = {}
        self.image: MetadataImage | None = None

    def moved(self, image: MetadataImage) -> None:
        """The brokers of the image changed."""
        self.image = image
        self._epochs = {each.broker_id: each.epoch for each in image.brokers.values()}

    def epoch(self, broker_id: int) -> int | None:
        return self._epochs.get(broker_id)

    def may_join_isr(self, broker_id: int) -> bool:
        return self.image is not None and self.image.brokers.is_active(broker_id)

    def rack(self, broker_id: int) -> str | None:
        known = None if self.image is None else self.image.brokers.get(broker_id)
        return None if known is None else known.rack

    def endpoint(self, broker_id: int) -> tuple[str, int] | None:
        """(host, port) at which followers reach it; None if it is not registered, or not with this
        listener."""
        known = None if self.image is None else self.image.brokers.get(broker_id)
        at = None if known is None else known.endpoint(self._listener)
        return None if at is None else (at.host, at.port)
