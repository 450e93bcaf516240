// What every strip of time draws alike: the shapes of marks, hatched fills, and where the ticks are.

import { s, timeText } from "./dom.js";

export const diamond = (x, y) => `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z`;
export const triangle = (x, y) => `M${x} ${y - 4}L${x + 4.5} ${y + 4}L${x - 4.5} ${y + 4}Z`;

export function patterns() {
  const lines = (id, ground, line) => s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    ground && s("rect", { width: 6, height: 6, class: ground }), s("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: line }));
  return s("defs", {}, lines("fenced", "fenced-ground", "fenced-line"), lines("gap", null, "gap-line"),
    s("pattern", { id: "shutdown", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
      s("rect", { width: 5, height: 5, class: "shutdown-ground" }), s("circle", { cx: 2.5, cy: 2.5, r: 1, class: "shutdown-dot" })));
}

const APART = 100, LETTER = 6.3, KNOB = 8; // pixels: between two ticks, of a letter of a tick's text, half of a handle

/** Pairs of a time and its text, at most as many as fit into so many pixels. */
export function tickTimes(low, high, pixels) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1200000, 1800000, 3600000, 7200000, 10800000, 21600000, 43200000, 86400000, 172800000, 604800000, 2592000000, 7776000000, 31536000000];
  const fits = Math.max(2, Math.floor(pixels / APART)), length = high - low;
  const every = steps.find((each) => length / each <= fits) || steps.at(-1) * Math.ceil(length / steps.at(-1) / fits);
  const away = every >= 3600000 && new Date(low).getTimezoneOffset() * 60000;
  const pairs = [];
  for (let ms = Math.ceil((low - away) / every) * every + away; ms <= high; ms += every) {
    const text = timeText(ms, every < 1000);
    pairs.push([ms, every >= 86400000 ? text.slice(0, 10) : every >= 60000 ? text.slice(5, 16) : text.slice(11)]);
  }
  return pairs;
}

/** The texts of ticks: each on the right of its tick, on the left if a handle or the edge is in the way there, or absent. */
export function tickTexts(ticks, xOf, [left, right], y, handles = []) {
  let taken = left;
  return ticks.map(([ms, text]) => {
    const x = xOf(ms), size = text.length * LETTER;
    const from = [x + 3, x - 3 - size].find((each) => each >= taken && each + size <= right && handles.every((at) => at < each - KNOB || at > each + size + KNOB));
    if (from === undefined) return null;
    taken = from + size;
    return s("text", from > x ? { x: from, y } : { x: x - 3, y, "text-anchor": "end" }, text);
  }).filter(Boolean);
}
