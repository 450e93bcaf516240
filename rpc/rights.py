"""The right to call a gRPC listener if an authorizer is configured: for nodes and administrators.

The one right that all methods require: ClusterAction on the cluster. A stream is checked when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.config.node import NodeConfig
from metaquorum.config.security import new_authorizer
from metaquorum.lines import printable
from metaquorum.metadata.authorizer import Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.network.refused_callers import RefusedCallers
from metaquorum.observability.authorizer_log import has_own_file, note_decision
from metaquorum.rpc.callers import GrpcCallers, address_of, grpc_callers
from metaquorum.rpc.decoding import Admission, peer_text


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
