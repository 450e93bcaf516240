"""The folder of tables: what readers see before, during and after a publish, after a kill, and of two runs.

The store of these tests fails on purpose where a protocol must not need it: it cannot rename, move or link,
and its listings may lag behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs as fs
import pytest

from metaquorum.pipeline.ingest.layout import (
    FORMAT,
    IngestRun,
    LayoutError,
    Manifest,
    WrittenFile,
    abandon,
    begin,
    escape,
    load_manifest,
    publish,
)
from metaquorum.pipeline.stores.folder import Folder


class Bare(Folder):
    """A folder in a store that has objects and nothing else. `hidden`: names that no listing shows yet."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.settle_seconds = 0.0
        self.hidden: set[str] = set()

    def system(self) -> tuple[Any, str]:
        return fs.PyFileSystem(_Objects(fs.LocalFileSystem())), self.root

    def names(self, folder: str, *, deep: bool = False) -> list[tuple[str, int]]:
        return [at for at in super().names(folder, deep=deep) if at[0] not in self.hidden]


class _Objects(fs.FileSystemHandler):
    """Object stores neither rename nor append."""

    def __init__(self, below: Any) -> None:
        self._below = below

    def get_type_name(self) -> str:
        return "objects"

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return list(self._below.get_file_info(paths))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        return list(self._below.get_file_info(selector))

    def open_input_file(self, path: str) -> Any:
        return self._below.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._below.open_output_stream(path)

    def delete_file(self, path: str) -> None:
        self._below.delete_file(path)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this store has objects and nothing else")

    move = copy_file = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    open_append_stream = open_input_stream = normalize_path = _refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bare:
    def refused(*_: object, **__: object) -> None:
        raise OSError(95, "not supported by this store")

    for call in ("rename", "replace", "link", "symlink"):
        monkeypatch.setattr(f"os.{call}", refused)
    return Bare(tmp_path / "out")


def put(folder: Folder, run: IngestRun, number: int, *, final: bool = True) -> WrittenFile:
    path = f"_data/topics/cluster=c/date=2026-01-01/{run.id}-{number}.parquet"
    folder.put(path, f"rows {number}".encode())
    return WrittenFile(table="topics", cluster="c", date="2026-01-01", path=path, rows=1, final=final)


def version(folder: Folder, number: int, kept: list[WrittenFile]) -> list[WrittenFile]:
    run = begin(folder, load_manifest(folder))
    files = [*kept, put(folder, run, number)]
    publish(folder, run, Manifest(files=files))
    return files


def seen(folder: Folder) -> list[str]:
    return [folder.get(file.path).decode() for file in load_manifest(folder).files]


def objects(folder: Folder) -> set[str]:
    return {name for name, _ in folder.names("", deep=True)}


def test_a_version_shares_what_it_keeps_and_old_ones_are_removed(folder: Bare) -> None:
    first = version(folder, 1, [])
    assert seen(folder) == ["rows 1"]
    second = version(folder, 2, first)
    assert seen(folder) == ["rows 1", "rows 2"]
    opened = load_manifest(folder).files
    third = version(folder, 3, second[1:])
    assert seen(folder) == ["rows 2", "rows 3"]
    assert [folder.get(file.path) for file in opened], "a reader of the version before can finish"
    version(folder, 4, third[1:])
    assert load_manifest(folder).version == 4
    assert len([name for name in objects(folder) if name.startswith("_versions/")]) == 2
    assert first[0].path not in objects(folder), "only a version that is gone needed it"


def test_a_run_that_was_killed_changes_nothing_and_the_next_removes_what_it_left(folder: Bare) -> None:
    first = version(folder, 1, [])
    killed = begin(folder, load_manifest(folder))
    left = put(folder, killed, 2)
    folder.put(f"_runs/{killed.id}", msgspec.json.encode(msgspec.structs.replace(killed, process=2**22 + 1)))
    assert seen(folder) == ["rows 1"]
    version(folder, 3, first)
    assert seen(folder) == ["rows 1", "rows 3"]
    assert left.path not in objects(folder)


