"""Logs in archives and under gzip give what the same logs give unpacked."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest

import metaquorum.pipeline.ingest.job as job
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.logs.places import NoLogsError, find_logs
from metaquorum.pipeline.logs.survey import hop, survey
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.archive_writer import ArchiveSource, write_archive
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import StorageError
from tests.unit.pipeline.here import run_here
from tests.unit.pipeline.recorded import GOLDEN, LOG

pytestmark = pytest.mark.shared_data
NOBODY: Any = None


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run_tasks", run_here)


@pytest.fixture(scope="module")
def node(shared_data: Path) -> Path:
    return shared_data / GOLDEN


@pytest.fixture(scope="module")
def packed(node: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same node in every form, by name."""
    top = tmp_path_factory.mktemp("packed")
    found: dict[str, Path] = {}
    for name, mode in (("node.tar", "w"), ("node.tar.gz", "w:gz"), ("node.TGZ", "w:gz")):
        found[name] = top / name
        with tarfile.open(found[name], mode) as tar:  # type: ignore[call-overload]
            tar.add(node, "./backup/node")
    found["node.mqa"] = top / "node.mqa"
    files = [node / "meta.properties", *(at for at in (node / LOG).iterdir() if at.is_file())]
    sources = [
        ArchiveSource(PosixDisk(), str(at), f"backup/node/{at.relative_to(node)}")
        for at in files
        if at.suffix != ".txt"
    ]
    write_archive(PosixDisk(), str(found["node.mqa"]), sources, "1")
    zipped = found["gzip"] = top / "zipped"
    (zipped / LOG).mkdir(parents=True)
    (zipped / "meta.properties").write_bytes((node / "meta.properties").read_bytes())
    for at, file in enumerate(sorted((node / LOG).iterdir())):
        if file.suffix == ".txt":
            continue
        is_plain = at % 2 and file.suffix == ".checkpoint"
        target = zipped / LOG / (file.name if is_plain else f"{file.name}.gz")
        target.write_bytes(file.read_bytes() if is_plain else gzip.compress(file.read_bytes()))
    return found


def told(out: Path, name: str) -> list[dict[str, Any]]:
    rows = TableSource(out).dataset(name).to_table().to_pylist()
    for row in rows:
        if "file" in row:
            row["file"] = Path(row["file"]).name
    return sorted(rows, key=repr)


@pytest.fixture(scope="module")
def plain(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "run_tasks", lambda session, tasks, *rest: [run_task(task) for task in tasks])
        job.ingest(NOBODY, [str(node)], out)
    return out


@pytest.mark.parametrize("form", ["node.mqa", "node.tar", "node.tar.gz", "gzip"])
def test_the_tables_are_those_of_the_unpacked_logs(
    form: str, packed: dict[str, Path], plain: Path, tmp_path: Path
) -> None:
    job.ingest(NOBODY, [str(packed[form])], tmp_path / "out")
    for name in TABLES:
        assert told(tmp_path / "out", name) == told(plain, name), name
    again = job.ingest(NOBODY, [str(packed[form])], tmp_path / "out")
    assert (again.records, len(again.unchanged)) == (0, 1)


def test_paths_lead_into_archives_and_patterns_find_them(packed: dict[str, Path], node: Path) -> None:
    disk, top = StoreDisk(), packed["node.tar"].parent
    for form in ("node.tar.gz", "node.mqa"):
        inner = f"{packed[form]}/backup/node/{LOG}"
        (place,) = find_logs(disk, [inner])
        assert (place.path, place.node_id) == (inner, 3000)
    assert len(find_logs(disk, [f"{top}/node.*"])) == 4
    segment = sorted((node / LOG).glob("*.log"))[1].name
    (one,) = find_logs(disk, [f"{packed['gzip']}/{LOG}/{segment}.gz"])
    assert one.path == f"{packed['gzip']}/{LOG}/{segment}"
    assert list(hop(one.path, None)) == list(hop(str(node / LOG / segment), None))
    with pytest.raises(NoLogsError, match="there is no such file"):
        find_logs(disk, [f"{packed['node.tar']}/backup/nodes"])


def test_an_archive_below_a_directory_is_not_opened(
    packed: dict[str, Path], tmp_path: Path, node: Path
) -> None:
    (tmp_path / "node").symlink_to(node)
    (tmp_path / "kafka.tgz").write_bytes(b"a program, and broken")
    assert len(find_logs(StoreDisk(), [str(tmp_path)])) == 1


@pytest.mark.parametrize("form", ["node.mqa", "node.tar", "node.tar.gz", "gzip"])
def test_what_is_not_whole_is_one_line(
    form: str, packed: dict[str, Path], tmp_path: Path, node: Path
) -> None:
    if form == "gzip":
        cut = tmp_path / "n" / LOG / f"{0:020d}.log.gz"
        cut.parent.mkdir(parents=True)
        cut.write_bytes(gzip.compress((node / LOG / f"{0:020d}.log").read_bytes())[:5000])
    else:
        cut = tmp_path / form
        data = packed[form].read_bytes()
        cut.write_bytes(data[: len(data) // 3])
    wrong = "it is not a complete archive|the archive is cut off"
    with pytest.raises((StorageError, NoLogsError), match=wrong) as raised:
        for place in find_logs(StoreDisk(), [str(cut)]):
            survey(StoreDisk(), place)
    assert "\n" not in str(raised.value)
