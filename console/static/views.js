// The views. Each returns {title, nodes, command, moment}, from what the server answered for the moments of the URL.

import { ask } from "./api.js";
import { h, s, sentence, spanText, timeText, valueText, withTimes, word } from "./dom.js";
import { opened } from "./keep.js";
import { change, entityLink, go, here, link, moments } from "./place.js";
import { pager, sheet, SIZE, sorter, table } from "./tables.js";

const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** A link that moves the page to the moment after a record. */
export function recordLink(offset, text = `record ${offset}`) {
  return h("a", { href: link("record", { offset, ...moments(), at: `${offset}+` }) }, text);
}

const PLACE = /\b(since|at) (\d+)(?: \((\d{4,}-\d\d-\d\dT[\d:.]+Z)\))?(?!\w|[.:]\d| (?:ms|s|min|h|d)\b)/g;

/** A sentence of the tools for a page: times as it writes them and before offsets, which link to their records. */
function prose(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(PLACE)) {
    const [whole, before, offset, time] = match;
    const record = recordLink(offset);
    nodes.push(withTimes(text.slice(end, match.index)), `${before} `, ...(time ? [`${timeText(Date.parse(time))} (`, record, ")"] : [record]));
    end = match.index + whole.length;
  }
  return [...nodes, withTimes(text.slice(end))].filter(Boolean);
}

/** The headline of `why`; a partition that has no leader is said to have none, as in the tables. */
const headline = (answer) => [...prose(answer.headline.replace(/^(\S+\.leader is) -1 /, "$1 none ")), ". "];

const linksTo = (text, offset) => [...text.matchAll(PLACE)].some((match) => Number(match[2]) === offset);

export function momentLink(offset, text) {
  const { view, params } = here();
  return h("a", { href: link(view, { ...params, at: `${offset}+` }), title: "Move the handle here" }, text);
}

function momentLine(answer) {
  const leader = answer.leader === null ? "no leader of the quorum is known" : `controller ${answer.leader} leads, epoch ${answer.leaderEpoch}`;
  return [
    h("p", { class: "moment" }, `The state at offset ${answer.offset}, ${timeText(answer.timeMs)}; ${leader}.`),
    answer.notes.length > 0 && h("div", { class: "notes" }, answer.notes.map((note) => h("p", {}, sentence(note)))),
  ];
}

/** What differs between the two moments, if there are two. */
async function difference(signal, entity) {
  const { at, since } = moments();
  if (!since) return null;
  const found = await ask("diff", { from: since, to: at, entity, size: 50 }, signal);
  const more = found.count > found.changes.length ? ` The first ${found.changes.length} are shown.` : "";
  return h("section", { "aria-label": "Difference" },
    h("h2", {}, `Since ${timeText(found.from.timeMs)} (offset ${found.from.offset}): ${found.count} ${found.count === 1 ? "entity differs" : "entities differ"}`),
    found.changes.length ? changesTable(found.changes) : h("p", { class: "empty sheet" }, "Nothing here differs between the two moments."),
    more && h("p", {}, more, h("a", { href: link("diff", { at, since, entity }) }, "All differences")));
}

function changesTable(changes, isOneBatch = false) {
  const rows = changes.flatMap((each) => Object.entries(each.fields).map(([name, field], number) => [
    number ? "" : h("span", {}, word(each.change, each.change), " ", h("a", { href: entityLink(each.entity) }, each.entity)),
    h("td", { class: "time" }, name), h("td", { class: "long" }, valueText(field.old)), h("td", { class: "long" }, valueText(field.new)),
    ...(isOneBatch ? [] : [field.cause ? recordLink(field.cause.offset, `${field.cause.offset} ${field.cause.type}`) : "in a snapshot only"]),
  ]));
  return sheet("differences", ["entity", "field", "before", "after", ...(isOneBatch ? [] : ["changed by"])], rows, "");
}

