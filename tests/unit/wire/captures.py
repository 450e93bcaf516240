"""The recorded frames of Kafka 3.7 and its clients (kafka-3.7-wire), and what is odd about some of them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from metaquorum.wire.table import APIS

TELEMETRY = (71, 72)
"""What Java clients ask Kafka about metrics of clients (KIP-714); no node of ours offers it."""


@dataclass(frozen=True)
class Frame:
    """One frame without its length. `label` is the case's name in the files that have one."""

    where: str
    is_request: bool
    api_key: int
    version: int
    data: bytes
    label: str
    client_id: str


def frames(folder: Path, only: str = "*") -> Iterator[Frame]:
    """Every frame of every file, or of that of one scenario, of the APIs that the table has. Bare SASL tokens
    are no frames."""
    for path in sorted(folder.glob(f"{only}.jsonl.gz")):
        with gzip.open(path) as lines:
            for number, line in enumerate(lines, 1):
                yield from _frames_of_line(f"{path.name}:{number}", json.loads(line))


def _frames_of_line(where: str, row: dict[str, object]) -> Iterator[Frame]:
    label = str(row.get("label", ""))
    parts = [("request", True), ("response", False)] if label else [("frame", row.get("dir") == ">")]
    for name, is_request in parts:
        data = row.get(name)
        if isinstance(data, str) and row.get("event") is None:
            key, version = row["api_key"], row["api_version"]
            assert isinstance(key, int) and isinstance(version, int)
            if key in TELEMETRY and key not in APIS:
                continue
            client_id = str(row.get("client_id") or "")
            yield Frame(where, is_request, key, version, base64.b64decode(data), label, client_id)


TRAILING_BYTES = {(3, 12): 23, (51, 0): 1, (0, 0): 1}
"""How many requests have bytes after their last field, by API and version: librdkafka's Metadata and
AlterUserScramCredentials, and a frame of nothing but zeros."""

NOT_A_REQUEST = (
    "request of API 18 version 99",
    "request of API 3 version 99",
    "request of API 999 version 0",
    "request of API 4 version 7",
    "MetadataRequest version 12: Topics at byte 11: it has 1 bytes, and 0 are left",
)
"""Requests that were wrong on purpose, by how the error begins; each is in two files."""

WRITES_A_DEFAULT = (1, 16)
"""API and version in which the script of wrong requests wrote a tagged field that has its default; no node
does."""
