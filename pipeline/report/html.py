"""HTML parts of the page: escaped text, tables, tiles, numbers in readable form."""

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
    if start_ms is None and end_ms is None:
        return Cell("–", sort=0)
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


CSS = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1d2327;--soft:#5c666e;--line:#dfe3e6;
--faint:#eef1f3;--accent:#2f6690;--ok:#9cc5a1;--bad:#c0392b;--warn:#d98e04;--info:#6c8ebf;--grid:#e7eaec;
--s1:#2f6690;--s2:#b5651d;--heat0:#eef1f3;--off:#cfd6db}
@media (prefers-color-scheme:dark){:root{--paper:#14181b;--card:#1b2024;--ink:#e4e8ea;--soft:#9aa5ad;
--line:#30373d;--faint:#232a2f;--accent:#7fb2d9;--ok:#3f6f4b;--bad:#e2685a;--warn:#e0a63a;--info:#7d9fce;
--grid:#2a3136;--s1:#7fb2d9;--s2:#dc9a5c;--heat0:#232a2f;--off:#47515a}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:6px 10px}
header,main,footer{max-width:1320px;margin:0 auto;padding:0 24px}
header{padding-top:28px}h1{font-size:26px;line-height:1.2;margin:0 0 4px;font-weight:650;
letter-spacing:-.01em}
h2{font-size:19px;margin:0 0 4px;font-weight:620}h3{font-size:15px;margin:18px 0 4px;font-weight:600}
p{margin:0 0 10px;max-width:78ch}.soft,caption,.note{color:var(--soft)}.note{font-size:13px}
nav{margin:14px 0 0;border-bottom:1px solid var(--line);display:flex;flex-wrap:wrap;gap:2px 18px;
padding-bottom:8px}
nav a,td a{color:var(--accent);text-decoration:none}nav a{font-size:14px}
nav a:hover,nav a:focus,td a:hover,td a:focus{text-decoration:underline}
article{border-top:1px solid var(--line);margin-top:18px;padding-top:2px}article .tiles{margin:8px 0 14px}
article .tile{padding:7px 10px}article .tile b{font-size:17px}article:target h3{color:var(--accent)}
article p{max-width:none}article .scroll{margin-top:12px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:18px 20px;
margin:18px 0}
.tiles{display:grid;grid-template-columns:repeat(5,1fr);gap:12px;margin:18px 0 0}
@media (max-width:900px){.tiles{grid-template-columns:repeat(auto-fit,minmax(140px,1fr))}}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:23px;font-weight:640;line-height:1.25;letter-spacing:-.01em}
.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--bad)}.tile.warn b{color:var(--warn)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}caption{text-align:left;font-size:13px;
padding:0 0 6px}
th,td{padding:5px 10px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--faint)}
thead th{border-bottom:1px solid var(--line);font-weight:600;color:var(--soft);white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}td.wide{min-width:210px}
td code{overflow-wrap:anywhere}td.c{min-width:120px}
h1,h3,figcaption,.tile span,footer code,p{overflow-wrap:anywhere}td .id,.tag{white-space:nowrap}
code{font:12.5px/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--accent)}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
.tag{display:inline-block;border-radius:4px;padding:0 7px;font-size:12.5px;border:1px solid currentColor}
.tag.error{color:var(--bad)}.tag.warning{color:var(--warn)}.tag.info{color:var(--info)}
figure{margin:12px 0 4px}figcaption{font-size:13px;color:var(--soft);margin-bottom:4px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{fill:var(--soft);font:11px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}
svg .label{fill:var(--ink)}.grid{stroke:var(--grid);stroke-width:1}.axis{stroke:var(--line);stroke-width:1}
.s1{fill:var(--s1)}.s2{fill:var(--s2)}.heat0{fill:var(--heat0)}.heat{fill:var(--bad)}
.active{fill:var(--ok)}.fenced{fill:var(--bad)}.controlled_shutdown{fill:var(--warn)}
.tick{fill:var(--accent)}.unseen,.off,.hatch{pointer-events:none}
.unseen{fill:var(--card);opacity:.72}.off{fill:var(--off);opacity:.88}
.hatch{stroke:var(--soft);stroke-dasharray:1.5 4.5;opacity:.75}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--soft);margin:6px 0 0}
.key i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.key .active{background:var(--ok)}.key .fenced{background:var(--bad)}
.key .controlled_shutdown{background:var(--warn)}
.key .heat{background:var(--bad)}.key .heat0{background:var(--heat0)}.key .s1{background:var(--s1)}
.key .off{background:var(--off)}.key .unseen{border:1px solid var(--line);opacity:1;
background:repeating-linear-gradient(135deg,var(--soft) 0 1.5px,var(--card) 1.5px 4.5px)}
.key .s2{background:var(--s2)}.key .tick{background:var(--accent)}
footer{padding-bottom:40px;font-size:13px;color:var(--soft)}
@media (max-width:640px){header,main,footer{padding-left:12px;padding-right:12px}section{padding:14px 12px}
h1{font-size:22px}.tile b{font-size:20px}td.c{min-width:200px}td.wide{min-width:260px}
figure.wide{overflow-x:auto}figure.wide svg{min-width:720px}
.cards,.cards tbody,.cards caption{display:block}.cards thead{display:none}
.cards tr{display:flex;flex-wrap:wrap;gap:2px 12px;padding:7px 0;border-bottom:1px solid var(--faint)}
.cards td{display:block;padding:0;border:0}.cards td.c,.cards td.wide{flex-basis:100%;min-width:0}
.cards td[data-h]::before{content:attr(data-h) " ";color:var(--soft)}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;
--faint:#e4e4e4;
--accent:#1f4e79;--ok:#9cc5a1;--bad:#b03020;--warn:#c27c00;--info:#3d5f94;--grid:#ddd;--s1:#1f4e79;
--s2:#a8551a;
--heat0:#f0f0f0;--off:#d5d5d5}
@page{size:A4;margin:13mm}body{font-size:9.5pt}nav,.skip{display:none}
header,main,footer{max-width:none;padding:0}section{border:0;border-top:1px solid var(--line);
border-radius:0;
padding:10px 0;margin:10px 0}h2,h3,figcaption,caption{break-after:avoid}figure,tr,.tile{break-inside:avoid}
thead{display:table-header-group;break-inside:avoid}th button{display:contents}.key{break-after:avoid}
table{font-size:8pt}code{font-size:7.5pt}th,td{padding:3px 6px 3px 0}
.tiles{grid-template-columns:repeat(5,1fr);gap:6px}.tile{padding:6px 8px}.tile b{font-size:14pt}
.scroll{overflow:visible}td a{color:inherit}
svg rect,svg path,.key i{-webkit-print-color-adjust:exact;print-color-adjust:exact}td.wide{min-width:0}
code.id{font-size:6.4pt}}
"""

SCRIPT = """
for (const table of document.querySelectorAll("table[data-sort]")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      const body = table.tBodies[0];
      const value = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b), n = Number(x) - Number(y);
        return (Number.isNaN(n) ? x.localeCompare(y) : n) * (down ? -1 : 1);
      });
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...rows);
    });
  });
}
"""