export async function overview(params, signal) {
  const answer = await ask("overview", { at: params.at }, signal);
  const numbers = answer.numbers.map((each) => {
    const href = link(each.table, { ...moments(), show: each.show });
    return h("li", {}, h("a", { href, class: each.severity || "good" }, h("b", {}, String(each.value)), `${each.name} `, h("span", {}, `of ${each.of}`)));
  });
  const href = (each) => (each.path === "events" ? link("events", { ...moments(), severity: each.severity, text: "unclean election" })
    : each.path.includes("/") ? entityLink(each.path) : each.path === "broker" ? link("brokers", moments()) : link("partitions", { ...moments(), show: each.show }));
  const problems = answer.problems.map((each) => h("li", {}, word(each.severity, each.severity), " ",
    h("a", { href: href(each) }, each.text), each.target && whyDetails([each.target, each.also].filter(Boolean), each.at || params.at, each.text)));
  const unread = answer.progress < 1 ? " The log is still being read: an unclean election may be added." : "";
  return {
    title: "Overview", command: answer.command, moment: answer,
    nodes: [
      h("h1", {}, "Overview"), momentLine(answer), h("ul", { class: "numbers", "aria-label": "Health in five numbers" }, numbers),
      h("p", { class: "moment" }, `${counted(answer.topics, "topic")}, ${counted(answer.partitions, "partition")}.`),
      await difference(signal, ""),
      h("h2", {}, "What is wrong at this moment"),
      problems.length ? h("ul", { class: "problems" }, problems) : h("p", { class: "empty sheet" }, answer.numbers[0].of === 0 ? "No broker is registered at this moment." : `Nothing that the log shows: every broker is active, every partition has its leader and all its replicas in sync.${unread} If clients have trouble all the same, look at what was changed last: a setting, a quota, an access control entry, a deleted topic.`,
        answer.warning && [" The newest warning before this moment: ", momentLink(answer.warning.offset, timeText(answer.warning.createTime)), ` ${answer.warning.kind}: ${answer.warning.text}.`]),
      lastChanges(answer.offset, signal),
    ],
  };
}

/** The newest events before the offset where the state is: what somebody changed is no fault, and still the cause of one. Filled when it is read. */
function lastChanges(end, signal) {
  const made = h("section", { "aria-label": "Last changes", "aria-busy": "true" }, h("h2", {}, "Last changes up to this moment"), h("p", { class: "empty sheet" }, "Reading the log…"));
  made.filled = ask("events", { severity: "info", to: end, size: CHANGES, order: "descending" }, signal).then((answer) => {
    const empty = answer.progress < 1 ? "None so far; the log is still being read." : "The log has no event up to this moment.";
    made.toggleAttribute("data-unread", answer.progress < 1);
    made.lastChild.replaceWith(sheet(`the newest ${Math.min(CHANGES, answer.count)} of ${answer.count} events`, EVENT_COLUMNS, answer.events.map(eventCells), empty));
    made.append(h("p", {}, h("a", { href: link("events", { ...moments(), severity: "info" }) }, "All events")));
  }).catch((error) => (error.name === "AbortError" ? null : made.lastChild.replaceWith(h("p", { class: "empty sheet" }, error.message))))
    .finally(() => made.removeAttribute("aria-busy"));
  return made;
}

/** `why` of one or two things at a moment, asked when it is opened. While it is open, a line that is renewed shows the
 * answer again; if its text has changed, the records are read again. */
function whyDetails(targets, at, line) {
  const name = JSON.stringify([targets, at]);
  const body = h("p", { class: "why", hidden: true }, "Reading the records…");
  const button = h("button", { type: "button", class: "plain", "aria-expanded": "false" }, "why?");
  const show = (isOpen) => {
    body.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
  };
  const read = async () => {
    const said = { line, nodes: opened.get(name)?.nodes };
    opened.set(name, said);
    try {
      const answers = await Promise.all(targets.map((target) => ask("why", { target, at, last: 1 })));
      said.nodes = () => answers.flatMap((found, number) => [number ? h("br", {}) : "", ...headline(found),
        ...(found.askedBy ? prose(`${sentence(found.askedByText)}.`) : [])]);
    } catch (error) {
      said.nodes = () => [error.message];
    }
    body.replaceChildren(...said.nodes());
  };
  button.addEventListener("click", () => {
    show(body.hidden);
    if (body.hidden) opened.delete(name);
    else read();
  });
  const before = opened.get(name);
  if (before) {
    show(true);
    if (before.nodes) body.replaceChildren(...before.nodes());
    if (before.line !== line) read();
  }
  return [" ", button, body];
}

