"""docs/configuration.md from the table of keys. `python -m metaquorum.runtime.config.docs` prints it."""

from __future__ import annotations

import signal
import textwrap

from metaquorum.runtime.config.foreign import ALIASES
from metaquorum.runtime.config.key import MAX_DOUBLE, MAX_INT, MAX_LONG, Key
from metaquorum.runtime.config.keys import GROUPS

_HEAD = """# Configuration

One file of `key=value` lines (Java properties, UTF-8) configures a node;
[operations.md](operations.md#deploying-a-quorum) has one of a controller. A broker's:

```properties
process.roles=broker
node.id=101
listeners=PLAINTEXT://127.0.0.1:9092
controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095
log.dirs=/var/lib/metaquorum/broker-101
```

The file is read once, at the start. An unknown key, a value out of range or an impossible combination ends
the process, before it touches anything, with one line that says what to change. Names are Apache Kafka's;
an asterisk marks our own. In parentheses: the default, and the range or choices. Times are in ms and sizes
in bytes where a name ends so, numbers start at 0 or 1 where no range is given, and switches are `true` or
`false`.

`python -m metaquorum.runtime.config.docs > docs/configuration.md` makes this page from the tables in
`runtime/config/`.
"""


_OLD_NAMES = " and ".join(f"`{old}` means `{new}`" for old, new in ALIASES.items())
_FOREIGN = f"""
## Kafka keys that are not used

The file of a Kafka node may be used unchanged.
{_OLD_NAMES} where the newer name is absent.
A key that is not used is named in one warning at the start, if the node is only slower, lacks a feature or
keeps more data without it. If ignoring it would admit, reveal or change something that the key protects
(another authorizer, GSSAPI, an encrypted private key), it is refused with a line that says
what to do.
"""


def list_item(text: str) -> str:
    """An item of a list in Markdown, in lines of the length that pages keep to."""
    lines = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return "- " + "\n  ".join(lines) + "\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default in (None, ()):
        return "none"
    value = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
    return f"`{value}`"


_TRIVIAL_MINIMUM = 1
"""The page gives only lower bounds above this, and those that are negative."""


def _allowed(key: Key) -> str:
    """The range or the choices of a key; empty where the head of the page gives them."""
    match key.kind:
        case "int":
            others = "".join(f", or {value}" for value in key.also)
            most = "" if key.maximum in (MAX_INT, MAX_LONG) else f" to {key.maximum}"
            trivial = key.minimum in (0, _TRIVIAL_MINIMUM) and not (most or others)
            return "" if trivial else f"from {key.minimum}{most}{others}"
        case "choice":
            return (
                "" if set(key.choices) == {"true", "false"} else ", ".join(f"`{one}`" for one in key.choices)
            )
        case "double":
            return "" if key.most == MAX_DOUBLE else f"from {key.minimum} to {key.most:g}"
        case "list" | "text":
            return ""


def _item(key: Key, marked: bool) -> str:
    name = f"`{key.name}`" + ("\\*" if key.own else "")
    of_role = f"{key.roles[0]}, " if marked and len(key.roles) == 1 else ""
    allowed = _allowed(key)
    return list_item(f"{name} ({of_role}{_default(key)}{'; ' + allowed if allowed else ''}): {key.text}")


def configuration_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, keys in GROUPS:
        parts.append(f"\n## {title}\n\n")
        roles = {key.roles for key in keys}
        parts += [_item(key, marked=len(roles) > 1) for key in keys]
    parts.append(_FOREIGN)
    return "".join(parts)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    print(configuration_page(), end="")
