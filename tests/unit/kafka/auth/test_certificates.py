"""Names out of certificates as Java writes them, and the rules that make users of them (KIP-371)."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from metaquorum.config.principals import CertificateError, PrincipalRules, distinguished_name
from metaquorum.errors import ConfigError

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*parts: x509.RelativeDistinguishedName) -> bytes:
    now = datetime.datetime(2024, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(parts))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "not me")]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def part(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([x509.NameAttribute(oid, value) for oid, value in pairs])


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([part((NameOID.COMMON_NAME, "alice"))], "CN=alice"),
        (
            [
                part((NameOID.COUNTRY_NAME, "DE")),
                part((NameOID.ORGANIZATION_NAME, "Org, Inc.")),
                part((NameOID.ORGANIZATIONAL_UNIT_NAME, "a+b")),
                part((NameOID.COMMON_NAME, " ünï ")),
            ],
            "CN=\\ ünï\\ ,OU=a\\+b,O=Org\\, Inc.,C=DE",
        ),
        (
            [
                part((NameOID.DOMAIN_COMPONENT, "org")),
                part((NameOID.USER_ID, "#1"), (NameOID.COMMON_NAME, "x")),
            ],
            None,
        ),
        (
            [part((NameOID.EMAIL_ADDRESS, "a@b"))],
            "1.2.840.113549.1.9.1=#1603614062",
        ),
        ([], ""),
    ],
)
def test_names(parts: list[x509.RelativeDistinguishedName], name: str | None) -> None:
    found = distinguished_name(certificate(*parts))
    if name is None:
        # A set has the order of its encoding.
        assert found in {"UID=\\#1+CN=x,DC=org", "CN=x+UID=\\#1,DC=org"}
    else:
        assert found == name


@pytest.mark.parametrize("cut", [0, 1, 5, 40, 100])
def test_a_damaged_certificate(cut: int) -> None:
    with pytest.raises(CertificateError):
        distinguished_name(certificate(part((NameOID.COMMON_NAME, "alice")))[:cut])


NAME = "CN=Alice,OU=ServiceUsers,O=Org,C=DE"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", None),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$1/U", "ALICE@ALICE"),
        ("RULE:^CN=(.*?)$/$1/", NAME.removeprefix("CN=")),
        ("RULE:CN=Alice/x/", None),
        ("RULE:^CN=Bob.*$/bob/, RULE:^CN=(.*?),.*O=(.*?),.*$/$1.$2/L, DEFAULT", "alice.org"),
        ("RULE:^CN=Bob.*$/bob/,DEFAULT", NAME),
        ("RULE:.*/a\\/b/", "a/b"),
    ],
)
def test_rules(rules: str, user: str | None) -> None:
    assert PrincipalRules(rules).user(NAME) == user


@pytest.mark.parametrize(
    "rules", ["default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "DEFAULT DEFAULT", "RULE:(/b/", "RULE:a/$1/"]
)
def test_rules_that_are_wrong(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules(rules)
