"""What every public call of a test cluster has in common: when it may be made, and with which values.

A value that cannot be is one line that names the parameter, before anything happens.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from metaquorum.testing.errors import ClusterError

NUMBER_MAX, LARGE_MAX = 2**31 - 1, 2**63 - 1
LARGE = ("_bytes", "since_ms")
"""Ids, counts and times are Kafka's int, sizes and dates, whose names end so, are its long."""
EXEMPT = frozenset({"seed", "advance"})
"""A number that may be any, and a method that checks the sum of its numbers."""


class CheckedCalls:
    """Public methods and properties of its subclasses call `_check_use` first, and methods check the values
    that they get against the types of their parameters."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name, member in list(vars(cls).items()):
            if name.startswith("_"):
                continue
            if isinstance(member, types.FunctionType):
                setattr(cls, name, _checked_method(member))
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, property(_checked_property(member.fget), doc=member.__doc__))

    def _check_use(self, name: str, *, is_method: bool) -> None:
        """Raises ClusterError if this cannot be used now."""


def _checked_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: CheckedCalls, *given: Any, **named: Any) -> Any:
        self._check_use(method.__name__, is_method=True)
        signature = _signature(method)
        bound = signature.bind(self, *given, **named)
        for name, value in [*bound.arguments.items()][1:]:
            kind = signature.parameters[name].annotation
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                check_keywords(method.__name__, keywords_of(kind), value)
            else:
                check_value(method.__name__, name, kind, value)
        return method(self, *given, **named)

    return checked


def _checked_property(getter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(getter)
    def checked(self: CheckedCalls) -> Any:
        self._check_use(getter.__name__, is_method=False)
        return getter(self)

    return checked


@functools.cache
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(method, eval_str=True)


@functools.cache
def keywords_of(kind: Any) -> dict[str, Any]:
    """The keywords that `**name: Unpack[kind]` takes, and their types."""
    return typing.get_type_hints(*typing.get_args(kind))


def check_keywords(call: str, kinds: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises ClusterError for a value that cannot be; names are checked elsewhere. None: it is left out."""
    for name, value in given.items():
        if name in kinds and value is not None:
            check_value(call, name, kinds[name], value)


def check_value(call: str, name: str, kind: Any, value: Any) -> None:
    """Raises ClusterError for a value that is not of this type, or a number that cannot be."""
    problem = None
    if not _fits(kind, value):
        problem = f"write {kind_text(kind)}"
    elif isinstance(value, Real) and not isinstance(value, bool) and not {name, call} & EXEMPT:
        problem = _problem_of_number(name, value)
    if problem is not None:
        raise ClusterError(f"{call}: {name}={_shown(value)}: {problem}")


def _problem_of_number(name: str, value: Real) -> str | None:
    if isinstance(value, Integral):
        most = LARGE_MAX if name.endswith(LARGE) else NUMBER_MAX
    else:
        most = NUMBER_MAX
        if not math.isfinite(value):
            return "write a number that is finite"
    if value < 0:
        return "write one that is not negative"
    return None if value <= most else f"write at most {most}"


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # of a value of the test
        return f"a {type(value).__name__}"


def _fits(kind: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(each, value) for each in arguments)
    if origin is not None:
        return isinstance(value, origin) and _has_right_parts(origin, arguments, value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    return kind is Any or isinstance(value, types.NoneType if kind is None else kind)


def _has_right_parts(origin: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if origin is Mapping:
        return all(_fits(arguments[0], key) and _fits(arguments[1], part) for key, part in value.items())
    if origin is tuple:
        return len(value) == len(arguments) and all(map(_fits, arguments, value))
    if origin is Sequence:
        return not isinstance(value, str | bytes) and all(_fits(arguments[0], part) for part in value)
    return True


def kind_text(kind: Any) -> str:
    """What to write for a parameter of this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        choices = (kind_text(each) for each in arguments if each is not types.NoneType)
        return " or ".join(dict.fromkeys(choices))
    if origin is Callable:
        return "a function"
    if origin is Mapping:
        return "a dictionary whose keys are strings"
    if origin is tuple:
        return " and ".join(kind_text(each) for each in arguments) + ", in parentheses"
    if origin is Sequence:
        return "a list of strings" if arguments[0] is str else "a list"
    texts: dict[Any, str] = {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}
    return texts.get(kind) or f"a {kind.__name__}"
