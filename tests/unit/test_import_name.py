"""One import name: nothing imports the repository's folders but through `metaquorum`."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import metaquorum
from tests.unit.test_names import SURFACE

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "metaquorum"
FOLDERS = {path.name for path in PACKAGE.iterdir() if path.is_symlink()}


IMPORTED = re.compile(rf"^\s*(?:import|from)\s+(?:{'|'.join(sorted(FOLDERS))})\b", re.MULTILINE)
"""An import, or a line of a text that looks like one."""


def top_level_imports(source: str) -> set[str]:
    found: set[str] = set()
    if not IMPORTED.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_every_folder_of_code_is_linked_by_a_relative_link() -> None:
    with_code = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")} - {"tests", "metaquorum"}
    assert with_code == FOLDERS
    for name in FOLDERS:
        assert os.readlink(PACKAGE / name) == f"../{name}"


@pytest.mark.parametrize("linked", [True, False])
def test_a_checkout_works_with_and_without_symbolic_links(tmp_path: Path, linked: bool) -> None:
    """Git writes the target of a link into a file where there are no links."""
    package = tmp_path / "metaquorum"
    package.mkdir()
    (package / "__init__.py").write_text((PACKAGE / "__init__.py").read_text("utf-8"), "utf-8")
    for name in FOLDERS:
        (tmp_path / name).symlink_to(REPOSITORY / name)
        if linked:
            (package / name).symlink_to(f"../{name}")
        else:
            (package / name).write_text(f"../{name}")
    names = [f"metaquorum.{name}" for name in sorted(FOLDERS - {"pipeline"})]
    program = (
        f"import importlib, sys; modules = [importlib.import_module(name) for name in {names!r}];"
        "from metaquorum.storage import uuids; print(uuids.__file__);"
        "assert {each.__package__ for each in modules} == {*sys.argv[1:]}"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(tmp_path))


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_folder_cannot_be_imported_by_its_own_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the repository on the path, it would be a second copy of the package."""
    monkeypatch.syspath_prepend(str(REPOSITORY))
    with pytest.raises(ImportError, match=rf"import metaquorum\.{name}"):
        importlib.import_module(name)


def test_nothing_imports_a_folder_by_its_own_name() -> None:
    assert top_level_imports("import storage.log\nfrom cli import main\nfrom . import x") == {
        "storage",
        "cli",
    }
    assert top_level_imports('"""\nimport storage\n"""') == set()
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {sorted(names)}"
        for folder in (*sorted(FOLDERS), "metaquorum", "tests")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if (names := top_level_imports(path.read_text("utf-8")) & FOLDERS)
    ]
    assert wrong == []


def test_the_public_surface_is_small_and_there() -> None:
    assert dir(metaquorum) == ["__version__", "open_log", "raft"]
    assert metaquorum.__version__
    assert metaquorum.raft.__doc__
    log = metaquorum.open_log(REPOSITORY / "tests" / "data" / "kafka-3.7-upgrade")
    assert log.end_offset > log.start_offset


def test_the_docstring_names_the_public_surface() -> None:
    named = re.findall(r"^- `([\w.]+)", metaquorum.__doc__ or "", re.MULTILINE)
    assert named == [*metaquorum.__all__, "metaquorum.pipeline"]
    packages = {
        f"metaquorum.{name.removeprefix('metaquorum.')}"
        for name in named
        if name.endswith(("raft", "pipeline"))
    }
    assert {"metaquorum", *packages} == set(SURFACE)


def test_every_name_of_the_raft_library_is_there() -> None:
    from metaquorum import raft

    for name in raft.__all__:
        assert getattr(raft, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raft.nothing
