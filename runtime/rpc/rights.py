"""The right to call a gRPC listener if an authorizer is configured: for nodes and administrators.

Owns the one right that all methods require: ClusterAction on the cluster. Does not identify callers:
`callers` does. A stream is checked when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.metadata.access.authorizer import Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.runtime.authorizer_log import note_decision
from metaquorum.runtime.config.access.listeners import new_authorizer
from metaquorum.runtime.config.node import NodeConfig
from metaquorum.runtime.rpc.callers import GrpcCallers, address_of, grpc_callers
from metaquorum.runtime.rpc.decoding import Admission

_OPEN = "/grpc.health.v1.Health/"


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

    def refusal(self, method: str, context: Any) -> str | None:
        """Why a call is refused, or None."""
        if method.startswith(_OPEN):
            return None
        principal = self._callers.principal(context)
        if principal is None:
            return "no rule of ssl.principal.mapping.rules matches the caller's certificate: add one"
        caller = Caller(principal, address_of(context))
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
        allowed = self._authorizer.allows(self._image(), caller, Operation.CLUSTER_ACTION, *cluster)
        note_decision(allowed, caller, Operation.CLUSTER_ACTION, *cluster, method.removeprefix("/"))
        if allowed:
            return None
        return f"{principal} may not act on the cluster: add it to super.users, or allow it ClusterAction"
