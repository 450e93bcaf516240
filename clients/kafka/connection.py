"""One connection to a node of Kafka's protocol: opened with ApiVersions, then requests and their responses.

A request without a response in time closes the connection, because a late response would hold up the next
one. A node responds in the order of the requests; anything else is not a node of Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast

from metaquorum.metadata.text.addresses import may_be_host
from metaquorum.network.framing import FrameBuffer, FrameError
from metaquorum.network.sending import write_all
from metaquorum.network.tls import new_client_context
from metaquorum.rpc.reach import UNRESOLVED
from metaquorum.wire import codec
from metaquorum.wire.codec import Response
from metaquorum.wire.errors import DecodeError
from metaquorum.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from metaquorum.wire.primitives import Buffer
from metaquorum.wire.table import API_BY_NAME, API_VERSIONS, APIS

REQUESTS_MAX = 5
"""The most requests without a response on one connection; more wait for their turn."""

LOGIN_AGAIN = 0.85
"""The fraction of a session's lifetime after which to log in again (Kafka's clients: 0.85 to 0.95)."""

LOGIN_AGAIN_MIN_S = 1.1
"""A node accepts no second login within one second."""

LOOK_S = 2.0
"""The time limit of the check whether a node that closed the connection at once expects TLS."""

SPEAKS_TLS = (
    "it speaks TLS, but this client does not: set security.protocol (--command-config, or a node's listener"
    " map)"
)
SPEAKS_NO_TLS = "it does not speak TLS: change security.protocol (--command-config, or a node's listener map)"
CLOSED_AFTER_TLS = (
    "it closed the connection after the TLS handshake: it may not accept this node's certificate; see its log"
)
"""With TLS 1.3, a client's handshake ends before the node has judged the certificate, and some nodes send no
alert."""
WANTS_CERTIFICATE = "it requires a client certificate: set ssl.keystore.location"
SPEAKS_GRPC = (
    "it speaks gRPC there, and not Kafka's protocol: it is a controller of metaquorum, or a broker's gRPC"
    " listener; give a broker's listener for clients"
)
NO_LOGIN = (
    "it closed the connection at the first request: it may require a login (--command-config with"
    " security.protocol and sasl.*)"
)
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a TLS alert and handshake; as the length of a frame they would mean over 300 MB."""


class WaitsForAnswer(Protocol):
    """Receives a response, or the error that ends the connection: a future, or an object that acts at
    once."""

    def done(self) -> bool: ...

    def set_result(self, response: Response, /) -> None: ...

    def set_exception(self, error: ConnectionFailed, /) -> None: ...


