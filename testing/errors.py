"""What the test cluster raises: one line that says what is wrong and what to do."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot do what was asked."""


class ClusterTimeoutError(ClusterError):
    """Something did not happen in time; the message says what the cluster did meanwhile."""


FORKED = (
    "this process was forked after the cluster was started: use the cluster where it was started, and here"
    " clients with its bootstrap_servers"
)
