"""The pairs that configure a node: a .properties file as Java reads it, its providers, the environment.

A value that a provider looked up is never in an error text: `Resolved.hide` puts the reference in its place.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import javaproperties

from metaquorum.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024


def read_small_file(path: Path, at_most: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file that a person names. Raises OSError (EFBIG) beyond `at_most` bytes: a device such
    as /dev/zero has no end, and its size is 0."""
    with path.open("rb") as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"It is larger than {at_most >> 20} MiB", str(path))
    return content


def read_properties(path: Path, repeated: list[str] | None = None) -> dict[str, str]:
    """The pairs of a file. A key that is set twice has its last value, as in Java, and is added to
    `repeated`. Raises ConfigError, in one line without the path."""
    try:
        text = read_small_file(path).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}; give the path of a .properties file") from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text; give the path of a .properties file") from error
    pairs: dict[str, str] = {}
    try:
        for entry in javaproperties.parse(text):
            if not isinstance(entry, javaproperties.KeyValue):
                continue
            if entry.key in pairs and repeated is not None and entry.key not in repeated:
                repeated.append(entry.key)
            pairs[entry.key] = entry.value
    except ValueError as error:
        raise ConfigError(f"is not a .properties file: {error}") from error
    return pairs


PROVIDERS = "config.providers"
_REFERENCE = re.compile(r"\$\{(?P<provider>[^}:]*):(?:(?P<path>[^}]*?):)?(?P<key>[^}:]*)\}")
_PACKAGE = "org.apache.kafka.common.config.provider."


@dataclass(frozen=True, slots=True)
class Resolved:
    """The pairs of a file without references. `resolved`: what each reference stood for."""

    pairs: Mapping[str, str]
    resolved: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hide(self, text: str) -> str:
        """The text with references instead of what was looked up."""
        for reference, value in sorted(self.resolved.items(), key=lambda each: -len(each[1])):
            if value:
                text = text.replace(value, reference)
        return text


def resolve(pairs: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Resolved:
    """Looks up every reference to a provider that the file names. Raises ConfigError, in one line without
    the file's path, for an unknown provider and for what is not there."""
    names = [each.strip() for each in pairs.get(PROVIDERS, "").split(",") if each.strip()]
    if not names:
        return Resolved(pairs)
    lookups = {name: _lookup(name, pairs, environment) for name in names}
    resolved_values: dict[str, str] = {}

    def value_of(reference: re.Match[str]) -> str:
        lookup = lookups.get(reference["provider"])
        if lookup is None:
            return reference[0]  # as in Kafka: a text that only looks like a reference
        resolved_values[reference[0]] = lookup(reference["path"] or "", reference["key"])
        return resolved_values[reference[0]]

    resolved = {}
    for name, text in pairs.items():
        if name == PROVIDERS or name.startswith(f"{PROVIDERS}."):
            continue
        try:
            resolved[name] = _REFERENCE.sub(value_of, text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return Resolved(resolved, resolved_values)


def _lookup(name: str, pairs: Mapping[str, str], environment: Mapping[str, str]) -> Callable[[str, str], str]:
    key = f"{PROVIDERS}.{name}.class"
    kind = pairs.get(key, "").strip()
    prefix = f"{PROVIDERS}.{name}.param."
    match kind.removeprefix(_PACKAGE):
        case "EnvVarConfigProvider":
            pattern = pairs.get(f"{prefix}allowlist.pattern", "").strip()
            return _Environment(environment, _compiled(f"{prefix}allowlist.pattern", pattern))
        case "FileConfigProvider":
            return _Files(_allowed(pairs.get(f"{prefix}allowed.paths", "")))
        case "DirectoryConfigProvider":
            return _Directories(_allowed(pairs.get(f"{prefix}allowed.paths", "")))
    known = "EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider"
    if not kind:
        raise ConfigError(f"{PROVIDERS} names {name}, but {key} is missing: set it to {_PACKAGE}{known}")
    raise ConfigError(f"{key}={kind} is not supported: there are no plug-ins; use {_PACKAGE}{known}")


def _compiled(key: str, pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise ConfigError(f"{key}={pattern} is not a regular expression: {error}") from error


def _allowed(text: str) -> tuple[Path, ...]:
    return tuple(Path(os.path.realpath(each.strip())) for each in text.split(",") if each.strip())


@dataclass(frozen=True, slots=True)
class _Environment:
    """`${name:VARIABLE}`. `allowed`: the variables that may be read; None: all."""

    environment: Mapping[str, str]
    allowed: re.Pattern[str] | None

    def __call__(self, path: str, key: str) -> str:
        if path:
            raise ConfigError(f"the environment has no folders: write ${{...:{key}}}, without a path")
        if self.allowed is not None and not self.allowed.fullmatch(key):
            raise ConfigError(f"the variable {key} is not in allowlist.pattern of its provider: add it there")
        if key not in self.environment:
            raise ConfigError(f"the environment variable {key} is not set: set it for this process")
        return self.environment[key]


@dataclass(frozen=True, slots=True)
class _Files:
    """`${name:FILE:KEY}`: a key of another .properties file. `allowed`: files or folders; none: all."""

    allowed: tuple[Path, ...]

    def __call__(self, path: str, key: str) -> str:
        file = _checked(path, self.allowed)
        try:
            values = read_properties(file)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
        if key not in values:
            raise ConfigError(f"{file} does not set {key}: add it there, or correct the reference")
        return values[key]


@dataclass(frozen=True, slots=True)
class _Directories:
    """`${name:FOLDER:FILE}`: the whole content of a file. `allowed`: folders; none: all."""

    allowed: tuple[Path, ...]

    def __call__(self, path: str, key: str) -> str:
        if key != Path(key).name:
            raise ConfigError(f"{key!r} is not the name of a file in {path}")
        file = _checked(path, self.allowed) / key
        try:
            return read_small_file(file).decode("utf-8")
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise ConfigError(f"{file} cannot be read: {reason}; check the path and its owner") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8 text") from error


def _checked(path: str, allowed: tuple[Path, ...]) -> Path:
    if not path:
        raise ConfigError("the reference names no path: write ${provider:/path:key}")
    file = Path(os.path.realpath(path))
    if allowed and not any(file.is_relative_to(each) for each in allowed):
        raise ConfigError(f"{file} is not in allowed.paths of its provider: add it there")
    return file


PREFIX = "KAFKA_"
NOT_KEYS = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    }
)
"""Variables of Kafka's image that are about the JVM; they have no effect here."""
SECRETS = "/etc/kafka/secrets"
"""Where Kafka's image looks for the files of `KAFKA_SSL_KEYSTORE_FILENAME` and the like."""
_FILES = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "ssl.keystore.location",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "ssl.truststore.location",
}
_PASSWORDS = (
    "KAFKA_SSL_KEY_CREDENTIALS",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS",
)
_HOST = re.compile(r"://(?:\[[^\]]*\]|[^:,\]]*):")

