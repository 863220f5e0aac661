"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const charts = [];
  let paper = null; // a width while printing

  // -- tables ---------------------------------------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (row) => {
        const cell = row.cells[i];
        return "v" in cell.dataset ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : cell.textContent;
      };
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null); // undefined stays last
        const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return up ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
    }));
  }

  // -- words and colours ----------------------------------------------------------------------------------------------

  // plotly reads a little HTML in its texts: names must not become any
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const name = (text, most = 32) => {
    let short = [...String(text).replace(/\s+/g, " ")];
    if (short.length > most) short = [...short.slice(0, most - 1), "…"];
    const plain = short.join("");
    return safe(/[\u0590-\u08ff\u202a-\u202e\u2066-\u2069\ufb1d-\ufefc]/.test(plain) ? `\u2068${plain}\u2069` : plain);
  };
  const number = (value) => value === null || value === undefined ? "undefined"
    : value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1)
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(3);
  const spread = (mean, std) => number(mean) + (std === null || std === undefined ? "" : ` ± ${number(std)}`);
  const title = (metric) => data.metrics[metric].title;
  const axis = (metric, gap = " ") => {
    const way = { high: "(higher is better)", low: "(lower is better)", "": "" }[data.metrics[metric].better];
    return safe(title(metric)) + (way && gap + way);
  };
  const under = (metric) => words(axis(metric, narrow() ? "<br>" : " "));

  const palette = ["#3b76d6", "#e07b00", "#2a9d5c", "#c8443f", "#8a63c9", "#9a6a4f", "#d763a8", "#7d8a1e", "#1b9aaa", "#6d7788"];
  const count = data.arms.length;
  const colour = (i, total = count) =>
    total <= palette.length ? palette[i] : `hsl(${Math.round(260 - 260 * i / (total - 1))} 62% 52%)`;
  const faded = (value) => value.startsWith("#") ? value + "2e" : value.replace(")", " / .16)");
  const mixed = (value, share) => { // towards white
    const part = (at) => parseInt(value.slice(at, at + 2), 16);
    return `rgb(${[1, 3, 5].map((at) => Math.round(part(at) + (255 - part(at)) * share)).join(",")})`;
  };
  const css = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const theme = () => paper
    ? { ink: "#000", soft: "#444", line: "#ccc", grey: "#aaa", back: "#fff" }
    : { ink: css("--ink"), soft: css("--soft"), line: css("--line"), grey: css("--grey"), back: css("--paper") };

  // -- charts ---------------------------------------------------------------------------------------------------------

  const layout = (look, more) => {
    const lines = { gridcolor: look.line, zerolinecolor: look.line, linecolor: look.line, automargin: true };
    const { xaxis, yaxis, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, height: 420,
      font: { color: look.ink, size: 12, family: "system-ui, sans-serif" },
      margin: { l: 56, r: 12, t: 12, b: 48 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", maxheight: 0.35, traceorder: "normal" },
      hoverlabel: { bgcolor: look.back, bordercolor: look.line, font: { color: look.ink }, align: "left" },
      ...rest,
      ...(paper ? { width: paper, autosize: false } : { autosize: true }),
      xaxis: { ...lines, ...xaxis }, yaxis: { ...lines, ...yaxis },
    };
  };
  const words = (text) => ({ text, standoff: 8 });
  const narrow = () => (paper || window.innerWidth) < 600;
  const legendRoom = (labels) => { // rows of a horizontal legend, so that the plot keeps its height
    const width = (paper || Math.min(window.innerWidth, 1200)) - 90;
    const perRow = Math.max(1, Math.floor(width / (44 + 7 * Math.max(...labels.map((label) => Math.min(label.length, 32))))));
    return Math.min(200, 20 * Math.ceil(labels.length / perRow));
  };
  const labels = data.arms.map((arm) => arm.label);

  const pareto = (metric, look) => {
    const front = [];
    const points = data.arms.map((arm, i) => {
      const [x, y] = [arm.final[metric], arm.final[data.quality]];
      const beaten = data.pareto[metric][i];
      const own = beaten ? look.grey : colour(i);
      if (!beaten && !arm.degenerate && x.mean !== null && y.mean !== null) front.push([x.mean, y.mean]);
      const hyper = Object.entries(arm.hyper).map(([key, value]) => `${name(key)} = ${name(value)}`);
      const text = [`<b>${name(arm.label, 60)}</b>`, `${title(data.quality)} ${spread(y.mean, y.std)}`,
        `${title(metric)} ${spread(x.mean, x.std)}`, `${arm.seeds.length} seeds`, ...hyper,
        ...(arm.degenerate ? [`degenerate in ${arm.degenerate} seeds`] : []), ...(beaten ? ["dominated"] : [])];
      const bars = (std) => ({ type: "data", array: [std ?? 0], visible: std !== null, color: own, thickness: 1, width: 3 });
      return {
        type: "scatter", mode: "markers", name: name(arm.label), x: [x.mean], y: [y.mean],
        error_x: bars(x.std), error_y: bars(y.std), hoverinfo: "text", hovertext: [text.join("<br>")],
        marker: { color: own, size: 11, symbol: arm.degenerate ? "x" : "circle" },
      };
    });
    front.sort((a, b) => a[0] - b[0]);
    const line = {
      type: "scatter", mode: "lines", x: front.map((p) => p[0]), y: front.map((p) => p[1]), hoverinfo: "skip",
      showlegend: false, line: { color: look.soft, width: 1, dash: "dot" },
    };
    const room = count > 1 ? legendRoom(labels) : 0;
    return [[line, ...points], layout(look, {
      height: 400 + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 }, showlegend: count > 1,
      xaxis: { title: under(metric) }, yaxis: { title: words(axis(data.quality)) },
    })];
  };

  const rounds = (metric, look) => {
    const traces = [];
    data.rounds.series.forEach((one, i) => {
      if (!(metric in one.mean)) return;
      const [mean, std] = [one.mean[metric], one.std[metric]];
      const held = one.round.map((_, k) => k).filter((k) => mean[k] !== null && std[k] !== null);
      if (held.length > 1) {
        const back = [...held].reverse();
        traces.push({
          type: "scatter", mode: "lines", fill: "toself", fillcolor: faded(colour(i)), line: { width: 0 },
          x: [...held, ...back].map((k) => one.round[k]), legendgroup: String(i), showlegend: false, hoverinfo: "skip",
          y: [...held.map((k) => mean[k] + std[k]), ...back.map((k) => mean[k] - std[k])],
        });
      }
      traces.push({
        type: "scatter", mode: one.round.length > 1 ? "lines" : "markers", name: name(labels[i]), x: one.round, y: mean,
        legendgroup: String(i), line: { color: colour(i), width: 2 }, marker: { color: colour(i) }, hoverinfo: "text",
        hovertext: one.round.map((r, k) => `<b>${name(labels[i])}</b><br>round ${r}: ${spread(mean[k], std[k])}`),
      });
    });
    const room = count > 1 ? legendRoom(labels) : 0;
    return [traces, layout(look, {
      height: 360 + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 }, showlegend: count > 1,
      xaxis: { title: words("round") }, yaxis: { title: words(axis(metric)) },
    })];
  };

  const groups = (metric, look) => {
    const { mean, std } = data.groups.values[metric];
    const rows = data.groups.values.count?.mean;
    const places = data.groups.names.map((_, g) => g);
    const ticks = data.groups.names.map((group, g) => {
      const known = rows ? rows.map((each) => each[g]).filter((n) => n !== null) : [];
      return name(group, narrow() ? 14 : 32) + (known.length ? `<br>n = ${Math.round(Math.min(...known)).toLocaleString("en")}` : "");
    });
    const traces = labels.map((label, i) => ({
      type: "bar", name: name(label), x: places, y: mean[i], marker: { color: colour(i) }, hoverinfo: "text",
      error_y: { type: "data", array: std[i].map((s) => s ?? 0), visible: std[i].some((s) => s !== null), color: look.soft, thickness: 1, width: 2 },
      hovertext: places.map((g) => `<b>${name(label)}</b><br>${name(data.groups.names[g])}: ${spread(mean[i][g], std[i][g])}`),
    }));
    const room = count > 1 ? legendRoom(labels) : 0;
    return [traces, layout(look, {
      height: 340 + room, margin: { l: 60, r: 14, t: 16 + room, b: 56 }, barmode: "group", showlegend: count > 1,
      xaxis: { tickmode: "array", tickvals: places, ticktext: ticks, showgrid: false },
      yaxis: { title: words(axis(metric)) },
    })];
  };

  const clients = (metric, look) => {
    const places = data.arms.map((_, i) => i);
    const drawn = data.clients.names.length > 0;
    const traces = places.map((i) => {
      const base = { type: "box", name: name(labels[i]), marker: { color: colour(i), size: 4, opacity: .75 }, line: { width: 1.3 }, fillcolor: faded(colour(i)) };
      if (drawn) {
        const values = data.clients.mean[metric][i];
        return {
          ...base, x: values, y: values.map(() => i), orientation: "h", boxpoints: "all", jitter: .5, pointpos: 0,
          hoveron: "points", hoverinfo: "text",
          hovertext: values.map((value, k) => `client ${name(data.clients.names[k])}: ${number(value)}`),
        };
      }
      const box = data.clients.boxes[metric][i];
      const five = box ? { lowerfence: [box[0]], q1: [box[1]], median: [box[2]], q3: [box[3]], upperfence: [box[4]] } : {};
      return { ...base, ...five, y: [i], orientation: "h" };
    });
    return [traces, layout(look, {
      height: Math.max(200, Math.min(1400, 90 + 62 * count)), showlegend: false, margin: { l: 60, r: 14, t: 12, b: 52 },
      xaxis: { title: under(metric) },
      yaxis: { tickmode: "array", tickvals: places, ticktext: labels.map((label) => name(label, narrow() ? 14 : 32)), autorange: "reversed", showgrid: false, zeroline: false },
    })];
  };

  const partition = (part) => (_, look) => {
    const upright = part.clients.length > 60; // too many for a labelled bar each
    const places = part.clients.map((_, k) => k);
    const cells = part.groups.flatMap((group, g) => part.classes.map((label, c) => [group, g, label, c]));
    const names = cells.map(([group, , label]) => `${group}, ${label}`);
    const traces = cells.map(([group, g, label, c], i) => {
      const rows = part.cells.map((client) => client[g][c]);
      return {
        type: "bar", name: name(names[i]), orientation: upright ? "v" : "h", x: upright ? places : rows, y: upright ? rows : places,
        marker: { color: mixed(palette[g % palette.length], .62 * c / Math.max(part.classes.length - 1, 1)), line: { width: 0 } },
        hoverinfo: "text",
        hovertext: rows.map((n, k) => `client ${name(part.clients[k])}<br>${name(group)}, ${name(label)}: ${n} rows`),
      };
    });
    const room = legendRoom(names);
    const which = upright
      ? { title: words("client"), showticklabels: false, showgrid: false }
      : { tickmode: "array", tickvals: places, ticktext: part.clients.map((each) => name(each, narrow() ? 14 : 32)), autorange: "reversed", title: words("client"), showgrid: false };
    const size = { title: words("training rows") };
    return [traces, layout(look, {
      barmode: "stack", showlegend: true, margin: { l: 60, r: 14, t: 16 + room, b: 52 },
      height: (upright ? 380 : Math.max(200, 24 * part.clients.length + 90)) + room, bargap: upright ? 0 : .25,
      xaxis: upright ? which : size, yaxis: upright ? size : which,
    })];
  };

  // -- putting them on the page ---------------------------------------------------------------------------------------

  const draw = ({ place, make, select }) => {
    const metric = select ? select.value : null;
    const help = select && byId(select.id.replace("metric", "help"));
    if (help) help.textContent = data.metrics[metric].help;
    const [traces, about] = make(metric, theme());
    return Plotly.react(place, traces, about, { displayModeBar: false, responsive: !paper, typesetMath: false });
  };
  const add = (id, make, metrics, first) => {
    const place = byId(`${id}-chart`);
    if (!place) return;
    const select = metrics ? byId(`${id}-metric`) : null;
    if (select) {
      select.append(...metrics.map((metric) => new Option(title(metric), metric, false, metric === first)));
      select.addEventListener("change", () => draw(chart));
    }
    const chart = { place, make, select };
    charts.push(chart);
    draw(chart);
  };
  const show = () => {
    const first = (names, wanted) => wanted.find((each) => names.includes(each)) ?? names[0];
    const rates = data.groups.metrics.filter((metric) => !["count", "positives", "degenerate"].includes(metric));
    add("pareto", pareto, Object.keys(data.pareto), data.disparity);
    add("rounds", rounds, data.rounds.metrics, data.quality);
    add("groups", groups, rates, first(rates, ["selection_rate", "accuracy", "rmse"]));
    add("clients", clients, data.clients.metrics, first(data.clients.metrics, [data.quality]));
    data.partitions.forEach((part, i) => {
      const place = byId(`partition-chart-${i}`);
      if (!place) return;
      const chart = { place, make: partition(part), select: null };
      charts.push(chart);
      draw(chart);
    });
  };
  const again = () => charts.forEach(draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", () => { paper = 680; again(); });
  window.addEventListener("afterprint", () => { paper = null; again(); });

  const unpack = async () => {
    const packed = Uint8Array.from(atob(byId("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = document.createElement("script");
    code.textContent = await new Response(stream).text();
    document.head.append(code);
  };
  unpack().then(show).catch((error) => {
    console.error(error);
    for (const place of document.querySelectorAll(".chart")) {
      place.textContent = "This chart could not be drawn; it needs a browser from 2023 or later. The tables are complete.";
    }
  });
})();
