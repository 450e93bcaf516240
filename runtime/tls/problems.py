"""What OpenSSL's reason for a failed handshake means, in words for the log of a node.

Knows no connection, and not who tells the reason: gRPC's lines or the ssl module.
"""

from __future__ import annotations

import ssl

ABORTED = "it aborted the handshake: it may not accept our certificate"


def handshake_problem(reason: str, detail: str = "") -> str:
    """What the other side of a server's handshake did. `reason`: OpenSSL's name; `detail`: its text about a
    certificate."""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it sent no certificate, but ssl.client.auth requires one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not accepted: {detail}"
    if "ALERT" in reason:
        alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return f"it does not accept our certificate ({alert})"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNEXPECTED_MESSAGE"):
        return "it does not speak TLS"
    if reason == "BAD_PACKET_LENGTH":
        # An alert that comes in the clear where the next part of the handshake was to come.
        return ABORTED
    return reason.replace("_", " ").lower()


def problem_of(error: ssl.SSLError) -> str:
    """The same of an error of the ssl module."""
    detail = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else ""
    return handshake_problem(error.reason or str(error), detail)
