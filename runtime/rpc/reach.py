"""Why an address gave no answer, for people.

Owns the words for gRPC's errors, and a look at the port where those say nothing: gRPC's "Socket closed" may
be a certificate that someone did not like.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import time

import grpc
import grpc.aio

from metaquorum.runtime.tls.material import TlsMaterial

_log = logging.getLogger(__name__)

Address = tuple[str, int]

UNREADABLE = "its answer is unreadable: it is not a metaquorum node, or runs another release"
SPEAKS_TLS = (
    "it speaks TLS, and we do not: give the CA (--truststore, or listener.security.protocol.map of a node)"
)
SPEAKS_NO_TLS = (
    "it does not speak TLS: leave out --truststore and --keystore (or use PLAINTEXT in a node's listeners)"
)
WANTS_CERTIFICATE = "it requires a client certificate: give one (--keystore, ssl.keystore.location)"
LOOK_S = 2.0
LOOK_AGAIN_S = 5.0
"""An address that keeps failing is not looked at again before."""

_SAYS_ENOUGH = ("Connection refused", "attempt timed out", "No route to host")
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The beginning of every HTTP/2 connection: the preface and empty settings."""
_HTTP2_ANSWERS = b"\x00"
_TLS_ANSWERS = b"\x15\x16"
"""First bytes: the length of the settings; an alert or a handshake."""
_HTTP2_ACKNOWLEDGED = bytes(3) + b"\x04\x01"


def status_text(error: grpc.aio.AioRpcError) -> str:
    """What gRPC said."""
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "no answer in time"
        case grpc.StatusCode.UNAVAILABLE:
            return f"not reachable ({_why_unreachable(error.details() or '')})"
        case grpc.StatusCode.UNIMPLEMENTED:
            return "it does not serve this request; give a controller's address"
        case code:
            return f"{code.name}: {error.details()}"


def _why_unreachable(details: str) -> str:
    """gRPC wraps what the operating system said in sentences and addresses of its own."""
    if "Connection refused" in details:
        return "connection refused: no process listens there"
    if "attempt timed out" in details:
        return (
            "it does not accept the connection: the process hangs, or something in between drops the packets"
        )
    return details


def _says_enough(error: grpc.aio.AioRpcError, host: str) -> bool:
    """Of a name with several addresses gRPC says what was wrong with the last one alone: nothing may listen
    at ::1, and someone at 127.0.0.1 did not like our certificate."""
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or "resolution failed" in details:
        return True
    return any(each in details for each in _SAYS_ENOUGH) and _is_one_address(host)


def _is_one_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Reasons:
    """`of` says why an address failed, `tell` logs it where no one waits for the reason. What a look at an
    address brought is remembered for a while."""

    def __init__(self, tls: TlsMaterial | None) -> None:
        self._tls = tls
        self._seen: dict[Address, tuple[float, str]] = {}
        self._told: dict[Address, str] = {}
        self._telling: dict[Address, asyncio.Task[None]] = {}

    async def of(self, error: grpc.aio.AioRpcError, address: Address) -> str:
        """In one line, without the address."""
        if _says_enough(error, address[0]):
            return status_text(error)
        found = await self._look(address)
        return f"not reachable ({found})" if found else status_text(error)

    def tell(self, who: str, error: grpc.aio.AioRpcError, address: Address) -> None:
        """One warning for each problem with TLS that is behind such an error; nothing for other problems, for
        which the caller has its own words. Returns at once.
        """
        if not _says_enough(error, address[0]) and address not in self._telling:
            task = asyncio.get_running_loop().create_task(self._tell(who, address))
            self._telling[address] = task
            task.add_done_callback(lambda _: self._telling.pop(address, None))

    async def _tell(self, who: str, address: Address) -> None:
        found = await self._look(address)
        if found and found != self._told.get(address):
            _log.warning("%s at %s:%d cannot be reached: %s", who, *address, found)
        self._told[address] = found

    async def _look(self, address: Address) -> str:
        now_s = time.monotonic()
        looked_s, found = self._seen.get(address, (now_s - LOOK_AGAIN_S, ""))
        if now_s - looked_s >= LOOK_AGAIN_S:
            found = await asyncio.to_thread(tls_problem, *address, self._tls)
            self._seen[address] = now_s, found
        return found


