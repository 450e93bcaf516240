"""Describes what of the logs is not in the tables, for the end of a run.

Owns the sums of files by reason, and their wording. Knows surveys and histories, not files: the choice
was made in `pipeline.logs`.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaquorum.pipeline.logs.spine import SHARED_ID, Spine


def left_out(spines: Iterable[Spine]) -> list[str]:
    """One line per reason, the most serious first; empty if everything is in the tables."""
    spines = list(spines)
    copies = conflicts = copied = lost = garbage = 0
    for spine in spines:
        for log in spine.logs:
            for at in log.segments:
                why = spine.why_unused(log, at)
                count = at.end_offset - at.start_offset
                if log.place.is_retained:
                    continue
                garbage += not count and at.size_bytes > 0
                if why is None or not count:
                    continue
                if why.startswith("its records were read from"):
                    copies, copied = copies + 1, copied + count
                else:
                    conflicts, lost = conflicts + 1, lost + count
    lines = []
    if conflicts:
        lines.append(
            f"{_files(conflicts)} with {lost:,} records that contradict the history of their cluster: "
            "see `reason` in the table files, and the table damage"
        )
    holes = [(spine.cluster, *hole) for spine in spines for hole in spine.holes]
    if holes:
        cluster, start, end = holes[0]
        total = sum(high - low for _, low, high in holes)
        which = f"offsets {start} to {end - 1} of cluster {cluster}"
        more = f" and {len(holes) - 1} more" if len(holes) > 1 else ""
        lines.append(
            f"{total:,} records inside the history that no log holds: {which}{more}; see the table coverage"
        )
    shared = [spine.cluster for spine in spines if any(at.kind == SHARED_ID for at in spine.conflicts)]
    if shared:
        lines.append(
            f"{len(shared)} clusters share the cluster id of another and get their own names: "
            f"{', '.join(shared[:5])}{' ...' if len(shared) > 5 else ''}"
        )
    if garbage:
        lines.append(f"{_files(garbage)} without a readable record: see the table damage")
    if copies:
        lines.append(f"{_files(copies)} with {copied:,} records that were read from another node's log")
    return lines


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
