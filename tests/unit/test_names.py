"""Names: every one that the package defines is used, and what a docstring names exists.

A name of a module is looked up through the imports, so that another one of the same spelling does not count.
Methods go by their spelling. The tables of exceptions only shrink.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from metaquorum.config.keys import KEYS
from tests.unit.sources import REPOSITORY, files, module_of, name_of, tree_of

CALLED_BY_A_LIBRARY = (
    "Heartbeat",  # the unary call of the gRPC service
    "handleError",
    "visit_",  # ast.NodeVisitor
    "pytest_",  # hooks of the plugin
    "add_registered_method_handlers",  # grpc
    "shell_complete",  # click
    "format_commands",  # click
    "streamReader",  # Spark's data source
    "pushFilters",
    # io.RawIOBase
    "seekable",
    "readinto",
    # asyncio.BufferedProtocol
    "connection_made",
    "data_received",
    "connection_lost",
    "eof_received",
    "buffer_updated",
    "pause_writing",
    "resume_writing",
    "initialOffset",
    "latestOffset",
    "getDefaultReadLimit",
    "prepareForTriggerAvailableNow",
    "reportLatestOffset",
    # http.server.BaseHTTPRequestHandler
    "do_GET",
    "do_POST",
    "log_message",
)
FOR_TESTS_AND_USERS = {
    # laws that tests and the simulator check after every input
    "check_cluster",
    "check_input",
    "check_node",
    "check_snapshot",
    # hooks of the pytest plugin
    "pytest_addoption",
    "pytest_configure",
    "pytest_collection_modifyitems",
    # what users' tests do to a cluster
    "remove_user",
    "client_certificate",
    "expire_certificate",
    "drop_connections",
    "disk_full",
    "disk_read_only",
    "disk_fails",
    "copy_disk",
    "run_retention",
    "run_compaction",
    "fence_producer",
    "expire_session",
    "move_coordinator",
    "expire_messages",
    "recreate_topic",
    "consume_all",
    "wait_for_no_transactions",
    "lose_disk",
    "wait_for_group",
    "wait_for_full_isr",
    # the faulty disk and its handles
    "inject",
    "flip_bit",
    # what a benchmark prints beside its figures
    "name_of_sync",
    # pages that a test keeps equal to their table
    "render_document",
    "FILE_RULES",
    "RECORD_RULES",
    # what a test has to see of a state that no answer shows
    "synced_end",
    "tail_problem",
    # the plain way that the fast one is compared with
    "decode",
    # every rule that a decision can name, for the test that each is explained
    "RULES",
    # Kafka's reserved ids, by name
    "LOST_DIRECTORY",
    "METADATA_TOPIC_UUID",
    "UNASSIGNED_DIRECTORY",
}
SURFACE = ("metaquorum", "metaquorum.raft", "metaquorum.pipeline")
"""The packages whose `__all__` is for users, as the docstring of `metaquorum` says."""
SET_AND_NOT_READ = {
    # what tests look at
    "evictions",
    "last_cost_ms",
    # the state of C libraries, of `ssl`, of numpy and of re2
    "_asyncio_future_blocking",
    "argtypes",
    "check_hostname",
    "log_errors",
    "max_mem",
    "minimum_version",
    "never_capture",
    "num_tickets",
    "restype",
    "sni_callback",
    "verify_flags",
    "verify_mode",
    "writeable",
}


class Names(ast.NodeVisitor):
    """What a module imports, by local name, and the dotted names and spellings that it reads."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self.module = module
        self.imported: dict[str, str] = {}
        self.used: set[str] = set()
        self.spelled: set[str] = set()
        self._top: str | None = None
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imported[alias.asname or whole] = whole
        self.visit(tree)

    def dotted(self, node: ast.AST) -> str | None:
        match node:
            case ast.Name(id=name):
                return self.imported.get(name, f"{self.module}.{name}")
            case ast.Attribute(value=value, attr=name):
                return f"{found}.{name}" if (found := self.dotted(value)) is not None else None
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module))]):
                return module
        return None

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        outer, self._top = self._top, self._top or node.name
        self.generic_visit(node)
        self._top = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_Assign(self, node: ast.Assign) -> None:
        is_surface = self.module in SURFACE
        if is_surface or not any(isinstance(at, ast.Name) and at.id == "__all__" for at in node.targets):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id != self._top:
            self._take(node)
            self.spelled.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._take(node)
        if isinstance(node.ctx, ast.Load):
            self.spelled.add(node.attr)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is not None:
            self.spelled.add(node.arg)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A name in a string: a function that is imported when it is wanted, or an attribute."""
        if (
            isinstance(node.value, str)
            and (text := node.value.replace(":", ".")).replace(".", "").isidentifier()
        ):
            self.used |= {text, f"{self.module}.{text}", text.rpartition(".")[2]}
            self.spelled.update(text.split("."))

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self.spelled.update(node.kwd_attrs)
        self.generic_visit(node)

    def _take(self, node: ast.AST) -> None:
        if (found := self.dotted(node)) is not None:
            self.used.add(found)


@cache
def names() -> dict[Path, Names]:
    return {path: Names(module_of(path), tree_of(path)) for path in files()}


def resolved() -> set[str]:
    """The dotted names that are read somewhere, followed through modules that pass a name on."""
    aliases = {
        f"{found.module}.{local}": whole
        for found in names().values()
        for local, whole in found.imported.items()
        if whole != f"{found.module}.{local}"
    }
    used: set[str] = set()
    waiting = [name for found in names().values() for name in found.used]
    while waiting:
        name = waiting.pop()
        if name in used:
            continue
        used.add(name)
        head, tail = name, ""
        while head not in aliases and "." in head:
            head, _, last = head.rpartition(".")
            tail = f".{last}{tail}"
        if head in aliases:
            waiting.append(aliases[head] + tail)
    return used


def targets(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=elements):
            for each in elements:
                yield from targets(each)


def module_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """What a module itself defines. Without functions that a decorator takes: those are in use."""
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not node.decorator_list:
                yield node.name, node.lineno
            case ast.ClassDef():
                yield node.name, node.lineno
            case ast.Assign(targets=found):
                yield from ((name, node.lineno) for at in found for name in targets(at))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node.lineno


def public_methods(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                yield inner.name, inner.lineno


def test_every_name_is_used() -> None:
    used = resolved()
    spelled = {name for found in names().values() for name in found.spelled}
    unused: dict[str, str] = {}
    for path in files():
        tree, module = tree_of(path), module_of(path)
        for name, line in module_names(tree):
            if not name.startswith("__") and f"{module}.{name}" not in used and name not in used:
                unused[f"{name_of(path)}:{line}: {name}"] = name
        for name, line in public_methods(tree):
            if name not in spelled and not name.startswith(CALLED_BY_A_LIBRARY):
                unused[f"{name_of(path)}:{line}: {name}"] = name
    assert [entry for entry, name in unused.items() if name not in FOR_TESTS_AND_USERS] == []
    assert FOR_TESTS_AND_USERS - set(unused.values()) == set(), (
        "these are used by now, or gone: remove them here"
    )


def fields(tree: ast.Module) -> Iterator[str]:
    """The fields of values: what encodes or copies a value reads them all."""
    for node in ast.walk(tree):
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                yield inner.target.id


def spelled_by_kin() -> dict[str, set[str]]:
    """By module: what is spelled in it, and in those with a class above or below one of its own."""
    kin = {found.module: {found.module} for found in names().values()}
    for path, found in names().items():
        for node in ast.walk(tree_of(path)):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                above = (found.dotted(base) or "").rpartition(".")[0]
                if above in kin and kin[above] is not kin[found.module]:
                    together = kin[above] | kin[found.module]
                    kin.update(dict.fromkeys(together, together))
    spelled = {found.module: found.spelled for found in names().values()}
    return {module: set().union(*(spelled[each] for each in together)) for module, together in kin.items()}


def test_what_is_set_is_read() -> None:
    """An attribute that an object gets, and that no code reads by this name."""
    read = {name for found in names().values() for name in found.spelled}
    read.update(name for path in files() for name in fields(tree_of(path)))
    by_kin = spelled_by_kin()
    idle: dict[str, str] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr.startswith("_")
            if node.attr not in read or (own and node.attr not in by_kin[module_of(path)]):
                idle[f"{name_of(path)}:{node.lineno}: {node.attr}"] = node.attr
    assert [entry for entry, name in idle.items() if name not in SET_AND_NOT_READ] == []
    assert SET_AND_NOT_READ - set(idle.values()) == set(), "read by now, or gone: remove them"


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a file, with their lines."""
    source = path.read_text("utf-8")
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def known_words() -> set[str]:
    """Every identifier of the package, its modules and folders, and the words in its strings."""
    known: set[str] = set()
    for path in files():
        known.update(path.relative_to(REPOSITORY).with_suffix("").parts)
        texts = set()
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts.add(id(node.value))
                case ast.Constant(value=str(text)) if id(node) not in texts:
                    known.update(re.findall(r"\w+", text))
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    known.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    known.add(name)
    return known


