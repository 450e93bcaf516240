"""Configuration files as people have them, formatted and run with their addresses moved to loopback.

Each is taken, or refused in the one line of the table: key, and what to do.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metaquorum.config.files import read_properties
from metaquorum.node.local_nodes import free_ports
from tests.conftest import shared_data_path
from tests.e2e.processes import Process, run_cli

pytestmark = [pytest.mark.e2e, pytest.mark.shared_data]

CLUSTER = "4L6g3nShT-eMCtK--X86sw"
TAKEN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "combined-3.x": ((), ()),
    "kafka-4.1-default": (("--standalone",), ("have no effect: ", "share.coordinator.state.topic.min.isr")),
    "metadata-dir-only": (("--standalone",), ()),
    "sasl-plain-continuation-lines": ((), ()),
    "vendor-controller": ((), ("ignoring keys that neither Kafka nor metaquorum has: confluent.",)),
    "voter-port-differs": ((), ("for this node, but its listener CONTROLLER has port",)),
}
"""The options of `storage format`, and what the node's log says about the file."""
REFUSED = {
    "keys-twice-broker": (
        "sasl.mechanism.broker.protocol (did you mean sasl.mechanism.inter.broker.protocol?), "
        "offsets.topic.compression.type (did you mean offsets.topic.compression.codec?) are not known keys: "
        "docs/configuration.md lists the known ones"
    ),
    "operator-generated": (
        "listener.name.controlplane-9090.ssl.keystore.type=PKCS12 is not read here: name a PEM file in "
        "listener.name.controlplane-9090.ssl.keystore.location and leave the type out"
    ),
    "w3-no-controller-names": (
        "log.dirs is missing: Formatted directories of this node. The first holds the metadata log unless "
        "`metadata.log.dir` is set."
    ),
}


def folder() -> Path:
    shared = shared_data_path()
    found = None if shared is None else shared.parent / "found-2026-11" / "configurations"
    if found is None or not found.is_dir():
        pytest.skip("../shared/found-2026-11 is not there")
    return found


ADDRESS = re.compile(
    r"(?P<before>://|@|(?<=[=,\\])(?=localhost:)|^(?=localhost:))(?P<host>[\w.-]*):(?P<port>\d+)"
)


def moved(source: Path, directory: Path) -> Path:
    """A copy whose addresses are on loopback, with free ports, and whose directories are below `directory`.
    Nothing else is changed, not even the layout of lines."""
    lines = source.read_text().split("\n")
    found = [each for line in lines if not line.startswith("#") for each in ADDRESS.finditer(line)]
    used = sorted({each["port"] for each in found})
    ports = dict(zip(used, free_ports(len(used)), strict=True))
    voters = list(dict.fromkeys(each["host"] for each in found if each["before"] == "@"))

    def on_loopback(each: re.Match[str]) -> str:
        number = voters.index(each["host"]) + 1 if each["before"] == "@" else 1
        return f"{each['before']}127.0.0.{number}:{ports[each['port']]}"

    text = "\n".join(line if line.startswith("#") else ADDRESS.sub(on_loopback, line) for line in lines)
    for key in ("log.dirs", "metadata.log.dir"):
        text = re.sub(rf"(?m)^{re.escape(key)}=.*$", f"{key}={directory / key}", text)
    path = directory / source.name
    path.write_text(text)
    return path


def test_the_table_has_every_file() -> None:
    assert {path.stem for path in folder().iterdir()} == {*TAKEN, *REFUSED}


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_formatted_and_runs(name: str, tmp_path: Path) -> None:
    path = moved(folder() / f"{name}.properties", tmp_path)
    options, said = TAKEN[name]
    run_cli("storage", "format", "--config", path, "--cluster-id", CLUSTER, *options)
    node = Process(name, ("node", "run", path), tmp_path / "node.log")
    node.start()
    try:
        node.wait_for_line("listens on")
        if len(read_properties(path).get("controller.quorum.voters", "").split(",")) == 1:
            node.wait_for_line("leader (active)")
        for part in said:
            assert part in node.output()
    finally:
        if node.is_running:
            assert node.stop() == 0
    assert "Traceback" not in node.output()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["format", "run"])
def test_it_is_refused_in_one_line_that_says_what_to_do(name: str, command: str, tmp_path: Path) -> None:
    path = moved(folder() / f"{name}.properties", tmp_path)
    words = {"format": ("storage", "format", "--cluster-id", CLUSTER, "--config"), "run": ("node", "run")}
    done = run_cli(*words[command], path, expect=1)
    who = "metaquorum" if command == "format" else "metaquorum node"
    assert done.stderr.splitlines() == [f"{who}: {path}: {REFUSED[name]}"]