def tls_problem(host: str, port: int, tls: TlsMaterial | None) -> str:  # noqa: PLR0911
    """Which side does not like the other's certificate, or does not speak TLS; empty: that is not it.
    Connects as a client with `tls` does; takes up to LOOK_S, without TLS twice that."""
    if tls is None:
        # The way without TLS comes first: a node without TLS logs who tries it with.
        if _takes(host, port, _HTTP2, _HTTP2_ANSWERS) is not False:
            return ""
        return SPEAKS_TLS if _takes(host, port, _hello(), _TLS_ANSWERS) else ""
    try:
        connection = socket.create_connection((host, port), timeout=LOOK_S)
    except OSError:
        return ""
    with connection:
        try:
            with _context(tls).wrap_socket(connection, server_hostname=host) as wrapped:
                # What it makes of our certificate shows behind its own part of the handshake (TLS 1.3).
                wrapped.sendall(_HTTP2)
                if not wrapped.recv(1):
                    return _not_taken(tls)
        except ssl.SSLCertVerificationError as error:
            return f"its certificate is not accepted: {error.verify_message}"
        except ssl.SSLError as error:
            return alert_text(error.reason or str(error))
        except ConnectionError:
            return _not_taken(tls)
        except OSError:
            return ""
    return ""


def _not_taken(tls: TlsMaterial) -> str:
    """Of an address that ends the connection when it has seen our certificate, or that there is none: gRPC's
    servers say no more (RFC 8446 would have them send an alert)."""
    if tls.keystore is None:
        return WANTS_CERTIFICATE
    return f"it does not accept our certificate: {_own_problem(tls) or 'its log says why'}"


def _own_problem(tls: TlsMaterial) -> str:
    """What someone with the CAs that we know would have against our own certificate; empty: nothing."""
    client, server = _context(tls), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
    """OpenSSL's name of what went wrong, as a sentence about the other side."""
    words = reason.upper().replace(" ", "_")
    if "CERTIFICATE_REQUIRED" in words or "HANDSHAKE_FAILURE" in words:
        return WANTS_CERTIFICATE
    if "UNKNOWN_CA" in words:
        return "it does not accept our certificate: no CA that it trusts has signed it"
    if "CERTIFICATE_EXPIRED" in words:
        return "it does not accept our certificate: it has expired"
    if "CERTIFICATE" in words and "ALERT" in words:
        return f"it does not accept our certificate ({_plain(words)})"
    if "ALERT" not in words:
        return SPEAKS_NO_TLS
    return f"the TLS handshake failed: {_plain(words)}"


def _plain(words: str) -> str:
    return words.rsplit("ALERT_", maxsplit=1)[-1].replace("_", " ").lower()


def _takes(host: str, port: int, beginning: bytes, answers: bytes) -> bool | None:
    """Whether the other side answers a protocol's beginning in that protocol, with one of these first bytes;
    None: it cannot be asked, or is silent. What was begun is not gone on with."""
    answer = b""
    try:
        with socket.create_connection((host, port), timeout=LOOK_S) as connection:
            connection.sendall(beginning)
            # Who leaves before the settings are acknowledged is taken for someone who speaks no HTTP/2.
            while more := connection.recv(4096):
                answer += more
                if answer[0] in _TLS_ANSWERS or _HTTP2_ACKNOWLEDGED in answer:
                    break
    except ConnectionResetError:
        return False
    except OSError:
        return None
    return answer != b"" and answer[0] in answers


def _hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    return hello.read()


def _context(tls: TlsMaterial) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls.authorities is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=tls.authorities.decode("ascii", "replace"))
    if tls.keystore is not None:
        with contextlib.suppress(OSError):  # it was readable when the process started
            context.load_cert_chain(tls.keystore)
    return context
