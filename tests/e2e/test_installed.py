"""The package as it is installed: a wheel in a fresh environment, used where no checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY

pytestmark = pytest.mark.e2e
SOURCES = ("proto", "storage", "metadata", "controller", "broker", "runtime", "pipeline", "cli")


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.pop("METAQUORUM_BOOTSTRAP", None)
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", name="command")
def fixture_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`metaquorum` in an environment of its own, which finds the dependencies in ours but not the project."""
    home = tmp_path_factory.mktemp("installed")
    copy = home / "sources"
    for name in SOURCES:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", home, copy, cwd=home)
    shutil.rmtree(copy)
    (wheel,) = home.glob("*.whl")
    fresh = home / "venv"
    venv.create(fresh, with_pip=False)
    python = fresh / "bin" / "python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", wheel, cwd=home)
    (packages,) = fresh.glob("lib/python*/site-packages")
    # Lines of a .pth are paths; what is installed there as a link to the checkout is not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import cli, proto; print(cli.__file__, proto.__file__)", cwd=home).split()
    assert all(Path(each).is_relative_to(packages) for each in where), where
    return fresh / "bin" / "metaquorum"


@pytest.mark.timeout(240)
def test_the_demo_goes_through_where_no_checkout_is(command: Path, tmp_path: Path) -> None:
    # A folder with the name of one of our packages is the user's.
    trap = tmp_path / "cli"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('the wrong cli')\n")
    said = run(command, "demo", "-d", tmp_path / "demo", cwd=tmp_path)
    assert "All steps succeeded" in said
    assert not (tmp_path / "demo").exists()
    for told in (
        "leads in epoch",
        "kill -9",
        "fenced after",
        "hold the same log",
        "Kafka's own dump tool",
    ):
        assert told in said


EVERY_HELP = """
from click.testing import CliRunner
from cli.main import main
for name in main.list_commands(None):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, (name, result.output, result.exception)
    print(name)
"""


def test_every_group_of_commands_is_there(command: Path, tmp_path: Path) -> None:
    names = run(command.parent / "python", "-c", EVERY_HELP, cwd=tmp_path).split()
    assert {"completion", "demo", "local", "log", "pipeline", "produce"} <= set(names)
