"""The committed gRPC code is what the .proto files make, and every RPC in them is served by some class."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROTO = REPOSITORY / "proto"


def committed() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in PROTO.glob("*_pb2*.py*") if path.suffix != ".pyc"}


def test_the_committed_code_is_what_the_generator_makes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, PROTO / "generate.py", tmp_path], check=True, capture_output=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "metaquorum" / "proto").iterdir()}
    assert set(made) == set(committed()), "run `make proto`, and remove what no .proto file makes any more"
    assert [name for name in made if made[name] != committed()[name]] == [], "run `make proto`"


def test_every_proto_file_has_code_and_stubs() -> None:
    for source in PROTO.glob("*.proto"):
        made = {f"{source.stem}_pb2{end}" for end in (".py", ".pyi")} | {
            f"{source.stem}_pb2_grpc{end}" for end in (".py", ".pyi")
        }
        assert made <= set(committed())
