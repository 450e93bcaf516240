"""How clients of a listener authenticate, built from its configuration.

Owns reading the file with the keys of OAUTHBEARER tokens: again when it has changed, and while it cannot be
read the previous keys stay. Does not have the messages of a mechanism: its neighbors do.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from ssl import SSLObject

import msgspec

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.scram import Mechanism
from metaquorum.runtime.config.access.certificates import PrincipalRules
from metaquorum.runtime.config.access.listeners import OAUTHBEARER, PLAIN, ListenerAccess, TokenSettings
from metaquorum.runtime.errors import ConfigError
from metaquorum.runtime.kafka.auth.credentials import ImageCredentials
from metaquorum.runtime.kafka.auth.exchange import Exchange
from metaquorum.runtime.kafka.auth.login import SaslRules
from metaquorum.runtime.kafka.auth.oauth import OAuthExchange, TokenRules, read_keys
from metaquorum.runtime.kafka.auth.plain import PlainExchange
from metaquorum.runtime.kafka.auth.scram import ScramExchange

_NONCE_BYTES = 24
_KEY_FILE = "sasl.oauthbearer.jwks.endpoint.url"
_log = logging.getLogger(__name__)


class ListenerRules(msgspec.Struct, frozen=True, kw_only=True):
    """How clients of a listener authenticate. `sasl` None: without a login."""

    sasl: SaslRules | None
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
        self._tokens = {name: _TokenRules(each.tokens) for name, each in access.items() if each.tokens}
        self._certificates = {name: PrincipalRules(each.principal_rules) for name, each in access.items()}

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
        found = self._settings.file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> TokenRules:
        settings = self._settings
        name = f"{_KEY_FILE}={settings.file.as_uri()}" if settings.file.is_absolute() else _KEY_FILE
        try:
            self._seen = self._look()
            content = settings.file.read_text("utf-8")
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
