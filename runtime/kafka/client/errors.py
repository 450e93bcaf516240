"""Why a node of Kafka's protocol gave no usable response, in one line each.

Owns these classes. Does not have the error codes in responses (`metadata.errors`) or the error of a whole
call (`runtime.client.admin`).
"""

from __future__ import annotations


class ConnectionFailed(ConnectionError):
    """The connection could not be opened, or has closed; whether a request was carried out is unknown."""


class TlsFailed(ConnectionFailed):
    """The two sides do not agree on TLS: an error in the configuration, so that retries are useless."""


class LoginRefused(ConnectionFailed):
    """The node refused the login: an error in the configuration, so that retries are useless."""


class UnsupportedVersion(ConnectionFailed):
    """The node does not have an API in a version that this program has."""
