// The strip of time: drawn as SVG from what the server cut for the window of time that is shown.

import { ask } from "./api.js";
import { h, s, spanText, timeText, valueText } from "./dom.js";
import { diamond, patterns, tickTexts, tickTimes, triangle } from "./drawing.js";
import { scrollsItself } from "./frame.js";
import { change, here } from "./place.js";

const LEADERS = 16, AREA = 44, MARKS = 16, TICKS = 16, GAP = 3, LABELS = 64;
const SPEEDS = [1, 10, 60, 600, 3600, 86400];
const FRAME_MS = 250;
const PANNED = 0.2; // of the window

let data = null;
let view = null; // {fromMs, toMs}; null: the whole log
let svg = null;
let width = 1000;
let parts = null;
let playing = 0;
let timer = null;
let asked = null;
let dragging = null;
let touches = new Map();
const marks = { at: null, since: null }; // {offset, timeMs} as the server answered

export function build(footer) {
  const button = (text, title, action, more = {}) => h("button", { type: "button", title, onclick: action, ...more }, text);
  const speed = h("select", { "aria-label": "Speed of playing" }, SPEEDS.map((each) => h("option", { value: each, selected: each === 60 }, `×${each}`)));
  parts = {
    speed,
    now: h("span", { class: "now", "aria-live": "off" }),
    since: h("span", { class: "now second" }),
    progress: h("span", { class: "moment progress", role: "status" }), // over the legend, so that nothing moves when it goes
    play: button("Play", "Play forward (space)", () => play(1), { "aria-pressed": "false" }),
    back: button("Play back", "Play backward", () => play(-1), { "aria-pressed": "false" }),
    end: button("To the end", "Follow the log's end (e)", toEnd),
    second: button("Second moment", "Set or remove a second moment, to see what differs (d)", toggleSecond, { "aria-pressed": "false" }),
    scroll: h("div", { class: "scroll" }),
  };
  footer.replaceChildren(
    h("div", { class: "controls" },
      button("‹ record", "The state before the previous record (left arrow)", () => step(-1)),
      button("record ›", "The state after the next record (right arrow)", () => step(1)),
      parts.back, parts.play, speed, parts.end, parts.second,
      button("+", "Zoom in (+)", () => zoom(0.5), { "aria-label": "Zoom in" }),
      button("−", "Zoom out (-)", () => zoom(2), { "aria-label": "Zoom out" }),
      button("Whole log", "Show the whole log (0)", () => show(null)),
      h("div", { class: "moments" }, parts.now, parts.since),
      parts.progress),
    parts.scroll,
    legend());
  new ResizeObserver(() => {
    const now = Math.max(200, Math.round(parts.scroll.clientWidth));
    if (Math.abs(now - width) > 4) { width = now; refresh(); }
  }).observe(parts.scroll);
  document.addEventListener("keydown", keys);
}

function legend() {
  const box = (name) => s("svg", { width: 14, height: 10, "aria-hidden": "true" }, s("rect", { width: 14, height: 10, class: name }));
  return h("ul", { class: "legend", "aria-label": "Legend" },
    h("li", {}, box("lane-active"), "active"), h("li", {}, box("lane-fenced"), "fenced"),
    h("li", {}, box("lane-shutdown"), "controlled shutdown"), h("li", {}, box("gap"), "gap, lost records or uncertain clock"),
    h("li", {}, box("area-leaderless"), "leaderless"), h("li", {}, box("area-under"), "under min ISR"),
    h("li", {}, s("svg", { width: 12, height: 10 }, s("path", { d: diamond(6, 5), class: "mark-critical" })), "critical"),
    h("li", {}, s("svg", { width: 12, height: 10 }, s("path", { d: triangle(6, 5), class: "mark-warning" })), "warning"));
}

/** Asks for the window that is shown, at most once at a time. */
export async function refresh() {
  if (asked) { asked.again = true; return; }
  asked = { again: false };
  const wanted = view;
  try {
    data = await ask("strip", { ...(wanted || {}), width: width - LABELS });
    draw();
  } catch (error) {
    parts.progress.textContent = error.message;
  }
  const again = asked.again;
  asked = null;
  if (again) refresh();
}