class NodeConnection:
    """An open connection; `connect` creates one."""

    def __init__(self, protocol: _Protocol, exchange: PendingRequests) -> None:
        self._protocol = protocol
        self._exchange = exchange
        self._turns = asyncio.Semaphore(REQUESTS_MAX)
        self._no_login = asyncio.Event()
        self._no_login.set()
        self._login_due_s: float | None = None
        self._replaced_s: float | None = None

    @property
    def is_open(self) -> bool:
        return self._protocol.ended is None

    @property
    def has_answered(self) -> bool:
        """True if it has answered more than which versions it has."""
        return self._exchange.has_answered

    @property
    def login_is_due(self) -> bool:
        """True if the session ends soon: the next request must be a login."""
        return self._login_due_s is not None and asyncio.get_running_loop().time() >= self._login_due_s

    @property
    def must_be_replaced(self) -> bool:
        """Like `login_is_due`, for a caller that opens another connection instead: that may log in earlier,
        however short sessions are."""
        return self._replaced_s is not None and asyncio.get_running_loop().time() >= self._replaced_s

    @contextlib.contextmanager
    def login(self) -> Iterator[None]:
        """`ask` waits within this context: a node accepts nothing else during a login, which uses `begin`."""
        self._no_login.clear()
        try:
            yield
        finally:
            self._no_login.set()

    def session_lasts(self, lifetime_ms: int) -> None:
        """Call it after a login with the session's lifetime; 0: it does not expire."""
        self._login_due_s = self._replaced_s = None
        if lifetime_ms > 0:
            now_s, wait_s = asyncio.get_running_loop().time(), LOGIN_AGAIN * lifetime_ms / 1000
            self._replaced_s = now_s + wait_s
            self._login_due_s = now_s + max(wait_s, LOGIN_AGAIN_MIN_S)

    def version(self, api: str, lowest: int = 0, highest: int = 2**15 - 1) -> int:
        """See `PendingRequests.version`."""
        return self._exchange.version(api, lowest, highest)

    def offers(self, api: str, lowest: int = 0) -> bool:
        """Whether the node has an API in a version from `lowest` on."""
        try:
            self.version(api, lowest)
        except UnsupportedVersion:
            return False
        return True

    async def ask(self, body: Any, *, version: int | None = None, timeout_s: float) -> Response:
        """The response to a request; `version` None: the highest that both sides have. Records in it are
        memoryviews of the frame.

        Raises EncodeError for a body that the version cannot carry, ConnectionFailed, or TimeoutError, after
        which the connection is closed.
        """
        if version is None:
            version = self.version(type(body).__name__.removesuffix("Request"))
        try:
            async with asyncio.timeout(timeout_s), self._turns:
                await self._protocol.writable.wait()
                await self._no_login.wait()
                return await self.begin(body, version=version)
        except (TimeoutError, asyncio.CancelledError):
            self.close()
            raise

    def begin(self, body: Any, *, version: int) -> asyncio.Future[Response]:
        """Like `ask`, for the only user of the connection, which has its own timeout.

        Raises EncodeError or ConnectionFailed; the future may raise the latter too.
        """
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.send(body, version=version, to=future)
        return future

    def send(self, body: Any, *, version: int, to: WaitsForAnswer) -> None:
        """Like `begin`, but passes the response to `to` at once: a future would take another turn of the
        loop."""
        if self._protocol.ended is not None:
            raise self._protocol.ended
        self._protocol.send(self._exchange.request(body, version), to)

    @property
    def has_room(self) -> bool:
        """True if `send` may be used besides `ask`: the next request need not wait for its turn."""
        protocol = self._protocol
        return (
            protocol.ended is None
            and len(protocol) < REQUESTS_MAX
            and protocol.writable.is_set()
            and self._no_login.is_set()
        )

    def close(self, reason: str = "this side closed the connection") -> None:
        """Closes the connection; requests without a response end with ConnectionFailed."""
        self._protocol.end(ConnectionFailed(reason))


async def connect(
    host: str,
    port: int,
    *,
    client_id: str,
    tls: ssl.SSLContext | None = None,
    answer_max_bytes: int,
    timeout_s: float,
    looks_for_tls: bool = True,
) -> NodeConnection:
    """Opens a connection and determines its versions. `looks_for_tls`: if a node closes a plain connection at
    once, checks whether it expects TLS, for the error text. Raises ConnectionFailed, in one line without the
    address, or TimeoutError."""
    exchange = PendingRequests(client_id)
    async with asyncio.timeout(timeout_s):
        protocol = await _open(host, port, tls, exchange, answer_max_bytes)
        connection = NodeConnection(protocol, exchange)
        try:
            await _settle_versions(connection, exchange, timeout_s)
        except ConnectionFailed as error:
            connection.close()
            # A node that expects TLS may close the connection without a response.
            wrong_tls = looks_for_tls and tls is None and not isinstance(error, TlsFailed | WrongProtocol)
            if wrong_tls and await _speaks_tls(host, port):
                raise TlsFailed(SPEAKS_TLS) from error
            raise
        except BaseException:
            connection.close()
            raise
    return connection