export function tableView(kind) {
  return async (params, signal) => {
    const { page, nodes } = await table(kind, signal);
    const title = kind === "acls" ? "ACLs" : kind[0].toUpperCase() + kind.slice(1).replace("-", " ");
    return {
      title, command: page.command, moment: page,
      nodes: [h("h1", {}, title), momentLine(page), kind === "acls" && (await accessForm(params, signal)), await difference(signal, page.entity), ...nodes, kind === "quorum" && voters(signal)],
    };
  };
}

async function accessForm(params, signal) {
  const field = (name, text, example) => h("label", {}, `${text} `, h("input", { name, value: params[name] || "", placeholder: `like ${example}`, size: 17, required: true }));
  const form = h("form", { class: "bar", "aria-label": "Who may do what" }, field("principal", "May", "User:alice"), field("operation", "perform", "READ"),
    field("resource", "on", "topic/orders"), h("label", {}, "from host ", h("input", { name: "host", value: params.host || "", placeholder: "any", size: 10 })), h("button", {}, "Answer"));
  form.addEventListener("submit", (event) => { event.preventDefault(); change({ ...Object.fromEntries(new FormData(form)), asked: "1" }); });
  if (!params.asked) return form;
  let answer;
  try {
    const { principal, operation, resource, host } = params;
    answer = await ask("access", { at: params.at, principal, operation, resource, host }, signal);
  } catch (error) {
    return [form, h("p", { class: "error" }, error.message)];
  }
  return [form, h("p", { class: answer.allowed ? "sheet empty" : "error" }, word(answer.allowed ? "allowed" : "denied", answer.allowed ? "state-active" : "state-fenced"), ` ${answer.sentence}.`),
    answer.entries.length > 0 && sheet("entries that decide", ["entry", "principal", "permission", "operation", "resource", "pattern", "host"],
      answer.entries.map((each) => [h("a", { href: entityLink(each.path) }, each.path), each.principal, each.permissionType, each.operation, `${each.resourceType.toLowerCase()}/${each.resourceName}`, each.patternType, each.host]), "")];
}

/** Which voters answer now, asked of the running cluster: whatever the moment of the handle. */
function voters(signal) {
  const shown = (answer) => {
    if (answer.hint) return h("p", { class: "empty sheet" }, answer.hint);
    const said = (each) => (each.silentSinceMs === null ? each.said : `does not answer since ${timeText(each.silentSinceMs)}`);
    return sheet("asked just now; the leader knows where the others' logs end", ["controller", "answer", "log end", "behind"], answer.rows.map((each) => [
      h("a", { href: entityLink(`controller/${each.controller}`) }, String(each.controller)), word(said(each), each.answers ? "state-active" : "state-fenced"),
      valueText(each.endOffset), valueText(each.behind)]), "The leader names no voter.");
  };
  return section("The voters now", "voters", {}, signal, shown);
}

/** Groups and their lag, asked of the running cluster now: whatever the moment of the handle. */
export async function groups(params, signal) {
  const title = "Groups and lag";
  const page = await ask("groups", { text: params.text, sort: params.sort, order: params.order, start: params.start, size: SIZE }, signal);
  if (page.hint) return { title, command: "", moment: null, nodes: [h("h1", {}, title), h("p", { class: "empty sheet" }, page.hint)] };
  const rows = page.rows.map((row) => page.columns.map((name) => {
    const value = row[name];
    if (name === "topic" && value) return h("td", {}, h("a", { href: entityLink(`topic/${value}/${row.partition}`) }, value));
    return h("td", { class: typeof value === "number" ? "number" : null }, name === "lag" && value > 0 ? h("strong", {}, String(value)) : valueText(value));
  }));
  return {
    title, command: page.command, moment: null,
    nodes: [h("h1", {}, title), h("p", { class: "moment" }, `As the cluster answered at ${timeText(Date.now())}; the log has no record of groups.`),
      pager("groups", page, params), sheet(`${page.count} partitions of groups`, page.columns.map((name) => sorter(name, page, params)), rows, "The cluster has no group.")],
  };
}

