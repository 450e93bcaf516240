"""A bound on the cost of a user's expression: steps, and sizes of numbers, texts and lists.

The rewriting of a checked expression so that anything that can grow is checked first, and the count of steps
of one evaluation.
"""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

MAX_STEPS = 5_000_000
"""Items that one evaluation may look at or make, plus functions that it may call: several for each of
a million partitions."""

MAX_BITS = 100_000
"""Size of the longest number."""

GROWING_METHODS = frozenset(
    {
        *("ljust", "rjust", "center", "zfill", "expandtabs", "replace", "translate", "join", "to_bytes"),
        *("format", "format_map"),
    }
)
"""Methods of texts and numbers whose result may be much larger than their arguments."""

_CONSUMING = (
    *("all", "any", "dict", "enumerate", "filter", "frozenset", "list", "map", "max", "min", "set"),
    *("sorted", "sum", "tuple", "zip"),
)
"""Builtins that iterate over their arguments."""

_TICK, _EACH, _TEXT = "<tick>", "<each>", "<text>"
"""Names that cannot be written in an expression."""
_OPERATORS = {ast.Pow: "<pow>", ast.Mult: "<mul>", ast.LShift: "<shift>", ast.Add: "<add>", ast.Mod: "<mod>"}
_CHAIN = "<chain>"
_FLAT_FROM = 32
"""From this many operators in a row on, they become one call: a longer sum is not deeper nesting."""
_PLAIN: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.MatMult: operator.matmul,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
"""Operators whose result is not larger than their operands."""
_REPLACED = frozenset({*_CONSUMING, "range", "repr", "str"})
_STEPS_OF_A_CALL = 10
_Sized = (str, bytes, list, tuple)
_Nested = (list, tuple, set, frozenset, dict)


class TooMuch(Exception):
    """An expression exceeds a limit; the text names it."""


