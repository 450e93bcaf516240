"""Subscriptions by pattern (KIP-848): which topics an RE2 expression matches, searched in slices.

Owns when a group's patterns are looked up again, and how much of that is done at a time, so that no pattern
holds up the broker. Does not change a group: the matches become records in `change`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup, ResolvedPattern
from metaquorum.metadata.access.authorizer import Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs.groups import GroupConfig
from metaquorum.metadata.settings.acls import Operation, ResourceType

REFRESH_MIN_MS = 10_000
"""A group's patterns are not looked up more often, so that many changes cause one rebalance (Kafka's
value)."""
SLICE_WORK = 1_000_000
"""Bytes of topic names times instructions of patterns that are processed without a pause: up to 10 ms."""

_MEMORY_BYTES = 1 << 20
"""Per pattern: RE2 refuses those that need more."""
_RIGHT_WORK = 5_000
"""The cost of checking one permission, in the same unit."""


@lru_cache(maxsize=100)
def _compiled(pattern: str) -> Any:
    """Raises `re2.error`, whose argument describes the problem."""
    import re2  # only brokers with groups that have patterns need it

    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    return re2.compile(pattern, options)


def pattern_problem(pattern: str) -> str | None:
    """Why it is not a valid pattern; None if it is."""
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        return str(error.args[0].decode())
    return None


class _Lookup:
    """The lookup of one group's patterns over all topics of an image."""

    def __init__(
        self, patterns: frozenset[str], image: MetadataImage, caller: Caller, authorizer: Authorizer | None
    ) -> None:
        self.found: dict[str, set[str]] = {each: set() for each in patterns}
        self.image = image
        self._caller = caller
        self._authorizer = authorizer
        known = [each for each in patterns if pattern_problem(each) is None]
        self._patterns = [(_compiled(each), self.found[each]) for each in known]
        self._size = sum(each.programsize for each, _ in self._patterns)
        self._names: Iterator[str] = (each.info.name for each in image.topics.by_id.values_unordered())

    def go_on(self) -> bool:
        """Looks at some more topics. Returns whether it has seen all."""
        work = 0
        for name in self._names:
            matching = [found for pattern, found in self._patterns if pattern.fullmatch(name)]
            if matching and self._is_shown(name):
                for found in matching:
                    found.add(name)
            work += len(name) * self._size + (_RIGHT_WORK if matching and self._authorizer else 0)
            if work >= SLICE_WORK:
                return False
        return True

    def _is_shown(self, name: str) -> bool:
        return self._authorizer is None or self._authorizer.allows(
            self.image, self._caller, Operation.DESCRIBE, ResourceType.TOPIC, name
        )


class Patterns:
    """See the module. `authorizer` None: every client may describe every topic."""

    def __init__(self, config: GroupConfig, authorizer: Authorizer | None) -> None:
        self._config = config
        self._authorizer = authorizer
        self._image = MetadataImage()
        self._newest_topics = 0
        self._lookups: dict[str, _Lookup] = {}

    def published(self, image: MetadataImage) -> None:
        if image.topics.by_name is not self._image.topics.by_name:
            self._newest_topics = image.provenance.offset
        self._image = image

    def heard(self, group: ConsumerGroup, caller: Caller, wall_ms: int) -> bool:
        """A member of `group` sent a request. Returns whether the group's patterns will be looked up from now
        on, with the permissions of that member."""
        patterns = group.subscribed_patterns()
        if not patterns or group.group_id in self._lookups:
            return False
        known = group.patterns.values()
        age_ms = wall_ms - max((each.wall_ms for each in known), default=wall_ms - REFRESH_MIN_MS - 1)
        is_stale = (
            patterns != group.patterns.keys()
            or min(each.version for each in known) < self._newest_topics
            or age_ms > self._config.group_consumer_regex_refresh_interval_ms
        )
        # A time in the future is that of another clock.
        if not is_stale or 0 <= age_ms <= REFRESH_MIN_MS:
            return False
        self._lookups[group.group_id] = _Lookup(patterns, self._image, caller, self._authorizer)
        return True

    @property
    def is_looking(self) -> bool:
        return bool(self._lookups)

    def go_on(self, wall_ms: int) -> tuple[str, Mapping[str, ResolvedPattern]]:
        """Processes one slice. Returns a group and what its patterns match, once all topics have been looked
        at."""
        group_id, lookup = next(iter(self._lookups.items()), ("", None))
        if lookup is None or not lookup.go_on():
            return "", {}
        del self._lookups[group_id]
        return group_id, {
            pattern: ResolvedPattern(frozenset(found), lookup.image.provenance.offset, wall_ms)
            for pattern, found in lookup.found.items()
        }
