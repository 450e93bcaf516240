"""Log directories when a broker starts: bad ones are tolerated, wrong ones refused with nothing changed."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaquorum.broker.replica.store.store import DirectoryStore
from metaquorum.broker.server.data import open as module
from metaquorum.broker.server.data.disk_faults import VARIABLE, configured_faults
from metaquorum.broker.server.data.open import look_at_directories, open_directories
from metaquorum.config.load import load_config
from metaquorum.config.node import NodeConfig
from metaquorum.errors import StartError
from metaquorum.node.replica import check_metadata_directory
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.uuids import random_uuid
from tests.unit.server.nodes import CLUSTER_ID, Site, new_site

RNG = random.Random(7)


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    """A broker whose metadata lies in `broker` and whose partitions lie in `d1` and `d2`."""
    site = new_site(tmp_path)
    for name in ("d1", "d2"):
        identify(tmp_path / name)
    return site


def identify(directory: Path, *, node_id: int = 101, cluster_id: str = CLUSTER_ID) -> None:
    directory.mkdir(exist_ok=True)
    identity = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=random_uuid(RNG))
    store_meta_properties(PosixDisk(), str(directory), identity)


def config_of(site: Site, *names: str, **more: str) -> NodeConfig:
    paths = ",".join(str(site.root / name) for name in names)
    pairs = {"metadata.log.dir": str(site.root / "broker"), "log.dirs": paths, **more}
    return load_config(site.broker_file(pairs), "broker")


def contents(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if path.name != "broker.properties"
    }


async def opened(config: NodeConfig, **environment: str) -> list[str | None]:
    """The problem of each directory, None where it is good; everything is closed again."""
    own = check_metadata_directory(config)
    faults = configured_faults(environment)
    places = await look_at_directories(config, own, faults=faults, observe=None)
    found = await open_directories(config, own, places)
    for each in found:
        assert (each.store is None) == (each.at_opening.problem is not None)
        if each.store is not None:
            assert each.at_opening.directory_id == each.store.directory_id
            each.store.close(clean=True)
    return [each.at_opening.problem for each in found]


async def test_good_directories_are_opened(site: Site) -> None:
    assert await opened(config_of(site, "d1", "d2")) == [None, None]
    # The metadata directory may be one of them: it is locked already.
    lock = PosixDisk().lock(str(site.root / "broker"))
    assert await opened(config_of(site, "broker", "d2")) == [None, None]
    lock.release()


def remove(path: Path) -> None:
    shutil.rmtree(path)


def empty(path: Path) -> None:
    remove(path)
    path.mkdir()


def garble(path: Path) -> None:
    (path / "meta.properties").write_text("version=1\nnode.id=abc\n")


def replace_with_a_file(path: Path) -> None:
    remove(path)
    path.write_text("no directory")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (remove, "does not exist"),
        (empty, "mount its disk, or format it"),
        (garble, "has no cluster.id line"),
        (replace_with_a_file, "meta.properties"),
    ],
)
async def test_a_directory_that_cannot_be_used_is_bad_and_the_others_good(
    site: Site, spoil: Callable[[Path], None], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(site.root / "d2")
    good, problem = await opened(config_of(site, "d1", "d2"))
    assert good is None
    assert problem is not None
    assert text in problem
    assert "\n" not in problem
    told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(told) == 1
    assert str(site.root / "d2") in told[0]


@pytest.mark.parametrize("operations", [["stat"], ["read"], ["lock"], ["list"]])
async def test_a_disk_that_fails_at_any_step_is_bad(
    site: Site, operations: list[str], tmp_path: Path
) -> None:
    control = tmp_path / "faults.json"
    fault = {"directory": str(site.root / "d1"), "fault": "eio", "operations": operations}
    control.write_text(json.dumps([fault]))
    problem, good = await opened(config_of(site, "d1", "d2"), **{VARIABLE: str(control)})
    assert good is None
    assert problem is not None
    assert "Input/output error" in problem


async def test_a_disk_that_hangs_is_bad(site: Site, tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    control.write_text(json.dumps([{"directory": str(site.root / "d1"), "fault": "hang"}]))
    config = config_of(site, "d1", "d2", **{"log.dir.hang.timeout.ms": "200"})
    problem, good = await opened(config, **{VARIABLE: str(control)})
    control.unlink()
    assert good is None
    assert problem is not None
    assert "has not returned for 200 ms" in problem


def of_another_broker(root: Path) -> None:
    identify(root / "d2", node_id=102)


def of_another_cluster(root: Path) -> None:
    identify(root / "d2", cluster_id="another-cluster-id-000")


def a_copy(root: Path) -> None:
    shutil.copy(root / "d1" / "meta.properties", root / "d2" / "meta.properties")


def a_copy_of_the_metadata_directory(root: Path) -> None:
    shutil.copy(root / "broker" / "meta.properties", root / "d2" / "meta.properties")


def the_same_by_another_name(root: Path) -> None:
    shutil.rmtree(root / "d2")
    (root / "d2").symlink_to(root / "d1")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (of_another_broker, "belongs to node 102"),
        (of_another_cluster, "belongs to cluster another-cluster-id-000"),
        (a_copy, "one is a copy"),
        (a_copy_of_the_metadata_directory, "one is a copy"),
        (the_same_by_another_name, "names one directory twice"),
    ],
)
async def test_a_wrong_directory_is_refused_and_nothing_changes(
    site: Site, spoil: Callable[[Path], None], text: str
) -> None:
    spoil(site.root)
    config = config_of(site, "d1", "d2")
    before = contents(site.root)
    with pytest.raises(StartError) as caught:
        await opened(config)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(site.root) == before


async def test_a_directory_of_a_running_process_is_refused(site: Site) -> None:
    lock = PosixDisk().lock(str(site.root / "d1"))
    with pytest.raises(StartError, match="in use by another running process"):
        await opened(config_of(site, "d1", "d2"))
    lock.release()


async def test_a_disk_that_hangs_when_it_is_opened_keeps_its_id(site: Site, tmp_path: Path) -> None:
    """Its owner was read before: the controller learns which directory is offline."""
    control = tmp_path / "faults.json"
    hung = {"directory": str(site.root / "d1"), "fault": "hang", "operations": ["lock"]}
    control.write_text(json.dumps([hung]))
    config = config_of(site, "d1", "d2", **{"log.dir.hang.timeout.ms": "200"})
    own = check_metadata_directory(config)
    faults = configured_faults({VARIABLE: str(control)})
    places = await look_at_directories(config, own, faults=faults, observe=None)
    bad, good = await open_directories(config, own, places)
    control.unlink()
    assert places[0].identity is not None
    assert bad.store is None and bad.at_opening.directory_id == places[0].identity.directory_id
    assert bad.at_opening.path == str(site.root / "d1")
    assert bad.at_opening.problem is not None and "lock of" in bad.at_opening.problem
    assert good.store is not None
    data = module.OpenData(directories=[bad, good], faults=faults)
    assert data.found == [bad.at_opening, good.at_opening]
    assert data.good_ids == (good.store.directory_id,) and data.good_paths == [str(site.root / "d2")]
    good.store.close(clean=True)


async def test_what_a_directory_is_opened_with(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    opening = DirectoryStore.open

    def noted(*arguments: Any, **options: Any) -> Any:
        given.append((arguments, options))
        return opening(*arguments, **options)

    monkeypatch.setattr(DirectoryStore, "open", noted)
    more = {
        "log.cleaner.threads": "3",
        "log.cleaner.dedupe.buffer.size": "10000000",
        "producer.id.expiration.ms": "7000",
    }
    assert await opened(config_of(site, "broker", "d2", **more)) == [None, None]
    by_path = {arguments[1]: (arguments, options) for arguments, options in given}
    for name in ("broker", "d2"):
        (_, path, expected, _), options = by_path[str(site.root / name)]
        assert (expected.cluster_id, expected.node_id) == (CLUSTER_ID, 101)
        assert options["options"].producer_id_expiration_ms == 7_000
        assert options["options"].cleaner_key_bytes == 3_000_000, "each thread has its share"
        assert options["locked"] is (name == "broker"), "by the metadata log"
        assert path == str(site.root / name)


def test_a_directory_that_takes_long_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = module._Progress("/d")
    with caplog.at_level(logging.INFO):
        for done, at_s in ((1, 101.9), (2, 102.0), (3, 103.9), (4, 104.0), (5, 104.1)):
            now[0] = at_s
            progress(done, 9)
    assert caplog.messages == [f"opening /d: {done} of 9 replicas" for done in (2, 4)]
