"""docs/configuration.md from the table of keys. `python -m metaquorum.runtime.config.docs` prints it."""

from __future__ import annotations

from metaquorum.runtime.config.foreign import ALIASES, ALWAYS, WITH_TLS
from metaquorum.runtime.config.key import MAX_INT, MAX_LONG, Key
from metaquorum.runtime.config.keys import GROUPS

_HEAD = """# Configuration

One file of `key=value` lines (Java properties, UTF-8) configures a node. It is read and checked once,
when the process starts. An unknown key, a value out of range or an impossible combination ends the
process, before it touches anything, with one line that says what to change. Names are Apache Kafka's;
those marked * are our own.

`python -m metaquorum.runtime.config.docs > docs/configuration.md` makes this page from the tables in
`runtime/config/`.

A controller:

```properties
process.roles=controller
node.id=1
listeners=CONTROLLER://127.0.0.1:9093
controller.quorum.voters=1@127.0.0.1:9093:4KTwDGQ6RZ2nQJ4yCqFvXQ,\\
    2@127.0.0.1:9094:O7wy5uJ8Q0aEwAGn8i4tJg,\\
    3@127.0.0.1:9095:b0GXkGmFTkS1Qy8W1fC2zA
log.dirs=/var/lib/metaquorum/controller-1
```

A broker:

```properties
process.roles=broker
node.id=101
listeners=PLAINTEXT://127.0.0.1:9092
controller.quorum.voters=1@127.0.0.1:9093,2@127.0.0.1:9094,3@127.0.0.1:9095
log.dirs=/var/lib/metaquorum/broker-101
```
"""


_OLD_NAMES = " and ".join(f"`{old}` means `{new}`" for old, new in ALIASES.items())
_FOREIGN = f"""
## Kafka keys that are not used

The file of a Kafka node may be used unchanged; `runtime/config/kafka_keys.py` has the names.
{_OLD_NAMES} where the newer name is absent.
A key that is not used is named in one warning at the start and ignored, if the node is only slower, lacks
a feature or keeps more data without it. If ignoring it would admit, reveal or change something that the
key protects, it is refused with a line that says what to do:

| refused | keys |
|---|---|
"""

_BY_LISTENER = (
    "a listener in use is SASL_PLAINTEXT or SASL_SSL | `listeners`",
    "that listener is SSL | `listener.name.<listener>.ssl.*`",
    "is not that of the first of `advertised.listeners` | "
    "`inter.broker.listener.name`, `security.inter.broker.protocol`",
)


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default in (None, ()):
        return "none"
    value = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
    return f"`{value}`"


def _allowed(key: Key) -> str:
    match key.kind:
        case "int":
            others = "".join(f", or {value}" for value in key.also)
            most = "" if key.maximum in (MAX_INT, MAX_LONG) else f" to {key.maximum}"
            return (f"{key.unit}, " if key.unit else "") + f"from {key.minimum}{most}{others}"
        case "choice":
            return ", ".join(f"`{choice}`" for choice in key.choices)
        case "list":
            return "list"
        case "text":
            return "text"


def _row(key: Key, marked: bool) -> str:
    name = f"`{key.name}`" + (" *" if key.own else "")
    if marked and len(key.roles) == 1:
        name += f" ({key.roles[0]})"
    return f"| {name} | {_default(key)} | {_allowed(key)} | {key.text} |\n"


def _refusals() -> dict[str, list[str]]:
    """The keys that are refused, by when."""
    found: dict[str, list[str]] = {}
    for table, where in ((ALWAYS, ""), (WITH_TLS, ", and a listener is SSL")):
        for name, refusal in sorted(table.items()):
            found.setdefault(refusal.when + where, []).append(f"`{name}`")
    return found


def configuration_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, keys in GROUPS:
        parts.append(f"\n## {title}\n\n| key | default | values | meaning |\n|---|---|---|---|\n")
        roles = {key.roles for key in keys}
        parts += [_row(key, marked=len(roles) > 1) for key in keys]
    parts.append(_FOREIGN)
    parts += [f"| {when} | {', '.join(names)} |\n" for when, names in _refusals().items()]
    parts += [f"| {text} |\n" for text in _BY_LISTENER]
    return "".join(parts)


if __name__ == "__main__":
    print(configuration_page(), end="")