export async function entity(params, signal) {
  const path = params.path || "";
  const answer = await ask("entity", { path, at: params.at }, signal);
  const kind = answer.path.split("/")[0];
  const isTopic = kind === "topic" && answer.path.split("/").length === 2;
  const own = answer.entities.filter((each) => !isTopic || !each.path.startsWith(`${answer.path}/`));
  const nodes = [h("h1", {}, answer.path), momentLine(answer)];
  if (!answer.exists) nodes.push(h("p", { class: "empty sheet" }, `${answer.path} does not exist at this moment${answer.hint}. Its history below shows when it did, if ever.`));
  nodes.push(await difference(signal, path));
  const [why, past] = story(answer.path, params, signal, isTopic && answer.exists);
  const cut = answer.isCut && h("p", { class: "moment" }, `Only the first ${answer.entities.length} entities are shown. The tables, and the copied command, have all of them.`);
  const state = answer.exists && h("section", {}, isTopic && heat(answer), h("h2", {}, "State"), cut, own.map(fields));
  nodes.push(state ? h("div", { class: "columns" }, state, why) : why);
  const settings = kind === "config" && [h("a", { href: link("configs", { ...moments(), text: answer.path.slice("config/".length) }) }, "its settings beside their defaults"), " · "];
  nodes.push(past, h("p", {}, settings, h("a", { href: link("events", { entity: answer.path, severity: "info", ...moments() }) }, "events about it"), " · ",
    h("a", { href: link("records", { entity: answer.path, ...moments() }) }, "records about it")));
  return { title: answer.path, command: answer.command, moment: answer, nodes };
}

function fields(each) {
  const rows = Object.entries(each.fields).map(([name, value]) => [name, h("td", { class: "long" }, lines(value))]);
  const made = sheet(each.path, ["field", "value"], rows, "It has no fields.");
  made.classList.add("fields");
  return made;
}

/** A value in a cell of its own: of an object, a line for each member. */
function lines(value) {
  const isObject = (one) => typeof one === "object" && one !== null && !Array.isArray(one);
  if (!isObject(value) || !Object.keys(value).length) return valueText(value);
  const member = (one) => (isObject(one) ? Object.entries(one).map(([name, inner]) => `${name} ${valueText(inner)}`).join(", ") : valueText(one));
  return Object.entries(value).map(([name, one]) => h("div", {}, `${name}: ${member(one)}`));
}

/** Partitions × brokers of a topic. */
function heat(answer) {
  const rows = answer.entities.filter((each) => each.path.startsWith(`${answer.path}/`));
  if (!rows.length) return h("p", { class: "empty sheet" }, "It has no partitions.");
  const brokers = [...new Set(rows.flatMap((each) => each.fields.replicas))].sort((a, b) => a - b);
  const cell = (partition, broker) => {
    if (!partition.replicas.includes(broker)) return h("td", {});
    if (partition.leader === broker) return h("td", { class: "leader", title: "leader" }, "L");
    return partition.isr.includes(broker) ? h("td", { class: "insync", title: "in sync" }, "●") : h("td", { class: "out", title: "out of sync" }, "○");
  };
  return h("section", {}, h("h2", {}, "Partitions × brokers"),
    h("div", { class: "sheet", tabindex: 0, role: "region", "aria-label": "Partitions and brokers" }, h("table", { class: "heat" },
      h("caption", {}, `L leads, ● in sync, ○ out of sync${answer.isCut ? "; the first partitions" : ""}`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "partition"), brokers.map((each) => h("th", { scope: "col" }, h("a", { href: entityLink(`broker/${each}`) }, String(each)))))),
      h("tbody", {}, rows.map((each) => h("tr", {}, h("th", { scope: "row" }, h("a", { href: entityLink(each.path) }, each.path.split("/").at(-1)), each.fields.leader === -1 && word(" no leader", "critical")), brokers.map((broker) => cell(each.fields, broker))))))));
}

/** A section that is there at once, and filled when its view is answered. */
function section(title, view, query, signal, shown, waiting = "Asking the cluster…") {
  const made = h("section", { "aria-busy": "true" }, h("h2", {}, title), h("p", { class: "empty sheet" }, waiting));
  made.filled = ask(view, query, signal).then(shown, (error) => (error.name === "AbortError" ? null : h("p", { class: "empty sheet" }, error.message))).then((nodes) => {
    if (nodes === null) return;
    made.replaceChildren(h("h2", {}, title), ...[nodes].flat(Infinity).filter(Boolean));
    made.removeAttribute("aria-busy");
  });
  return made;
}

