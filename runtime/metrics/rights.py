"""Who may read a node's figures where an authorizer is configured: principals with Describe on the cluster.

Owns how a scraper becomes a principal: by the certificate that it showed, else it is User:ANONYMOUS.
"""

from __future__ import annotations

from collections.abc import Callable

from metaquorum.metadata.access.authorizer import ANONYMOUS, Authorizer, Caller
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.settings.acls import CLUSTER_NAME, Operation, ResourceType
from metaquorum.runtime.authorizer_log import note_decision
from metaquorum.runtime.config.access.certificates import CertificateError, PrincipalRules
from metaquorum.runtime.config.access.listeners import new_authorizer
from metaquorum.runtime.config.node import NodeConfig

Scraper = tuple[bytes | None, str]
"""The certificate in DER that TLS has checked (None: there is none), and the address."""


def scraper_rights(config: NodeConfig, image: Callable[[], MetadataImage]) -> ScraperRights | None:
    """Those of a node with this configuration; None: everyone who can connect may read."""
    authorizer = new_authorizer(config.values)
    if authorizer is None:
        return None
    return ScraperRights(authorizer, PrincipalRules(config.text("ssl.principal.mapping.rules")), image)


class ScraperRights:
    """See the module. `image` is asked for at each request."""

    def __init__(
        self, authorizer: Authorizer, rules: PrincipalRules, image: Callable[[], MetadataImage]
    ) -> None:
        self._authorizer = authorizer
        self._rules = rules
        self._image = image

    def refusal(self, scraper: Scraper, asked: str) -> str | None:
        """Why a request is refused; None: it is not. `asked` is as in `GET /metrics`."""
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
