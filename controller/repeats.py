"""Keys that a request names more than once.

Owns the search, which is linear: a request may name tens of thousands. Does not know what a key means or
whether a repetition is refused: the decision does.
"""

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
