// Where the page is: everything that is needed to see the same again is in the URL's fragment.

/** {view, params}: `at` is the moment (absent: the end, followed), `since` the second moment. */
export function here() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: decodeURIComponent(path) || "overview", params: Object.fromEntries(new URLSearchParams(text || "")) };
}

export function link(view, params = {}) {
  const text = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "")).toString();
  return `#/${encodeURIComponent(view)}${text ? `?${text}` : ""}`;
}

/** The two moments of the page, for links that keep them. */
export function moments() {
  const { at, since } = here().params;
  return { at, since };
}

/** A link to an entity's page at the present moment. */
export function entityLink(path, more = {}) {
  return link("entity", { path, ...moments(), ...more });
}

/** The same view with other parameters; undefined removes one. `replace`: not a step of its own for Back. */
export function change(params, replace = false) {
  const { view, params: now } = here();
  go(link(view, { ...now, ...params }), replace);
}

export function go(hash, replace = false) {
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}
