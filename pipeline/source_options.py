"""The options of the Spark data source: names, values, and what is wrong with them in one line.

Owns their check and defaults. Does not plan or read (`source` does) and knows no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from metaquorum.metadata.inspect.log.points import parse_time_ms
from metaquorum.pipeline.logs.damage import Dialect, parse_dialect
from metaquorum.pipeline.logs.places import Identities, LogPlace, find_logs
from metaquorum.pipeline.logs.selection import Selection, type_named
from metaquorum.pipeline.logs.survey import SPLIT_BYTES
from metaquorum.pipeline.stores.address import PathError, address
from metaquorum.pipeline.stores.disk import StoreDisk

ALL, DAMAGE = "all", "damage"

OPTIONS = (
    *("path", "paths", "type", "types", "fromtime", "totime", "fromoffset", "tooffset", "checkpoints"),
    *("cluster", "nodes", "dialect", "splitbytes", "secrets", "ondamage"),
)


class OptionError(ValueError):
    """An option of the data source is wrong. The text says what to write."""


class Options:
    """The options after their check."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = {key.lower(): value for key, value in given.items()}
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise OptionError(f"metadata_log has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
        self.paths = _paths(options)
        kind = options.get("type", ALL)
        self.type = kind.lower() if kind.lower() in (ALL, DAMAGE) else _type(kind)
        types = tuple(_type(name) for name in options.get("types", "").split(",") if name.strip())
        if types and self.type != ALL:
            raise OptionError("the option types filters the wide view; leave it out, or leave out type")
        self.selection = Selection(
            types=types,
            from_ms=_time(options, "fromtime"),
            to_ms=_time(options, "totime"),
            from_offset=_number(options, "fromoffset"),
            to_offset=_number(options, "tooffset"),
            secrets=_choice(options, "secrets", ("false", "true")) == "true",
        )
        self.checkpoints = _choice(options, "checkpoints", ("false", "true", "only"))
        self.one_history = _choice(options, "nodes", ("all", "one")) == "one"
        self.cluster = options.get("cluster")
        self.dialect: Dialect | None = None
        if "dialect" in options:
            try:
                self.dialect = parse_dialect(options["dialect"])
            except ValueError as error:
                raise OptionError(f"dialect: {error}; or kraft") from None
        self.split_bytes = _number(options, "splitbytes") or SPLIT_BYTES
        self.skips_damage = _choice(options, "ondamage", ("fail", "skip")) == "skip"

    def places(self, disk: StoreDisk | None = None, known: Identities | None = None) -> list[LogPlace]:
        """The logs below the paths, listed by `disk`. `known`: what was read before. Raises NoLogsError."""
        return find_logs(disk or StoreDisk(), self.paths, self.cluster, known)


def _paths(options: Mapping[str, str]) -> list[str]:
    text = options.get("paths")
    if text:
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            found = [text]
        paths = [str(path) for path in found]
    else:
        paths = [path.strip() for path in options.get("path", "").split(",")]
    try:
        paths = [address(path) for path in paths if path]
    except PathError as error:
        raise OptionError(str(error)) from None
    if not paths:
        raise OptionError(
            'metadata_log needs a path: load("/var/lib/kafka/metadata"), or option("path", ...)'
        )
    return paths


def _type(text: str) -> str:
    try:
        return type_named(text)
    except ValueError as error:
        raise OptionError(f"{error}; or all, or damage") from None


def _time(options: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_time_ms(options[name]) if name in options else None
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{name}: {text!r} is not a number of 0 or more")
    return int(text)


def _choice(options: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    text = options.get(name, allowed[0]).lower()
    if text not in allowed:
        raise OptionError(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text
