"""Measures what `pip install metaquorum` takes on disk: the built wheel, in an environment of its own.

Byte code counts, since pip writes it; pip and setuptools do not, since the environment brings them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.packaging.project import REPOSITORY

LIMIT_MIB = 140
_BROUGHT_BY_VENV = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
_SHOWN = 8


def disk_bytes(folder: Path) -> Counter[str]:
    """The blocks that each entry of site-packages takes, as `du` counts them."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*"):
        name = path.relative_to(folder).parts[0]
        if not name.startswith(_BROUGHT_BY_VENV) and not path.is_symlink():
            found[name] += path.stat().st_blocks * 512
    return found


def main() -> int:
    build = REPOSITORY / "build"
    was_there = build.exists()
    try:
        return _measure()
    finally:
        if not was_there:
            shutil.rmtree(build, ignore_errors=True)  # setuptools leaves a copy of the sources


def _measure() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        environment, wheels = Path(scratch) / "venv", Path(scratch) / "dist"
        pip = (environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, REPOSITORY], check=True)
        subprocess.run([*pip, "install", *wheels.glob("*.whl")], check=True)
        (packages,) = environment.glob("lib/python*/site-packages")
        sizes = disk_bytes(packages)
    total = sizes.total() / 2**20
    for name, size in sizes.most_common(_SHOWN):
        print(f"{size / 2**20:6.1f} MiB  {name}")
    print(f"{total:6.1f} MiB  the base installation; at most {LIMIT_MIB}")
    return 0 if total <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
