"""Logs and tables in an object store: what an S3 endpoint on loopback answers, without Spark."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import metaquorum.pipeline.ingest.job as job
from metaquorum.cli.main import main
from metaquorum.pipeline.audit.gather import TableSource
from metaquorum.pipeline.ingest.layout import LayoutError, load_manifest
from metaquorum.pipeline.ingest.tasks import run_task
from metaquorum.pipeline.ingest.work import Task, TaskResult
from metaquorum.pipeline.logs.follow import log_ends
from metaquorum.pipeline.logs.places import Identities, NoLogsError, find_logs
from metaquorum.pipeline.logs.survey import hop, survey
from metaquorum.pipeline.stores import remote
from metaquorum.pipeline.stores.disk import StoreDisk
from metaquorum.pipeline.stores.folder import Folder
from metaquorum.pipeline.stores.remote import READ_AHEAD_BYTES
from metaquorum.pipeline.tables import TABLES
from metaquorum.storage.errors import DiskError
from tests.unit.pipeline.stores.endpoint import BUCKET, client, s3_endpoint, upload
from tests.unit.pipeline.test_ingest import write

ROOT = f"s3://{BUCKET}"
NOBODY: Any = None


@pytest.fixture(scope="module")
def endpoint() -> Iterator[dict[str, str]]:
    with s3_endpoint() as environment:
        yield environment


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(session: object, tasks: list[Task], *_: object) -> list[TaskResult]:
        return [run_task(task) for task in tasks]

    monkeypatch.setattr(job, "run_tasks", run_here)
    monkeypatch.setattr("metaquorum.pipeline.stores.folder.SETTLE_SECONDS", {True: 0.0, False: 0.0})


def rows(out: str | Path, name: str) -> list[dict[str, Any]]:
    found = TableSource(out).dataset(name).to_table().to_pylist()
    for row in found:
        if "file" in row:
            row["file"] = row["file"].rpartition("/")[2]
    return sorted(found, key=repr)


@pytest.mark.usefixtures("_here")
def test_two_runs_from_store_to_store_give_the_tables_of_the_same_files(
    endpoint: dict[str, str], tmp_path: Path
) -> None:
    for batches in (9, 14):
        write(tmp_path / "logs", batches, b"torn" if batches == 14 else b"")
        upload(tmp_path / "logs", "logs")
        report = job.ingest(NOBODY, [f"s3a://{BUCKET}/lo*/n[0-9]"], f"{ROOT}/tables")
    job.ingest(NOBODY, [str(tmp_path / "logs")], tmp_path / "out")
    assert (report.version, report.ingested) == (2, ["made"])
    for name in TABLES:
        assert rows(f"{ROOT}/tables", name) == rows(tmp_path / "out", name), name
    assert rows(f"{ROOT}/tables", "damage")[0]["kind"] == "tail"
    assert job.ingest(NOBODY, [f"{ROOT}/logs"], f"{ROOT}/tables").unchanged == ["made"]
    listed = {file.path for file in load_manifest(Folder(f"{ROOT}/tables")).files}
    kept = {at["Key"].partition("/")[2] for at in client().list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert listed <= kept
    audited = CliRunner().invoke(main, ["pipeline", "audit", f"{ROOT}/tables", "--fail-on", "never"])
    assert audited.exit_code == 0 and "1 clusters" in audited.output


def test_the_hop_over_an_object_sees_what_it_sees_of_a_file(
    endpoint: dict[str, str], shared_data: Path
) -> None:
    node = shared_data / "kafka-3.7" / "controller-3000"
    upload(node, "golden")
    (place,) = find_logs(StoreDisk(), [f"{ROOT}/golden"])
    (there,) = survey(StoreDisk(), place)
    (found,) = find_logs(StoreDisk(), [str(node)])
    (here,) = survey(StoreDisk(), found)
    assert (there.records, there.sums, there.marks, there.snapshots) == (
        *(here.records, here.sums, here.marks, here.snapshots),
    )
    assert (place.cluster, place.node_id) == (found.cluster, found.node_id)
    file = here.segments[0].file
    assert list(hop(there.segments[0].file, None)) == list(hop(file, None))


def test_a_tree_is_listed_at_once_and_what_is_known_of_it_is_not_asked_again(
    endpoint: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path / "logs", 14)
    for number in range(12):
        upload(tmp_path / "logs", f"tree/zone{number % 3}/{number}")
    monkeypatch.setattr("metaquorum.pipeline.logs.places.SETTLED_NS", -10_000_000_000)

    def asked() -> list[str]:
        """What the server was asked since the last call."""
        found = [at.getMessage() for at in caplog.records if at.name == "werkzeug"]
        caplog.clear()
        return found

    known, disk = Identities(), StoreDisk()
    caplog.clear()
    with caplog.at_level("INFO", "werkzeug"):
        places = find_logs(disk, [f"{ROOT}/tree"], earlier=known)
        first = [line for line in asked() if "meta.properties" not in line]
        ends = log_ends(places, {}, disk)
        asked()
        disk = StoreDisk()
        assert find_logs(disk, [f"{ROOT}/tree"], earlier=known) == places
        assert log_ends(places, ends, disk) == ends
        again = asked()
    assert (len(places), {place.cluster for place in places}) == (12, {"made"})
    assert len(first) == len(again) <= 3, (first, again)


@pytest.mark.parametrize("name", ["node.tgz", "node.mqa"])
def test_an_archive_in_a_store_holds_the_logs_that_are_in_it(
    endpoint: dict[str, str], tmp_path: Path, shared_data: Path, name: str
) -> None:
    node = shared_data / "kafka-3.7" / "controller-3000"
    if name.endswith(".tgz"):
        with tarfile.open(tmp_path / name, "w:gz") as tar:
            tar.add(node, node.name)
    else:
        CliRunner().invoke(main, ["log", "archive", str(node), "--to", str(tmp_path / name)])
    client().put_object(Bucket=BUCKET, Key=f"old/{name}", Body=(tmp_path / name).read_bytes())
    (place,) = find_logs(StoreDisk(), [f"{ROOT}/old/{name}"])
    (there,) = survey(StoreDisk(), place)
    assert (place.path, there.records) == (f"{ROOT}/old/{name}/{node.name}/__cluster_metadata-0", 4758)


def test_a_part_of_an_object_is_read_again_where_it_must_be(
    endpoint: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 64
    client().put_object(Bucket=BUCKET, Key="part/one.log", Body=data)
    monkeypatch.setattr("metaquorum.pipeline.stores.remote.READ_AHEAD_BYTES", 1000)
    file = StoreDisk().open_read(f"{ROOT}/part/one.log")
    for position, length in ((0, 61), (990, 61), (5, 10), (16_000, 9_000), (len(data), 5), (3_000, 4_000)):
        assert file.read_at(position, length) == data[position : position + length]
    assert READ_AHEAD_BYTES > 1 << 20


def test_an_object_that_changes_while_it_is_read_is_one_line(endpoint: dict[str, str]) -> None:
    client().put_object(Bucket=BUCKET, Key="moving/one.log", Body=b"first")
    file = StoreDisk().open_read(f"{ROOT}/moving/one.log")
    client().put_object(Bucket=BUCKET, Key="moving/one.log", Body=b"another")
    with pytest.raises(DiskError, match="the object changed while it was read; run again"):
        file.read_at(0, 5)


@pytest.mark.usefixtures("_here")
def test_what_is_not_there_is_one_line(endpoint: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="there is no bucket absent; check its name"):
        find_logs(StoreDisk(), ["s3://absent/logs"])
    with pytest.raises(NoLogsError, match="there is no such file or directory"):
        find_logs(StoreDisk(), [f"{ROOT}/nothing/here"])
    with pytest.raises(NoLogsError, match="nothing matches"):
        find_logs(StoreDisk(), [f"{ROOT}/nothing/*"])
    for words in (
        ["ingest", "s3://absent/logs", "--out", str(tmp_path / "out")],
        ["audit", "s3://absent/tables"],
        ["audit", f"{ROOT}/nothing"],
    ):
        done = CliRunner().invoke(main, ["pipeline", *words])
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.stderr
    write(tmp_path / "logs", 5)
    with pytest.raises(DiskError, match="there is no bucket absent"):
        job.ingest(NOBODY, [str(tmp_path / "logs")], "s3://absent/tables")


@pytest.mark.usefixtures("_here")
def test_a_run_that_fails_in_the_middle_leaves_no_object(
    endpoint: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "logs", 14)
    out = f"{ROOT}/failing"

    def fail(*_: object) -> None:
        raise LayoutError("another run was faster")

    with monkeypatch.context() as patched:
        patched.setattr(job, "publish", fail)
        with pytest.raises(LayoutError):
            job.ingest(NOBODY, [str(tmp_path / "logs")], out)
    left = client().list_objects_v2(Bucket=BUCKET, Prefix="failing/").get("Contents", [])
    assert [at["Key"] for at in left if at["Size"]] == []
    assert job.ingest(NOBODY, [str(tmp_path / "logs")], out).version == 1


class _Refusing(BaseHTTPRequestHandler):
    """What S3 answers to a request without a signature."""

    def do_GET(self) -> None:
        self.send_response(403 if "Authorization" not in self.headers else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_missing_credentials_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        remote._s3.cache_clear()
        with pytest.raises(DiskError, match="access is denied; give the driver and the executors"):
            find_logs(StoreDisk(), [f"{ROOT}/logs"])
    finally:
        remote._s3.cache_clear()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("place", "said", "reason"),
    [
        ("s3://b/k", "AWS Error NO_SUCH_BUCKET during ListObjectsV2", "there is no bucket b"),
        ("s3://b/k", "AWS Error ACCESS_DENIED during HeadObject", "AWS_ACCESS_KEY_ID"),
        ("gs://b/k", "Permission denied: 403", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfss://c@a/k", "AuthenticationFailed", "AZURE_CLIENT_ID"),
        (
            "s3://b/k",
            "AWS Error NETWORK_CONNECTION: curlCode: 7\nmore",
            "cannot be reached",
        ),
        ("s3://b/k", "something else\nand more", "something else; check the address"),
    ],
)
def test_a_stores_error_says_what_to_do_in_one_line(place: str, said: str, reason: str) -> None:
    text = remote.reason_of(place, said)
    assert reason in text and "\n" not in text


def test_no_object_stands_for_a_folder_that_is_empty(endpoint: dict[str, str]) -> None:
    """The client leaves one for the folder of each object that it removes."""

    def keys() -> list[str]:
        listed = client().list_objects_v2(Bucket=BUCKET, Prefix="swept/").get("Contents", [])
        return [at["Key"].removeprefix("swept/") for at in listed]

    folder = Folder(f"{ROOT}/swept")
    names = ("_data/a/x/1", "_data/a/x/2", "_data/b/x/1", "_data/b/y/1", "_runs/r")
    for name in names:
        folder.put(name, b"data")
    for name in names[1:]:
        folder.remove(name)
    assert {"_data/b/x/", "_data/b/y/", "_runs/"} <= set(keys())
    folder.sweep()
    assert [name for name in keys() if name.startswith(("_data/b", "_runs"))] == []
    assert folder.get(names[0]) == b"data"
    folder.remove(names[0])
    folder.sweep()
    folder.sweep()
    assert keys() == []
