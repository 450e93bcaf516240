"""Errors that end a process before or while it runs.

Owns the classes. Each text is one line that says what to do next. Does not have errors of requests
(`metadata.errors`) or of files (`storage.errors`).
"""

from __future__ import annotations


class ConfigError(Exception):
    """The configuration is invalid; nothing was changed."""


class StartError(Exception):
    """The process cannot start here: an unformatted directory, a port in use, another cluster's files."""
