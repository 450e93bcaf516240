// The page of a fleet: every cluster's strip on one axis of time, incidents across clusters, the way to a cluster's log.

import { ask } from "./api.js";
import { h, s, spanText, timeText, valueText, word } from "./dom.js";
import { diamond, patterns, tickTexts, tickTimes, triangle } from "./drawing.js";
import { busySoon, frame, scrollsItself } from "./frame.js";
import { change, here, link } from "./place.js";
import { copy, save } from "./save.js";
import { captionOf, files, hasNumbers, pager, sheet, SIZE, sorter, titleOf as columnOf } from "./tables.js";

const NAV = ["overview", "incidents", "findings", "clusters"];
const ORDERS = { hurt: "most hurt first", name: "by name" };
const STEPS = 120, PANNED = 0.2; // of the shown time: how many steps of the mark it has, what a key pans
const LEADERS = 8, AREA = 26, OUT = 8, LANE = 8, GAP = 2, NAME = 64;
const main = document.getElementById("main");
let loading = null;
let fleet = null;
let shown = { view: null, title: "", command: "" };
let width = 1000;

const titleOf = (view) => view[0].toUpperCase() + view.slice(1);
const shownName = (cluster) => (cluster.length > 22 ? `${cluster.slice(0, 21)}…` : cluster);
const isoOf = (ms) => new Date(Math.max(0, Math.round(ms))).toISOString();

/** Where a cluster's log shows a moment; null if the log was not given. */
function logLink(cluster, at) {
  const one = fleet.clusters.find((each) => each.cluster === cluster);
  return one?.isWithinReach ? `/log/${encodeURIComponent(cluster)}/${link("overview", { at })}` : null;
}

const WITHOUT = "Its log was not given, so only the tables are shown. Start metaquorum console TABLES LOG… with the directory of one of its nodes.";

/** The times that are shown, of the URL. */
function span() {
  const { params } = here();
  const from = Number(params.from), to = Number(params.to);
  const low = params.from && Number.isFinite(from) ? from : fleet.fromMs;
  return [low, Math.max(low + 1, params.to && Number.isFinite(to) ? to : fleet.toMs)];
}

const left = () => (width < 700 ? 0 : NAME);
const xOf = (ms, [low, high]) => Math.max(left(), Math.min(width, left() + ((ms - low) / (high - low)) * (width - left())));

function show(low, high) {
  const isWhole = low <= fleet.fromMs && high >= fleet.toMs;
  if (high - low < 10) return;
  change(isWhole ? { from: undefined, to: undefined } : { from: String(Math.round(low)), to: String(Math.round(high)) }, true);
}

function zoom(factor, at = null) {
  const [low, high] = span(), center = at ?? (Number(here().params.t) || (low + high) / 2);
  show(Math.max(fleet.fromMs, center - (center - low) * factor), Math.min(fleet.toMs, center + (high - center) * factor));
}

/** Moves the shown time by a part of it, at most to the ends of the whole. */
function pan(part) {
  const [low, high] = span(), away = part * (high - low);
  const from = Math.max(fleet.fromMs, Math.min(fleet.toMs - (high - low), low + away));
  if (from !== low) show(from, from + high - low);
}

/** Marks the moment a step away from the mark; without a mark, the moment at the end of the shown time that is left first. */
function step(way) {
  const [low, high] = span(), t = Number(here().params.t);
  const next = t >= low && t <= high ? t + (way * (high - low)) / STEPS : way > 0 ? low : high;
  mark(Math.max(low, Math.min(high, next)), true);
}

const mark = (ms, replace = false) => change({ t: String(Math.round(Math.max(fleet.fromMs, Math.min(fleet.toMs, ms)))) }, replace);

function listen(svg) {
  const msAt = (event) => {
    const box = svg.getBoundingClientRect(), [low, high] = span();
    const x = ((event.clientX - box.left) / box.width) * width;
    return low + ((x - left()) / (width - left())) * (high - low);
  };
  svg.addEventListener("click", (event) => {
    const incident = event.target.closest("[data-ms]");
    mark(incident ? Number(incident.dataset.ms) : msAt(event));
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // without a key, the page scrolls
    event.preventDefault();
    if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, msAt(event));
    else pan((event.deltaX || event.deltaY) / (width - left()));
  }, { passive: false });
  return svg;
}

