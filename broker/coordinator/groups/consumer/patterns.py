"""Subscriptions by pattern (KIP-848): which topics an RE2 expression matches, searched in slices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup, ResolvedPattern
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.extras import install_command, is_installed
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.node_configs import GroupConfig
from metaquorum.metadata.settings.acls import Operation, ResourceType

REFRESH_MIN_MS = 10_000
"""A group's patterns are not looked up more often, so that many changes cause one rebalance (Kafka's
value)."""
SLICE_WORK = 1_000_000
"""Bytes of topic names times instructions of patterns that are processed without a pause: up to 10 ms."""

PATTERN_MAX_BYTES = 2_048
COSTLY_MAX = 24
"""Repetitions in braces and Unicode classes of one pattern. RE2 expands them before it looks at its memory,
at up to 1 ms each, and holds the interpreter meanwhile."""

_COSTLY = re.compile(r"\\[pP]|\{")
_MEMORY_BYTES = 1 << 18
"""Per pattern: RE2 refuses those that need more."""
_RIGHT_WORK = 5_000
"""The cost of checking one permission, in the same unit."""


@lru_cache(maxsize=100)
def _compiled(pattern: str) -> Any | str:
    """The compiled pattern, or what is wrong with it, as the rest of a sentence."""
    size = len(pattern.encode("utf-8", errors="surrogatepass"))
    if size > PATTERN_MAX_BYTES:
        return f"has {size} bytes, and at most {PATTERN_MAX_BYTES} are allowed"
    if len(_COSTLY.findall(pattern)) > COSTLY_MAX:
        return f"has over {COSTLY_MAX} repetitions in braces and Unicode classes"
    import re2  # only brokers with groups that have patterns need it

    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        return f"is not valid in RE2: {error.args[0].decode()}"


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with a pattern, as the rest of a sentence; None if it can be used."""
    if not is_installed("re2"):
        return f"cannot be used: this broker lacks google-re2; install it with: {install_command('re2')}"
    found = _compiled(pattern)
    return found if isinstance(found, str) else None


class _Lookup:
    """The lookup of one group's patterns over all topics of an image."""

    def __init__(
        self, patterns: frozenset[str], image: MetadataImage, caller: Caller, authorizer: Authorizer | None
    ) -> None:
        self.matches: dict[str, set[str]] = {each: set() for each in patterns}
        self.image = image
        self._caller = caller
        self._authorizer = authorizer
        self._uncompiled = sorted(patterns)
        self._patterns: list[tuple[Any, set[str]]] = []
        self._size = 0
        self._names: Iterator[str] = (each.info.name for each in image.topics.by_id.values_unordered())

    def advance(self) -> bool:
        """Compiles a pattern, or looks at some more topics. Returns whether it has seen all."""
        if self._uncompiled:
            pattern = self._uncompiled.pop()
            compiled = _compiled(pattern)
            if not isinstance(compiled, str):
                self._patterns.append((compiled, self.matches[pattern]))
                self._size += compiled.programsize
            if self._uncompiled:
                return False
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
        # Without RE2, which topics another broker has found stays as it is.
        if not patterns or group.group_id in self._lookups or not is_installed("re2"):
            return False
        subscribed = group.patterns.values()
        age_ms = wall_ms - max((each.wall_ms for each in subscribed), default=wall_ms - REFRESH_MIN_MS - 1)
        is_stale = (
            patterns != group.patterns.keys()
            or min(each.version for each in subscribed) < self._newest_topics
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

    def advance(self, wall_ms: int) -> tuple[str, Mapping[str, ResolvedPattern]]:
        """Processes one slice. Returns a group and what its patterns match, once all topics have been looked
        at."""
        group_id, lookup = next(iter(self._lookups.items()), ("", None))
        if lookup is None or not lookup.advance():
            return "", {}
        del self._lookups[group_id]
        return group_id, {
            pattern: ResolvedPattern(frozenset(found), lookup.image.provenance.offset, wall_ms)
            for pattern, found in lookup.matches.items()
        }