/** Whether a handle is held now: it stays where it is held. */
export const isDragged = () => Boolean(dragging && !dragging.pan);

/** The moments that the view shows, as the server placed them. */
export function setMoments(at, since) {
  if (isDragged()) return;
  const isMoved = at && here().params.at && marks.at?.offset !== at.offset;
  marks.at = at;
  marks.since = since;
  if (isMoved) reveal(at.timeMs);
  drawHandles();
}

/** Moves the window of a strip that is zoomed in to a time outside it. */
function reveal(ms) {
  if (!view || ms === null || (ms >= low() && ms <= high())) return;
  const half = (high() - low()) / 2;
  show({ fromMs: ms - half, toMs: ms + half });
}

const low = () => (view ? view.fromMs : data.fromMs);
const high = () => Math.max(low() + 1, view ? view.toMs : data.toMs);
const xOf = (ms) => LABELS + ((ms - low()) / (high() - low())) * (width - LABELS);
const msOf = (x) => low() + ((x - LABELS) / (width - LABELS)) * (high() - low());
const clamp = (x) => Math.max(LABELS, Math.min(width, x));

function draw() {
  const brokers = data.brokers;
  const lane = brokers.length > 40 ? 4 : brokers.length > 12 ? 8 : 12;
  const top = TICKS + LEADERS + GAP + AREA + GAP + MARKS + GAP;
  const height = top + brokers.length * (lane + 2) + 2;
  const fresh = s("svg", {
    class: "time", height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", tabindex: 0, role: "slider",
    "aria-label": "Moment of the log", "aria-valuemin": data.startOffset, "aria-valuemax": data.endOffset,
  }, patterns());
  ticks(fresh, height);
  leaders(fresh, TICKS);
  const areaTop = TICKS + LEADERS + GAP;
  area(fresh, areaTop);
  label(fresh, areaTop + 12, "partitions");
  brokers.forEach((broker, number) => laneOf(fresh, broker, top + number * (lane + 2), lane));
  for (const gap of data.gaps) hatch(fresh, gap, TICKS, height);
  if (data.readMs !== null && data.readMs < high()) {
    const x = clamp(xOf(data.readMs));
    fresh.append(s("rect", { class: "unread", x, y: TICKS, width: width - x, height: height - TICKS }, s("title", {}, "not read yet")));
    if (width - x > 90) fresh.append(s("text", { x: x + 6, y: areaTop + 26 }, "not read yet"));
  }
  const few = data.axis.filter(([ms]) => ms >= low() && ms <= high());
  if (few.length && few.length < (width - LABELS) / 8) {
    for (const [ms, offset] of few) {
      fresh.append(s("rect", { class: "record-mark", x: clamp(xOf(ms)) - 1, y: areaTop + AREA + GAP + MARKS - 5, width: 2, height: 5 }, s("title", {}, `record ${offset} ${timeText(ms)}`)));
    }
  }
  for (const [ms, offset, severity, count, kind, text] of data.marks) {
    const x = clamp(xOf(ms)), y = areaTop + AREA + GAP + MARKS / 2 - 1;
    const shape = severity === "critical" ? diamond(x, y) : triangle(x, y);
    fresh.append(s("path", { d: shape, class: `mark-${severity}`, "data-offset": offset },
      s("title", {}, `${timeText(ms)} ${kind}: ${text}${count > 1 ? ` (and ${count - 1} more near)` : ""}`)));
  }
  label(fresh, areaTop + AREA + GAP + 12, "events");
  fresh.append(s("g", { class: "handles" }));
  listen(fresh);
  const focused = document.activeElement === svg;
  parts.scroll.replaceChildren(fresh);
  svg = fresh;
  if (focused) svg.focus();
  drawHandles();
  parts.progress.textContent = data.progress < 1 ? `events read: ${Math.floor(100 * data.progress)} %` : "";
}

const label = (to, y, text) => to.append(s("text", { x: 0, y }, text.length > 10 ? `${text.slice(0, 9)}…` : text));

const times = () => tickTimes(low(), high(), width - LABELS);

