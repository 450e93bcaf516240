"""docs/configuration.md, made from the table of keys. `python -m runtime.config_docs` prints it."""

from __future__ import annotations

from runtime.config_key import Key
from runtime.config_keys import GROUPS, UNSUPPORTED

_HEAD = """# Configuration

A node is configured by one file of `key=value` lines (Java properties, UTF-8). It is read and checked once,
when the process starts: an unknown key, a value that is out of range or a combination that cannot work ends
the process with one line that says what to change, before anything is touched. Names are Apache Kafka's,
wherever Kafka has the setting; those marked * are our own. Durations are in ms, sizes in bytes.

This page is made from the table in `runtime/config_keys.py`:
`python -m runtime.config_docs > docs/configuration.md`.

A controller:

```properties
process.roles=controller
node.id=1
listeners=CONTROLLER://127.0.0.1:9093
controller.quorum.voters=1@127.0.0.1:9093:4KTwDGQ6RZ2nQJ4yCqFvXQ,2@127.0.0.1:9094:O7wy5uJ8Q0aEwAGn8i4tJg,3@127.0.0.1:9095:b0GXkGmFTkS1Qy8W1fC2zA
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
            return f"{key.minimum} to {key.maximum}" + (f" {key.unit}" if key.unit else "")
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
    parts.append("\n## Keys of Kafka that are refused\n\n| key | what to do |\n|---|---|\n")
    parts += [f"| `{name}` | {advice} |\n" for name, advice in sorted(UNSUPPORTED.items())]
    return "".join(parts)


if __name__ == "__main__":
    print(configuration_page(), end="")
