"""The errors of questions about a log.

Owns `InspectError`. Must not import another module, so that importing it loads nothing else.
"""

from __future__ import annotations


class InspectError(Exception):
    """A question that a log cannot answer. The text says what is wrong and what to ask instead."""
