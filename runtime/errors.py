"""Errors that end a process before or while it runs. Each text is one line that says what to do next."""

from __future__ import annotations


class ConfigError(Exception):
    """A configuration that cannot be used; nothing was touched."""


class StartError(Exception):
    """A process that cannot start here: an unformatted directory, a port in use, another cluster's files."""
