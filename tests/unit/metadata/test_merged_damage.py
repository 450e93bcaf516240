"""Every kind of damage in one of three nodes, in every order: the merged log is that of the sound nodes, and
the damaged place is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.cli.log.input.nodes import fault_lines
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.nodes.matching import check_quorum
from metaquorum.metadata.inspect.nodes.merge import NodesReport, compare_nodes
from metaquorum.metadata.inspect.nodes.merged_log import MergedLog
from metaquorum.metadata.inspect.timeline.story import events
from metaquorum.metadata.records import types as r
from metaquorum.storage.batches.batch import RecordBatch
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.log.reader import Damage
from metaquorum.storage.log.segment import segment_name
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.metadata.made_logs import ORDERS, STORY, Batch, encoded, leads, make_node, memory_disk, write

PER_SEGMENT = 40
TRUTH: list[Batch] = [
    *STORY,
    *((2, [r.NoOpRecord()]) for _ in range(60)),
    (4, [leads(3002)]),
    (4, [r.PartitionChangeRecord(1, ORDERS, leader=1)]),
    *((4, [r.NoOpRecord()]) for _ in range(18)),
    (5, [leads(3000)]),
    *((5, [r.ConfigRecord(2, "orders", "retention.ms", str(at))]) for at in range(4)),
    *((5, [r.NoOpRecord()]) for _ in range(40)),
]
BYTES = encoded(TRUTH)
SEGMENTS = [BYTES[at : at + PER_SEGMENT] for at in range(0, len(BYTES), PER_SEGMENT)]
BASES = [int.from_bytes(part[0][:8], "big") for part in SEGMENTS]
FIRST, MIDDLE, LAST = 0, 1, len(SEGMENTS) - 1

Node = dict[str, bytes]
"""The segments and indexes of a node's log, by file name."""


def index_name(base: int) -> str:
    return segment_name(base).replace(".log", ".index")


def sound_node() -> Node:
    node = {}
    for base, part in zip(BASES, SEGMENTS, strict=True):
        node[segment_name(base)] = b"".join(part)
        node[index_name(base)] = b""
    return node


Damages = Callable[[Node], None]
TABLE: dict[str, Damages] = {}


def lost(*numbers: int, index: bool) -> Damages:
    def damage(node: Node) -> None:
        for number in numbers:
            del node[segment_name(BASES[number])]
            if not index:
                del node[index_name(BASES[number])]

    return damage


def rewritten(number: int, change: Callable[[list[bytes]], list[bytes]], *, index: bool = True) -> Damages:
    """Another list of batches in one segment."""

    def damage(node: Node) -> None:
        node[segment_name(BASES[number])] = b"".join(change(list(SEGMENTS[number])))
        if not index:
            del node[index_name(BASES[number])]

    return damage


def flipped(number: int, batch: int, byte: int, mask: int = 1) -> Damages:
    def change(batches: list[bytes]) -> list[bytes]:
        changed = bytearray(batches[batch])
        changed[byte] ^= mask
        batches[batch] = bytes(changed)
        return batches

    return rewritten(number, change)


def _moved(batch: bytes) -> bytes:
    """With another base offset."""
    return batch[:5] + b"\x01" + batch[6:]


def swapped(one: int, other: int) -> Callable[[list[bytes]], list[bytes]]:
    def change(batches: list[bytes]) -> list[bytes]:
        batches[one], batches[other] = batches[other], batches[one]
        return batches

    return change


def segments_swapped(node: Node) -> None:
    one, other = segment_name(BASES[FIRST]), segment_name(BASES[MIDDLE])
    node[one], node[other] = node[other], node[one]


def renamed(node: Node) -> None:
    node[segment_name(BASES[MIDDLE] + 3)] = node.pop(segment_name(BASES[MIDDLE]))


