"""Writes the Python code of the .proto files beside it: messages, gRPC stubs and their type stubs.

Run as `python proto/generate.py [OUTPUT]`; without OUTPUT the committed code is replaced. The import
paths of the generated code begin with `metaquorum.proto.`, so the compiler reads the files by that path.
It does not demand the compiler's own version of protobuf and grpcio at run time: pyproject.toml has the
bounds, and `make lowest` shows that they hold.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "metaquorum/proto"
_VERSION_CHECKS = (
    re.compile(r"^from google\.protobuf import runtime_version .*\n", re.MULTILINE),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(\n(?: .*\n)*\)\n", re.MULTILINE),
    re.compile(r"^import warnings\n", re.MULTILINE),
    re.compile(r"^GRPC_GENERATED_VERSION = (?:.*\n)+?    \)\n", re.MULTILINE),
)
"""What the compilers write to refuse each version that is older than they are."""


def generate(output: Path) -> list[Path]:
    """Writes below `output`/metaquorum/proto and returns the paths. Raises RuntimeError if protoc refuses."""
    from grpc_tools import protoc  # a development dependency: only needed here

    sources = sorted(f"{PACKAGE}/{path.name}" for path in HERE.glob("*.proto"))
    output.mkdir(parents=True, exist_ok=True)
    arguments = [
        "protoc",
        f"--proto_path={HERE.parent}",
        f"--plugin=protoc-gen-mypy={Path(sys.executable).parent / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
        f"--python_out={output}",
        f"--grpc_python_out={output}",
        f"--mypy_out=quiet:{output}",
        f"--mypy_grpc_out=quiet:{output}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc refused the .proto files; see its messages above")
    written = sorted((output / PACKAGE).glob("*_pb2*.py*"))
    for path in written:
        path.write_text(_without_version_checks(path.read_text()))
    return written


def _without_version_checks(code: str) -> str:
    for check in _VERSION_CHECKS:
        code = check.sub("", code)
    return code


def main() -> int:
    """Replaces the committed code, or writes below the folder given as the only argument."""
    written = generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent)
    print(f"{len(written)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
