"""docs/configuration.md, made from the table of keys. `python -m metaquorum.runtime.config.docs` prints it.

Owns the form of the page. Does not know what a key means: its row has the text.
"""

from __future__ import annotations

import signal
import textwrap

from metaquorum.runtime.config.foreign import ALIASES
from metaquorum.runtime.config.key import Key
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

An unknown key, a value out of range or an impossible combination ends the process at its start, before it
touches anything, with one line that says what to change. Names are Apache Kafka's; an asterisk marks our own.
In parentheses: the role that has the key, our default, other choices. Times are in ms and sizes in bytes
where a name ends so; switches are `true` or `false`.
"""


_OLD_NAMES = " and ".join(f"`{old}` means `{new}`" for old, new in ALIASES.items())
_FOREIGN = f"""
## Kafka keys that are not used

The file of a Kafka node may be used unchanged. {_OLD_NAMES} where
the newer name is absent. One warning at the start names the keys that are not used. A key that protects
something (another authorizer, GSSAPI, an encrypted private key) is refused with a line that says what to do.
"""


def list_item(text: str) -> str:
    """A list item in Markdown, wrapped to the line length of the pages."""
    lines = textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
    return "- " + "\n  ".join(lines) + "\n"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default in (None, (), ""):
        return ""
    value = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
    return f"`{value}`"


def _choices(key: Key) -> str:
    if key.kind != "choice" or set(key.choices) == {"true", "false"}:
        return ""
    return ", ".join(f"`{one}`" for one in key.choices if one != key.default)


def _item(key: Key, *, marked: bool) -> str:
    name = f"`{key.name}`" + ("\\*" if key.own else "")
    role = key.roles[0] if marked and len(key.roles) == 1 else ""
    notes = "; ".join(note for note in (role, _default(key), _choices(key)) if note)
    return list_item(f"{name}{f' ({notes})' if notes else ''}: {key.text}")


_EXPLAINED = {
    "node.id",
    "socket.request.max.bytes",
    "controller.quorum.election.timeout.ms",
    "controller.quorum.fetch.timeout.ms",
    "metadata.max.retention.bytes",
    "metadata.max.idle.interval.ms",
    "metadata.log.max.record.bytes.between.snapshots",
    "metadata.log.max.snapshot.interval.ms",
    "broker.session.timeout.ms",
    "reserved.broker.max.id",
    "leader.imbalance.check.interval.seconds",
    "num.partitions",
    "default.replication.factor",
    "initial.broker.registration.timeout.ms",
    "replica.lag.time.max.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.dir.failure.timeout.ms",
    "queued.max.request.bytes",
    "min.insync.replicas",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "group.consumer.regex.refresh.interval.ms",
    "controller.quota.window.num",
    "connections.max.reauth.ms",
}
"""Kafka's numeric keys that mean more than their names say, or something slightly different from Kafka."""


def _is_kafkas(key: Key) -> bool:
    """True for a numeric key that Kafka's documentation explains: the page only has its default."""
    return not key.own and key.kind in ("int", "double") and key.name not in _EXPLAINED


def configuration_page() -> str:
    """The complete page."""
    parts = [_HEAD]
    for title, keys in GROUPS:
        marked = len({key.roles for key in keys}) > 1
        parts.append(f"\n## {title}\n\n")
        parts += [_item(key, marked=marked) for key in keys if not _is_kafkas(key)]
        others = [f"`{key.name}` ({_default(key) or 'none'})" for key in keys if _is_kafkas(key)]
        parts += [list_item(f"As in Kafka: {', '.join(others)}.")] if others else []
    parts.append(_FOREIGN)
    return "".join(parts)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends the program
    print(configuration_page(), end="")