async def carried(
    carry: Callable[[asyncio.BufferedProtocol], object],
    *,
    client_id: str,
    answer_max_bytes: int,
    timeout_s: float,
) -> NodeConnection:
    """Like `connect`, over another transport than a socket, which `carry` gives to the protocol."""
    exchange = PendingRequests(client_id)
    protocol = _Protocol(exchange, answer_max_bytes, is_tls=True)
    carry(protocol)
    connection = NodeConnection(protocol, exchange)
    try:
        await _settle_versions(connection, exchange, timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


async def _speaks_tls(host: str, port: int) -> bool:
    """True if a handshake gets as far as a certificate."""
    try:
        async with asyncio.timeout(LOOK_S):
            _, writer = await asyncio.open_connection(host, port, ssl=new_client_context(verifies=False))
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None, exchange: PendingRequests, answer_max_bytes: int
) -> _Protocol:
    if not may_be_host(host):
        raise HostUnknown(UNRESOLVED)
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.create_connection(
            lambda: _Protocol(exchange, answer_max_bytes, is_tls=tls is not None), host, port, ssl=tls
        )
    except ssl.SSLCertVerificationError as error:
        raise TlsFailed(f"its certificate is not accepted: {error.verify_message}") from error
    except socket.gaierror as error:
        raise HostUnknown(UNRESOLVED) from error
    except ConnectionRefusedError as error:
        raise ConnectionFailed("connection refused: no process listens there") from error
    except (ssl.SSLError, ConnectionError) as error:
        if tls is not None:
            raise _tls_problem(error) from error
        raise ConnectionFailed(str(error) or "the connection was reset") from error
    except OSError as error:
        raise ConnectionFailed(error.strerror or str(error)) from error
    return protocol


def _tls_problem(error: Exception) -> TlsFailed:
    reason = getattr(error, "reason", None) or ""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return TlsFailed(WANTS_CERTIFICATE)
    if "ALERT" in reason:
        return TlsFailed(
            f"it refuses this client's certificate or TLS version ({reason.lower().replace('_', ' ')})"
        )
    return TlsFailed(SPEAKS_NO_TLS)


_LOOKED_AT = 11


def _is_http2(begun: bytes) -> bool:
    """Whether these are the first settings of an HTTP/2 server: no answer of Kafka's protocol to ApiVersions
    has a number from 1 to 16 behind its first nine bytes."""
    is_settings = begun[:2] == bytes(2) and begun[3:9] == b"\x04" + bytes(5)
    return is_settings and 1 <= int.from_bytes(begun[9:_LOOKED_AT]) <= 16


async def _settle_versions(connection: NodeConnection, exchange: PendingRequests, timeout_s: float) -> None:
    """Queries the node's versions. A node that does not have this version of ApiVersions responds in version
    0 with those that it has (KIP-511)."""
    version = exchange.version("ApiVersions")
    while True:
        asked = exchange.api_versions(version)
        answer = (await connection.ask(asked, version=version, timeout_s=timeout_s)).body
        if answer.error_code == UNSUPPORTED_VERSION and version > 0:
            known = [each.max_version for each in answer.api_keys if each.api_key == API_VERSIONS]
            version = min(version - 1, max(known, default=0))
            continue
        if answer.error_code:
            raise ConnectionFailed(f"it refused ApiVersions with error {answer.error_code}")
        exchange.settle_versions(answer)
        return


