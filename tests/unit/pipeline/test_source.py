"""The data source's readers, called as Spark calls them, without Spark."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from metaquorum.pipeline.logs import follow
from metaquorum.pipeline.logs.follow import StreamOffset, ends_of
from metaquorum.pipeline.logs.places import LogPlace
from metaquorum.pipeline.logs.survey import SPLIT_BYTES
from metaquorum.pipeline.source import (
    MetadataLogReader,
    MetadataLogStreamReader,
    OptionError,
    Options,
    PiecePartition,
    SourceError,
)
from metaquorum.pipeline.stores.disk import StoreDisk
from tests.unit.pipeline.intervals.telling import batches
from tests.unit.pipeline.logs.test_logs import STORY, node
from tests.unit.pipeline.test_retention import FOLDER, Node, life

pytest.importorskip("pyspark", minversion="4.2")


def streamed(reader: MetadataLogStreamReader, start: StreamOffset, end: StreamOffset) -> list[int]:
    return [
        offset
        for partition in reader.partitions(start, end)
        for part in reader.read(partition)
        for offset in part.column("offset").to_pylist()
    ]


def spoilt(tmp_path: Path) -> tuple[Path, Any]:
    """A log with a bad batch length in the middle, and the batch."""
    log = node(tmp_path / "n1")
    file, batch = log / f"{0:020d}.log", batches(STORY)[12]
    data = bytearray(file.read_bytes())
    data[batch.position + 8 : batch.position + 12] = b"\x7f\xff\xff\xff"
    file.write_bytes(bytes(data))
    return log, batch


def test_a_stream_fails_at_damage_and_names_the_place(tmp_path: Path) -> None:
    log, batch = spoilt(tmp_path)
    reader = MetadataLogStreamReader(Options({"path": str(tmp_path / "n1")}))
    end = reader.latestOffset({}, None)
    assert ends_of(end)[str(log)].offset == 196
    with pytest.raises(SourceError, match=rf"\.log at byte {batch.position} .*onDamage to skip"):
        streamed(reader, {}, end)
    assert streamed(reader, {str(log): 100}, end) == list(range(100, 196))


def test_a_stream_goes_on_behind_damage_where_it_is_told_to(tmp_path: Path) -> None:
    log, batch = spoilt(tmp_path)
    reader = MetadataLogStreamReader(Options({"path": str(tmp_path / "n1"), "onDamage": "skip"}))
    lost = range(batch.header.base_offset, batch.header.next_offset)
    found = streamed(reader, {}, reader.latestOffset({str(log): 0}, None))
    assert found == [offset for offset in range(196) if offset not in lost]


def test_a_trigger_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that has grown by one batch, planning lists once and looks at the headers of that batch; what
    is read is that batch. A reader that is new, as after a restart, lists for itself."""
    made, log = batches(STORY), node(tmp_path / "n1", STORY[:12])
    reader = MetadataLogStreamReader(Options({"path": str(tmp_path / "n1")}))
    first = reader.latestOffset({}, None)
    streamed(reader, {}, first)
    with (log / f"{0:020d}.log").open("ab") as segment:
        segment.write(made[12].data)
    listed: list[str] = []
    headers: list[int] = []

    def places(self: Options, *given: Any) -> list[LogPlace]:
        listed.append(self.paths[0])
        return all_places(self, *given)

    def hopping(file: str, expected: int | None, position: int = 0) -> Any:
        for header in hop(file, expected, position):
            headers.append(header.base_offset)
            yield header

    all_places, hop = Options.places, follow.hop
    monkeypatch.setattr(Options, "places", places)
    monkeypatch.setattr(follow, "hop", hopping)
    second = reader.latestOffset(first, None)
    (partition,) = reader.partitions(first, second)
    assert len(listed) == 1
    assert set(headers) == {made[12].header.base_offset}
    assert isinstance(partition, PiecePartition) and partition.piece is not None
    assert partition.piece.position == made[12].position
    again = MetadataLogStreamReader(Options({"path": str(tmp_path / "n1")}))
    assert streamed(again, first, second) == list(
        range(made[12].header.base_offset, made[12].header.next_offset)
    )


