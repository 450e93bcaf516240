"""Exchanges the code of one function in a running process.

Every reference to the function, including bound methods and imported names, uses the new code at its next
call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import CodeType, FunctionType


def functions_by_name(files: frozenset[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """All functions of the files that exist now, by (file, qualified name, first line)."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for at in gc.get_objects():
        if type(at) is FunctionType and at.__code__.co_filename in files:
            code = at.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(at)
    return found


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code objects inside a code object, at every depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_in(constant)


def exchange(living: dict[tuple[str, str, int], list[FunctionType]], module: CodeType, function: str) -> int:
    """Gives every function named `function`, and those created inside it, its code of `module`.

    Returns how many functions changed. Raises ValueError if a code does not fit (it closes over others).
    """
    changed = 0
    for code in codes_in(module):
        if code.co_qualname != function and not code.co_qualname.startswith(f"{function}.<locals>."):
            continue
        for at in living.get((code.co_filename, code.co_qualname, code.co_firstlineno), ()):
            at.__code__ = code
            changed += 1
    return changed
