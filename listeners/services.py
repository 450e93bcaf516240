"""Which APIs a listener serves, in which versions, and the response to ApiVersions."""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

import msgspec

from metaquorum.listeners.answers import Chunks, Prepared
from metaquorum.listeners.login import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    VALUES_BEFORE_LOGIN,
    outside_of_a_login,
)
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.features import KNOWN_FEATURES, KRAFT_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.network.deferred import Deferred, Driven
from metaquorum.wire import codec
from metaquorum.wire.codec import Request
from metaquorum.wire.errors import DecodeError, TooManyValues
from metaquorum.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from metaquorum.wire.table import API_BY_NAME, API_VERSIONS

_HEAD = struct.Struct(">hhi")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Names and versions of clients (KIP-511)."""


class EndConnection(Exception):
    """Raised by a handler to close the connection, for a request without a response; the text is logged."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """The client of a connection: `listener` is the name of the listener, `address` the client's IP address.
    `by_token`: it logged in with a delegation token, and therefore must not create others. `connection` is
    another number for each connection of the process."""

    listener: str
    address: str
    principal: str = ANONYMOUS
    by_token: bool = False
    connection: int = 0


class Later(msgspec.Struct, frozen=True):
    """A response that `finish` makes from the value of `deferred`. It may be awaited like any other; a
    connection does not need a task for it, which would cost time for every message."""

    deferred: Deferred[Any]
    finish: Callable[[Any], Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.finish((yield from self.deferred.__await__()))


Handler = Callable[[Request, Client], Any | Awaitable[Any]]
"""Returns the body of the response to a request, or an awaitable of it; None: no response is sent."""


def at_once(handler: Callable[[Request, Client], Coroutine[Any, Any, Any]]) -> Handler:
    """The same handler without a task (`deferred.Driven`)."""

    def begin(request: Request, client: Client) -> Later:
        return Later(Driven(handler(request, client)), _as_it_is)

    return begin


def _as_it_is(answer: Any) -> Any:
    return answer


class Offered(msgspec.Struct, frozen=True):
    """One API of a listener: its lowest and highest version, and the handler."""

    min_version: int
    max_version: int
    handle: Handler


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """The feature levels in ApiVersions (KIP-584) by name: supported as (lowest, highest), and finalized.
    `epoch` is the offset of the last record before which they were finalized; -1: nothing is known yet."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


def features_of(image: MetadataImage, kraft_version: int) -> Features:
    """The features for ApiVersions; kraft.version comes from control records, not from the image, where a
    leader of Apache Kafka before 4.1 may have recorded a level that the quorum is not at."""
    levels = {name: level for name, level in image.features.finalized.items() if name != KRAFT_VERSION}
    if kraft_version:
        levels[KRAFT_VERSION] = kraft_version
    return Features(
        supported={each.name: (each.min_level, each.max_level) for each in KNOWN_FEATURES},
        finalized=levels,
        epoch=image.provenance.offset - 1,
    )


def _no_login(request: Request, client: Client) -> object:
    return outside_of_a_login(request)


class Services:
    """The APIs of a listener by key, including ApiVersions."""

    def __init__(
        self,
        offered: Mapping[str, Offered],
        features: Callable[[], Features],
        prepared: Prepared | None = None,
    ) -> None:
        self._features = features
        self.prepared = Prepared() if prepared is None else prepared
        self._by_key = {API_BY_NAME[name].key: each for name, each in offered.items()}
        self._by_key[API_VERSIONS] = Offered(0, 4, self._api_versions)
        # On every listener, as in Kafka: the response says so if no login is in progress.
        self._by_key[SASL_HANDSHAKE] = Offered(0, 1, _no_login)
        self._by_key[SASL_AUTHENTICATE] = Offered(0, 2, _no_login)

    def limit(self, highest: Mapping[str, int]) -> None:
        """Offers these APIs only, up to these versions, as an older release does."""
        kept = {API_BY_NAME[name].key: version for name, version in highest.items()}
        self._by_key = {
            key: Offered(each.min_version, min(each.max_version, kept[key]), each.handle)
            for key, each in self._by_key.items()
            if key in kept and each.min_version <= kept[key]
        }

    def find(self, api_key: int, version: int) -> Handler | None:
        """The handler of this version of an API; None if it is not offered."""
        found = self._by_key.get(api_key)
        if found is None or not found.min_version <= version <= found.max_version:
            return None
        return found.handle

    def unsupported_version(self) -> ApiVersionsResponse:
        """The response, in version 0, to an ApiVersions request in a version that is not offered
        (KIP-511)."""
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self._api_keys())

    def before_login(self, listener: str, frame: bytes | bytearray) -> tuple[Chunks, bool]:
        """The response to an ApiVersions request before a login, and whether the client must repeat the
        request; no chunks for a frame that is not one."""
        if len(frame) < _HEAD.size:
            return [], False
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        handler = self.find(api_key, version)
        if handler is None:
            body = self.unsupported_version()
            return codec.encode_response(API_VERSIONS, 0, correlation_id, body), True
        try:
            request = codec.decode_request(frame, VALUES_BEFORE_LOGIN)
            answer: Any = handler(request, Client(listener=listener, address=""))
        except (DecodeError, TooManyValues):
            return [], False
        return codec.encode_response(API_VERSIONS, version, correlation_id, answer), bool(answer.error_code)

    def _api_keys(self) -> tuple[ApiVersionsResponse.ApiVersion, ...]:
        return tuple(
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=each.min_version, max_version=each.max_version
            )
            for key, each in sorted(self._by_key.items())
        )

    def _api_versions(self, request: Request, client: Client) -> ApiVersionsResponse:
        body: ApiVersionsRequest = request.body
        software = body.client_software_name, body.client_software_version
        if request.header.version >= 3 and not all(map(_SOFTWARE.fullmatch, software)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        return versions_answer(self._api_keys(), self._features(), request.header.version)


def versions_answer(
    api_keys: tuple[ApiVersionsResponse.ApiVersion, ...], features: Features, version: int
) -> ApiVersionsResponse:
    """The response to ApiVersions in this version."""
    # Versions below 4 omit a range from 0: older clients cannot read it (KAFKA-17011).
    supported = {
        name: (low, high)
        for name, (low, high) in sorted(features.supported.items())
        if low > 0 or version >= 4
    }
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=tuple(
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in supported.items()
        ),
        finalized_features=tuple(
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, min_version_level=level, max_version_level=level
            )
            for name, level in sorted(features.finalized.items())
        ),
        finalized_features_epoch=features.epoch,
    )
