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

/** Pairs of a time and its text, at most as many as fit. */
export function tickTimes(low, high, most) {
  const steps = [1, 10, 100, 1000, 5000, 15000, 60000, 300000, 900000, 3600000, 10800000, 43200000, 86400000, 604800000, 2592000000, 31536000000];
  const fits = Math.max(2, Math.floor(most)), length = high - low;
  const every = steps.find((each) => length / each <= fits) || steps.at(-1) * Math.ceil(length / steps.at(-1) / fits);
  const away = every >= 3600000 && new Date(low).getTimezoneOffset() * 60000;
  const pairs = [];
  for (let ms = Math.ceil((low - away) / every) * every + away; ms <= high; ms += every) {
    const text = timeText(ms, every < 1000);
    pairs.push([ms, every >= 86400000 ? text.slice(0, 10) : every >= 60000 ? text.slice(5, 16) : text.slice(11)]);
  }
  return pairs;
}