def test_names_in_docstrings_and_comments_exist() -> None:
    """Those that can only be names: with an underscore. Classes of Kafka are named like ours."""
    known = known_words()
    unknown = [
        f"{name_of(path)}:{line}: {name}"
        for path in files()
        for line, text in prose(path)
        for span in re.findall(r"`([^`\n]+)`", text)
        for name in re.findall(r"(?<![\w*])_?[a-z][a-z0-9]*_[a-z0-9_]+", span)
        if name not in known
    ]
    assert unknown == []


def is_declared_in(path: Path) -> bool:
    """Whether a module has rows of the table of configuration keys, or Kafka's names of them."""
    name = name_of(path)
    return name.startswith(("config/", "metadata/settings/")) and "keys" in path.name


def texts_that_are_read() -> tuple[set[str], list[re.Pattern[str]]]:
    """The strings of the package apart from docstrings and the names of rows, and patterns of f-strings."""
    texts: set[str] = set()
    patterns: set[str] = set()
    for path in files():
        passed_over: set[ast.AST] = set()
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Expr(value=ast.Constant() as docstring):
                    passed_over.add(docstring)
                case ast.Call(func=ast.Name(id=name), args=[ast.Constant() | ast.JoinedStr() as first, *_]):
                    if is_declared_in(path) and name not in ("number", "text"):
                        passed_over.update(ast.walk(first))
                case ast.Subscript(value=ast.Name(id="SHARED_KEYS")):
                    passed_over.update(ast.walk(node))
        for node in set(ast.walk(tree_of(path))) - passed_over:
            match node:
                case ast.Constant(value=str(text)) if path.name != "kafka_keys.py":
                    texts.add(text)
                case ast.JoinedStr(values=parts):
                    fixed = [each.value if isinstance(each, ast.Constant) else None for each in parts]
                    patterns.add("".join("(.+)" if part is None else re.escape(part) for part in fixed))
    return texts, [re.compile(pattern) for pattern in patterns if pattern.replace("(.+)", "").count(".") > 1]


