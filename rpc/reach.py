"""Why an address cannot be reached, for people.

The texts for gRPC's errors, and a test connection if those are not specific: gRPC's "Socket closed" may be a
certificate that the server did not accept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import ssl
import time

import grpc
import grpc.aio

from metaquorum.config.keys import GRPC_PROTOCOL, KAFKA_PROTOCOL
from metaquorum.metadata.text.addresses import may_be_host
from metaquorum.network.tls import TlsMaterial, new_client_context, new_server_context

_log = logging.getLogger(__name__)

Address = tuple[str, int]

UNREADABLE = "its answer is unreadable: it is not a metaquorum node, or runs another release"
SPEAKS_TLS = (
    "it speaks TLS, but this client does not: give the CA (--truststore, or listener.security.protocol.map of"
    " a node)"
)
SPEAKS_NO_TLS = (
    "it does not speak TLS: leave out --truststore and --keystore (or use PLAINTEXT in a node's listeners)"
)
SPEAKS_KAFKA = (
    "it speaks Kafka's protocol there, and not gRPC: give the gRPC address of a controller of metaquorum; a"
    " broker with controller.quorum.protocol=kafka in its file asks there"
)
SPEAKS_HTTP = "it speaks HTTP there, and not gRPC: it is a node's port for health and metrics, or no node"
UNRESOLVED = "its host name cannot be resolved: correct it"
NOT_SERVED = "it does not serve this request; give a controller's address"
_NOT_ACCEPTED = "its certificate is not accepted"
_TAKES_NO_CERTIFICATE = "it does not accept this client's certificate"
WANTS_CERTIFICATE = "it requires a client certificate: give one (--keystore, ssl.keystore.location)"
LOOK_S = 2.0
LOOK_AGAIN_S = 5.0
"""The shortest time between two test connections to an address."""

_OF_ALL_ADDRESSES = re.compile(
    r"failed to connect to all addresses; last error: (?:[A-Z_]+: )?(?:ipv[46]:\S+: )?"
)
_LASTING = (
    *(SPEAKS_KAFKA, SPEAKS_TLS, SPEAKS_NO_TLS, WANTS_CERTIFICATE, _NOT_ACCEPTED, _TAKES_NO_CERTIFICATE),
    *(UNRESOLVED, NOT_SERVED, SPEAKS_HTTP),
)
_UNRESOLVED = ("errors resolving", "resolution failed")
"""gRPC's words, which depend on the resolver."""
_HTTP1 = "Trying to connect an http1.x server"
_SAYS_ENOUGH = ("Connection refused", "attempt timed out", "No route to host", _HTTP1)
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The first bytes of an HTTP/2 connection: the preface and empty settings."""
_HTTP2_ANSWERS = b"\x00"
_TLS_ANSWERS = b"\x15\x16"
"""First bytes of a response: of HTTP/2, the length of the settings; of TLS, an alert or a handshake."""
_CORRELATION_ID = b"metq"
_API_VERSIONS = bytes(3) + b"\x0a" + b"\x00\x12" + bytes(2) + _CORRELATION_ID + b"\xff\xff"
"""A request of Kafka's protocol that every node answers: ApiVersions in version 0, without a client id."""
_HTTP2_ACKNOWLEDGED = bytes(3) + b"\x04\x01"


def status_text(error: grpc.aio.AioRpcError) -> str:
    """gRPC's status as text."""
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "no answer in time"
        case grpc.StatusCode.UNAVAILABLE:
            return f"not reachable ({_why_unreachable(error.details() or '')})"
        case grpc.StatusCode.UNIMPLEMENTED:
            return NOT_SERVED
        case grpc.StatusCode.PERMISSION_DENIED:
            return f"refused: {error.details()}"
        case code:
            return f"{code.name}: {error.details()}"


def failure_text(error: BaseException) -> str:
    """Why a call or a stream failed, in one line: gRPC's own words for a stream that has ended (\"RPC already
    finished\") say nothing to people."""
    if isinstance(error, grpc.aio.AioRpcError):
        return status_text(error)
    if isinstance(error, grpc.aio.UsageError | asyncio.InvalidStateError):
        return "the connection has ended"
    return str(error)


def lasts(reason: str) -> bool:
    """Whether such a reason is one of configuration, so that the next attempt at the address fails, too."""
    return any(each in reason for each in _LASTING)


def _is_unresolved(details: str) -> bool:
    return any(each in details for each in _UNRESOLVED)


