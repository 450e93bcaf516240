"""Answers that are given again and again: a body is encoded once, and its bytes are sent each time.

Owns which bodies those are, and how much memory their bytes take. A body is known by its identity: one that
someone has changed is another one.
"""

from __future__ import annotations

from typing import Any

from metaquorum.runtime.kafka.answers import Chunks
from metaquorum.wire import codec
from metaquorum.wire.codec import RequestHeader

BYTES_MAX = 32 * 1024 * 1024


class Prepared:
    """`add` says that a body will be answered again in one version of an API; `forget` that none of them."""

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
        """The frame that answers a request with a body. Raises EncodeError."""
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