def test_every_configuration_key_is_read() -> None:
    """By its name, by an f-string of names, or as the field that it fills, which somebody reads."""
    texts, patterns = texts_that_are_read()
    attributes = {
        node.attr for path in files() for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)
    }
    idle = [
        key
        for key, row in KEYS.items()
        if key not in texts
        and not (row.fills and row.fills[1] in attributes)
        and not any((at := each.fullmatch(key)) and set(at.groups()) <= texts for each in patterns)
    ]
    assert not idle, f"no code reads {idle}: config.number(NAME) in a shell, or the field that its row fills"


BANNED_WORDS = {"told", "tell", "tells", "telling", "anew", "stir", "stirs", "stirred", "furthest"}
BANNED_WORDS |= {"come", "comes", "coming", "came"}
BANNED_PAIRS = {("stand", "still"), ("stands", "still"), ("stood", "still"), ("go", "on"), ("goes", "on")}
BANNED_PAIRS |= {("let", "in"), ("lets", "in")}
"""The words that docs/contributing.md bans in prose."""
BANNED_WORDS |= {"concern", "concerns", "concerned", "leap", "leaps", "leapt", "passage", "spine"}
BANNED_WORDS |= {"stretch", "stretches", "stretched"}
BANNED_PAIRS |= {("sound", "header"), ("sound", "headers")}
"""They say nothing to a Kafka engineer; fast forward, cursor, filter, merged history, part do."""
SPREAD_METHODS = {"learn": 24, "lose": 24, "forget": 23, "note": 16}
"""How many classes have a method of such a name, at most: it means something else in each."""

LONG_LIVED_LINES = 3
VAGUE_NAMES = {"found", "at", "each", "one", "known", "place"}
"""They hide what a value is: not for what lives longer than three lines."""
VAGUE_AND_KEPT = {
    "cli/log/time.py": {"at"},
    "cli/log/why.py": {"at"},
}
"""Parameters that click fills from an option of this name."""


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def has_banned_word(name: str) -> bool:
    words = words_of(name)
    return not BANNED_WORDS.isdisjoint(words) or not BANNED_PAIRS.isdisjoint(pairwise(words))


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Everything that a module gives a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def vague_fields(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Fields of classes, and attributes that their methods set."""
    for node in ast.walk(tree):
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                if inner.target.id.lstrip("_") in VAGUE_NAMES:
                    yield inner.target.id, inner.lineno
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                if name.lstrip("_") in VAGUE_NAMES:
                    yield name, node.lineno


def vague_parameters(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Of functions, and of lambdas over several lines."""
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            if isinstance(node, ast.Lambda) and lines_of(node) <= LONG_LIVED_LINES:
                continue
            yield from ((arg.arg, arg.lineno) for arg in arguments(node) if arg.arg in VAGUE_NAMES)


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    more = [arg for arg in (node.args.vararg, node.args.kwarg) if arg is not None]
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *more]


