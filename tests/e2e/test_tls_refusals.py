"""Certificates that are wrong, missing or expired, and clients without TLS: one line on both sides names the
problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from metaquorum.config.security import TlsFiles
from metaquorum.network.tls import TlsMaterial
from metaquorum.platforms import linux_kernel
from metaquorum.rpc.health import health_problem
from tests.e2e.cluster import client_loop
from tests.e2e.processes import Process, run_cli, wait_until
from tests.unit.server.certificates import certificate_files, certificates_of
from tests.unit.server.nodes import Site, new_site
from tests.unit.server.test_servers import tls_keys

pytestmark = pytest.mark.e2e

CASES = {
    "no certificate": (
        ("authority", None),
        "it requires a client certificate: give one (--keystore, ssl.keystore.location)",
        "it sent no certificate, but ssl.client.auth requires one",
    ),
    "certificate of a stranger": (
        ("authority", "stranger"),
        "it does not accept this client's certificate: unable to get local issuer certificate",
        "its certificate is not accepted: unable to get local issuer certificate",
    ),
    "expired certificate": (
        ("authority", "expired"),
        "it does not accept this client's certificate: certificate has expired",
        "its certificate is not accepted: certificate has expired",
    ),
    "wrong CA": (
        ("other-authority", "client"),
        "its certificate is not accepted: unable to get local issuer certificate",
        "it aborted the handshake: it may not accept this node's certificate",
    ),
    "wrong host name": (
        ("authority", "client"),
        "its certificate is not accepted: Hostname mismatch, certificate is not valid for 'localhost'",
        "it aborted the handshake: it may not accept this node's certificate",
    ),
    "plain text": (
        (None, None),
        "it speaks TLS, but this client does not: give the CA",
        "it does not speak TLS",
    ),
}


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = certificates_of(folder, "node", "client")
    certificate_files(folder, "expired", authority, days_left=-1)
    certificate_files(folder, "stranger", certificate_files(folder, "other-authority", None))
    return folder


def material(folder: Path, truststore: str | None, keystore: str | None) -> TlsMaterial | None:
    if truststore is None:
        return None
    return TlsMaterial.load(
        TlsFiles(
            keystore=folder / f"{keystore}.pem" if keystore else None, truststore=folder / f"{truststore}.crt"
        )
    )


def started(site: Site, keys: dict[str, str], tls: TlsMaterial | None) -> Process:
    """A controller that serves, with its log in JSON."""
    file = site.controller_file({**keys, "log.format": "json"})
    process = Process("controller", ("controller", "run", file), site.root / "process.log")
    process.start()

    def serves() -> bool:
        assert process.is_running, process.output()
        return not client_loop().call(
            health_problem(("127.0.0.1", site.controller_port), timeout_ms=3_000, tls=tls)
        )

    wait_until(serves, "the controller to serve", details=process.output)
    return process


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


@pytest.fixture(name="node")
def fixture_node(site: Site, folder: Path) -> Iterator[Process]:
    process = started(site, tls_keys(folder, "required"), material(folder, "authority", "client"))
    try:
        yield process
    finally:
        process.kill()


def messages(process: Process) -> list[str]:
    """Every line of the log is JSON; returns the texts of the loggers' lines."""
    return [json.loads(line)["message"] for line in process.lines()]


def assert_one_line(node: Process, pattern: str) -> None:
    """The node logs once what is wrong with a client; its line ten seconds later counts the repetitions."""

    def told() -> list[str]:
        return [
            line
            for line in messages(node)
            if line.startswith("TLS handshake") or "did not speak HTTP/2" in line
        ]

    wait_until(told, "the controller to say why", details=node.output)
    first, *later = told()
    assert re.fullmatch(pattern, first), told()
    assert all(re.fullmatch(pattern + r" \(\d+ more times in the last \d+ s\)", line) for line in later), (
        told()
    )


def options(folder: Path, truststore: str | None, keystore: str | None) -> list[str]:
    given: list[str] = []
    if truststore is not None:
        given += ["--truststore", str(folder / f"{truststore}.crt")]
    if keystore is not None:
        given += ["--keystore", str(folder / f"{keystore}.pem")]
    return given


@pytest.mark.parametrize("case", CASES)
def test_both_ends_say_in_one_line_what_is_wrong(node: Process, site: Site, folder: Path, case: str) -> None:
    files, ours, theirs = CASES[case]
    address = f"{'localhost' if case == 'wrong host name' else '127.0.0.1'}:{site.controller_port}"
    commands = (("quorum", "transfer"), ("controller", "status"))
    more = ("-b", address, "--timeout", 5, *options(folder, *files))
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda command: run_cli(*command, *more, expect=1), commands)
    for command, said in zip(commands, answers, strict=True):
        text = said.stdout if command[0] == "controller" else said.stderr
        assert ours in text and address in text, text
        assert said.stderr.count("\n") == (command[0] != "controller"), said.stderr

    # The commands retried, and the same line is not logged each time.
    assert_one_line(node, rf"TLS handshake with 127\.0\.0\.1:\d+ failed: {re.escape(theirs)}")
    assert node.stop() == 0


def test_a_client_with_tls_at_a_port_without(site: Site, folder: Path) -> None:
    process = started(site, {}, None)
    try:
        address = f"127.0.0.1:{site.controller_port}"
        said = run_cli(
            *("quorum", "transfer", "-b", address, "--timeout", 5),
            *options(folder, "authority", "client"),
            expect=1,
        )
        assert "it does not speak TLS: leave out --truststore and --keystore" in said.stderr
        assert address in said.stderr and said.stderr.count("\n") == 1
        if linux_kernel() is not None:
            port = site.controller_port
            assert_one_line(
                process, rf"127\.0\.0\.1:\d+ did not speak HTTP/2 on port {port}, .* it may speak TLS \(.*\)"
            )
    finally:
        process.kill()


def test_what_is_no_request_is_one_line_at_both_ends(site: Site) -> None:
    process = started(site, {}, None)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{site.controller_port}") as channel:
            method = channel.unary_unary("/metaquorum.v1.Metadata/ListBrokers")
            with pytest.raises(grpc.RpcError) as refused:
                method(b"\xff\xff\xff", timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
            for name in ("Forwarding/Follow", "BrokerLifecycle/Heartbeats"):
                stream = channel.stream_stream(f"/metaquorum.v1.{name}")
                with pytest.raises(grpc.RpcError) as refused:
                    list(stream(iter([b"\xff\xff\xff"]), timeout=60))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
        told = [line for line in messages(process) if "was refused: this is not a request of " in line]
        assert len(told) == 3, process.output()
        assert all(re.match(r"127\.0\.0\.1:\d+ was refused", line) for line in told)
        assert "Traceback" not in process.output()
    finally:
        process.kill()