def test_a_trigger_reads_identities_that_changed_and_opens_logs_that_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [tmp_path / f"n{number}" for number in range(1, 5)]
    made, opened = batches(STORY), list[str]()
    for number, home in enumerate(homes):
        node(home, STORY[:12])
        os.utime(home / "meta.properties", (1_700_000_000 + number,) * 2)
    reader = MetadataLogStreamReader(Options({"path": str(tmp_path)}))
    first = reader.latestOffset({}, None)

    def open_read(self: StoreDisk, path: str) -> Any:
        opened.append(str(Path(path).relative_to(tmp_path)))
        return plainly(self, path)

    plainly, hop = StoreDisk.open_read, follow.hop
    monkeypatch.setattr(StoreDisk, "open_read", open_read)
    monkeypatch.setattr(follow, "hop", lambda file, *at: opened.append(file) or hop(file, *at))
    assert (reader.latestOffset(first, None), opened) == (first, [])
    grown = homes[1] / "__cluster_metadata-0" / f"{0:020d}.log"
    with grown.open("ab") as segment:
        segment.write(made[12].data)
    (homes[2] / "meta.properties").write_text("version=1\nnode.id=3\ncluster.id=two\n")
    assert reader.latestOffset(first, None) != first
    assert set(opened) == {"n3/meta.properties", str(grown)}
    assert [place.cluster for place in reader._listed] == ["one", "one", "two", "one"]
    opened.clear()
    reader.latestOffset(first, None)
    assert "n3/meta.properties" in opened, "what changed just now may change again within its stamp"
    for home in homes[1:]:
        shutil.rmtree(home)
    reader.latestOffset(first, None)
    assert len(reader._identities._read) == 1


def test_a_stream_says_what_was_deleted_before_it_read_it(tmp_path: Path) -> None:
    log = node(tmp_path / "n1")
    made = batches(STORY)
    (log / f"{0:020d}.log").unlink()
    (log / f"{96:020d}.log").write_bytes(b"".join(at.data for at in made if at.header.base_offset >= 96))
    reader = MetadataLogStreamReader(Options({"path": str(tmp_path / "n1")}))
    end = reader.latestOffset({str(log): 46}, None)
    with pytest.raises(SourceError, match="from offset 46 to 95 were deleted"):
        streamed(reader, {str(log): 46}, end)
    assert streamed(reader, {}, end) == list(range(96, 196)), "a new stream begins where the log does"


def test_an_executor_that_sees_no_file_is_named(tmp_path: Path) -> None:
    """Batch reads, damage and streams alike: never nothing."""
    node(tmp_path / "n1")
    options = {"path": str(tmp_path / "n1")}
    batch, stream = MetadataLogReader(Options(options)), MetadataLogStreamReader(Options(options))
    damage = MetadataLogReader(Options({**options, "type": "damage"}))
    partitions: list[tuple[Any, Any]] = [(batch, batch.partitions()), (damage, damage.partitions())]
    partitions.append((stream, stream.partitions({}, stream.latestOffset({}, None))))
    (tmp_path / "n1").rename(tmp_path / "elsewhere")
    for reader, given in partitions:
        with pytest.raises(
            SourceError, match=rf"executor on .* cannot read {tmp_path}.*which the driver can"
        ):
            for partition in given:
                list(reader.read(partition))
    with pytest.raises(SourceError, match="nowhere"):
        PiecePartition(None, LogPlace(path="/nowhere", cluster="c", node_id=None)).require()


def test_relative_paths_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node(tmp_path / "n1")
    monkeypatch.chdir(tmp_path)
    options = Options({"path": "n1"})
    monkeypatch.chdir("/")
    assert options.paths == [str(tmp_path / "n1")]
    assert all(os.path.isabs(place.path) for place in options.places())
    with pytest.raises(OptionError, match="ondamage"):
        Options({"path": "n1", "onDamage": "ignore"})


