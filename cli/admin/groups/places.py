"""Topics and their partitions as they are typed and printed: `orders`, `orders:0,1`, `orders-0`.

Owns the syntax. Knows no cluster: it does not check that the partitions exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from metaquorum.metadata.settings.keys import MAX_INT, whole_number

Topics = tuple[tuple[str, tuple[int, ...] | None], ...]


class TopicPartitions(click.ParamType[tuple[str, tuple[int, ...] | None]]):
    """A topic name, with its partitions or None for all."""

    name = "topic"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...] | None]:
        topic, colon, listed = value.partition(":")
        indexes = [whole_number(one, MAX_INT) for one in listed.split(",")]
        numbers = [one for one in indexes if one is not None]
        if not topic or (colon and len(numbers) < len(indexes)):
            self.fail(f"{value!r} is not a topic with partitions; write orders or orders:0,1", param, ctx)
        return topic, tuple(sorted(numbers)) if colon else None


TOPIC = TopicPartitions()


def places_text(places: Iterable[tuple[str, int]]) -> str:
    """`orders-0, orders-1`."""
    return ", ".join(f"{topic}-{index}" for topic, index in places)