for index in (True, False):
    how = "with" if index else "without"
    TABLE |= {
        f"first segment lost, {how} its index": lost(FIRST, index=index),
        f"middle segment lost, {how} its index": lost(MIDDLE, index=index),
        f"last segment lost, {how} its index": lost(LAST, index=index),
        f"first two segments lost, {how} their indexes": lost(FIRST, MIDDLE, index=index),
        f"every other segment lost, {how} its index": lost(FIRST, 2, index=index),
        f"middle segment cut inside a batch, {how} its index": rewritten(
            MIDDLE, lambda batches: [*batches[:20], batches[20][:30]], index=index
        ),
        f"middle segment cut at a batch, {how} its index": rewritten(
            MIDDLE, lambda batches: batches[:20], index=index
        ),
        f"middle segment empty, {how} its index": rewritten(MIDDLE, lambda _: [], index=index),
        f"last segment rolled back, {how} its index": rewritten(
            LAST, lambda batches: batches[:2], index=index
        ),
    }
TABLE |= {
    "first segment cut": rewritten(FIRST, lambda batches: batches[:1]),
    "last segment cut inside a batch": rewritten(LAST, lambda batches: [*batches[:4], batches[4][:70]]),
    "beginning cut off": rewritten(FIRST, lambda batches: batches[5:]),
    "a batch cut out": rewritten(MIDDLE, lambda batches: batches[:7] + batches[8:]),
    "a batch doubled": rewritten(MIDDLE, lambda batches: [*batches[:8], *batches[7:]]),
    "first batch doubled": rewritten(FIRST, lambda batches: [batches[0], *batches]),
    "last batch doubled": rewritten(LAST, lambda batches: [*batches, batches[-1]]),
    "ten batches doubled": rewritten(MIDDLE, lambda batches: [*batches[:20], *batches[10:]]),
    "a segment doubled": rewritten(MIDDLE, lambda batches: batches * 2),
    "the log's first batch again at its end": rewritten(LAST, lambda batches: [*batches, BYTES[0]]),
    "records flipped": flipped(MIDDLE, 9, 70),
    "CRC flipped": flipped(MIDDLE, 9, 18),
    "length flipped": flipped(MIDDLE, 9, 11, 4),
    "magic flipped": flipped(MIDDLE, 9, 16),
    "base offset flipped up": flipped(MIDDLE, 9, 5),
    "base offset flipped down": flipped(MIDDLE, 9, 7, 32),
    "base offset of the first batch flipped": flipped(FIRST, 0, 6),
    "base offset of the last batch flipped up": flipped(LAST, -1, 6),
    "base offset of the last batch flipped down": flipped(LAST, -1, 7, 128),
    "base offsets of two batches flipped": rewritten(
        MIDDLE,
        lambda batches: [_moved(batch) if at in (9, 16) else batch for at, batch in enumerate(batches)],
    ),
    "two base offsets in a row flipped": rewritten(
        MIDDLE,
        lambda batches: [
            *batches[:9],
            *(batch[:5] + b"\x07" + batch[6:] for batch in batches[9:11]),
            *batches[11:],
        ],
    ),
    "epoch flipped up": flipped(MIDDLE, 9, 15, 1),
    "epoch flipped far up": flipped(MIDDLE, 9, 12, 64),
    "epoch flipped below zero": flipped(MIDDLE, 9, 12, 128),
    "epoch flipped down": flipped(MIDDLE, 9, 15, 2),
    "epoch of the first batch flipped": flipped(FIRST, 0, 15, 16),
    "epoch of the last batch flipped up": flipped(LAST, -1, 15, 8),
    "epoch of the last batch flipped down": flipped(LAST, -1, 15, 4),
    "epoch before an election flipped": flipped(FIRST, 9, 15, 8),
    "epoch of an election flipped up": flipped(MIDDLE, 75 - PER_SEGMENT - 4, 15, 1),
    "epochs of three batches flipped": rewritten(
        MIDDLE,
        lambda batches: [
            *batches[:9],
            *(batch[:15] + b"\x03" + batch[16:] for batch in batches[9:12]),
            *batches[12:],
        ],
    ),
    "two batches swapped": rewritten(MIDDLE, swapped(9, 10)),
    "two distant batches swapped": rewritten(MIDDLE, swapped(3, 30)),
    "two segments swapped": segments_swapped,
    "a segment renamed": renamed,
    "zeros between batches": rewritten(MIDDLE, lambda batches: [*batches[:9], bytes(100), *batches[9:]]),
    "zeros over batches": rewritten(MIDDLE, lambda batches: [*batches[:9], bytes(300), *batches[13:]]),
    "garbage behind the end": rewritten(LAST, lambda batches: [*batches, b"garbage" * 20]),
}


