"""The right to call a gRPC listener if an authorizer is configured: for nodes and administrators.

The one right that all methods require: ClusterAction on the cluster. A stream is checked when it starts.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from metaquorum.config.node import NodeConfig
from metaquorum.config.principals import PrincipalRules
from metaquorum.config.security import new_authorizer
from metaquorum.lines import printable
from metaquorum.metadata.authorizer import ANONYMOUS, Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.metadata.settings.keys import Value
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.observability.authorizer_log import has_own_file, note_decision
from metaquorum.rpc.requests import CALLER
from metaquorum.rpc.server import Admission, peer_text

# The caller of a gRPC method: the principal from its certificate (mutual TLS), and the address.

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


def grpc_rights(config: NodeConfig, image: Callable[[], MetadataImage]) -> Admission | None:
    """The admission check for a node's configuration; None if every client that can connect may call."""
    authorizer = new_authorizer(config.values)
    if authorizer is None:
        return None
    return GrpcRights(authorizer, grpc_callers(config), image).refusal


class GrpcRights:
    """See the module. `image` is called at each call."""

    def __init__(
        self, authorizer: Authorizer, callers: GrpcCallers, image: Callable[[], MetadataImage]
    ) -> None:
        self._authorizer = authorizer
        self._callers = callers
        self._image = image
        self._refused = RefusedCallers()

    def refusal(self, method: str, context: Any) -> str | None:
        """Why a call is refused, or None."""
        principal = self._callers.principal(context)
        if principal is None:
            return "no rule of ssl.principal.mapping.rules matches the caller's certificate: add one"
        caller = Caller(principal, address_of(context))
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
        allowed = self._authorizer.allows(self._image(), caller, Operation.CLUSTER_ACTION, *cluster)
        if allowed or has_own_file():
            note_decision(allowed, caller, Operation.CLUSTER_ACTION, *cluster, method.removeprefix("/"))
        if allowed:
            return None
        shown = printable(principal)
        text = f"{shown} may not act on the cluster: add it to super.users, or allow it ClusterAction"
        self._refused.log(
            peer_text(context.peer()), f"refused {method.removeprefix('/')} of {{peer}}: {text}", kind=shown
        )
        return text


# A controller and the brokers that register with it compare their authorizers.
#
# Each node checks rights by its own file. Where one has an authorizer and the other has none, clients that
# one refuses are administrators at the other, and nothing else shows it. Neither refuses the other: nodes are
# restarted one by one when an authorizer is introduced. A node of a release that does not say which it has is
# not compared.

KEY = "metaquorum-authorizer"
"""Of the metadata with a registration, and with its answer."""

NONE = "none: everything is allowed"


class Authorizers:
    """`values`: this node's configuration."""

    def __init__(self, values: Mapping[str, Value | None]) -> None:
        self._own = NONE
        if name := values["authorizer.class.name"]:
            everyone = values["allow.everyone.if.no.acl.found"]
            self._own = f"{str(name).rpartition('.')[2]}, allow.everyone.if.no.acl.found={everyone}"
        self._callers = RefusedCallers()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((KEY, self._own),)

    def compare(self, metadata: Iterable[Any] | None, node: str, peer: str) -> None:
        """Logs one WARNING per host and interval if `node`, such as "broker 3", says that its authorizer is
        another one."""
        theirs = next((value for key, value in metadata or () if key == KEY), self._own)
        if theirs == self._own:
            return
        text = (
            f"{node} at {{peer}} has another authorizer ({theirs}) than this node ({self._own}): clients "
            "have other rights there; set authorizer.class.name and allow.everyone.if.no.acl.found alike in "
            "every node's file"
        )
        self._callers.log(peer, text, kind=f"authorizer of {node}")
