"""Asks the registry whether the base installation needs a compiler anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from packaging.requirements import Requirement

from tests.packaging.project import base

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """One row of the promise. `tags`: what pip of such a machine accepts; `markers`: what its Python says of
    itself where a requirement asks."""

    name: str
    tags: tuple[str, ...]
    markers: dict[str, str]


def _linux(machine: str) -> dict[str, str]:
    return {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
    }


def _mac(machine: str) -> dict[str, str]:
    return {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
        "platform_machine": machine,
    }


def _glibc(machine: str) -> tuple[str, ...]:
    return (*(f"manylinux_2_{at}_{machine}" for at in range(28, 16, -1)), f"manylinux2014_{machine}")


PLATFORMS = (
    Platform(name="Linux, glibc, x86_64", tags=_glibc("x86_64"), markers=_linux("x86_64")),
    Platform(name="Linux, glibc, aarch64", tags=_glibc("aarch64"), markers=_linux("aarch64")),
    Platform(
        name="Linux, musl, x86_64",
        tags=("musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
        markers=_linux("x86_64"),
    ),
    Platform(
        name="Linux, musl, aarch64",
        tags=("musllinux_1_2_aarch64", "musllinux_1_1_aarch64"),
        markers=_linux("aarch64"),
    ),
    Platform(
        name="macOS, arm64",
        tags=tuple(f"macosx_{at}_0_{kind}" for at in range(14, 10, -1) for kind in ("arm64", "universal2")),
        markers=_mac("arm64"),
    ),
    Platform(
        name="macOS, x86_64",
        tags=(
            *(f"macosx_{at}_0_{kind}" for at in range(14, 10, -1) for kind in ("x86_64", "universal2")),
            *(f"macosx_10_{at}_{kind}" for at in range(16, 8, -1) for kind in ("x86_64", "universal2")),
        ),
        markers=_mac("x86_64"),
    ),
    Platform(
        name="Windows, x86_64",
        tags=("win_amd64",),
        markers={
            "sys_platform": "win32",
            "platform_system": "Windows",
            "os_name": "nt",
            "platform_machine": "AMD64",
        },
    ),
)


def wanted(requirements: list[Requirement], platform: Platform, python: str) -> list[str]:
    """The requirements that hold there, without their markers: pip would judge those by this machine."""
    there = {**platform.markers, "python_version": python, "python_full_version": f"{python}.0"}
    return [
        f"{each.name}{each.specifier}"
        for each in requirements
        if each.marker is None or each.marker.evaluate(there)
    ]


def command(requirements: list[str], platform: Platform, python: str, target: str) -> list[str]:
    tags = [part for tag in platform.tags for part in ("--platform", tag)]
    return [
        *(sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check"),
        *("--ignore-installed", "--only-binary", ":all:", "--target", target, "--python-version", python),
        *("--implementation", "cp", *tags, *requirements),
    ]


def problem_in(errors: str) -> str:
    """The requirement without a wheel, from pip's errors, or their last line."""
    found = re.findall(r"No matching distribution found for (.+)", errors)
    lines = [line.strip() for line in errors.splitlines() if line.strip().startswith("ERROR")]
    return f"no wheel for {found[-1].strip()}" if found else (lines or ["pip failed"])[-1]


def main() -> int:
    requirements, failures = base(), 0
    with tempfile.TemporaryDirectory() as target:
        for platform in PLATFORMS:
            for python in PYTHONS:
                names = wanted(requirements, platform, python)
                done = subprocess.run(
                    command(names, platform, python, target), capture_output=True, text=True, check=False
                )
                fine = done.returncode == 0
                failures += not fine
                verdict = f"{len(names)} dependencies have wheels" if fine else problem_in(done.stderr)
                print(f"{platform.name}, Python {python}: {verdict}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