/** Why the entity is as it is, and its states over time. */
function story(path, params, signal, isOnDemand) {
  const about = (title, view, more, shown) => section(title, view, { target: path, at: params.at, ...more }, signal, shown, "Reading the log…");
  const why = () => about("Why", "why", { last: 20 }, chain);
  const past = about("History", "history", {}, spans);
  if (!isOnDemand || opened.has(path)) return [why(), past];
  // A topic's chain has the records of all its partitions; of a large log, that is read only when it is wanted.
  const offer = h("section", {}, h("h2", {}, "Why"), h("p", {}, "A partition's page says why it is as it is. ",
    h("button", { type: "button", onclick: () => { opened.set(path, {}); offer.replaceWith(why()); } }, "Read the records of all its partitions")));
  return [offer, past];
}

function chain(answer) {
  if (!answer.records.length) return h("p", { class: "empty sheet" }, ...headline(answer));
  return [h("p", {}, ...headline(answer)), answer.askedByText && h("p", { class: "moment" }, ...prose(`${sentence(answer.askedByText)}.`)), h("ol", { class: "chain" }, answer.records.map((each) => h("li", {},
    recordLink(each.offset), ` ${timeText(each.createTime)} ${each.type} `,
    h("span", { class: "mono" }, each.changes.map((one) => (one.before === null ? `${one.field} ${valueText(one.after)}` : `${one.field} ${valueText(one.before)} → ${valueText(one.after)}`)).join(", ")),
    each.causes.map((cause) => h("p", { class: "cause" }, `${cause.rule}: `, ...prose(cause.text), cause.offset !== null && !linksTo(cause.text, cause.offset) && [" (", recordLink(cause.offset), ")"]))))),
    answer.earlierRecords !== 0 && h("p", { class: "moment" }, `${answer.earlierRecords ?? "There may be"} earlier records${answer.earlierRecords === null ? "" : " are not shown"}.`),
    answer.uncovered.map((each) => h("p", { class: "notes" }, sentence(each.text)))];
}

function spans(answer) {
  const rows = answer.spans;
  if (!rows.length) return h("p", { class: "empty sheet" }, "No record of this log is about it.");
  const low = Math.min(...rows.map((each) => each.fromTime)), high = Math.max(low + 1, answer.untilTime, ...rows.map((each) => each.toTime ?? each.fromTime));
  const spark = s("svg", { class: "spark", viewBox: "0 0 600 26", preserveAspectRatio: "none", role: "img", "aria-label": "Its states over time; the table has them" },
    rows.map((each) => {
      const x = (600 * (each.fromTime - low)) / (high - low), end = each.toTime === null ? 600 : (600 * (each.toTime - low)) / (high - low);
      return s("rect", { x, y: 3, height: 20, width: Math.max(1.5, end - x), class: each.toTime === null ? "now" : null }, s("title", {}, `${timeText(each.fromTime)}: ${valueText(each.fields)}`));
    }));
  const isOne = rows.every((each) => each.entity === rows[0].entity), texts = whatChanged(rows);
  return [isOne && spark, sheet(rows.length === 1 ? "1 state" : `${answer.isCut ? `the newest ${rows.length}` : rows.length} states, the newest first; of each, what changed`, [...(isOne ? [] : ["entity"]), "from", "for", "by", "state"], rows.map((each, number) => [
    ...(isOne ? [] : [h("a", { href: entityLink(each.entity) }, each.entity)]),
    h("td", { class: "time" }, momentLink(each.fromOffset, timeText(each.fromTime))), each.toTime === null ? "still" : spanText(each.toTime - each.fromTime),
    each.cause ? recordLink(each.cause.offset, String(each.cause.offset)) : "before", h("td", { class: "long" }, texts[number]),
  ]), "")];
}

/** Of states, the newest first: the fields that differ from the state before, or all of the first one. */
function whatChanged(rows) {
  const before = new Map(); // by entity
  return rows.slice().reverse().map((each) => {
    const last = before.get(each.entity), old = last?.toOffset === each.fromOffset ? last.fields : {};
    before.set(each.entity, each);
    return Object.keys({ ...old, ...each.fields }).filter((name) => valueText(old[name]) !== valueText(each.fields[name])).map((name) => `${name}=${valueText(each.fields[name])}`).join(" ");
  }).reverse();
}

