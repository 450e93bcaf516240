"""The `metaquorum` command's beginning, also as `python -m cli`: local clusters start their processes so."""

from __future__ import annotations

from cli.interrupts import quiet_interrupts


def main() -> None:
    """Runs the command line; ends the process."""
    with quiet_interrupts():
        from cli.main import main as command
    command(prog_name="metaquorum")


if __name__ == "__main__":
    main()
