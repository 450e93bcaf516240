"""Why a node of Kafka's protocol gave no usable answer, in one line each."""

from __future__ import annotations


class ConnectionFailed(ConnectionError):
    """There is no connection (any more); whether a request was carried out is unknown."""


class TlsFailed(ConnectionFailed):
    """The two sides do not agree on TLS: a matter of configuration, which no retry mends."""


class LoginRefused(ConnectionFailed):
    """The node does not take the login: a matter of configuration, which no retry mends."""


class UnsupportedVersion(ConnectionFailed):
    """The node does not have an API in a version that this program speaks."""
