"""Errors that end a process before or while it runs. Each text is one line that says what to do next."""

from __future__ import annotations

import errno


class ConfigError(Exception):
    """The configuration is invalid; nothing was changed."""


class StartError(Exception):
    """The process cannot start here: an unformatted directory, a port in use, another cluster's files."""


def cannot_listen(where: str, error: OSError, key: str) -> StartError:
    """The error for an address that cannot be bound; `key`: where it is configured."""
    reason = error.strerror or str(error)
    match error.errno:
        case errno.EADDRINUSE:
            advice = f"stop the process that uses it, or choose another port in {key}"
        case errno.EACCES | errno.EPERM:
            advice = (
                "this system reserves the port, as most do below 1024, for others than this user:"
                f" choose another port in {key}"
            )
        case errno.EADDRNOTAVAIL:
            advice = f"no network interface here has this address: choose another address in {key}"
        case _:
            advice = f"choose another address or port in {key}"
    return StartError(f"cannot listen on {where}: {reason}; {advice}")
