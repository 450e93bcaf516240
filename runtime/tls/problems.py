"""The meaning of OpenSSL's reason for a failed handshake, in words for a node's log.

Owns these texts for a server's side; `runtime.rpc.reach` has the client's. Knows no connection, nor whether
gRPC's lines or the ssl module reported the reason.
"""

from __future__ import annotations

import ssl

ABORTED = "it aborted the handshake: it may not accept this node's certificate"


def handshake_problem(reason: str, detail: str = "") -> str:
    """What the client did in a server's handshake. `reason`: OpenSSL's name of the error; `detail`: its text
    about a certificate."""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it sent no certificate, but ssl.client.auth requires one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not accepted: {detail}"
    if "ALERT" in reason:
        alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return f"it does not accept this node's certificate ({alert})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS"
    if reason == "BAD_PACKET_LENGTH":
        # A plaintext alert instead of the next part of the handshake.
        return ABORTED
    return reason.replace("_", " ").lower()


def problem_of(error: ssl.SSLError) -> str:
    """The same for an error of the ssl module."""
    detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
    return handshake_problem(error.reason or str(error), detail)