function selectOf(id, text, options, value) {
  const select = h("select", { id, "aria-label": text }, options.map(([each, shown]) => h("option", { value: each, selected: each === value }, shown)));
  return select;
}

function askedText(asked) {
  if (!asked.request) return `the controller itself, by rule ${asked.rule}`;
  return asked.principal ? `${asked.request} by ${asked.principal}` : asked.request;
}

const CHANGES = 8;
const EVENT_COLUMNS = ["time", "severity", "kind", "what happened", "entity", "record"];

function eventCells(each) {
  return [
    h("td", { class: "time" }, momentLink(each.offset, timeText(each.createTime))), word(each.severity, each.severity), each.kind,
    h("td", { class: "long" }, h("span", {}, ...prose(each.text), each.rule ? ` [${each.rule}]` : "", each.askedBy && (each.askedBy.request || each.askedBy.rule !== each.rule) ? ` (${askedText(each.askedBy)})` : "")),
    h("td", { class: "name" }, aboutLinks(each)), recordLink(each.offset, String(each.offset)),
  ];
}

/** Links to what an event is about, as it was then: its entity, and the first partition if the entity is a broker. */
function aboutLinks(each) {
  const topic = each.entity.startsWith("broker/") && each.entities.find((one) => one.startsWith("topic/"));
  return [each.entity, topic].filter(Boolean).map((path) => [h("a", { href: entityLink(path, { at: `${each.offset}+` }) }, path), " "]);
}

export async function events(params, signal) {
  const start = Number(params.start || 0), severity = params.severity || "warning", order = params.order || "descending";
  const answer = await ask("events", { text: params.text, show: params.entity, severity, from: params.since, to: params.since ? params.at : undefined, start, size: 100, order }, signal);
  const choose = selectOf("severity", "Severity", [["critical", "critical"], ["warning", "warning and above"], ["info", "info and above"]], severity);
  choose.addEventListener("change", () => change({ severity: choose.value, start: undefined }));
  const text = h("input", { type: "search", value: params.text || "", placeholder: "Filter", "aria-label": "Filter events" });
  text.addEventListener("change", () => change({ text: text.value || undefined, start: undefined }));
  const about = h("input", { value: params.entity || "", placeholder: "About: topic/orders, broker/3", "aria-label": "Only about this entity" });
  about.addEventListener("change", () => change({ entity: about.value || undefined, start: undefined }));
  const isNewest = order === "descending";
  const byTime = h("th", { scope: "col", "aria-sort": order }, h("button", { type: "button", title: isNewest ? "Show the oldest first" : "Show the newest first",
    onclick: () => change({ order: isNewest ? "ascending" : undefined, start: undefined }) }, EVENT_COLUMNS[0], isNewest ? " ↓" : " ↑"));
  const between = params.since ? " between the two moments" : "";
  const empty = answer.progress < 1 ? "None so far; the log is still being read." : [`No event of this severity${between}. `, severity !== "info" && h("a", { href: link("events", { ...params, severity: "info", start: undefined }) }, "Show info and above"), severity !== "info" && ", which has what was changed: settings, access control entries, topics."].filter(Boolean);
  return {
    title: "Events", command: answer.command, moment: null,
    nodes: [h("h1", {}, `Events${between}`), h("div", { class: "bar" }, choose, text, about,
      answer.count > 100 && [h("button", { type: "button", disabled: !start, onclick: () => change({ start: start > 100 ? String(start - 100) : undefined }) }, "Previous page"),
        h("button", { type: "button", disabled: start + 100 >= answer.count, onclick: () => change({ start: String(start + 100) }) }, "Next page")],
      h("span", { class: "count" }, answer.progress < 1 ? `read ${Math.floor(100 * answer.progress)} % of the log` : "")),
    sheet(`${answer.count} events`, [byTime, ...EVENT_COLUMNS.slice(1)], answer.events.map(eventCells), empty)],
  };
}

