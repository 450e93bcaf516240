"""Directories without a `directory.id`, as Kafka before 3.7 formatted them, get one at the node's start."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.node.replica import add_directory_ids, check_directories
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import FILE_NAME, load_meta_properties
from tests.unit.server.nodes import Site, formatted, new_site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return new_site(tmp_path)


def without_id(directory: Path) -> Path:
    path = directory / FILE_NAME
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("directory.id")))
    return directory


def ids(*directories: Path) -> list[bytes | None]:
    return [load_meta_properties(PosixDisk(), str(each)).directory_id for each in directories]


def a_broker(site: Site) -> tuple[NodeConfig, Path, Path]:
    first, second = site.root / "broker", formatted(site.root / "second", 101)
    path = site.broker_file({"log.dirs": f"{first},{second}"})
    return load_config(path, "broker"), without_id(first), second


def test_each_directory_without_an_id_gets_one_of_its_own(site: Site) -> None:
    config, first, second = a_broker(site)
    without_id(second)
    add_directory_ids(config)
    made = ids(first, second)
    assert None not in made and len(set(made)) == 2
    check_directories(config)
    add_directory_ids(config)
    assert ids(first, second) == made, "an id stays"


def test_only_what_is_missing_is_written(site: Site) -> None:
    config, first, second = a_broker(site)
    before = (second / FILE_NAME).read_bytes()
    add_directory_ids(config)
    assert (second / FILE_NAME).read_bytes() == before
    assert ids(first) != [None]


@pytest.mark.parametrize(
    "whose", [{"node_id": 102}, {"node_id": 101, "cluster_id": "another-cluster-id-000"}]
)
def test_a_directory_of_someone_else_stays_as_it_is(site: Site, whose: dict[str, object]) -> None:
    foreign = without_id(formatted(site.root / "foreign", **whose))  # type: ignore[arg-type]
    path = site.broker_file({"log.dirs": f"{site.root / 'broker'},{foreign}"})
    add_directory_ids(load_config(path, "broker"))
    assert ids(foreign) == [None]


def test_a_directory_in_use_stays_as_it_is(site: Site) -> None:
    config, first, _ = a_broker(site)
    lock = PosixDisk().lock(str(first))
    try:
        add_directory_ids(config)
    finally:
        lock.release()
    assert ids(first) == [None]