def test_a_run_that_is_still_writing_is_left_alone(folder: Bare) -> None:
    slow = begin(folder, load_manifest(folder))
    written = put(folder, slow, 1)
    version(folder, 2, [])
    assert written.path in objects(folder)


def test_half_a_manifest_publishes_nothing(folder: Bare) -> None:
    first = version(folder, 1, [])
    (name,) = [name for name in objects(folder) if name.startswith("_versions/")]
    half = folder.get(name)[:-20]
    folder.put("_versions/000000000002-00ff.json", half)
    assert (load_manifest(folder).version, seen(folder)) == (1, ["rows 1"])
    version(folder, 2, first)
    assert (load_manifest(folder).version, seen(folder)) == (3, ["rows 1", "rows 2"])


def test_of_two_runs_at_once_one_is_told_that_it_lost(folder: Bare) -> None:
    first = version(folder, 1, [])
    base = load_manifest(folder)
    one, other = begin(folder, base), begin(folder, base)
    of_one, of_other = put(folder, one, 2), put(folder, other, 3)
    publish(folder, one, Manifest(files=[*first, of_one]))
    with pytest.raises(LayoutError, match=r"another run published version 2 .* this run changed nothing"):
        publish(folder, other, Manifest(files=[*first, of_other]))
    abandon(folder, other)
    assert seen(folder) == ["rows 1", "rows 2"]
    assert of_other.path not in objects(folder)
    assert not [name for name in objects(folder) if name.startswith("_runs/")]


def test_two_manifests_of_one_version_that_no_one_saw_coming(
    folder: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing lags: each run sees the other's manifest only after its own is written."""
    base = load_manifest(folder)
    one, other = begin(folder, base), begin(folder, base)
    files = {run.id: put(folder, run, number) for number, run in enumerate((one, other))}
    folder.hidden = {f"_versions/000000000001-{one.id}.json"}
    publish(folder, one, Manifest(files=[files[one.id]]))
    monkeypatch.setattr("time.sleep", lambda seconds: folder.hidden.clear())
    with pytest.raises(LayoutError, match="another run published version 1"):
        publish(folder, other, Manifest(files=[files[other.id]]))
    assert seen(folder) == ["rows 0"]


def test_a_listing_that_lags_shows_the_version_before(folder: Bare) -> None:
    first = version(folder, 1, [])
    version(folder, 2, first)
    newest = next(name for name in objects(folder) if name.startswith("_versions/000000000002"))
    folder.hidden = {newest}
    assert seen(folder) == ["rows 1"]


def test_a_folder_of_something_else_is_refused(folder: Bare) -> None:
    folder.put("photos/one.jpg", b"")
    with pytest.raises(LayoutError, match="holds photos and no tables"):
        load_manifest(folder)


def test_tables_of_another_release_say_what_to_do(folder: Bare) -> None:
    newer = msgspec.json.encode({"format": FORMAT + 1, "something": "else"})
    folder.put("_versions/000000000001-00ff.json", newer)
    with pytest.raises(LayoutError, match="a newer release: upgrade this one"):
        load_manifest(folder)
    other = Bare(Path(folder.root).parent / "old")
    other.put("versions/1/_state/manifest.json", b"{}")
    with pytest.raises(LayoutError, match="the tables of an older release; give --out a new"):
        load_manifest(other)
    other = Bare(Path(folder.root).parent / "broken")
    other.put("_versions/000000000001-00ff.json", b"{")
    with pytest.raises(LayoutError, match="cannot be read, and no older version"):
        load_manifest(other)


def test_names_of_partitions_are_written_as_spark_does() -> None:
    assert escape("file:/a b=c") == "file%3A%2Fa b%3Dc"
    assert escape("ycvx3IyUTJ2ANvCy7N_YyA") == "ycvx3IyUTJ2ANvCy7N_YyA"