function ticks(to, height) {
  for (const [ms] of times()) to.append(s("line", { class: "tick", x1: xOf(ms), x2: xOf(ms), y1: 0, y2: height }));
  to.append(s("g", { class: "times" })); // filled with the handles, which they give way to
}

function leaders(to, y) {
  label(to, y + 12, "leader");
  data.leaders.forEach(([offset, ms, leader, epoch], number) => {
    const next = data.leaders[number + 1];
    const x = clamp(xOf(ms)), end = next ? clamp(xOf(next[1])) : width;
    if (end <= x && next) return;
    to.append(s("rect", { class: epoch % 2 ? "leader-odd" : "leader-even", x, y, width: Math.max(1, end - x), height: LEADERS },
      s("title", {}, `controller ${leader} leads from record ${offset} on (${timeText(ms)}), epoch ${epoch}`)));
    if (number) to.append(s("line", { class: "leader-edge", x1: x, x2: x, y1: y, y2: y + LEADERS })); // an epoch may be skipped
    if (end - x > 60) to.append(s("text", { class: "on", x: x + 5, y: y + 12, "pointer-events": "none" }, `${leader} · epoch ${epoch}`.slice(0, Math.floor((end - x) / 6.5))));
  });
}

// The square root of how many: one partition is visible beside ten thousand.
function area(to, y) {
  const most = Math.max(1, ...data.area.map(([, leaderless, under]) => Math.max(leaderless || 0, under || 0)));
  const path = (column) => {
    let d = `M${LABELS} ${y + AREA}`;
    for (const row of data.area) {
      const x = clamp(xOf(row[0])), value = row[column] || 0;
      d += `H${x}V${y + AREA - Math.sqrt(value / most) * (AREA - 2)}`;
    }
    return `${d}H${width}V${y + AREA}Z`;
  };
  const last = data.area.at(-1);
  const what = last ? `at the end of the window ${valueText(last[1])} leaderless, ${valueText(last[2])} under min ISR; most: ${most}` : "nothing known";
  to.append(s("line", { class: "tick", x1: LABELS, x2: width, y1: y + AREA, y2: y + AREA }));
  to.append(s("path", { class: "area-under", d: path(2) }, s("title", {}, `partitions under min ISR; ${what}`)));
  to.append(s("path", { class: "area-leaderless", d: path(1) }, s("title", {}, `leaderless partitions; ${what}`)));
  to.append(s("text", { x: 0, y: y + 26 }, most > 1 || data.area.some((row) => row[1] || row[2]) ? `max ${most}` : "none hurt"));
}

function laneOf(to, broker, y, height) {
  if (height >= 8) label(to, y + Math.min(10, height), `broker ${broker.id}`);
  broker.turns.forEach(([offset, ms, state], number) => {
    const next = broker.turns[number + 1];
    const x = clamp(xOf(ms)), end = next ? clamp(xOf(next[1])) : width;
    if (state === "gone" || (end <= x && next)) return;
    to.append(s("rect", { class: `lane-${state}`, x, y, width: Math.max(1, end - x), height },
      s("title", {}, `broker ${broker.id}: ${state} from record ${offset} on, ${timeText(ms)}${next ? `, for ${spanText(next[1] - ms)}` : ""}`)));
  });
}

function hatch(to, gap, y, height) {
  const x = clamp(xOf(gap.fromMs)), end = gap.toMs === null ? width : clamp(xOf(gap.toMs));
  if (end < LABELS || x > width || (gap.toMs !== null && gap.toMs < low()) || gap.fromMs > high()) return;
  if (gap.reason === "gap in time" && end - x < 4) return; // too short to be seen beside what happened
  to.append(s("rect", { class: "gap", x, y, width: Math.max(2, end - x), height: height - y }, s("title", {}, `${gap.reason}: ${gap.text}`)));
  if (end - x > 90) to.append(s("text", { x: x + 4, y: y + LEADERS + 14 }, gap.reason));
}

