// The page: which view is shown, at which moment, and what follows the log.

import { ask, BASE } from "./api.js";
import { h, timeText } from "./dom.js";
import { busySoon, frame } from "./frame.js";
import { opened, renew } from "./keep.js";
import { go, here, link, moments } from "./place.js";
import { copy, save } from "./save.js";
import * as strip from "./strip.js";
import * as views from "./views.js";

const TABLES = ["brokers", "racks", "topics", "partitions", "configs", "features", "acls", "users", "quotas", "tokens", "producer-ids", "quorum"];
const VIEWS = {
  overview: views.overview, events: views.events, ...Object.fromEntries(TABLES.map((kind) => [kind, views.tableView(kind)])),
  groups: views.groups, records: views.records, diff: views.diff, find: views.find, entity: views.entity, record: views.record, search: views.search,
};
const NAV = ["overview", "events", ...TABLES, "groups", "records", "diff", "find"];
const AGAIN_MS = 3000;
const STILL = new Set(["record", "find", "search"]); // these do not depend on the log's end
const TITLES = { diff: "Difference", find: "Find a moment", acls: "ACLs", "producer-ids": "Producer ids" };

const main = document.getElementById("main");
let loading = null;
let again = null; // how to load when the present load has ended: "view" or "follow"
let sections = null; // the asking of what the shown view fills later
let shown = { title: "", command: "", view: null };
let log = null;
let lastCritical = null;

const titleOf = (view) => TITLES[view] || view[0].toUpperCase() + view.slice(1);

function notice(text) {
  const line = document.getElementById("notice");
  line.hidden = !text;
  line.replaceChildren(text || "");
}

function navigation(view) {
  const fleet = BASE === "/" ? [] : [h("a", { href: "/" }, "‹ Fleet")];
  document.getElementById("nav").replaceChildren(...fleet, ...NAV.map((each) => h("a", { href: link(each, moments()), "aria-current": each === view ? "page" : null }, titleOf(each))));
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** Shows the view of the URL. A view that is overtaken by the next one is dropped; while the handle is dragged, each
 * one is shown and then the newest is asked for. */
async function load() {
  if (loading && strip.isDragged()) { again = "view"; return; }
  loading?.abort();
  sections?.abort();
  opened.clear();
  const mine = (loading = sections = new AbortController());
  const { view, params } = here();
  navigation(view);
  const make = VIEWS[view];
  let waiting = busySoon(main, view === shown.view ? null : h("h1", {}, titleOf(view)));
  try {
    if (!make) throw new Error(`There is no view ${view}. Choose one above.`);
    const made = await make(params, mine.signal);
    if (mine.signal.aborted) return;
    const focus = document.activeElement?.id;
    clearTimeout(waiting);
    main.replaceChildren(...nodesOf(made, view));
    waiting = busySoon(main, null);
    if (focus) document.getElementById(focus)?.focus();
    await showMoments(made, params, mine.signal);
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    main.replaceChildren(h("h1", {}, titleOf(view)), h("p", { class: "error" }, error.message));
  } finally {
    clearTimeout(waiting);
    if (loading === mine) main.removeAttribute("aria-busy");
    ended(mine);
  }
}

/** Shows what a grown log changes in the view. It is asked for as a whole, and replaces only what differs: what was opened,
 * typed, selected or scrolled to stays. What cannot be asked now is asked when the log has grown again. */
async function follow() {
  if (loading) { again ||= "follow"; return; }
  const { view, params } = here();
  if (STILL.has(view) || !VIEWS[view] || view !== shown.view) return;
  const mine = (loading = new AbortController());
  try {
    const made = await VIEWS[view](params, mine.signal);
    const nodes = nodesOf(made, view);
    const filled = nodes.flatMap((each) => [each, ...(each.querySelectorAll?.("section") ?? [])]).map((each) => each.filled);
    await Promise.all(filled);
    if (mine.signal.aborted) return;
    sections?.abort();
    sections = mine;
    renew(main, nodes);
    await showMoments(made, params, mine.signal);
  } catch {
    // the notice says that the server does not answer
  } finally {
    ended(mine);
  }
}

function nodesOf(made, view) {
  shown = { ...made, view };
  document.title = `${made.title} · metaquorum`;
  return made.nodes.flat(Infinity).filter(Boolean);
}

function ended(mine) {
  if (loading !== mine) return;
  const next = again;
  loading = again = null;
  if (next) (next === "view" ? load : follow)();
}

async function showMoments(made, params, signal) {
  const placed = async (place) => {
    const answer = await ask("moment", { at: place }, signal).catch(() => null); // a view may be there without a state
    return answer && { offset: answer.offset, timeMs: answer.timeMs };
  };
  const at = made.moment || (await placed(params.at));
  const since = params.since ? made.since || (await placed(params.since)) : null;
  if (!signal.aborted) strip.setMoments(at, since);
}

function listen() {
  const source = new EventSource(`${BASE}api/stream`);
  let drawn = -1, waiting = null;
  source.onmessage = (message) => {
    const before = log;
    log = JSON.parse(message.data);
    document.getElementById("log-name").textContent = log.name + (log.clusterId ? ` · cluster ${log.clusterId}` : "");
    document.getElementById("log-name").title = `${log.name}, offsets ${log.startOffset} to ${log.endOffset}`;
    if (log.version !== drawn && !waiting) {
      waiting = setTimeout(() => { waiting = null; drawn = log.version; strip.refresh(); }, before ? 700 : 0);
    }
    const hasGrown = before && before.endOffset !== log.endOffset;
    if (hasGrown && !here().params.at) follow();
    else if (before && before.progress < 1 && log.progress === 1 && (here().view === "events" || main.querySelector("[data-unread]"))) follow();
    say(before);
  };
  source.onerror = () => ask("log").then(() => {
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS); // the browser gives up after an answer that is no stream
  }, (error) => notice(error.message));
}