HAS_NO = "controller-3000 has no offset"
HEADER = "controller-3000: the header of the batch at offset"
PLACE = "controller-3000: out of place after offset"
NAMED = {
    "first segment lost": f"{HAS_NO}s 0 to 43: read from ",
    "middle segment lost": f"{HAS_NO}s 44 to 83: read from ",
    "last segment lost": "controller-3000 ends 16 before the others",
    "first two segments lost": f"{HAS_NO}s 0 to 83: read from ",
    "every other segment lost": f"{HAS_NO}s 84 to 123: read from ",
    "middle segment cut inside a batch": f"{HAS_NO}s 64 to 83: read from ",
    "middle segment cut at a batch": f"{HAS_NO}s 64 to 83: read from ",
    "middle segment empty": f"{HAS_NO}s 44 to 83: read from ",
    "last segment rolled back": "controller-3000 ends 14 before the others",
    "first segment cut": f"{HAS_NO}s 1 to 43: read from ",
    "last segment cut inside a batch": "00124.log at byte 288 (offset 128): expected a batch of 72",
    "beginning cut off": f"{HAS_NO}s 0 to 6: read from ",
    "a batch cut out": f"{HAS_NO} 51: read from ",
    "a batch doubled": f"{PLACE} 50, and left out: offset 51 of epoch 2",
    "first batch doubled": "controller-3000: out of place, and left out: offset 0 of epoch 1",
    "last batch doubled": f"{PLACE} 138, and left out: offset 139 of epoch 5",
    "ten batches doubled": f"{PLACE} 53, and left out: offsets 54 to 63 of epoch 2",
    "a segment doubled": f"{PLACE} 43, and left out: offsets 44 to 83 of epoch 2",
    "the log's first batch again at its end": f"{PLACE} 139, and left out: offset 0 of epoch 1",
    "records flipped": f"{HAS_NO} 53: read from ",
    "CRC flipped": f"{HAS_NO} 53: read from ",
    "length flipped": f"{HAS_NO} 53: read from ",
    "magic flipped": f"{HAS_NO} 53: read from ",
    "base offset flipped up": f"{HEADER} 53 is damaged: base offset 65589 is put back to 53",
    "base offset flipped down": f"{HEADER} 53 is damaged: base offset 21 is put back to 53",
    "base offset of the first batch flipped": f"{HEADER} 0 is damaged: base offset 256 is put back to 0",
    "base offset of the last batch flipped up": f"{HEADER} 139 is damaged: base offset 395 is put back",
    "base offset of the last batch flipped down": f"{PLACE} 138, and left out: offset 11 of epoch 5",
    "base offsets of two batches flipped": f"{HEADER} 60 is damaged: base offset 65596 is put back to 60",
    "two base offsets in a row flipped": f"{PLACE} 52, and left out: offsets 458805 to 458806 of epoch 2",
    "epoch flipped up": f"{HEADER} 53 is damaged: leader epoch 3 is put back to 2",
    "epoch flipped far up": f"{HEADER} 53 is damaged: leader epoch 1073741826 is put back to 2",
    "epoch flipped below zero": f"{HAS_NO} 53: read from ",
    "epoch flipped down": f"{HEADER} 53 is damaged: leader epoch 0 is put back to 2",
    "epoch of the first batch flipped": f"{HEADER} 0 is damaged: leader epoch 17 is put back to 1",
    "epoch of the last batch flipped up": f"{HEADER} 139 is damaged: leader epoch 13 is put back to 5",
    "epoch of the last batch flipped down": f"{PLACE} 138, and left out: offset 139 of epoch 1",
    "epoch before an election flipped": f"{HEADER} 13 is damaged: leader epoch 10 is put back to 2",
    "epoch of an election flipped up": f"{HEADER} 75 is damaged: leader epoch 5 is put back to 4",
    "epochs of three batches flipped": f"{HEADER} 55 is damaged: leader epoch 3 is put back to 2",
    "two batches swapped": f"{PLACE} 52, and left out: offset 54 of epoch 2",
    "two distant batches swapped": f"{PLACE} 73, and left out: offset 47 of epoch 2",
    "two segments swapped": f"{HAS_NO}s 44 to 83: read from ",
    "a segment renamed": "0.log at byte 3359 (offset 44): expected a segment at offset 44, found 47",
    "zeros between batches": "00044.log at byte 648 (offset 53): expected magic 2, found 0",
    "zeros over batches": f"{HAS_NO}s 53 to 56: read from ",
    "garbage behind the end": "00124.log at byte 1152 (offset 140): expected magic 2, found 114",
}
"""What is said of each, whatever becomes of the index."""


