// A table that the server sorts, filters and cuts into pages.

import { address, ask } from "./api.js";
import { h, timeText, valueText, word } from "./dom.js";
import { change, entityLink, here, link, moments } from "./place.js";

export const SIZE = 100;
const TITLES = { // where a column's name, in words, is not its title
  underMinIsr: "under min ISR", permissionType: "permission", patternType: "pattern", issueTimestampMs: "issued", expirationTimestampMs: "expires", isr: "ISR", changeTimestampMs: "last changed", changedBy: "by", "producer-ids": "kind", leadersShare: "share of leaders", ids: "broker ids",
  fromTime: "when", toTime: "until", leaderlessSeconds: "leaderless", underMinIsrSeconds: "under min ISR",
  leaderlessMs: "longest leaderless", lastedMs: "lasted", availability: "with a leader",
};
const EMPTY = {
  acls: "No access control entry is in force at this moment. Without entries, brokers decide by allow.everyone.if.no.acl.found.",
  users: "No SCRAM credential exists at this moment.", quotas: "No client quota is set at this moment.",
  tokens: "No delegation token exists at this moment.", configs: "Nothing is configured at this moment: every setting has its default or comes from a node's own file.",
  brokers: "No broker is registered at this moment. Move the handle to a later one.", topics: "No topic exists at this moment. Move the handle to a later one.",
  racks: "No broker is registered at this moment. Move the handle to a later one.", partitions: "No partition exists at this moment. Move the handle to a later one.",
  "producer-ids": "No producer id was given to a broker up to this moment.",
  features: "No feature has a level at this moment. Move the handle to a later one.", quorum: "No record says who the voters are at this moment. Move the handle to a later one.",
};

export const titleOf = (name) => TITLES[name] || name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

const LONG_WORD = /\S{32}/; // it would make a table wider than the page

/** A table with a caption, headers and rows of cells. Each cell has its column's name: on a narrow page a row is a card. */
export function sheet(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty sheet" }, empty);
  const names = columns.map((column) => (column instanceof Node ? column.textContent.replace(/ [↓↑]$/, "") : column));
  const named = (cell, number) => {
    const made = cell instanceof Node && cell.tagName === "TD" ? cell : h("td", {}, cell);
    made.dataset.column = names[number];
    if (columns[number]?.classList?.contains("number")) made.classList.add("number");
    if (LONG_WORD.test(made.textContent)) {
      made.classList.remove("time");
      made.classList.add("long");
    }
    if (made.childNodes.length > 1) made.replaceChildren(h("div", {}, [...made.childNodes])); // on a card, one thing beside the name
    return made;
  };
  return h("div", { class: "sheet", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => (column instanceof Node ? column : h("th", { scope: "col" }, column))))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map(named))))));
}

function cell(row, name, number) {
  const value = row[name];
  if (name === "rack" && number === 0) return h("td", {}, value === null ? "no rack" : h("a", { href: link("brokers", { ...moments(), text: value }) }, value));
  if (name === "leadersShare") return h("td", { class: "number" }, `${(100 * value).toFixed(1)} %`);
  if (number === 0) return h("td", { class: valueText(value).length > 24 ? "long" : null }, h("a", { href: entityLink(row.path) }, valueText(value)));
  if (name === "state") {
    const words = Array.isArray(value) ? value : [value];
    const kinds = { leaderless: "critical", underMinIsr: "warning", outOfSync: "info", reassigning: "info" };
    if (!words.length) return h("td", {}, word("ok", "state-active"));
    return h("td", {}, words.map((each) => [word(titleOf(each), kinds[each] || `state-${each}`), " "]));
  }
  if (name.endsWith("TimestampMs")) return h("td", { class: "time" }, timeText(value));
  if (name === "leader" && value === -1) return h("td", {}, word("none", "critical"));
  if (name === "leader") return h("td", {}, valueText(value));
  if (name === "replicas" && Array.isArray(value) && Array.isArray(row.isr)) return h("td", {}, value.map((each, at) => [at ? "," : "", row.isr.includes(each) ? String(each) : h("span", { class: "out", title: "out of sync" }, `${each}`)]));
  if (typeof value === "number") return h("td", { class: "number" }, String(value));
  const text = valueText(value);
  return h("td", { class: text.length > 24 ? "long" : Array.isArray(value) ? "time" : null }, text);
}

