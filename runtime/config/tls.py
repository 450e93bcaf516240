"""Which PEM files a listener or a client uses. Reads none of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: own key and chain in one, CAs in the other. `client_auth`: a server asks for a
    certificate that one of the CAs signed, and takes no one without."""

    keystore: Path | None = None
    truststore: Path | None = None
    client_auth: bool = False
