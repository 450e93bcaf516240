"""Lines about what happens to brokers, features and topics, told from the images before and after.

Owns the wording and the difference between `replayed` (the log says that it happened, before this process
caught up) and `live`. Looks at parts that changed only: an image shares the others with the one before.
"""

from __future__ import annotations

import logging

from metadata.delta import diff
from metadata.image import MetadataImage
from metadata.image.types import BrokerRegistration
from runtime.logging import Source, log_metadata

_log = logging.getLogger("metaquorum.metadata")


class MetadataLines:
    """`moved` after every step; `live_from` is the first high watermark that the process learned."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._live_from: int | None = None

    def moved(self, image: MetadataImage, high_watermark: int) -> None:
        """Tells what is new in `image`."""
        if self._live_from is None and high_watermark >= 0:
            self._live_from = high_watermark
        old, self._image = self._image, image
        if image is old:
            return
        offset = image.provenance.offset
        replayed = self._live_from is None or offset <= self._live_from
        source: Source = "replayed" if replayed else "live"
        if image.brokers is not old.brokers:
            for broker_id in sorted({*old.brokers, *image.brokers}):
                line = _broker_line(broker_id, old.brokers.get(broker_id), image.brokers.get(broker_id))
                if line is not None:
                    log_metadata(_log, line, offset=offset, source=source)
        if image.features is not old.features:
            for name in sorted({*old.features.finalized, *image.features.finalized}):
                level = image.features.level(name)
                if old.features.level(name) != level:
                    log_metadata(_log, f"{name} is at level {level}", offset=offset, source=source)
        if _log.isEnabledFor(logging.DEBUG) and image.topics is not old.topics:
            self._topic_lines(old, image, offset, source)

    def _topic_lines(self, old: MetadataImage, new: MetadataImage, offset: int, source: Source) -> None:
        delta = diff(old, new)
        for topic in delta.topics_added:
            log_metadata(_log, f"topic {topic.name} was created", offset=offset, source=source, debug=True)
        for topic in delta.topics_removed:
            log_metadata(_log, f"topic {topic.name} was deleted", offset=offset, source=source, debug=True)


def _broker_line(
    broker_id: int, old: BrokerRegistration | None, new: BrokerRegistration | None
) -> str | None:
    """What happened to one broker; None: nothing that is worth a line."""
    if old == new:
        return None
    if new is None:
        return f"broker {broker_id} was unregistered"
    if old is None or new.epoch != old.epoch:
        return f"broker {broker_id} registered with epoch {new.epoch}"
    if new.fenced != old.fenced:
        return f"broker {broker_id} is {'fenced' if new.fenced else 'unfenced'} (epoch {new.epoch})"
    if new.in_controlled_shutdown and not old.in_controlled_shutdown:
        return f"broker {broker_id} is in controlled shutdown"
    return f"broker {broker_id} changed its registration"
