"""What gRPC writes of handshakes, as a node says it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from metaquorum.network import refused_callers
from metaquorum.network.refused_callers import AGAIN_S, LINES_MAX, REMEMBERED_MAX, RefusedCallers, kind_of
from metaquorum.rpc.silent_refusals import NativeLines, handshake_text

ERROR = (
    "UNKNOWN: Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000c0:SSL routines:"
    "OPENSSL_internal:{}: {}: OK"
)
NOTHING = "Invalid certificate verification context"
NO_CERTIFICATE = ERROR.format("PEER_DID_NOT_RETURN_A_CERTIFICATE", NOTHING)
LEFT = "UNAVAILABLE: Handshake read failed (Socket closed)"
ARGUMENTS = (
    " shutdown=false index=2, args={{endpoint=0x7fbf, args={{grpc.experimental.event_engine=0x55e6, {}"
    "grpc.internal.endpoint_local_address=ipv4:127.0.0.1:9093, grpc.internal.endpoint_peer_address={}, "
    "grpc.internal.use_v3_stack=0}}, read_buffer.Length()=0, exit_early=0}}"
)
STAMP = "I1122 06:58:57.985457    4950 "


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(name="told")
def fixture_told() -> Iterator[list[str]]:
    """What is logged from now on."""
    handler = Told()
    logging.getLogger().addHandler(handler)
    yield handler.lines
    logging.getLogger().removeHandler(handler)


def lines(error: str, peer: str, client: str = "") -> list[str]:
    """What gRPC writes when a handshake fails: with a trace of its source behind the error, and twice."""
    return [
        f"{STAMP}ssl_transport_security.cc:2563] Handshake failed with error {error}",
        f"{STAMP}handshaker.cc:155] CallNextHandshakerLocked: error={error}",
        "=== Source Location Trace: === ",
        "src/core/util/status_helper.cc:68",
        ARGUMENTS.format(client, peer),
        f"{STAMP}channel_trace.h:396] handshake manager 0x7fbf: Failed with error: {error}",
        "=== Source Location Trace: === ",
        "src/core/util/status_helper.cc:68",
        "",
    ]


def take(*taken: str) -> None:
    native = NativeLines(RefusedCallers())
    for line in taken:
        native.take(line)


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        (
            "PEER_DID_NOT_RETURN_A_CERTIFICATE",
            NOTHING,
            "it sent no certificate, but ssl.client.auth requires one",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED",
            "certificate has expired",
            "its certificate is not accepted: certificate has expired",
        ),
        ("WRONG_VERSION_NUMBER", NOTHING, "it does not speak TLS"),
        ("HTTP_REQUEST", NOTHING, "it does not speak TLS"),
        ("TLSV1_ALERT_UNKNOWN_CA", NOTHING, "it does not accept this node's certificate (unknown ca)"),
        ("NO_SHARED_CIPHER", NOTHING, "no shared cipher"),
    ],
)
def test_reasons_are_said_in_words(reason: str, detail: str, text: str) -> None:
    assert handshake_text(ERROR.format(reason, detail)) == text


def test_a_handshake_that_failed_is_one_line_with_the_peer(told: list[str]) -> None:
    take(*lines(NO_CERTIFICATE, "ipv4:10.0.0.7:38036"), *lines(NO_CERTIFICATE, "ipv6:[fe80::1%252]:38036"))
    reason = "it sent no certificate, but ssl.client.auth requires one"
    assert told == [
        f"TLS handshake with {peer} failed: {reason}" for peer in ("10.0.0.7:38036", "[fe80::1%252]:38036")
    ]


def test_an_error_without_a_trace_of_its_source_is_a_single_line(told: list[str]) -> None:
    take(
        f"{STAMP}handshaker.cc:155] CallNextHandshakerLocked: error={NO_CERTIFICATE}"
        + ARGUMENTS.format("", "ipv4:10.0.0.7:38036")
    )
    assert len(told) == 1 and "10.0.0.7:38036" in told[0]


def test_a_look_at_the_port_and_handshakes_that_go_well_are_no_line(told: list[str]) -> None:
    well = f"{STAMP}handshaker.cc:155] CallNextHandshakerLocked: error=OK" + ARGUMENTS.format(
        "", "ipv4:10.0.0.7:38036"
    )
    take(
        *lines(LEFT, "ipv4:10.0.0.7:38036"), well, f"{STAMP}handshaker.cc:80] handshake_manager 0x7f: adding"
    )
    assert told == []


def test_only_the_line_of_the_handshaker_is_told(told: list[str]) -> None:
    """Others repeat the error, some with arguments."""
    take(
        f"{STAMP}channel_trace.h:396] handshake manager 0x7fbf: Failed with error: {NO_CERTIFICATE}"
        + ARGUMENTS.format("", "ipv4:10.0.0.7:38036")
    )
    assert told == []


def test_of_its_own_attempts_a_node_speaks_elsewhere(told: list[str]) -> None:
    take(*lines(NO_CERTIFICATE, "ipv4:10.0.0.7:9093", client="grpc.server_uri=dns:///10.0.0.7:9093, "))
    assert told == []


def test_an_error_whose_arguments_never_come_is_not_put_on_the_next_peer(told: list[str]) -> None:
    take(*lines(NO_CERTIFICATE, "-")[:4], *lines(LEFT, "ipv4:10.0.0.7:38036"))
    assert told == []


def test_what_other_libraries_write_is_passed_on(told: list[str]) -> None:
    take(
        "malloc(): corrupted top size", "", "All log messages before absl::InitializeLog() is called are ..."
    )
    assert told == ["standard error: malloc(): corrupted top size"]


def test_a_client_that_tries_again_and_again_does_not_fill_the_log(told: list[str]) -> None:
    now = [100.0]
    refused = RefusedCallers(lambda: now[0])
    refused.log("a:1", "{peer}: one")
    for port in range(50):
        now[0] += 0.1
        refused.log(f"a:{port}", "{peer}: one")
    refused.log("a:2", "{peer}: other")
    refused.log("b:3", "{peer}: one")
    now[0] += AGAIN_S
    refused.log("a:4", "{peer}: one")
    assert told == ["a:1: one", "a:2: other", "b:3: one", "a:4: one (50 more times in the last 15 s)"]


def test_of_many_hosts_the_newest_are_remembered(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_callers, "LINES_MAX", 2 * REMEMBERED_MAX)
    refused = RefusedCallers(lambda: 0.0)
    for host in range(REMEMBERED_MAX + 1):
        refused.log(f"{host}:1", "{peer}")
    del told[:]
    refused.log("1:2", "{peer}")
    refused.log(f"{REMEMBERED_MAX}:2", "{peer}")
    refused.log("0:2", "{peer}")
    assert told == ["0:2"]


def test_many_hosts_do_not_fill_the_log_and_lines_of_a_kind_are_one(told: list[str]) -> None:
    now = [100.0]
    refused = RefusedCallers(lambda: now[0])
    for host in range(200):
        refused.log(f"h{host}:1", "{peer}")
    assert len(told) == LINES_MAX
    now[0] += AGAIN_S
    refused.log("x:1", "{peer}")
    assert told[LINES_MAX:] == [f"x:1 ({200 - LINES_MAX} lines about others are left out)"]
    for length in range(100):
        text = f"{{peer}} announces {length * 7_001} bytes of 'x{length}'"
        refused.log("y:1", text, kind_of(text))
    assert told[LINES_MAX + 1 :] == ["y:1 announces 0 bytes of 'x0'"]
