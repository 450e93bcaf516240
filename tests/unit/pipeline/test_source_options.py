"""The options of the Spark data source: what each value means, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.pipeline.logs.survey import SPLIT_BYTES
from metaquorum.pipeline.source import OptionError, Options

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