class _Protocol(asyncio.BufferedProtocol):
    """The asyncio protocol of the transport. `ended`: why the connection is closed; None while it is open."""

    def __init__(self, exchange: PendingRequests, answer_max_bytes: int, *, is_tls: bool) -> None:
        self._exchange = exchange
        self._buffer = FrameBuffer(answer_max_bytes)
        self._is_tls = is_tls
        self._waiting: deque[WaitsForAnswer] = deque()
        self._begun = b""
        self.writable = asyncio.Event()
        self.writable.set()
        self.ended: ConnectionFailed | None = None
        self._transport: asyncio.Transport

    def __len__(self) -> int:
        """Number of requests without a response."""
        return len(self._waiting)

    def send(self, chunks: list[Any], waiting: WaitsForAnswer) -> None:
        self._waiting.append(waiting)
        write_all(self._transport, chunks)

    def end(self, error: ConnectionFailed) -> None:
        if self.ended is None:
            self.ended = error
        self.writable.set()
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_exception(self.ended)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended is not None:
            return
        if len(self._begun) < _LOOKED_AT:
            self._begun += bytes(self._buffer.get_buffer()[: min(nbytes, _LOOKED_AT)])
            if _is_http2(self._begun):
                self.end(WrongProtocol(SPEAKS_GRPC))
                return
        try:
            for frame in self._buffer.received(nbytes):
                answer = self._exchange.answer(frame)
                waiting = self._waiting.popleft()
                if not waiting.done():
                    waiting.set_result(answer)
        except FrameError as error:
            if not self._is_tls and self._begun[:2] in _TLS_RECORDS:
                self.end(TlsFailed(SPEAKS_TLS))
            else:
                self.end(ConnectionFailed(f"it does not speak Kafka's protocol: {error}"))
        except ConnectionFailed as error:
            self.end(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self.end(_tls_problem(exc))
        elif isinstance(exc, ConnectionFailed):
            self.end(exc)
        else:
            self.end(ConnectionClosed("it closed the connection"))


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
        self.has_answered = False
        """Whether a request other than ApiVersions was answered."""

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
        version = min(highest, ours.max_version, theirs[-1] if theirs else -1)
        if version < max(lowest, ours.min_version, theirs.start):
            raise UnsupportedVersion(
                f"the node offers {api} {theirs.start} to {theirs.stop - 1}; "
                f"{max(lowest, ours.min_version)} to {min(highest, ours.max_version)} is needed"
            )
        return version

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
            response = codec.decode_response(expected.api_key, expected.version, frame)
            self.has_answered = self.has_answered or expected.api_key != API_VERSIONS
            return response
        except DecodeError as error:
            if expected.api_key == API_VERSIONS and frame[4:6] == _REFUSED:
                # Some nodes do not write this response in version 0.
                body = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION)
                return codec.Response(0, expected.correlation_id, body, len(frame))
            raise ConnectionFailed(f"its answer to {name} cannot be read: {error}") from error


class ConnectionFailed(ConnectionError):
    """The connection could not be opened, or has closed; whether a request was carried out is unknown."""


class ConnectionClosed(ConnectionFailed):
    """The node closed the connection."""


class HostUnknown(ConnectionFailed):
    """The host's name has no address: useless to retry, unless another address of the cluster may answer."""


class TlsFailed(ConnectionFailed):
    """The two sides do not agree on TLS: an error in the configuration, so that retries are useless."""


class WrongProtocol(ConnectionFailed):
    """The other side speaks another protocol: an error in the configuration, so that retries are useless."""


class LoginRefused(ConnectionFailed):
    """The node refused the login: an error in the configuration, so that retries are useless."""


class LoginNotOffered(LoginRefused):
    """The node's listener has no mechanism at all: it is one without logins. No secret was sent."""


class ClosedAtOnce:
    """The nodes that closed a connection without a login at its first request. A node that stops closes
    connections, too, but not twice in a row."""

    def __init__(self) -> None:
        self._addresses: set[tuple[str, int]] = set()

    def answered(self, address: tuple[str, int]) -> None:
        """The node has answered a request."""
        self._addresses.discard(address)

    def closed(self, address: tuple[str, int]) -> ConnectionFailed:
        """The node has closed one more: LoginRefused if it did so before."""
        kind = LoginRefused if address in self._addresses else ConnectionClosed
        self._addresses.add(address)
        return kind(NO_LOGIN)


class UnsupportedVersion(ConnectionFailed):
    """The node does not have an API in a version that this program has."""