/** Whether a column has numbers; what is absent stands below them. */
export const hasNumbers = (page, name) => page.rows.some((row) => typeof row[name] === "number");

/** The header of a column that sorts. */
export function sorter(name, page, params) {
  const isSorted = params.sort === name;
  const descending = isSorted && params.order === "descending";
  const turn = isSorted && !descending ? { sort: name, order: "descending" } : isSorted ? { sort: undefined, order: undefined } : { sort: name, order: undefined };
  const isNumber = hasNumbers(page, name) && name !== page.columns[0] && name !== "leader" && !/(Ms|Time)$/.test(name);
  return h("th", { scope: "col", class: isNumber ? "number" : null, "aria-sort": isSorted ? (descending ? "descending" : "ascending") : "none" },
    h("button", { type: "button", title: `Sort by ${titleOf(name)}`, onclick: () => change({ ...turn, start: undefined }) }, titleOf(name), isSorted ? (descending ? " ↓" : " ↑") : ""));
}

/** The filter of a page of a table, and the buttons to other pages. */
export function pager(kind, page, params, more = []) {
  const start = Number(params.start || 0), last = Math.min(start + page.rows.length, page.count);
  const filter = h("input", { type: "search", value: params.text || "", placeholder: "Filter", "aria-label": `Filter ${kind}`, id: "filter" });
  filter.addEventListener("change", () => change({ text: filter.value || undefined, start: undefined }));
  return h("div", { class: "bar" }, filter, more,
    page.count > SIZE && [
      h("button", { type: "button", disabled: start === 0, onclick: () => change({ start: start > SIZE ? String(start - SIZE) : undefined }) }, "Previous page"),
      h("button", { type: "button", disabled: last >= page.count, onclick: () => change({ start: String(start + SIZE) }) }, "Next page")]);
}

export function captionOf(kind, page, params) {
  const start = Number(params.start || 0), last = Math.min(start + page.rows.length, page.count);
  const fits = page.count === page.total ? `${page.total}` : `${page.count} of ${page.total}`;
  return `${kind === "acls" ? "ACLs" : kind}: ${fits}${page.count > page.rows.length ? `, shown ${start + 1} to ${last}` : ""}`;
}

/** Links to the whole table as files. */
export function files(wanted) {
  const file = (format) => h("a", { href: address("table", { ...wanted, format }), download: "" }, format.toUpperCase());
  return h("span", { class: "count" }, "as ", file("csv"), " ", file("json"));
}

/** A page of one of the server's tables, with its filter and its pager; the parameters are the URL's. */
export async function table(kind, signal, fixed = {}) {
  const { params } = here();
  const wanted = { kind, at: params.at, text: params.text, show: params.show, sort: params.sort, order: params.order, start: params.start, size: SIZE, ...fixed };
  const page = await ask("table", wanted, signal);
  const shows = page.shows.length ? h("select", { "aria-label": "Show only", id: "show" },
    [["", `all ${kind}`], ...page.shows.map((each) => [each, titleOf(each)])].map(([value, text]) => h("option", { value, selected: (params.show || "") === value }, text))) : null;
  shows?.addEventListener("change", () => change({ show: shows.value || undefined, start: undefined }));
  const rows = page.rows.map((row) => page.columns.map((name, number) => cell(row, name, number)));
  const empty = page.total ? `None of the ${page.total} fits the filter. Clear the filter to see them.` : EMPTY[kind] || `There is nothing here at this moment.`;
  return {
    page,
    nodes: [pager(kind, page, params, [shows, files(wanted)]), sheet(captionOf(kind, page, params), page.columns.map((name) => sorter(name, page, params)), rows, empty)],
  };
}
