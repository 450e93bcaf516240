"""The caller of a gRPC method: the principal from its certificate (mutual TLS), and the address."""

from __future__ import annotations

import ssl
from typing import Any

from metaquorum.config.node import NodeConfig
from metaquorum.config.principals import PrincipalRules
from metaquorum.metadata.authorizer import ANONYMOUS
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.rpc.decoding import peer_text
from metaquorum.rpc.requests import CALLER

KEPT_CERTIFICATES = 1_000


def grpc_callers(config: NodeConfig) -> GrpcCallers:
    """The GrpcCallers for a node's configuration."""
    rules = PrincipalRules(config.text("ssl.principal.mapping.rules"))
    asks = any(config.tls_of(each.name).client_auth for each in config.grpc_listeners)
    return GrpcCallers(rules, shows_certificates=asks)


class GrpcCallers:
    """`shows_certificates`: callers must present a certificate, which TLS has verified."""

    def __init__(self, rules: PrincipalRules, *, shows_certificates: bool) -> None:
        self._rules = rules
        self._shows_certificates = shows_certificates
        self._tokens: dict[bytes, str] = {}

    def principal(self, context: Any) -> str | None:
        """The caller's principal; None if no rule maps its certificate to a user."""
        shown = context.auth_context().get("x509_pem_cert") if self._shows_certificates else None
        if not shown:
            return ANONYMOUS
        pem = shown[0]
        if pem not in self._tokens:
            if len(self._tokens) >= KEPT_CERTIFICATES:
                self._tokens.clear()
            try:
                user = self._rules.user_of(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
            except ValueError:  # includes CertificateError
                return None
            self._tokens[pem] = f"User:{user}"
        return self._tokens[pem]

    def note(self, context: Any) -> None:
        """Makes the caller the originator of all further requests of this task."""
        CALLER.set(BatchCause(principal=self.principal(context) or ANONYMOUS, address=address_of(context)))


def address_of(context: Any) -> str:
    """The IP address of a caller, without its port."""
    return peer_text(context.peer()).rpartition(":")[0].strip("[]")
