// The buttons that every page has: light or dark, UTC or local time, and the way past the navigation.

import { settings } from "./dom.js";

function theme(name) {
  const isDark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.classList.toggle("dark", isDark);
}

/** `draw` is called when the times are to be shown in another zone. */
export function frame(draw) {
  document.documentElement.dataset.runs = ""; // old.js looks for it
  theme(localStorage.getItem("theme"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(localStorage.getItem("theme")));
  document.getElementById("theme").addEventListener("click", () => {
    const next = document.documentElement.classList.contains("dark") ? "light" : "dark";
    localStorage.setItem("theme", next);
    theme(next);
  });
  const zone = document.getElementById("zone");
  const showZone = () => { zone.setAttribute("aria-pressed", String(settings.utc)); zone.textContent = settings.utc ? "UTC" : "Local time"; };
  showZone();
  zone.addEventListener("click", () => {
    settings.utc = !settings.utc;
    localStorage.setItem("zone", settings.utc ? "utc" : "local");
    showZone();
    draw();
  });
  document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("main").focus(); });
}

/** Whether the arrow keys are for the element that has the focus: a table that is wider than its place scrolls. */
export const scrollsItself = (element) => element.matches(".sheet") && element.scrollWidth > element.clientWidth;

/** Says, if an answer takes longer than a person notices, that it is read: beside what is shown, or under the title of the view that follows. */
export function busySoon(main, title) {
  return setTimeout(() => {
    if (title) main.replaceChildren(title);
    main.setAttribute("aria-busy", "true");
  }, 200);
}
