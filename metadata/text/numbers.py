"""Whole numbers in text that others wrote: names, settings, words of a command line.

Owns what counts as one: `int` takes digits of any script, and raises ValueError for thousands of digits. Does
not know which numbers a setting allows; `settings.keys` does.
"""

from __future__ import annotations


def whole_number(text: str, most: int) -> int | None:
    """The number that ASCII digits write; None for any other text, and for more than `most`."""
    digits = text.lstrip("0") or text[:1]
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)):
        return None
    found = int(digits)
    return found if found <= most else None
