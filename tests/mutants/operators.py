"""Small mistakes: the possible ones at each place of a syntax tree.

An operator looks at one node and returns what could replace it. Texts that only people read (messages of
exceptions, docstrings, representations) and annotations are not changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_ORDER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
}
_SIBLINGS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_COMMUTE = {"min", "max"}
_SILENT_CALLS = {"assert_never", "super"}
_UNREAD = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True)
class Change:
    """What may replace one node."""

    operator: str
    node: ast.AST


def changes(node: ast.AST) -> Iterator[Change]:
    """Every mistake that is possible at one node, in a fixed order."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.expr):
        yield from _of_expression(node)
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield Change("filter dropped", _with(node, ifs=node.ifs[1:]))


def children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    """(field, index in its list or None, child) of every child that could contain a mistake."""
    if isinstance(node, ast.Raise):
        return  # its message is for people; that it is raised is a mistake of the statement
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(node, ast.Call):
            continue
        if isinstance(value, list):
            for at, child in enumerate(value):
                if isinstance(child, ast.AST) and not _passed_over(child):
                    yield name, at, child
        elif isinstance(value, ast.AST) and not _passed_over(value):
            yield name, None, value


def _passed_over(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.keyword(arg="strict"):  # a check of something that the code itself created
            return True
        case ast.FunctionDef(name=name) if name in _UNREAD:
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in _SILENT_CALLS:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="kill")):
            return True  # a signal other than 0 would end an unrelated process
    return False


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _not(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    gone = ast.copy_location(ast.Pass(), node)
    match node:
        case ast.If(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
                yield Change("condition negated", _with(node, test=_not(test)))
            if isinstance(node, ast.If) and not node.orelse:
                yield Change("guard removed", gone)
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            nothing = ast.copy_location(ast.Constant(value=None), value)
            yield Change("nothing returned", _with(node, value=nothing))
        case ast.Continue():
            yield Change("loop ended", ast.copy_location(ast.Break(), node))
        case ast.Break():
            yield Change("loop not ended", ast.copy_location(ast.Continue(), node))
        case ast.AugAssign(op=op):
            if type(op) in _ARITHMETIC:
                yield Change("arithmetic", _with(node, op=_ARITHMETIC[type(op)]()))
            yield Change("statement removed", gone)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.Delete() | ast.Raise():
            yield Change("statement removed", gone)
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
            yield Change("statement removed", gone)


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _of_comparison(node)
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield Change("and/or", _with(node, op=other))
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield Change("operand dropped", rest[0] if len(rest) == 1 else _with(node, values=rest))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Change("not dropped", operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield Change("sign dropped", operand)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _is_text(node):
            yield Change("arithmetic", _with(node, op=_ARITHMETIC[type(op)]()))
        case ast.IfExp(body=body, orelse=orelse):
            yield Change("condition negated", _with(node, body=orelse, orelse=body))
        case ast.Constant(value=bool() as value):
            yield Change("constant", _with(node, value=not value))
        case ast.Constant(value=int() as value):
            yield Change("constant", _with(node, value=value + 1))
            yield Change("constant", _with(node, value=value - 1))
        case ast.Call():
            yield from _of_call(node)
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield Change("slice bound dropped", _with(node, lower=None))
            if upper is not None:
                yield Change("slice bound dropped", _with(node, upper=None))


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(at, ast.JoinedStr) or _constant_text(at) for at in sides)


def _constant_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    for at, op in enumerate(node.ops):

        def into(kind: type[ast.cmpop], at: int = at) -> ast.AST:
            return _with(node, ops=[*node.ops[:at], kind(), *node.ops[at + 1 :]])

        yield Change("comparison", into(_ORDER[type(op)]))
        sides = (node.left if at == 0 else node.comparators[at - 1], node.comparators[at])
        if isinstance(op, ast.Eq | ast.NotEq) and not any(isinstance(side, ast.Constant) for side in sides):
            pair = (ast.LtE, ast.GtE) if isinstance(op, ast.Eq) else (ast.Lt, ast.Gt)
            yield from (Change("comparison", into(kind)) for kind in pair)


def _of_call(node: ast.Call) -> Iterator[Change]:
    match node.func:
        case ast.Name(id=name) if name in _SIBLINGS:
            func = _with(node.func, id=_SIBLINGS[name])
            yield Change("sibling called", _with(node, func=func))
    for at, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not _passed_over(keyword):
            rest = node.keywords[:at] + node.keywords[at + 1 :]
            yield Change("argument dropped", _with(node, keywords=rest))
    if isinstance(node.func, ast.Name) and node.func.id in _COMMUTE:
        return
    for at in range(len(node.args) - 1):
        first, second = node.args[at : at + 2]
        if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
            continue
        if ast.dump(first) != ast.dump(second):
            swapped = [*node.args[:at], second, first, *node.args[at + 2 :]]
            yield Change("arguments swapped", _with(node, args=swapped))
