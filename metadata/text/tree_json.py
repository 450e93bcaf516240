"""An image as JSON in pieces: the text of the tree of `tree.image_tree`, without building it whole.

Owns only the order of the pieces. Does not know their content, which is for `tree`. Memory is that of one
piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from metaquorum.metadata.image import MetadataImage, TopicInfo, TopicsImage
from metaquorum.metadata.text.tree import image_tree, partition_tree
from metaquorum.storage.uuids import uuid_to_text

Encoder = Callable[[Any], str]
"""Compact JSON of plain data."""

_ROWS_AT_ONCE = 4096


def image_json(image: MetadataImage, encode: Encoder, *, secrets: bool = False) -> Iterator[str]:
    """`encode(image_tree(image))` in pieces."""
    separator = "{"
    for name, part in image_tree(replace(image, topics=TopicsImage()), secrets=secrets).items():
        yield f"{separator}{encode(name)}:"
        separator = ","
        if name == "topic":
            yield from topics_json(image, encode)
        else:
            yield encode(part)
    yield "}"


def topics_json(image: MetadataImage, encode: Encoder) -> Iterator[str]:
    """The same for the branch of all topics."""
    separator = "{"
    for topic in image.topics.all():
        yield f"{separator}{encode(topic.name)}:"
        separator = ","
        yield from _topic(image.topics, topic, encode)
    yield "}" if separator == "," else "{}"


def _topic(topics: TopicsImage, topic: TopicInfo, encode: Encoder) -> Iterator[str]:
    yield f'{{"topicId":{encode(uuid_to_text(topic.topic_id))},"partitions":{{'
    rows = topics.rows_of(topic.topic_id)
    separator = ""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        made = []
        for row in rows[start : start + _ROWS_AT_ONCE].tolist():
            partition = topics.at(row)
            made.append(f'"{partition.index}":{encode(partition_tree(partition))}')
        yield separator + ",".join(made)
        separator = ","
    yield "}}"
