"""How clients of a listener authenticate, built from its configuration.

The file with the keys of OAUTHBEARER tokens is read again when it has changed; while it cannot be read, the
previous keys stay.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from ssl import SSLObject

import msgspec

from metaquorum.config.files import read_small_file
from metaquorum.config.principals import PrincipalRules
from metaquorum.config.security import OAUTHBEARER, PLAIN, ListenerAccess, TokenSettings
from metaquorum.errors import ConfigError
from metaquorum.listeners.login import SaslRules
from metaquorum.listeners.oauth import OAuthExchange, TokenRules, read_keys
from metaquorum.listeners.sasl import Exchange, ImageCredentials, PlainExchange, ScramExchange
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.scram import Mechanism

_NONCE_BYTES = 24
_KEY_FILE = "sasl.oauthbearer.jwks.endpoint.url"
_log = logging.getLogger(__name__)


class ListenerRules(msgspec.Struct, frozen=True, kw_only=True):
    """How clients of a listener authenticate."""

    sasl: SaslRules | None
    """None: without a login."""
    certificates: PrincipalRules

    def user_of(self, tls: SSLObject | None) -> str | None:
        """The user named by a certificate that TLS has verified; None if the client sent none. Raises
        CertificateError."""
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        return None if certificate is None else self.certificates.user_of(certificate)


class LoginRules:
    """The rules of all listeners of a broker. Raises ConfigError for files that cannot be read."""

    def __init__(self, access: dict[str, ListenerAccess], token_key: str | None) -> None:
        self._access = access
        self._token_key = token_key
        self._tokens = {name: _TokenRules(rules.tokens) for name, rules in access.items() if rules.tokens}
        self._certificates = {name: PrincipalRules(rules.principal_rules) for name, rules in access.items()}

    def rules(self, listener: str, image: Callable[[], MetadataImage]) -> ListenerRules:
        """The rules of one listener; `image` is called at each login."""
        access = self._access[listener]
        certificates = self._certificates[listener]
        if not access.mechanisms:
            return ListenerRules(sasl=None, certificates=certificates)
        credentials = ImageCredentials(image, self._token_key)

        def new_exchange(mechanism: str) -> Exchange:
            if mechanism == PLAIN:
                return PlainExchange(access.passwords)
            if mechanism == OAUTHBEARER:
                return OAuthExchange(self._tokens[listener].current())
            kind = Mechanism[mechanism.replace("-", "_")]
            return ScramExchange(kind, credentials.find, secrets.token_hex(_NONCE_BYTES))

        return ListenerRules(
            sasl=SaslRules(
                mechanisms=access.mechanisms, new_exchange=new_exchange, max_reauth_ms=access.max_reauth_ms
            ),
            certificates=certificates,
        )


class _TokenRules:
    """Requirements for tokens, with the keys of a file."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._seen: object = None
        self._rules = self._read()

    def current(self) -> TokenRules:
        try:
            if self._look() != self._seen:
                self._rules = self._read()
        except (ConfigError, OSError) as error:
            _log.warning("the keys for OAUTHBEARER are unchanged: %s", error)
        return self._rules

    def _look(self) -> object:
        status = self._settings.file.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> TokenRules:
        settings = self._settings
        name = f"{_KEY_FILE}={settings.file.as_uri()}" if settings.file.is_absolute() else _KEY_FILE
        try:
            self._seen = self._look()
            content = read_small_file(settings.file).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{name} cannot be read: {why}; correct the path") from error
        return TokenRules(
            keys=read_keys(name, content),
            audience=settings.audience,
            issuer=settings.issuer,
            clock_skew_s=settings.clock_skew_s,
            subject_claim=settings.subject_claim,
        )
