"""Pure code stays pure: no clock, no event loop, no process randomness and no files outside the shell.

The shell is listed here, folder by folder and file by file; everything else is read as source and
searched for what a deterministic state machine must not touch.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("wire", "storage", "metadata", "raft", "controller", "broker", "combined")
PRINTS_ITS_PAGE = ("wire/stubs.py",)
"""Also a program."""
PURE_FILES_OF_THE_SHELL = (
    "node/scheduler.py",
    "listeners/answers.py",
    "config/principals.py",
    "listeners/sasl.py",
    "listeners/login.py",
    "listeners/oauth.py",
    "network/framing.py",
    "network/limits.py",
    "listeners/quotas.py",
    "listeners/access/guard.py",
    "listeners/access/special.py",
    "listeners/access/steps.py",
    "listeners/forwarded/api.py",
    "broker/server/kafka/cluster.py",
)
SHELL = (
    "controller/server",
    "broker/server",
    "combined/process.py",
    "raft/blocking.py",
    "storage/disk/kernel_sync.py",
    "storage/disk/posix.py",
    "storage/disk/descriptors.py",
)
FORBIDDEN_MODULES = {
    "aiofiles",
    "asyncio",
    "concurrent",
    "grpc",
    "multiprocessing",
    "os",
    "secrets",
    "selectors",
    "socket",
    "subprocess",
    "tempfile",
    "time",
    "uvloop",
}
FORBIDDEN_CALLS = {"open", "input", "uuid4", "uuid1", "urandom", "sleep", "monotonic"}
FORBIDDEN_ATTRIBUTES = {
    "uuid4",
    "uuid1",
    "urandom",
    "today",
    "utcnow",
    "read_text",
    "write_text",
    "read_bytes",
}


def is_shell(path: str) -> bool:
    return any(path == entry or path.startswith(entry + "/") for entry in (*SHELL, *PRINTS_ITS_PAGE))


def pure_files() -> list[str]:
    paths = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    relative = (path.relative_to(REPOSITORY).as_posix() for path in paths)
    return sorted([*PURE_FILES_OF_THE_SHELL, *(path for path in relative if not is_shell(path))])


def impurities(source: str) -> list[str]:
    """What a source text does that pure code must not do, as `line: reason`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                roots = [alias.name.split(".")[0] for alias in names]
                found += [f"{node.lineno}: imports {root}" for root in roots if root in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module), level=0, names=names):
                root = module.split(".")[0]
                if module == "metaquorum.platforms" or (root, "platforms") in [
                    (module, alias.name) for alias in names
                ]:
                    found.append(f"{node.lineno}: asks the operating system")
                if root in FORBIDDEN_MODULES:
                    found.append(f"{node.lineno}: imports from {root}")
                if root == "random" and any(alias.name != "Random" for alias in names):
                    found.append(f"{node.lineno}: imports a module-level random function")
                if root == "uuid" and any(alias.name in FORBIDDEN_CALLS for alias in names):
                    found.append(f"{node.lineno}: imports a random uuid")
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: calls {name}()")
            case ast.Attribute(value=ast.Name(id="random"), attr=attribute) if attribute != "Random":
                found.append(f"{node.lineno}: uses random.{attribute} of the module")
            case ast.Attribute(value=ast.Name(id=("datetime" | "date")), attr="now"):
                found.append(f"{node.lineno}: reads the clock")
            case ast.Attribute(attr=attribute) if attribute in FORBIDDEN_ATTRIBUTES:
                found.append(f"{node.lineno}: uses .{attribute}")
    return found


@pytest.mark.parametrize("path", pure_files())
def test_no_clock_loop_randomness_or_file_in_pure_code(path: str) -> None:
    found = impurities((REPOSITORY / path).read_text())
    assert not found, f"{path}: {found}; take it as an argument, or emit an effect for the shell"


@pytest.mark.parametrize("entry", SHELL)
def test_every_shell_entry_exists(entry: str) -> None:
    assert (REPOSITORY / entry).exists(), f"{entry} is gone: take it out of SHELL"


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import os.path",
        "from metaquorum import platforms",
        "from metaquorum.platforms import read_at",
        "from time import monotonic",
        "import random\nx = random.random()",
        "from random import shuffle",
        "from uuid import uuid4",
        "import uuid\nx = uuid.uuid4()",
        "open('f')",
        "from datetime import datetime\nx = datetime.now()",
        "def f():\n    import socket",
        "def f(path):\n    return path.read_bytes()",
    ],
)
def test_the_search_finds_what_it_must(source: str) -> None:
    assert impurities(source)


@pytest.mark.parametrize(
    "source",
    [
        "import random\ndef f(rng: random.Random) -> int:\n    return rng.randrange(3)",
        "from random import Random",
        "x.append(1)",
    ],
)
def test_the_search_lets_pure_code_pass(source: str) -> None:
    assert impurities(source) == []