def test_filters_on_cluster_and_node_leave_out_whole_logs(tmp_path: Path) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In

    for name in ("n1", "n2"):
        node(tmp_path / name)
    (tmp_path / "n2" / "meta.properties").write_text("version=1\nnode.id=2\ncluster.id=other\n")
    options = Options({"path": str(tmp_path)})

    def left(*filters: Any) -> tuple[set[str], list[Any]]:
        reader = MetadataLogReader(options)
        again = list(reader.pushFilters(list(filters)))
        pieces = [one.piece for one in reader.partitions() if isinstance(one, PiecePartition)]
        return {Path(piece.file).parts[-3] for piece in pieces if piece is not None}, again

    assert left() == ({"n1", "n2"}, [])
    assert left(EqualTo(("cluster",), "other")) == ({"n2"}, [])
    assert left(In(("node_id",), (1, 7))) == ({"n1"}, [])
    assert left(EqualTo(("cluster",), "other"), EqualTo(("node_id",), 1)) == (set(), [])
    unknown = GreaterThan(("node_id",), 1)
    assert left(unknown) == ({"n1", "n2"}, [unknown])


def two_logs(tmp_path: Path) -> list[Node]:
    """Two logs of five segments, of which the second has damage in the middle."""
    nodes = [Node(tmp_path / f"n{seed}", life(seed), tmp_path / "seen" / f"n{seed}") for seed in (1, 2)]
    for at in nodes:
        for count in (10, 3, 20, 1, 5):
            at.roll()
            at.grow(count)
        at.write()
    segment = sorted((nodes[1].home / FOLDER).glob("*.log"))[2]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    return nodes


@pytest.mark.parametrize(
    "limit",
    [
        {},
        {"maxBytesPerTrigger": "1"},
        {"maxBytesPerTrigger": "700"},
        {"maxBytesPerTrigger": "99999999"},
        {"maxFilesPerTrigger": "1"},
        {"maxFilesPerTrigger": "3"},
    ],
    ids=str,
)
@pytest.mark.parametrize("now", [False, True], ids=["as it grows", "available now"])
def test_micro_batches_within_a_limit_have_every_record_once(
    tmp_path: Path, limit: dict[str, str], now: bool
) -> None:
    """While the logs grow. Under availableNow, those that were there at the start, also if the first
    micro-batch is repeated by another reader, as after a crash before its commit."""
    nodes = two_logs(tmp_path)
    options = Options({"paths": json.dumps([str(at.home) for at in nodes]), "onDamage": "skip", **limit})
    all_at_once = MetadataLogStreamReader(options)
    expected = streamed(all_at_once, {}, all_at_once.latestOffset({}, ReadAllAvailable()))
    reader, start, found, sizes = MetadataLogStreamReader(options), StreamOffset(), list[int](), list[int]()
    if now:
        reader.prepareForTriggerAvailableNow()
    while True:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            break
        taken = streamed(reader, start, end)
        found += taken
        sizes.append(len(taken))
        if len(sizes) == 1:
            assert streamed(MetadataLogStreamReader(options), start, end) == taken
            reader = MetadataLogStreamReader(options)
            if now:
                reader.prepareForTriggerAvailableNow()
            for at in nodes:
                at.grow(4)
                with sorted((at.home / FOLDER).glob("*.log"))[-1].open("ab") as segment:
                    segment.write(b"".join(batch.data for batch in at.segments[-1][-4:]))
            if not now:
                expected = streamed(all_at_once, {}, all_at_once.latestOffset({}, ReadAllAvailable()))
        start = end
    assert sorted(found) == sorted(expected)
    assert (len(sizes) > 2) == (limit not in ({}, {"maxBytesPerTrigger": "99999999"}))


def test_one_limit_of_a_stream_is_given_at_a_time() -> None:
    for given, said in (
        ({"maxBytesPerTrigger": "1", "maxFilesPerTrigger": "1"}, "not both"),
        ({"maxBytesPerTrigger": "0"}, "at least 1"),
        ({"maxFilesPerTrigger": "-1"}, "not a number"),
    ):
        with pytest.raises(OptionError, match=said):
            Options({"path": "/logs", **given})