function drawHandles() {
  if (!svg || !data) return;
  const group = svg.querySelector(".handles");
  const height = svg.viewBox.baseVal.height;
  const one = (moment, kind) => {
    const x = clamp(xOf(moment.timeMs ?? low()));
    return [s("line", { class: `handle ${kind}`, x1: x, x2: x, y1: 4, y2: height }), s("circle", { class: `handle-knob ${kind}`, cx: x, cy: 6, r: 6 })];
  };
  const shown = [];
  if (marks.since && marks.at) {
    const ends = [clamp(xOf(marks.since.timeMs ?? low())), clamp(xOf(marks.at.timeMs ?? low()))].sort((a, b) => a - b);
    shown.push(s("rect", { class: "between", x: ends[0], width: ends[1] - ends[0], y: 0, height }));
    shown.push(...one(marks.since, "second"));
  }
  if (marks.at) shown.push(...one(marks.at, ""));
  group.replaceChildren(...shown);
  const handles = [marks.at, marks.at && marks.since].filter(Boolean).map((each) => clamp(xOf(each.timeMs ?? low())));
  svg.querySelector(".times").replaceChildren(...tickTexts(times(), xOf, [LABELS, width], 11, handles));
  if (marks.at) {
    svg.setAttribute("aria-valuenow", marks.at.offset);
    svg.setAttribute("aria-valuetext", `offset ${marks.at.offset}, ${timeText(marks.at.timeMs)}`);
    parts.now.textContent = `offset ${marks.at.offset} · ${timeText(marks.at.timeMs)}${here().params.at ? "" : " · the end, followed"}`;
  }
  parts.since.textContent = marks.since ? `compared with ${marks.since.offset} · ${timeText(marks.since.timeMs)}` : "";
  parts.second.setAttribute("aria-pressed", String(Boolean(here().params.since)));
}

/** The offset for a time: after the last batch that is not later. */
function offsetAt(ms) {
  let found = data.axis[0] ? data.axis[0][1] : data.startOffset;
  for (const [time, offset] of data.axis) {
    if (time > ms) break;
    found = offset;
  }
  return found;
}

function move(ms, second, isOver) {
  const offset = offsetAt(Math.max(data.firstMs, Math.min(data.lastMs, ms)));
  const name = second ? "since" : "at";
  marks[name] = { offset, timeMs: Math.max(data.firstMs, Math.min(data.lastMs, ms)) };
  drawHandles();
  change({ [name]: String(offset) }, !isOver);
}

function listen(element) {
  const x = (event) => ((event.clientX - element.getBoundingClientRect().left) / element.getBoundingClientRect().width) * width;
  element.addEventListener("pointerdown", (event) => {
    const mark = event.target.closest("[data-offset]");
    if (mark) { stop(); change({ at: `${mark.dataset.offset}+` }); return; }
    touches.set(event.pointerId, x(event));
    element.setPointerCapture(event.pointerId);
    const nearSecond = marks.since && Math.abs(xOf(marks.since.timeMs ?? low()) - x(event)) < 8;
    dragging = { second: Boolean(nearSecond), pan: event.shiftKey || event.button === 1, from: x(event), low: low(), high: high() };
    stop();
    if (!dragging.pan && touches.size === 1) move(msOf(x(event)), dragging.second, false);
  });
  element.addEventListener("pointermove", (event) => {
    if (!dragging || !touches.has(event.pointerId)) return;
    if (touches.size === 2) { pinch(event.pointerId, x(event)); return; }
    touches.set(event.pointerId, x(event));
    if (dragging.pan) {
      const ms = ((x(event) - dragging.from) / (width - LABELS)) * (dragging.high - dragging.low);
      show({ fromMs: dragging.low - ms, toMs: dragging.high - ms });
    } else move(msOf(x(event)), dragging.second, false);
  });
  const over = (event) => {
    touches.delete(event.pointerId);
    if (touches.size || !dragging) return;
    const { pan } = dragging;
    dragging = null;
    if (!pan) dispatchEvent(new HashChangeEvent("hashchange")); // the server places the handle that was let go
  };
  element.addEventListener("pointerup", over);
  element.addEventListener("pointercancel", over);
  element.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const ms = ((event.deltaX || event.deltaY) / (width - LABELS)) * (high() - low());
      show({ fromMs: low() + ms, toMs: high() + ms });
    } else zoom(event.deltaY > 0 ? 1.25 : 0.8, msOf(x(event)));
  }, { passive: false });
}