function say(before) {
  if (log.trouble) { notice(`The log cannot be followed now: ${log.trouble}`); return; }
  const event = log.critical;
  const isNew = before && before.progress === 1 && event && event.offset > (lastCritical ?? -1);
  lastCritical = Math.max(lastCritical ?? -1, event ? event.offset : -1);
  if (isNew) {
    notice(h("span", {}, "Critical: ", event.text, " at ", h("a", { href: link("overview", { at: `${event.offset}+` }) }, timeText(event.createTime))));
    return;
  }
  const [damage] = log.problems;
  if (damage) notice(`This log is not whole: ${damage}. What cannot be read is left out; metaquorum log check lists it.`);
  else notice(log.uncovered.length ? `This log is not whole: ${log.uncovered[0].text}` : "");
}

function controls() {
  frame(() => { load(); strip.refresh(); });
  document.getElementById("copy").addEventListener("click", async () => notice(shown.command ? await copy(shown.command) : "No single command prints this view."));
  document.getElementById("save").addEventListener("click", () => save(`${shown.title} ${log ? log.name : ""}`.trim(), shown.command || location.href.split("?token")[0]));
  const search = document.getElementById("search");
  document.getElementById("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (search.value.trim()) go(link("search", { ...moments(), text: search.value.trim() }));
  });
  let typed = null;
  search.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(async () => {
      if (search.value.trim().length < 2) return;
      const answer = await ask("search", { text: search.value, at: here().params.at }).catch(() => null);
      if (answer) document.getElementById("completions").replaceChildren(...answer.entities.slice(0, 12).map((each) => h("option", { value: each.path })));
    }, 200);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea, select")) { event.preventDefault(); search.focus(); }
  });
}

controls();
strip.build(document.getElementById("strip"));
addEventListener("hashchange", load);
if (!location.hash) history.replaceState(null, "", link("overview"));
load();
listen();
