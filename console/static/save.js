// The present view as one HTML file that opens without a server, and the command that prints the same.

import { h } from "./dom.js";

export async function save(title, command) {
  const style = await (await fetch("/static/style.css")).text();
  const copy = document.documentElement.cloneNode(true);
  for (const each of copy.querySelectorAll("script, link, datalist, noscript, .controls button, .controls select, .tools, #search-form, #nav, .skip, input, .bar button, .bar select, form button")) each.remove();
  for (const each of copy.querySelectorAll("a[href]")) each.removeAttribute("href");
  for (const each of copy.querySelectorAll("details")) each.setAttribute("open", "");
  for (const each of copy.querySelectorAll("[hidden], #notice")) each.remove();
  copy.querySelector("head").append(
    h("meta", { "http-equiv": "Content-Security-Policy", content: "default-src 'none'; style-src 'unsafe-inline'" }),
    h("style", {}, style, "body{display:block}main{overflow:visible}#strip .scroll{max-height:none}"));
  copy.querySelector("title").textContent = title;
  copy.querySelector("main").append(h("p", { class: "moment" }, `Saved ${new Date().toISOString()} by metaquorum console. The same in a terminal:`), h("pre", {}, command));
  const file = new Blob(["<!doctype html>\n", copy.outerHTML], { type: "text/html" });
  const address = URL.createObjectURL(file);
  const anchor = h("a", { href: address, download: `${title.replace(/[^\w.-]+/g, "-")}.html` });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return `Copied: ${text}`;
  } catch {
    return `The browser did not allow the copy. The command: ${text}`;
  }
}
