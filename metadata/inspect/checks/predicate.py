"""A Python expression about an image, typed by a user: checked, compiled, and evaluated at many offsets.

An expression only reads: images are immutable, and no builtin that reaches outside is available.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import enum
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any

import numpy as np

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.chunk import LEADER, N_ISR, N_REPLICAS, TOPIC, Chunk
from metaquorum.metadata.image.columns import PartitionColumns
from metaquorum.metadata.image.image import BrokersImage, FeaturesImage
from metaquorum.metadata.image.maps import ShardedMap
from metaquorum.metadata.image.topics import TopicsImage
from metaquorum.metadata.image.types import (
    NO_LEADER,
    BrokerRegistration,
    ControllerRegistration,
    PartitionInfo,
    ProducerIds,
    Provenance,
    TopicInfo,
)
from metaquorum.metadata.inspect.checks.bounds import GROWING_METHODS, Budget, TooMuch, bounded
from metaquorum.metadata.inspect.checks.predicate_names import (
    HELPERS,
    RESOLVERS,
    SAFE_BUILTINS,
    AbsentEntity,
    NameMistake,
    Subject,
)
from metaquorum.metadata.inspect.log.quorum import QuorumView
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.metadata.invariants import Violation

MAX_LENGTH = 4_000
"""Maximum number of characters of an expression."""


_GROWING = frozenset({"offset", "epoch"})
"""Names whose values never decrease along a log."""

_HEADERS = frozenset({"offset", "epoch", "time_ms"})
"""Names that batch headers alone can provide."""

_OF_A_TOPIC = frozenset({"topic", "partition", "partitions"})
"""Names of functions whose first argument is a topic."""

_OF_ALL_TOPICS = frozenset({"topics", "leaderless", "violations", "image"})

_PARTS = frozenset(MetadataImage.__struct_fields__) - {"provenance"}
"""Parts of an image that idle batches do not change."""


class PredicateError(Exception):
    """A mistake in an expression. The text says where it is."""

    def __init__(self, source: str, column: int, reason: str) -> None:
        super().__init__(source, column, reason)
        self.source, self.column, self.reason = source, column, reason

    def __str__(self) -> str:
        return f"{self.reason}, at character {self.column + 1} of {self.source!r}"


class Verdict(enum.Enum):
    """The value of an expression for one image. UNDEFINED: it refers to an entity that does not exist."""

    TRUE = "true"
    FALSE = "false"
    UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A compiled expression. `is_monotone`: by its form it can turn false only once. `headers_only`: batch
    headers suffice to evaluate it."""

    source: str
    code: CodeType
    used: frozenset[str]
    is_monotone: bool
    headers_only: bool
    batch_filter: BatchFilter | None = None
    """Which batches may change the answer (None: all)."""
    _budget: Budget = field(default_factory=Budget, compare=False, repr=False)
    _leaderless: ChunkCounts = field(
        default_factory=lambda: ChunkCounts(leaderless), compare=False, repr=False
    )

    def verdict(self, subject: Subject) -> Verdict:
        """The value for an image. Raises PredicateError for a mistake that shows only at run time."""
        provenance = subject.image.provenance
        return self._run(
            {
                **{name: make(subject) for name, make in RESOLVERS.items() if name in self.used},
                "leaderless": lambda: self._leaderless.total(subject.image.topics.columns),
                "offset": provenance.offset,
                "epoch": provenance.epoch,
                "time_ms": provenance.timestamp_ms,
            }
        )

    def header_verdict(self, offset: int, epoch: int, time_ms: int) -> Verdict:
        """The same for an expression that needs only batch headers."""
        return self._run({"offset": offset, "epoch": epoch, "time_ms": time_ms})

    def _run(self, names: dict[str, Any]) -> Verdict:
        names["__builtins__"] = _BUILTINS
        self._budget.begin()
        names |= self._budget.names
        try:
            value = eval(self.code, names)
        except AbsentEntity:
            return Verdict.UNDEFINED
        except PredicateError:
            raise
        except Exception as error:
            raise self._mistake(error) from None
        return Verdict.TRUE if value else Verdict.FALSE

    def _mistake(self, error: Exception) -> PredicateError:
        reason = str(error) if isinstance(error, NameMistake | TooMuch) else _python_reason(error)
        start, end = _columns(error.__traceback__)
        if isinstance(error, AttributeError) and error.name and end - len(error.name) > start:
            start = end - len(error.name)
        return PredicateError(self.source, start, " ".join(reason.split()))