def _why_unreachable(details: str) -> str:
    """The operating system's reason, which gRPC wraps in sentences and addresses of its own."""
    if _is_unresolved(details):
        return UNRESOLVED
    if "Connection refused" in details:
        return "connection refused: no process listens there"
    if "attempt timed out" in details:
        return "it does not accept the connection: the process hangs, or a firewall drops the packets"
    if _HTTP1 in details:
        return SPEAKS_HTTP
    return _OF_ALL_ADDRESSES.sub("", details) or "no connection"


def _says_enough(error: grpc.aio.AioRpcError, host: str) -> bool:
    """True if gRPC's error is specific. For a host name with several addresses it only describes the last
    one: nothing may listen on ::1, while the server on 127.0.0.1 refused this node's certificate."""
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or _is_unresolved(details):
        return True
    return any(each in details for each in _SAYS_ENOUGH) and _is_one_address(host)


def _is_one_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Reasons:
    """`of` returns why an address failed, `log` logs it for callers that do not wait. Results of test
    connections are cached for LOOK_AGAIN_S."""

    def __init__(self, tls: TlsMaterial | None) -> None:
        self._tls = tls
        self._seen: dict[Address, tuple[float, str]] = {}
        self._logged: dict[Address, str] = {}
        self._looks: dict[Address, asyncio.Task[None]] = {}

    async def of(self, error: grpc.aio.AioRpcError, address: Address) -> str:
        """The reason, in one line without the address."""
        if _says_enough(error, address[0]):
            return status_text(error)
        found = await self._look(address)
        return f"not reachable ({found})" if found else status_text(error)

    def log(self, who: str, error: grpc.aio.AioRpcError, address: Address) -> None:
        """Logs one warning for each TLS problem behind such an error; nothing for other problems, which the
        caller logs. Says it, too, if the other side refuses this node for lack of rights. Returns at once."""
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            text = f"it refuses this node: {error.details()}"
            if self._logged.get(address) != text:
                self._logged[address] = text
                _log.warning("%s at %s:%d: %s", who, *address, text)
            return
        if not _says_enough(error, address[0]) and address not in self._looks:
            task = asyncio.get_running_loop().create_task(self._log_problem(who, address))
            self._looks[address] = task
            task.add_done_callback(lambda _: self._looks.pop(address, None))

    async def _log_problem(self, who: str, address: Address) -> None:
        found = await self._look(address)
        if found and found != self._logged.get(address):
            _log.warning("%s at %s:%d cannot be reached: %s", who, *address, found)
        self._logged[address] = found

    async def _look(self, address: Address) -> str:
        now_s = time.monotonic()
        looked_s, problem = self._seen.get(address, (now_s - LOOK_AGAIN_S, ""))
        if now_s - looked_s >= LOOK_AGAIN_S:
            problem = await asyncio.to_thread(tls_problem, *address, self._tls)
            self._seen[address] = now_s, problem
        return problem


def tls_problem(host: str, port: int, tls: TlsMaterial | None) -> str:  # noqa: PLR0911
    """Which side refuses the other's certificate or does not speak TLS, or that the other side speaks Kafka's
    protocol; empty if none is the problem. Connects like a client with `tls`; takes up to LOOK_S, or three
    times that if `tls` is None."""
    if tls is None:
        # Try without TLS first: a node without TLS logs clients that try TLS.
        if _takes(host, port, _HTTP2, _HTTP2_ANSWERS) is not False:
            return ""
        if _speaks_kafka(host, port, None):
            return SPEAKS_KAFKA
        return SPEAKS_TLS if _takes(host, port, _hello(), _TLS_ANSWERS) else ""
    try:
        connection = _connected(host, port, LOOK_S)
    except OSError:
        return ""
    with connection:
        try:
            with _context(tls).wrap_socket(connection, server_hostname=host) as wrapped:
                # In TLS 1.3, the server's verdict on the certificate follows its part of the handshake.
                wrapped.sendall(_HTTP2)
                is_http2 = wrapped.selected_alpn_protocol() is not None
                if not wrapped.recv(1):
                    is_kafka = not is_http2 and _speaks_kafka(host, port, _context(tls))
                    return SPEAKS_KAFKA if is_kafka else _not_taken(tls)
        except ssl.SSLCertVerificationError as error:
            return f"{_NOT_ACCEPTED}: {error.verify_message}"
        except ssl.SSLError as error:
            return alert_text(error.reason or str(error))
        except ConnectionError:
            return _not_taken(tls)
        except OSError:
            return ""
    return ""


