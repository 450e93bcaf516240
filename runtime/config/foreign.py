"""Kafka's keys that have no effect here: accepted and ignored, unless that would break what the file
promises.

Owns which of them prevent a node from starting. The rule: a key may be ignored if the node without it is
slower, lacks a feature or retains more; never if it would let in, show or change what the key prevents.
Does not know the names of Kafka's keys (`metadata.settings.kafka_keys`), nor the keys that do have an effect
(`keys`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from metaquorum.metadata.settings.kafka_keys import KAFKA_KEYS, is_kafkas
from metaquorum.runtime.config.addresses import Listener
from metaquorum.runtime.config.key import Key
from metaquorum.runtime.errors import ConfigError

ALIASES = {"broker.id": "node.id", "log.dir": "log.dirs"}
"""Older names that Kafka still accepts if the newer one is not set."""


class KeyRefusal(msgspec.Struct, frozen=True):
    """What to do about a key that is refused, and the values for which it is."""

    advice: str
    applies: Callable[[str], bool] = bool


def _is(word: str) -> Callable[[str], bool]:
    return lambda value: value.lower() == word


def _restricts_tls(value: str) -> bool:
    return bool(value) and not {"TLSv1.2", "TLSv1.3"} <= {part.strip() for part in value.split(",")}


_POLICY = "remove the line to allow what the policy would refuse"
_INLINE = "name PEM files in ssl.keystore.location and ssl.truststore.location instead"

ALWAYS: Mapping[str, KeyRefusal] = {
    "create.topic.policy.class.name": KeyRefusal(_POLICY),
    "alter.config.policy.class.name": KeyRefusal(_POLICY),
    "config.providers": KeyRefusal("write the values into the file"),
    "delete.topic.enable": KeyRefusal("topics can always be deleted; remove the line", _is("false")),
    "remote.log.storage.system.enable": KeyRefusal(
        "there is no tiered storage, and its records would be missing", _is("true")
    ),
    "zookeeper.connect": KeyRefusal("remove the line and set controller.quorum.voters"),
    "zookeeper.metadata.migration.enable": KeyRefusal("finish the migration with Kafka", _is("true")),
}
WITH_TLS: Mapping[str, KeyRefusal] = {
    "ssl.cipher.suites": KeyRefusal("gRPC chooses the cipher suites; remove the line"),
    "ssl.enabled.protocols": KeyRefusal(
        "TLSv1.2 and TLSv1.3 are always enabled; remove the line",
        _restricts_tls,
    ),
    "ssl.engine.factory.class": KeyRefusal("there are no plug-ins; remove the line"),
    "ssl.key.password": KeyRefusal("decrypt the private key"),
    "ssl.keystore.password": KeyRefusal("a PEM file has no password; remove the line"),
    "ssl.truststore.password": KeyRefusal("a PEM file has no password; remove the line"),
    "ssl.keystore.key": KeyRefusal(_INLINE),
    "ssl.keystore.certificate.chain": KeyRefusal(_INLINE),
    "ssl.truststore.certificates": KeyRefusal(_INLINE),
}
"""Refused if a listener of this node or of the controllers is SSL; otherwise they have no effect in Kafka
either."""

_OF_A_LISTENER = re.compile(r"listener\.name\.([^.]+)\.(ssl\..+)")


def refuse_unknown(names: Iterable[str], keys: Mapping[str, Key]) -> None:
    """Raises one ConfigError for all names that are neither keys here nor Kafka's, each with the most similar
    known name."""
    unknown = [name for name in names if name not in keys and not is_kafkas(name)]
    if not unknown:
        return
    everything = sorted({*keys, *KAFKA_KEYS})
    near = {name: difflib.get_close_matches(name, everything, n=1, cutoff=0.6) for name in unknown}
    page = "docs/configuration.md lists the known ones"
    if len(unknown) == 1:
        (name,) = unknown
        raise ConfigError(
            f"{name} is not a known key: {f'did you mean {near[name][0]}?' if near[name] else page}"
        )
    told = [f"{name} (did you mean {near[name][0]}?)" if near[name] else name for name in unknown]
    raise ConfigError(f"{', '.join(told)} are not known keys: {page}")


def with_new_names(pairs: Mapping[str, str]) -> dict[str, str]:
    """The pairs with Kafka's older names replaced by the newer ones. Raises ConfigError if a node's two ids
    differ."""
    found = dict(pairs)
    for old, new in ALIASES.items():
        if old not in found:
            continue
        value = found.pop(old)
        if new == "node.id" and found.get(new, value).strip() != value.strip():
            raise ConfigError(f"{old}={value}, but {new}={found[new]}: remove the line with {old}")
        found.setdefault(new, value)
    return found


def check_passed_over(passed: Mapping[str, str], listeners: tuple[Listener, ...], *, uses_tls: bool) -> None:
    """Raises one ConfigError for all keys that must not be ignored."""
    refusals = {**ALWAYS, **WITH_TLS} if uses_tls else ALWAYS
    tls_names = {listener.name.lower() for listener in listeners if listener.is_tls}
    problems = []
    for name, raw in passed.items():
        value = raw.strip()
        refusal = refusals.get(name)
        own = _OF_A_LISTENER.fullmatch(name)
        if refusal is not None and refusal.applies(value):
            problems.append(f"{name} is not supported: {refusal.advice}")
        elif own is not None and own[1].lower() in tls_names:
            problems.append(f"{name} is not supported: all listeners share the ssl.* keys; set {own[2]}")
    if problems:
        raise ConfigError("; ".join(problems))