def _python_reason(error: Exception) -> str:
    """Python's own words, without positions in our code, and what exists instead of a wrong attribute."""
    text = re.sub(r"\b\w+\.<locals>\.", "", str(error))
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if not isinstance(error, AttributeError) or error.obj is None or not error.name:
        return reason
    names = [name for name in dir(error.obj) if not name.startswith("_")]
    close = difflib.get_close_matches(error.name, names, n=1)
    return f"{reason}; " + (f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}")


_BUILTINS: Mapping[str, Any] = {name: getattr(builtins, name) for name in SAFE_BUILTINS}


def compile_predicate(source: str) -> Predicate:
    """A checked expression. Raises PredicateError."""
    text = " ".join(source.split("\n")).strip()
    if not text:
        raise PredicateError(source, 0, "the expression is empty; write one, such as leaderless() == 0")
    if len(text) > MAX_LENGTH:
        raise PredicateError(text[:60], 0, f"the expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        column = (error.offset or 1) - 1 if error.lineno in (None, 1) else 0
        raise PredicateError(text, column, _syntax_reason(text, column, error)) from None
    except (ValueError, RecursionError, MemoryError):
        raise PredicateError(text, 0, "the expression is nested too deeply or has a null byte") from None
    _check(tree, text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    is_monotone, batch_filter = _only_falls(tree.body), _batch_filter(tree, used)
    return Predicate(
        source=text,
        code=_compiled(tree, text),
        used=frozenset(used),
        is_monotone=is_monotone,
        headers_only=bool(used) and used <= _HEADERS | set(SAFE_BUILTINS),
        batch_filter=batch_filter,
    )


def _compiled(tree: ast.Expression, text: str) -> CodeType:
    try:
        with warnings.catch_warnings():  # what Python warns of is an error at run time
            warnings.simplefilter("ignore", SyntaxWarning)
            return compile(bounded(tree, _bound(tree)), "<predicate>", "eval")
    except (RecursionError, MemoryError):
        raise PredicateError(text, 0, "the expression is nested too deeply or has a null byte") from None


def _batch_filter(tree: ast.Expression, used: set[str]) -> BatchFilter | None:
    """Which part of a log an expression is about, by its names; None if every batch may count."""
    if used & _HEADERS:
        return None
    topics = set[str]()
    named = plain = 0
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="image"), attr=part) if part in _PARTS:
                plain += 1
            case ast.Name(id="image"):
                plain -= 1
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(topic)), *_]) if (
                name in _OF_A_TOPIC
            ):
                topics.add(topic)
                named += 1
            case ast.Name(id=name) if name in _OF_A_TOPIC:
                named -= 1
            case _:
                pass
    if plain:
        return None  # the whole image is passed on, including its place in the log
    if named or used & _OF_ALL_TOPICS:
        return BatchFilter()
    return BatchFilter(topics=frozenset(topics))


def _syntax_reason(text: str, column: int, error: SyntaxError) -> str:
    message = error.msg or "this is not a Python expression"
    if text[column : column + 1] == "=" and text[column + 1 : column + 2] != "=":
        return "= sets a value; write == to compare"
    try:
        ast.parse(text)
    except SyntaxError:
        return message
    return "this is a statement; write an expression, such as leaderless() == 0"


def _check(tree: ast.Expression, text: str) -> None:
    """Refuses anything but plain reading of the image, and names that do not exist."""
    bound = _bound(tree)
    for node in ast.walk(tree):
        column = getattr(node, "col_offset", 0)
        column = len(text.encode()[:column].decode(errors="ignore"))
        match node:
            case ast.Attribute(attr=name, end_col_offset=int(end)) if is_refused(name):
                raise PredicateError(text, end - len(name), f"attribute {name} cannot be used here")
            case ast.Name(id=name) if name not in bound and name not in _KNOWN:
                close = difflib.get_close_matches(name, [*HELPERS, *SAFE_BUILTINS], n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(HELPERS)}"
                raise PredicateError(text, column, f"there is no name {name}; {hint}")
            case ast.NamedExpr() | ast.Await() | ast.Yield() | ast.YieldFrom():
                raise PredicateError(text, column, "this kind of expression cannot be used here")
            case ast.FormattedValue(format_spec=ast.JoinedStr()):
                raise PredicateError(text, column, "a width or format after the colon cannot be used here")
            case _:
                pass


_KNOWN = frozenset({*HELPERS, *SAFE_BUILTINS})


