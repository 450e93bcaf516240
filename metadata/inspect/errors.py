"""What a question about a log fails with. Apart, so that a program that only names it loads nothing else."""

from __future__ import annotations


class InspectError(Exception):
    """A question that a log cannot answer; the text says what is wrong and what to ask instead."""
