"""The authorizer's decisions, one line each (Kafka: kafka.authorizer.logger): denials, and on request
permissions.

Owns the words, the fields, and the file with its rotation. Does not decide anything: `metadata.access` does.
Values that clients choose are escaped; no field holds a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from metaquorum.metadata.access.authorizer import Caller
from metaquorum.metadata.settings.acls import Operation, ResourceType
from metaquorum.metadata.text.cause_text import printable
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.errors import ConfigError
from metaquorum.runtime.logging import JsonFormatter

FILES_KEPT = 5
"""Rotated files that are kept in addition to the current one."""

_log = logging.getLogger("metaquorum.authorizer")
_own = logging.getLogger(__name__)


def set_up_authorizer_log(config: NodeConfig) -> None:
    """Sets the log up from the node's configuration. Raises ConfigError for a file that cannot be written."""
    for old in list(_log.handlers):
        _log.removeHandler(old)
        old.close()
    path = config.text("authorizer.log.path")
    _log.setLevel(logging.DEBUG if config.text("authorizer.log.allowed") == "true" else logging.INFO)
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


def note_decision(
    allowed: bool, caller: Caller, operation: Operation, resource: ResourceType, name: str, api: str
) -> None:
    """Logs that a client may, or may not, do this operation on a resource; `api` is the API that needs it."""
    level = logging.DEBUG if allowed else logging.INFO
    if not _log.isEnabledFor(level):
        return
    principal, address, shown = printable(caller.principal), printable(caller.host), printable(name)
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
