"""Spoils one thing of a node that was shut down cleanly: its configuration, or a file in its directory.

Each function spoils a copy of the node and returns parts of the line that the process must end with.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from metaquorum.node.local_nodes import free_ports
from metaquorum.storage.batches.batch import BatchHeader, parse_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A copy of one stopped node: its configuration and its directory."""

    role: str
    config: Path
    data: Path
    cluster_id: str

    @property
    def log(self) -> Path:
        return self.data / "__cluster_metadata-0"

    @property
    def segment(self) -> Path:
        return self.log / "00000000000000000000.log"

    @property
    def properties(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.config.read_text().splitlines())

    def set(self, **values: str | None) -> None:
        """Changes configuration lines; `_` stands for the dots of a key, None removes the line."""
        lines = self.properties
        for name, value in values.items():
            key = name.replace("_", ".")
            lines.pop(key, None)
            if value is not None:
                lines[key] = value
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


# ---- configuration


def unknown_key(site: Site) -> tuple[str, ...]:
    site.set(metadata_log_segment_byte="1000000")
    return ("metadata.log.segment.byte is not a known key", "did you mean metadata.log.segment.bytes?")


def no_number(site: Site) -> tuple[str, ...]:
    site.set(metadata_max_idle_interval_ms="soon")
    return ("metadata.max.idle.interval.ms", "soon")


def not_a_voter(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters=f"4000@127.0.0.1:9,4001@127.0.0.1:{free_ports(1)[0]}")
    return ("node.id=3000 is not among controller.quorum.voters (4000, 4001)", "add this controller")


def voter_twice(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters="3000@127.0.0.1:9,3001@127.0.0.1:10,3000@127.0.0.1:11")
    return ("controller.quorum.voters has node 3000 twice", "give each voter its own id")


def voters_garbled(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters="localhost:9093")
    return ("controller.quorum.voters has 'localhost:9093'", "write id@host:port:directory-id")


def no_voters(site: Site) -> tuple[str, ...]:
    site.set(controller_quorum_voters=None)
    return ("controller.quorum.voters is missing",)


def key_set_again(site: Site) -> tuple[str, ...]:
    with site.config.open("a") as file:
        file.write("node.id=many\n")
    return ("node.id cannot be 'many'", "whole number")


def two_roles(site: Site) -> tuple[str, ...]:
    site.set(process_roles="controller,broker")
    return (f"but a {site.role} was started", "use metaquorum node run")


def empty_file(site: Site) -> tuple[str, ...]:
    site.config.write_bytes(b"")
    return (str(site.config), "is empty")


def no_text(site: Site) -> tuple[str, ...]:
    site.config.write_bytes(b"\xff\xfe\x00\x01" * 50)
    return (str(site.config), "UTF-8")


def a_folder(site: Site) -> tuple[str, ...]:
    site.config.unlink()
    site.config.mkdir()
    return (str(site.config), "cannot be read")


def no_file(site: Site) -> tuple[str, ...]:
    site.config.unlink()
    return (str(site.config), "cannot be read", "give the path")


# ---- directories


def missing(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    return (f"{site.data} does not exist", "metaquorum storage format")


def a_file(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    site.data.write_text("this is where the directory should be")
    return (f"{site.data} is a file",)


def below_a_file(site: Site) -> tuple[str, ...]:
    (site.config.parent / "file").write_text("in the way")
    site.set(log_dirs=str(site.config.parent / "file" / "data"))
    return (f"{site.config.parent / 'file' / 'data'} does not exist",)


def unformatted(site: Site) -> tuple[str, ...]:
    shutil.rmtree(site.data)
    site.data.mkdir()
    return (f"{site.data / 'meta.properties'}", "does not exist", "metaquorum storage format")


def of_another_node(site: Site) -> tuple[str, ...]:
    port, grpc = free_ports(2)
    site.set(
        node_id="3001",
        listeners=f"CONTROLLER://127.0.0.1:{port},GRPC_CONTROLLER://127.0.0.1:{grpc}",
        controller_quorum_voters=f"3001@127.0.0.1:{port}",
    )
    return (f"{site.data} belongs to node 3000, but node.id is 3001", "correct node.id")


def identity_garbled(site: Site) -> tuple[str, ...]:
    (site.data / "meta.properties").write_bytes(b"\x00\x9f\x11\xfe" * 30)
    return (str(site.data / "meta.properties"),)


def identity_empty(site: Site) -> tuple[str, ...]:
    (site.data / "meta.properties").write_bytes(b"")
    return (str(site.data / "meta.properties"), "has no version line")


def identity_truncated(site: Site) -> tuple[str, ...]:
    path = site.data / "meta.properties"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "cluster.id" not in line))
    return (str(path), "has no cluster.id line")


