"""Rates of clients' quotas, and how long a client must wait (KIP-13, KIP-124, KIP-546, KIP-612).

Rates are per broker, as in Kafka, and stay when a client disconnects. Times are arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests.rates import QuotaWindows, Rate
from metaquorum.metadata.settings.quotas import IP, QuotaKey, quota_of

PRODUCE_BYTES = "producer_byte_rate"
FETCH_BYTES = "consumer_byte_rate"
REQUEST_PERCENT = "request_percentage"
CONNECTIONS = "connection_creation_rate"
KEPT_CLIENTS = 10_000
"""The most rates kept; beyond it, the least recently used are dropped."""


class Quotas:
    """See the module. `image` is called at each use."""

    def __init__(self, image: Callable[[], MetadataImage], windows: QuotaWindows) -> None:
        self._image = image
        self._windows = windows
        self._rates: OrderedDict[QuotaKey, Rate] = OrderedDict()
        self._seen: MetadataImage | None = None
        self._any = False

    @property
    def any(self) -> bool:
        """True if any quota is configured."""
        image = self._image()
        if image is not self._seen:
            self._seen, self._any = image, len(image.quotas) > 0
        return self._any

    def use(self, kind: str, user: str, client_id: str, amount: float, now_ms: int) -> int:
        """Counts `amount` (bytes, or percent of a second) against the client's quota of this kind; returns
        how long the client must wait, in ms."""
        found = quota_of(self._image(), kind, user, client_id)
        if found is None:
            return 0
        bound, key = found
        rate = self._rate(key)
        rate.add(amount, now_ms)
        waits_ms = rate.over(bound, now_ms)
        if kind == REQUEST_PERCENT:
            waits_ms = min(waits_ms, self._windows.window_ms)
        return round(waits_ms)

    def room(self, kind: str, user: str, client_id: str, now_ms: int) -> int | None:
        """How much the client may use now without a wait, 0 or more; None if it has no quota."""
        found = quota_of(self._image(), kind, user, client_id)
        if found is None:
            return None
        bound, key = found
        return max(0, int(self._rate(key).room(bound, now_ms)))

    def connect(self, address: str, now_ms: int) -> int:
        """Counts a new connection from an address; returns after how many ms to close it, 0 to keep it."""
        quotas = self._image().quotas
        for name in (address, None):
            bound = (quotas.get(((IP, name),)) or {}).get(CONNECTIONS)
            if bound is not None:
                rate = self._rate((CONNECTIONS, address, None))
                rate.add(1, now_ms)
                waits_ms = round(rate.over(max(bound, 1e-9), now_ms))
                if waits_ms:
                    rate.remove(1)
                return min(waits_ms, self._windows.window_ms)
        return 0

    def _rate(self, key: QuotaKey) -> Rate:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate(self._windows)
            if len(self._rates) > KEPT_CLIENTS:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(key)
        return rate
