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
    "good_directories",
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
NAMES_OF_BANNED_WORDS = {
    "_tell",
    "_telling",
    "_told",
    "came",
    "go_on",
    "tell",
}
"""Those that remain."""

SPREAD_METHODS = {"learn": 24, "lose": 24, "forget": 23, "note": 16}
"""How many classes have a method of such a name, at most: it means something else in each."""

LONG_LIVED_LINES = 3
VAGUE_NAMES = {"found", "at", "each", "one", "known", "place"}
"""They hide what a value is: not for what lives longer than three lines."""
VAGUE_FIELDS_AND_PARAMETERS = {
    "broker": 72,
    "cli": 71,
    "clients": 27,
    "config": 6,
    "controller": 10,
    "listeners": 19,
    "metadata": 123,
    "network": 2,
    "observability": 13,
    "pipeline": 159,
    "raft": 14,
    "rpc": 7,
    "storage": 26,
    "wire": 2,
}
"""How many of them fields, attributes and parameters of a folder carry."""


VAGUE_LOCALS = {
    "broker": 28,
    "cli": 57,
    "clients": 29,
    "combined": 1,
    "config": 6,
    "console": 4,
    "controller": 40,
    "listeners": 27,
    "metadata": 28,
    "network": 3,
    "node": 4,
    "observability": 2,
    "pipeline": 32,
    "raft": 1,
    "rpc": 7,
    "storage": 7,
    "testing": 15,
    "wire": 8,
}
"""How many variables of functions in a folder carry them over more lines than that, at most."""
SLACK = 10


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


def fields_and_parameters(tree: ast.Module) -> Iterator[str]:
    yield from fields(tree)
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name.lstrip("_")


def test_no_name_has_a_word_that_prose_bans() -> None:
    banned = {name for path in files() for name in defined_names(tree_of(path)) if has_banned_word(name)}
    banned |= {part for path in files() for part in name_of(path).split("/") if has_banned_word(part)}
    assert sorted(banned - NAMES_OF_BANNED_WORDS) == [], "say what it is or does in Kafka's words"
    assert sorted(NAMES_OF_BANNED_WORDS - banned) == [], "no longer there: remove it from the table"


def test_the_search_for_banned_words_finds_them() -> None:
    tree = ast.parse("def _tell_all(told_ms, income): self.furthest = come = 1\nclass LetIn: ONE_GOES_ON = 1")
    found = [name for name in defined_names(tree) if has_banned_word(name)]
    assert sorted(found) == ["LetIn", "ONE_GOES_ON", "_tell_all", "come", "furthest", "told_ms"]


def long_lived(tree: ast.Module) -> Iterator[str]:
    """Vague names of a function's variables that are read many lines after they are first set."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines: dict[str, list[int]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in VAGUE_NAMES:
                if isinstance(node.ctx, ast.Store) or node.id in lines:
                    lines.setdefault(node.id, []).append(node.lineno)
        yield from (name for name, found in lines.items() if max(found) - min(found) > LONG_LIVED_LINES)


def test_variables_that_live_long_say_what_they_are() -> None:
    vague = Counter(name_of(path).split("/")[0] for path in files() for _ in long_lived(tree_of(path)))
    more = {folder: count for folder, count in vague.items() if count > VAGUE_LOCALS.get(folder, 0)}
    assert more == {}, "say what the value is"
    fewer = {folder: vague[folder] for folder, count in VAGUE_LOCALS.items() if count > vague[folder] + SLACK}
    assert fewer == {}, "lower the numbers in the table"


def test_the_search_for_long_lived_variables_finds_them() -> None:
    source = "def f():\n    found = 1\n    at = 2\n    at += 1\n\n    return found\n"
    assert list(long_lived(ast.parse(source))) == ["found"]


def test_methods_of_one_name_do_one_thing() -> None:
    spread = Counter(
        name for path in files() for name, _ in public_methods(tree_of(path)) if name in SPREAD_METHODS
    )
    assert {name: count for name, count in spread.items() if count > SPREAD_METHODS[name]} == {}, (
        "name it after what it does"
    )


def test_fields_and_parameters_say_what_they_are() -> None:
    vague = Counter(
        name_of(path).split("/")[0]
        for path in files()
        for name in fields_and_parameters(tree_of(path))
        if name in VAGUE_NAMES
    )
    assert dict(vague) == VAGUE_FIELDS_AND_PARAMETERS, "fewer: lower it; more: say what the value is"
