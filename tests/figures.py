"""`python -m tests.figures [--list]`: how the code is cut. `--list`: the modules that only one other imports.

Generated modules do not count. A program has no importer at all.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.closed_pipe import end
from tests.unit.sources import REPOSITORY, files, module_of, name_of, tree_of


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def lines_before_definitions(path: Path) -> int:
    """Docstring and imports: everything before the first function, class or value."""
    for node in tree_of(path).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            case ast.Assign() | ast.AnnAssign():
                return node.lineno - 1
    return lines_of(path)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def with_one_importer(paths: list[Path]) -> dict[str, str]:
    """Modules that exactly one other module imports, and which one."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        for name in imported(tree_of(path)):
            importers[name].add(module_of(path))
    modules = {module_of(path) for path in paths if path.name != "__init__.py"}
    others = {module: importers[module] - {module} for module in modules}
    return {module: next(iter(found)) for module, found in sorted(others.items()) if len(found) == 1}


def report() -> Iterator[str]:
    paths = files()
    total, before = sum(map(lines_of, paths)), sum(map(lines_before_definitions, paths))
    tests = [lines_of(path) for path in (REPOSITORY / "tests").rglob("*.py")]
    yield f"lines of product: {total:,} in {len(paths)} files"
    yield f"lines before a file's first definition: {100 * before / total:.1f} %"
    yield f"modules with one importer: {len(with_one_importer(paths))}"
    yield f"lines of tests: {sum(tests):,} in {len(tests)} files"
    yield ""
    lonely = Counter(module.split(".")[1] for module in with_one_importer(paths))
    for folder in sorted({name_of(path).split("/")[0] for path in paths}):
        own = [path for path in paths if name_of(path).startswith(f"{folder}/")]
        share = 100 * sum(map(lines_before_definitions, own)) / max(1, sum(map(lines_of, own)))
        yield (
            f"{folder:12} {sum(map(lines_of, own)):7,} lines {len(own):4} files "
            f"{share:5.1f} % before definitions {lonely[folder]:3} with one importer"
        )


def main() -> int:
    if sys.argv[1:] == ["--list"]:
        for module, importer in with_one_importer(files()).items():
            print(f"{module} <- {importer}")
    else:
        print(*report(), sep="\n")
    return 0


if __name__ == "__main__":
    end(main)
