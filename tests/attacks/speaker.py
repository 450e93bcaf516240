"""An attacker who speaks Kafka's protocol: logs in as one of the site's users, sends requests, reads answers.

Whoever is cut off, or waits too long, stops: an attack ends by itself.
"""

from __future__ import annotations

import struct
from types import TracebackType
from typing import Any, Self

from metaquorum.wire import codec
from metaquorum.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from metaquorum.wire.table import API_BY_NAME
from tests.attacks.site import PASSWORDS, Target
from tests.attacks.sockets import frame, raw, secure

ANSWER_S = 20.0
"""An answer that takes longer is not waited for."""
GONE = (OSError, EOFError, struct.error)
"""What the end of a connection looks like."""


class Speaker:
    """One connection to the attacked broker. Raises one of GONE when it is cut off; use it as
    `with suppress(*GONE), Speaker(...) as speaker`.

    `who`: a user of the site, "certificate" (without rights), "open" (without a login), or "voter": a node at
    the controller."""

    def __init__(self, target: Target, who: str, client_id: str = "attacker") -> None:
        connection = {
            "certificate": lambda: secure(target, "brokers", "other"),
            "open": lambda: raw(target, "open"),
            "voter": lambda: secure(target, "quorum", "node"),
        }.get(who, lambda: secure(target, "clients"))()
        if connection is None:
            raise ConnectionError("no connection")
        self._connection = connection
        connection.settimeout(ANSWER_S)
        self._client_id = client_id
        self._correlation = 0
        if who in PASSWORDS:
            self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=f"\0{who}\0{PASSWORDS[who]}".encode()), 2)
            assert not answer.error_code, answer

    def send(self, body: Any, version: int) -> None:
        """Sends a request and does not wait."""
        self._correlation += 1
        api = API_BY_NAME[type(body).__name__.removesuffix("Request")]
        header = codec.RequestHeader(api.key, version, self._correlation, self._client_id)
        self.send_frame(b"".join(codec.encode_request(header, body)))

    def send_frame(self, body: bytes) -> None:
        """Sends any bytes as a frame."""
        self._connection.sendall(frame(body))

    def receive(self) -> bytes:
        """The next answer's frame."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ask(self, body: Any, version: int) -> Any:
        """Sends a request and returns the answer's body."""
        self.send(body, version)
        api = API_BY_NAME[type(body).__name__.removesuffix("Request")]
        return codec.decode_response(api.key, version, self.receive()).body

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._connection.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
