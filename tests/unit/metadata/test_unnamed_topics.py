"""A topic whose name is not known is spelled with its id as Kafka prints it, wherever it is named."""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.log.entities import EntityNamer
from metaquorum.metadata.inspect.timeline.spans import PartitionSpans
from metaquorum.storage.uuids import uuid_from_text

TEXT = "HBaK2wDSCOQvkzFFKfH6nA"
TOPIC = uuid_from_text(TEXT)


def test_every_tool_spells_it_the_same() -> None:
    spans = PartitionSpans(ChangeFeed(MetadataImage(), is_known=False), None)
    assert spans.named((TOPIC, 3)) == (f"{TEXT}-3", f"topic/{TEXT}/3")
    assert EntityNamer().topic_name(TOPIC) == TEXT
