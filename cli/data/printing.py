"""Prints the records of `metaquorum consume` to standard output, as text or JSON.

Owns the forms of a record, and the check that standard output still has a reader. Does not read records or
count them.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from typing import Any, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from metaquorum.cli.data.consume_plan import ConsumeOptions
from metaquorum.cli.text.output import json_line, text_or_base64


def look_for_reader() -> None:
    """Raises BrokenPipeError if the reader of the pipe is gone, which otherwise only a write would show."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return
    watch = select.poll()
    watch.register(descriptor, 0)
    if any(events & select.POLLERR for _, events in watch.poll(0)):
        raise BrokenPipeError


def print_records(plan: ConsumeOptions, records: Sequence[Message]) -> None:
    """Writes records to standard output without delay: the reader of a pipe sees each at once."""
    if plan.as_json:
        text = "".join(json_line(_as_json(each)) + "\n" for each in records).encode()
    elif plan.with_key or plan.with_offsets:
        text = b"".join(_line(plan, each) for each in records)
    else:
        text = b"\n".join([_shown(_bytes(each.value())) for each in records]) + b"\n"
    out = sys.stdout.buffer
    out.write(text)
    out.flush()


def _line(plan: ConsumeOptions, record: Message) -> bytes:
    parts: list[bytes] = []
    if plan.with_offsets:
        parts.append(b"%d:%d" % place_of(record))
    if plan.with_key:
        parts.append(_shown(_bytes(record.key())))
    parts.append(_shown(_bytes(record.value())))
    return b"\t".join(parts) + b"\n"


def _bytes(content: Any) -> bytes | None:
    return cast("bytes | None", content)


def _shown(content: bytes | None) -> bytes:
    return b"null" if content is None else content


def _as_json(record: Message) -> dict[str, Any]:
    kind, timestamp_ms = record.timestamp()
    headers = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    return {
        "partition": place_of(record)[0],
        "offset": place_of(record)[1],
        "timestampMs": -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        **text_or_base64("key", _bytes(record.key())),
        **text_or_base64("value", _bytes(record.value())),
        "headers": [{"name": name, **text_or_base64("value", value)} for name, value in headers],
    }


def place_of(record: Message) -> tuple[int, int]:
    """(partition, offset)."""
    return cast("tuple[int, int]", (record.partition(), record.offset()))