export async function records(params, signal) {
  const at = params.start === undefined && params.at ? params.at.replace("+", "") : params.start;
  const isAll = !params.entity || params.start !== undefined;
  const start = isAll && /^\d+$/.test(at || "") ? Number(at) : 0;
  const answer = await ask("records", { start, size: 100, entity: params.entity }, signal);
  const first = h("input", { value: String(start), inputmode: "numeric", "aria-label": "First offset", size: 10 });
  first.addEventListener("change", () => change({ start: first.value }));
  const rows = answer.records.map((each) => (each.damage
    ? [String(each.offset), "", word("damaged", "critical"), h("td", { class: "long" }, each.damage), ""]
    : [recordLink(each.offset, String(each.offset)), h("td", { class: "time" }, timeText(each.timeMs)), each.type,
      h("td", { class: "long mono" }, Object.entries(each.data).map(([name, value]) => `${name}=${valueText(value)}`).join(" ")),
      each.entities.slice(0, 1).map((one) => h("a", { href: entityLink(one) }, one))]));
  const last = answer.records.at(-1);
  return {
    title: "Records", command: answer.command, moment: null,
    nodes: [h("h1", {}, params.entity ? `Records about ${params.entity}` : "Records"), h("div", { class: "bar" }, h("label", {}, "From offset ", first),
      h("button", { type: "button", disabled: start === 0, onclick: () => change({ start: String(Math.max(0, start - 100)) }) }, "Earlier"),
      h("button", { type: "button", disabled: !last || last.offset + 1 >= answer.endOffset, onclick: () => change({ start: String(last.offset + 1) }) }, "Later")),
    sheet(`records from ${start} on; the log ends at ${answer.endOffset}`, ["offset", "time", "type", "fields", "about"], rows, "No record is there.")],
  };
}

export async function record(params, signal) {
  const answer = await ask("record", { offset: params.offset }, signal);
  const { batch } = answer;
  const rows = answer.parts.map((each) => [each.name, each.type, h("td", { class: "long" }, each.hex.match(/../g)?.join(" ") ?? ""), h("td", { class: "long" }, each.meaning === null ? "" : valueText(each.meaning))]);
  const bytes = sheet("the value's bytes", ["field", "type", "bytes", "meaning"], rows, "The record has no value.");
  bytes.classList.add("bytes");
  const at = Number(params.offset);
  return {
    title: `Record ${params.offset}`, command: answer.command, moment: null,
    nodes: [h("h1", {}, `Record ${answer.offset}: ${answer.record.type} version ${answer.record.version}`),
      h("p", { class: "moment" }, `${timeText(answer.timeMs)}, epoch ${batch.leaderEpoch}. `, answer.askedByText ? `Asked: ${answer.askedByText}.` : "No record says who asked for it."),
      h("p", {}, at > 0 && h("a", { href: link("record", { ...moments(), offset: at - 1, at: `${at - 1}+` }) }, "‹ record before"), " ", h("a", { href: link("record", { ...moments(), offset: at + 1, at: `${at + 1}+` }) }, "record after ›"), " ",
        h("a", { href: link("diff", { since: String(batch.baseOffset), at: String(batch.lastOffset + 1) }) }, "what its batch changed")),
      bytes, h("h2", {}, "Its batch"),
      sheet(`offsets ${batch.baseOffset} to ${batch.lastOffset}`, ["field", "value"], Object.entries(batch).map(([name, value]) => [name, h("td", { class: "long" }, valueText(value))]), "")],
  };
}

export async function diff(params, signal) {
  if (!params.since) {
    return { title: "Difference", command: "", moment: null, nodes: [h("h1", {}, "Difference"), h("p", { class: "empty sheet" }, "Two moments are needed: press “Second moment” at the strip (or d), then drag either handle.")] };
  }
  const start = Number(params.start || 0);
  const answer = await ask("diff", { from: params.since, to: params.at, entity: params.entity, text: params.text, show: params.show, start, size: 100 }, signal);
  const text = h("input", { type: "search", value: params.text || "", placeholder: "Filter", "aria-label": "Filter differences" });
  text.addEventListener("change", () => change({ text: text.value || undefined, start: undefined }));
  const choose = selectOf("kind", "Kind of change", [["", "all changes"], ["added", "added"], ["changed", "changed"], ["removed", "removed"]], params.show || "");
  choose.addEventListener("change", () => change({ show: choose.value || undefined, start: undefined }));
  return {
    title: "Difference", command: answer.command, moment: answer.to, since: answer.from,
    nodes: [h("h1", {}, `Difference${params.entity ? ` of ${params.entity}` : ""}`),
      h("p", { class: "moment" }, `From offset ${answer.from.offset} (${timeText(answer.from.timeMs)}) to ${answer.to.offset} (${timeText(answer.to.timeMs)}): ${answer.total} ${answer.total === 1 ? "entity differs" : "entities differ"}.`),
      h("div", { class: "bar" }, text, choose,
        answer.count > 100 && [h("button", { type: "button", disabled: !start, onclick: () => change({ start: start > 100 ? String(start - 100) : undefined }) }, "Previous page"),
          h("button", { type: "button", disabled: start + 100 >= answer.count, onclick: () => change({ start: String(start + 100) }) }, "Next page")]),
      answer.changes.length ? changesTable(answer.changes) : h("p", { class: "empty sheet" }, "Nothing differs.")],
  };
}

