"use strict";
// Draws every place of a chart beside this script, in the colours of the page or, in print, of paper.
(() => {
  const home = document.currentScript.parentElement;
  const places = [...home.querySelectorAll(".chart[data-chart]")];
  const state = (word) => { document.documentElement.dataset.charts = word; };
  let busy = 0; // charts that are being drawn
  let given = null;
  let paper = null; // a width while printing

  const unpack = async (kind) => {
    const script = home.querySelector(`:scope > script.${kind}`);
    if (!script) return "null";
    const packed = script.textContent.trim();
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  const css = (role) => getComputedStyle(document.documentElement).getPropertyValue(role).trim();
  const coloured = (config) => JSON.parse(JSON.stringify(config), (_, value) =>
    value in given.paper ? (paper ? "" : css(value)) || given.paper[value] : value);

  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  tip.style.cssText = "position: fixed; z-index: 9; pointer-events: none; white-space: pre-line; max-width: min(360px, 90vw);"
    + "font: 12px/1.4 system-ui, sans-serif; padding: 5px 9px; border-radius: 6px; overflow-wrap: anywhere;"
    + "background: var(--paper, #fff); color: var(--ink, #000); border: 1px solid var(--line, #ccc)";
  const tooltip = (_, event, __, text) => {
    tip.hidden = text === null || text === undefined || text === "";
    if (tip.hidden) return;
    tip.textContent = text; // never HTML: names are in it
    const [x, y] = [event.clientX + 14, event.clientY + 14];
    tip.style.left = `${Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + tip.offsetHeight + 8 < window.innerHeight ? y : Math.max(4, event.clientY - tip.offsetHeight - 10)}px`;
  };

  const controls = (place, kind) => [...home.querySelectorAll(`${kind}[data-of="${place.dataset.chart}"]`)];
  const draw = async (place) => {
    state("drawing");
    busy += 1;
    await drawn(place).finally(() => { busy -= 1; });
    if (!busy) state("drawn");
  };
  const drawn = async (place) => {
    const path = controls(place, "select").map((select) => select.value);
    const found = path.reduce((at, choice) => at[choice], given.charts[place.dataset.chart]);
    const spec = structuredClone(found);
    for (const select of controls(place, "select[data-help]")) {
      document.getElementById(select.dataset.help).textContent = select.selectedOptions[0].title;
    }
    const set = (name, value) => {
      for (const each of spec.params) if (each.name === name) each.value = value;
    };
    for (const tick of controls(place, "input")) set(tick.name, tick.checked);
    if ("width" in spec) set("space", spec.width = paper || place.clientWidth);
    if (paper && spec.height > 250) spec.height *= .75;
    const config = coloured(given.config);
    place.shown?.finalize();
    place.shown = await vegaEmbed(place, spec, {
      actions: false, ast: true, config, defaultStyle: false, mode: "vega-lite", renderer: "svg", tooltip,
    });
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", spec.description);
    place.removeAttribute("aria-roledescription");
    place.width = place.clientWidth;
  };
  const again = () => Promise.all(places.map(draw));

  const show = async () => {
    document.body.append(tip);
    for (const place of places) {
      for (const control of [...controls(place, "select"), ...controls(place, "input")]) {
        control.addEventListener("change", () => draw(place));
      }
    }
    await again();
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    window.addEventListener("beforeprint", () => { paper = 680; again(); });
    window.addEventListener("afterprint", () => { paper = null; again(); });
    let soon = null;
    window.addEventListener("resize", () => {
      clearTimeout(soon);
      soon = setTimeout(() => paper || places.filter((place) => place.clientWidth !== place.width).forEach(draw), 150);
    });
  };

  const load = async () => {
    const [code, charts, numbers] = await Promise.all(["vega", "charts", "numbers"].map(unpack));
    given = JSON.parse(charts);
    document.dispatchEvent(new CustomEvent("numbers", { detail: JSON.parse(numbers) })); // for the page's own script
    if (!window.vegaEmbed) document.head.append(Object.assign(document.createElement("script"), { textContent: code }));
    await show();
  };
  load().catch((error) => {
    console.error(error);
    state("failed");
    for (const place of places) {
      place.textContent = "This chart could not be drawn; it needs a browser from 2023 or later. The tables are complete.";
    }
  });
})();
