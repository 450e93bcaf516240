"""What commands load before they do their work: nothing of nodes where they only ask them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from metaquorum.cli.main import _COMMANDS

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
