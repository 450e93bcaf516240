"""The name in a client's certificate, and the rules that turn it into a principal (KIP-371).

The distinguished name has Kafka's form (RFC 2253, as Java writes it). It is read from the certificate itself,
because the name that TLS reports has lost the types. TLS verifies the signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from metaquorum.errors import ConfigError

_VERSION = 0xA0
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_TEXT = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
_SPECIAL = re.compile(r'([,+"\\<>;=])')


class CertificateError(ValueError):
    """A certificate that cannot be read or does not name a user."""


class _Value(msgspec.Struct, frozen=True):
    tag: int
    content: bytes
    whole: bytes


def _values(data: bytes) -> Iterator[_Value]:
    """The values in a DER encoding, in order."""
    position = 0
    while position < len(data):
        try:
            tag, length, begin = data[position], data[position + 1], position + 2
            if length & 0x80:
                count = length & 0x7F
                length, begin = int.from_bytes(data[begin : begin + count], "big"), begin + count
        except IndexError as error:
            raise CertificateError("the certificate ends inside a length") from error
        end = begin + length
        if end > len(data):
            raise CertificateError("the certificate ends inside a value")
        yield _Value(tag, data[begin:end], data[position:end])
        position = end


def distinguished_name(certificate: bytes) -> str:
    """The subject of a DER certificate. Raises CertificateError."""
    try:
        (whole,) = _values(certificate)
        body = [*_values(next(_values(whole.content)).content)]
        subject = body[5 if body[0].tag == _VERSION else 4]
    except (ValueError, StopIteration, IndexError) as error:
        raise CertificateError("the certificate has no subject") from error
    return ",".join(_relative(each) for each in reversed([*_values(subject.content)]))


def _relative(value: _Value) -> str:
    parts = []
    for pair in _values(value.content):
        kind, content = _values(pair.content)
        oid = _oid(kind.content)
        keyword, encoding = _KEYWORDS.get(oid), _TEXT.get(content.tag)
        if keyword is None or encoding is None:
            parts.append(f"{keyword or oid}=#{content.whole.hex()}")
        else:
            parts.append(f"{keyword}={_escaped(content.content.decode(encoding, errors='replace'))}")
    return "+".join(parts)


def _oid(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise CertificateError("the certificate has an empty object id")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(r"\\\1", text)
    if text[:1] in ("#", " "):
        text = "\\" + text
    if text[-1:] == " " and len(text) > 1 and text[-2:] != "\\ ":
        text = text[:-1] + "\\ "
    return text


_RULE = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_GROUP = re.compile(r"\\(.)|\$(\d)")


class _Rule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None
    """None for DEFAULT: the whole name."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = _GROUP.sub(lambda each: each[1] or match[int(each[2])] or "", self.replacement)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found


class PrincipalRules:
    """The rules of `ssl.principal.mapping.rules`; the first that matches applies. Raises ConfigError."""

    def __init__(self, text: str) -> None:
        self._rules: list[_Rule] = []
        rest = text.strip()
        while rest:
            match = _RULE.match(rest)
            after = rest[match.end() :].lstrip() if match is not None else ""
            if match is None or (after and after[0] != ","):
                raise ConfigError(
                    f"ssl.principal.mapping.rules cannot be read from {rest[:40]!r} on: write "
                    "RULE:pattern/replacement/, RULE:pattern/replacement/L or DEFAULT, separated by commas"
                )
            self._rules.append(_rule(match))
            rest = after.removeprefix(",").lstrip()

    def user(self, name: str) -> str | None:
        """The user for a distinguished name; None if no rule matches."""
        return next((user for rule in self._rules if (user := rule.apply(name)) is not None), None)

    def user_of(self, certificate: bytes) -> str:
        """The user that a DER certificate names. Raises CertificateError, also if no rule matches."""
        name = distinguished_name(certificate)
        user = self.user(name)
        if user is None:
            raise CertificateError(
                f"no rule of ssl.principal.mapping.rules matches its certificate, of {name}"
            )
        return user


def _rule(match: re.Match[str]) -> _Rule:
    if match[1]:
        return _Rule(None)
    try:
        pattern = re.compile(match[2].replace("\\/", "/"))
    except re.error as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules has the invalid pattern {match[2]!r}: {error}; correct it"
        ) from error
    groups = [int(each[2]) for each in _GROUP.finditer(match[3]) if each[2]]
    if any(group > pattern.groups for group in groups):
        raise ConfigError(
            f"ssl.principal.mapping.rules uses ${max(groups)}, but {match[2]!r} has {pattern.groups} groups: "
            "correct it"
        )
    return _Rule(pattern, match[3], match[4])
