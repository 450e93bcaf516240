"""A cache of Metadata answers, valid while their brokers, topics and missing topics are unchanged in the
newest image.

Owns when an answer is no longer valid. Does not know how one is made: `cluster` does. Clients send the same
request again and again: it gets the same answer, with the bytes that were sent before.
"""

from __future__ import annotations

import msgspec

from metaquorum.broker.server.kafka.cluster import Viewpoint, answer_metadata
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import BrokersImage, TopicsImage
from metaquorum.runtime.kafka.prepared import Prepared
from metaquorum.wire.messages import MetadataRequest, MetadataResponse

ANSWERS_MAX = 1000
"""Different requests that are cached; beyond that all are forgotten."""


class KnownAnswer(msgspec.Struct, frozen=True):
    """An answer, and the names in it of topics that do not exist but could."""

    body: MetadataResponse
    missing: tuple[str, ...]


class MetadataCache:
    """See the module. `prepared` has the bytes."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._of: tuple[TopicsImage, BrokersImage] | None = None
        self._answers: dict[tuple[str, int, MetadataRequest], KnownAnswer] = {}

    def answer(self, request: MetadataRequest, version: int, view: Viewpoint) -> KnownAnswer:
        """The answer to Metadata of this version."""
        topics, brokers = view.image.topics, view.image.brokers
        is_same = self._of is not None and self._of[0] is topics and self._of[1] is brokers
        if not is_same or len(self._answers) >= ANSWERS_MAX:
            self._of = topics, brokers
            self._answers.clear()
            self._prepared.forget()
        key = view.listener, version, request
        known = self._answers.get(key)
        if known is None:
            body = answer_metadata(request, version, view)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing = tuple(each.name for each in body.topics if each.error_code == code and each.name)
            known = self._answers[key] = KnownAnswer(body, missing)
            self._prepared.add(body)
        return known
