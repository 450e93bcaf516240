"""A JAAS line of a configuration: the login module and its options.

Owns the syntax. Does not know which options a mechanism needs: `listeners` and `logins` do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaquorum.runtime.errors import ConfigError

_HEAD = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION = re.compile(r"""\s*([\w.-]+|"[^"]+")\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class JaasLine:
    """`module` is the name of the class; `options` may contain secrets."""

    module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(key: str, text: str) -> JaasLine:
    """Parses a line with one entry. Raises ConfigError, whose text never contains the line: it holds
    secrets."""
    head = _HEAD.match(text)
    if head is None:
        raise ConfigError(f'{key} is not a JAAS line: write MODULE required name="value" ...;')
    options: dict[str, str] = {}
    at = head.end()
    while (option := _OPTION.match(text, at)) is not None:
        name, value = option[1].strip('"'), option[2]
        if name in options:
            raise ConfigError(f"{key} sets {name} twice: remove one")
        options[name] = _ESCAPE.sub(r"\1", value[1:-1]) if value[0] in "\"'" else value
        at = option.end()
    if text[at:].strip() != ";":
        count = len(options)
        raise ConfigError(
            f'{key} cannot be read after its option {count}: write name="value" for each, and ; at the end'
        )
    return JaasLine(head[1], options)