def lines_of(node: ast.AST) -> int:
    return node.end_lineno - node.lineno  # type: ignore[attr-defined, no-any-return]


def test_no_name_has_a_word_that_prose_bans() -> None:
    banned = {name for path in files() for name in defined_names(tree_of(path)) if has_banned_word(name)}
    banned |= {part for path in files() for part in name_of(path).split("/") if has_banned_word(part)}
    assert sorted(banned) == [], "say what it is or does in Kafka's words"


def test_the_search_for_banned_words_finds_them() -> None:
    tree = ast.parse("def _tell_all(told_ms, income): self.furthest = come = 1\nclass LetIn: ONE_GOES_ON = 1")
    found = [name for name in defined_names(tree) if has_banned_word(name)]
    assert sorted(found) == ["LetIn", "ONE_GOES_ON", "_tell_all", "come", "furthest", "told_ms"]


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, but not in functions, lambdas and comprehensions in it."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, (*FUNCTIONS, *COMPREHENSIONS, ast.Lambda, ast.ClassDef)):
            yield inner
            yield from own_nodes(inner)


def named_lines(node: ast.AST, name: str) -> list[int]:
    return [inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Name) and inner.id == name]


def long_lived(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Vague names of variables that are read many lines after they are set. A variable of a loop or a
    comprehension lives as long as that."""
    for node in ast.walk(tree):
        loops = [node] if isinstance(node, ast.For | ast.AsyncFor) else []
        loops += getattr(node, "generators", [])
        of_loop = {name for loop in loops for name in targets(loop.target)} & VAGUE_NAMES
        lines = {name: named_lines(node, name) for name in of_loop}
        if isinstance(node, FUNCTIONS):
            own = list(own_nodes(node))
            of_loops = [inner for inner in own if isinstance(inner, ast.For | ast.AsyncFor)]
            looped = {name for loop in of_loops for name in targets(loop.target)}
            names = [inner for inner in own if isinstance(inner, ast.Name)]
            set_here = {name.id for name in names if isinstance(name.ctx, ast.Store)} & VAGUE_NAMES
            for name in set_here - looped:
                lines[name] = [inner.lineno for inner in names if inner.id == name]
        yield from ((name, min(at)) for name, at in lines.items() if max(at) - min(at) > LONG_LIVED_LINES)


def vague(tree: ast.Module) -> set[tuple[str, int]]:
    return {*vague_fields(tree), *vague_parameters(tree), *long_lived(tree)}


def test_what_lives_long_says_what_it_is() -> None:
    more = [
        f"{name_of(path)}:{line}: {name}"
        for path in files()
        for name, line in sorted(vague(tree_of(path)))
        if name not in VAGUE_AND_KEPT.get(name_of(path), ())
    ]
    assert more == [], "say what the value is"


def test_the_search_for_vague_names_finds_them() -> None:
    source = """
class C:
    found: int

    def f(self, known):
        self._at = [each for each in known]
        one = 1
        place = 2

        for at in known:
            each = at
            each += 1
        g(each for each in known)
        return one
"""
    assert {name for name, _ in vague(ast.parse(source))} == {"found", "known", "_at", "one"}
    loop = "for at in x:\n    a\n    b\n    c\n    g(at)\n"
    comprehension = "[g(\n    each.a,\n    b,\n    c,\n    d)\n    for each in e]\n"
    lambda_ = "h(lambda one: (\n    a,\n    b,\n    c,\n    one))\n"
    assert [name for name, _ in vague(ast.parse(loop))] == ["at"]
    assert [name for name, _ in vague(ast.parse(comprehension))] == ["each"]
    assert [name for name, _ in vague(ast.parse(lambda_))] == ["one"]


def test_methods_of_one_name_do_one_thing() -> None:
    spread = Counter(
        name for path in files() for name, _ in public_methods(tree_of(path)) if name in SPREAD_METHODS
    )
    assert {name: count for name, count in spread.items() if count > SPREAD_METHODS[name]} == {}, (
        "name it after what it does"
    )
