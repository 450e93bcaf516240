"""HTML parts of the page: escaped text, tables, tiles, numbers in readable form.

Owns escaping and the markup of each part. Knows no fleet and no sections; SVG is `charts`'.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from metaquorum.pipeline.audit.findings import seconds_text


class Cell(msgspec.Struct, frozen=True):
    """One cell: its HTML, whether it is a number, and its sort key (None: its text)."""

    html: str
    number: bool = False
    sort: float | str | None = None


MAX_ID, MAX_CODE, MAX_WORD = 26, 72, 40
"""The longest form that is shown whole: of an id on one line, of a path or
entity, of a word in a sentence."""


def cut(value: str, limit: int) -> str:
    """A long name without its middle: its start and end are the most useful."""
    if len(value) <= limit:
        return value
    end = limit // 2
    return f"{value[: limit - end - 1]}…{value[-end:]}"


def _hovered(value: str, shown: str) -> str:
    return "" if value == shown else f' title="{escape(value)}"'


def words(value: str) -> str:
    """A sentence whose long words (ids, paths) are cut. Hovering shows the whole word."""
    return " ".join(
        escape(word)
        if len(word) <= MAX_WORD
        else f'<span title="{escape(word)}">{escape(cut(word, MAX_WORD))}</span>'
        for word in value.split(" ")
    )


def text(value: object) -> Cell:
    """Plain text; a dash for None."""
    return Cell("–") if value is None else Cell(words(str(value)), sort=str(value))


def code(value: object) -> Cell:
    """An entity path. Hovering shows the whole of a long one."""
    whole = str(value)
    shown = cut(whole, MAX_CODE)
    return Cell(f"<code{_hovered(whole, shown)}>{escape(shown)}</code>", sort=whole)


def name(value: object, anchor: str = "") -> Cell:
    """An id on one line. Hovering shows the whole of a long one. `anchor`: its link."""
    whole = str(value)
    shown = cut(whole, MAX_ID)
    linked = f'<a href="#{anchor}">{escape(shown)}</a>' if anchor else escape(shown)
    return Cell(f'<code class="id"{_hovered(whole, shown)}>{linked}</code>', sort=whole)


def path(value: str, parts_shown: int = 3) -> Cell:
    """A file path: its last parts. Hovering shows the whole."""
    parts = value.split("/")
    more = "…/" if len(parts) > parts_shown else ""
    shown = more + cut("/".join(parts[-parts_shown:]), MAX_CODE)
    return Cell(f"<code{_hovered(value, shown)}>{escape(shown)}</code>", sort=value)


def number(value: float | None, shown: str | None = None) -> Cell:
    """A number, right-aligned. `shown`: text instead of its digits."""
    if value is None:
        return Cell("–", True, -1)
    return Cell(escape(shown) if shown is not None else f"{value:,.0f}", True, value)


def seconds(value: float | None) -> Cell:
    """A duration."""
    return number(value, None if value is None else seconds_text(value))


def cluster_name(cluster: str) -> str:
    """A cluster's id, short enough for a chart."""
    return cut(cluster, 15)


def tag(severity: str) -> Cell:
    """A severity as a colored word."""
    order = {"error": 0, "warning": 1, "info": 2}.get(severity, 3)
    return Cell(f'<span class="tag {escape(severity)}">{escape(severity)}</span>', sort=order)


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, wide: int = -1) -> str:
    """A sortable table. The column `wide` gets room for words. Without rows, only the caption."""
    listed = list(rows)
    if not listed:
        return f'<p class="note">{escape(caption)}: none.</p>'
    columns = [(head, cell.number) for head, cell in zip(heads, listed[0], strict=True)]
    top = "".join(
        f'<th scope="col"{" class=n" if is_number else ""}>{escape(head)}</th>' for head, is_number in columns
    )
    # On a narrow screen, a row of more than a name and numbers is a card, in which numbers need their heads.
    cards = sum(not is_number for _, is_number in columns) > 1
    labels = [f' data-h="{escape(head)}"' if cards and is_number else "" for head, is_number in columns]
    body = "".join(
        f"<tr>{''.join(_cell(cell, at == wide, labels[at]) for at, cell in enumerate(row))}</tr>"
        for row in listed
    )
    kind = ' class="cards"' if cards else ""
    return (
        f'<div class="scroll"><table{kind} data-sort><caption>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, wide: bool, label: str) -> str:
    coded = " class=c" if cell.html.startswith("<code") else ""
    kind = " class=n" if cell.number else (" class=wide" if wide else coded)
    sort = "" if cell.sort is None else f' data-v="{escape(str(cell.sort))}"'
    return f"<td{kind}{sort}{label}>{cell.html}</td>"


def tile(value: str, label: str, tone: str = "") -> str:
    """One big number with its label."""
    return f'<div class="tile {tone}"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def key(entries: Iterable[tuple[str, str]]) -> str:
    """The legend of a chart: (class, label)."""
    listed = "".join(f'<span><i class="{kind}"></i>{escape(words)}</span>' for kind, words in entries)
    return f'<div class="key">{listed}</div>'


def section(anchor: str, title: str, *parts: str) -> str:
    """One section of the page."""
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        f'<h2 id="{anchor}-title">{escape(title)}</h2>{"".join(parts)}</section>'
    )


def left_out(shown: int, total: int, what: str, where: str) -> str:
    """What a limited list leaves out; empty if nothing."""
    if total <= shown:
        return ""
    return f'<p class="note">{shown} of {total} {escape(what)} are shown; {escape(where)}</p>'


def utc(time_ms: int | None, digits: str = "seconds") -> str:
    """A Unix time in ms as "2026-11-21 03:12:25"."""
    if time_ms is None or not 0 <= time_ms < 253_402_300_800_000:
        return "–"
    moment = datetime.datetime.fromtimestamp(time_ms / 1000, tz=datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M" if digits == "minutes" else "%Y-%m-%d %H:%M:%S")


def moment(time_ms: int | None) -> Cell:
    """A time on one line."""
    return Cell(f'<span class="id">{utc(time_ms)}</span>', sort=time_ms or 0)


def period(start_ms: int | None, end_ms: int | None) -> Cell:
    """Start and end, with the day of the end if it differs."""
    begin, end = utc(start_ms), "lasts" if end_ms is None else utc(end_ms)
    if end_ms is not None and end[:10] == begin[:10]:
        end = end[11:]
    parts = [begin] if end_ms is not None and end_ms == start_ms else [begin, f"– {end}"]
    listed = " ".join(f'<span class="id">{part}</span>' for part in parts)
    return Cell(listed, sort=start_ms or 0)


def short(value: float) -> str:
    """950, 12.3 k, 4.5 M: at most five characters."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            shown = value / (1e3 if unit == "k" else limit)
            return f"{shown:.1f} {unit}" if shown < 100 else f"{shown:.0f} {unit}"
    return f"{value:,.0f}"
