"""Callers whose certificate has no rights. Large gRPC messages: the controller refuses each call before it
reads the message, and its memory does not grow. A broker: it says itself what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from metaquorum.config.security import STANDARD_AUTHORIZER
from tests.e2e.processes import Process, run_cli, wait_until
from tests.e2e.test_tls_refusals import started
from tests.unit.server.certificates import certificates_of
from tests.unit.server.nodes import Site, new_site
from tests.unit.server.test_servers import material, tls_keys

pytestmark = pytest.mark.e2e

MIB = 1 << 20
MESSAGE_BYTES, MESSAGES = 30 * MIB, 10
GROWTH_MAX_BYTES = 128 * MIB
"""All messages are 300 MiB. gRPC holds the beginning of each until its call is refused."""
FORWARD, QUORUM = "/metaquorum.v1.Forwarding/Forward", "/metaquorum.v1.Admin/DescribeQuorum"
FOLLOW, HEALTH = "/metaquorum.v1.Forwarding/Follow", "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    certificates_of(folder, "node", "client")
    return folder


@pytest.fixture(name="node")
def fixture_node(tmp_path: Path, folder: Path) -> Iterator[tuple[Site, Process]]:
    site = new_site(tmp_path)
    keys = {
        **tls_keys(folder, "required"),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:node",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
    }
    process = started(site, keys, material(folder, "node"))
    try:
        yield site, process
    finally:
        process.kill()


def resident_bytes(process: Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def call(channel: grpc.Channel, method: str, message: bytes) -> grpc.StatusCode:
    try:
        channel.unary_unary(method)(message, timeout=60)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def channel_of(site: Site, folder: Path, name: str, compression: grpc.Compression) -> grpc.Channel:
    return grpc.secure_channel(
        f"127.0.0.1:{site.controller_port}",
        material(folder, name).channel_credentials(),
        options=[("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)],
        compression=compression,
    )


PLAIN, GZIP = grpc.Compression.NoCompression, grpc.Compression.Gzip
CASES = {
    "no rights": ("client", FORWARD, PLAIN, 10, grpc.StatusCode.PERMISSION_DENIED),
    "no rights, on a stream": ("client", FOLLOW, PLAIN, 10, grpc.StatusCode.PERMISSION_DENIED),
    "open to all": ("client", HEALTH, PLAIN, 10, grpc.StatusCode.OK),
    "compressed": ("client", FORWARD, GZIP, 10, grpc.StatusCode.UNIMPLEMENTED),
    # These are read, one after another, and must be gone before the collector looks for cycles.
    "not a request": ("node", FORWARD, PLAIN, 1, grpc.StatusCode.INVALID_ARGUMENT),
    "larger than the method takes": ("node", QUORUM, PLAIN, 1, grpc.StatusCode.RESOURCE_EXHAUSTED),
}


@pytest.mark.parametrize("case", CASES)
def test_large_messages_that_are_refused_leave_no_memory(
    node: tuple[Site, Process], folder: Path, case: str
) -> None:
    site, process = node
    name, method, compression, at_once, status = CASES[case]
    with channel_of(site, folder, name, compression) as channel, ThreadPoolExecutor(at_once) as pool:
        call(channel, method, b"")
        before = resident_bytes(process)
        messages = [bytes([255]) * MESSAGE_BYTES] * MESSAGES
        codes = list(pool.map(lambda message: call(channel, method, message), messages))
        growth = resident_bytes(process) - before
    assert set(codes) == {status}
    assert growth < GROWTH_MAX_BYTES, f"{growth / MIB:.0f} MiB more"
    assert process.is_running, process.output()


def test_a_broker_without_rights_says_so_itself_until_it_stops(
    node: tuple[Site, Process], folder: Path
) -> None:
    site, _ = node
    keys = {
        **tls_keys(folder, "none"),
        "ssl.keystore.location": str(folder / "client.pem"),
        "initial.broker.registration.timeout.ms": "20000",
    }
    broker = Process("broker", ("broker", "run", site.broker_file(keys)), site.root / "broker.log")
    broker.start()
    refusal = "cannot be followed: User:client may not act on the cluster: add it to super.users, or allow it"
    trust = ("--truststore", str(folder / "authority.crt"))
    try:

        def waits_for_rights() -> bool:
            assert broker.is_running, broker.output()
            shown = run_cli("broker", "status", f"127.0.0.1:{site.broker_port}", *trust, expect=None).stdout
            return f"Waits for: controller 1 {refusal} ClusterAction" in shown

        wait_until(waits_for_rights, "the status to name the refusal", details=broker.output)
        assert broker.wait_exit() == 1
    finally:
        broker.kill()
    stopped = broker.output().splitlines()[-1]
    assert refusal in stopped and "initial.broker.registration.timeout.ms" in stopped, stopped
    assert "no active controller has answered" not in broker.output()
    assert sum("cannot be asked: User:client" in line for line in broker.output().splitlines()) == 1
