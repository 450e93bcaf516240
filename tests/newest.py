"""`make newest`: the tests of listeners, storage and tools with the newest Python at hand.

`make test` runs with one Python, often the oldest; what a newer one changes shows here. The environment is
`.venv-newest`, and is installed again only when the dependencies or the Python change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import suite

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv-newest"
NEWEST_MINOR = 14
"""The newest release for which the dependencies have wheels; later ones are not looked for."""
FOLDERS = (
    *("config", "network", "clients", "rpc", "observability", "node"),
    *("kafka", "metrics", "storage", "cli"),
)
TESTS = [f"tests/unit/{folder}" for folder in FOLDERS]
ANSWER_S = 20
_TELL = "import sys; print(*sys.version_info[:3], sys.version_info.releaselevel)"

Version = tuple[int, int, int]


def candidates() -> Iterator[str]:
    """Commands that may be a newer Python: those on PATH, and those that pyenv keeps beside its shims, which
    fail unless their version is switched on."""
    for minor in range(NEWEST_MINOR, sys.version_info.minor, -1):
        name = f"python3.{minor}"
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            found = shutil.which(name, path=folder)
            if found is not None:
                yield found
        for root in _pyenv_roots():
            yield from sorted(map(str, root.glob(f"versions/*/bin/{name}")))
    yield from filter(None, [shutil.which("python3")])


def _pyenv_roots() -> set[Path]:
    """Where pyenv is installed: by its variable, by itself, or at its usual place."""
    roots = {Path.home() / ".pyenv"}
    if named := os.environ.get("PYENV_ROOT"):
        roots.add(Path(named))
    if shutil.which("pyenv") is not None:
        said = _output(["pyenv", "root"])
        if said:
            roots.add(Path(said))
    return roots


def _output(command: list[str]) -> str:
    """What the command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version_of(command: str) -> Version | None:
    """Its version; None if it does not run, or is not a release."""
    words = _output([command, "-c", _TELL]).split()
    if len(words) != 4 or words[3] != "final":
        return None
    major, minor, micro = map(int, words[:3])
    return major, minor, micro


def newest(than: tuple[int, int]) -> tuple[Version, str] | None:
    """The newest Python with a later minor version than `than`."""
    found: dict[Version, str] = {}
    for command in candidates():
        version = version_of(command)
        if version is not None and than < version[:2] <= (3, NEWEST_MINOR):
            found.setdefault(version, command)
    return max(found.items(), default=None)


def installed(command: str) -> Path:
    """The environment's Python, installed if it is not current. Raises CalledProcessError."""
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    inputs = [(REPOSITORY / name).read_text("utf-8") for name in ("pyproject.toml", "constraints.txt")]
    wanted = "\n".join([command, str(version_of(command)), *inputs])
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return python
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([command, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [str(python), "-m", "pip", "install", "--no-compile", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", "-e", ".[dev,pipeline]"], cwd=REPOSITORY, check=True)
    stamp.write_text(wanted, "utf-8")
    return python


def main(tests: list[str]) -> int:
    found = newest(sys.version_info[:2])
    if found is None:
        running = ".".join(map(str, sys.version_info[:2]))
        print(f"There is no newer Python than {running} here: nothing more to test.")
        return 0
    version, command = found
    print(f"With Python {'.'.join(map(str, version))} ({command}):", flush=True)
    try:
        python = installed(command)
    except subprocess.CalledProcessError as error:
        print(f"cannot install the dependencies into {ENVIRONMENT.name}: {error}", file=sys.stderr)
        return 1
    options = ["-n", "4", "--dist", "loadfile", *(tests or TESTS)]
    return suite.run(str(python), [options], ENVIRONMENT / ".pytest_cache")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
