"""Responses that are sent repeatedly: a body is encoded once, and its bytes are sent each time.

Owns which bodies these are, and the memory of their bytes. Does not compare contents: a body is identified by
its identity, so a changed one must be a new object.
"""

from __future__ import annotations

from typing import Any

from metaquorum.runtime.kafka.answers import Chunks
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader

BYTES_MAX = 32 * 1024 * 1024


class Prepared:
    """`add` announces that a body will be sent repeatedly in one version of an API; `forget` drops all
    bodies."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._bodies: dict[int, tuple[Any, bytes | None]] = {}

    def add(self, body: Any) -> None:
        self._bodies[id(body)] = body, None

    def forget(self) -> None:
        self._bodies.clear()
        self._bytes = 0

    def encode(self, header: RequestHeader, body: Any) -> Chunks:
        """The response frame with this body. Raises EncodeError."""
        known = self._bodies.get(id(body))
        if known is None or known[0] is not body:
            return codec.encode_response(header.api_key, header.version, header.correlation_id, body)
        data = known[1]
        if data is None:
            data = codec.encode_body(header.api_key, header.version, body)
            if self._bytes + len(data) <= self._bytes_max:
                self._bytes += len(data)
                self._bodies[id(body)] = body, data
        return [codec.response_header(header.api_key, header.version, header.correlation_id), data]
