"""docs/configuration.md from the table of keys. `python -m metaquorum.runtime.config.docs` prints it."""

from __future__ import annotations

from metaquorum.runtime.config.foreign import ALIASES, ALWAYS, WITH_TLS
from metaquorum.runtime.config.key import Key
from metaquorum.runtime.config.keys import GROUPS

_HEAD = """# Configuration

One file of `key=value` lines (Java properties, UTF-8) configures a node. It is read and checked once,
when the process starts. An unknown key, a value out of range or an impossible combination ends the
process, before it touches anything, with one line that says what to change. Names are Apache Kafka's
where Kafka has the setting; those marked * are our own. Durations are in ms, sizes in bytes.

A configuration file of a Kafka node may be used unchanged: keys that Kafka knows but this release does
not use are named in one warning at the start and ignored, unless that would break what the file promises
(see the end of this page).

This page is generated from the tables in `runtime/config/`:
`python -m metaquorum.runtime.config.docs > docs/configuration.md`.

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


_OLD_NAMES = " and ".join(f"`{old}` is read as `{new}`" for old, new in ALIASES.items())
_FOREIGN = f"""
## Kafka keys that are not used

The names are in `runtime/config/kafka_keys.py`; `listener.name.*` and the keys of plug-ins are Kafka's
too. Such a key is ignored if the node is only slower, lacks a feature or keeps more data without it. It
is refused if ignoring it would admit, reveal or change something that the key protects. So keys of SASL
are ignored (a listener that uses SASL is refused), and so are quotas and limits of connections, internal
topics, and metrics reporters.

{_OLD_NAMES}, if the newer name is absent.

| key | refused when | what to do |
|---|---|---|
"""

_BY_LISTENER = (
    "`listeners` | a listener in use is SASL_PLAINTEXT or SASL_SSL | "
    "remove it, or map it to PLAINTEXT or SSL if clients need not log in",
    "`listener.name.<listener>.ssl.*` | that listener is SSL | all listeners share the keys `ssl.*`",
    "`inter.broker.listener.name` | it is not the first of `advertised.listeners` | put it first",
    "`security.inter.broker.protocol` | it is not that of the first of `advertised.listeners` | "
    "map that listener in `listener.security.protocol.map`",
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
            return f"{key.minimum} to {key.maximum}" + (f" {key.unit}" if key.unit else "") + others
        case "choice":
            return ", ".join(f"`{choice}`" for choice in key.choices)
        case "list":
            return "list"
        case "text":
            return "text"


def configuration_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, keys in GROUPS:
        parts.append(f"\n## {title}\n\n| key | default | values | for | meaning |\n|---|---|---|---|---|\n")
        for key in keys:
            name = f"`{key.name}`" + (" *" if key.own else "")
            roles = "both" if len(key.roles) > 1 else key.roles[0]
            parts.append(f"| {name} | {_default(key)} | {_allowed(key)} | {roles} | {key.text} |\n")
    parts.append(_FOREIGN)
    for table, where in ((ALWAYS, ""), (WITH_TLS, ", and a listener is SSL")):
        for name, refusal in sorted(table.items()):
            parts.append(f"| `{name}` | {refusal.when}{where} | {refusal.advice} |\n")
    parts += [f"| {text} |\n" for text in _BY_LISTENER]
    return "".join(parts)


if __name__ == "__main__":
    print(configuration_page(), end="")
