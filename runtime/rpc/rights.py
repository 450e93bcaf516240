"""Who may call a gRPC listener where an authorizer is configured: nodes and administrators.

Owns the principal of a caller, by the certificate of mutual TLS, and the one right that all methods need:
ClusterAction on the cluster. A stream is asked when it begins.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Any

from metaquorum.metadata.access.authorizer import ANONYMOUS, Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.runtime.config.access.certificates import CertificateError, PrincipalRules, distinguished_name
from metaquorum.runtime.config.access.listeners import new_authorizer
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.rpc.decoding import Admission, peer_text

KEPT_CERTIFICATES = 1_000
_OPEN = "/grpc.health.v1.Health/"
_log = logging.getLogger("metaquorum.authorizer")


def grpc_rights(config: NodeConfig, image: Callable[[], MetadataImage]) -> Admission | None:
    """Who is let in by a node's configuration; None: everyone who can connect."""
    authorizer = new_authorizer(config.values)
    if authorizer is None:
        return None
    rules = PrincipalRules(config.text("ssl.principal.mapping.rules"))
    return GrpcRights(authorizer, rules, image, shows_certificates=config.tls.client_auth).refusal


class GrpcRights:
    """See the module. `image` is asked for at each call; `shows_certificates`: TLS has checked them."""

    def __init__(
        self,
        authorizer: Authorizer,
        rules: PrincipalRules,
        image: Callable[[], MetadataImage],
        *,
        shows_certificates: bool,
    ) -> None:
        self._authorizer = authorizer
        self._rules = rules
        self._image = image
        self._shows_certificates = shows_certificates
        self._known: dict[bytes, str | None] = {}

    def refusal(self, method: str, context: Any) -> str | None:
        """Why a call is refused; None: it is not."""
        if method.startswith(_OPEN):
            return None
        peer = peer_text(context.peer())
        principal = self._principal(context)
        if principal is None:
            return "no rule of ssl.principal.mapping.rules fits the certificate of the caller: add one"
        caller = Caller(principal, peer.rpartition(":")[0].strip("[]"))
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
        if self._authorizer.allows(self._image(), caller, Operation.CLUSTER_ACTION, *cluster):
            return None
        _log.info("%s at %s may not call %s", principal, peer, method)
        return f"{principal} may not act on the cluster: add it to super.users, or allow it ClusterAction"

    def _principal(self, context: Any) -> str | None:
        """None: the certificate gives no user."""
        shown = context.auth_context().get("x509_pem_cert") if self._shows_certificates else None
        if not shown:
            return ANONYMOUS
        pem = shown[0]
        if pem not in self._known:
            if len(self._known) >= KEPT_CERTIFICATES:
                self._known.clear()
            try:
                name = distinguished_name(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
            except (CertificateError, ValueError):
                return None
            user = self._rules.user(name)
            self._known[pem] = None if user is None else f"User:{user}"
        return self._known[pem]
