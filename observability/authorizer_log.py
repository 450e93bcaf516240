"""The authorizer's decisions, one line each (Kafka: kafka.authorizer.logger): denials, if asked permissions.

Values that clients choose are escaped; no field holds a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from metaquorum.config.node import NodeConfig
from metaquorum.errors import ConfigError
from metaquorum.lines import printable
from metaquorum.metadata.authorizer import Caller
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.observability.logging import JsonFormatter

FILES_KEPT = 5
"""Rotated files that are kept in addition to the current one."""

LINES_MAX = 5
"""Denials of a principal that have a line of their own in DENIALS_S; one more line then counts the others."""
DENIALS_S = 30.0
PRINCIPALS_MAX = 1_000
"""Principals whose denials are counted one by one; those of all others are counted together."""
_SHOWN_NAME = 256
_OTHERS = "other principals"

_log = logging.getLogger("metaquorum.authorizer")
_own = logging.getLogger(__name__)


def set_up_authorizer_log(config: NodeConfig) -> None:
    """Sets the log up from the node's configuration. Raises ConfigError for a file that cannot be written."""
    denials.start_over()
    for old in list(_log.handlers):
        _log.removeHandler(old)
        old.close()
    path = config.text("authorizer.log.path")
    _log.setLevel(logging.DEBUG if config.flag("authorizer.log.allowed") else logging.INFO)
    _log.propagate = not path
    if path:
        try:
            handler = _PrivateFile(path, config.number("authorizer.log.max.bytes"))
        except OSError as error:
            raise ConfigError(
                f"authorizer.log.path={path} cannot be written ({error.strerror}): name a file in a "
                "directory that exists and that this process may write to"
            ) from error
        handler.setFormatter(JsonFormatter())
        _log.addHandler(handler)


def has_own_file() -> bool:
    """Whether decisions go to a file of their own, and not to the node's log."""
    return not _log.propagate


def note_decision(
    allowed: bool, caller: Caller, operation: Operation, resource: ResourceType, name: str, api: str
) -> None:
    """Logs that a client may, or may not, do this operation on a resource; `api` is the API that needs it."""
    level = logging.DEBUG if allowed else logging.INFO
    if not _log.isEnabledFor(level) or not (allowed or denials.has_room(caller.principal)):
        return
    principal, address, shown = printable(caller.principal), printable(caller.host), printable(name)
    if len(shown) > _SHOWN_NAME:
        shown = f"{shown[:_SHOWN_NAME]}... ({len(name)} characters)"
    words = ("may", "for") if allowed else ("may not", "which")
    _log.log(
        level,
        "%s from %s %s %s %s %s, %s %s%s",
        principal,
        address,
        words[0],
        operation.name,
        resource.name,
        shown,
        words[1],
        api,
        "" if allowed else " needs",
        extra={
            "decision": "allowed" if allowed else "denied",
            "principal": principal,
            "client": address,
            "operation": operation.name,
            "resource": f"{resource.name}:{shown}",
            "api": api,
        },
    )


class Denials:
    """How many denials of each principal were logged and omitted: a client without rights may cause any
    number. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self._counts: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def has_room(self, principal: str) -> bool:
        """Counts a denial. True if it is logged."""
        if self._clock() - self._since_s >= DENIALS_S:
            self.log_omitted()
        counts = self._counts
        key = principal if principal in counts or len(counts) < PRINCIPALS_MAX else _OTHERS
        counts[key] = counts.get(key, 0) + 1
        if counts[key] == LINES_MAX + 1:
            self._log_later()
        return counts[key] <= LINES_MAX

    def start_over(self) -> None:
        """Forgets what was counted."""
        self._counts, self._since_s = {}, self._clock()

    def log_omitted(self) -> None:
        """Logs one line per principal with omitted denials, and starts over."""
        counts, spent_s = self._counts, self._clock() - self._since_s
        self.start_over()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        omitted = [(name, count - LINES_MAX) for name, count in counts.items() if count > LINES_MAX]
        for principal, count in omitted[:LINES_MAX]:
            shown = printable(principal)
            _log.info(
                "%s: %d more denials in the last %.0f s are not listed",
                *(shown, count, spent_s),
                extra={"decision": "denied", "principal": shown, "count": count},
            )
        if len(omitted) > LINES_MAX:
            rest = sum(count for _, count in omitted[LINES_MAX:])
            text = "%d more principals: %d more denials in the last %.0f s are not listed"
            _log.info(text, len(omitted) - LINES_MAX, rest, spent_s)

    def _log_later(self) -> None:
        if self._timer is None:
            with suppress(RuntimeError):  # without a loop, the next denial tells
                left_s = self._since_s + DENIALS_S - self._clock()
                self._timer = asyncio.get_running_loop().call_later(max(left_s, 0.0), self.log_omitted)


denials = Denials()
"""Those of this process, which has one authorizer."""


class _PrivateFile(RotatingFileHandler):
    """A file that only its owner can read. Lines that cannot be written are lost; the node's log says so
    once."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self._is_failing = False
        super().__init__(path, maxBytes=max_bytes, backupCount=FILES_KEPT, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        opener: Callable[[str, int], int] = lambda path, flags: os.open(path, flags, 0o600)  # noqa: E731
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)  # type: ignore[return-value]

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._is_failing:
            self._is_failing = True
            text = "lines of the authorizer log %s are lost, because it cannot be written: %s"
            _own.warning(text, self.baseFilename, sys.exc_info()[1])