# The options of the Spark data source: what each value means, and what is said of a wrong one.


PATH = {"path": "/logs"}


def value(options: Options, name: str) -> Any:
    return getattr(options.selection if hasattr(options.selection, name) else options, name)


@pytest.mark.parametrize(
    ("given", "name", "found", "usual"),
    [
        ({"path": "/a, /b,"}, "paths", ["/a", "/b"], ["/logs"]),
        ({"path": "/a", "paths": '["/b,c", "/d"]'}, "paths", ["/b,c", "/d"], ["/logs"]),
        ({"paths": "/b,c"}, "paths", ["/b,c"], ["/logs"]),
        ({"type": "DAMAGE"}, "type", "damage", "all"),
        ({"type": "All"}, "type", "all", "all"),
        ({"type": "topic_record"}, "type", "TOPIC_RECORD", "all"),
        ({"types": "topic_record, ,PARTITION_RECORD"}, "types", ("TOPIC_RECORD", "PARTITION_RECORD"), ()),
        ({"fromTime": "1970-01-01T00:00:01Z"}, "from_ms", 1_000, None),
        ({"toTime": "1970-01-01T00:00:02Z"}, "to_ms", 2_000, None),
        ({"fromOffset": "0"}, "from_offset", 0, None),
        ({"toOffset": "7"}, "to_offset", 7, None),
        ({"secrets": "TRUE"}, "secrets", True, False),
        ({"checkpoints": "only"}, "checkpoints", "only", "false"),
        ({"nodes": "one"}, "one_history", True, False),
        ({"cluster": "c"}, "cluster", "c", None),
        ({"splitBytes": "5"}, "split_bytes", 5, SPLIT_BYTES),
        ({"splitBytes": "0"}, "split_bytes", SPLIT_BYTES, SPLIT_BYTES),
        ({"onDamage": "skip"}, "skips_damage", True, False),
    ],
)
def test_an_option_means_one_thing(given: dict[str, str], name: str, found: Any, usual: Any) -> None:
    usually, now = Options(PATH), Options({**PATH, **given})
    assert (value(usually, name), value(now, name)) == (usual, found)
    names = {
        "paths",
        "type",
        "checkpoints",
        "one_history",
        "cluster",
        "split_bytes",
        "skips_damage",
        "dialect",
    }
    names |= {"types", "from_ms", "to_ms", "from_offset", "to_offset", "secrets"}
    assert {each for each in names - {name} if value(usually, each) != value(now, each)} == set()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tyype": "x"}, "metadata_log has no option 'tyype'; it has path, "),
        ({"type": "nothing"}, "; or all, or damage"),
        ({"types": "topic_record,nothing"}, "; or all, or damage"),
        ({"type": "damage", "types": "topic_record"}, "the option types filters the wide view"),
        ({"path": " , "}, "metadata_log needs a path"),
        ({"paths": "[]"}, "metadata_log needs a path"),
        ({"fromTime": "soon"}, "fromtime: "),
        ({"toTime": "soon"}, "totime: "),
        *[
            ({"fromOffset": text}, f"fromoffset: '{text}' is not a number of 0 or more")
            for text in ("-1", "²", "")
        ],
        ({"splitBytes": "1k"}, "splitbytes: '1k' is not a number"),
        ({"secrets": "yes"}, "secrets: 'yes' is not one of false, true"),
        ({"checkpoints": "all"}, "checkpoints: 'all' is not one of false, true, only"),
        ({"nodes": "two"}, "nodes: 'two' is not one of all, one"),
        ({"onDamage": "x"}, "ondamage: 'x' is not one of fail, skip"),
        ({"dialect": "latin"}, "; or kraft"),
    ],
)
def test_a_wrong_option_is_one_line(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as wrong:
        Options({**PATH, **given})
    assert text in str(wrong.value) and "\n" not in str(wrong.value)
