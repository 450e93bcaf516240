"""The package as it is installed: a wheel in a new environment, used without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY

pytestmark = pytest.mark.e2e
IGNORED = shutil.ignore_patterns("__pycache__")
PACKAGE = REPOSITORY / "metaquorum"


WHERE = "import metaquorum, metaquorum.cli; print(metaquorum.__file__, metaquorum.cli.__file__, sep=chr(10))"


TIMEOUT_S = 600
"""Only ends what hangs: at the same time as other tests on a slow machine the demo takes minutes."""


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.pop("METAQUORUM_BOOTSTRAP", None)
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", name="command")
def fixture_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`metaquorum` in an environment of its own, which finds the dependencies in ours but not the project."""
    home = tmp_path_factory.mktemp("installed")
    copy = home / "sources"
    # Links stay links: the build follows them, as it does in a checkout.
    shutil.copytree(PACKAGE, copy / "metaquorum", symlinks=True, ignore=IGNORED)
    for link in PACKAGE.iterdir():
        if link.is_symlink():
            shutil.copytree(link, copy / link.name, ignore=IGNORED)
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
    # Lines of a .pth are paths; a link to the checkout that is installed there is not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", WHERE, cwd=home).splitlines()
    assert all(Path(each).is_relative_to(packages) for each in where), where
    return fresh / "bin" / "metaquorum"


def test_the_demo_goes_through_where_no_checkout_is(command: Path, tmp_path: Path) -> None:
    # Modules with the names of our folders belong to the user.
    for name in ("cli", "proto", "storage"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')\n")
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
from metaquorum.cli.main import main
for name in main.list_commands(None):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, (name, result.output, result.exception)
    print(name)
"""


def test_every_group_of_commands_is_there(command: Path, tmp_path: Path) -> None:
    names = run(command.parent / "python", "-c", EVERY_HELP, cwd=tmp_path).split()
    assert {"completion", "demo", "local", "log", "pipeline", "produce"} <= set(names)


BESIDE = """
import proto, storage
from metaquorum.proto import metadata_pb2
from metaquorum.storage.uuids import random_uuid
import metaquorum
assert proto.MARK == storage.MARK == "the user's"
assert metadata_pb2.DESCRIPTOR.name == "metaquorum/proto/metadata.proto"
print(metaquorum.__version__)
"""


def test_one_name_is_all_that_an_installation_adds(command: Path, tmp_path: Path) -> None:
    (packages,) = command.parent.parent.glob("lib/python*/site-packages")
    added = {path.name for path in packages.iterdir()}
    assert {name for name in added if not name.endswith((".dist-info", ".pth"))} == {"metaquorum"}
    assert (packages / "metaquorum" / "py.typed").exists()
    assert not any(path.is_symlink() for path in (packages / "metaquorum").iterdir())
    # proto-plus is imported as `proto`, and a user's own module may well be called storage.
    (tmp_path / "proto").mkdir()
    (tmp_path / "proto" / "__init__.py").write_text('MARK = "the user\'s"\n')
    (tmp_path / "storage.py").write_text('MARK = "the user\'s"\n')
    assert run(command.parent / "python", "-c", BESIDE, cwd=tmp_path).strip() == version("metaquorum")


BUGS = {
    "a producer without idempotence": (
        '"enable.idempotence": True',
        '"enable.idempotence": False',
        "test_a_lost_acknowledgement_stores_an_order_once",
    ),
    "an aborted transaction is not done again": (
        "            self._consumer.seek(place)\n",
        "",
        "test_an_aborted_transaction_is_done_again",
    ),
}
"""By name, what is written for what in the service of the sample project, and the test that finds it."""


def sample_tests(command: Path, project: Path, *options: str) -> str:
    """The outcome of the sample project's tests, in the environment of the wheel."""
    python = command.parent / "python"
    arguments = ("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options, "tests")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    environment.pop("METAQUORUM_BOOTSTRAP", None)
    done = subprocess.run(
        [python, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def sample_project(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(REPOSITORY / "tests" / "sample_project", tmp_path / "project", ignore=IGNORED)
    )


def test_a_users_project_is_tested_with_the_wheel_alone(command: Path, sample_project: Path) -> None:
    said = sample_tests(command, sample_project)
    assert "6 passed" in said, said


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_sample_project_passes_without_faults_only(
    command: Path, sample_project: Path, bug: str
) -> None:
    right, wrong, finder = BUGS[bug]
    service = sample_project / "invoices.py"
    source = service.read_text()
    assert source.count(right) == 1
    service.write_text(source.replace(right, wrong))
    said = sample_tests(command, sample_project, "-k", "not chaos and not coordinator")
    failed = [line.partition("::")[2].partition(" ")[0] for line in said.splitlines() if line[:6] == "FAILED"]
    assert failed == [finder], said
    assert "Kafka cluster" in said and "metaquorum log timeline" in said