def _bound(tree: ast.Expression) -> set[str]:
    """Names that comprehensions and lambdas bind themselves."""
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return names | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _only_falls(node: ast.expr) -> bool:
    """Whether the value can turn from true to false but never back as offsets grow: upper bounds on growing
    values, joined by `and` and `or`."""
    match node:
        case ast.BoolOp(values=values):
            return all(_only_falls(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _only_rises(operand)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
            return _grows(left) and isinstance(right, ast.Constant)
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
            return isinstance(left, ast.Constant) and _grows(right)
    return False


def _only_rises(node: ast.expr) -> bool:
    match node:
        case ast.BoolOp(values=values):
            return all(_only_rises(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _only_falls(operand)
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
            return _grows(left) and isinstance(right, ast.Constant)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
            return isinstance(left, ast.Constant) and _grows(right)
    return False


def _grows(node: ast.expr) -> bool:
    """Whether a quantity never decreases along a log: offset, epoch, the next producer id."""
    match node:
        case ast.Name(id=name):
            return name in _GROWING
        case ast.Attribute(
            value=ast.Attribute(value=ast.Name(id="image"), attr="producer_ids"), attr="next_producer_id"
        ):
            return True
        case ast.Attribute(
            value=ast.Attribute(value=ast.Name(id="image"), attr="provenance"), attr=("offset" | "epoch")
        ):
            return True
    return False


def _columns(trace: TracebackType | None) -> tuple[int, int]:
    """Where in the expression an error came from: the innermost position inside it (PEP 657)."""
    columns = (0, 0)
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == "<predicate>":
            positions = list(code.co_positions())
            at = trace.tb_lasti // 2
            if at < len(positions):
                _, _, start, end = positions[at]
                columns = (start or 0, end or 0)
        trace = trace.tb_next
    return columns


# An attribute is refused by name before the expression runs: the names of everything that writes, reaches
# the columns below an image, or belongs to code instead of data. Any other is read, or fails at run time.
_READ = (
    *(MetadataImage, TopicsImage, BrokersImage, FeaturesImage, ShardedMap, ProducerIds, Provenance),
    *(BrokerRegistration, ControllerRegistration, PartitionInfo, TopicInfo, QuorumView, Violation),
    *(str, bytes, int, float, tuple, frozenset, range),
)
"""Types that expressions are about: their attributes may be read."""

_NOT_READ = (
    *(np.ndarray, np.dtype, np.generic, memoryview, bytearray, dict, list, set),
    *(PartitionColumns, Chunk, type, ModuleType, FunctionType, MethodType),
    *(GeneratorType, CodeType, FrameType),
)
"""Types below these, or met on the way. Only names that the others or `_OF_DICTS` also have can be read."""

_OF_DICTS = frozenset({"get", "items", "keys", "values"})
_INTERNAL = frozenset(
    {
        *("columns", "builder", "with_provenance", "shared", "by_id", "by_name", "by_slot", "next_slot"),
        *("row_of", "rows_of", "rows_led_by", "rows_with_isr", "rows_with_replica", "rows_without_leader"),
        *("at", "key_at", "keys_at", "replica_counts"),
    }
)
"""Attributes of the image that return or take rows of its columns."""


def _names(types: tuple[type, ...]) -> frozenset[str]:
    return frozenset(name for each in types for name in dir(each) if not name.startswith("_"))


REFUSED = (_names(_NOT_READ) - _names(_READ) - _OF_DICTS) | _INTERNAL | GROWING_METHODS


def is_refused(name: str) -> bool:
    """Whether expressions may not use an attribute of this name."""
    return name.startswith("_") or name in REFUSED


# Counts partitions of an image with some property, repeatedly along a log.
#
# The memory of the last count, chunk by chunk, so that counting again costs only what changed.


class ChunkCounts:
    """Counts rows by a function of a chunk."""

    __slots__ = ("_by_chunk", "_count", "_last")

    def __init__(self, count: Callable[[Chunk], int]) -> None:
        self._count = count
        self._last: PartitionColumns | None = None
        self._by_chunk: list[int] = []

    def total(self, columns: PartitionColumns) -> int:
        """The number over all chunks of `columns`."""
        last, counts = self._last, self._by_chunk
        if last is None:
            counts = [self._count(chunk) for chunk in columns.chunks]
        elif last is not columns:
            old, counts = counts, counts[: len(columns.chunks)]
            counts += [0] * (len(columns.chunks) - len(old))
            for at in columns.differing_chunks(last):
                if at < len(counts):
                    counts[at] = self._count(columns.chunks[at])
        self._last, self._by_chunk = columns, counts
        return sum(counts)


def leaderless(chunk: Chunk) -> int:
    """Partitions without a leader."""
    data = chunk.data
    return int(np.count_nonzero((data[LEADER] == NO_LEADER) & (data[TOPIC] >= 0)))


def under_replicated(chunk: Chunk) -> int:
    """Partitions with a replica that is not in the ISR."""
    data = chunk.data
    return int(np.count_nonzero((data[N_ISR] != data[N_REPLICAS]) & (data[TOPIC] >= 0)))
