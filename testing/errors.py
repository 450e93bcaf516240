"""What the test cluster raises: one line that says what is wrong and what to do."""

from __future__ import annotations

from metaquorum.lines import one_line


class ClusterError(Exception):
    """The cluster cannot do what was asked. Its text is one line, whatever is in it."""

    def __init__(self, text: object) -> None:
        super().__init__(one_line(text))


class ClusterTimeoutError(ClusterError):
    """Something did not happen in time; the message says what the cluster did meanwhile."""


FORKED = (
    "this process was forked after the cluster was started: use the cluster where it was started, and here"
    " clients with its bootstrap_servers"
)
