"""Keys that a request names more than once. Linear: a request may name tens of thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def repeated(keys: Iterable[Key]) -> frozenset[Key]:
    """The keys that occur twice or more."""
    listed = [*keys]
    if len(set(listed)) == len(listed):
        return frozenset()
    return frozenset([key for key, count in Counter(listed).items() if count > 1])
