"""Requests and responses of one connection, without input or output: versions, correlation, order.

Owns the version of each request, and which request a response belongs to. Knows no socket and no timeout:
`connection` does. A node responds in the order of the requests; anything else is not a node of Kafka's
protocol.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, NamedTuple

from metaquorum.runtime.kafka.client.errors import ConnectionFailed, UnsupportedVersion
from metaquorum.wire import codec
from metaquorum.wire.apis import API_BY_NAME, API_VERSIONS, APIS
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from metaquorum.wire.primitives import Buffer

UNSUPPORTED_VERSION = 35
_REFUSED = UNSUPPORTED_VERSION.to_bytes(2, "big")
_LENGTH = struct.Struct(">i")
_CORRELATION_ID = struct.Struct(">i")
_LAST_CORRELATION_ID = 2**31 - 1
_SOFTWARE = ("metaquorum", "1")


class _Sent(NamedTuple):
    correlation_id: int
    api_key: int
    version: int


def api_of(body: Any) -> int:
    """The API key of a request's body."""
    return API_BY_NAME[type(body).__name__.removesuffix("Request")].key


class PendingRequests:
    """Requests without a response, in order. `client_id` names this program in the node's log. Before
    `settle_versions` only ApiVersions can be sent."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._next_correlation_id = 0
        self._sent: deque[_Sent] = deque()
        self._offered: dict[int, range] = {API_VERSIONS: range(4)}

    def __len__(self) -> int:
        """Number of requests without a response."""
        return len(self._sent)

    def api_versions(self, version: int) -> ApiVersionsRequest:
        """The first request of a connection (KIP-35, KIP-511)."""
        if version < 3:
            return ApiVersionsRequest()
        name, release = _SOFTWARE
        return ApiVersionsRequest(client_software_name=name, client_software_version=release)

    def settle_versions(self, answer: ApiVersionsResponse) -> None:
        """From now on, requests have versions that both the node and the table have."""
        self._offered = {
            each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys
        }

    def version(self, api: str, lowest: int = 0, highest: int = 2**15 - 1) -> int:
        """The highest version of an API between `lowest` and `highest` that both sides have. Raises
        UnsupportedVersion."""
        ours = APIS[API_BY_NAME[api].key]
        theirs = self._offered.get(ours.key)
        if theirs is None:
            raise UnsupportedVersion(f"the node does not offer {api}")
        found = min(highest, ours.max_version, theirs[-1] if theirs else -1)
        if found < max(lowest, ours.min_version, theirs.start):
            raise UnsupportedVersion(
                f"the node offers {api} {theirs.start} to {theirs.stop - 1}; "
                f"{max(lowest, ours.min_version)} to {min(highest, ours.max_version)} is needed"
            )
        return found

    def request(self, body: Any, version: int) -> list[Buffer]:
        """The chunks of a request's frame, with its length, to be sent now. Raises EncodeError."""
        api_key = api_of(body)
        correlation_id = self._next_correlation_id
        header = codec.RequestHeader(api_key, version, correlation_id, self._client_id)
        chunks = codec.encode_request(header, body)
        self._next_correlation_id = 0 if correlation_id == _LAST_CORRELATION_ID else correlation_id + 1
        self._sent.append(_Sent(correlation_id, api_key, version))
        return [_LENGTH.pack(sum(map(len, chunks))), *chunks]

    def answer(self, frame: Buffer) -> codec.Response:
        """The response in a frame, which belongs to the oldest request. Raises ConnectionFailed if it
        does not: the stream is then unusable."""
        if not self._sent:
            raise ConnectionFailed("it sent an answer without a request")
        expected = self._sent.popleft()
        name = APIS[expected.api_key].name
        if (
            len(frame) < _CORRELATION_ID.size
            or _CORRELATION_ID.unpack_from(frame)[0] != expected.correlation_id
        ):
            raise ConnectionFailed(f"its answer to {name} does not belong to the request")
        try:
            return codec.decode_response(expected.api_key, expected.version, frame)
        except DecodeError as error:
            if expected.api_key == API_VERSIONS and frame[4:6] == _REFUSED:
                # Some nodes do not write this response in version 0.
                body = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION)
                return codec.Response(0, expected.correlation_id, body, len(frame))
            raise ConnectionFailed(f"its answer to {name} cannot be read: {error}") from error
