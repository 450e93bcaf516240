"""The brokers part of an image: registrations by id, and when each was written.

Owns the lookup by id and the arrays of ids for code in columns. Knows no records, and not which partitions
name a broker (`columns`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metaquorum.metadata.image.types import BrokerRegistration


class BrokersImage:
    """Registered brokers by id. Immutable; iterates over ids in ascending order.

    Two images are equal if their registrations are equal: the offsets of the registration records are kept
    beside them for the caught-up rule (K10), and a snapshot does not have them.
    """

    __slots__ = ("_arrays", "_by_id", "_offsets")

    def __init__(self, by_id: dict[int, BrokerRegistration], offsets: dict[int, int]) -> None:
        self._by_id = by_id
        self._offsets = offsets
        self._arrays: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def get(self, broker_id: int) -> BrokerRegistration | None:
        return self._by_id.get(broker_id)

    def __getitem__(self, broker_id: int) -> BrokerRegistration:
        return self._by_id[broker_id]

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self._by_id

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._by_id))

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> list[tuple[int, BrokerRegistration]]:
        return sorted(self._by_id.items())

    def values(self) -> list[BrokerRegistration]:
        return [registration for _, registration in self.items()]

    def is_active(self, broker_id: int) -> bool:
        """Registered, unfenced and not shutting down."""
        registration = self._by_id.get(broker_id)
        return registration is not None and registration.is_active

    def ids(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(all ids, those of active brokers), ascending; computed once, for code that looks
        at many partitions."""
        if self._arrays is None:
            listed = self.items()
            known = np.array([at for at, _ in listed], dtype=np.int64)
            active = np.array([at for at, broker in listed if broker.is_active], dtype=np.int64)
            self._arrays = known, active
        return self._arrays

    def registration_offset(self, broker_id: int) -> int | None:
        """Offset of the broker's registration record in force; after a snapshot load, the last offset in the
        snapshot, which is no smaller. None for an unknown broker."""
        return self._offsets.get(broker_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BrokersImage) and self._by_id == other._by_id

    __hash__ = None  # type: ignore[assignment]

    def shared(self) -> tuple[dict[int, BrokerRegistration], dict[int, int]]:
        """Registrations and their records' offsets, for the builder, which copies before it writes."""
        return self._by_id, self._offsets