def spoken_at(host: str, port: int, tls: TlsMaterial | None, within_s: float = LOOK_S) -> str | None:
    """The protocol that the other side answers in; None if in neither. Takes up to twice `within_s`."""
    if tls is None:
        if _speaks_kafka(host, port, None, within_s):
            return KAFKA_PROTOCOL
        return GRPC_PROTOCOL if _takes(host, port, _HTTP2, _HTTP2_ANSWERS, within_s) else None
    try:
        with (
            _connected(host, port, within_s) as connection,
            _context(tls).wrap_socket(connection, server_hostname=host) as wrapped,
        ):
            if wrapped.selected_alpn_protocol() is not None:
                return GRPC_PROTOCOL
    except OSError:
        return None
    return KAFKA_PROTOCOL if _speaks_kafka(host, port, _context(tls), within_s) else None


def _not_taken(tls: TlsMaterial) -> str:
    """The text for a server that closes the connection once it has seen this node's certificate, or that
    there is none: gRPC's servers report no more (RFC 8446 requires an alert)."""
    if tls.keystore is None:
        return WANTS_CERTIFICATE
    return f"{_TAKES_NO_CERTIFICATE}: {_own_problem(tls) or 'its log says why'}"


def _own_problem(tls: TlsMaterial) -> str:
    """Why a server with the same CAs would refuse this node's certificate; empty if it would not."""
    client, server = _context(tls), new_server_context()
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server.load_cert_chain(tls.keystore or "")
        ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
        for end in ends * 3:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (ssl.SSLError, OSError):
        return ""
    return ""


def alert_text(reason: str) -> str:
    """Converts OpenSSL's name of an error to a sentence about the other side."""
    words = reason.upper().replace(" ", "_")
    if "CERTIFICATE_REQUIRED" in words or "HANDSHAKE_FAILURE" in words:
        return WANTS_CERTIFICATE
    if "UNKNOWN_CA" in words:
        return f"{_TAKES_NO_CERTIFICATE}: no CA that it trusts has signed it"
    if "CERTIFICATE_EXPIRED" in words:
        return f"{_TAKES_NO_CERTIFICATE}: it has expired"
    if "CERTIFICATE" in words and "ALERT" in words:
        return f"{_TAKES_NO_CERTIFICATE} ({_plain(words)})"
    if "ALERT" not in words:
        return SPEAKS_NO_TLS
    return f"the TLS handshake failed: {_plain(words)}"


def _plain(words: str) -> str:
    return words.rsplit("ALERT_", maxsplit=1)[-1].replace("_", " ").lower()


def _takes(host: str, port: int, beginning: bytes, answers: bytes, within_s: float = LOOK_S) -> bool | None:
    """True if the other side responds to the first bytes of a protocol in that protocol, with one of these
    first bytes; None if it cannot be reached or does not respond. Closes the connection afterwards."""
    answer = b""
    try:
        with _connected(host, port, within_s) as connection:
            connection.sendall(beginning)
            # A node logs callers that leave before it acknowledges their settings as not speaking HTTP/2.
            while more := connection.recv(4096):
                answer += more
                if answer[0] in _TLS_ANSWERS or _HTTP2_ACKNOWLEDGED in answer:
                    break
    except ConnectionResetError:
        return False
    except OSError:
        return None
    return answer != b"" and answer[0] in answers


def _speaks_kafka(host: str, port: int, context: ssl.SSLContext | None, within_s: float = LOOK_S) -> bool:
    """Whether the other side answers a request of Kafka's protocol."""
    answer = b""
    try:
        with _connected(host, port, within_s) as plain:
            connection = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            with connection:
                connection.sendall(_API_VERSIONS)
                while len(answer) < 8 and (more := connection.recv(8 - len(answer))):
                    answer += more
    except OSError:
        return False
    return answer[4:] == _CORRELATION_ID


def _connected(host: str, port: int, within_s: float) -> socket.socket:
    """Raises OSError."""
    if not may_be_host(host):
        raise socket.gaierror(socket.EAI_NONAME, UNRESOLVED)
    return socket.create_connection((host, port), timeout=within_s)


def _hello() -> bytes:
    """The first message of a TLS client."""
    context = new_client_context(verifies=False)
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    return hello.read()


def _context(tls: TlsMaterial) -> ssl.SSLContext:
    context = new_client_context()
    context.set_alpn_protocols(["h2"])
    if tls.authorities is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=tls.authorities.decode("ascii", "replace"))
    if tls.keystore is not None:
        with contextlib.suppress(OSError):  # it was readable when the process started
            context.load_cert_chain(tls.keystore)
    return context