class Budget:
    """The steps of one evaluation."""

    __slots__ = ("_left", "names")

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self.names: dict[str, Any] = self._names()
        """What a bounded expression needs in addition to its own names."""

    def begin(self) -> None:
        """Resets the count of steps."""
        self._left = MAX_STEPS

    def tick(self, steps: int = 1) -> bool:
        """Counts steps. Always returns False. Raises TooMuch."""
        self._left -= steps
        if self._left < 0:
            raise TooMuch(f"it takes more than {MAX_STEPS:,} steps; simplify it")
        return False

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """`items`, each counted as a step."""
        for item in items:
            self.tick()
            yield item

    def _names(self) -> dict[str, Any]:
        return {
            _TICK: self.tick,
            _EACH: self.each,
            _TEXT: self._counted_text,
            "<pow>": _power,
            "<mul>": self._times,
            "<shift>": _shifted,
            "<add>": self._added,
            "<mod>": _modulo,
            _CHAIN: self._chained,
            "<range>": self._range,
            "<str>": lambda value="": str(self._counted_text(value)),
            "<repr>": lambda value: repr(self._counted_text(value)),
            **{f"<{name}>": self._consumer(getattr(builtins, name)) for name in _CONSUMING},
        }

    def _consumer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def consume(*given: Any, **more: Any) -> Any:
            if function is sum and any(isinstance(one, _Sized) for one in (*given[1:], *more.values())):
                raise TooMuch("sum adds numbers only")
            for item in given:
                if isinstance(item, Mapping):
                    self.tick(len(item))
            return function(*(self._watched(one) for one in given), **more)

        return consume

    def _watched(self, given: Any) -> Any:
        is_many = hasattr(given, "__iter__") and not isinstance(given, str | bytes | Mapping)
        return self.each(given) if is_many else given

    def _range(self, *bounds: int) -> range:
        made = range(*bounds)
        if abs(made.stop - made.start) // abs(made.step) > MAX_STEPS:
            raise TooMuch(f"range has more than {MAX_STEPS:,} items")
        return made

    def _counted_text(self, value: Any) -> Any:
        """A value about to be turned into text: its parts are counted, including repeated ones."""
        self.tick()
        if isinstance(value, _Nested):
            for one in value:
                self._counted_text(one)
                if isinstance(value, dict):
                    self._counted_text(value[one])
        elif isinstance(value, str | bytes):
            self.tick(len(value))
        return value

    def _times(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > MAX_BITS:
                raise _long("*")
            return left * right
        for many, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(many, _Sized):
                self._make(len(many) * count, "*")
        return left * right

    def _added(self, left: Any, right: Any) -> Any:
        if isinstance(left, _Sized) and isinstance(right, _Sized):
            self._make(len(left) + len(right), "+")
        return left + right

    def _chained(self, operators: tuple[str, ...], value: Any, *others: Any) -> Any:
        """`value` with the operators applied one after another, each as if alone."""
        for name, other in zip(operators, others, strict=True):
            value = (_PLAIN_BY_NAME.get(name) or self.names[name])(value, other)
        return value

    def _make(self, items: int, sign: str) -> None:
        if items > MAX_STEPS:
            raise TooMuch(f"{sign} produces a value of more than {MAX_STEPS:,} items")
        self.tick(max(0, items))


_PLAIN_BY_NAME = {kind.__name__: function for kind, function in _PLAIN.items()}


def _long(what: str) -> TooMuch:
    return TooMuch(f"{what} produces a number of more than {MAX_BITS:,} bits")


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent > 0 and abs(base) > 1 and base.bit_length() * exponent > MAX_BITS:
        raise _long("**")
    return base**exponent


def _shifted(value: Any, by: Any) -> Any:
    whole = isinstance(value, int) and isinstance(by, int)
    if whole and value and by > 0 and value.bit_length() + by > MAX_BITS:
        raise _long("<<")
    return value << by


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        raise TooMuch("% formats text; compare the parts instead")
    return left % right


class _Bounding(ast.NodeTransformer):
    def __init__(self, bound: Collection[str]) -> None:
        self._bound = bound

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        links = [node]
        while isinstance(left := links[-1].left, ast.BinOp):
            links.append(left)
        if len(links) >= _FLAT_FROM:
            return self._flat(node, links[::-1])
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op))
        return node if name is None else _call(name, [node.left, node.right], node)

    def _flat(self, node: ast.BinOp, links: list[ast.BinOp]) -> ast.AST:
        """A long chain as one call, so that code that walks the tree does not recurse deeply."""
        names = tuple(_OPERATORS.get(type(one.op)) or type(one.op).__name__ for one in links)
        values = [self.visit(one) for one in (links[0].left, *(one.right for one in links))]
        operators = ast.copy_location(ast.Tuple([ast.Constant(value=one) for one in names], ast.Load()), node)
        return _call(_CHAIN, [operators, *values], node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id in _REPLACED and node.id not in self._bound:
            return ast.copy_location(ast.Name(id=f"<{node.id}>", ctx=ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_kind = isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2
        self.generic_visit(node)
        if is_kind:
            node.args[1] = self._as_kinds(node.args[1])
        return node

    def _as_kinds(self, node: ast.expr) -> ast.expr:
        """The second argument of isinstance, which takes the types themselves."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id[1:-1] in _REPLACED:
                one.id = one.id[1:-1]
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        node.value = _call(_TEXT, [node.value], node.value)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        tick = _call(_TICK, [ast.copy_location(ast.Constant(value=_STEPS_OF_A_CALL), node.body)], node.body)
        node.body = ast.copy_location(ast.BoolOp(op=ast.Or(), values=[tick, node.body]), node.body)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = _call(_EACH, [node.iter], node.iter)
        return node


def _call(name: str, arguments: list[ast.expr], written_at: ast.expr) -> ast.Call:
    function = ast.copy_location(ast.Name(id=name, ctx=ast.Load()), written_at)
    return ast.copy_location(ast.Call(func=function, args=arguments, keywords=[]), written_at)


def bounded(tree: ast.Expression, bound: Collection[str] = ()) -> ast.Expression:
    """The expression with a check or count at every growing operator, loop and function; `tree` is consumed.
    `bound` are the names that it binds itself. Raises RecursionError if it is nested too deeply."""
    made: ast.Expression = ast.fix_missing_locations(_Bounding(bound).visit(tree))
    return made