/** The times, and for keys the place of the mark in all strips. */
function axis(times) {
  const { t } = here().params;
  const svg = s("svg", { class: "time", id: "moment", height: 16, viewBox: `0 0 ${width} 16`, preserveAspectRatio: "none", tabindex: 0, role: "slider",
    "aria-label": "Marked moment of all clusters", "aria-valuemin": Math.round(times[0]), "aria-valuemax": Math.round(times[1]), "aria-valuenow": t ? Number(t) : Math.round(times[0]),
    "aria-valuetext": t ? timeText(Number(t), false) : "none: the arrow keys mark one" }, patterns());
  const ticks = tickTimes(...times, width - left()), at = (ms) => xOf(ms, times);
  svg.append(...ticks.map(([ms]) => s("line", { class: "tick", x1: at(ms), x2: at(ms), y1: 0, y2: 16 })), ...tickTexts(ticks, at, [left(), width], 12));
  return svg;
}

function strip(one, most, lanes) {
  const times = span(), height = LEADERS + GAP + AREA + GAP + OUT + GAP + (lanes ? lanes.length * (LANE + GAP) : 0);
  const svg = listen(s("svg", { class: "time", height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Cluster ${one.cluster} over time: ${one.brokers} brokers, ${one.incidents.length} incidents; the table of incidents has them` }));
  for (const [ms] of tickTimes(...times, width - left())) svg.append(s("line", { class: "tick", x1: xOf(ms, times), x2: xOf(ms, times), y1: 0, y2: height }));
  const bar = (from, to, y, tall, name, title) => {
    const x = xOf(from, times), end = xOf(to ?? one.toMs, times);
    if (from > times[1] || (to ?? one.toMs) < times[0]) return;
    svg.append(s("rect", { class: name, x, y, width: Math.max(1.5, end - x), height: tall }, s("title", {}, title)));
  };
  one.leaders.forEach(([ms, leader, epoch], number) => bar(ms, one.leaders[number + 1]?.[0] ?? null, 0, LEADERS, leader === null ? "leader-none" : epoch % 2 ? "leader-odd" : "leader-even",
    `controller ${leader ?? "unknown"} leads from ${timeText(ms)} on, epoch ${epoch}`));
  const top = LEADERS + GAP;
  for (const [kind, values] of [["area-under", one.underMinIsr], ["area-leaderless", one.leaderless]]) {
    let path = `M${left()} ${top + AREA}`;
    values.forEach((value, number) => {
      const x = xOf(fleet.fromMs + number * fleet.bucketMs, times);
      path += `H${x}V${top + AREA - Math.sqrt(value / most) * (AREA - 2)}`;
    });
    svg.append(s("path", { class: kind, d: `${path}H${width}V${top + AREA}Z` }, s("title", {}, `${one.cluster}: ${kind === "area-under" ? "partitions under min ISR" : "leaderless partitions"}, the mean of ${spanText(fleet.bucketMs)}`)));
  }
  const shapes = new Map();
  for (const incident of one.incidents) {
    const [from, to, , what, who, cause, partitions, leaderless, isHurting] = incident;
    const text = `${timeText(from)} ${who}: ${what}${cause ? ` (${cause})` : ""}, ${partitions} partitions${leaderless ? `, ${leaderless} leaderless` : ""}${to ? `, for ${spanText(to - from)}` : ", still"}`;
    if (what === "broker-out") bar(from, to, top + AREA + GAP, OUT, isHurting ? "lane-fenced" : "lane-shutdown", text);
    if (what === "quorum-silent") bar(from, to, 0, LEADERS, "leader-none", text);
    if (!isHurting || from < times[0] || from > times[1]) continue;
    const pixel = Math.floor(xOf(from, times) / 8), before = shapes.get(pixel);
    const level = leaderless ? 2 : partitions ? 1 : 0;
    if (level && (!before || before.level < level)) shapes.set(pixel, { level, from, text, count: (before?.count ?? 0) + 1 });
    else if (before) before.count += 1;
  }
  for (const [from, to] of [...one.silences, ...one.offs]) bar(from, to, 0, height, "gap", `${one.cluster}: nothing is known from ${timeText(from)} to ${timeText(to)}: it was off, or its quorum was silent`);
  for (const { level, from, text, count } of shapes.values()) {
    const x = xOf(from, times), y = top + 7;
    svg.append(s("path", { d: level === 2 ? diamond(x, y) : triangle(x, y), class: level === 2 ? "mark-critical" : "mark-warning", "data-ms": from },
      s("title", {}, count > 1 ? `${text} (and ${count - 1} more near)` : text)));
  }
  (lanes || []).forEach((lane, number) => {
    const y = top + AREA + GAP + OUT + GAP + number * (LANE + GAP);
    if (left()) svg.append(s("text", { x: left() - 4, y: y + LANE, "text-anchor": "end" }, `broker ${lane.id}`));
    for (const [, from, to, state] of lane.turns) bar(from, to, y, LANE, { active: "lane-active", fenced: "lane-fenced" }[state] || "lane-shutdown", `broker ${lane.id}: ${state} from ${timeText(from)} on`);
  });
  const t = Number(here().params.t);
  if (t >= times[0] && t <= times[1]) svg.append(s("line", { class: "handle", x1: xOf(t, times), x2: xOf(t, times), y1: 0, y2: height }));
  return svg;
}

function block(one, most, lanes, isFixed = false) {
  const isOpen = here().params.cluster === one.cluster;
  const toggle = () => change({ cluster: isOpen ? undefined : one.cluster });
  const { t } = here().params;
  const href = logLink(one.cluster, t ? isoOf(Number(t)) : undefined);
  return h("li", { class: "cluster" },
    h("p", {}, isFixed ? h("b", {}, shownName(one.cluster)) : h("button", { type: "button", "aria-expanded": String(isOpen), title: "Show or hide its brokers", onclick: toggle }, shownName(one.cluster)),
      h("span", { class: "moment" }, ` ${one.brokers} brokers, ${one.partitions} partitions, ${one.incidents.length} incidents `),
      href ? h("a", { href }, t ? "open its log at this moment" : "open its log") : isOpen && h("span", { class: "moment" }, WITHOUT)),
    strip(one, most, isOpen ? lanes : null));
}

function legend() {
  const box = (name, text) => h("li", {}, s("svg", { width: 14, height: 10, "aria-hidden": "true" }, s("rect", { width: 14, height: 10, class: name })), text);
  return h("ul", { class: "legend", "aria-label": "Legend" }, box("leader-odd", "the quorum's leader"), box("area-leaderless", "leaderless"), box("area-under", "under min ISR"),
    box("lane-fenced", "a broker is out"), box("lane-shutdown", "shut down on purpose"), box("gap", "off, or silent"),
    h("li", {}, s("svg", { width: 12, height: 10, "aria-hidden": "true" }, s("path", { d: diamond(6, 5), class: "mark-critical" })), "partitions lost their leader"),
    h("li", {}, s("svg", { width: 12, height: 10, "aria-hidden": "true" }, s("path", { d: triangle(6, 5), class: "mark-warning" })), "leaders moved, or left the ISR"));
}

const worstOf = (clusters) => Math.max(1, ...clusters.flatMap((each) => [...each.leaderless, ...each.underMinIsr]));

async function overview(params, signal) {
  const lanes = params.cluster ? await ask("lanes", { cluster: params.cluster }, signal) : null;
  const worst = await ask("table", { kind: "incidents", size: 10 }, signal);
  const most = worstOf(fleet.clusters);
  const hurt = (one) => one.leaderless.reduce((sum, value) => sum + value, 0) + one.underMinIsr.reduce((sum, value) => sum + value, 0) / 10;
  const clusters = [...fleet.clusters];
  if ((params.sort || "hurt") === "hurt") clusters.sort((a, b) => hurt(b) - hurt(a));
  const order = h("select", { "aria-label": "Order of the clusters" }, Object.entries(ORDERS).map(([value, text]) => h("option", { value, selected: (params.sort || "hurt") === value }, text)));
  order.addEventListener("change", () => change({ sort: order.value === "hurt" ? undefined : order.value }));
  const button = (text, title, action) => h("button", { type: "button", title, onclick: action }, text);
  const numbers = Object.entries(fleet.numbers).map(([name, value]) => h("li", {}, h("a", { href: link({ clusters: "clusters", incidents: "incidents", errors: "findings" }[name] || "clusters"), class: name !== "errors" ? null : value ? "critical" : "good" }, h("b", {}, value.toLocaleString("en")), name)));
  const [low, high] = span();
  return [h("h1", {}, "Fleet"), h("p", { class: "moment" }, `${fleet.name}: ${timeText(fleet.fromMs, false)} to ${timeText(fleet.toMs, false)}.`),
    fleet.missing.length > 0 && h("p", { class: "notes" }, `There is no table ${fleet.missing.join(", ")}: what it shows is missing.`),
    h("ul", { class: "numbers", "aria-label": "The fleet in numbers" }, numbers),
    h("div", { class: "bar" }, order, button("+", "Zoom in (+)", () => zoom(0.5)), button("−", "Zoom out (-)", () => zoom(2)), button("Whole time", "Show the whole time (0)", () => show(fleet.fromMs, fleet.toMs)),
      h("span", { class: "moment" }, params.t ? `${timeText(Number(params.t), false)} is marked. ` : "Click into a strip, or press an arrow key, to mark a moment in all of them. ", `Shown: ${spanText(high - low)}.`),
      params.t && button("Remove the mark", "No moment is marked", () => change({ t: undefined }))),
    clusters.length ? h("ol", { class: "clusters" }, h("li", { class: "axis" }, axis([low, high])), clusters.map((each) => block(each, most, each.cluster === params.cluster ? lanes.brokers : null))) : h("p", { class: "empty sheet" }, "The tables have no cluster: run metaquorum pipeline ingest with logs."),
    legend(), h("h2", {}, "The worst incidents"), incidents(worst, {}), h("p", {}, h("a", { href: link("incidents") }, `all ${worst.total} incidents`))];
}

const CELLS = {
  fromTime: (row) => h("td", { class: "time" }, row.fromTime === null ? "before the log" : h("a", { href: link("overview", { t: row.fromTime, cluster: row.cluster }), title: "Show this moment in all clusters" }, timeText(row.fromTime, false))),
  cluster: (row) => h("td", { class: "name" }, h("a", { href: link("overview", { cluster: row.cluster, t: row.fromTime && row.offset !== undefined ? row.fromTime : undefined }) }, row.cluster)),
  severity: (row) => h("td", {}, word(row.severity, { error: "critical" }[row.severity] || row.severity)),
  offset: (row) => {
    const href = row.offset === null || row.offset === undefined ? null : logLink(row.cluster, `${row.offset}+`);
    return h("td", { class: "number" }, href ? h("a", { href, title: "Its log, after this record" }, String(row.offset)) : valueText(row.offset));
  },
  what: (row) => {
    const name = word(row.what, row.leaderless ? "critical" : row.isHurting ? "warning" : "detail");
    return h("td", {}, row.fromTime === null ? name : h("a", { href: incidentLink(row), title: "This incident, and what happened around it" }, name));
  },
  text: (row) => h("td", { class: "long" }, row.text),
  availability: (row) => h("td", { class: "number" }, row.availability === null ? "–" : `${(100 * row.availability).toFixed(3)} %`),
  toTime: (row) => h("td", { class: "time" }, timeText(row.toTime, false)),
};
const SPANS = { leaderlessMs: 1, lastedMs: 1, seconds: 1000, leaderlessSeconds: 1000, underMinIsrSeconds: 1000 };

function cells(row, columns) {
  return columns.map((name) => {
    const value = row[name];
    if (CELLS[name] && !(name === "fromTime" && row.availability !== undefined)) return CELLS[name](row);
    if (name === "fromTime") return h("td", { class: "time" }, timeText(value, false));
    if (SPANS[name]) return h("td", { class: "number" }, value === null || value === undefined ? "–" : spanText(value * SPANS[name]));
    return h("td", { class: typeof value === "number" ? "number" : null }, typeof value === "number" ? value.toLocaleString("en") : valueText(value));
  });
}

function incidents(page, params) {
  return sheet(captionOf("incidents", page, params), page.columns.map((name) => h("th", { scope: "col", class: hasNumbers(page, name) && name !== "fromTime" ? "number" : null }, columnOf(name))), page.rows.map((row) => cells(row, page.columns)), "Nothing went wrong.");
}

function tableView(kind) {
  return async (params, signal) => {
    const wanted = { kind, text: params.text, show: params.show, sort: params.sort, order: params.order, start: params.start, size: SIZE };
    const page = await ask("table", wanted, signal);
    const clusters = h("select", { "aria-label": "Only this cluster" }, h("option", { value: "" }, "all clusters"), fleet.clusters.map((each) => h("option", { value: each.cluster, selected: params.show === each.cluster }, each.cluster)));
    clusters.addEventListener("change", () => change({ show: clusters.value || undefined, start: undefined }));
    const empty = page.total ? "None fits the filter. Clear it to see them." : kind === "clusters" ? "The tables have no cluster." : "Nothing went wrong.";
    return [h("h1", {}, titleOf(kind)), pager(kind, page, params, [clusters, files(wanted)]),
      sheet(captionOf(kind, page, params), page.columns.map((name) => sorter(name, page, params)), page.rows.map((row) => cells(row, page.columns)), empty)];
  };
}

const AROUND_MS = 60000, EVENTS = 200, LOOK_MS = 500;

/** The page of an incident, at first with a minute before it and after it. */
function incidentLink(row) {
  const from = row.fromTime - AROUND_MS, to = row.fromTime + (row.lastedMs ?? 0) + AROUND_MS;
  return link("incident", { cluster: row.cluster, begun: row.fromTime, t: row.fromTime, what: row.what, who: row.who, from, to });
}

/** One incident with what happened around it, in all clusters and in its cluster's log: what a ticket needs. */
async function incident(params, signal) {
  const [low, high] = span(), { cluster } = params;
  const page = await ask("table", { kind: "incidents", fromMs: Math.round(low), toMs: Math.round(high), sort: "fromTime", size: SIZE }, signal);
  const own = await ask("table", { kind: "incidents", show: cluster, fromMs: params.begun, toMs: params.begun, size: 1000 }, signal);
  const row = own.rows.find((each) => each.what === params.what && each.who === params.who);
  if (!row) throw new Error("There is no such incident. Choose one in the table of incidents.");
  const lanes = await ask("lanes", { cluster }, signal);
  const near = fleet.clusters.filter((each) => each.cluster === cluster || page.rows.some((one) => one.cluster === each.cluster));
  near.sort((a, b) => (b.cluster === cluster) - (a.cluster === cluster));
  const title = `${row.who}: ${row.what}`, most = worstOf(near);
  const facts = [row.cause && `Cause: ${row.cause}`, `${row.partitions} partitions`, row.leaderless > 0 && `${row.leaderless} of them leaderless, the longest for ${spanText(row.leaderlessMs ?? 0)}`,
    row.lastedMs === null ? "not over when the log ends" : `lasted ${spanText(row.lastedMs)}`].filter(Boolean).join("; ");
  const made = { title: `${title}, cluster ${cluster}`, nodes: null, command: "" };
  const events = section("Events of its log");
  if (logLink(cluster)) eventsOf(cluster, [low, high], signal, made).then((nodes) => fill(events, nodes), (error) => error.name !== "AbortError" && fill(events, [h("p", { class: "empty sheet" }, error.message)]));
  else fill(events, [h("p", { class: "empty sheet" }, WITHOUT)]);
  made.nodes = [h("h1", {}, title), h("p", { class: "moment" }, `Cluster ${cluster}, ${timeText(row.fromTime)}, record ${valueText(row.offset)}. ${facts}.`),
    h("p", { class: "moment" }, `Shown: ${timeText(low)} to ${timeText(high)} (+ and - zoom).`),
    h("ol", { class: "clusters" }, h("li", { class: "axis" }, axis([low, high])), near.map((each) => block(each, most, each.cluster === cluster ? lanes.brokers : null, true))),
    legend(), h("h2", {}, "Incidents in all clusters meanwhile"), incidents(page, {}), events];
  return made;
}

const section = (title) => h("section", { "aria-label": title, "aria-busy": "true" }, h("h2", {}, title), h("p", { class: "empty sheet" }, "Reading the log…"));

function fill(made, nodes) {
  made.replaceChildren(made.firstChild, ...nodes);
  made.removeAttribute("aria-busy");
}

/** The events of a cluster's log between two times, once it was read that far. */
async function eventsOf(cluster, [low, high], signal, made) {
  const first = fleet.clusters.find((each) => each.cluster === cluster).fromMs; // an earlier time is none of the log's
  const wanted = { severity: "info", from: isoOf(Math.max(low, first)), to: isoOf(Math.max(high, first)), size: EVENTS };
  let answer;
  for (;;) {
    answer = await ask("events", wanted, signal, `/log/${encodeURIComponent(cluster)}/`);
    if (answer.progress === 1) break;
    await new Promise((next) => setTimeout(next, LOOK_MS));
    if (signal.aborted) throw new DOMException("overtaken", "AbortError");
  }
  made.command = shown.command = answer.command;
  const rows = answer.events.map((each) => [h("td", { class: "time" }, timeText(each.createTime)), word(each.severity, each.severity), each.kind, h("td", { class: "long" }, each.text, each.rule ? ` [${each.rule}]` : ""),
    h("a", { href: logLink(cluster, `${each.offset}+`), title: "Its log, after this record" }, String(each.offset))]);
  return [sheet(`${answer.events.length} of ${answer.count} events`, ["time", "severity", "kind", "what happened", "record"], rows, "The log has no event between these times.")];
}

const VIEWS = { overview, incident, incidents: tableView("incidents"), findings: tableView("findings"), clusters: tableView("clusters") };

async function load() {
  loading?.abort();
  const mine = (loading = new AbortController());
  const { view, params } = here();
  document.getElementById("nav").replaceChildren(...NAV.map((each) => h("a", { href: link(each), "aria-current": each === view ? "page" : null }, titleOf(each))));
  const waiting = busySoon(main, view === shown.view ? null : h("h1", {}, titleOf(view)));
  try {
    if (!VIEWS[view]) throw new Error(`There is no view ${view}. Choose one above.`);
    fleet ??= await ask("fleet", {}, mine.signal);
    document.getElementById("log-name").textContent = fleet.name;
    const found = await VIEWS[view](params, mine.signal);
    const made = Array.isArray(found) ? { nodes: found } : found;
    if (mine.signal.aborted) return;
    shown = { view, title: made.title || titleOf(view), command: made.command || fleet.command };
    document.title = `${shown.title} · ${fleet.name} · metaquorum`;
    const focus = document.activeElement?.id;
    main.replaceChildren(...made.nodes.flat(Infinity).filter(Boolean));
    if (focus) document.getElementById(focus)?.focus();
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    main.replaceChildren(h("h1", {}, "Fleet"), h("p", { class: "error" }, error.message));
  } finally {
    clearTimeout(waiting);
    if (loading === mine) main.removeAttribute("aria-busy");
  }
}

frame(load);
const notice = (text) => { const line = document.getElementById("notice"); line.hidden = !text; line.textContent = text; };
document.getElementById("copy").addEventListener("click", async () => notice(await copy(shown.command)));
document.getElementById("save").addEventListener("click", () => (main.querySelector("[aria-busy]") ? notice("The log is still being read; save again when its events are there.") : save(shown.title, shown.command)));
new ResizeObserver(() => {
  const now = Math.max(200, Math.min(1700, Math.round(main.clientWidth - 32)));
  if (Math.abs(now - width) > 4) { width = now; if (fleet) load(); }
}).observe(main);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !fleet || event.target.closest("input, select, textarea")) return;
  if (event.key.startsWith("Arrow") && (scrollsItself(event.target) || !document.getElementById("moment"))) return;
  const sideways = event.shiftKey ? (way) => pan(way * PANNED) : step;
  const actions = { "+": () => zoom(0.5), "-": () => zoom(2), 0: () => show(fleet.fromMs, fleet.toMs), ArrowLeft: () => sideways(-1), ArrowRight: () => sideways(1) };
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
});
addEventListener("hashchange", load);
if (!location.hash) history.replaceState(null, "", link("overview"));
load();
