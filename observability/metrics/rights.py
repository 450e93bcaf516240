"""The right to read a node's metrics if an authorizer is configured: Describe on the cluster.

A scraper's principal is that of its client certificate, otherwise User:ANONYMOUS.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.config.node import NodeConfig
from metaquorum.config.principals import CertificateError, PrincipalRules
from metaquorum.config.security import new_authorizer
from metaquorum.metadata.authorizer import ANONYMOUS, Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.observability.authorizer_log import note_decision

Scraper = tuple[bytes | None, str]
"""The DER certificate that TLS has verified (None if there is none), and the address."""


def scraper_rights(config: NodeConfig, image: Callable[[], MetadataImage]) -> ScraperRights | None:
    """The rights for a node's configuration; None if every client that can connect may read."""
    authorizer = new_authorizer(config.values)
    if authorizer is None:
        return None
    return ScraperRights(authorizer, PrincipalRules(config.text("ssl.principal.mapping.rules")), image)


class ScraperRights:
    """See the module. `image` is called at each request."""

    def __init__(
        self, authorizer: Authorizer, rules: PrincipalRules, image: Callable[[], MetadataImage]
    ) -> None:
        self._authorizer = authorizer
        self._rules = rules
        self._image = image

    def refusal(self, scraper: Scraper, asked: str) -> str | None:
        """Why a request is refused, or None. `asked` is the request, such as `GET /metrics`."""
        certificate, address = scraper
        try:
            principal = ANONYMOUS if certificate is None else f"User:{self._rules.user_of(certificate)}"
        except CertificateError as error:
            return str(error)
        caller = Caller(principal, address)
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME)
        allowed = self._authorizer.allows(self._image(), caller, Operation.DESCRIBE, *cluster)
        note_decision(allowed, caller, Operation.DESCRIBE, *cluster, asked)
        return None if allowed else f"{principal} needs Describe on the cluster"
