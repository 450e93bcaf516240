"""Log lines on standard error, as text or as one JSON object per line.

Every JSON line has fields about its node at that moment (`set_log_context`). A line about metadata says
whether its event happens now (`live`), or was in a log or snapshot from before this process (`replayed`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

Source = Literal["live", "replayed"]

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields passed as `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _time_text(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z WARNING what happened (offset=7 source=live)`"""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time_text(record)} {record.levelname} {record.getMessage()}"
        fields = _fields(record)
        if fields:
            line += " (" + " ".join(f"{name}={value}" for name, value in fields.items()) + ")"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `message`, and the line's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_text(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_context: Callable[[], Mapping[str, object]] = dict


def set_log_context(context: Callable[[], Mapping[str, object]]) -> None:
    """Sets the function that returns fields for every JSON line, evaluated at that time (epoch, offset,
    broker_epoch). A line's own field of the same name takes precedence. There is one node per process."""
    global _context  # noqa: PLW0603
    _context = context


def set_up_logging(line_format: str, level: str, **fields: object) -> None:
    """Sends all lines to standard error; each JSON line also has `fields` (node, role)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if line_format == "json" else TextFormatter())
    if line_format == "json":
        handler.addFilter(_Always(fields))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # gRPC logs a traceback for a response that it cannot decode, and returns None, which callers report.
    logging.getLogger("grpc._common").setLevel(logging.CRITICAL)


class _Always(logging.Filter):
    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        own = record.__dict__
        for name, value in (*_context().items(), *self._fields.items()):
            if name not in own:
                own[name] = value
        return True


def log_metadata(
    logger: logging.Logger,
    message: str,
    *,
    offset: int,
    epoch: int,
    source: Source,
    debug: bool = False,
    **fields: object,
) -> None:
    """Logs one line about metadata that became true when everything below `offset` was applied; the last of
    these records was written in the quorum's `epoch`. `fields`: the subject and its epoch (broker_id and
    broker_epoch; topic, partition and leader_epoch)."""
    level = logging.DEBUG if debug else logging.INFO
    logger.log(level, "%s", message, extra={"offset": offset, "epoch": epoch, "source": source, **fields})