ALONE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093,GRPC_CONTROLLER://127.0.0.1:9094",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "controller.listener.names": "CONTROLLER,GRPC_CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "allow.insecure.listeners": "true",
}
"""One node that is a whole cluster, for the clients of its machine, as Kafka's image without arguments."""


def key_of(variable: str) -> str:
    """The key that a variable sets: lower case, `_` is a dot, `__` an underscore, `___` a dash."""
    words = variable.removeprefix(PREFIX).lower().replace("_", ".")
    return words.replace("...", "-").replace("..", "_")


def environment_pairs(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that an environment sets. Raises ConfigError for what Kafka's image has and this does not."""
    for name in _PASSWORDS:
        if environment.get(name):
            raise ConfigError(
                f"{name} is not supported: PEM files have no password; name them in "
                "KAFKA_SSL_KEYSTORE_LOCATION and KAFKA_SSL_TRUSTSTORE_LOCATION"
            )
    pairs = {
        key_of(name): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name not in NOT_KEYS and name not in _FILES
    }
    for name, key in _FILES.items():
        if environment.get(name):
            pairs.setdefault(key, f"{SECRETS}/{environment[name]}")
    advertised = pairs.get("advertised.listeners")
    if advertised and not pairs.get("listeners") and pairs.get("process.roles") != "controller":
        pairs["listeners"] = _HOST.sub("://0.0.0.0:", advertised)
    return pairs


def merged(file: Mapping[str, str], environment: Mapping[str, str], data: str) -> dict[str, str]:
    """The configuration of a node: a file's, the environment's before it, and a whole cluster if neither says
    anything. `data`: the directory for what the node stores, if nothing else is set. Raises ConfigError."""
    pairs = {**file, **environment_pairs(environment)} or dict(ALONE)
    if not any(pairs.get(key) for key in ("log.dirs", "log.dir", "metadata.log.dir")):
        pairs["log.dirs"] = data
    return pairs


def is_a_cluster_alone(pairs: Mapping[str, str]) -> bool:
    """Whether the configuration is of a controller that has no other beside it."""
    roles = {each.strip() for each in pairs.get("process.roles", "").split(",")}
    named = pairs.get("controller.quorum.voters") or pairs.get("controller.quorum.bootstrap.servers") or ""
    return "controller" in roles and len([each for each in named.split(",") if each.strip()]) == 1
