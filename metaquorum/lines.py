"""Texts that others chose, on one line of a terminal or a log."""

from __future__ import annotations

import re

_LONG_WORD = re.compile(r"\S{400,}")
_MAX_LENGTH = 4_000


def printable(text: str) -> str:
    """The text with everything else escaped: line ends, control sequences, changes of direction, bytes that
    are not UTF-8."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def one_line(error: object) -> str:
    """The text of an error, never empty. A long value is in it with its two ends: the rest says nothing, and
    hides what is wrong with it."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = _LONG_WORD.sub(lambda word: f"{word[0][:120]}...{word[0][-60:]}", text)
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH - 500]}...{text[-500:]}"
    return printable(text)
