"""docs/configuration.md, from the table of keys. `python -m metaquorum.config.docs` prints it."""

from __future__ import annotations

import textwrap

from metaquorum.config.keys import GROUPS
from metaquorum.config.load import ALIASES
from metaquorum.metadata.settings.keys import Key, Kind, value_text
from metaquorum.platforms import end_without_reader

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

A name that resembles a key, a value out of range or an impossible combination ends the process at its
start, before it touches anything, with one line that says what to change. Names are Apache Kafka's; an
asterisk marks our own, a plus what `metaquorum configs alter broker` changes while brokers run. In
parentheses: the role that has the key, our default, other choices. Times are in ms and sizes in bytes where
a name ends so; switches are `true` or `false`.
"""


_OLD_NAMES = " and ".join(f"`{old}` means `{new}`" for old, new in ALIASES.items())
_FOREIGN = f"""
## Kafka keys that are not used

The file of a Kafka node may be used unchanged. {_OLD_NAMES} where
the newer name is absent. One warning at the start names the keys that are not used. A key that protects
something (another authorizer, GSSAPI, an encrypted private key) is refused with a line that says what to do.
Of a key that is set twice the last line counts; other programs' keys are ignored. Warnings name both.

## Values from elsewhere

As in Kafka, `config.providers` names providers and `config.providers.NAME.class` their classes; values may
then contain references. Error texts show the reference, never the value.

```properties
config.providers=env,file,dir
config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
config.providers.dir.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider
broker.rack=${{env:RACK}}
delegation.token.secret.key=${{file:/run/secrets/metaquorum.properties:token.key}}
listener.name.clients.plain.sasl.jaas.config=${{dir:/run/secrets:clients-jaas}}
```

`config.providers.NAME.param.allowlist.pattern` (environment) and
`config.providers.NAME.param.allowed.paths` (files) restrict what may be read.
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
    return f"`{value_text(key.default)}`"


def _choices(key: Key) -> str:
    usual = key.default if isinstance(key.default, tuple) else (key.default,)
    return ", ".join(f"`{choice}`" for choice in key.choices if choice not in usual)


def _name(key: Key) -> str:
    return f"`{key.name}`" + ("\\*" if key.own else "") + ("+" if key.is_live else "")


def _item(key: Key, *, marked: bool) -> str:
    name = _name(key)
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
    "max.connections",
    "max.connections.per.ip",
    "max.connection.creation.rate",
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
    return not key.own and key.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE) and key.name not in _EXPLAINED


def configuration_page() -> str:
    """The complete page."""
    parts = [_HEAD]
    for title, keys in GROUPS:
        marked = len({key.roles for key in keys}) > 1
        parts.append(f"\n## {title}\n\n")
        parts += [_item(key, marked=marked) for key in keys if not _is_kafkas(key)]
        others = [f"{_name(key)} ({_default(key) or 'none'})" for key in keys if _is_kafkas(key)]
        parts += [list_item(f"As in Kafka: {', '.join(others)}.")] if others else []
    parts.append(_FOREIGN)
    return "".join(parts)


if __name__ == "__main__":
    end_without_reader()
    print(configuration_page(), end="")
