"""What the base installation does without: every extra is missing in one line that says how to install it."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metaquorum.cli.main import _COMMANDS
from metaquorum.metadata.extras import EXTRA_OF, install_command
from tests.packaging.project import base, extra
from tests.unit.sources import files, name_of, tree_of

DISTRIBUTIONS = {"confluent_kafka": "confluent-kafka", "re2": "google-re2", "jwt": "PyJWT"}
"""The distributions whose module has another name."""

AT_IMPORT = (
    *("cli/data/", "cli/local/watch.py", "cli/pipeline/", "console/", "pipeline/"),
    "testing/access.py",
)
"""What may need an extra in order to be imported, and is imported late: commands, a cluster with TLS."""

COMMANDS = {
    "console": ("uvicorn", ["console", "log"]),
    "produce": ("confluent_kafka", ["produce", "t"]),
    "consume": ("confluent_kafka", ["consume", "t"]),
    "its help": ("confluent_kafka", ["consume", "--help"]),
    "watch": ("rich", ["local", "up", "--watch", "--directory", "cluster"]),
    "audit": ("pyarrow", ["pipeline", "audit", "."]),
    "ingest": ("pyarrow", ["pipeline", "ingest", "--out", "out", "."]),
}


def run_without(
    modules: list[str], arguments: list[str], directory: Path
) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
        "from metaquorum.cli.main import main\nmain(prog_name='metaquorum')"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=directory, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_its_extra_says_in_one_line_what_to_install(name: str, tmp_path: Path) -> None:
    module, arguments = COMMANDS[name]
    done = run_without([module], arguments, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"metaquorum: {module} is not installed; install it with: {install_command(module)}"
    ]
    assert list(tmp_path.iterdir()) == [], "nothing has been started"


def test_every_other_command_is_there_without_any_extra(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)!r}))\n"
        "from metaquorum.cli.main import main\n"
        "for name in sys.argv[1:]: main.get_command(None, name)\n"
        "import metaquorum.cli.local.cluster, metaquorum.combined.process, metaquorum.cli.log.commands\n"
        "from metaquorum.cli.pipeline.commands import pipeline; pipeline.get_command(None, 'generate')"
    )
    others = [name for name in _COMMANDS if name not in {"produce", "consume"}]
    done = subprocess.run([sys.executable, "-c", code, *others], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_module_of_a_node_or_of_the_log_tools_needs_an_extra_to_be_imported() -> None:
    needing = {}
    for path in files():
        name = name_of(path)
        for statement in tree_of(path).body:
            names = (
                [each.name for each in statement.names]
                if isinstance(statement, ast.Import)
                else [statement.module or ""]
                if isinstance(statement, ast.ImportFrom)
                else []
            )
            if {each.partition(".")[0] for each in names} & EXTRA_OF.keys():
                needing[name] = names
    assert needing, "nothing was looked at"
    assert {name for name in needing if not name.startswith(AT_IMPORT)} == set()


def test_the_extra_that_a_line_names_installs_the_module_and_the_base_does_not() -> None:
    for module, name in EXTRA_OF.items():
        distribution = DISTRIBUTIONS.get(module, module)
        assert distribution in {each.name for each in extra(name)}, module
        assert distribution not in {each.name for each in base()}, module
        assert re.fullmatch(r"pip install 'metaquorum\[[a-z]+\]'", install_command(module))


# What commands load before they do their work: nothing of nodes where they only ask them.


STARTS_OR_REPLAYS = ("local", "log", "demo", "console")
RECORDS = "metaquorum.metadata.records.codec"
HEAVY = {
    *(
        "numpy",
        "metaquorum.metadata.image.image",
        "metaquorum.storage.log.log",
        "metaquorum.node.driver",
    ),
    *("metaquorum.raft.core", "metaquorum.controller.node", "metaquorum.broker.node"),
    *("pyspark", "pandas", "pyarrow", "rich"),
}
"""They take longer to load than most commands to do their work, as the codec of records does."""


def loaded(*commands: str) -> list[list[str]]:
    """The modules that are there after each of these groups of commands, one after the other in a process of
    their own."""
    code = (
        "import json, sys; from metaquorum.cli.main import main\n"
        "for name in sys.argv[1:]:\n"
        "    main.get_command(None, name); print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_command_that_asks_a_cluster_loads_no_node() -> None:
    writes_records = "storage"
    names = [name for name in _COMMANDS if name not in (*STARTS_OR_REPLAYS, writes_records)]
    for name, modules in zip([*names, writes_records], loaded(*names, writes_records), strict=True):
        refused = HEAVY if name == writes_records else HEAVY | {RECORDS}
        assert not refused.intersection(modules), name


def test_the_command_itself_loads_nothing_but_errors() -> None:
    (modules,) = loaded("no-such-command")
    assert not (HEAVY | {RECORDS, "asyncio", "grpc", "msgspec"}).intersection(modules)


def test_what_is_looked_for_has_these_names() -> None:
    """A module that is renamed must not make the tests above empty."""
    for name in (*HEAVY, RECORDS):
        assert importlib.util.find_spec(name) is not None, name
