"""Which certificates are accepted: by a listener, by a client, and by both as gRPC does, on every Python."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from metaquorum.clients.kafka.cluster import client_context
from metaquorum.clients.kafka.login import ClientSecurity
from metaquorum.config.node import NodeConfig
from metaquorum.config.security import TlsFiles
from metaquorum.network import tls
from metaquorum.network.tls import NodeTls, TlsMaterial
from tests.unit.server.certificates import Extension, Issuer, certificate_files, constraints
from tests.unit.sources import REPOSITORY, files, name_of, tree_of

HOST = "127.0.0.1"


def signs(*, certificates: bool) -> Extension:
    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement crl_sign"
    rest = dict.fromkeys([*names.split(), "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**{**rest, "key_cert_sign": certificates, "crl_sign": True}), True


def of_key(certificate: x509.Certificate | None) -> Extension:
    assert certificate is not None
    key = certificate.public_key()
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key), False  # type: ignore[arg-type]


def plain(folder: Path) -> None:
    certificate_files(folder, "node", certificate_files(folder, "authority", None))


def with_every_identifier(folder: Path) -> None:
    authority = certificate_files(
        folder, "authority", None, extensions=[constraints(ca=True), signs(certificates=True)]
    )
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    extensions = [constraints(ca=False), of_key(authority[1]), (both, False)]
    certificate_files(folder, "node", authority, extensions=extensions)


def constraints_that_are_not_critical(folder: Path) -> None:
    ours = [constraints(ca=True, critical=False)]
    certificate_files(folder, "node", certificate_files(folder, "authority", None, extensions=ours))


def without_constraints(folder: Path) -> None:
    certificate_files(folder, "node", certificate_files(folder, "authority", None), extensions=[])


def signed_by_itself(folder: Path) -> None:
    certificate_files(folder, "node", None, extensions=[])
    trust(folder, "node")


def an_intermediate_authority_is_trusted(folder: Path) -> None:
    root = certificate_files(folder, "root", None)
    below = certificate_files(folder, "authority", root, extensions=[constraints(ca=True)])
    certificate_files(folder, "node", below)


def the_certificate_itself_is_trusted(folder: Path) -> None:
    certificate_files(folder, "node", certificate_files(folder, "unknown", None))
    trust(folder, "node")


def the_chain_is_sent(folder: Path) -> None:
    root = certificate_files(folder, "authority", None)
    below = certificate_files(folder, "below", root, extensions=[constraints(ca=True)])
    certificate_files(folder, "node", below)
    with (folder / "node.pem").open("ab") as file:
        file.write((folder / "below.crt").read_bytes())


def by_a_stranger(folder: Path) -> None:
    certificate_files(folder, "authority", None)
    certificate_files(folder, "node", certificate_files(folder, "stranger", None))


def by_an_authority_of_the_same_name(folder: Path) -> None:
    certificate_files(folder, "node", certificate_files(folder, "authority", None))
    certificate_files(folder, "authority", None)


def expired(folder: Path) -> None:
    certificate_files(folder, "node", certificate_files(folder, "authority", None), days_left=-1)


def by_a_node(folder: Path) -> None:
    other = certificate_files(folder, "other", certificate_files(folder, "authority", None))
    chained(folder, other)


def by_a_node_that_is_trusted(folder: Path) -> None:
    other = certificate_files(folder, "other", certificate_files(folder, "unknown", None))
    trust(folder, "other")
    chained(folder, other)


def by_one_that_may_not_sign_certificates(folder: Path) -> None:
    extensions = [constraints(ca=True), signs(certificates=False)]
    certificate_files(folder, "node", certificate_files(folder, "authority", None, extensions=extensions))


def the_chain_has_a_gap(folder: Path) -> None:
    root = certificate_files(folder, "authority", None)
    certificate_files(
        folder, "node", certificate_files(folder, "below", root, extensions=[constraints(ca=True)])
    )


def trust(folder: Path, name: str) -> None:
    (folder / "authority.crt").write_bytes((folder / f"{name}.crt").read_bytes())


def chained(folder: Path, other: Issuer) -> None:
    certificate_files(folder, "node", other)
    with (folder / "node.pem").open("ab") as file:
        file.write((folder / "other.crt").read_bytes())


ACCEPTED: list[Callable[[Path], None]] = [
    plain,
    with_every_identifier,
    constraints_that_are_not_critical,
    without_constraints,
    signed_by_itself,
    an_intermediate_authority_is_trusted,
    the_certificate_itself_is_trusted,
    the_chain_is_sent,
]
REFUSED: list[Callable[[Path], None]] = [
    by_a_stranger,
    by_an_authority_of_the_same_name,
    expired,
    by_a_node,
    by_a_node_that_is_trusted,
    by_one_that_may_not_sign_certificates,
    the_chain_has_a_gap,
]
KINDS = [(kind, kind in ACCEPTED) for kind in (*ACCEPTED, *REFUSED)]
GRPC_TAKES_TOO = by_a_node_that_is_trusted
"""BoringSSL takes any certificate of the truststore for a CA (docs/security.md)."""


CODES = {True: grpc.StatusCode.UNIMPLEMENTED, False: grpc.StatusCode.UNAVAILABLE}


@pytest.fixture(name="sides")
def fixture_sides(tmp_path: Path, kind: Callable[[Path], None]) -> dict[str, TlsMaterial]:
    """`shows` has the certificate in question, `judges` one that everybody accepts."""
    kind(tmp_path)
    trusted = (tmp_path / "authority.crt").read_bytes()
    certificate_files(tmp_path, "good", certificate_files(tmp_path, "goods", None))
    (tmp_path / "trusted.crt").write_bytes(trusted + (tmp_path / "goods.crt").read_bytes())
    return {
        role: TlsMaterial.load(
            TlsFiles(keystore=tmp_path / f"{name}.pem", truststore=tmp_path / "trusted.crt", client_auth=True)
        )
        for role, name in (("shows", "node"), ("judges", "good"))
    }


def met(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """A handshake in memory: `refused` if either side refuses the other's certificate, `known` if the server
    has the client's, else `unknown`."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname=HOST),
        server.wrap_bio(there, back, server_side=True),
    )
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            assert error.reason in ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
            return "refused"
    return "known" if ends[1].getpeercert(binary_form=True) else "unknown"


