"""What gRPC writes of handshakes, as a node says it."""

from __future__ import annotations

import logging

import pytest

from runtime.native_lines import AGAIN_S, Handshakes, handshake_text

LINE = (
    "I1122 06:58:57.985457    4950 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL:"
    " error:100000c0:SSL routines:OPENSSL_internal:{}: {}"
)
NOTHING = "Invalid certificate verification context"


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        (
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
            NOTHING,
            "it showed no certificate, and ssl.client.auth requires one",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED",
            "certificate has expired",
            "its certificate is not accepted: certificate has expired",
        ),
        ("WRONG_VERSION_NUMBER", NOTHING, "it does not speak TLS"),
        ("HTTP_REQUEST", NOTHING, "it does not speak TLS"),
        ("TLSV1_ALERT_UNKNOWN_CA", NOTHING, "it does not accept our certificate (unknown ca)"),
        ("NO_SHARED_CIPHER", NOTHING, "no shared cipher"),
    ],
)
def test_reasons_are_said_in_words(reason: str, detail: str, text: str) -> None:
    assert handshake_text(LINE.format(reason, detail)) == text


def test_other_lines_are_about_something_else() -> None:
    assert handshake_text("W1122 07:00:00.068184    5185 log.cc:110] Log level DEBUG is not suitable") is None


def test_a_client_that_tries_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    peers: list[set[str]] = [{"a:1"}, {"a:1", "b:2"}, {"b:2"}]
    handshakes = Handshakes(lambda: peers.pop(0), lambda: now[0])
    with caplog.at_level(logging.WARNING):
        handshakes.failed("one")
        for _ in range(50):
            now[0] += 0.1
            handshakes.failed("one")
        handshakes.failed("other")
        now[0] += AGAIN_S
        handshakes.failed("one")
    assert caplog.messages == [
        "TLS handshake with a:1 failed: one",
        "TLS handshake with b:2 failed: other",
        "TLS handshake failed: one (50 times more in the last 15 s)",
    ]