def lines_about(report: NodesReport, name: str) -> str:
    (node,) = (node for node in report.nodes if node.name == name)
    behind = [f"{name} ends {node.behind} before the others"] if node.behind else []
    return "\n".join([*fault_lines(report), *behind])


def answers(log: MetadataLog) -> list[str]:
    problems: list[str] = []
    answer = [str(event) for event in events(log, problems.append)]
    return [*answer, *problems]


def content(log: MetadataLog) -> list[bytes]:
    return [bytes(item.data) for item in log.batches() if isinstance(item, RecordBatch)]


def node_of(disk: FaultyDisk, number: int, files: Node) -> MetadataLog:
    log = make_node(disk, TRUTH, home=f"/q/controller-{number}", node_id=number, per_segment=PER_SEGMENT).log
    for base in BASES:
        disk.remove(join(log.directory, segment_name(base)))
    for name, data in files.items():
        write(disk, join(log.directory, name), data)
    return log


def test_the_files_of_a_sound_node_are_what_a_node_writes() -> None:
    log = make_node(memory_disk(), TRUTH, per_segment=PER_SEGMENT).log
    assert log.segments == BASES
    assert all(
        read_file(log.disk, join(log.directory, name)) == data
        for name, data in sound_node().items()
        if name.endswith(".log")
    )


@pytest.mark.parametrize("name", TABLE)
def test_the_merged_log_is_that_of_the_sound_nodes_and_the_damaged_place_is_named(name: str) -> None:
    disk = memory_disk()
    files = sound_node()
    TABLE[name](files)
    damaged = node_of(disk, 3000, files)
    sound = [node_of(disk, number, sound_node()) for number in (3001, 3002)]
    wanted = answers(sound[0])
    for place in range(3):
        logs = [*sound[:place], damaged, *sound[place:]]
        report = compare_nodes(logs)
        log = MergedLog(logs, report, "all")
        assert content(log) == BYTES
        assert not [item for item in log.batches() if isinstance(item, Damage)]
        for start in (BASES[1], BASES[1] + 9, BASES[2] - 1, BASES[-1] + 3):
            found = next(item for item in log.runs(start) if not isinstance(item, Damage))
            header = found.header if isinstance(found, RecordBatch) else next(iter(found.batches())).header
            assert header.base_offset <= start < header.next_offset
        assert answers(log) == wanted
        assert (report.holes, report.start_offset, report.end_offset) == ([], 0, log.end_offset)
        assert not any(
            node.problems or node.lost or node.departure for node in report.nodes if "3000" not in node.name
        )
        assert NAMED[name.partition(", with")[0]] in lines_about(report, "controller-3000")
        assert report.is_whole == (
            name.startswith("last segment rolled back") or name == "last segment lost, without its index"
        )
        checked = check_quorum(logs)
        assert checked.divergences == []  # so nothing advises to truncate
        assert checked.is_damaged != report.is_whole
