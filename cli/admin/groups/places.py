"""Topics and their partitions as they are typed and printed: `orders`, `orders:0,1`, `orders-0`.

Owns the syntax. Knows no cluster: it does not check that the partitions exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

Topics = tuple[tuple[str, tuple[int, ...] | None], ...]


class TopicPartitions(click.ParamType[tuple[str, tuple[int, ...] | None]]):
    """A topic name, with its partitions or None for all."""

    name = "topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        topic, colon, listed = value.partition(":")
        indexes = listed.split(",")
        if not topic or (colon and not all(one.isascii() and one.isdigit() for one in indexes)):
            self.fail(f"{value!r} is not a topic with partitions; write orders or orders:0,1", param, ctx)
        return topic, tuple(sorted(map(int, indexes))) if colon else None


TOPIC = TopicPartitions()


def places_text(places: Iterable[tuple[str, int]]) -> str:
    """`orders-0, orders-1`."""
    return ", ".join(f"{topic}-{index}" for topic, index in places)