function pinch(moved, x) {
  const [one, two] = [...touches.keys()];
  const other = touches.get(moved === one ? two : one);
  const before = Math.abs(touches.get(moved) - other), now = Math.abs(x - other);
  touches.set(moved, x);
  if (before > 4 && now > 4) zoom(before / now, msOf((x + other) / 2));
}

function zoom(factor, around = null) {
  if (!data) return;
  const center = around ?? marks.at?.timeMs ?? (low() + high()) / 2;
  const fromMs = center - (center - low()) * factor, toMs = center + (high() - center) * factor;
  if (fromMs <= data.firstMs && toMs >= data.lastMs) show(null);
  else if (toMs - fromMs >= 4) show({ fromMs, toMs });
}

function show(wanted) {
  view = wanted && { fromMs: Math.max(0, Math.round(wanted.fromMs)), toMs: Math.round(wanted.toMs) };
  if (data) draw();
  refresh();
}

/** Moves the window of a strip that is zoomed in by a part of its width, at most to the log's ends. */
function pan(way) {
  if (!view) return;
  const length = high() - low();
  const fromMs = Math.max(data.firstMs, Math.min(data.lastMs - length, low() + way * PANNED * length));
  show({ fromMs, toMs: fromMs + length });
}

function step(by) {
  stop();
  if (!marks.at) return;
  const offset = marks.at.offset;
  if (by < 0 && offset > (data?.startOffset ?? 0)) change({ at: String(offset - 1) });
  else if (by > 0 && data && offset < data.endOffset) change({ at: `${offset}+` });
}

function toEnd() { stop(); change({ at: undefined }); }

function toggleSecond() {
  const { at, since } = here().params;
  if (since) change({ since: undefined });
  else if (data && marks.at) {
    const back = at ? String(marks.at.offset) : String(offsetAt(low() + (high() - low()) * 0.5));
    change({ since: back });
  }
}

function stop() {
  clearInterval(timer);
  timer = null;
  playing = 0;
  parts.play.setAttribute("aria-pressed", "false");
  parts.back.setAttribute("aria-pressed", "false");
}

/** Plays time forward or back; a second press stops. */
function play(way) {
  if (playing === way) { stop(); return; }
  stop();
  if (!data || !marks.at) return;
  playing = way;
  (way > 0 ? parts.play : parts.back).setAttribute("aria-pressed", "true");
  let ms = marks.at.timeMs ?? data.firstMs;
  if (way > 0 && ms >= data.lastMs) ms = data.firstMs;
  timer = setInterval(() => {
    ms += way * FRAME_MS * Number(parts.speed.value);
    if (ms >= data.lastMs || ms <= data.firstMs) { const last = way > 0; stop(); if (last) change({ at: undefined }, true); return; }
    if (view && (ms > view.toMs || ms < view.fromMs)) show({ fromMs: view.fromMs + way * (view.toMs - view.fromMs) * 0.8, toMs: view.toMs + way * (view.toMs - view.fromMs) * 0.8 });
    const offset = String(offsetAt(ms));
    if (offset !== here().params.at) change({ at: offset }, true);
    marks.at = { offset: Number(offset), timeMs: ms };
    drawHandles();
  }, FRAME_MS);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, [contenteditable]")) return;
  if (event.key.startsWith("Arrow") && scrollsItself(event.target)) return;
  const onButton = event.target.closest("button, a, summary");
  const sideways = event.shiftKey ? pan : step;
  const actions = {
    ArrowLeft: () => sideways(-1), ArrowRight: () => sideways(1), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => show(null),
    e: toEnd, d: toggleSecond, Home: () => change({ at: String(data.startOffset) }), End: toEnd, ...(onButton ? {} : { " ": () => play(1) }),
  };
  const isOnStrip = event.target === svg || event.target === document.body;
  const always = ["e", "d", "+", "-", "0", "ArrowLeft", "ArrowRight"];
  if (actions[event.key] && data && (isOnStrip || always.includes(event.key))) { event.preventDefault(); actions[event.key](); }
}
