"""Which PEM files a listener or a client uses, from the ssl.* keys.

Owns the names of the files. Does not read them: `runtime.tls` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from metaquorum.runtime.config.key import Value
from metaquorum.runtime.errors import ConfigError


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: one with the own key and certificate chain, one with CAs. `client_auth`: a server requires a
    client certificate that one of the CAs signed."""

    keystore: Path | None = None
    truststore: Path | None = None
    client_auth: bool = False


def tls_files(values: Mapping[str, Value]) -> TlsFiles:
    """The files that a configuration names. Raises ConfigError for a store that is not a PEM file."""
    for store in ("ssl.keystore", "ssl.truststore"):
        kind = values[f"{store}.type"]
        if values[f"{store}.location"] and kind != "pem":
            raise ConfigError(
                f"{store}.type={kind} is not read here: name a PEM file in {store}.location and leave the "
                "type out"
            )
    keystore = cast("str | None", values["ssl.keystore.location"])
    truststore = cast("str | None", values["ssl.truststore.location"])
    return TlsFiles(
        keystore=Path(keystore) if keystore else None,
        truststore=Path(truststore) if truststore else None,
        client_auth=values["ssl.client.auth"] == "required",
    )


def check_tls(tls: TlsFiles, *, serves_tls: bool) -> None:
    """Raises ConfigError if files that the listeners need are missing. `serves_tls`: a listener is SSL."""
    if serves_tls and tls.keystore is None:
        raise ConfigError(
            "a listener is SSL, but ssl.keystore.location is missing: set it to the PEM file with the key "
            "and certificate chain"
        )
    if tls.client_auth and tls.truststore is None:
        raise ConfigError(
            "ssl.client.auth=required needs ssl.truststore.location: set it to the PEM file of the "
            "clients' CA"
        )
    if tls.client_auth and not serves_tls:
        raise ConfigError(
            "ssl.client.auth=required, but no listener is SSL: map one in listener.security.protocol.map"
        )