def identity_from_the_future(site: Site) -> tuple[str, ...]:
    path = site.data / "meta.properties"
    path.write_text(path.read_text().replace("version=1", "version=9"))
    return (str(path), "has version 9, this release reads 0 and 1")


def quorum_state_truncated(site: Site) -> tuple[str, ...]:
    path = site.log / "quorum-state"
    path.write_bytes(path.read_bytes()[:40])
    return (str(path), "a lost vote can elect two leaders")


def quorum_state_empty(site: Site) -> tuple[str, ...]:
    (site.log / "quorum-state").write_bytes(b"")
    return (str(site.log / "quorum-state"),)


def quorum_state_missing(site: Site) -> tuple[str, ...]:
    (site.log / "quorum-state").unlink()
    return (str(site.log / "quorum-state"), "is absent beside the log")


def quorum_state_from_the_future(site: Site) -> tuple[str, ...]:
    path = site.log / "quorum-state"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_version": 7}))
    return (str(path), "7")


def bootstrap_garbled(site: Site) -> tuple[str, ...]:
    (site.data / "bootstrap.checkpoint").write_bytes(b"\x13\x37" * 60)
    return (str(site.data / "bootstrap.checkpoint"),)


def recovery_point_garbled(site: Site) -> tuple[str, ...]:
    (site.log / "recovery-point").write_text("{")
    return (str(site.log / "recovery-point"),)


def second_half_of_the_log_missing(site: Site) -> tuple[str, ...]:
    data = site.segment.read_bytes()
    site.segment.write_bytes(data[: len(data) // 2])
    end = max(position for position, _ in batches(data) if position <= len(data) // 2)
    return (str(site.segment), f"is damaged at byte {end} (offset ", "for recovery see")


def log_missing(site: Site) -> tuple[str, ...]:
    site.segment.unlink()
    return (str(site.segment), "found no such file")


def flipped_bit_below_the_recovery_point(site: Site) -> tuple[str, ...]:
    data = bytearray(site.segment.read_bytes())
    position, header = batch_in_the_middle(data)
    data[position + 70] ^= 0x10
    site.segment.write_bytes(data)
    return (str(site.segment), f"is damaged at byte {position} (offset {header.base_offset})")


def flipped_bit_before_valid_batches(site: Site) -> tuple[str, ...]:
    """Without a recovery point (kill -9 before the first one) it is detected by the valid batches after
    it."""
    (site.log / "recovery-point").unlink()
    return flipped_bit_below_the_recovery_point(site)


def record_from_the_future(site: Site) -> tuple[str, ...]:
    """A whole batch with a correct CRC, with a record of an unknown type."""
    data = bytearray(site.segment.read_bytes())
    position, header = batch_in_the_middle(data)
    # Attributes of a record, timestamp delta, offset delta, no key: then the value's length and the frame.
    value = data.index(b"\x01\x03", position + 61)  # frame version 1, type 3 (PartitionRecord)
    data[value + 1] = 99
    end = position + header.size_bytes
    data[position + 17 : position + 21] = crc32c(bytes(data[position + 21 : end])).to_bytes(4, "big")
    site.segment.write_bytes(data)
    return (str(site.segment), "record has api key 99, which this release does not know", "newer")


def batch_in_the_middle(data: bytearray) -> tuple[int, BatchHeader]:
    """A batch of several records, with others before and after it."""
    found = [(position, header) for position, header in batches(data) if header.records_count > 10]
    return found[len(found) // 2]


def batches(data: bytes | bytearray) -> list[tuple[int, BatchHeader]]:
    """Every batch's position and header."""
    position, found = 0, []
    while position < len(data):
        header = parse_header(bytes(data), position)
        found.append((position, header))
        position += header.size_bytes
    return found
