"""Inputs that a log command never expects: it ends with an answer or one line, and soon."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.main import main
from metaquorum.storage.batches.format import MAX_OFFSET
from metaquorum.storage.disk.posix import PosixDisk
from tests.unit.metadata.made_logs import STORY, encoded
from tests.unit.pipeline.stores.endpoint import BUCKET, s3_endpoint, upload

SEGMENT = "00000000000000000000.log"
TOOLS = (
    ["summary"],
    ["timeline"],
    ["check"],
    ["dump"],
    ["state"],
    ["history"],
    ["bisect", "--check", "min-isr"],
    ["archive", "--dry-run"],
)


def ask(*words: str) -> Result:
    return CliRunner().invoke(main, ["log", *words])


def one_line(result: Result) -> str:
    """The message of a command that refuses its input."""
    assert isinstance(result.exception, SystemExit) and result.exit_code == 1, result.exception
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node_directory(tmp_path / "n")


def make_node_directory(home: Path) -> Path:
    directory = home / "__cluster_metadata-0"
    directory.mkdir(parents=True)
    (directory / SEGMENT).write_bytes(b"".join(encoded(STORY)))
    return home


@pytest.mark.skipif(os.path.supports_unicode_filenames, reason="names of files are Unicode here")
def test_names_that_are_not_utf_8_are_refused_in_one_line(node: Path) -> None:
    odd = os.fsdecode(b"x\xe9")
    (node / "__cluster_metadata-0" / odd).write_bytes(b"")
    assert r"x\xe9' is not UTF-8 text" in one_line(ask("archive", str(node), "--to", str(node / "a.mqa")))
    assert not (node / "a.mqa").exists()
    moved = node.rename(node.parent / odd)
    assert "is not UTF-8 text; rename it" in one_line(ask("check", "--json", str(moved)))


@pytest.mark.parametrize("words", TOOLS, ids=lambda words: words[0])
@pytest.mark.parametrize("named", [True, False])
def test_the_largest_offset_is_damage(node: Path, named: bool, words: list[str]) -> None:
    directory = node / "__cluster_metadata-0"
    if named:
        (directory / SEGMENT).rename(directory / f"{MAX_OFFSET:020d}.log")
    else:
        batches = encoded(STORY)
        batches[3] = MAX_OFFSET.to_bytes(8, "big") + batches[3][8:]
        (directory / SEGMENT).write_bytes(b"".join(batches))
    result = ask(*words[:1], str(node), *words[1:])
    assert isinstance(result.exception, SystemExit) or result.exit_code == 0, result.exception
    assert named is ("holds no .log segment" in result.stderr)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
@pytest.mark.parametrize("words", TOOLS, ids=lambda words: words[0])
def test_a_fifo_is_not_waited_for(node: Path, words: list[str]) -> None:
    path = node / "__cluster_metadata-0" / SEGMENT
    path.unlink()
    os.mkfifo(path)
    assert "it is not a regular file" in one_line(ask(*words[:1], str(node), *words[1:]))


def test_links_to_what_holds_them_are_not_followed(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    try:
        for target in ("/", str(tmp_path), str(inner)):
            (inner / f"to{target.replace('/', '_')}").symlink_to(target)
    except OSError:
        pytest.skip("this user may not make links here")
    assert "holds no metadata log" in one_line(ask("summary", str(tmp_path / "a")))
    make_node_directory(tmp_path / "n")
    (inner / "node").symlink_to(tmp_path / "n")
    assert ask("state", str(tmp_path / "a")).exit_code == 0, "a link to a node is"


def zipped(path: Path, entries: dict[str, bytes], mode: int = 0) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, content)
    return str(path)


def test_a_zip_is_read_as_a_directory_and_safely(tmp_path: Path, node: Path) -> None:
    data = (node / "__cluster_metadata-0" / SEGMENT).read_bytes()
    name = f"n/__cluster_metadata-0/{SEGMENT}"
    packed = zipped(tmp_path / "z.zip", {name: data, "n/readme": b"x"})
    assert ask("state", packed).stdout == ask("state", str(node)).stdout
    for entries, mode, text in (
        ({f"../{name}": data}, 0, "a path outside the archive"),
        ({f"/{name}": data}, 0, "a path outside the archive"),
        ({name: b"/etc"}, stat.S_IFLNK | 0o777, "holds a link"),
        ({"n/readme": b""}, 0, "holds no metadata log"),
    ):
        assert text in one_line(ask("state", zipped(tmp_path / "odd.zip", entries, mode)))
    (tmp_path / "cut.zip").write_bytes(Path(packed).read_bytes()[:-30])
    assert "is not a complete archive" in one_line(ask("state", str(tmp_path / "cut.zip")))


@pytest.fixture(scope="module")
def _store() -> Iterator[None]:
    for needed in ("pyarrow", "moto"):
        pytest.importorskip(needed)
    with s3_endpoint() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.mark.usefixtures("_store")
def test_logs_in_an_object_store_are_read(node: Path) -> None:
    upload(node, "logs/n")
    for words in (["state"], ["summary"], ["check"], ["why", "topic/orders"], ["dump"]):
        near = ask(words[0], str(node), *words[1:])
        far = ask(words[0], f"s3://{BUCKET}/logs", *words[1:])
        assert (
            far.exit_code,
            far.stdout.replace(f"s3://{BUCKET}/logs/n", str(node)).replace(f"s3://{BUCKET}/logs", str(node)),
        ) == (near.exit_code, near.stdout)
    assert "does not exist; check the path" in one_line(ask("state", f"s3://{BUCKET}/nothing"))
    assert "ftp is not a store" in one_line(ask("state", "ftp://host/logs"))


@pytest.mark.parametrize("option", [("--truststore", "ca.pem"), ("--timeout", "3"), ("--rate", "1")])
def test_an_option_for_a_running_cluster_is_refused_beside_paths(node: Path, option: tuple[str, str]) -> None:
    result = ask("check", str(node), *option)
    assert result.exit_code == 2
    assert f"{option[0]} is for a running cluster: give --bootstrap instead of paths" in result.stderr


def test_a_password_that_nobody_can_type_is_one_line() -> None:
    words = ["users", "scram", "set", "alice", "--bootstrap", "127.0.0.1:1"]
    result = CliRunner().invoke(main, words, input="")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(
        "metaquorum: standard input ended before there was a password; --password-stdin reads it"
    )


@pytest.mark.parametrize("is_whole", [False, True], ids=["segments", "directory"])
@pytest.mark.parametrize("words", TOOLS[:-1], ids=" ".join)  # an archive takes what is there
def test_a_log_that_is_deleted_meanwhile_gives_its_whole_answer_or_a_line(
    words: list[str], is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted before each of the tool's calls of the disk, once the first one has seen it."""
    calls = limit = 0
    home = tmp_path / "n"

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(PosixDisk, name)

        def call(self: PosixDisk, path: str) -> Any:
            nonlocal calls
            calls += 1
            if calls == limit:
                for segment in home.rglob("*.log"):
                    segment.unlink()
                if is_whole:
                    shutil.rmtree(home, ignore_errors=True)
            return real(self, path)

        return call

    for name in ("open_read", "list_directory"):
        monkeypatch.setattr(PosixDisk, name, counted(name))

    def answer() -> Result:
        nonlocal calls
        calls = 0
        shutil.rmtree(home, ignore_errors=True)
        node = make_node_directory(home)
        return ask(words[0], str(node), *words[1:])

    whole = answer()
    count = calls
    for limit in range(2, count + 1):
        result = answer()
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if (result.exit_code, result.stdout) != (whole.exit_code, whole.stdout):
            assert result.exit_code == 1 and result.stderr.startswith("metaquorum: "), (limit, result.stdout)