const EXAMPLES = ["leaderless() == 0", "len(brokers) >= 3", "partition('orders', 0).leader >= 0", "not broker(1).fenced", "feature('metadata.version') < 19", "quorum.leader_id == 3000"];

export async function find(params, signal) {
  const box = h("input", { class: "wide mono", value: params.predicate || "", placeholder: "leaderless() == 0", "aria-label": "A condition that holds while the state is right", spellcheck: "false" });
  const form = h("form", { class: "bar" }, box, h("button", {}, "Find the first moment where it is false"));
  form.addEventListener("submit", (event) => { event.preventDefault(); change({ predicate: box.value }); });
  const nodes = [h("h1", {}, "Find a moment"), h("p", {}, "Write a condition in the language of metaquorum log bisect; the answer is the first record after which it is false."), form,
    h("p", {}, "For example:"), h("ul", {}, EXAMPLES.map((each) => h("li", {}, h("a", { href: link("find", { ...moments(), predicate: each }) }, h("code", {}, each)))))];
  let command = "";
  if (params.predicate) {
    try {
      const answer = await ask("bisect", { predicate: params.predicate }, signal);
      command = answer.command;
      nodes.push(result(answer));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      nodes.push(h("pre", { class: "error" }, error.message));
    }
  }
  return { title: "Find a moment", command, moment: null, nodes };
}

function result(answer) {
  if (answer.alwaysFalse) return h("p", { class: "error" }, `It is false from the first state on, at offset ${answer.offset}.`);
  if (answer.neverDefined) return h("p", { class: "error" }, "It is never true nor false: what it refers to does not exist in this log.");
  if (!answer.turnedFalse) return h("p", { class: "error" }, `It never turns false up to offset ${answer.endOffset}.`);
  return h("section", {}, h("p", { class: "error" }, `It turned false at `, recordLink(answer.offset), ` (${timeText(answer.createTime)}). `,
    h("button", { type: "button", onclick: () => go(link("overview", { at: `${answer.offset}+` })) }, "Go to this moment")),
  h("h2", {}, "What its batch changed"), changesTable(answer.changes.slice(0, 50), true));
}

export async function search(params, signal) {
  const answer = await ask("search", { text: params.text, at: params.at }, signal);
  const group = (title, list, one) => list.length > 0 && h("section", {}, h("h2", {}, title), h("ul", {}, list.map((each) => h("li", {}, one(each)))));
  const groups = [
    group("Moments", answer.moments, (each) => h("a", { href: link("overview", { at: String(each.offset) }) }, `offset ${each.offset}, ${timeText(each.timeMs)}`)),
    group("Entities", answer.entities, (each) => h("a", { href: entityLink(each.path) }, each.path)),
    group("Access control entries", answer.acls, (each) => h("a", { href: entityLink(each.path) }, each.text)),
    group("Settings", answer.settings, (each) => h("a", { href: entityLink(each.path) }, each.text)),
    group("Events", answer.events, (each) => [momentLink(each.offset, timeText(each.createTime)), ` ${each.kind}: ${each.text} `, aboutLinks(each)]),
  ].filter(Boolean);
  return {
    title: `Search: ${params.text || ""}`, command: "", moment: null,
    nodes: [h("h1", {}, `Search: ${params.text || ""}`), ...(groups.length ? groups : [h("p", { class: "empty sheet" }, "Nothing has this in its name, value or text at this moment. Move the handle, or search for a part of it.")])],
  };
}

