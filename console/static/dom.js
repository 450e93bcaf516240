// Makes elements. Text is always set as text, so names and values cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Characters that nobody sees but that turn, hide or break the text around them, as escapes. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

function visible(child) {
  if (typeof child !== "string") return child;
  return child.replace(UNSEEN, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(visible));
  return element;
}

export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function s(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export const settings = { utc: localStorage.getItem("zone") === "utc" };

const pad = (number, size = 2) => String(number).padStart(size, "0");

/** A time as 2026-11-21 03:11:32.899, in UTC or in the browser's zone. */
export function timeText(ms, precise = true) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return `${ms} ms`;
  const parts = settings.utc
    ? [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
  const [year, month, day, hour, minute, second] = parts;
  const text = `${pad(year, 4)}-${pad(month)}-${pad(day)} ${pad(hour)}:${pad(minute)}:${pad(second)}`;
  return (precise ? `${text}.${pad(((ms % 1000) + 1000) % 1000, 3)}` : text) + (settings.utc ? "Z" : "");
}

/** A sentence of the tools that begins a line of the page; a path at its beginning stays as it is. */
export const sentence = (text) => text.replace(/^[a-z](?=[a-z-]*(?:[\s,:;]|$))/, (letter) => letter.toUpperCase());

/** A sentence of the tools with its times as the page writes them. */
export function withTimes(text) {
  return text.replace(/\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z/g, (each) => timeText(Date.parse(each)));
}

/** A duration as the tools write it: 340 ms, 8.9 s, 4 min 12 s, 3 h 5 min, 2 d 4 h. */
export function spanText(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A value of a field in a cell. */
export function valueText(value) {
  if (value === null || value === undefined) return "–";
  if (Array.isArray(value) && value.every((each) => typeof each !== "object" || each === null)) return value.length ? value.join(", ") : "[]";
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

export function word(text, kind) {
  return h("span", { class: `word ${kind}` }, text);
}