@pytest.mark.parametrize(("kind", "taken"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_a_server_and_a_client_accept_the_same_certificates(
    kind: Callable[[Path], None], taken: bool, sides: dict[str, TlsMaterial]
) -> None:
    shows, judges = sides["shows"], sides["judges"]
    expected = "known" if taken else "refused"
    assert met(shows.server_context("required"), judges.client_context()) == expected
    assert met(judges.server_context("required"), shows.client_context()) == expected


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("none", ("unknown", "unknown", "unknown")),
        ("requested", ("known", "refused", "unknown")),
        ("required", ("known", "refused", "refused")),
    ],
)
def test_whom_a_listener_lets_in_by_its_client_auth(
    tmp_path: Path, asks: str, expected: tuple[str, ...]
) -> None:
    """A client with a certificate of the CA, one with a stranger's, and one without: as in Kafka, who is
    asked need not answer, but must not answer anything."""
    plain(tmp_path)
    certificate_files(tmp_path, "odd", None)
    trusted = tmp_path / "authority.crt"
    server = TlsMaterial.load(TlsFiles(keystore=tmp_path / "node.pem", truststore=trusted))
    clients = [
        TlsMaterial.load(TlsFiles(keystore=own and tmp_path / own, truststore=trusted)).client_context()
        for own in ("node.pem", "odd.pem", None)
    ]
    assert tuple(met(server.server_context(asks), client) for client in clients) == expected


@pytest.mark.parametrize(("kind", "taken"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
async def test_grpc_accepts_the_same_and_takes_whatever_is_trusted_for_a_ca(
    kind: Callable[[Path], None], taken: bool, sides: dict[str, TlsMaterial]
) -> None:
    for server, client in (("shows", "judges"), ("judges", "shows")):
        made = grpc.aio.server()
        port = made.add_secure_port(f"{HOST}:0", sides[server].server_credentials())
        await made.start()
        channel = grpc.aio.secure_channel(f"{HOST}:{port}", sides[client].channel_credentials())
        try:
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await channel.unary_unary("/none/none")(b"", timeout=20)
            gets_in = taken or kind is GRPC_TAKES_TOO
            assert ended.value.code() is CODES[gets_in]
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await channel.close()
                await made.stop(None)


def test_new_files_count_for_connections_that_this_node_opens(tmp_path: Path) -> None:
    plain(tmp_path)
    server = TlsMaterial.load(TlsFiles(keystore=tmp_path / "node.pem")).server_context("none")
    certificate_files(tmp_path, "other", None)
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes((tmp_path / "other.crt").read_bytes())
    client = TlsMaterial.load(TlsFiles(truststore=trusted))
    assert met(server, client.client_context()) == "refused"
    trusted.write_bytes((tmp_path / "authority.crt").read_bytes() + b"\n")
    assert met(server, client.client_context()) == "unknown"


@pytest.mark.parametrize("checks", [True, False])
def test_a_client_checks_the_name_of_a_node_unless_its_file_says_not_to(tmp_path: Path, checks: bool) -> None:
    plain(tmp_path)
    files = TlsFiles(truststore=tmp_path / "authority.crt")
    context = client_context(ClientSecurity(tls=files, checks_names=checks))
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (checks, ssl.CERT_REQUIRED)


def test_each_connection_uses_the_files_of_its_listener(tmp_path: Path) -> None:
    for name in ("CONTROLLERS", "GRPC", "BROKERS", "CLIENTS"):
        certificate_files(tmp_path, name, None)
    config = SimpleNamespace(
        tls_listeners=("CONTROLLERS", "GRPC", "BROKERS", "CLIENTS"),
        tls_of=lambda name: TlsFiles(keystore=tmp_path / f"{name}.pem"),
        controllers_use_tls=True,
        controller_listener="CONTROLLERS",
        inter_broker_listener=SimpleNamespace(name="BROKERS"),
    )
    node = NodeTls(cast("NodeConfig", config))
    used = (node.controllers, node.of("GRPC"), node.brokers, node.of("CLIENTS"))
    names = [each.keystore.stem for each in used if each is not None and each.keystore is not None]
    assert (names, node.of("PLAIN")) == (["CONTROLLERS", "GRPC", "BROKERS", "CLIENTS"], None)


def test_only_one_module_creates_contexts_and_they_are_the_same_on_every_python() -> None:
    makers = {
        name_of(path)
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("ssl.SSLContext", "ssl.create_default_context")
    }
    assert makers == {"network/tls.py"}
    flags = ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST | ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    for context in (
        tls.new_server_context(),
        tls.new_client_context(),
        tls.new_client_context(verifies=False),
    ):
        assert context.verify_flags == flags
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_other_programs_of_the_tests_accept_such_certificates_too() -> None:
    """Python's default refuses some since 3.13: a client would fail for what its test is not about."""
    makers = {
        path.name
        for path in (REPOSITORY / "tests").rglob("*.py")
        if "ssl.create_default_context(cafile" in path.read_text("utf-8")
    }
    assert makers == {"certificates.py", Path(__file__).name}, "use foreign_client of certificates.py"
